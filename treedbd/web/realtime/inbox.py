"""What a client has sent and the server has not handled yet, in order.

Messages are handled in slices that all sessions share. One that has to wait, for the keys of an
identity provider or for its turn to be parsed, lets those behind it wait. While many wait, or while
too many answers wait for the client, the client is not read. What is long is held until it has been
parsed, and counted as long.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Coroutine
from typing import Any, Final

from twisted.internet.defer import Deferred

from treedbd.database.slices import Slices, Steps
from treedbd.held_bytes import SMALL_HELD_BYTES
from treedbd.http1.writer import UpgradedConnection
from treedbd.limits import KIB
from treedbd.web.realtime.wire import LongMessage, Message

INBOX_BYTES: Final = 64 * KIB
"""Messages that wait to be handled; beyond, the client is not read."""
_MESSAGE_BYTES: Final = 64
"""What a message counts for beside its text."""


class Inbox:
    """The messages of one client.

    Attributes:
        may_read: whether there is room for the answers of the client.
        is_parsing: whether what it has sent is still parsed.

    """

    __slots__ = (
        "_blocked_bytes",
        "_bytes",
        "_connection",
        "_handle",
        "_is_blocked",
        "_is_closed",
        "_is_working",
        "_messages",
        "_note_held",
        "_slices",
        "is_parsing",
        "may_read",
    )

    def __init__(
        self,
        connection: UpgradedConnection,
        slices: Slices,
        handle: Callable[[Message], None],
        note_held: Callable[[int], object],
    ) -> None:
        """Call `handle`, which raises nothing, with each message, in `slices`.

        `note_held` is called with the bytes by which what is held of long messages has grown.
        """
        self.may_read = True
        self.is_parsing = False
        self._blocked_bytes = 0
        self._bytes = 0
        self._connection = connection
        self._handle = handle
        self._is_blocked = False
        self._is_closed = False
        self._is_working = False
        self._messages: deque[Message] | None = None
        self._note_held = note_held
        self._slices = slices

    def add(self, message: Message) -> None:
        """Handle a message, now or in its turn."""
        if self._messages is None:
            self._messages = deque()
        self._messages.append(message)
        size = _size_of(message)
        self._bytes += size
        if size > SMALL_HELD_BYTES:
            self._note_held(size)
        if self._is_working or self._is_blocked:
            self.bound_reading()
        else:
            self._work()

    def block(self, work: Coroutine[Any, Any, None]) -> None:
        """Do work that may wait, and raises nothing; the messages behind it wait, too."""
        self._is_blocked = True
        Deferred.fromCoroutine(work).addBoth(self._unblock)

    def bound_reading(self) -> None:
        """Read the client, or not, by what waits."""
        if self._is_closed:
            return
        if self.may_read and not self.is_parsing and self._bytes <= INBOX_BYTES:
            self._connection.resume_reading()
        else:
            self._connection.pause_reading()

    def close(self) -> None:
        """Handle nothing any more, and forget who has; nothing more may be added."""
        self._is_closed = True
        self._messages = None
        self._handle = self._note_held = _do_nothing

    def _unblock(self, _: object) -> None:
        self._is_blocked = False
        if self._blocked_bytes:
            self._note_held(-self._blocked_bytes)
            self._blocked_bytes = 0
        if self._messages and not self._is_working:
            self._work()
        else:
            self.bound_reading()

    def _work(self) -> None:
        self._is_working = True
        self._slices.start(self._steps())

    def _steps(self) -> Steps:
        while self._messages and not self._is_blocked:
            message = self._messages.popleft()
            size = _size_of(message)
            self._bytes -= size
            self._handle(message)
            if size > SMALL_HELD_BYTES:
                if self._is_blocked:
                    self._blocked_bytes = size
                else:
                    self._note_held(-size)
            yield
        if not self._messages:
            self._messages = None
        self._is_working = False
        self.bound_reading()


def _size_of(message: Message) -> int:
    if isinstance(message, LongMessage):
        return _MESSAGE_BYTES + message.size
    return _MESSAGE_BYTES + (len(message) if isinstance(message, bytes) else KIB)


def _do_nothing(_: object) -> None:
    pass
