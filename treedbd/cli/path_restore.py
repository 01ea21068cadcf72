"""`treedb restore --to WHEN --path PATH SOURCE URL`: one path brought back into a running database.

The database is restored from the archive into a temporary directory, as of the moment, and what is
at the path there is compared with what the daemon has. What would change is shown first. The value
is then written with its priorities, in one request that has an effect only if the path still holds
what was compared (If-Match). A value that is too long for one request is written in parts, as
`treedb import --replace` does; that it was not changed meanwhile is checked before the first one.
"""

from __future__ import annotations

import pathlib
import sys
import tempfile
from argparse import ArgumentTypeError, Namespace
from collections.abc import Iterator, Sequence
from contextlib import closing
from typing import Any, Final, Literal, TypeAlias

import attrs
import orjson

from treedbd.archive.restoring import Restoration, Restored
from treedbd.cli import options
from treedbd.cli.archive import (
    choose_databases,
    describe_restored,
    open_archive,
    reported_failures,
)
from treedbd.cli.backup import SKIPPED
from treedbd.cli.data import CONDITION_FAILED, JSON_HEADERS, NULL, TOO_LARGE, WITH_TAG
from treedbd.cli.exit import (
    DONE,
    CommandFailed,
    Status,
    counted,
    make_printable,
    paint,
    print_line,
    warn,
)
from treedbd.cli.http_client import Body, HttpClient, make_http_client
from treedbd.cli.loading import importing
from treedbd.cli.loading.transfer import DEFAULT_RETRY_S, ProgressReport
from treedbd.limits import MIB
from treedbd.names import parse_label
from treedbd.store.engine import ReadView
from treedbd.store.nodes import Nodes
from treedbd.store.sqlite.file import connect_reader
from treedbd.store.sqlite.reader import SqliteReader
from treedbd.tree.path import format_path
from treedbd.tree.types import PRIORITY, VALUE, Json, Path

MAX_BYTES: Final = 256 * MIB
"""The longest value that is compared."""
_MAX_SHOWN: Final = 100
"""Changes that are printed as text."""
_WIDTH: Final = 60
_MAX_HEALTH_BYTES: Final = 4096

Kind: TypeAlias = Literal["added", "changed", "removed"]
_SIGNS: Final[dict[Kind, tuple[str, str]]] = {
    "added": ("+", "string"),
    "changed": ("~", "number"),
    "removed": ("-", "error"),
}


@attrs.frozen
class Difference:
    """One thing that would change: at a path, from a value to another; None is nothing.

    The last key of the path is `.priority` for a priority.
    """

    kind: Kind
    path: Path
    before: Json
    after: Json


def compare(before: Json, after: Json, path: Path = ()) -> Iterator[Difference]:
    """Yield what differs between two values with priorities, as `format=export` prints them."""
    if orjson.dumps(before) == orjson.dumps(after):
        return
    if before is None or after is None:
        yield Difference("added" if before is None else "removed", path, before, after)
        return
    (old, old_priority), (new, new_priority) = _split(before), _split(after)
    if isinstance(old, dict) and isinstance(new, dict):
        for key in [*old, *(each for each in new if each not in old)]:
            yield from compare(old.get(key), new.get(key), (*path, key))
    elif orjson.dumps(old) != orjson.dumps(new):
        yield Difference("changed", path, old, new)
    yield from compare(old_priority, new_priority, (*path, PRIORITY))


def _split(value: Json) -> tuple[Json, Json]:
    """Return a leaf, or the children of a container, and the priority."""
    if not isinstance(value, dict):
        return value, None
    if VALUE in value:
        return value[VALUE], value.get(PRIORITY)
    return {key: child for key, child in value.items() if key != PRIORITY}, value.get(PRIORITY)


@attrs.frozen
class _Live:
    """What the daemon has at the path, and its entity tag."""

    value: Json
    tag: str


