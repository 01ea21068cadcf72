"""Following a stream that breaks, is silent, is denied or ends."""

from __future__ import annotations

import random
import select
import socket
import time
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest
import pytest_twisted
from twisted.internet import reactor as installed_reactor
from twisted.internet.defer import Deferred, DeferredQueue
from twisted.internet.threads import deferToThread
from twisted.web.server import Request

from tests.script import ScriptedServer, begin_response, cut_off, respond
from treedbd.cli import http_client
from treedbd.cli.exit import CommandFailed
from treedbd.cli.http_client import HttpClient
from treedbd.cli.options import NoResponse, Url, parse_url
from treedbd.cli.watch import (
    LONGEST_PAUSE_S,
    StreamEvent,
    follow,
    pause_after,
)

reactor: Any = installed_reactor
SILENT_S = 75.0
FIRST = b'event: put\ndata: {"path":"/","data":1}\nid: 4\n\n'
ALIVE = b"event: keep-alive\ndata: null\n\n"


def put(path: str, number: int) -> bytes:
    return b'event: put\ndata: {"path":"%b","data":0}\nid: %d\n\n' % (path.encode(), number)


class Stopped(Exception):
    """The test is over."""


class RecordingClock:
    """The time of a follower, which the test advances; records how long it waits."""

    def __init__(self) -> None:
        self.delays: DeferredQueue[float] = DeferredQueue()
        self.is_stopped = False
        self._now = 0.0

    def advance(self, seconds: float) -> None:
        self._now += seconds

    def limit(self, seconds: float) -> float:
        """Return the moment that is so many seconds from now, and record them."""
        moment = self.after(seconds)
        reactor.callFromThread(self.delays.put, seconds)
        return moment

    def after(self, seconds: float) -> float:
        return self._now + seconds

    def has_passed(self, moment: float) -> bool:
        if self.is_stopped:
            raise Stopped
        return self._now >= moment

    def pause(self, seconds: float) -> None:
        end = self.limit(seconds)
        while not self.has_passed(end):
            time.sleep(0.005)


class ClockedSocket(socket.socket):
    """A socket whose time-out is that of a clock, from the last byte on."""

    clock: RecordingClock

    def settimeout(self, value: float | None) -> None:
        if value is not None and not hasattr(self, "end"):
            self.end = self.clock.limit(value)
        super().settimeout(value)

    def recv_into(self, buffer: Any, nbytes: int = 0, flags: int = 0) -> int:
        while not select.select([self], [], [], 0.005)[0]:
            if self.clock.has_passed(self.end):
                raise TimeoutError
        self.end = self.clock.after(self.gettimeout() or 0.0)
        return super().recv_into(buffer, nbytes, flags)


class Follower:
    """Follows a stream of a scripted server in a thread; the test advances the clock."""

    def __init__(self, server: ScriptedServer, patch: pytest.MonkeyPatch) -> None:
        self.clock = RecordingClock()
        self.notes: DeferredQueue[str] = DeferredQueue()
        self._shown: DeferredQueue[str] = DeferredQueue()
        self._server = server
        url = parse_url(f"{server.url()}/a.json?resume=true")
        patch.setattr(http_client, "open_socket", self._open)
        self.is_over: Deferred[None] = Deferred()
        self.end: Deferred[None] = deferToThread(self._follow, url)

    def _follow(self, url: Url) -> None:
        client = HttpClient(token="secret", silence_s=SILENT_S)
        try:
            follow(client, url, self._show, self._note, random.Random(1), self.clock.pause)
        finally:
            reactor.callFromThread(self.is_over.callback, None)

    def _open(self, url: Url, _timeout_s: float | None) -> socket.socket:
        plain = socket.create_connection(("127.0.0.1", url.port))
        opened = ClockedSocket(fileno=plain.detach())
        opened.clock = self.clock
        return opened

    def _note(self, sentence: str) -> None:
        reactor.callFromThread(self.notes.put, sentence)

    def _show(self, event: StreamEvent) -> None:
        reactor.callFromThread(self._shown.put, event.print_text().decode().rstrip("\n"))

    async def next_shown(self) -> str:
        line: str = await self._shown.get()
        return line

    @property
    def has_no_more(self) -> bool:
        """Whether the test has read everything that was shown."""
        return not self._shown.pending

    async def pausing(self) -> None:
        """Wait until it pauses."""
        while await self.clock.delays.get() > LONGEST_PAUSE_S:
            pass

    async def opened(self, status: int = 200) -> Request:
        """Wait for the request for the stream, and begin the response."""
        request = await self._server.requests.get()
        begin_response(request, status, content_type="text/event-stream; charset=utf-8")
        return request

    async def reopened(self) -> Request:
        """Wait for the end of the stream, advance the clock by the pause, and begin again."""
        await self.pausing()
        self.clock.advance(LONGEST_PAUSE_S)
        return await self.opened()


