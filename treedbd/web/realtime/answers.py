"""The answers of a session: to its requests, in order with the events that it is sent."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol, TypeAlias

from twisted.logger import Logger

from treedbd.database.database import Database
from treedbd.database.errors import PermissionDenied
from treedbd.database.read_grants import ReadRequest
from treedbd.database.requests import Write
from treedbd.database.shared_window import SharedWindow
from treedbd.tree.types import Json
from treedbd.web.realtime import messages
from treedbd.web.realtime.denials import explain_read, explain_write
from treedbd.web.realtime.statuses import status_of

Answered: TypeAlias = Callable[[], None]


def _do_nothing() -> None:
    pass


class AnswersOwner(Protocol):
    """The session of the answers."""

    database: Database

    @property
    def may_explain(self) -> bool:
        """Whether its client is sent why the rules deny."""
        ...

    @property
    def is_over(self) -> bool:
        """Whether its connection is gone."""
        ...

    def find_behind(self) -> SharedWindow | None:
        """Return the window of a query that still has to catch up with what was committed."""
        ...

    def send(self, message: bytes) -> None:
        """Send a message that is never dropped."""
        ...


class SessionAnswers:
    """Answers the requests of one session."""

    __slots__ = ("_owner",)
    _log = Logger()

    def __init__(self, owner: AnswersOwner) -> None:
        self._owner = owner

    def answer(self, number: int, status: str, data: Json) -> None:
        """Answer a request."""
        self._owner.send(messages.print_answer(number, status, data))

    def answer_when_notified(self, number: int, answered: Answered = _do_nothing) -> None:
        """Answer a request with `ok`, after the events of what is durable by now.

        Then `answered` is called, unless the connection is gone.
        """

        def answer() -> None:
            self.answer(number, messages.OK, {})
            answered()

        self._call_when_notified(answer)

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
        database = self._owner.database

        def answer() -> None:
            if write is not None:
                self._explain_denial(error, lambda: explain_write(database, write))
            self.answer(number, *status_of(error))
            answered()

        self._call_when_notified(answer)

    def answer_error(self, number: int, error: BaseException | None, read: ReadRequest) -> None:
        """Answer a listen or a get with an error; `read` is what was to be read."""
        self._explain_denial(error, lambda: explain_read(self._owner.database, read))
        self.answer(number, *status_of(error))

    def _call_when_notified(self, call: Callable[[], None]) -> None:
        owner = self._owner

        def call_if_open() -> None:
            if not owner.is_over:
                call()

        if not owner.is_over:
            owner.database.watching.call_when_notified(call_if_open, owner.find_behind)

    def _explain_denial(self, error: BaseException | None, explain: Callable[[], str]) -> None:
        """Send why the rules have denied something, if the client may know."""
        if not isinstance(error, PermissionDenied) or not self._owner.may_explain:
            return
        try:
            text = explain()
        except Exception:
            self._log.failure("A denial could not be explained.")
            return
        self._owner.send(messages.print_push("sd", {"msg": text}))
