"""`treedb import`: writes a file of any size below a path, to a daemon or a stopped store.

Theory of operation. Nothing is written before one pass over the whole file has found it valid. The
pass cuts the file as the import does, so it finds invalid keys, invalid values and a truncated end,
and needs as little memory. Only if the file is invalid is it read a second time, for the line and
the column (`add_place`).

A file within `write_body_bytes` is then written by one request. A longer one is read again part by
part (`loading/chunks`), and `ResumeFile` records which parts are written, so the same command goes
on after a break. Parts are sent to a daemon (`Sender`), or written to the file of a database whose
daemon does not run (`StoreWriter`).
"""

from __future__ import annotations

import contextlib
import gc
import hashlib
import os
import pathlib
import re
import time
from argparse import ArgumentParser, ArgumentTypeError, Namespace
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from itertools import islice
from typing import Any, Final, NamedTuple

import attrs
import orjson

from treedbd import __version__
from treedbd.cli.exit import DONE, INTERRUPTED, CommandFailed, Status, counted, warn
from treedbd.cli.http_client import HttpClient, run_once
from treedbd.cli.loading.chunks import (
    Format,
    InputFile,
    InvalidFile,
    InvalidMember,
    Part,
    body_of,
    check_member_keys,
    format_of,
    members_of,
    parts_of,
)
from treedbd.cli.loading.transfer import (
    GOES_ON,
    ProgressReport,
    Refused,
    Retries,
    Sender,
    StoredNode,
    add_loading_options,
    end_on_interrupt,
    locate,
    path_of,
    unfinished_file,
)
from treedbd.cli.options import STANDARD_INPUT, Url, add_address, add_flag, read_settings
from treedbd.config.settings import Settings
from treedbd.files import create_private
from treedbd.store.engine import CannotOpenStore, DiskFull, StoreFailed
from treedbd.store.node_writer import NodeWriter
from treedbd.store.nodes import Nodes
from treedbd.store.shelf import WritingStore
from treedbd.tree.edit import make_remove, normalise
from treedbd.tree.fragments import Fragment, InvalidFragment, Splitter, find_line
from treedbd.tree.path import format_path
from treedbd.tree.types import CONTAINER, PRIORITY, Change, InvalidData, Json, Path, Place, Value

_TOKEN: Final = re.compile(rb'"(?:[^"\\]++|\\.)*+"|[{}\[\]:,]|[^\s"{}\[\]:,]+', re.DOTALL)

_NOT_EMPTY: Final = (
    "The target is not empty: use --replace to remove what is there first, or --merge to keep "
    "children that the file does not have."
)
_BEGUN: Final = (
    "An import of this file had begun, and what it wrote is there: use --replace to remove that "
    "first, or --merge to keep children that the file does not have."
)
_UNCHANGED: Final = "Nothing was changed."
_AGAIN: Final = "What was sent before is there: use --replace to remove it and begin again."
_HAS_CHANGED: Final = {
    "new": "remove what it wrote with --replace, or keep children that the file no longer has with "
    "--merge",
    "replace": "begin again with --restart --replace",
    "merge": "begin again with --restart --merge; children that the file no longer has are kept",
}
_HOPELESS: Final = frozenset({400, 404, 405, 413})
"""The statuses after which the same file would be refused again."""
_YOUNG_OBJECTS: Final = 100_000
"""Objects that are made before cycles are looked for."""
UNDER_WAY: Final = 3
"""Parts that are sent to a daemon at the same time."""


@attrs.frozen
class Validator:
    """Checks members of a document before it is written below a target."""

    target: Path
    max_string_bytes: int

    def __call__(self, path: Path, json: Json) -> None:
        """Check members of the container at a path; raise `InvalidMember`."""
        try:
            normalise(json, len(self.target) + len(path), self.max_string_bytes)
        except InvalidData as error:
            raise InvalidMember(str(error), self._find(path, json)) from None

    def _find(self, path: Path, json: Any) -> Path:
        """Return the path of the first value in `json` that is not valid by itself."""
        if isinstance(json, list):
            json = {str(at): item for at, item in enumerate(json)}
        if not isinstance(json, dict):
            return path
        for key, value in json.items():
            if key[:1] == "." and key.lstrip(".") in ("priority", "value", "sv"):
                continue
            try:
                normalise({key: value}, len(self.target) + len(path), self.max_string_bytes)
            except InvalidData:
                return self._find((*path, key), value) if _is_key(key) else (*path, key)
        return path