@pytest.fixture
def server() -> Iterator[ScriptedServer]:
    running = ScriptedServer()
    yield running
    pytest_twisted.blockon(running.close())


@pytest_twisted.async_yield_fixture
async def follower(
    server: ScriptedServer, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[Follower]:
    running = Follower(server, monkeypatch)
    yield running
    running.clock.is_stopped = True
    running.end.addErrback(lambda _: None)
    await running.is_over


@pytest_twisted.ensureDeferred
async def test_it_requests_a_stream_that_can_be_resumed(follower: Follower) -> None:
    request = await follower.opened()
    assert request.uri == b"/a.json?resume=true"
    assert request.getHeader("accept") == "text/event-stream"
    assert request.getHeader("authorization") == "Bearer secret"
    assert request.getHeader("last-event-id") is None


@pytest_twisted.ensureDeferred
async def test_a_stream_that_ends_is_resumed(follower: Follower) -> None:
    request = await follower.opened()
    request.write(FIRST)
    assert await follower.next_shown() == "put\t/\t1"
    request.finish()
    request = await follower.reopened()
    assert request.getHeader("last-event-id") == "4"
    request.write(put("/b", 5))
    assert await follower.next_shown() == "put\t/b\t0"
    assert follower.has_no_more


@pytest_twisted.ensureDeferred
async def test_a_stream_that_breaks_inside_a_write_is_resumed_before_it(follower: Follower) -> None:
    request = await follower.opened()
    request.write(FIRST + put("/b", 5) + put("/c", 5)[:20])
    assert await follower.next_shown() == "put\t/\t1"
    assert await follower.next_shown() == "put\t/b\t0"
    cut_off(request)
    request = await follower.reopened()
    assert request.getHeader("last-event-id") == "4"
    request.write(put("/b", 5) + put("/c", 5) + ALIVE)
    assert await follower.next_shown() == "put\t/c\t0"
    request.finish()
    request = await follower.reopened()
    assert request.getHeader("last-event-id") == "5"


@pytest_twisted.ensureDeferred
async def test_a_silent_stream_is_closed_and_resumed(follower: Follower) -> None:
    request = await follower.opened()
    request.write(FIRST)
    await follower.next_shown()
    closed = request.notifyFinish()
    follower.clock.advance(SILENT_S - 1)
    assert not follower.notes.pending
    follower.clock.advance(1)
    assert "was silent for 75 s" in await follower.notes.get()
    closed.addErrback(lambda _: None)
    await closed
    await follower.pausing()
    follower.clock.advance(LONGEST_PAUSE_S)
    assert (await follower.opened()).getHeader("last-event-id") == "4"


@pytest_twisted.ensureDeferred
async def test_any_byte_resets_the_limit_of_silence(follower: Follower) -> None:
    request = await follower.opened()
    request.write(FIRST)
    await follower.next_shown()
    follower.clock.advance(SILENT_S - 1)
    request.write(ALIVE + put("/b", 5))
    await follower.next_shown()
    follower.clock.advance(SILENT_S - 1)
    assert not follower.notes.pending


@pytest_twisted.ensureDeferred
async def test_a_request_without_a_response_is_cancelled_and_repeated(
    follower: Follower, server: ScriptedServer
) -> None:
    request = await follower.opened()
    request.write(FIRST)
    await follower.next_shown()
    request.finish()
    await follower.pausing()
    follower.clock.advance(LONGEST_PAUSE_S)
    await server.requests.get()
    follower.clock.advance(SILENT_S)
    await follower.pausing()
    follower.clock.advance(LONGEST_PAUSE_S)
    assert (await follower.opened()).getHeader("last-event-id") == "4"


@pytest_twisted.ensureDeferred
async def test_requests_to_a_failing_server_are_repeated_and_reported_once(
    follower: Follower, server: ScriptedServer
) -> None:
    request = await follower.opened()
    request.write(FIRST)
    await follower.next_shown()
    request.finish()
    await follower.pausing()
    for _ in range(3):
        follower.clock.advance(LONGEST_PAUSE_S)
        respond(await server.requests.get(), 503)
        await follower.pausing()
    follower.clock.advance(LONGEST_PAUSE_S)
    request = await follower.opened()
    request.write(put("/b", 5))
    assert await follower.next_shown() == "put\t/b\t0"
    assert len(follower.notes.pending) == 1
    assert follower.has_no_more


@pytest.mark.parametrize(
    ("frame", "sentence"),
    [
        (b"event: cancel\ndata: null\n\n", "the rules no longer allow it"),
        (
            b"event: auth_revoked\ndata: credential is no longer valid\n\n",
            "the token is no longer valid",
        ),
        (b"event: put\ndata: null\n\n", "an event that treedb does not know"),
    ],
)
@pytest_twisted.ensureDeferred
async def test_a_final_event_ends_the_command(
    follower: Follower, frame: bytes, sentence: str
) -> None:
    request = await follower.opened()
    request.write(FIRST + frame + put("/b", 5))
    assert await follower.next_shown() == "put\t/\t1"
    with pytest.raises(CommandFailed, match=sentence):
        await follower.end
    assert follower.has_no_more


@pytest.mark.parametrize("status", [302, 400, 401, 403, 404, 429])
@pytest_twisted.ensureDeferred
async def test_an_error_other_than_5xx_ends_the_command(
    follower: Follower, server: ScriptedServer, status: int
) -> None:
    request = await follower.opened()
    request.write(FIRST)
    await follower.next_shown()
    request.finish()
    await follower.pausing()
    follower.clock.advance(LONGEST_PAUSE_S)
    respond(await server.requests.get(), status, b'{"error":"a","message":"b."}')
    with pytest.raises(CommandFailed, match=f"^{status} a: b\\.$"):
        await follower.end


@pytest_twisted.ensureDeferred
async def test_a_stream_that_never_opened_is_not_requested_again(
    follower: Follower, server: ScriptedServer
) -> None:
    respond(await server.requests.get(), 503)
    with pytest.raises(NoResponse):
        await follower.end


@pytest_twisted.ensureDeferred
async def test_a_response_that_is_not_a_stream_ends_the_command(
    follower: Follower, server: ScriptedServer
) -> None:
    respond(await server.requests.get(), 200, b"{}", content_type="application/json")
    with pytest.raises(CommandFailed, match="is not a stream"):
        await follower.end


@pytest_twisted.ensureDeferred
async def test_events_of_other_kinds_are_ignored(follower: Follower) -> None:
    request = await follower.opened()
    request.write(b"event: news\ndata: x\n\n" + FIRST)
    assert await follower.next_shown() == "put\t/\t1"


@pytest_twisted.ensureDeferred
async def test_a_stream_is_not_requested_again_before_the_pause_that_it_asks_for(
    follower: Follower,
) -> None:
    request = await follower.opened()
    request.write(b"retry: 7000\n" + FIRST)
    await follower.next_shown()
    request.finish()
    assert await follower.clock.delays.get() == SILENT_S
    assert await follower.clock.delays.get() == 7.0


@pytest_twisted.ensureDeferred
async def test_the_id_of_a_resumed_stream_persists(follower: Follower) -> None:
    request = await follower.opened()
    request.write(FIRST)
    await follower.next_shown()
    request.finish()
    request = await follower.reopened()
    request.write(b'event: put\ndata: {"path":"/b","data":0}\n\n')
    await follower.next_shown()
    request.finish()
    assert (await follower.reopened()).getHeader("last-event-id") == "4"


def test_pauses_grow_to_a_limit_and_are_random() -> None:
    chance = random.Random(1)
    for failures, longest in ((0, 0.5), (1, 1.0), (2, 2.0), (5, 16.0), (6, 30.0), (10_000, 30.0)):
        pauses = [pause_after(failures, chance) for _ in range(100)]
        assert longest / 2 <= min(pauses) < longest * 0.6
        assert longest * 0.9 < max(pauses) <= longest


def test_a_pause_that_a_stream_asks_for_is_kept_up_to_the_longest() -> None:
    chance = random.Random(1)
    assert pause_after(0, chance, 7.0) == 7.0
    assert pause_after(0, chance, 1e9) == LONGEST_PAUSE_S
    assert 15.0 <= pause_after(5_000, chance, 7.0) <= LONGEST_PAUSE_S
