"""`treedb import`: writes a file of any size below a path, online or into a stopped store.

Nothing is written before the whole file has been read and found valid (`validation`). A file within
`write_body_bytes` is one write then. A longer one is read again part by part (`parts`), and it is
recorded which are written (`resume_file`), so the same command goes on after a break.
"""

from __future__ import annotations

import pathlib
from argparse import ArgumentParser, ArgumentTypeError, Namespace
from collections.abc import Awaitable, Callable, Iterator
from itertools import islice
from typing import Any, Final, TypeAlias

from twisted.internet.threads import deferToThreadPool

from treedbd.cli.client import Client, run_online
from treedbd.cli.exit import DONE, INTERRUPTED, CommandFailed, Status, counted, warn
from treedbd.cli.loading.documents import InvalidFile, body_of, parts_of
from treedbd.cli.loading.faults import Validator
from treedbd.cli.loading.files import InputFile, format_of
from treedbd.cli.loading.location import locate, path_of
from treedbd.cli.loading.options import add_loading_options, end_on_interrupt
from treedbd.cli.loading.parts import Part
from treedbd.cli.loading.resume_file import ResumeFile
from treedbd.cli.loading.retries import Refused, Retries
from treedbd.cli.loading.sender import Queue, Sender
from treedbd.cli.loading.store_writer import StoreWriter, open_writer
from treedbd.cli.loading.validation import ContentDigest, Validation
from treedbd.cli.options import ADDRESS_HELP, STANDARD_INPUT, parse_address, read_settings
from treedbd.cli.progress import ProgressReport
from treedbd.config.settings import Settings
from treedbd.tree.path import format_path
from treedbd.tree.types import Path

_NOT_EMPTY: Final = (
    "The target is not empty: use --replace to remove what is there first, or --merge to keep "
    "children that the file does not have."
)
_BEGUN: Final = (
    "An import of this file had begun, and what it wrote is there: use --replace to remove that "
    "first, or --merge to keep children that the file does not have."
)
_GOES_ON: Final = "The same command goes on where it stopped."
_UNCHANGED: Final = "Nothing was changed."
_AGAIN: Final = "What was sent before is there: use --replace to remove it and begin again."
_HAS_CHANGED: Final = {
    "new": "remove what it wrote with --replace, or keep children that the file no longer has with "
    "--merge",
    "replace": "begin again with --restart --replace",
    "merge": "begin again with --restart --merge; children that the file no longer has are kept",
}
_HOPELESS: Final = frozenset({400, 404, 405, 413})
"""The statuses after which the rest of the same file would be refused again."""

_InThread: TypeAlias = Callable[[Callable[[], Any]], Awaitable[Any]]


def add_options(parser: ArgumentParser, _: str) -> None:
    """Add the options of the command to its parser."""
    parser.add_argument(
        "file", metavar="FILE", type=_parse_file, help="a file, or - for standard input"
    )
    parser.add_argument("url", metavar="URL", type=parse_address, help=ADDRESS_HELP)
    mode = parser.add_mutually_exclusive_group()
    mode.add_argument("--replace", action="store_true", help="remove what is at the path first")
    mode.add_argument(
        "--merge",
        action="store_true",
        help="replace only the children that the file has, and keep the others",
    )
    add_loading_options(parser)
    parser.set_defaults(run=_run, work=_send)


def _parse_file(text: str) -> str:
    if text.startswith(("http://", "https://", "unix:")):
        raise ArgumentTypeError("is a URL: the order is treedb import FILE URL")
    return text


def _run(arguments: Namespace) -> Status:
    if not hasattr(arguments, "data"):
        run_online(arguments)
    return _store(arguments)


