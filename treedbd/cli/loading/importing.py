"""`treedb import`: writes a file of any size below a path, online or into a stopped store.

The file is read part by part (`parts`), and it is recorded which are written (`resume_file`), so
the same command goes on after a break.
"""

from __future__ import annotations

import pathlib
from argparse import ArgumentParser, Namespace
from collections.abc import Iterator
from itertools import islice
from typing import Any, Final

from twisted.internet.threads import deferToThreadPool

from treedbd.cli.address import ADDRESS_HELP, parse_address
from treedbd.cli.client import Client
from treedbd.cli.exit import DONE, INTERRUPTED, CommandFailed, Status, warn
from treedbd.cli.loading.documents import parts_of
from treedbd.cli.loading.files import InputFile, format_of
from treedbd.cli.loading.location import locate
from treedbd.cli.loading.options import add_loading_options, end_on_interrupt
from treedbd.cli.loading.parts import Part
from treedbd.cli.loading.resume_file import ResumeFile
from treedbd.cli.loading.retries import Retries
from treedbd.cli.loading.sender import Queue, Sender
from treedbd.cli.loading.store_writer import StoreWriter, open_writer
from treedbd.cli.options import STANDARD_INPUT, read_settings
from treedbd.cli.progress import ProgressReport
from treedbd.cli.run import run_online

_NOT_EMPTY: Final = (
    "The target is not empty: use --replace to remove what is there first, or --merge to keep "
    "children that the file does not have."
)
_BEGUN: Final = (
    "An import of this file had begun, and what it wrote is there: use --replace to remove that "
    "first, or --merge to keep children that the file does not have."
)
_GOES_ON: Final = "The same command goes on where it stopped."


def add_options(parser: ArgumentParser, _: str) -> None:
    """Add the options of the command to its parser."""
    parser.add_argument("file", metavar="FILE", help="a file, or - for standard input")
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


def _run(arguments: Namespace) -> Status:
    if not hasattr(arguments, "data"):
        run_online(arguments)
    return _store(arguments)


class _Import:
    """One import: its file, its progress, and what was written of it before.

    Attributes:
        done: the number of parts that are written, from the first on.

    """

    def __init__(self, arguments: Namespace, target: str) -> None:
        """Open the file; raise `CommandFailed`."""
        name: str = arguments.file
        form = format_of(name, arguments.format)
        self._source = InputFile(name)
        mode = "replace" if arguments.replace else "merge" if arguments.merge else "new"
        self.must_be_empty: Final = mode == "new"
        self.must_remove: Final = mode == "replace"
        self._resume = None
        if name != STANDARD_INPUT:
            file = pathlib.Path(name)
            self._resume = ResumeFile(file, target, form, mode, is_restarted=arguments.restart)
        self.done = 0 if self._resume is None else self._resume.done
        self._parts = parts_of(self._source.blocks(), form, is_merged=arguments.merge)
        self._records = 0
        self.progress = ProgressReport(
            f"import {name}", self._source.total, is_quiet=arguments.quiet
        )

    @property
    def is_resumed(self) -> bool:
        """Whether an earlier import has begun to write."""
        return self._resume is not None and self._resume.found

    @property
    def advice(self) -> str:
        """How to go on after a break, as a sentence; empty if the import must start again."""
        return "" if self._resume is None else _GOES_ON

    def begin(self, *, is_empty: bool) -> None:
        """Find where to go on; raise `CommandFailed` if something is there that should not be."""
        if self.is_resumed and is_empty:
            self.done = 0  # what was written before has been removed since
        elif self.is_resumed:
            warn("Going on with an import that was interrupted.")
        elif self.must_be_empty and not is_empty:
            has_begun = self._resume is not None and self._resume.was_begun
            raise CommandFailed(_BEGUN if has_begun else _NOT_EMPTY)

    def skip(self) -> None:
        """Read the parts that are written."""
        for part in islice(self._parts, self.done):
            self._records += part.records

    def next_part(self) -> Part | None:
        """Return the next part that is not written, None after the last."""
        part = next(self._parts, None)
        if part is not None:
            self._records += part.records
        return part

    def remaining(self) -> Iterator[Part]:
        """Iterate over the parts that are not written."""
        while (part := self.next_part()) is not None:
            yield part

    def save(self, done: int) -> None:
        """Record that the first `done` parts are written."""
        self.done = done
        self.progress.advance_to(self._source.position)
        if self._resume is not None:
            self._resume.save(done)

    def finish(self) -> None:
        """Say what was imported."""
        if self._resume is not None:
            self._resume.remove()
        self.progress.finish(f"Imported {self._records:,} records", self._source.position)


async def _send(reactor: Any, client: Client, arguments: Namespace) -> None:
    work = _Import(arguments, str(arguments.url.to_json()))
    end_on_interrupt(work.progress.stop, f"Interrupted. {work.advice}".strip())
    try:
        retries = Retries(reactor, client, arguments.retry_for)
        sender = Sender(retries, arguments.url)
        work.begin(is_empty=await sender.is_empty())
        if work.must_remove and not work.done:
            await sender.remove()
        work.save(work.done)
        pool = reactor.getThreadPool()  # so that a slow source does not hold up the responses
        await deferToThreadPool(reactor, pool, work.skip)
        queue = Queue(sender.write, work.done, work.save)
        await queue.run(lambda: deferToThreadPool(reactor, pool, work.next_part))
    except CommandFailed as error:
        raise _with_advice(error, work) from None
    finally:
        work.progress.stop()
    work.finish()


def _store(arguments: Namespace) -> Status:
    settings = read_settings(arguments)
    node = locate(settings, arguments.url)
    work = _Import(arguments, f"{node.file}:/{'/'.join(node.path)}")
    try:
        with open_writer(settings, node) as writer:
            _write(work, writer)
    except KeyboardInterrupt:
        work.progress.stop()
        warn(f"Interrupted. {work.advice}".strip())
        return INTERRUPTED
    except CommandFailed as error:
        raise _with_advice(error, work) from None
    finally:
        work.progress.stop()
    work.finish()
    return DONE


def _write(work: _Import, writer: StoreWriter) -> None:
    work.begin(is_empty=writer.is_empty())
    if work.must_remove and not work.done:
        writer.remove()
    work.save(work.done)
    work.skip()
    for number, part in enumerate(work.remaining(), work.done + 1):
        writer.write(part)
        work.save(number)


def _with_advice(error: CommandFailed, work: _Import) -> CommandFailed:
    """Return an error that also says how to go on, if parts are written."""
    if not work.done or not work.advice:
        return error
    return CommandFailed(f"{error} {work.advice}")
