"""What `rates.py` measures: each case is one load on one server.

Objects have small children, as data in life has: 109 of them are 10 KB, 11,000 are 1 MB. A case of
treedb names the case that is its floor: the same number of bytes as a constant reply of the HTTP
server that treedb uses, without anything else of treedb.
"""

from __future__ import annotations

import contextlib
import json
import tempfile
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import attrs
from callers import client_context
from load import Load
from rules import PLACE, PROFILE, RULES, make_token, put_as_owner
from servers import put, serve_reference, serve_treedb

KLEIN = "Klein, 50 B"
DEEP = "apps/shop/users/u0000001/profile"
TEXT = json.dumps("x" * 48)
OBJECTS = {"10 KB": 109, "1 MB": 11_000}
QUERIED = 100
QUERY = "orderBy=%22age%22&startAt=10&limitToFirst=10"
BODIES = tuple(json.dumps(f"{number:048}") for number in range(7))
PROFILES = tuple(json.dumps({**PROFILE, "age": age}) for age in range(7))
FIRST_READS = """
default_project = "demo"
[limits]
kept_answer_bytes = 0
[projects.demo]
rules_file = "open.json"
"""


@attrs.frozen
class Case:
    """A load, and for treedb the least multiple of `KLEIN` to reach and the case to compare."""

    name: str
    load: Load
    aim: float | None = None
    floor: str | None = None


@attrs.frozen
class Servers:
    """The base URL of each server; those of treedb hold the same values."""

    klein: str
    web: str
    web_tls: str
    floor: str
    floor_tls: str
    treedb: str
    treedb_tls: str
    first_reads: str
    """Keeps no answers; what a connection remembers of its requests is kept."""
    ruled: str
    """Has the rules of `rules.py`."""
    token: str
    """For `ruled`."""


def children(count: int) -> dict[str, object]:
    """Return an object of small children; each takes 95 bytes of JSON."""
    return {
        f"u{number:07}": {
            "name": f"Ada Lovelace {number:05}",
            "mail": f"{number:07}@example.com",
            "age": number % 90 + 10,
            "city": "London",
        }
        for number in range(count)
    }


@contextlib.contextmanager
def serve_all() -> Iterator[Servers]:
    """Run all servers, with their values, within a block."""
    with contextlib.ExitStack() as stack:

        def folder() -> str:
            return stack.enter_context(tempfile.TemporaryDirectory())

        def reference(kind: str, *, secure: bool = False) -> str:
            return stack.enter_context(serve_reference(kind, folder() if secure else None))

        def treedb(config: str | None = None, *, secure: bool = False) -> str:
            return stack.enter_context(serve_treedb(folder(), config, secure=secure))

        ruled_folder = folder()
        ruled = stack.enter_context(serve_treedb(ruled_folder))
        put_as_owner(f"{ruled}/.settings/rules.json", {"rules": RULES})
        put_as_owner(f"{ruled}/{PLACE}.json", {**PROFILE, "name": "x" * 48})
        servers = Servers(
            klein=reference("klein"),
            web=reference("web"),
            web_tls=reference("web", secure=True),
            floor=reference("floor"),
            floor_tls=reference("floor", secure=True),
            treedb=treedb(),
            treedb_tls=treedb(secure=True),
            first_reads=treedb(FIRST_READS),
            ruled=ruled,
            token=make_token(Path(ruled_folder)),
        )
        for base in (servers.treedb, servers.treedb_tls, servers.first_reads):
            fill(base)
        yield servers


def fill(base: str) -> None:
    """Put the values that are read."""
    put(f"{base}/{DEEP}/text.json", TEXT)
    put(f"{base}/queried.json", json.dumps(children(QUERIED)))
    for name, count in OBJECTS.items():
        put(f"{base}/{object_path(name)}.json", json.dumps(children(count)))


def object_path(name: str) -> str:
    """Return the path of one of the objects."""
    return f"apps/shop/{name.replace(' ', '').lower()}"


def reference_cases(servers: Servers, sizes: dict[str, int]) -> list[Case]:
    """Return the cases of the references, for answers of these sizes in bytes."""
    cases = [Case(KLEIN, Load(f"{servers.klein}/50"))]
    for name, size in sizes.items():
        cases.append(Case(f"floor, {name}", Load(f"{servers.floor}/{size}")))
        if name != "query":
            cases.append(Case(f"twisted.web, {name}", Load(f"{servers.web}/{size}")))
    for name in ("50 B", "1 MB"):
        cases.append(Case(f"floor, TLS, {name}", Load(f"{servers.floor_tls}/{sizes[name]}")))
        cases.append(Case(f"twisted.web, TLS, {name}", Load(f"{servers.web_tls}/{sizes[name]}")))
    for name, base in (("floor", servers.floor_tls), ("twisted.web", servers.web_tls)):
        cases.append(Case(f"{name}, new TLS connection", Load(f"{base}/50", reconnects=True)))
    return cases


def treedb_cases(servers: Servers) -> list[Case]:
    """Return the cases of treedb, in the order of the table."""
    small, new = f"{DEEP}/text.json", f"{DEEP}/put.json"
    paths = {name: f"{object_path(name)}.json" for name in OBJECTS}
    query = f"queried.json?{QUERY}"
    ruled = f"{servers.ruled}/{PLACE}"
    open_, tls, first = servers.treedb, servers.treedb_tls, servers.first_reads
    return [
        Case("GET 50 B", Load(f"{open_}/{small}"), 6, "floor, 50 B"),
        Case("GET 10 KB, 109 children", Load(f"{open_}/{paths['10 KB']}"), 5, "floor, 10 KB"),
        Case("GET 1 MB, 11,000 children", Load(f"{open_}/{paths['1 MB']}"), 0.25, "floor, 1 MB"),
        Case("the 10 KB, first read", Load(f"{first}/{paths['10 KB']}"), 2, "floor, 10 KB"),
        Case("the 1 MB, first read", Load(f"{first}/{paths['1 MB']}"), 0.1, "floor, 1 MB"),
        Case(
            "GET 50 B, token and rules",
            Load(f"{ruled}/name.json?auth={servers.token}"),
            3.5,
            "floor, 50 B",
        ),
        Case("PUT 50 B, synced", Load(f"{open_}/{new}", bodies=BODIES), 1.6),
        Case(
            "PUT, token and rules",
            Load(f"{ruled}.json?auth={servers.token}", bodies=PROFILES),
            1.2,
        ),
        Case("query, 10 of 100, repeated", Load(f"{open_}/{query}"), 2.5, "floor, query"),
        Case("query, 10 of 100, first time", Load(f"{first}/{query}"), 1.0, "floor, query"),
        Case("TLS GET 50 B", Load(f"{tls}/{small}"), 3.5, "floor, TLS, 50 B"),
        Case("TLS GET 1 MB", Load(f"{tls}/{paths['1 MB']}"), 0.2, "floor, TLS, 1 MB"),
        Case(
            "new TLS connection for each GET",
            Load(f"{tls}/{small}", reconnects=True),
            0.3,
            "floor, new TLS connection",
        ),
    ]


def make_cases(servers: Servers) -> list[Case]:
    """Return all cases; what the references answer has the size of what treedb answers."""
    cases = treedb_cases(servers)
    sizes = {
        case.floor.removeprefix("floor, "): answer_size(case.load.url)
        for case in cases
        if case.floor is not None and case.load.url.startswith(servers.treedb)
    }
    return reference_cases(servers, sizes) + cases


def answer_size(url: str) -> int:
    """Return the bytes of the body that a GET receives."""
    with urllib.request.urlopen(url, context=client_context()) as response:
        return len(response.read())
