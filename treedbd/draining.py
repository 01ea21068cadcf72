"""How the clients of a service that stops are let go: requests are answered, then streams end.

Sockets of the real-time protocol end with the streams; what their clients have left for that is
written before the service goes on to stop.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from twisted.internet.defer import DeferredList
from twisted.internet.task import LoopingCall

from treedbd.web.http1.factory import Http1Factory
from treedbd.web.realtime.door import RealtimeDoor
from treedbd.web.sse.registry import StreamRegistry

DRAIN_SECONDS: Final = 5.0
"""For requests under way."""
STREAMS_SECONDS: Final = 1.5
"""After these streams and sockets end, though requests are under way."""
DRAIN_POLL_S: Final = 0.02
WRITTEN_SECONDS: Final = 2.0
"""For what streams and sockets write when they end."""


async def drain(
    factory: Http1Factory,
    streams: StreamRegistry,
    sockets: RealtimeDoor,
    clock: Any,
    follow: Callable[[], None] | None,
) -> None:
    """Let requests under way finish, then end streams and sockets, which receive until then.

    `follow` is called before, if other processes write too, so that what they have acknowledged is
    sent. After `DRAIN_SECONDS` all connections that are left are dropped. At last, what streams and
    sockets write when they end is waited for, `WRITTEN_SECONDS` at most.
    """
    streams_end_at = clock.seconds() + STREAMS_SECONDS

    def end_streams() -> None:
        nonlocal follow
        if follow is not None:
            # That is sent in the slices until the next call.
            follow_once, follow = follow, None
            follow_once()
            return
        is_late = clock.seconds() >= streams_end_at
        if is_late or factory.connections <= streams.connected + sockets.connected:
            streams.end()
            sockets.end()

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
    # What is not written by then is left to the next process.
    written = DeferredList([streams.written(), sockets.ended()], consumeErrors=True)
    await written.addTimeout(WRITTEN_SECONDS, clock, lambda _, __: None)
