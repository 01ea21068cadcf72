"""What each action of the protocol does: from a message of a client to the part that it is for."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import Any, Final, Protocol, TypeAlias

from twisted.internet.defer import Deferred
from twisted.logger import Logger
from twisted.python.failure import Failure

from treedbd.web.rates import TooManyRequests
from treedbd.web.realtime import messages
from treedbd.web.realtime.callers import SessionCaller
from treedbd.web.realtime.inbox import Inbox
from treedbd.web.realtime.listening import ListeningOwner, SessionListens
from treedbd.web.realtime.messages import (
    TOO_BIG,
    LongWrite,
    Ping,
    RealtimeRequest,
    as_long_write,
    find_long_write,
    status_of,
)
from treedbd.web.realtime.pending import Pending
from treedbd.web.realtime.presence import PresenceOwner, SessionPresence
from treedbd.web.realtime.wire import END_BYTES, WHOLE_BYTES, LongMessage, Message, OversizedMessage
from treedbd.web.realtime.writes import METHODS, SessionWrites, WriteOwner, is_long

_WRITES: Final = frozenset({"p", "m", "o", "om"})


_Waiting: TypeAlias = Coroutine[Any, Any, None] | None
"""What goes on for a while, and lets the messages behind it wait; None if nothing does."""


class UnknownLongMessage(Exception):
    """A message that is too long to be parsed, and in no form that shows what it asks for."""


class ActionsOwner(ListeningOwner, PresenceOwner, WriteOwner, Protocol):
    """The session whose client acts."""

    inbox: Inbox
    signed_in: SessionCaller

    def send(self, message: bytes) -> None:
        """Send a message that is never dropped."""
        ...

    def count(self, *, is_write: bool) -> None:
        """Count a request for all who send it; raise `TooManyRequests`."""
        ...

    def count_frame(self) -> None:
        """Count a message that is no request for the rates of the client."""
        ...


class SessionActions:
    """Does what the client of one session asks for.

    Attributes:
        listens: what the session listens to.

    """

    __slots__ = ("_owner", "_presence", "_writes", "listens")
    _log = Logger()

    def __init__(self, owner: ActionsOwner) -> None:
        self._owner = owner
        self.listens = SessionListens(owner)
        self._presence = SessionPresence(owner)
        self._writes = SessionWrites(owner)

    def end(self) -> Deferred[None]:
        """End the listens, and write what the client has left; fires when that is done.

        Requests that wait for others do nothing any more. A write that was begun goes on.
        """
        self.listens.pending.give_up()
        self._writes.pending.give_up()
        closed = self.listens.close()
        left = self._presence.run().addErrback(self._not_left)
        return left.addCallback(lambda _: closed)

    def _not_left(self, failure: Failure) -> None:
        self._log.failure("What a session has left could not be written.", failure)

    def handle(self, message: Message) -> None:
        """Do what a message asks for; raise `NotAnEnvelope` or `UnknownLongMessage`."""
        if isinstance(message, OversizedMessage):
            self._refuse(message, self._owner.parts.limits.write_body_bytes)
            return
        if isinstance(message, LongMessage) or is_long(message):
            long = find_long_write(message)
            if long is not None and long.request.action in METHODS:
                self._block(long.request, self._write_long(long))
                return
        if isinstance(message, LongMessage):
            first = message.read(0, END_BYTES)
            last = message.read(message.size - END_BYTES, message.size)
            self._refuse(OversizedMessage(first, last), WHOLE_BYTES)
            return
        parsed = messages.parse_message(message)
        if isinstance(parsed, RealtimeRequest):
            if parsed.action in METHODS and is_long(message) and "d" in parsed.body:
                self._block(parsed, self._write_long(as_long_write(parsed)))
            else:
                self._act(parsed)
            return
        self._owner.count_frame()
        if isinstance(parsed, Ping):
            self._owner.send(messages.PONG)

    def _act(self, request: RealtimeRequest) -> None:
        try:
            self._owner.count(is_write=request.action in _WRITES)
            act = _ACTIONS.get(request.action)
            if act is None:
                raise messages.UnknownAction(request.action)
            waiting = act(self, request)
            if waiting is not None:
                self._block(request, waiting)
        except Exception as error:
            self._owner.answer(request.number, *status_of(error))

    def _block(self, request: RealtimeRequest, work: Coroutine[Any, Any, None]) -> None:
        """Do work that may wait; the messages behind it wait, too."""

        async def run() -> None:
            try:
                await work
            except Exception as error:
                self._owner.answer(request.number, *status_of(error))

        self._owner.inbox.block(run())

    async def _write_long(self, long: LongWrite) -> None:
        self._owner.count(is_write=True)
        settled = self.listens.pending.settled()
        if settled is not None:
            await settled
        await self._writes.write_long(long)

    def _refuse(self, message: OversizedMessage, most: int) -> None:
        """Answer a request that is too long with `too_big`; raise `UnknownLongMessage`."""
        self._owner.parts.registry.refused["write_body_bytes"] += 1
        number = messages.find_number(message)
        if number is None:
            raise UnknownLongMessage
        try:
            self._owner.count(is_write=False)
        except TooManyRequests as error:
            self._owner.answer(number, *status_of(error))
        else:
            self._owner.answer(number, TOO_BIG, f"This request may have at most {most} bytes.")

    def _note(self, request: RealtimeRequest) -> None:
        self._owner.answer(request.number, messages.OK, {})

    def _write(self, request: RealtimeRequest) -> _Waiting:
        """Write, after what was asked for before was read."""
        return _after(self.listens.pending, lambda: self._writes.write(request))

    def _listen(self, request: RealtimeRequest) -> _Waiting:
        """Show what the writes before have written, after their answers."""
        return _after(self._writes.pending, lambda: self.listens.listen(request))

    def _unlisten(self, request: RealtimeRequest) -> _Waiting:
        return _after(self._writes.pending, lambda: self.listens.unlisten(request))

    def _get(self, request: RealtimeRequest) -> _Waiting:
        return _after(self._writes.pending, lambda: self.listens.get(request))

    def _sign_in(self, request: RealtimeRequest) -> _Waiting:
        """Become another caller, when all that was asked for before was read."""
        signed_in = self._owner.signed_in

        async def sign_in() -> None:
            try:
                data = await signed_in.sign_in(request.body)
            finally:
                await self.listens.rejudge()
            self._owner.answer(request.number, messages.OK, data)

        return _after(self.listens.pending, sign_in)

    def _sign_out(self, request: RealtimeRequest) -> _Waiting:
        """Be again who opened the session."""

        async def sign_out() -> None:
            self._owner.signed_in.forget()
            await self.listens.rejudge()
            self._owner.answer(request.number, messages.OK, {})

        return _after(self.listens.pending, sign_out)

    def _keep(self, request: RealtimeRequest) -> _Waiting:
        return _after(self.listens.pending, lambda: self._presence.set(request))

    def _cancel(self, request: RealtimeRequest) -> None:
        self._presence.cancel(request)


def _after(others: Pending, act: Callable[[], _Waiting]) -> _Waiting:
    """Act when none of the others is pending: now, if none is."""
    settled = others.settled()
    if settled is None:
        return act()

    async def act_later() -> None:
        await settled
        waiting = act()
        if waiting is not None:
            await waiting

    return act_later()


_Act: TypeAlias = Callable[[SessionActions, RealtimeRequest], _Waiting]
_ACTIONS: Final[dict[str, _Act]] = {
    "q": SessionActions._listen,
    "n": SessionActions._unlisten,
    "g": SessionActions._get,
    "p": SessionActions._write,
    "m": SessionActions._write,
    "o": SessionActions._keep,
    "om": SessionActions._keep,
    "oc": SessionActions._cancel,
    "auth": SessionActions._sign_in,
    "gauth": SessionActions._sign_in,
    "unauth": SessionActions._sign_out,
    "s": SessionActions._note,
    "appcheck": SessionActions._note,
    "unappcheck": SessionActions._note,
    "unappeck": SessionActions._note,
}
