"""`treedb cp` copies the value at one path to another, `treedb mv` moves it within a database.

A copy is between any two daemons, piece by piece. A move is one atomic write. The value is read
with its priorities. One PATCH of the nearest path above both sets the target and removes the
source, on the condition that the entity tag there has not changed since it was read; if another
client has written there meanwhile, all is done again. So the value is never at both paths or at
neither, and no change of it is lost.
"""

from __future__ import annotations

import argparse
import pathlib
from argparse import ArgumentParser, Namespace
from collections.abc import Callable, Iterator
from itertools import takewhile
from typing import Final
from urllib.parse import parse_qsl, unquote

import attrs
import orjson

from treedbd.cli import options
from treedbd.cli.data import (
    CONDITION_FAILED,
    FORBIDDEN,
    JSON_HEADERS,
    NULL,
    TOO_LARGE,
    WITH_TAG,
    describe_tries,
    pause_between_tries,
)
from treedbd.cli.exit import CommandFailed, warn
from treedbd.cli.http_client import (
    DROPPED,
    Body,
    HttpClient,
    UnreadResponse,
    add_online_options,
    make_source_client,
)
from treedbd.tree.path import format_path
from treedbd.tree.types import Path

_MAX_BYTES: Final = 268_435_456
_CONTAINERS: Final = (b"{", b"[")
_ONE_CHILD: Final = {"shallow": "true", "limitToFirst": "1"}


def add_options(parser: ArgumentParser, _: str) -> None:
    """Add the options of the command to its parser."""
    options.add_address(parser, "the path to copy from", "source", "SOURCE-URL")
    options.add_address(parser, "the path to copy to", metavar="TARGET-URL")
    parser.add_argument(
        "--export",
        action=argparse.BooleanOptionalAction,
        default=True,
        help="copy priorities too (default: they are copied)",
    )
    parser.add_argument(
        "--source-token-file",
        metavar="FILE",
        type=pathlib.Path,
        help="a file with the token for the source (default: that for the target, if both are of "
        "one server, else none)",
    )
    add_online_options(parser, _copy, has_timeout=True)


def _copy(client: HttpClient, arguments: Namespace) -> None:
    source, target = arguments.source, arguments.url
    if is_within(target, source):
        raise CommandFailed(f"{source} cannot be copied into itself.")
    parameters = {"format": "export"} if arguments.export else {}
    address = source.to_json().with_parameters(parameters | options.time_parameters(arguments))
    is_one_server = source.origin == target.origin  # a token is sent to no other server
    token = (
        options.read_token(arguments) if is_one_server and not arguments.source_token_file else None
    )
    response = make_source_client(arguments, token).request("GET", address)
    body = Body(_all_but_nothing(response, source))
    to = target.to_json().with_parameters({"print": "silent", **options.time_parameters(arguments)})
    written = client.send("PUT", to, JSON_HEADERS, body)
    if not written.is_success:
        hint = " treedb export and import copy values of any size."
        raise CommandFailed(written.read_error() + hint * (written.status == TOO_LARGE))
    if written.has_dropped:
        warn(DROPPED)


def _all_but_nothing(response: UnreadResponse, source: options.Url) -> Iterator[bytes]:
    """Return the pieces of a body; raise `CommandFailed` for `null`, which would remove a value."""
    pieces = response.pieces()
    begin = b""
    for piece in pieces:
        begin += piece
        if len(begin) > len(NULL) + 1:
            break
    if begin.strip() == NULL:
        raise CommandFailed(f"There is nothing at {source}, so nothing was copied.")
    yield begin
    yield from pieces


def database_of(url: options.Url) -> tuple[str, int, str, str]:
    """Return what identifies the database of a URL, as far as the URL says it."""
    ns = dict(parse_qsl(url.query)).get("ns", "").lower()
    host = url.host.lower()
    if options.is_local(host):
        label, _, rest = host.rpartition(f".{options.LOCALHOST}")
        ns, host = ns or ("" if rest else label), options.LOCALHOST
    return host, url.port, url.socket, ns


def is_within(inner: options.Url, outer: options.Url) -> bool:
    """Return whether a path is that of another URL of the same database, or below it."""
    keys = _keys(outer)
    return database_of(inner) == database_of(outer) and _keys(inner)[: len(keys)] == keys


def _keys(url: options.Url) -> list[str]:
    return [key for key in unquote(url.path.removesuffix(options.SUFFIX)).split("/") if key]


class TargetExists(CommandFailed):
    """There is a value at the target already."""


def add_mv_options(parser: ArgumentParser, _: str) -> None:
    """Add the options of the command to its parser."""
    parser.description = "Move the value at a path to another path of the same database."
    options.add_address(parser, "the path to move from", "source", "SOURCE-URL")
    options.add_address(parser, "the path to move to", metavar="TARGET-URL")
    options.add_flag(parser, "-f", "--force", "replace what is at the target")
    options.add_tries_option(parser)
    add_online_options(parser, _move, has_timeout=True)