def restore_moment(arguments: Namespace) -> Status:
    """Show what would change at a path, and write it."""
    path = _parse_path(arguments)
    _resolve(arguments)
    client = make_http_client(arguments)
    progress = ProgressReport("restore", None, is_quiet=not sys.stderr.isatty())
    archive = open_archive(arguments, arguments.source, progress.advance)
    try:
        with (
            reported_failures("The restore failed"),
            importing.few_collections(),
            tempfile.TemporaryDirectory(prefix="treedb-restore-") as folder,
        ):
            restoration = Restoration(archive)
            db = _choose_database(restoration, client, arguments)
            choice = restoration.find(db, arguments.to)
            if choice is None:
                raise CommandFailed(f"There was no database {db} then.")
            file = pathlib.Path(folder) / "x.shelf"
            restored = restoration.restore(choice, file)
            text = _read_at(file, path)
    finally:
        progress.stop()
    _bring_back(client, arguments, path, text, restored)
    if restored.warning is not None:
        warn(restored.warning)
        return SKIPPED
    return DONE


def _parse_path(arguments: Namespace) -> Path:
    if not arguments.target:
        arguments.refuse("--path needs the URL of the database after SOURCE")
    return options.resolve_path(arguments.path, ())


def _resolve(arguments: Namespace) -> None:
    """Parse the URL of the database as of any command that has one."""
    try:
        arguments.url = options.parse_address(arguments.target)
        options.resolve(arguments)
        _, below = options.split_url(arguments.url)
        if below:
            raise options.InvalidUrl("must be that of a database: the path is given by --path")
    except ArgumentTypeError as error:
        arguments.refuse(f"argument TARGET: {error}")


def _choose_database(restoration: Restoration, client: HttpClient, arguments: Namespace) -> str:
    """Return the database of the archive: the one that is named, or that of the URL."""
    named = choose_databases(restoration, arguments) if arguments.database else None
    if named is not None:
        if len(named) > 1:
            raise CommandFailed("One path is of one database: name one.")
        return named[0]
    root: options.Url = arguments.url
    _, found = client.request("GET", _root(root).to_health()).json_text(_MAX_HEALTH_BYTES)
    label = found.get("database") if isinstance(found, dict) else None
    name = parse_label(label) if isinstance(label, str) else None
    if name is None:
        raise CommandFailed("Name the database of the archive by --database.")
    db = f"{name.project}/{name.database}"
    if db not in restoration.databases():
        raise CommandFailed(
            f"The archive has no database {db}, which is that of the URL: name another by "
            "--database."
        )
    return db


def _root(url: options.Url) -> options.Url:
    return attrs.evolve(url, path="")


def _read_at(file: pathlib.Path, path: Path) -> bytes:
    """Return what is at a path of a file, with priorities; raise `CommandFailed`."""

    def read(view: ReadView) -> bytes:
        size, chunks = 0, []
        for chunk in Nodes(view).chunks(path, export=True):
            chunks.append(chunk)
            size += len(chunk)
            if size > MAX_BYTES:
                raise CommandFailed(
                    f"{format_path(path)} has more than {MAX_BYTES // MIB} MiB: restore into a "
                    "directory, and use treedb export --data and treedb import."
                )
        return b"".join(chunks)

    with closing(connect_reader(file, is_known=False)) as connection:
        return SqliteReader(connection).read(read)


def _bring_back(
    client: HttpClient, arguments: Namespace, path: Path, text: bytes, restored: Restored
) -> None:
    url: options.Url = _root(arguments.url).below(path)
    live = _read_live(client, url)
    found = list(compare(live.value, orjson.loads(text), path))
    if arguments.json:
        print_line(orjson.dumps(_to_json(found, path, restored)).decode())
    else:
        _show(found, path, restored)
    if arguments.dry_run or not found:
        return
    if not arguments.yes:
        _ask(arguments, url)
    _write(client, url, text, live.tag)
    if not arguments.json:
        print_line(make_printable(f"{format_path(path)} is written."))


def _read_live(client: HttpClient, url: options.Url) -> _Live:
    # The tag first: what is written meanwhile is then noticed when the value is written.
    response = client.request("HEAD", url.to_json(), WITH_TAG)
    tag = response.header("ETag")
    response.content()
    if tag is None:
        raise CommandFailed(f"{url.origin} sends no entity tag, so nothing can be compared safely.")
    export = url.to_json().with_parameters({"format": "export"})
    return _Live(client.request("GET", export).json_text(MAX_BYTES)[1], tag)


