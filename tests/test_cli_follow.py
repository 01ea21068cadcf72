"""Following a stream that breaks, falls silent, refuses or ends."""

from __future__ import annotations

import random
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

import pytest
import pytest_twisted
from twisted.internet import reactor as installed_reactor
from twisted.internet.defer import Deferred, DeferredQueue
from twisted.internet.interfaces import IDelayedCall
from twisted.internet.task import Clock
from twisted.web.server import Request

from tests.script import Script, answer, begin, cut_off
from treedbd.cli.client import Client, NoAnswer
from treedbd.cli.events import Event
from treedbd.cli.outcome import CommandFailed
from treedbd.cli.url import parse_url
from treedbd.cli.watch import LONGEST_PAUSE_S, Wish, follow, pause_after
from treedbd.web.identity.tls import Trust

reactor: Any = installed_reactor
KEEP_ALIVE_S = 30.0
SILENT_S = 75.0
FIRST = b'event: put\ndata: {"path":"/","data":1}\nid: 4\n\n'
ALIVE = b"event: keep-alive\ndata: null\n\n"


def put(path: str, number: int) -> bytes:
    return b'event: put\ndata: {"path":"%b","data":0}\nid: %d\n\n' % (path.encode(), number)


class Noticed(Clock):
    """A clock that tells of each call that it is asked for."""

    def __init__(self) -> None:
        super().__init__()
        self.asked: DeferredQueue[float] = DeferredQueue()

    def callLater(
        self,
        delay: float,
        callable: Callable[..., object],  # noqa: A002 - Twisted's name
        *args: object,
        **kw: object,
    ) -> IDelayedCall:
        call = super().callLater(delay, callable, *args, **kw)
        self.asked.put(delay)
        return call


class Follower:
    """Follows a script, by a clock that the test moves."""

    def __init__(self, script: Script) -> None:
        self.clock = Noticed()
        self.notes: DeferredQueue[str] = DeferredQueue()
        self._shown: DeferredQueue[str] = DeferredQueue()
        self._script = script
        url = parse_url(f"{script.url()}/a.json?resume=true")
        wish = Wish(url, KEEP_ALIVE_S, self._show, self.notes.put)
        client = Client(reactor, Trust(), "secret")
        self.end: Deferred[None] = Deferred.fromCoroutine(
            follow(client, wish, self.clock, random.Random(1))
        )

    def _show(self, event: Event) -> None:
        self._shown.put(event.print_text().decode().rstrip("\n"))

    async def shown(self) -> str:
        line: str = await self._shown.get()
        return line

    @property
    def is_up_to_date(self) -> bool:
        """Whether everything that was shown has been looked at."""
        return not self._shown.pending

    async def pausing(self) -> None:
        """Wait until it makes a pause."""
        while await self.clock.asked.get() > LONGEST_PAUSE_S:
            pass

    async def opened(self, status: int = 200) -> Request:
        """Wait for the stream to be asked for, and begin it."""
        request = await self._script.requests.get()
        begin(request, status, content_type="text/event-stream; charset=utf-8")
        return request

    async def reopened(self) -> Request:
        """Wait for the end of the stream and let the pause pass; begin it again."""
        await self.pausing()
        self.clock.advance(LONGEST_PAUSE_S)
        return await self.opened()


@pytest.fixture
def script() -> Iterator[Script]:
    running = Script()
    yield running
    pytest_twisted.blockon(running.close())


@pytest_twisted.async_yield_fixture
async def follower(script: Script) -> AsyncIterator[Follower]:
    running = Follower(script)
    yield running
    running.end.addErrback(lambda _: None)
    running.end.cancel()


@pytest_twisted.ensureDeferred
async def test_it_asks_for_a_stream_that_can_be_resumed(follower: Follower) -> None:
    request = await follower.opened()
    assert request.uri == b"/a.json?resume=true"
    assert request.getHeader("accept") == "text/event-stream"
    assert request.getHeader("authorization") == "Bearer secret"
    assert request.getHeader("last-event-id") is None


@pytest_twisted.ensureDeferred
async def test_a_stream_that_ends_is_resumed(follower: Follower) -> None:
    request = await follower.opened()
    request.write(FIRST)
    assert await follower.shown() == "put\t/\t1"
    request.finish()
    request = await follower.reopened()
    assert request.getHeader("last-event-id") == "4"
    request.write(put("/b", 5))
    assert await follower.shown() == "put\t/b\t0"
    assert follower.is_up_to_date


@pytest_twisted.ensureDeferred
async def test_a_stream_that_breaks_inside_a_write_is_resumed_before_it(follower: Follower) -> None:
    request = await follower.opened()
    request.write(FIRST + put("/b", 5) + put("/c", 5)[:20])
    assert await follower.shown() == "put\t/\t1"
    assert await follower.shown() == "put\t/b\t0"
    cut_off(request)
    request = await follower.reopened()
    assert request.getHeader("last-event-id") == "4"
    request.write(put("/b", 5) + put("/c", 5) + ALIVE)
    assert await follower.shown() == "put\t/c\t0"
    request.finish()
    request = await follower.reopened()
    assert request.getHeader("last-event-id") == "5"


