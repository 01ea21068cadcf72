"""What a program watches, as an iterator that waits for the next event.

The database refers to the queue, the program to the `Watch`: when the program has dropped that, the
queue is closed.
"""

from __future__ import annotations

import weakref
from collections.abc import AsyncIterator
from types import TracebackType
from typing import Protocol

from treedbd.embedding.awaiting import wait_for
from treedbd.embedding.waiting_events import WatchEvent


class EventQueue(Protocol):
    """The events that wait for a program (`watch_queue.WatchQueue`)."""

    async def open(self) -> None:
        """Begin to watch, unless that has begun."""
        ...

    async def wait(self) -> None:
        """Wait until there is an event to take, or the end."""
        ...

    def take(self) -> WatchEvent | None:
        """Return the next event, None if it has to be awaited; raise at the end."""
        ...

    def close(self) -> None:
        """Watch no longer."""
        ...

    def close_soon(self) -> None:
        """Do as `close`, in a later turn of the reactor."""
        ...


class Watch(AsyncIterator[WatchEvent]):
    """The events at a path, each a `WatchEvent`: `async for event in database.watch("users")`.

    The first is a `put` of the present value, the others say what was written, in order, none left
    out. If the program is slow and more waits than the setting `buffer_bytes` of `[streams]`, one
    `put` of the present value comes in place of what waits.

    It ends by an exception that says why: `PermissionDenied` if the path can no longer be read,
    `Unavailable` if the service stops or the watch has failed. It ends without one after `aclose`,
    which `async with` calls at its end; a watch that the program has dropped is closed too. If
    waiting for an event is cancelled, the watch goes on.
    """

    def __init__(self, queue: EventQueue) -> None:
        """Iterate over a queue; `LocalDatabase.watch` calls this."""
        self._queue = queue
        weakref.finalize(self, queue.close_soon).atexit = False

    async def __aenter__(self) -> Watch:
        """Begin to watch; raise if the rules do not allow it."""
        await wait_for(self._queue.open())
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Watch no longer."""
        self._queue.close()

    def __aiter__(self) -> Watch:
        return self

    async def __anext__(self) -> WatchEvent:
        """Wait for the next event."""
        # Taken in the turn in which it is returned: waiting that is cancelled loses no event.
        while (event := self._queue.take()) is None:
            await wait_for(self._queue.wait())
        return event

    async def aclose(self) -> None:
        """Stop watching; an iteration that waits for an event ends."""
        self._queue.close()