def _is_key(key: str) -> bool:
    try:
        check_member_keys((key,))
    except InvalidData:
        return False
    return True


def add_place(
    error: InvalidFile, blocks: Callable[[], Iterable[bytes]], validator: Validator
) -> InvalidFile:
    """Return the error of a JSON document with the path, the line and the column of its cause.

    The document is read once more, fragment by fragment.
    """
    offset, path = _Search(validator).run(blocks())
    if offset is None:
        return InvalidFile(error.reason, validator.target + error.path)
    line, column, _ = find_line(blocks(), offset)
    shown = validator.target + (path or error.path) if path or error.path else ()
    return InvalidFile(error.reason, shown, line, str(column))


class _Search:
    """The search for the first fragment that is not valid."""

    def __init__(self, validator: Validator) -> None:
        self._validator = validator
        self._splitter = Splitter()
        self._size = 0  # bytes that were fed

    def run(self, blocks: Iterable[bytes]) -> tuple[int | None, Path]:
        """Return the offset of the fault in the document, and its path; None if it is unknown."""
        try:
            for fragment in self._fragments(blocks):
                try:
                    self._check(fragment)
                except InvalidFragment as error:
                    return error.at, ()
                except InvalidMember as error:
                    inside = error.path[len(fragment.path) :]
                    return fragment.at + _offset_of(
                        fragment.json, inside, fragment.first
                    ), error.path
        except InvalidData:  # the text between two fragments is not valid
            return max(0, self._size - self._splitter.unread - 1), ()
        return None, ()

    def _fragments(self, blocks: Iterable[bytes]) -> Iterator[Fragment]:
        for block in blocks:
            self._size += len(block)
            yield from self._splitter.feed(block)
        yield from self._splitter.finish()

    def _check(self, fragment: Fragment) -> None:
        for end, key in enumerate(fragment.path, 1):
            if not _is_key(key):
                try:
                    check_member_keys((key,))
                except InvalidData as error:
                    raise InvalidMember(str(error), fragment.path[:end]) from None
        if fragment.path or fragment.begun:
            self._validator(fragment.path, members_of(fragment))
        else:
            self._validator((), fragment.parse())


def _offset_of(text: bytes, wanted: Path, first: int) -> int:
    """Return the offset of the member at a path in valid JSON; the last one of repeated members.

    `first` is the index of the first item if the text is an array.
    """
    found, at, begin = 0, first, 0
    path: list[str] = []
    is_key = False
    lists: list[bool] = []
    for match in _TOKEN.finditer(text):
        token = match[0]
        if is_key and token[:1] == b'"':
            path[-1], begin, is_key = orjson.loads(token), match.start(), False
        elif token in (b"}", b"]"):
            path.pop()
            lists.pop()
        elif token == b",":
            is_key = not lists[-1]
            path[-1] = str(int(path[-1]) + 1) if lists[-1] else path[-1]
        elif token != b":":
            if path == list(wanted):
                found = match.start() if lists[-1:] in ([True], []) else begin
            if token in (b"{", b"["):
                is_key = token == b"{"
                lists.append(not is_key)
                path.append("" if is_key else str(at))
        at = 0
    return found


@attrs.frozen
class SentContent:
    """The beginning of a file's content: its length in bytes, and its SHA-256 in hexadecimal."""

    size: int
    sha256: str


class ContentDigest:
    """Counts and hashes the content of a file while it is read."""

    def __init__(self, wanted: SentContent | None = None) -> None:
        """With `wanted`, `has_prefix` becomes whether the content begins with it."""
        self._hash = hashlib.sha256()
        self._size = 0
        self._wanted = wanted
        self.has_prefix = wanted is None

    @property
    def prefix(self) -> SentContent:
        """The content that has been read so far."""
        return SentContent(self._size, self._hash.hexdigest())

    def passing(self, blocks: Iterable[bytes]) -> Iterator[bytes]:
        """Yield the blocks, and count them."""
        for block in blocks:
            wanted = self._wanted
            if wanted is not None and self._size < wanted.size <= self._size + len(block):
                begin = self._hash.copy()
                begin.update(block[: wanted.size - self._size])
                self.has_prefix = begin.hexdigest() == wanted.sha256
            self._hash.update(block)
            self._size += len(block)
            yield block


