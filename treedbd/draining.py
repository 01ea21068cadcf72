"""How the clients of a service that stops are let go: requests are answered, then streams end."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from twisted.internet.task import LoopingCall

from treedbd.web.http1.factory import Http1Factory
from treedbd.web.sse.registry import StreamRegistry

DRAIN_SECONDS: Final = 3.0
DRAIN_POLL_S: Final = 0.02


async def drain(
    factory: Http1Factory, streams: StreamRegistry, clock: Any, follow: Callable[[], None] | None
) -> None:
    """Let requests under way finish, then end the streams, which receive events until then.

    `follow` is called before, if other processes write too, so that what they have acknowledged is
    sent. After `DRAIN_SECONDS` all connections that are left are dropped.
    """
    streams_end_at = clock.seconds() + DRAIN_SECONDS / 2

    def end_streams() -> None:
        nonlocal follow
        if follow is not None:
            # That is sent in the slices until the next call.
            follow_once, follow = follow, None
            follow_once()
            return
        is_late = clock.seconds() >= streams_end_at
        if is_late or factory.connections <= streams.connected:
            streams.end()

    drained = factory.drain()
    polling = LoopingCall(end_streams)
    polling.clock = clock
    polling.start(DRAIN_POLL_S)
    late = clock.callLater(DRAIN_SECONDS, factory.abort)
    await drained
    polling.stop()
    streams.end()
    if late.active():
        late.cancel()