def _move(client: HttpClient, arguments: Namespace) -> None:
    if database_of(arguments.source) != database_of(arguments.url):
        raise CommandFailed(
            "mv moves within one database, which both URLs must name alike: use treedb cp and "
            "remove for two of them."
        )
    try:
        _, source = options.split_url(arguments.source, options.OVERRIDE)
        root, target = options.split_url(arguments.url, options.OVERRIDE)
    except options.InvalidUrl as error:
        raise CommandFailed(f"The URL {str(error).removesuffix('.')}.") from None

    def url_of(path: Path, parameters: dict[str, str]) -> options.Url:
        url = root.below(path).to_json()
        return url.with_parameters(parameters | options.time_parameters(arguments))

    try:
        Move(client, url_of, source, target).run(arguments.tries, replaces=arguments.force)
    except TargetExists as error:
        raise TargetExists(f"{error} --force replaces it.") from None


@attrs.frozen
class Move:
    """The move of the value at `source` to `target`; `url_of` returns the URL of a path."""

    client: HttpClient
    url_of: Callable[[Path, dict[str, str]], options.Url]
    source: Path
    target: Path

    def run(self, tries: int = options.DEFAULT_TRIES, *, replaces: bool) -> None:
        """Move the value; with `replaces` a value at the target is replaced.

        Raises `TargetExists`, or `CommandFailed`: then nothing has changed, unless the connection
        broke before the response.
        """
        if self.target[: len(self.source)] == self.source:
            raise CommandFailed(f"{format_path(self.source)} cannot be moved into itself.")
        above = _common(self.source, self.target)
        for number in range(1, tries + 1):
            tag = self._read_tag(above)
            value = self._read_source()
            if not replaces:
                self._check_target(above)
            if self._write(above, tag, value):
                return
            pause_between_tries(number)
        raise CommandFailed(describe_tries(format_path(above), tries, "moved"))

    def _read_tag(self, above: Path) -> str:
        response = self.client.send("HEAD", self.url_of(above, {}), WITH_TAG)
        if response.status in FORBIDDEN:
            response.close()
            # The response to a HEAD does not say what was refused.
            denied = self.client.send("GET", self.url_of(above, _ONE_CHILD))
            reason = "" if denied.is_success else f"{denied.read_error()} "
            raise CommandFailed(
                f"{reason}mv reads {format_path(above)}, which is above both paths: it writes only "
                "if nothing has changed there."
            )
        tag = response.header("ETag")
        if not response.is_success:
            raise CommandFailed(response.read_error())
        response.content()
        if tag is None:
            raise CommandFailed("The server has sent no entity tag, so nothing was moved.")
        return tag

    def _read_source(self) -> bytes:
        url = self.url_of(self.source, {"format": "export"})
        value = self.client.request("GET", url).content_up_to(_MAX_BYTES)
        if value is None:
            raise CommandFailed(
                f"{format_path(self.source)} is too large to be moved: nothing was moved."
            )
        if value.strip() == NULL:
            raise CommandFailed(
                f"There is nothing at {format_path(self.source)}, so nothing was moved."
            )
        return value

    def _check_target(self, above: Path) -> None:
        """Raise `TargetExists` if the target has a value, or one of those above it is a leaf."""
        for length in range(min(len(above) + 1, len(self.target)), len(self.target) + 1):
            path = self.target[:length]
            found = self.client.request("GET", self.url_of(path, _ONE_CHILD)).content().strip()
            if found == NULL:
                return
            if length == len(self.target) or found[:1] not in _CONTAINERS:
                raise TargetExists(f"There is a value at {format_path(path)} already.")

    def _write(self, above: Path, tag: str, value: bytes) -> bool:
        """Return whether the value was moved: not if another client has written meanwhile."""
        if above == self.target:  # it is above the source, so replacing it removes the source
            method, body = "PUT", value
        else:
            to, gone = (
                orjson.dumps("/".join(path[len(above) :])) for path in (self.target, self.source)
            )
            method, body = "PATCH", b"{%b:%b,%b:null}" % (to, value, gone)
        url = self.url_of(above, {"print": "silent"})
        headers = {**JSON_HEADERS, "If-Match": tag}
        written = self.client.send(method, url, headers, Body((body,), len(body)))
        if written.is_success:
            written.content()
            return True
        if written.status == CONDITION_FAILED:
            written.close()
            return False
        hint = " Nothing was moved: treedb export and import copy values of any size."
        raise CommandFailed(written.read_error() + hint * (written.status == TOO_LARGE))


def _common(one: Path, other: Path) -> Path:
    """Return the longest path at or above both."""
    pairs = zip(one, other, strict=False)
    return tuple(mine for mine, _ in takewhile(lambda pair: pair[0] == pair[1], pairs))
