"""Addresses on the command line: URLs, and paths below a base.

A path is one of the daemon at `TREEDB_URL`, or else of the daemon that serves the data directory:
its lock notes the URLs. `--project` and `TREEDB_PROJECT` name the database where a URL does not.
"""

from __future__ import annotations

import os
import pathlib
import re
from argparse import ArgumentParser, Namespace
from typing import Final, TypeAlias

import attrs

from treedbd.cli.options import PROJECT_VARIABLE, read_settings
from treedbd.cli.url import LOCALHOST, SUFFIX, InvalidUrl, Url, parse_url
from treedbd.names import parse_label
from treedbd.store.lock import find_other

URL_VARIABLE: Final = "TREEDB_URL"
ADDRESS_HELP: Final = f"the URL of a path, or a path below {URL_VARIABLE} or the daemon of --data"
_LOOKS_LIKE_HOST = re.compile(r"[A-Za-z0-9.-]*:[0-9]*(/|\Z)|\[")
_HAS_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://|unix:", re.ASCII)
_ATTRIBUTES: Final = ("source", "url")


@attrs.frozen
class BarePath:
    """A path without a host, and its query, as in `/users/ada?ns=shop`."""

    path: str
    query: str


Address: TypeAlias = Url | BarePath


def add_optional_address(parser: ArgumentParser, meaning: str = ADDRESS_HELP) -> None:
    """Add the argument URL of a command that means the root without it."""
    parser.add_argument(
        "url",
        metavar="URL",
        type=parse_address,
        nargs="?",
        default="/",
        help=f"{meaning} (default: /)",
    )


def parse_address(text: str) -> Address:
    """Parse a URL or a path of a command line; raise `InvalidUrl`."""
    if not text or _HAS_SCHEME.match(text) or _LOOKS_LIKE_HOST.match(text):
        return parse_url(text)
    # What holds for the path of a URL holds here too, and errors are the same.
    url = parse_url(f"http://{LOCALHOST}/{text.removeprefix('/')}")
    return BarePath(url.path, url.query)


def resolve(arguments: Namespace) -> None:
    """Make URLs of the addresses of a command line; raise `InvalidUrl` or `CommandFailed`."""
    project = getattr(arguments, "ns", None)
    for name in _ATTRIBUTES:
        address = getattr(arguments, name, None)
        if isinstance(address, BarePath):
            address = _below_base(address, _find_base(arguments))
        elif not isinstance(address, Url):
            continue
        setattr(arguments, name, _in_project(address, project))


def default_project() -> str | None:
    """Return the project that the variable names; raise `InvalidUrl` if none can be called so."""
    name = os.environ.get(PROJECT_VARIABLE) or None
    if name is not None and parse_label(name) is None:
        raise InvalidUrl(f"the variable {PROJECT_VARIABLE} must hold a project")
    return name


def _in_project(url: Url, project: str | None) -> Url:
    if url.has("ns"):
        return url
    if project is None and not url.host.endswith(f".{LOCALHOST}"):  # such a host names a project
        project = default_project()
    return url if project is None else url.with_parameters({"ns": project})


def _below_base(address: BarePath, base: Url) -> Url:
    root = base.path.removesuffix(SUFFIX).rstrip("/")
    query = "&".join(filter(None, (base.query, address.query)))
    return attrs.evolve(base, path=root + address.path, query=query)


def _find_base(arguments: Namespace) -> Url:
    base = os.environ.get(URL_VARIABLE)
    if base:
        try:
            return parse_url(base)
        except InvalidUrl as error:
            raise InvalidUrl(f"the variable {URL_VARIABLE} {error}") from None
    data = read_settings(arguments).data
    urls = _served_at(data)
    if not urls and hasattr(arguments, "data") and hasattr(arguments, "restart"):
        # `import` and `export` with --data work without a daemon.
        raise InvalidUrl(
            "with --data give a URL, such as http://localhost/users: its host names the database"
        )
    if not urls:
        raise InvalidUrl(
            f"no daemon serves {data}: start it (treedb serve), give a URL, or set {URL_VARIABLE}"
        )
    # Without TLS nothing has to be verified; all of them are on this machine.
    return next((each for each in urls if not each.is_secure), urls[0])


def _served_at(data: pathlib.Path) -> list[Url]:
    """Return the URLs at which a running daemon serves a data directory; none if none runs."""
    found = find_other(data)
    return [] if found is None else [parse_url(each) for each in found.urls]