class ResumeFile:
    """The record of an unfinished import: which parts of a file are written to a target.

    It is a small file beside the imported one, `.<name>.<digest>.import`. The digest is that of the
    target, so imports to several targets have different records. It is removed at the end.

    It also holds the length and the SHA-256 of the content that the sent parts were read from. A
    part may be written although its response is lost, so the record is made durable before the part
    is sent.

    Attributes:
        done: the number of parts that are written, from the first on.
        sent: the beginning of the content that was sent, None if nothing was.
        found: whether an earlier import to the same target, in the same mode, was not finished.
        was_begun: whether any earlier import to the same target was not finished.

    """

    def __init__(
        self, file: pathlib.Path, target: str, form: Format, mode: str, *, is_restarted: bool
    ) -> None:
        """Read the record of an earlier import, unless `is_restarted`."""
        self._path = unfinished_file(file, target, "import")
        self._new = self._path.with_name(self._path.name + ".new")
        self._identity = {"version": __version__, "format": form, "mode": mode}
        self._can_write = True
        self.was_begun: Final = self._path.exists()
        self.done = 0
        self.sent: SentContent | None = None
        self.found = not is_restarted and self._read()

    def forget(self) -> None:
        """Begin at the first part."""
        self.done, self.sent, self.found = 0, None, False

    def save_sent(self, sent: SentContent) -> None:
        """Record durably the beginning of the content that is sent from now on."""
        if self.sent is None or sent.size > self.sent.size:
            self.sent = sent
            self._save(is_durable=True)

    def save_done(self, done: int) -> None:
        """Record that the first `done` parts are written."""
        self.done = done
        self._save(is_durable=False)

    def _save(self, *, is_durable: bool) -> None:
        if not self._can_write or self.sent is None:
            return
        record = {
            **self._identity,
            "done": self.done,
            "sent_bytes": self.sent.size,
            "sent_sha256": self.sent.sha256,
        }
        try:
            with open(create_private(self._new), "wb") as file:
                file.write(orjson.dumps(record))
                if is_durable:
                    file.flush()
                    os.fsync(file.fileno())
            os.replace(self._new, self._path)
        except OSError as error:
            self._can_write = False
            warn(
                f"The import cannot be resumed if it breaks: {self._path} cannot be written "
                f"({error.strerror})."
            )

    @property
    def is_kept(self) -> bool:
        """Whether the same command can go on after a break."""
        return self._can_write and self.sent is not None

    def remove(self) -> None:
        """Remove the record, since the import is finished or cannot go on."""
        self.forget()
        for path in (self._path, self._new):
            with contextlib.suppress(OSError):
                path.unlink(missing_ok=True)

    def _read(self) -> bool:
        try:
            record: Any = orjson.loads(self._path.read_bytes())
            done, size = record.pop("done"), record.pop("sent_bytes")
            sent = SentContent(size, record.pop("sent_sha256"))
        except (OSError, ValueError, LookupError, AttributeError, TypeError):
            return False
        if record != self._identity or not isinstance(done, int) or not isinstance(size, int):
            return False
        self.done, self.sent = done, sent
        return True


class _Siblings(NamedTuple):
    """The children to set in a container, in normal form, and the keys of those to remove."""

    path: Path
    children: dict[str, Value]
    absent: list[str]


