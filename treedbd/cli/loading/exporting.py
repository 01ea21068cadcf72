"""`treedb export`: writes what is at a path to a file, from a daemon or from a stopped store.

The file appears under its name when it is whole. Until then it has another one (`part_file`), and
the same command goes on with it after a break.
"""

from __future__ import annotations

import contextlib
from argparse import ArgumentParser, Namespace
from collections.abc import Iterator
from typing import Any, Final

from treedbd.cli.client import Client, run_online
from treedbd.cli.exit import DONE, INTERRUPTED, CommandFailed, OutputClosed, Status, warn
from treedbd.cli.loading.download import Download
from treedbd.cli.loading.files import Format, format_of
from treedbd.cli.loading.joiner import Joiner
from treedbd.cli.loading.location import StoredNode, locate
from treedbd.cli.loading.options import add_loading_options, end_on_interrupt
from treedbd.cli.loading.part_file import PartFile
from treedbd.cli.loading.retries import Retries, read_size
from treedbd.cli.options import ADDRESS_HELP, parse_address, read_settings
from treedbd.cli.options import STANDARD_INPUT as STANDARD_OUTPUT
from treedbd.cli.progress import ProgressReport
from treedbd.config.settings import Settings
from treedbd.store.engine import CannotOpenStore, StoreFailed
from treedbd.store.lock import DirectoryLock
from treedbd.store.nodes import Nodes
from treedbd.store.shelf import ReadingStore
from treedbd.tree.fragments import Splitter

_GOES_ON: Final = "The same command goes on where it stopped."


def add_options(parser: ArgumentParser, _: str) -> None:
    """Add the options of the command to its parser."""
    parser.add_argument("url", metavar="URL", type=parse_address, help=ADDRESS_HELP)
    parser.add_argument("file", metavar="FILE", help="a file, or - for standard output")
    parser.add_argument(
        "--plain",
        action="store_true",
        help="without priorities, with arrays, as a GET prints it; only as json",
    )
    add_loading_options(parser)
    parser.set_defaults(run=_run, work=_download, parser=parser)


def _run(arguments: Namespace) -> Status:
    _format(arguments)
    if not hasattr(arguments, "data"):
        run_online(arguments)
    return _read_store(arguments)


def _format(arguments: Namespace) -> Format:
    """Return the format of the file; exit with 2 if it cannot be plain."""
    form = format_of(arguments.file, arguments.format)
    if arguments.plain and form == "ndjson":
        arguments.parser.error("--plain is for json only")
    return form


async def _download(reactor: Any, client: Client, arguments: Namespace) -> None:
    form = _format(arguments)
    source = f"{arguments.url.to_json()} {form} {'plain' if arguments.plain else 'export'}"
    file = PartFile(arguments.file, source)
    progress = ProgressReport(f"export {arguments.file}", None, is_quiet=arguments.quiet)
    advice = _GOES_ON if file.can_resume and not arguments.plain else ""
    end_on_interrupt(progress.stop, f"Interrupted. {advice}".strip)
    try:
        retries = Retries(reactor, client, arguments.retry_for)
        if not arguments.quiet:
            progress.set_total(await read_size(retries, arguments.url))
        download = Download(retries, arguments.url, file, progress)
        if arguments.plain:
            file.begin()
            await download.run_plain()
        else:
            await download.run(form, _begin(file, form, is_restarted=arguments.restart))
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
    """Begin a file, or go on with one that was broken off."""
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
            store.read(lambda nodes: copy(_chunks(nodes, node, arguments.plain), file, progress))
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


def _chunks(nodes: Nodes, node: StoredNode, is_plain: bool) -> Iterator[bytes]:
    return nodes.chunks(node.path, export=not is_plain)


def _copy_document(chunks: Iterator[bytes], file: PartFile, progress: ProgressReport) -> None:
    for chunk in chunks:
        file.write(chunk)
        progress.advance_to(file.count)


def _copy_lines(chunks: Iterator[bytes], file: PartFile, progress: ProgressReport) -> None:
    splitter, joiner = Splitter(), Joiner(file.write, "ndjson")
    for chunk in chunks:
        for fragment in splitter.feed(chunk):
            joiner.add(fragment)
        progress.advance_to(file.count)
    for fragment in splitter.finish():
        joiner.add(fragment)
    joiner.finish()
