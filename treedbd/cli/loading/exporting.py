"""`treedb export`: writes the value at a path to a file, from a daemon or a stopped store.

Theory of operation. `Download` requests the document, `Joiner` writes its fragments as JSON or as
newline-delimited members, and `PartFile` is the file that receives them. It has another name until
it is whole, and the same command goes on with it after a break: its complete members are kept, and
the rest is requested in pages.
"""

from __future__ import annotations

import contextlib
import os
import pathlib
import sys
import time
from argparse import ArgumentParser, Namespace
from collections.abc import Callable, Iterator, Mapping
from typing import Any, BinaryIO, Final

import orjson

from treedbd.cli.exit import (
    DONE,
    INTERRUPTED,
    CommandFailed,
    OutputClosed,
    Status,
    descriptor_of,
    warn,
    write_out,
)
from treedbd.cli.http_client import HttpClient, run_once
from treedbd.cli.loading.chunks import Format, InputFile, compressing, format_of, split
from treedbd.cli.loading.transfer import (
    GOES_ON,
    LONGEST,
    ProgressReport,
    Retries,
    StoredNode,
    add_loading_options,
    end_on_interrupt,
    locate,
    read_size,
    unfinished_file,
)
from treedbd.cli.options import STANDARD_INPUT as STANDARD_OUTPUT
from treedbd.cli.options import NoResponse, Url, add_address, add_flag, read_settings, writing
from treedbd.config.settings import Settings
from treedbd.files import create_private
from treedbd.limits import MIB
from treedbd.store.directory_lock import DirectoryLock
from treedbd.store.engine import CannotOpenStore, StoreFailed
from treedbd.store.shelf import ReadingStore
from treedbd.tree.fragments import Fragment, Splitter
from treedbd.tree.types import VALUE, InvalidData, Path
from treedbd.tree.value import NULL, compact

RECENT_S: Final = 12 * 3600.0
"""The age of an unfinished file that is too old to go on with: a nightly export begins again."""
_OLD: Final = ".old"

_JSON: Final = "application/json"
_ENDS: Final = {b"{": b"}", b"[": b"]", b'"': b'"'}
"""How JSON ends that begins with a byte. Nothing else is parsed of what is written unchanged."""
_EXPORT: Final = {"format": "export"}
_BY_KEY: Final = {"orderBy": '"$key"'}
_PAGE_BYTES: Final = 4 * MIB
_FIRST_PAGE: Final = 1000
_LARGEST_PAGE: Final = 20_000
"""Children of a page: as many as have about `_PAGE_BYTES`."""


class Joiner:
    """Joins the fragments of a document, as JSON or as newline-delimited members.

    It records which containers are open and the last complete child of each, so the rest of the
    document may come from other requests. The document has no arrays: it is in the form that
    `format=export` prints.

    Attributes:
        path: the innermost container that is open, from the top of the document.
        has_begun: whether anything has been written.

    """

    def __init__(self, write: Callable[[bytes], object], form: Format) -> None:
        """Call `write` with pieces of the text."""
        self._write = write
        self._is_lines = form == "ndjson"
        self.path: Path = ()
        self.has_begun = False
        self._is_closed = False
        self._has_members = [False]
        self._last: list[str | None] = [None]
        self._unread: bytes | None = None  # the last fragment, whose keys are not parsed yet

    def last_keys(self) -> list[str | None]:
        """Return the last complete child of each container that is open; None if it has none."""
        if self._unread is not None:
            keys = [key for key in orjson.loads(self._unread) if key[:1] != "."]
            if keys:
                self._last[-1] = keys[-1]
            self._unread = None
        return self._last

    def go_on_after(self, key: str) -> None:
        """Continue after the line of `key`, which is written already."""
        self.has_begun = True
        self._last = [key]

    def add(self, fragment: Fragment, below: Path = ()) -> None:
        """Write a fragment of the document, or of the value at `below` in it."""
        text = fragment.json
        if text == NULL:
            return
        if not fragment.path and not below and self._is_leaf(text):
            self._add_leaf(text)
            return
        path = below + fragment.path
        if not self.has_begun:
            self.has_begun = True
            self._write(b"" if self._is_lines else b"{")
        self.move_to(path)
        if self._is_lines and not path:
            self._write_lines(text)
        else:
            self._separate()
            self._write(text[1:-1])
        self._unread = text

    def finish(self) -> None:
        """Close everything."""
        self.move_to(())
        if not self._is_lines and not self._is_closed:
            self._write(b"}" if self.has_begun else NULL)

    def move_to(self, path: Path) -> None:
        """Close the containers that `path` is not in, and open those that lead to it."""
        while path[: len(self.path)] != self.path:
            self.last_keys()
            self._last.pop()
            self._has_members.pop()
            self._last[-1] = self.path[-1]
            self.path = self.path[:-1]
            self._write(b"}}\n" if self._is_lines and not self.path else b"}")
        for key in path[len(self.path) :]:
            self.last_keys()
            if self._is_lines and not self.path:
                self._write(b'{"key":%b,"value":{' % compact(key))
            else:
                self._separate()
                self._write(b"%b:{" % compact(key))
            self.path = (*self.path, key)
            self._last.append(None)
            self._has_members.append(False)

    def _separate(self) -> None:
        if self._has_members[-1]:
            self._write(b",")
        self._has_members[-1] = True

    def _write_lines(self, text: bytes) -> None:
        members: dict[str, Any] = orjson.loads(text)
        lines = [
            b'{"key":%b,"value":%b}\n' % (compact(key), compact(item))
            for key, item in members.items()
        ]
        self._write(b"".join(lines))

    def _is_leaf(self, text: bytes) -> bool:
        return text[:1] != b"{" or (not self.has_begun and VALUE in orjson.loads(text))

    def _add_leaf(self, text: bytes) -> None:
        if self._is_lines:
            raise CommandFailed("A value without children has no lines: export it as json.")
        self._write(text)
        self.has_begun = self._is_closed = True