@attrs.frozen
class StoreWriter:
    """Writes parts below one node of the file of a database, under the lock of its directory.

    Each part is one transaction and one entry of the change log without content, so a stream that
    resumes later begins with the whole value.
    """

    _store: WritingStore
    _path: Path
    _max_string_bytes: int

    def is_empty(self) -> bool:
        """Return whether nothing is at the target."""
        return self._store.read(lambda nodes: nodes.peek(self._path)) is None

    def find_leaf_above(self) -> Path | None:
        """Return the path of the single value that a write at the target would replace."""

        def find(nodes: Nodes) -> Path | None:
            for length in range(len(self._path)):
                found = nodes.peek(self._path[:length])
                if found is not CONTAINER:
                    return None if found is None else self._path[:length]
            return None
            return None

        return self._store.read(find)

    def remove(self) -> None:
        """Remove what is at the target, durably."""
        self._remove()
        self._store.commit()

    def _remove(self) -> None:
        self._store.write(make_remove(Place(self._path)))

    def replace(self, parts: Iterable[Part]) -> None:
        """Write all parts in place of what is at the target, in one transaction.

        Raises `CommandFailed`; nothing is written then.
        """
        if not self.is_empty():
            self._remove()
        for part in parts:
            self._add(part)
        self._store.commit()

    def write(self, part: Part) -> None:
        """Write a part, durably; raise `CommandFailed` for data that the tree cannot hold."""
        self._add(part)
        self._store.commit()

    def _add(self, part: Part) -> None:
        try:
            groups = self._in_containers(part)
            if groups is None:
                self._store.write(part.edit(self._path, self._max_string_bytes))
            else:
                self._write_groups(groups, part.size)
        except InvalidData as error:
            raise CommandFailed(str(error)) from None

    def _in_containers(self, part: Part) -> list[_Siblings] | None:
        """Return the members of a part by their containers, None if not all are plain children."""
        groups: list[_Siblings] = []
        if part.is_whole:
            return None
        for above, members in part.groups.items():
            if PRIORITY in members:
                return None
            path = (*self._path, *above)
            normal = normalise(members, len(path), self._max_string_bytes)
            if normal.has_placeholders:
                return None
            children: Any = normal.value or {}
            absent = [key for key in members if key not in children]
            groups.append(_Siblings(path, children, absent))
        return groups

    def _write_groups(self, groups: list[_Siblings], size: int) -> None:
        def work(writer: NodeWriter) -> None:
            writer.printable = size
            for path, children, absent in groups:
                places = [Place((*path, key)) for key in absent]
                present = [each for each in places if writer.peek(each.path) is not None]
                writer.apply([Change(place, None) for place in present])
                if children:
                    writer.add_children(path, children)

        # The entry of the log has the place of the write without its content.
        now = int(time.time() * 1000)
        self._store.write_rows(work, make_remove(Place(self._path)), now, entry_bytes=0)


@contextlib.contextmanager
def open_writer(settings: Settings, node: StoredNode) -> Iterator[StoreWriter]:
    """Open the file of a node, or create it, and close it at the end; raise `CommandFailed`."""
    try:
        store = WritingStore(node.file, settings.streams.retain_events, may_create=True)
        try:
            yield StoreWriter(store, node.path, settings.limits.string_bytes)
        finally:
            store.rollback()
            store.close()
    except (CannotOpenStore, DiskFull, StoreFailed) as error:
        raise CommandFailed(str(error)) from None


def add_options(parser: ArgumentParser, _: str) -> None:
    """Add the options of the command to its parser."""
    parser.add_argument(
        "file", metavar="FILE", type=_parse_file, help="a file, or - for standard input"
    )
    add_address(parser)
    mode = parser.add_mutually_exclusive_group()
    add_flag(mode, "--replace", "remove what is at the path first")
    add_flag(mode, "--merge", "replace only the children that the file has, and keep the others")
    add_flag(parser, "--disable-triggers", "hooks receive no events of it; for admins")
    add_loading_options(parser)
    parser.set_defaults(run=_run, request=send_file)


def _parse_file(text: str) -> str:
    if text.startswith(("http://", "https://", "unix:")):
        raise ArgumentTypeError("is a URL: the order is treedb import FILE URL")
    return text


def _run(arguments: Namespace) -> Status:
    with few_collections():
        return _store(arguments) if hasattr(arguments, "data") else run_once(arguments)


@contextlib.contextmanager
def few_collections() -> Iterator[None]:
    """In a `with` block, look for cycles rarely.

    What is parsed has none, and looking for some took a fifth of the time.
    """
    before = gc.get_threshold()
    gc.set_threshold(_YOUNG_OBJECTS)
    try:
        yield
    finally:
        gc.set_threshold(*before)