class _Import:
    """One import: its file, its progress, and what was written of it before.

    Attributes:
        done: the number of parts that are written, from the first on.
        is_one_write: whether the file is short enough for one write.

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
            self._resume = ResumeFile(
                pathlib.Path(self._name),
                target,
                self._form,
                self.mode,
                is_restarted=arguments.restart,
            )
        self.is_one_write = False
        self._has_begun = False
        self._progress = self._report("check")
        self._digest = ContentDigest()
        self._parts: Iterator[Part] = iter(())
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
        """What Ctrl-C leaves, as sentences."""
        if self._resume is not None and self._resume.is_kept:
            return f"Interrupted. {_GOES_ON}"
        return "Interrupted." if self._has_begun else f"Interrupted. {_UNCHANGED}"

    def stop(self) -> None:
        """Remove the progress bar."""
        self._progress.stop()

    def check_emptiness(self, *, is_empty: bool, leaf_above: Path | None) -> None:
        """Raise `CommandFailed` if something is there that should not be.

        `leaf_above` is the path of a single value above the target, which would be replaced.
        """
        if leaf_above is not None and self.mode != "replace":
            raise CommandFailed(
                f"There is a value at {format_path(leaf_above)}, above the target: use --replace "
                "to replace it."
            )
        if is_empty and self._resume is not None:
            self._resume.forget()  # what was written before has been removed since
        elif self.mode == "new" and not is_empty and not self.is_resumed:
            has_begun = self._resume is not None and self._resume.was_begun
            raise CommandFailed(_BEGUN if has_begun else _NOT_EMPTY)

    def validate(self) -> None:
        """Read the whole file; raise `CommandFailed` if it cannot be imported as it is."""
        self._source.keep(lambda: self._progress.advance_to(self._source.position))
        self._progress.stop()
        self._progress = self._report("check")
        sent = self._resume.sent if self._resume is not None else None
        validation = Validation(self._source, self._form, sent)
        try:
            validation.run(
                self._validator,
                lambda: self._progress.advance_to(self._source.position),
                is_merged=self.mode == "merge",
            )
            if self._form == "ndjson" and self.mode == "replace" and not validation.records:
                raise CommandFailed("The file is empty: to remove what is there, treedb remove.")
        except CommandFailed:
            if self._resume is not None:
                self._resume.remove()
            raise
        if not validation.content.has_prefix:
            raise CommandFailed(
                f"{self._name} has changed since its import was interrupted, so that cannot go on: "
                f"{_HAS_CHANGED[self.mode]}."
            )
        self._valid = validation.content.prefix
        self._records = validation.records
        self.is_one_write = (
            self.mode != "merge"
            and not self.is_resumed
            and self._valid.size <= self._limits.write_body_bytes
        )
        self._begin()

    def _begin(self) -> None:
        if self.is_resumed:
            warn("Going on with an import that was interrupted.")
        self._progress.stop()
        self._progress = self._report("import")
        self._parts = parts_of(
            self._digest.passing(self._source.blocks()),
            self._form,
            is_merged=self.mode == "merge",
        )

    def body(self) -> bytes:
        """Return the whole file as one body."""
        self._has_begun = True
        return body_of(self._source.blocks(), self._form)

    def skip(self) -> None:
        """Read the parts that are written."""
        for _ in islice(self._parts, self.done):
            pass

    def next_part(self) -> Part | None:
        """Return the next part that is not written, None after the last."""
        return next(self._parts, None)

    def remaining(self) -> Iterator[Part]:
        """Iterate over the parts that are not written."""
        return self._parts

    def save_sent(self) -> None:
        """Record that the part which was read last is sent from now on."""
        self._has_begun = True
        if self._resume is not None:
            self._resume.save_sent(self._digest.prefix)

    def save_done(self, done: int) -> None:
        """Record that the first `done` parts are written."""
        self._progress.advance_to(self._source.position)
        if self._resume is not None:
            self._resume.save_done(done)

    def finish(self) -> None:
        """Say what was imported; raise `CommandFailed` if the file has changed meanwhile."""
        if self._resume is not None:
            self._resume.remove()
        if not self.is_one_write and self._digest.prefix != self._valid:
            raise CommandFailed(f"{self._name} has changed while it was imported. {_AGAIN}")
        self._progress.finish(f"Imported {counted(self._records, 'record')}", self._source.position)

    def with_advice(self, error: CommandFailed) -> CommandFailed:
        """Return an error that also says how to go on, if something may have been written."""
        if not self._has_begun or self._resume is None or self._resume.sent is None:
            return error
        if isinstance(error, InvalidFile) or (
            isinstance(error, Refused) and error.status in _HOPELESS
        ):
            self._resume.remove()
            return CommandFailed(f"{error} {_AGAIN}")
        return CommandFailed(f"{error} {_GOES_ON}") if self._resume.is_kept else error


async def _send(reactor: Any, client: Client, arguments: Namespace) -> None:
    work = _Import(
        arguments,
        str(arguments.url.to_json()),
        read_settings(arguments),
        path_of(arguments.url),
    )
    end_on_interrupt(work.stop, lambda: work.interrupted)
    pool = reactor.getThreadPool()  # so that a slow source does not hold up the responses
    try:
        sender = Sender(Retries(reactor, client, arguments.retry_for), arguments.url)
        is_empty = await sender.is_empty()
        leaf_above = await sender.find_leaf_above() if is_empty else None
        work.check_emptiness(is_empty=is_empty, leaf_above=leaf_above)
        await deferToThreadPool(reactor, pool, work.validate)
        if work.is_one_write:
            body = await deferToThreadPool(reactor, pool, work.body)
            work.is_one_write = await sender.replace(body)
        if not work.is_one_write:
            await _send_parts(work, sender, lambda call: deferToThreadPool(reactor, pool, call))
    except CommandFailed as error:
        raise work.with_advice(error) from None
    finally:
        work.stop()
    work.finish()


async def _send_parts(work: _Import, sender: Sender, call_in_thread: _InThread) -> None:
    async def write(part: Part) -> None:
        work.save_sent()
        await sender.write(part)

    if work.mode == "replace" and not work.done:
        await sender.remove()
    await call_in_thread(work.skip)
    queue = Queue(write, work.done, work.save_done)
    await queue.run(lambda: call_in_thread(work.next_part))


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
        writer.replace(work.remaining())
        return
    if work.mode == "replace" and not work.done:
        writer.remove()
    work.skip()
    for number, part in enumerate(work.remaining(), work.done + 1):
        work.save_sent()
        writer.write(part)
        work.save_done(number)
