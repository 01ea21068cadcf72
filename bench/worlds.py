"""The servers that `rates.py` measures, each started and filled when a row needs it first.

`World` has the daemons of one checkout of treedb, `References` what they are compared with. Objects
have small children, as data in life has: 109 of them are 10 KB, 11,000 are 1 MB.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import random
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from functools import cache, cached_property
from pathlib import Path
from typing import Any

import attrs
import workers
from callers import client_context, request
from disk import commits, syncs
from fan_out import socket_events, stream_events
from importing import measure_import
from load import Load, Sample, sample
from rules import PROFILE, RULED, RULES, make_token, place, write_settings
from servers import CHECKOUT, CONFIG, LOAD_CORE, put, serve_reference, serve_treedb
from streams import CONFIG as STREAMS_CONFIG

DEEP = "apps/shop/users/u0000001/profile"
TEXT = json.dumps("x" * 48)
OBJECTS = {"10 KB": 109, "1 MB": 11_000}
QUERIED = 100
PIECE = 20_000
READY_S = 60.0
KEPT_BYTES = 256 << 20  # room for the answers of all leaves
INDEXED = {".indexOn": ["age"]}
OPEN = {"rules": {".read": True, ".write": True, "people": INDEXED, "indexed": INDEXED}}
SERVED = CONFIG.replace("open.json", "rules.json")
ALL_KEPT = f"{SERVED}\n[limits]\nkept_answer_bytes = {KEPT_BYTES}\n"
NONE_KEPT = f"{SERVED}\n[limits]\nkept_answer_bytes = 0\n"

Measure = Callable[[float], Sample]


@attrs.frozen
class Size:
    """How much the servers hold; the defaults are those of docs/performance.md."""

    records: int = 100_000
    """Leaves to be read at random, and records with an index."""
    streams: int = 1000
    import_mb: float = 23.0

    @property
    def users(self) -> int:
        """Those who read with a token of their own."""
        return max(1, self.records // 100)


@attrs.frozen
class Daemon:
    """A daemon that listens at `base`, and its process."""

    base: str
    pid: int

    def load(self, requests: Iterator[bytes], **options: Any) -> Load:
        """Return a load of these requests, which do not end."""
        return Load(self.base, requests, pid=self.pid, **options)

    def send_all(self, requests: list[bytes]) -> None:
        """Send each request at least once."""
        load = self.load(itertools.cycle(requests))
        sample(load, 0, LOAD_CORE, least=len(requests))


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


def object_path(name: str) -> str:
    """Return the path of one of the objects."""
    return f"apps/shop/{name.replace(' ', '').lower()}"


def leaf_path(number: int) -> str:
    """Return the path of one of the leaves, with 20,000 in each branch."""
    return f"leaves/b{number // PIECE}/k{number:06}.json"


def answer_size(url: str) -> int:
    """Return the bytes of the body that a GET receives."""
    with urllib.request.urlopen(url, context=client_context()) as response:
        return len(response.read())


class References:
    """What treedb is compared with: bare servers, SQLite and the disk."""

    def __init__(self, opened: contextlib.ExitStack) -> None:
        """Prepare; all servers end with the stack."""
        self._opened = opened
        self._folder = Path(opened.enter_context(tempfile.TemporaryDirectory()))

    @cache  # noqa: B019
    def serve(self, kind: str, *, secure: bool = False) -> str:
        """Return the base URL of one of `reference.py`."""
        folder = str(self._folder) if secure else None
        return self._opened.enter_context(serve_reference(kind, folder))

    def syncs(self) -> Measure:
        """Return what measures the syncs of the disk."""
        return self._opened.enter_context(syncs(self._folder))

    def commits(self, rows: int) -> Measure:
        """Return what measures the commits of SQLite, of so many rows each."""
        return self._opened.enter_context(commits(self._folder, rows))


class World:
    """The daemons of one checkout."""

    def __init__(
        self,
        opened: contextlib.ExitStack,
        references: References,
        size: Size,
        checkout: Path = CHECKOUT,
    ) -> None:
        """Prepare; all daemons end with the stack."""
        self.references = references
        self.size = size
        self._opened = opened
        self._checkout = checkout

    def _folder(self) -> str:
        return self._opened.enter_context(tempfile.TemporaryDirectory())

    def _serve(self, config: str = SERVED, rules: object = OPEN, *, secure: bool = False) -> Daemon:
        folder = self._folder()
        write_settings(folder, rules)
        served = serve_treedb(folder, config, secure=secure, checkout=self._checkout)
        base = self._opened.enter_context(served)
        return Daemon(base, int(Path(folder, "pid").read_text()))

    @cached_property
    def small(self) -> Daemon:
        """Holds the objects and the queried collections, with open rules."""
        return fill(self._serve())

    @cached_property
    def small_tls(self) -> Daemon:
        """The same over TLS."""
        return fill(self._serve(secure=True))

    @cached_property
    def first(self) -> Daemon:
        """The same, and keeps no answers; what a connection remembers of its requests is kept."""
        return fill(self._serve(NONE_KEPT))

    @cached_property
    def leaves(self) -> Daemon:
        """Holds the leaves, each of which has been read, and may keep the answers of all."""
        daemon = self._serve(ALL_KEPT)
        fill_leaves(daemon.base, self.size.records)
        daemon.send_all(self.reads_of_leaves(daemon.base))
        return daemon

    @cached_property
    def first_leaves(self) -> Daemon:
        """Holds the leaves, and keeps no answers."""
        daemon = self._serve(NONE_KEPT)
        fill_leaves(daemon.base, self.size.records)
        return daemon

    def reads_of_leaves(self, base: str) -> list[bytes]:
        """Return a GET of each leaf."""
        return [request(base, leaf_path(number)) for number in range(self.size.records)]

    @cached_property
    def people(self) -> Daemon:
        """Holds the records with an index."""
        daemon = self._serve()
        fill_people(daemon.base, self.size.records)
        return daemon

    @cached_property
    def ruled(self) -> Daemon:
        """Has the rules of `rules.py`, and a profile of each user."""
        daemon = self._serve(RULED, {"rules": RULES})
        profile = json.dumps({**PROFILE, "name": "x" * 48})
        daemon.send_all(
            [
                request(daemon.base, f"{place(user)}.json?auth={make_token(user)}", "PUT", profile)
                for user in range(self.size.users)
            ]
        )
        return daemon

    @cached_property
    def watched(self) -> Daemon:
        """Has room for many streams and sockets."""
        return self._serve(STREAMS_CONFIG)

    def stream_events(self) -> Measure:
        """Return what measures events of streams."""
        base, pid = self.watched.base, self.watched.pid
        return self._opened.enter_context(stream_events(base, pid, self.size.streams))

    def socket_events(self) -> Measure:
        """Return what measures events of sockets."""
        base, pid = self.watched.base, self.watched.pid
        return self._opened.enter_context(socket_events(base, pid, self.size.streams))

    def imports(self) -> Measure:
        """Return what measures the import of a file into a running daemon, in MB/s."""
        daemon, folder = self._serve(), Path(self._folder())
        return measure_import(daemon.base, daemon.pid, folder, self.size.import_mb, self._checkout)

    @cache  # noqa: B019
    def workers(self, count: int) -> workers.Server:
        """Return a daemon with so many workers, on all cores."""
        served = workers.serve("--workers", str(count), checkout=self._checkout)
        return self._opened.enter_context(served)


def fill(daemon: Daemon) -> Daemon:
    """Put the values that are read."""
    base = daemon.base
    put(f"{base}/{DEEP}/text.json", TEXT)
    for name in ("queried", "indexed"):
        put(f"{base}/{name}.json", json.dumps(children(QUERIED)))
    for name, count in OBJECTS.items():
        put(f"{base}/{object_path(name)}.json", json.dumps(children(count)))
    return daemon


def fill_leaves(base: str, count: int) -> None:
    """Put leaves of 100 bytes of JSON, 20,000 in each branch."""
    for begin in range(0, count, PIECE):
        numbers = range(begin, min(begin + PIECE, count))
        values = {f"k{number:06}": f"{number:098}" for number in numbers}
        put(f"{base}/leaves/b{begin // PIECE}.json", json.dumps(values))


def fill_people(base: str, count: int) -> None:
    """Put records with random ages from 0 to 1, and wait until their index answers."""
    ages = random.Random(1)
    for begin in range(0, count, PIECE):
        values = {
            f"p{number:06}": {
                "name": f"Ada {number}",
                "age": ages.random(),
                "mail": f"{number}@example.com",
                "city": "London",
            }
            for number in range(begin, min(begin + PIECE, count))
        }
        put(f"{base}/people.json", json.dumps(values), "PATCH")
    until = time.monotonic() + READY_S
    while True:
        try:
            answer_size(f"{base}/people.json?orderBy=%22age%22&startAt=0.5&limitToFirst=5")
        except urllib.error.HTTPError:
            if time.monotonic() > until:
                raise
            time.sleep(0.1)
        else:
            return
