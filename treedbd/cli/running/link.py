"""The connection to the daemon: events are read in one thread, reported done in another.

Both threads repeat what fails, with a pause that grows, until the daemon answers again; a message
says so once. What the daemon refuses ends the run. The hook is made when the run begins, and again
if it is not there any more, as after a standby was promoted.
"""

from __future__ import annotations

import random
import secrets
import threading
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Final, TypeVar

import attrs
import orjson

from treedbd.cli.exit import CommandFailed
from treedbd.cli.http_client import Body, HttpClient, reading_answer
from treedbd.cli.options import NoResponse, Url, describe_error
from treedbd.cli.watch import pause_after

T = TypeVar("T")

WAIT_S: Final = 25
"""Seconds that one request waits for an event."""
SILENCE_S: Final = 60.0
REPORT_S: Final = 1.0
"""Seconds between two reports of what is done."""
LAST_REPORT_S: Final = 5.0
"""Seconds that the last report may take when the run ends."""
READ_AT_ONCE: Final = 200
MAX_BATCH_BYTES: Final = 512 * 1024 * 1024
_NOT_FOUND: Final = 404
_TOO_MANY_REQUESTS: Final = 429
_MAX_ERROR_BYTES: Final = 64 * 1024
_LOST: Final = "place_lost"
_REPLACED: Final = "reader_replaced"
_REMEDY: Final = "To go on with what happens from now on, start it with --from-now."


class HookGone(CommandFailed):
    """The daemon has no such hook."""


class PlaceLost(CommandFailed):
    """The events do not continue where the run was."""


@attrs.frozen
class Hook:
    """What is to be run for: a name, a pattern of paths, kinds of events."""

    name: str
    on: str
    kinds: Sequence[str]


@attrs.frozen
class Registration:
    """What the daemon says of a hook: its database, and up to where events are done."""

    database: str
    at: str
    has_created: bool
    is_volatile: bool


@attrs.frozen
class Batch:
    """Entries, each with its position and events; `reached` is after them."""

    entries: list[tuple[str, list[dict[str, Any]]]]
    reached: str
    unread: int

    @property
    def is_end(self) -> bool:
        """Whether there are no events after it yet."""
        return not (self.entries or self.unread)


class HookFeed:
    """The requests for the events of one hook."""

    def __init__(
        self,
        client: HttpClient,
        url: Url,
        hook: Hook,
        *,
        reader: str | None = None,
        timeout_s: float | None = None,
    ) -> None:
        """Send requests to the resource at `url`, as `client` does but by one of its own.

        `reader` is the id of this run, by default a new one.
        """
        self.reader: Final = reader or secrets.token_hex(8)
        self.hook: Final = hook
        self._client = client.within(timeout_s, None if timeout_s is not None else SILENCE_S)
        self._url = url

    def within(self, timeout_s: float | None = None) -> HookFeed:
        """Return the same with a client of its own, whose requests may have a time-out."""
        return HookFeed(self._client, self._url, self.hook, reader=self.reader, timeout_s=timeout_s)

    def register(self, *, replaces: bool = False, at_end: bool = False) -> Registration:
        """Make the hook if it is not there, and be its reader; raise `CommandFailed`.

        Its place is the end of the log if it is to begin there (`at_end`), wherever it was.
        """
        hook = self.hook
        wanted = {"name": hook.name, "on": hook.on, "events": list(hook.kinds)}
        try:
            made = self._send("PUT", {**wanted, "replace": replaces})
            has_created = bool(made.get("created"))
        except PlaceLost:
            if not at_end:
                raise
            has_created = False
        if at_end:  # whichever program reads: it is replaced next
            self._send("POST", {"name": hook.name, "end": True})
        answer = self._send("POST", {"name": hook.name, "reader": self.reader})
        with reading_answer(self._url):
            database = f"{answer['project']}/{answer['database']}"
            is_volatile = bool(answer.get("volatile"))
            return Registration(database, str(answer["at"]), has_created, is_volatile)

    def read(self, after: str, limit: int, wait_s: int) -> Batch:
        """Return the next events after a position; raise `CommandFailed`."""
        url = self._url.with_parameters(
            {
                "name": self.hook.name,
                "reader": self.reader,
                "after": after,
                "limit": str(limit),
                "wait": str(wait_s),
            }
        )
        answer = self._check(self._client.send("GET", url))
        with reading_answer(url):
            entries = [(str(each["at"]), list(each["events"])) for each in answer["entries"]]
            return Batch(entries, str(answer["next"]), int(answer["unread"]))

    def report(self, at: str) -> None:
        """Say up to where all is done; raise `CommandFailed`."""
        self._send("POST", {"name": self.hook.name, "reader": self.reader, "done": at})

    def remove(self) -> None:
        """Remove the hook; raise `CommandFailed`."""
        url = self._url.with_parameters({"name": self.hook.name})
        self._check(self._client.send("DELETE", url))

    def _send(self, method: str, json: dict[str, Any]) -> dict[str, Any]:
        content = orjson.dumps(json)
        response = self._client.send(method, self._url, body=Body([content], len(content)))
        return self._check(response)

    def _check(self, response: Any) -> dict[str, Any]:
        """Return the JSON of a response; raise `CommandFailed`, `NoResponse` to be repeated."""
        if response.is_success:
            _, json = response.json_text(MAX_BATCH_BYTES)
            if not isinstance(json, dict):
                raise CommandFailed(f"{self._url.origin} did not return what treedb does.")
            return json
        body = response.content_up_to(_MAX_ERROR_BYTES) or b""
        sentence = describe_error(response.status, body, self._url)
        if response.status >= 500 or response.status == _TOO_MANY_REQUESTS:
            raise NoResponse(sentence)
        code = _code_of(body)
        if code == _REPLACED:
            raise CommandFailed(
                f"Another treedb run reads the events of {self.hook.name} now, so this one ends."
            )
        if code == _LOST:
            raise PlaceLost(f"{sentence} {_REMEDY}")
        if response.status == _NOT_FOUND:
            raise HookGone(sentence)
        raise CommandFailed(sentence)