class PartFile:
    """The unfinished file of an export of `source`; or a device, a pipe, standard output for `-`.

    It is called `.<name>.<digest>.part`, and is beside the file that it will become and compressed
    like it. The digest is that of the source. A device or a named pipe is written to directly; a
    symbolic link is followed. After a break the unfinished file is read, and its complete members
    become the beginning of a new one.

    Attributes:
        count: how many bytes were written, before compression.
        can_resume: whether it is a file that stays when the process ends.

    """

    def __init__(self, name: str, source: str) -> None:
        self._name = name
        self._is_output: Final = name == STANDARD_OUTPUT
        path = self._path = pathlib.Path(os.path.realpath(name))
        self._descriptor = descriptor_of(name)
        is_new_file = self._descriptor is None and (path.is_file() or not path.exists())
        self.can_resume: Final = is_new_file and not self._is_output
        self._part = unfinished_file(path, source, "part")
        self._old = self._part.with_name(self._part.name + _OLD)
        self._file: BinaryIO | None = None
        self._compressing: BinaryIO | None = None
        self.count = 0
        self._last = b"\n"

    def is_recent(self) -> bool:
        """Return whether there is an unfinished export that is recent enough to go on with."""
        with contextlib.suppress(OSError):
            file = self._old if self._old.exists() else self._part
            return self.can_resume and time.time() - file.stat().st_mtime < RECENT_S
        return False

    def begin(self, *, is_recovering: bool = False) -> None:
        """Create the file, empty; raise `CommandFailed`."""
        self.count = 0
        if self._is_output:
            return
        with self._reported():
            if self.can_resume and not is_recovering:
                self._old.unlink(missing_ok=True)
            self._file = os.fdopen(self._open(), "wb")
            self._compressing = compressing(self._name, self._file)

    def _open(self) -> int:
        if self.can_resume:
            return create_private(self._part)
        if self._descriptor is not None:
            return os.dup(self._descriptor)
        return os.open(self._path, os.O_WRONLY | os.O_CLOEXEC)

    def write(self, data: bytes) -> None:
        """Append; raise `CommandFailed`, or `OutputClosed` for standard output."""
        self.count += len(data)
        self._last = data[-1:] or self._last
        if self._compressing is None:
            write_out(data)
            return
        with self._reported():
            self._compressing.write(data)

    def close(self) -> None:
        """Close the file, which stays unfinished."""
        content, self._compressing = self._compressing, None
        file, self._file = self._file, None
        with self._reported():
            if content is not None:
                content.close()
            if file is not None:
                file.close()

    def finish(self) -> None:
        """Give the file its name, once it is on the disk; on a terminal, end its last line."""
        if not self.can_resume:
            self.close()
            if self._is_output and self._last != b"\n" and sys.stdout.isatty():
                write_out(b"\n")
            return
        with self._reported():
            assert self._file is not None and self._compressing is not None  # noqa: S101, PT018
            self._compressing.close()
            self._file.flush()
            os.fsync(self._file.fileno())
            self._file.close()
            self._file = self._compressing = None
            os.replace(self._part, self._path)
            self._old.unlink(missing_ok=True)

    def recover(self, form: Format) -> Joiner:
        """Copy the complete members of a broken export to a new file; return what adds the rest."""
        self.close()
        with self._reported():
            if not self._old.exists():  # else a recovery was broken off, whose file is shorter
                os.replace(self._part, self._old)
        self.begin(is_recovering=True)
        joiner = Joiner(self.write, form)
        blocks = _readable_blocks(str(self._old))
        if form == "ndjson":
            self._copy_lines(blocks, joiner)
        else:
            _join_document(blocks, joiner)
        with self._reported():
            self._old.unlink(missing_ok=True)
        return joiner

    def remove(self) -> None:
        """Remove the unfinished file."""
        if self.can_resume:
            self.close()
            self._part.unlink(missing_ok=True)

    def _copy_lines(self, blocks: Iterator[bytes], joiner: Joiner) -> None:
        rest, last = bytearray(), b""
        for block in blocks:
            rest += block
            end = rest.rfind(b"\n") + 1
            if end:
                text = bytes(rest[:end])
                last = text[text.rfind(b"\n", 0, end - 1) + 1 :]
                self.write(text)
                del rest[:end]
        if last:
            joiner.go_on_after(orjson.loads(last)["key"])

    def _reported(self) -> contextlib.AbstractContextManager[None]:
        return writing(self._name, self._descriptor)