@pytest_twisted.ensureDeferred
async def test_a_silent_stream_is_given_up(follower: Follower) -> None:
    request = await follower.opened()
    request.write(FIRST)
    await follower.shown()
    left = request.notifyFinish()
    follower.clock.advance(SILENT_S - 1)
    assert not follower.notes.pending
    follower.clock.advance(1)
    assert "was silent for 75 s" in await follower.notes.get()
    left.addErrback(lambda _: None)
    await left
    await follower.pausing()
    follower.clock.advance(LONGEST_PAUSE_S)
    assert (await follower.opened()).getHeader("last-event-id") == "4"


@pytest_twisted.ensureDeferred
async def test_any_byte_breaks_the_silence(follower: Follower) -> None:
    request = await follower.opened()
    request.write(FIRST)
    await follower.shown()
    follower.clock.advance(SILENT_S - 1)
    request.write(ALIVE + put("/b", 5))
    await follower.shown()
    follower.clock.advance(SILENT_S - 1)
    assert not follower.notes.pending


@pytest_twisted.ensureDeferred
async def test_a_server_that_takes_the_question_and_never_answers_is_given_up(
    follower: Follower, script: Script
) -> None:
    request = await follower.opened()
    request.write(FIRST)
    await follower.shown()
    request.finish()
    await follower.pausing()
    follower.clock.advance(LONGEST_PAUSE_S)
    await script.requests.get()
    follower.clock.advance(SILENT_S)
    await follower.pausing()
    follower.clock.advance(LONGEST_PAUSE_S)
    assert (await follower.opened()).getHeader("last-event-id") == "4"


@pytest_twisted.ensureDeferred
async def test_a_server_in_trouble_is_asked_again_and_that_is_said_once(
    follower: Follower, script: Script
) -> None:
    request = await follower.opened()
    request.write(FIRST)
    await follower.shown()
    request.finish()
    await follower.pausing()
    for _ in range(3):
        follower.clock.advance(LONGEST_PAUSE_S)
        answer(await script.requests.get(), 503)
        await follower.pausing()
    follower.clock.advance(LONGEST_PAUSE_S)
    request = await follower.opened()
    request.write(put("/b", 5))
    assert await follower.shown() == "put\t/b\t0"
    assert len(follower.notes.pending) == 1
    assert follower.is_up_to_date


@pytest.mark.parametrize(
    ("frame", "sentence"),
    [
        (b"event: cancel\ndata: null\n\n", "the rules do not allow it any more"),
        (
            b"event: auth_revoked\ndata: credential is no longer valid\n\n",
            "the token is no longer valid",
        ),
        (b"event: put\ndata: null\n\n", "none of this interface"),
    ],
)
@pytest_twisted.ensureDeferred
async def test_last_words_are_the_end(follower: Follower, frame: bytes, sentence: str) -> None:
    request = await follower.opened()
    request.write(FIRST + frame + put("/b", 5))
    assert await follower.shown() == "put\t/\t1"
    with pytest.raises(CommandFailed, match=sentence):
        await follower.end
    assert follower.is_up_to_date


@pytest.mark.parametrize("status", [302, 400, 401, 403, 404, 429])
@pytest_twisted.ensureDeferred
async def test_a_refusal_is_the_end_also_of_a_stream_that_was_open(
    follower: Follower, script: Script, status: int
) -> None:
    request = await follower.opened()
    request.write(FIRST)
    await follower.shown()
    request.finish()
    await follower.pausing()
    follower.clock.advance(LONGEST_PAUSE_S)
    answer(await script.requests.get(), status, b'{"error":"a","message":"b."}')
    with pytest.raises(CommandFailed, match=f"^{status} a: b\\.$"):
        await follower.end


@pytest_twisted.ensureDeferred
async def test_what_was_never_open_is_not_tried_again(follower: Follower, script: Script) -> None:
    answer(await script.requests.get(), 503)
    with pytest.raises(NoAnswer):
        await follower.end


@pytest_twisted.ensureDeferred
async def test_an_answer_that_is_no_stream_is_the_end(follower: Follower, script: Script) -> None:
    answer(await script.requests.get(), 200, b"{}", content_type="application/json")
    with pytest.raises(CommandFailed, match="did not answer with a stream"):
        await follower.end


@pytest_twisted.ensureDeferred
async def test_events_of_other_kinds_are_passed_over(follower: Follower) -> None:
    request = await follower.opened()
    request.write(b"event: news\ndata: x\n\n" + FIRST)
    assert await follower.shown() == "put\t/\t1"


def test_pauses_grow_to_a_bound_and_are_never_the_same() -> None:
    chance = random.Random(1)
    for failures, longest in ((0, 0.5), (1, 1.0), (2, 2.0), (5, 16.0), (6, 30.0), (10_000, 30.0)):
        pauses = [pause_after(failures, chance) for _ in range(100)]
        assert longest / 2 <= min(pauses) < longest * 0.6
        assert longest * 0.9 < max(pauses) <= longest