class _Import:
    """One import: its file, its progress, and the record of what an earlier one has written.

    Attributes:
        done: the number of parts that are written, from the first on.
        is_one_write: whether the file is short enough for one write.
        parts: the parts of a file that is valid, each of which is read when it is needed.

    """

    def __init__(self, arguments: Namespace, target: str, settings: Settings, path: Path) -> None:
        """Open the file; raise `CommandFailed`. `path` is that of the target."""
        self._name: Final[str] = arguments.file
        self._is_quiet: Final[bool] = arguments.quiet
        self._form: Final = format_of(self._name, arguments.format)
        self._limits: Final = settings.limits
        self._validator: Final = Validator(path, settings.limits.string_bytes)
        self._source: Final = InputFile(self._name)
        self.mode: Final = "replace" if arguments.replace else "merge" if arguments.merge else "new"
        self._resume = None
        if self._name != STANDARD_INPUT:
            file, restart = pathlib.Path(self._name), arguments.restart
            self._resume = ResumeFile(file, target, self._form, self.mode, is_restarted=restart)
        self.is_one_write = False
        self._has_begun = False
        self._progress = self._report("check")
        self._digest = ContentDigest()
        self.parts: Iterator[Part] = iter(())
        self._valid = self._digest.prefix
        self._records = 0

    def _report(self, verb: str) -> ProgressReport:
        return ProgressReport(f"{verb} {self._name}", self._source.total, is_quiet=self._is_quiet)

    @property
    def done(self) -> int:
        return 0 if self._resume is None else self._resume.done

    @property
    def is_resumed(self) -> bool:
        """Whether an earlier import has begun to write."""
        return self._resume is not None and self._resume.found

    @property
    def interrupted(self) -> str:
        """The sentences that Ctrl-C prints."""
        if self._resume is not None and self._resume.is_kept:
            return f"Interrupted. {GOES_ON}"
        return "Interrupted." if self._has_begun else f"Interrupted. {_UNCHANGED}"

    def stop(self) -> None:
        """Remove the progress bar."""
        self._progress.stop()

    def check_emptiness(self, *, is_empty: bool, leaf_above: Path | None) -> None:
        """Raise `CommandFailed` if this import must not write to the target.

        `leaf_above` is the path of a single value above the target, which would be replaced.
        """
        if leaf_above is not None and self.mode != "replace":
            raise CommandFailed(
                f"There is a value at {format_path(leaf_above)}, above the target: use --replace "
                "to replace it."
            )
        if is_empty and self._resume is not None:
            self._resume.forget()  # what an earlier import wrote has been removed since
        elif self.mode == "new" and not is_empty and not self.is_resumed:
            has_begun = self._resume is not None and self._resume.was_begun
            raise CommandFailed(_BEGUN if has_begun else _NOT_EMPTY)

    def validate(self) -> None:
        """Read the whole file; raise `CommandFailed` if it cannot be imported as it is."""
        self._source.keep(lambda: self._progress.advance_to(self._source.position))
        self._progress.stop()
        self._progress = self._report("check")
        digest = ContentDigest(None if self._resume is None else self._resume.sent)
        try:
            self._records = self._read_records(digest)
            if self._form == "ndjson" and self.mode == "replace" and not self._records:
                raise CommandFailed("The file is empty: to remove what is there, treedb remove.")
        except CommandFailed:
            if self._resume is not None:
                self._resume.remove()
            raise
        if not digest.has_prefix:
            raise CommandFailed(
                f"{self._name} has changed since its import was interrupted, so that cannot go on: "
                f"{_HAS_CHANGED[self.mode]}."
            )
        self._valid = digest.prefix
        self.is_one_write = (
            self.mode != "merge"
            and not self.is_resumed
            and self._valid.size <= self._limits.write_body_bytes
        )
        self._begin()

    def _read_records(self, digest: ContentDigest) -> int:
        """Read the file once, through `digest`; return how many records it has.

        Raises `CommandFailed`, and `InvalidFile` with the place of the error if it has one.
        """
        records = 0
        blocks = digest.passing(self._source.blocks())
        is_merged = self.mode == "merge"
        try:
            for part in parts_of(blocks, self._form, check=self._validator, is_merged=is_merged):
                records += part.records
                self._progress.advance_to(self._source.position)
        except InvalidFile as error:
            if self._form == "json":
                error = add_place(error, self._source.blocks, self._validator)
            raise error from None
        return records

    def _begin(self) -> None:
        if self.is_resumed:
            warn("Going on with an import that was interrupted.")
        self._progress.stop()
        self._progress = self._report("import")
        blocks = self._digest.passing(self._source.blocks())
        self.parts = parts_of(blocks, self._form, is_merged=self.mode == "merge")

    def body(self) -> bytes:
        """Return the whole file as one body."""
        self._has_begun = True
        return body_of(self._source.blocks(), self._form)

    def skip(self) -> None:
        """Read past the parts that are written already."""
        for _ in islice(self.parts, self.done):
            pass

    def save_sent(self) -> None:
        """Record that the part which was read last may have been sent."""
        self._has_begun = True
        if self._resume is not None:
            self._resume.save_sent(self._digest.prefix)

    def save_done(self, done: int) -> None:
        """Record that the first `done` parts are written."""
        self._progress.advance_to(self._source.position)
        if self._resume is not None:
            self._resume.save_done(done)

    def finish(self) -> None:
        """Print what was imported; raise `CommandFailed` if the file has changed meanwhile."""
        if self._resume is not None:
            self._resume.remove()
        if not self.is_one_write and self._digest.prefix != self._valid:
            raise CommandFailed(f"{self._name} has changed while it was imported. {_AGAIN}")
        self._progress.finish(f"Imported {counted(self._records, 'record')}", self._source.position)

    def with_advice(self, error: CommandFailed) -> CommandFailed:
        """Return the error, with what to do next if something may have been written."""
        if not self._has_begun or self._resume is None or self._resume.sent is None:
            return error
        if isinstance(error, InvalidFile) or (
            isinstance(error, Refused) and error.status in _HOPELESS
        ):
            self._resume.remove()
            return CommandFailed(f"{error} {_AGAIN}")
        return CommandFailed(f"{error} {GOES_ON}") if self._resume.is_kept else error