def _readable_blocks(name: str) -> Iterator[bytes]:
    with contextlib.suppress(CommandFailed):  # a compressed file may be truncated
        yield from InputFile(name).blocks()


def _join_document(blocks: Iterator[bytes], joiner: Joiner) -> None:
    splitter = Splitter()
    with contextlib.suppress(InvalidData):  # the disk has lost a part: go on before it
        for block in blocks:
            for fragment in splitter.feed(block):
                joiner.add(fragment)


class Download:
    """Downloads the value at a URL into a file: in one response, and in pages after a break.

    One response shows one moment. When it breaks, the complete children are kept, and the rest is
    requested in pages: first in the innermost container that was open, then in those above it. Each
    page shows a moment of its own.
    """

    def __init__(
        self, retries: Retries, url: Url, file: PartFile, progress: ProgressReport
    ) -> None:
        """Write to `file`, which the caller begins and finishes."""
        self._retries = retries
        self._url = url.to_json()
        self._file = file
        self._progress = progress
        self._received = 0
        self._longest = 0
        self._page = _FIRST_PAGE
        self._failures = retries.failures()

    def run_plain(self) -> None:
        """Download the value without priorities; after a break begin again."""
        while True:
            try:
                self._copy({})
                return
            except NoResponse as error:
                if not self._file.can_resume and self._received:
                    raise
                self._pause(error)
                self._file.close()
                self._file.begin()

    def run(self, form: Format, joiner: Joiner) -> None:
        """Download the value with priorities, after the members that `joiner` has already."""
        is_copied = form == "json" and self._file.can_resume
        while True:
            try:
                if joiner.has_begun:
                    self._go_on(joiner)
                elif is_copied:
                    self._copy(_EXPORT)
                    return
                else:
                    self._join(joiner, self._url.with_parameters(_EXPORT), ())
                joiner.finish()
                return
            except NoResponse as error:
                if is_copied and not joiner.has_begun:
                    joiner = self._file.recover(form)
                self._pause(error)

    def _pause(self, error: NoResponse) -> None:
        """Wait before another attempt, which has the whole time if this one has got further."""
        if self._file.count > self._longest:
            self._longest = self._file.count
            self._failures = self._retries.failures()
        self._retries.pause(self._failures, str(error))

    def _copy(self, parameters: Mapping[str, str]) -> None:
        """Write a response unchanged; raise `CommandFailed` if it cannot be JSON."""
        url = self._url.with_parameters({"timeout": LONGEST, **parameters})
        response = self._retries.request("GET", url)
        kind = response.header("Content-Type") or ""
        first = last = b""
        if kind.startswith(_JSON):
            for piece in response.pieces():
                self._file.write(piece)
                self._count(piece)
                first, last = first or piece[:1], piece[-1:]
        if not first or last != _ENDS.get(first, last):
            raise CommandFailed(f"{url.origin} did not return JSON.")

    def _join(self, joiner: Joiner, url: Url, below: Path) -> None:
        """Add a response, which is the value at `below`."""
        url = url.with_parameters({"timeout": LONGEST})
        response = self._retries.request("GET", url)
        try:
            for fragment in split(map(self._count, response.pieces())):
                joiner.add(fragment, below)
        except InvalidData as error:
            raise NoResponse(f"The response of {url.origin} is not whole. {error}") from None

    def _go_on(self, joiner: Joiner) -> None:
        """Add the missing children of the containers that are open, the innermost first."""
        path = joiner.path
        for depth in reversed(range(len(path) + 1)):
            self._add_pages(joiner, path[:depth])

    def _add_pages(self, joiner: Joiner, container: Path) -> None:
        url = self._url.below(container).to_json().with_parameters(_EXPORT | _BY_KEY)
        after: str | None = ""
        while True:
            joiner.move_to(container)
            last = joiner.last_keys()[-1]
            if last == after:
                return
            after, before = last, self._received
            parameters = {"limitToFirst": str(self._page)}
            if after is not None:
                parameters["startAfter"] = compact(after).decode()
            self._join(joiner, url.with_parameters(parameters), container)
            size = max(self._received - before, 1)
            self._page = max(1, min(self._page * _PAGE_BYTES // size, _LARGEST_PAGE))

    def _count(self, data: bytes) -> bytes:
        self._received += len(data)
        self._progress.advance_to(self._received)
        return data


def add_options(parser: ArgumentParser, _: str) -> None:
    """Add the options of the command to its parser."""
    add_address(parser)
    parser.add_argument("file", metavar="FILE", help="a file, or - for standard output")
    add_flag(parser, "--plain", "without priorities, with arrays, as a GET prints it; only as json")
    add_loading_options(parser)
    parser.set_defaults(run=_run, request=_download, parser=parser)


def _run(arguments: Namespace) -> Status:
    _format(arguments)
    if not hasattr(arguments, "data"):
        return run_once(arguments)
    return _read_store(arguments)


def _format(arguments: Namespace) -> Format:
    """Return the format of the file; exit with 2 if `--plain` contradicts it."""
    form = format_of(arguments.file, arguments.format)
    if arguments.plain and form == "ndjson":
        arguments.parser.error("--plain is for json only")
    return form


def _download(client: HttpClient, arguments: Namespace) -> None:
    form = _format(arguments)
    source = f"{arguments.url.to_json()} {form} {'plain' if arguments.plain else 'export'}"
    file = PartFile(arguments.file, source)
    progress = ProgressReport(f"export {arguments.file}", None, is_quiet=arguments.quiet)
    advice = GOES_ON if file.can_resume and not arguments.plain else ""
    end_on_interrupt(progress.stop, f"Interrupted. {advice}".strip)
    try:
        retries = Retries(client, arguments.retry_for)
        if not arguments.quiet:
            progress.set_total(read_size(retries, arguments.url))
        download = Download(retries, arguments.url, file, progress)
        if arguments.plain:
            file.begin()
            download.run_plain()
        else:
            download.run(form, _begin(file, form, is_restarted=arguments.restart))
        file.finish()
    except CommandFailed as error:
        if not file.count:
            file.remove()
            raise
        raise CommandFailed(f"{error} {advice}".strip()) from None
    finally:
        progress.stop()
        file.close()
    progress.finish(_done(arguments), file.count)


def _done(arguments: Namespace) -> str:
    return "Exported" if arguments.file == STANDARD_OUTPUT else f"Exported {arguments.file}"


def _begin(file: PartFile, form: Format, *, is_restarted: bool) -> Joiner:
    """Begin a file, or go on with one that is not finished."""
    if not is_restarted and file.is_recent():
        warn("Going on with an export that was interrupted.")
        return file.recover(form)
    file.begin()
    return Joiner(file.write, form)


def _read_store(arguments: Namespace) -> Status:
    settings = read_settings(arguments)
    node = locate(settings, arguments.url)
    file = PartFile(arguments.file, f"{node.file} {node.path}")
    progress = ProgressReport(f"export {arguments.file}", None, is_quiet=arguments.quiet)
    try:
        with _open_store(settings, node) as store:
            file.begin()
            copy = _copy_lines if _format(arguments) == "ndjson" else _copy_document
            is_export = not arguments.plain
            store.read(
                lambda nodes: copy(nodes.chunks(node.path, export=is_export), file, progress)
            )
        file.finish()
    except KeyboardInterrupt:
        progress.stop()
        file.remove()
        warn("Interrupted.")
        return INTERRUPTED
    except (CommandFailed, OutputClosed):
        file.remove()
        raise
    finally:
        progress.stop()
        file.close()
    progress.finish(_done(arguments), file.count)
    return DONE


@contextlib.contextmanager
def _open_store(settings: Settings, node: StoredNode) -> Iterator[ReadingStore]:
    """Open the file of a node under the lock of its directory; raise `CommandFailed`."""
    if not node.file.exists():
        raise CommandFailed(f"There is no database {node.file}.")
    with contextlib.ExitStack() as stack:
        try:
            stack.callback(DirectoryLock(settings.data).release)
            store = ReadingStore(node.file)
            stack.callback(store.close)
            yield store
        except (CannotOpenStore, StoreFailed) as error:
            raise CommandFailed(str(error)) from None
        except OSError as error:
            raise CommandFailed(f"{node.file} cannot be read ({error.strerror}).") from None


def _copy_document(chunks: Iterator[bytes], file: PartFile, progress: ProgressReport) -> None:
    for chunk in chunks:
        file.write(chunk)
        progress.advance_to(file.count)


def _copy_lines(chunks: Iterator[bytes], file: PartFile, progress: ProgressReport) -> None:
    joiner = Joiner(file.write, "ndjson")
    for fragment in split(chunks):
        joiner.add(fragment)
        progress.advance_to(file.count)
    joiner.finish()