def _to_json(found: Sequence[Difference], path: Path, restored: Restored) -> dict[str, Any]:
    return {
        "database": restored.db,
        "path": format_path(path),
        "number": restored.sequence,
        "time": restored.time_ms,
        **_count(found),
        "changes": [
            {
                "kind": each.kind,
                "path": format_path(each.path),
                "before": each.before,
                "after": each.after,
            }
            for each in found
        ],
    }


def _count(found: Sequence[Difference]) -> dict[str, int]:
    return {kind: sum(each.kind == kind for each in found) for kind in _SIGNS}


def _show(found: Sequence[Difference], path: Path, restored: Restored) -> None:
    print_line(describe_restored(restored))
    if not found:
        print_line(make_printable(f"{format_path(path)} is the same now: nothing changes."))
        return
    for each in found[:_MAX_SHOWN]:
        sign, kind = _SIGNS[each.kind]
        values = [_shorten(value) for value in (each.before, each.after) if value is not None]
        line = make_printable(f"{sign} {format_path(each.path)}  {' → '.join(values)}")
        print_line(paint(line, kind))
    if len(found) > _MAX_SHOWN:
        print_line(f"… and {len(found) - _MAX_SHOWN:,} more")
    counts = ", ".join(f"{number:,} {kind}" for kind, number in _count(found).items())
    print_line(f"{counts}")


def _shorten(value: Json) -> str:
    text = orjson.dumps(value).decode()
    size = f"… ({counted(len(text.encode()), 'byte')})"
    return text if len(text) <= _WIDTH else text[:_WIDTH] + size


def _ask(arguments: Namespace, url: options.Url) -> None:
    """Raise `CommandFailed` unless a person at the terminal agrees."""
    if arguments.json or sys.stdin is None or not sys.stdin.isatty():
        raise CommandFailed("Nothing is written: agree by --yes, or only look by --dry-run.")
    sys.stderr.write(make_printable(f"Write this to {url}? [y/N] "))
    sys.stderr.flush()
    if sys.stdin.readline().strip().lower() not in ("y", "yes"):
        raise CommandFailed("Nothing is written.")


def _write(client: HttpClient, url: options.Url, text: bytes, tag: str) -> None:
    """Write a value, if the path still has the entity tag; raise `CommandFailed`."""
    address = url.to_json().with_parameters({"print": "silent"})
    if text == NULL:
        response = client.send("DELETE", address, {"If-Match": tag})
    else:
        pieces = (text[at : at + MIB] for at in range(0, len(text), MIB))
        headers = {**JSON_HEADERS, "If-Match": tag}
        response = client.send("PUT", address, headers, Body(pieces, len(text)))
    if response.is_success:
        response.content()
        return
    if response.status == TOO_LARGE:
        response.close()
        _write_in_parts(client, url, text, tag)
        return
    sentence = response.read_error()
    if response.status == CONDITION_FAILED:
        sentence = f"{url} has changed since it was compared."
    raise CommandFailed(f"{sentence} Nothing is written.")


def _write_in_parts(client: HttpClient, url: options.Url, text: bytes, tag: str) -> None:
    response = client.request("HEAD", url.to_json(), WITH_TAG)
    response.content()
    if response.header("ETag") != tag:
        raise CommandFailed(f"{url} has changed since it was compared. Nothing is written.")
    with tempfile.TemporaryDirectory(prefix="treedb-restore-") as folder:
        file = pathlib.Path(folder) / "value.json"
        file.write_bytes(text)
        given = Namespace(
            url=url,
            file=str(file),
            replace=True,
            merge=False,
            format="json",
            restart=True,
            quiet=True,
            retry_for=DEFAULT_RETRY_S,
            disable_triggers=False,
        )
        try:
            importing.send_file(client, given)
        except CommandFailed as error:
            raise CommandFailed(
                f"{error} A part may be written: run the same command again."
            ) from None