def send_file(client: HttpClient, arguments: Namespace) -> None:
    """Write a file below the path of a URL, as the command line says; raise `CommandFailed`."""
    url: Url = arguments.url
    work = _Import(arguments, str(url.to_json()), read_settings(arguments), path_of(url))
    end_on_interrupt(work.stop, lambda: work.interrupted)
    try:
        disables = {"disableTriggers": "true"} if arguments.disable_triggers else {}
        sender = Sender(Retries(client, arguments.retry_for), url, disables)
        is_empty = sender.is_empty()
        leaf_above = sender.find_leaf_above() if is_empty else None
        work.check_emptiness(is_empty=is_empty, leaf_above=leaf_above)
        work.validate()
        if work.is_one_write:
            work.is_one_write = sender.replace(work.body())
        if not work.is_one_write:
            _send_parts(work, sender)
    except CommandFailed as error:
        raise work.with_advice(error) from None
    finally:
        work.stop()
    work.finish()


def _send_parts(work: _Import, sender: Sender) -> None:
    if work.mode == "replace" and not work.done:
        sender.remove()
    work.skip()
    with ThreadPoolExecutor(UNDER_WAY) as threads:
        _PartQueue(work, sender, threads).run()


class _PartQueue:
    """Sends the parts of an import, a few at a time, and records up to which all are written.

    Parts that conflict are never sent at the same time. If the import breaks after parts were
    written out of order, it goes on after the last part before which all are written; those
    after it are written again, in order, which has the same effect.
    """

    def __init__(self, work: _Import, sender: Sender, threads: ThreadPoolExecutor) -> None:
        self._work = work
        self._sender = sender
        self._threads = threads
        self._done = work.done
        self._begun = work.done
        self._under_way: dict[Future[None], tuple[int, Part]] = {}

    def run(self) -> None:
        """Write the parts that are not written; raise the first error."""
        for part in self._work.parts:
            self._record(timeout_s=0)
            while not self._may_begin(part):
                self._record()
            self._work.save_sent()
            self._under_way[self._threads.submit(self._sender.write, part)] = self._begun, part
            self._begun += 1
        while self._under_way:
            self._record()

    def _may_begin(self, part: Part) -> bool:
        others = self._under_way.values()
        return len(others) < UNDER_WAY and not any(part.conflicts(other) for _, other in others)

    def _record(self, timeout_s: float | None = None) -> None:
        """Wait until a part is written, and record up to which all are; raise the first error."""
        for each in wait(self._under_way, timeout_s, FIRST_COMPLETED).done:
            each.result()
            del self._under_way[each]
        done = min((number for number, _ in self._under_way.values()), default=self._begun)
        if done > self._done:
            self._done = done
            self._work.save_done(done)


def _store(arguments: Namespace) -> Status:
    settings = read_settings(arguments)
    node = locate(settings, arguments.url)
    work = _Import(arguments, f"{node.file}:/{'/'.join(node.path)}", settings, node.path)
    try:
        work.validate()
        with open_writer(settings, node) as writer:
            _write(work, writer)
    except KeyboardInterrupt:
        work.stop()
        warn(work.interrupted)
        return INTERRUPTED
    except CommandFailed as error:
        raise work.with_advice(error) from None
    finally:
        work.stop()
    work.finish()
    return DONE


def _write(work: _Import, writer: StoreWriter) -> None:
    work.check_emptiness(is_empty=writer.is_empty(), leaf_above=writer.find_leaf_above())
    if work.is_one_write:
        writer.replace(work.parts)
        return
    if work.mode == "replace" and not work.done:
        writer.remove()
    work.skip()
    for number, part in enumerate(work.parts, work.done + 1):
        work.save_sent()
        writer.write(part)
        work.save_done(number)
