"""`treedb run --on PATTERN -- COMMAND`: a command is run for each event.

Theory of operation. The main thread has the events that are not done (`window`), starts commands
and waits for their ends; it is woken by signals and by the threads of the link through a pipe. When
a command has ended with 0, its event is saved as done before another one of its path begins. One
that has failed is started again after a pause that grows, or given up after `--attempts`.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import pathlib
import queue
import random
import re
import select
import shutil
import signal
import threading
import time
from argparse import ArgumentParser, ArgumentTypeError, Namespace
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, Final

import orjson

from treedbd.cli.exit import DONE, CommandFailed, Status, counted, make_printable, warn
from treedbd.cli.hooks import VOLATILE
from treedbd.cli.http_client import add_online_options, make_http_client, reading_answer
from treedbd.cli.options import (
    Url,
    add_flag,
    in_options,
    number_from,
    parse_address,
    require_database,
    seconds_from,
)
from treedbd.cli.running.children import Children
from treedbd.cli.running.link import Batch, Hook, HookFeed, Link, Registration, Repeater
from treedbd.cli.running.place import CursorFile, SavedPlace
from treedbd.cli.running.window import Event, Window
from treedbd.cli.watch import pause_after
from treedbd.store.hooks import HOOK_NAME, KINDS
from treedbd.tree.pattern import InvalidPattern, PathPattern, parse_pattern

GRACE_S: Final = 10.0
"""Seconds that commands under way have when the run ends, before they are killed."""
MOST_AT_ONCE: Final = 256
USUAL_TIMEOUT_S: Final = 600.0
RESOURCE: Final = "events.json"
_WEEK_S: Final = 604_800
_NAME_BYTES: Final = 40
_LIKE_CAPTURE: Final = re.compile(r"\{([A-Za-z_]\w*)\}|:([A-Za-z_]\w*)|\*+", re.ASCII)
_DESCRIPTION: Final = (
    "Run a command for each event of the places that a pattern matches: a value that was created, "
    "updated or deleted. The command gets the event as JSON on its standard input, and its path "
    "and what the pattern has captured as variables (TREEDB_PATH, TREEDB_CAPTURE_id for $id). An "
    "event is done when its command has ended with 0; otherwise it is run again, after a pause "
    "that grows. The events of one path are run in their order, one at a time; an event may be "
    "run twice, none is missed: a file says what is done, and the daemon keeps what is not."
)
_EPILOG: Final = (
    "Example: treedb run --on '/photos/$id' --created --concurrency 4 -- ./thumbnail. Ctrl-C or "
    "SIGTERM end the run: commands under way have ten seconds to end."
)


def add_options(parser: ArgumentParser, _: str) -> None:
    """Add the options of the command to its parser."""
    parser.description, parser.epilog = _DESCRIPTION, _EPILOG
    parser.add_argument(
        "--on",
        metavar="PATTERN",
        type=_pattern,
        required=True,
        help="the places, as in '/orders/$id': $id is any one key",
    )
    for kind in KINDS:
        add_flag(parser, f"--{kind}", f"if a value was {kind}")
    add_flag(parser, "--written", "if any of that has happened (the default)")
    _add_names(parser)
    _add_limits(parser)
    add_flag(parser, "--once", "end when no event is left")
    add_flag(parser, "--from-now", "begin with what happens from now on, wherever the run was")
    add_flag(parser, "--replace", "if there is another hook of this name, replace it")
    add_flag(parser, "--quiet", "print errors only, not each command that fails")
    add_flag(parser, "--verbose", "print each event that is done, too")
    parser.add_argument(
        "command", metavar="COMMAND", nargs="+", help="the command and its arguments, after --"
    )
    add_online_options(parser, _never)
    parser.set_defaults(run=_run, parser=parser)


def _add_names(parser: ArgumentParser) -> None:
    """Add the options that name the database, the hook and the file."""
    parser.add_argument(
        "--url",
        metavar="URL",
        type=parse_address,
        default="/",
        help="the database, as in https://shop.localhost:8443 (default: that of TREEDB_URL, or of "
        "the daemon of --data)",
    )
    parser.add_argument(
        "--name",
        type=_name,
        help="the name of the hook in the database (default: one that is made of the pattern)",
    )
    parser.add_argument(
        "--cursor",
        metavar="FILE",
        type=pathlib.Path,
        help="the file that says what is done (default: <name>.cursor)",
    )


def _add_limits(parser: ArgumentParser) -> None:
    """Add the options that limit what is run."""
    parser.add_argument(
        "--concurrency",
        metavar="N",
        type=number_from(1, MOST_AT_ONCE),
        default=1,
        help="events of different paths that are run at once (default: %(default)s)",
    )
    parser.add_argument(
        "--timeout",
        dest="command_s",  # not the time-out of requests
        metavar="SECONDS",
        type=seconds_from(0.001, _WEEK_S, f"must be a number of seconds up to {_WEEK_S}"),
        default=USUAL_TIMEOUT_S,
        help="after which a command is ended, with its process group (default: 600)",
    )
    parser.add_argument(
        "--attempts",
        metavar="N",
        type=number_from(1, 1_000_000),
        help="after which an event is given up, and appended to <cursor>.dead (default: never)",
    )


def default_name(on: PathPattern, kinds: tuple[str, ...]) -> str:
    """Return the name of the hook that a run makes unless it is given one."""
    which = () if len(kinds) == len(KINDS) else kinds
    text = on.text
    words = [word for word in re.split(r"[^a-z0-9]+", text.lower()) if word]
    name = "-".join(["run", *words, *which])
    if re.search(r"[^a-z0-9/$-]", text) or len(name) > _NAME_BYTES:
        digest = hashlib.sha256(text.encode(errors="surrogatepass")).hexdigest()[:8]
        name = f"{name[:_NAME_BYTES].rstrip('-')}-{digest}"
    return name


def _never(*_: object) -> None:
    """Do nothing: the command has its own client."""


def _pattern(text: str) -> PathPattern:
    try:
        return parse_pattern(text)
    except InvalidPattern as error:
        raise ArgumentTypeError(str(error)) from None


def _name(text: str) -> str:
    if not HOOK_NAME.fullmatch(text):
        raise ArgumentTypeError("must have up to 50 lower-case letters, digits and hyphens")
    return text


def _note_keys(on: PathPattern) -> None:
    """Warn of a key that looks like a capture as others write it: `{id}`, `:id` or `*`."""
    for key in on.keys:
        found = _LIKE_CAPTURE.fullmatch(key or "")
        if found is not None:
            name = found[1] or found[2] or "key"
            warn(f"{key} in --on is a key of just that name: ${name} is any key.")
            return


def _run(arguments: Namespace) -> Status:
    require_database(arguments, "--url")
    command: list[str] = arguments.command
    if shutil.which(command[0]) is None:
        raise CommandFailed(f"{make_printable(command[0])} is not a command that can be run.")
    kinds = tuple(kind for kind in KINDS if getattr(arguments, kind)) or KINDS
    if arguments.written:
        kinds = KINDS
    name = arguments.name or default_name(arguments.on, kinds)
    if not arguments.quiet:
        _note_keys(arguments.on)
    url: Url = arguments.url.to_settings(RESOURCE)
    hook = Hook(name, arguments.on.text, kinds)
    file = CursorFile(arguments.cursor or pathlib.Path(f"{name}.cursor"))
    with contextlib.closing(file), in_options():
        feed = HookFeed(make_http_client(arguments), url, hook)
        return Runner(feed, file, arguments).run()


class Runner:
    """Runs the commands of one hook until it is stopped."""

    def __init__(self, feed: HookFeed, file: CursorFile, arguments: Namespace) -> None:
        """Run `arguments.command`; nothing is begun yet."""
        self._feed, self._file = feed, file
        self._arguments = arguments
        self._is_once: bool = arguments.once
        self._rng = random.SystemRandom()
        self._children = Children(arguments.command, arguments.command_s)
        self._inbox: queue.SimpleQueue[Batch | CommandFailed] = queue.SimpleQueue()
        self._failure: CommandFailed | None = None
        self._is_stopping = self._is_killing = self._has_all = False
        self._stopped = threading.Event()
        self._given_up = 0

    def run(self) -> Status:
        """Run until a signal, or an error; raise `CommandFailed`."""
        problem: str | None = None
        with _Waker() as self._waker, _signals(self._stop):
            with contextlib.closing(self._children):
                is_begun = self._begin()
                if is_begun:
                    self._link.start()
                    self._loop()
            if is_begun:
                problem = self._link.stop()
        if self._failure is not None:
            raise self._failure
        if problem is not None:
            self._note(f"What is done could not be reported: {problem}")
        if self._given_up and self._is_once:
            were = "was" if self._given_up == 1 else "were"
            count = counted(self._given_up, "event")
            raise CommandFailed(f"{count} {were} given up: see {self._file.dead}.")
        return DONE

    def _begin(self) -> bool:
        """Find where to begin, and save that; return False after a signal.

        A run that goes on waits for the daemon; one that begins fails if that does not answer.
        """
        options, name = self._arguments, self._feed.hook.name
        saved = None if options.from_now else self._file.load()
        if saved is not None and saved.hook != name:
            raise self._of_another(saved, name)
        register = partial(self._feed.register, replaces=options.replace, at_end=options.from_now)
        made = register() if saved is None else Repeater(self._note, self._stopped).run(register)
        if made is None:
            return False
        if saved is not None and saved.database != made.database:
            raise self._of_another(saved, f"{name} of {made.database}")
        self._window = _make_window(saved, made)
        self._warn_of(made, is_first=saved is None)
        self._file.begin(name, made.database, self._window)
        self._link = Link(
            self._feed,
            self._window.at,
            receive=self._receive,
            fail=self._receive,
            note=self._note,
            waits=not self._is_once,
        )
        if not self._is_once:
            after = _sequence(self._window.at)
            self._note(f"Events of {options.on.text} are run that follow the write {after}.")
        return True

    def _warn_of(self, made: Registration, *, is_first: bool) -> None:
        """Warn of what a hook cannot have, and of what it has missed."""
        if made.is_volatile:
            warn(make_printable(VOLATILE.format(on=self._arguments.on.text)))
        if made.has_created and not is_first:
            warn(
                f"The hook {self._feed.hook.name} was not there any more, and is made again: "
                "events of writes in between are missing."
            )

    def _of_another(self, saved: SavedPlace, wanted: str) -> CommandFailed:
        return CommandFailed(
            f"{self._file.path} is of the hook {saved.hook} of {saved.database}, not of {wanted}: "
            "choose another file by --cursor."
        )

    def _loop(self) -> None:
        grace_end: float | None = None
        while True:
            now = time.monotonic()
            self._take_inbox()
            self._take_ended(now)
            if self._is_stopping:
                grace_end = now + GRACE_S if grace_end is None else grace_end
                if not len(self._children) or self._is_killing or now >= grace_end:
                    return
            else:
                self._window.wake(now)
                self._start_some(now)
                if self._has_all and self._window.is_empty:
                    return
                self._link.allow(self._window.room)
            self._children.end_late(now)
            due = (self._children.next_due(), self._window.next_due(), grace_end)
            self._waker.wait(min((each for each in due if each is not None), default=None))

    def _take_inbox(self) -> None:
        with contextlib.suppress(queue.Empty):
            while True:
                item = self._inbox.get_nowait()
                if isinstance(item, CommandFailed):
                    self._failure = self._failure or item
                    self._is_stopping = True
                    continue
                with reading_answer(self._arguments.url):
                    for at, events in item.entries:
                        self._window.add_entry(at, events, orjson.dumps)
                self._window.pass_over(item.reached)
                self._has_all = self._is_once and item.is_end
                self._link.done(self._window.at)

    def _take_ended(self, now: float) -> None:
        """Save which commands have ended, before others are started."""
        finished = [
            event.number for event, how in self._children.take_ended() if self._end(event, how, now)
        ]
        if finished:
            self._file.save(self._window, finished)
            self._link.done(self._window.at)

    def _end(self, event: Event, how: str | None, now: float) -> bool:
        """Note the end of a command; return whether its event is done, or given up."""
        shown = f"{event.path} {event.kind} ({event.id})"
        if how is None:
            self._window.finish(event)
            if self._arguments.verbose:
                warn(f"{shown}: done")
            return True
        most: int | None = self._arguments.attempts
        if most is not None and event.failures + 1 >= most:
            self._file.give_up(event, how)
            self._given_up += 1
            self._window.finish(event)
            warn(f"{shown}: {how}; given up after {counted(most, 'attempt')}.")
            return True
        seconds = pause_after(event.failures, self._rng)
        self._window.delay(event, now + seconds)
        self._note(f"{shown}: {how}; again in {seconds:.1f} s.")
        return False

    def _start_some(self, now: float) -> None:
        while len(self._children) < self._arguments.concurrency:
            event = self._window.take()
            if event is None:
                return
            try:
                self._children.start(event)
            except OSError as error:
                if self._end(event, f"it cannot be started ({error.strerror})", now):
                    self._file.save(self._window, [event.number])

    def _receive(self, item: Batch | CommandFailed) -> None:
        """Give what a thread has read to the main thread."""
        self._inbox.put(item)
        self._waker.wake()

    def _note(self, sentence: str) -> None:
        if not self._arguments.quiet:
            warn(sentence)

    def _stop(self, *_: Any) -> None:
        """End after a signal; after a second one at once, and ignore others."""
        if self._is_stopping:
            self._is_killing = True
            for number in (signal.SIGINT, signal.SIGTERM):
                signal.signal(number, signal.SIG_IGN)
        self._is_stopping = True
        self._stopped.set()


def _make_window(saved: SavedPlace | None, made: Registration) -> Window:
    """Return the window that begins where all is done before.

    That is what the file says; or the daemon, if another run has reported more.
    """
    if saved is None:
        return Window(made.at)
    is_later = _sequence(made.at) > _sequence(saved.at) and not made.has_created
    at = made.at if is_later else saved.at
    return Window(at, [number for number in saved.done if number[0] > _sequence(at)])


def _sequence(at: str) -> int:
    """Return the number of a position; raise `CommandFailed`."""
    try:
        return int(at.partition("-")[0])
    except ValueError:
        raise CommandFailed(f"{make_printable(at)} is not a position in a log.") from None


class _Waker:
    """A pipe through which the main thread is woken, by signals too."""

    def __enter__(self) -> _Waker:
        self._read, self._write = os.pipe()
        for each in (self._read, self._write):
            os.set_blocking(each, False)
        self._before = signal.set_wakeup_fd(self._write, warn_on_full_buffer=False)
        return self

    def __exit__(self, *_: object) -> None:
        signal.set_wakeup_fd(self._before)
        # The threads of the link may write once more: the pipe is closed with the process.

    def wake(self) -> None:
        """Wake the main thread."""
        with contextlib.suppress(BlockingIOError):
            os.write(self._write, b"\0")

    def wait(self, until: float | None) -> None:
        """Wait until a time, or until it is woken."""
        seconds = None if until is None else max(0.0, until - time.monotonic())
        select.select([self._read], [], [], seconds)
        with contextlib.suppress(BlockingIOError):
            while os.read(self._read, 4096):
                pass


@contextlib.contextmanager
def _signals(stop: Callable[..., None]) -> Iterator[None]:
    """Call `stop` at Ctrl-C and SIGTERM within a `with` block; ends of commands wake."""
    handlers: dict[int, Any] = {signal.SIGINT: stop, signal.SIGTERM: stop}
    handlers[signal.SIGCHLD] = lambda *_: None
    before = {number: signal.signal(number, each) for number, each in handlers.items()}
    try:
        yield
    finally:
        for number, each in before.items():
            if signal.getsignal(number) is not signal.SIG_IGN:
                signal.signal(number, each)