class Repeater:
    """Repeats what the daemon does not answer, with a pause that grows, until it is stopped."""

    def __init__(self, note: Callable[[str], None], stopped: threading.Event) -> None:
        """`note` is called with a message about the first failure in a row."""
        self._note = note
        self._stopped = stopped
        self._rng = random.SystemRandom()

    def run(self, work: Callable[[], T]) -> T | None:
        """Return what `work` returns, None once it is stopped; raise `CommandFailed`."""
        failures = 0
        while not self._stopped.is_set():
            try:
                return work()
            except NoResponse as error:
                if not failures:
                    self._note(f"{error} Trying again.")
                self._stopped.wait(pause_after(failures, self._rng))
                failures += 1
        return None


class Link:
    """Reads events, and reports what is done, each in a thread.

    The owner is called in these threads (`receive`, `fail`); it says how many events it has room
    for, and what is done.
    """

    def __init__(
        self,
        feed: HookFeed,
        at: str,
        *,
        receive: Callable[[Batch], None],
        fail: Callable[[CommandFailed], None],
        note: Callable[[str], None],
        waits: bool,
    ) -> None:
        """Read after a position; if it `waits`, also what comes later."""
        self._feed = feed
        self._at = self._reported = self._done = at
        self._receive, self._fail, self._note = receive, fail, note
        self._wait_s = WAIT_S if waits else 0
        self._room = 0
        self._changed = threading.Condition()
        self._stopped = threading.Event()
        self._threads = [
            threading.Thread(target=self._guard, args=(work,), daemon=True)
            for work in (self._read_all, self._report_all)
        ]

    def start(self) -> None:
        """Start the threads."""
        for each in self._threads:
            each.start()

    def allow(self, room: int) -> None:
        """Say how many events there is room for."""
        if room != self._room:
            with self._changed:
                self._room = room
                self._changed.notify_all()

    def done(self, at: str) -> None:
        """Say up to where all is done; it is reported soon."""
        self._done = at

    def stop(self) -> str | None:
        """Read nothing more, and report what is done; return why that is not possible."""
        self._stopped.set()
        with self._changed:
            self._changed.notify_all()
        if self._done == self._reported:
            return None
        try:
            self._feed.within(LAST_REPORT_S).report(self._done)
        except CommandFailed as error:
            return str(error)
        return None

    def _guard(self, work: Callable[[], None]) -> None:
        try:
            work()
        except CommandFailed as error:
            self._fail(error)
        except Exception as error:  # a mistake of ours must not leave a run that does nothing
            self._fail(CommandFailed(f"The events cannot be read ({type(error).__name__})."))
            raise

    def _read_all(self) -> None:
        repeater = Repeater(self._note, self._stopped)
        while (room := self._wait_for_room()) is not None:
            limit = min(READ_AT_ONCE, room)
            batch = repeater.run(partial(self._read, limit))
            if batch is None:
                return
            self._at = batch.reached
            with self._changed:
                self._room = 0  # until the owner has counted these
            self._receive(batch)
            if batch.is_end and not self._wait_s:
                return

    def _read(self, limit: int) -> Batch:
        try:
            return self._feed.read(self._at, limit, self._wait_s)
        except HookGone:
            return self._read_again(limit)

    def _read_again(self, limit: int) -> Batch:
        """Make the hook again, and read; a hook of another database is not left there."""
        made = self._feed.register()
        try:
            batch = self._feed.read(self._at, limit, 0)
        except PlaceLost:
            if made.has_created:
                self._feed.remove()
            raise
        if made.has_created:
            self._note(
                f"The hook {self._feed.hook.name} was not there any more, and is made again: "
                "events of writes in between are missing."
            )
        return batch

    def _wait_for_room(self) -> int | None:
        """Wait until there is room for events; return how many, None once it is stopped."""
        with self._changed:
            while not self._room and not self._stopped.is_set():
                self._changed.wait()
            return None if self._stopped.is_set() else self._room

    def _report_all(self) -> None:
        feed = self._feed.within()
        repeater = Repeater(lambda _: None, self._stopped)  # the other thread says it
        while not self._stopped.wait(REPORT_S):
            done = self._done
            if done != self._reported:
                repeater.run(partial(self._report, feed, done))

    def _report(self, feed: HookFeed, done: str) -> None:
        try:
            feed.report(done)
        except HookGone:
            return  # it is made again by the other thread
        self._reported = done


def _code_of(body: bytes) -> str:
    try:
        return str(orjson.loads(body)["error"])
    except (LookupError, TypeError, ValueError):
        return ""
