"""The answers of a session: to its requests, in order with the events that it is sent.

A write is answered behind its events, and before those of the next write: an SDK shows what it has
written until then, and then judges by what its query holds at that moment whether it was kept. So
an answer waits until the watchers were notified of all that is durable, or until a listen of the
session is about to send a later event.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Iterator
from typing import Final, TypeAlias

import attrs
from twisted.logger import Logger

from treedbd.database.database import Database
from treedbd.database.requests import PermissionDenied, Write
from treedbd.database.rights import ReadRequest
from treedbd.database.shared_window import SharedWindow
from treedbd.database.watchers import Notification
from treedbd.tree.types import Json
from treedbd.web.realtime import messages
from treedbd.web.realtime.denials import explain_read, explain_write
from treedbd.web.realtime.messages import status_of

Answered: TypeAlias = Callable[[], None]


def _do_nothing() -> None:
    pass


@attrs.define(eq=False)
class _Waiting:
    """An answer that waits; `sequence` is the number of the write that it is to, if it was done."""

    send: Callable[[], None]
    sequence: int | None
    is_sent: bool = False


class SessionAnswers(ABC):
    """The part of a session that answers its requests.

    Attributes:
        database: that of the session.
        is_over: whether its connection is gone.

    """

    _log = Logger()

    def __init__(self, database: Database) -> None:
        self.database = database
        self.is_over = False
        self._waiting: Final[deque[_Waiting]] = deque()

    @property
    @abstractmethod
    def may_explain(self) -> bool:
        """Whether its client is sent why the rules deny."""

    @abstractmethod
    def find_behind(self) -> SharedWindow | None:
        """Return the window of a query that still has to catch up with what was committed."""

    @abstractmethod
    def send(self, message: bytes) -> None:
        """Send a message that is never dropped."""

    def answer(self, number: int, status: str, data: Json) -> None:
        """Answer a request."""
        self.send(messages.print_answer(number, status, data))

    def answer_when_notified(
        self, number: int, sequence: int | None = None, answered: Answered = _do_nothing
    ) -> None:
        """Answer a request with `ok`, after the events of what is durable by now.

        That of the write with the number `sequence` comes before events of later ones. Then
        `answered` is called, unless the connection is gone.
        """

        def answer() -> None:
            self.answer(number, messages.OK, {})
            answered()

        self._send_when_notified(answer, sequence)

    def fail_when_notified(
        self,
        number: int,
        error: BaseException | None,
        write: Write | None,
        answered: Answered = _do_nothing,
    ) -> None:
        """Answer a request with an error, after the events of what is durable by now.

        `write` is what the rules may have denied. Then `answered` is called as above.
        """
        database = self.database

        def answer() -> None:
            if write is not None:
                self._explain_denial(error, lambda: explain_write(database, write))
            self.answer(number, *status_of(error))
            answered()

        self._send_when_notified(answer, None)

    def in_order(self, notification: Notification) -> Iterator[Notification]:
        """Yield a notification in parts; answer before each what is to be answered before it."""
        if not self._waiting:
            yield notification
            return
        events, begun = notification.events, 0
        for at, (position, _) in enumerate(events):
            last = self._last_before(position.sequence)
            if last is not None:
                if at > begun:
                    yield Notification(events[begun:at])
                begun = at
                self._send_through(last)
        yield notification if begun == 0 else Notification(events[begun:])

    def answer_error(self, number: int, error: BaseException | None, read: ReadRequest) -> None:
        """Answer a listen or a get with an error; `read` is what was to be read."""
        self._explain_denial(error, lambda: explain_read(self.database, read))
        self.answer(number, *status_of(error))

    def drop_answers(self) -> None:
        """Drop the answers that wait: the connection is gone."""
        self._waiting.clear()

    def _send_when_notified(self, send: Callable[[], None], sequence: int | None) -> None:
        if not self.is_over:
            waiting = _Waiting(send, sequence)
            self._waiting.append(waiting)
            self.database.watching.call_when_notified(
                lambda: self._send_through(waiting), self.find_behind
            )

    def _last_before(self, sequence: int) -> _Waiting | None:
        """Return the last answer to a write before another one, if all its events were sent."""
        found = None
        for waiting in self._waiting:
            if waiting.sequence is not None:
                if waiting.sequence >= sequence:
                    break
                found = waiting
        return None if found is None or self.find_behind() is not None else found

    def _send_through(self, last: _Waiting) -> None:
        """Send the answers up to one that waits or was sent."""
        while not (last.is_sent or self.is_over):
            first = self._waiting.popleft()
            first.is_sent = True
            first.send()

    def _explain_denial(self, error: BaseException | None, explain: Callable[[], str]) -> None:
        """Send why the rules have denied something, if the client may know."""
        if not isinstance(error, PermissionDenied) or not self.may_explain:
            return
        try:
            text = explain()
        except Exception:
            self._log.failure("A denial could not be explained.")
            return
        self.send(messages.print_push("sd", {"msg": text}))
