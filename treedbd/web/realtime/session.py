"""One session of the real-time protocol: a client, its WebSocket, and what it may see and do.

Theory of operation. Messages are handled in the order in which they came (`Inbox`), each by the
part of the session that it is for (`SessionActions`): who the client is (`SessionCaller`), what it
listens to (`listens`), what it writes (`writes`), what it leaves for its end (`SessionPresence`).
What the client is sent has one order too (`Outbox`): events of a commit, then the answers to the
writes in it (`SessionAnswers`). When the connection ends, for whatever reason, what the client has
left for that is written; the database stays open until then.

A write is answered after its own events, and before those of the next write: an SDK shows what it
has written until then, and then judges by what its query holds at that moment whether it was kept.
So an answer waits until the watchers were notified of all that is durable, or until a listen of the
session is about to send a later event.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Coroutine, Iterator
from typing import Any, Final, TypeAlias

import attrs
from twisted.internet.defer import Deferred, succeed
from twisted.internet.interfaces import IPushProducer
from twisted.logger import Logger
from twisted.python.failure import Failure
from websockets.frames import CloseCode
from zope.interface import implementer

from treedbd.database.database import Database
from treedbd.database.disconnect import check_nodes
from treedbd.database.requests import Caller, PermissionDenied, TooManyDisconnectWrites, Write
from treedbd.database.rights import ReadRequest
from treedbd.database.shared_window import SharedWindow
from treedbd.database.slices import Slices, Steps
from treedbd.database.watchers import Notification
from treedbd.held_bytes import SMALL_HELD_BYTES
from treedbd.http1.connection import HeldBody
from treedbd.http1.content import WaitingBytesRefused
from treedbd.http1.request import IHttp1Request
from treedbd.http1.writer import UpgradedConnection
from treedbd.limits import DEFAULT_TIMEOUT_S, KIB, MAX_CLAIM_LEVELS
from treedbd.names import DatabaseName
from treedbd.rules.evaluate import Verdict
from treedbd.rules.ruleset import format_explanation
from treedbd.tree.edit import Method
from treedbd.tree.types import Json
from treedbd.web.auth.identity import AuthOverride, Identity, uid_of
from treedbd.web.auth.jwt import BadToken, exceeds_levels
from treedbd.web.auth.verifier import unsigned_identity
from treedbd.web.explain import explanation
from treedbd.web.rates import TooManyRequests
from treedbd.web.realtime import messages
from treedbd.web.realtime.context import Pending, RealtimeParts
from treedbd.web.realtime.listens import Listen, SessionListens
from treedbd.web.realtime.messages import (
    EXPIRED,
    TOO_BIG,
    InvalidRequest,
    LongWrite,
    NotAnEnvelope,
    Ping,
    RealtimeRequest,
    as_long_write,
    find_long_write,
    place_of,
    status_of,
    value_of,
)
from treedbd.web.realtime.socket import Outbox, RealtimeSocket
from treedbd.web.realtime.wire import (
    END_BYTES,
    WHOLE_BYTES,
    LongMessage,
    Message,
    OversizedMessage,
    frame_message,
)
from treedbd.web.realtime.writes import (
    METHODS,
    SessionWrites,
    is_long,
    make_edit,
    target_of,
)


class UnknownLongMessage(Exception):
    """A message that is too long to be parsed, and in a form that does not show its request."""


INBOX_BYTES: Final = 64 * KIB
"""Messages that wait to be handled; beyond, the client is not read."""
_MESSAGE_BYTES: Final = 64
"""What a message counts for beside its text."""


def _do_nothing(*_: object) -> None:
    pass


class Inbox:
    """What one client has sent and the server has not handled yet, in order.

    Messages are handled in slices that all sessions share. One that has to wait, for the keys of an
    identity provider or to be admitted to parsing, lets those after it wait. While many wait, or
    while too many answers wait for the client, the client is not read. What is long is held until
    it has been parsed, and counted as long.

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
        """Handle a message, now or after those before it."""
        if self._messages is None:
            self._messages = deque()
        self._messages.append(message)
        size = _counted_size(message)
        self._bytes += size
        if size > SMALL_HELD_BYTES:
            self._note_held(size)
        if self._is_working or self._is_blocked:
            self.bound_reading()
        else:
            self._work()

    def block(self, work: Coroutine[Any, Any, None]) -> None:
        """Do work that may wait, and raises nothing; the messages after it wait, too."""
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
        """Drop what waits, and forget the session; nothing may be added after that."""
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
            size = _counted_size(message)
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


def _counted_size(message: Message) -> int:
    if isinstance(message, LongMessage):
        return _MESSAGE_BYTES + message.size
    return _MESSAGE_BYTES + (len(message) if isinstance(message, bytes) else KIB)


class SessionCaller:
    """The identity of one session: `auth`, `gauth` and `unauth`, and tokens that expire.

    An admin may be another user for the session, or without an identity: `authvar` and `noauth`, as
    `auth_variable_override` does for one request over HTTP.

    Attributes:
        identity: who it is now.
        caller: the same as the rules see it; another object after each change.
        is_overridden: whether an admin is another user here.

    """

    __slots__ = ("_first", "_parts", "_project", "_request", "caller", "identity", "is_overridden")

    def __init__(
        self, parts: RealtimeParts, project: str, request: IHttp1Request, first: Identity
    ) -> None:
        """Begin as `first`, the identity of the session without a token.

        Tokens of `project` count; `request` is what has opened the session.
        """
        self._parts = parts
        self._project = project
        self._request = request
        self._first = first
        self.is_overridden = False
        self._become(first)

    def forget(self) -> None:
        """Restore the identity that the session began with."""
        self.is_overridden = False
        self._become(self._first)

    async def sign_in(self, body: dict[str, Any]) -> Json:
        """Become whom the token in a request names; return the data of the answer.

        Raises as `Authenticator.identify`, or `InvalidRequest`; that ends the identity that there
        was before.
        """
        self.forget()
        token = body.get("cred")
        if not isinstance(token, str):
            raise BadToken("The token is malformed: cred must be a string.")
        override = _parse_override(body)
        parts, headers = self._parts, self._request.headers
        if parts.guard is not None:
            parts.guard.check_token(headers, token)
        identity = None
        if parts.accepts_unsigned and override is None and parts.is_local(headers):
            identity = unsigned_identity(token)
        if identity is None:
            identify = parts.authenticator.identify
            identity = await identify(self._project, token, override, DEFAULT_TIMEOUT_S)
        self.is_overridden = override is not None
        self._become(identity)
        return {"auth": identity.auth}

    def _become(self, identity: Identity) -> None:
        self.identity = identity
        self.caller = Caller(identity.auth, identity.is_admin)


def _parse_override(body: dict[str, Any]) -> AuthOverride | None:
    if body.get("noauth") is True:
        return AuthOverride(None)
    if "authvar" not in body:
        return None
    variable = body["authvar"]
    if variable is None:
        return AuthOverride(None)
    if not isinstance(variable, dict) or exceeds_levels(variable, MAX_CLAIM_LEVELS):
        raise InvalidRequest("authvar must be an object.")
    return AuthOverride(variable)


METHODS_AT_END: Final[dict[str, Method]] = {"o": "put", "om": "patch"}


class SessionPresence:
    """The disconnect writes of one session: what it writes when it ends, however it ends.

    `o` sets a value, `om` merges one, `oc` cancels what was set at a path and below. They are kept
    in the store (`database.disconnect`) before they are answered, so they are written after a crash
    of the server too. They keep the identity with which they were set.

    Attributes:
        is_set: whether there may be any.

    """

    __slots__ = ("_owner", "is_set")

    def __init__(self, owner: RealtimeSession) -> None:
        self._owner = owner
        self.is_set = False

    def set(self, request: RealtimeRequest) -> None:
        """Keep a write for the end of the session; raise if it is malformed."""
        owner, body, method = self._owner, request.body, METHODS_AT_END[request.action]
        limits = owner.parts.limits
        value = value_of(body)
        check_nodes(value)
        edit = make_edit(method, target_of(body, method), value, limits.string_bytes)
        self.is_set = True
        now, caller = owner.parts.now_ms(), owner.caller
        write = Write(edit, now, caller, None, owner.parts.clock.seconds() + DEFAULT_TIMEOUT_S)
        limit = limits.disconnect_writes_per_connection
        kept = owner.database.disconnect_writes.set(owner.id, edit, caller, now, limit, owner.end)
        self._answer(request.number, kept, write)

    def cancel(self, request: RealtimeRequest) -> None:
        """Cancel what was set at a path and below; raise if that is malformed."""
        owner = self._owner
        place = place_of(request.body)
        if not self.is_set:
            owner.answer_when_notified(request.number)
            return
        cancelled = owner.database.disconnect_writes.cancel(owner.id, place.path)
        self._answer(request.number, cancelled, None)

    def run(self) -> Deferred[None]:
        """Write what was set: the session has ended."""
        if not self.is_set:
            return succeed(None)
        self.is_set = False
        return self._owner.database.disconnect_writes.run(self._owner.id)

    def _answer(self, number: int, waiting: Deferred[None], write: Write | None) -> None:
        owner = self._owner

        def failed(failure: Failure) -> None:
            if failure.check(TooManyDisconnectWrites) is not None:
                owner.parts.registry.refused["disconnect_writes_per_connection"] += 1
            owner.fail_when_notified(number, failure.value, write)

        waiting.addCallbacks(lambda _: owner.answer_when_notified(number), failed)


def explain_read(database: Database, read: ReadRequest) -> str:
    """Return why a read is denied, as the SDKs print it for developers.

    It says so, too, if the read is allowed by now.
    """
    return _print_verdict(database.explain_read(read), read.caller.auth)


def explain_write(database: Database, write: Write) -> str:
    """Return why a write is denied, as `explain_read` does for a read."""
    return _print_verdict(database.explain_write(write), write.caller.auth)


def _print_verdict(verdict: Verdict, auth: Json) -> str:
    return "\n".join(format_explanation(explanation(verdict, is_admin=False, auth=auth)))


Answered: TypeAlias = Callable[[], None]


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
        """Send the answers up to this one; none if it was sent before."""
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


_WRITING_ACTIONS: Final = frozenset({"p", "m", "o", "om"})

_Awaited: TypeAlias = Coroutine[Any, Any, None] | None
"""What takes a while, and lets the messages after it wait; None if nothing does."""


class SessionActions:
    """Does what the client of one session requests: `_ACTIONS` has a method for each action.

    Attributes:
        listens: what the session listens to.

    """

    __slots__ = ("_owner", "_presence", "_writes", "listens")
    _log = Logger()

    def __init__(self, owner: RealtimeSession) -> None:
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
            self._owner.count(is_write=request.action in _WRITING_ACTIONS)
            act = _ACTIONS.get(request.action)
            if act is None:
                raise messages.UnknownAction(request.action)
            waiting = act(self, request)
            if waiting is not None:
                self._block(request, waiting)
        except Exception as error:
            self._owner.answer(request.number, *status_of(error))

    def _block(self, request: RealtimeRequest, work: Coroutine[Any, Any, None]) -> None:
        """Do work that may wait; the messages after it wait, too."""

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

    def _write(self, request: RealtimeRequest) -> _Awaited:
        """Write, after what was requested before was read."""
        return _after(self.listens.pending, lambda: self._writes.write(request))

    def _listen(self, request: RealtimeRequest) -> _Awaited:
        """Show what the writes before have written, after their answers."""
        return _after(self._writes.pending, lambda: self.listens.listen(request))

    def _unlisten(self, request: RealtimeRequest) -> _Awaited:
        return _after(self._writes.pending, lambda: self.listens.unlisten(request))

    def _get(self, request: RealtimeRequest) -> _Awaited:
        return _after(self._writes.pending, lambda: self.listens.get(request))

    def _sign_in(self, request: RealtimeRequest) -> _Awaited:
        """Become another caller, when all that was requested before was read."""
        signed_in = self._owner.signed_in

        async def sign_in() -> None:
            try:
                data = await signed_in.sign_in(request.body)
            finally:
                await self.listens.rejudge()
            self._owner.answer(request.number, messages.OK, data)

        return _after(self.listens.pending, sign_in)

    def _sign_out(self, request: RealtimeRequest) -> _Awaited:
        """Restore the identity that the session began with."""

        async def sign_out() -> None:
            self._owner.signed_in.forget()
            await self.listens.rejudge()
            self._owner.answer(request.number, messages.OK, {})

        return _after(self.listens.pending, sign_out)

    def _keep(self, request: RealtimeRequest) -> _Awaited:
        return _after(self.listens.pending, lambda: self._presence.set(request))

    def _cancel(self, request: RealtimeRequest) -> None:
        self._presence.cancel(request)


def _after(others: Pending, act: Callable[[], _Awaited]) -> _Awaited:
    """Act when none of the `others` is pending: now, if none is."""
    settled = others.settled()
    if settled is None:
        return act()

    async def act_later() -> None:
        await settled
        waiting = act()
        if waiting is not None:
            await waiting

    return act_later()


_Act: TypeAlias = Callable[[SessionActions, RealtimeRequest], _Awaited]
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


@implementer(IPushProducer)
class RealtimeSession(SessionAnswers):
    """A client that has opened a WebSocket.

    Its parts refer to it. At the end it has forgotten its actions, and the others have forgotten
    it, so that it is freed without a collection of garbage, when no work goes on for it any more.

    Attributes:
        id: a random id, by which the client names the session when it connects again.
        parts: the parts of the service.
        database: the database that it has addressed.
        request: the request that has opened the WebSocket.
        address: that of the client.
        account: what is charged for what it makes the server hold.
        inbox, outbox: what it has sent, and what it is sent.
        is_over: whether the connection is gone.
        signed_in: who it is.
        ended: fires when the connection is gone and what the client has left is written.

    """

    _log = Logger()

    def __init__(
        self,
        parts: RealtimeParts,
        session_id: str,
        database: Database,
        request: IHttp1Request,
        address: str,
        identity: Identity,
    ) -> None:
        """Prepare; `start` begins. The database is open, and is released at the end."""
        super().__init__(database)
        self.id: Final = session_id
        self.parts = parts
        self.request = request
        self.address = address
        self.account = parts.reads.held.account(address)
        self._body = HeldBody(parts.reads.held, parts.limits, address)
        self.outbox: Outbox
        self._socket: RealtimeSocket
        self._connection: UpgradedConnection
        self.signed_in = SessionCaller(parts, self.project, request, identity)
        self._actions: SessionActions
        self.inbox: Inbox
        self._paused_at: float | None = None
        self._refused: WaitingBytesRefused | None = None
        self._counted_bytes = 0
        self.ended: Final[Deferred[None]] = Deferred()

    # What others need to know.

    @property
    def name(self) -> DatabaseName:
        """The database that it has addressed."""
        return self.database.name

    @property
    def project(self) -> str:
        """The project whose tokens count."""
        return self.name.project

    @property
    def identity(self) -> Identity:
        """Who it is now."""
        return self.signed_in.identity

    @property
    def may_explain(self) -> bool:
        """Whether its client is sent why the rules deny."""
        return self.parts.explains_denials or self.signed_in.is_overridden

    def find_behind(self) -> SharedWindow | None:
        """Return the window of a query that still has to catch up with what was committed."""
        return None if self.is_over else self._actions.listens.find_behind()

    @property
    def caller(self) -> Caller:
        """Who the rules see now; another object after each change."""
        return self.signed_in.caller

    # The beginning and the end.

    def start(self, connection: UpgradedConnection, hello: bytes) -> None:
        """Begin on a connection that was upgraded, with the first message."""
        parts = self.parts
        self._connection = connection
        own = self, parts.slices
        self.outbox = Outbox(connection, parts.buffer_bytes, *own, self.address)
        self._socket = RealtimeSocket(
            connection,
            self.outbox,
            self,
            parts.limits,
            parts.clock,
            parts.slices,
            self._note_held,
        )
        self._actions = SessionActions(self)
        self.inbox = Inbox(connection, parts.slices, self._receive_one, self._note_held)
        self.request.registerProducer(self, True)
        self.send(hello)
        if connection.unread:
            unread, connection.unread = connection.unread, b""
            self._socket.receive(unread)

    def received(self, data: bytes) -> None:
        """Receive what the client has sent."""
        try:
            self._socket.receive(data)
        except Exception:
            self.fail()

    def end(self) -> None:
        """Close the WebSocket: the server stops."""
        self._socket.close(CloseCode.GOING_AWAY)

    def close(self) -> Deferred[None]:
        """Close the WebSocket, if that is not done; fires when what it has left is written."""
        self._socket.close(CloseCode.NORMAL_CLOSURE)
        closed: Deferred[None] = Deferred()
        self.ended.addCallback(lambda _: closed.callback(None))
        return closed

    def fail(self) -> None:
        """End after the exception that is being handled."""
        self._log.failure("A session of the real-time protocol failed.")
        self._socket.close(CloseCode.INTERNAL_ERROR)

    def connection_ended(self) -> None:
        """Write what the client has left: the connection is gone."""
        if self.is_over:
            return
        self.is_over = True
        self.inbox.close()
        self.outbox.close()
        self._socket.release()
        self.drop_answers()
        ended = self._actions.end()
        del self._actions
        self.account.close()
        self._body.release()
        self.parts.registry.remove(self)
        self._count_bytes()
        ended.addBoth(self._release)

    def _release(self, result: object) -> None:
        if isinstance(result, Failure):
            self._log.failure("The listens of a session could not be ended.", result)
        self.parts.release(self.database)
        self.ended.callback(None)

    # The transport.

    def pauseProducing(self) -> None:
        """Stop writing until the client has read what was sent."""
        self.outbox.is_paused = True
        self._paused_at = self.parts.clock.seconds()

    def resumeProducing(self) -> None:
        """Write what waits."""
        self.outbox.is_paused = False
        self._paused_at = None
        self.outbox.resume()

    def stopProducing(self) -> None:
        """Stop writing: the connection is gone."""
        self.outbox.close()

    # From the registry.

    def tick(self, now: float, wall_now: float) -> None:
        """Do what is due: in seconds of the clock, and since 1970."""
        registry, limits = self.parts.registry, self.parts.limits
        silence = now - self._socket.last_received
        held_s = limits.body_s + self._socket.held_bytes / limits.body_bytes_per_s
        if (self._paused_at is not None and now - self._paused_at >= registry.stalled_s) or (
            self.inbox.may_read
            and not self._socket.is_held
            and silence >= 2 * registry.keep_alive_s
        ):
            self.refused("keep_alive_s" if self._paused_at is None else "stalled_s")
            self._socket.abort()
        elif self._socket.message_age > held_s:
            self.refused("body_s")
            self._socket.close(CloseCode.POLICY_VIOLATION, "the message took too long")
        else:
            if silence >= registry.keep_alive_s:
                self._socket.ping()
            self._check_expiry(wall_now)
            self._count_bytes()
            if self._socket.is_held:
                self._socket.go_on()
            if self._refused is not None and self._refused.has_room(self.address):
                self._refused = None
                self.outbox.retry()

    def lose_identity(self) -> None:
        """End the identity: its token is not trusted any more."""
        self._end_identity("invalid_token", "The token is not trusted any more.")

    def may_receive(self) -> bool:
        """Return whether the session goes on; a token that has expired ends its identity first."""
        if self.is_over:
            return False
        if self.identity.expires_at is not None:
            self._check_expiry(self.parts.now_ms() / 1000)
        return True

    def _check_expiry(self, wall_now: float) -> None:
        expires_at = self.identity.expires_at
        if expires_at is not None and expires_at <= wall_now:
            self._end_identity(*EXPIRED)

    def _end_identity(self, status: str, text: str) -> None:
        self.signed_in.forget()
        self.send(messages.print_push("ac", {"s": status, "d": text}))
        self._actions.listens.rejudge().addErrback(self._not_judged)

    def _not_judged(self, failure: Failure) -> None:
        self._log.failure("The listens of a session could not be judged again.", failure)

    def _count_bytes(self) -> None:
        rates = self.parts.rates
        if rates is None or not rates.counts_bytes:
            return
        total: int = self._connection.sentLength + self._socket.received
        count, self._counted_bytes = total - self._counted_bytes, total
        if count:
            rates.note_bytes(self.address, self.project, uid_of(self.identity), count)

    def _note_held(self, grown: int) -> bool:
        """Count bytes of messages that arrive or wait; return whether that is too much."""
        body = self._body
        if self.is_over:
            return False  # it was released
        return not body.count(body.held + grown) and grown > 0

    # From the outbox.

    def set_reading(self, is_reading: bool) -> None:
        """Read what the client sends, or leave it unread."""
        self.inbox.may_read = is_reading
        self.inbox.bound_reading()

    def postponed(self, error: WaitingBytesRefused) -> None:
        """Go on when there is room for what is to be sent next."""
        self._refused = error.with_traceback(None)

    def overflowed(self) -> None:
        """Note that events were dropped."""
        self.parts.registry.overflowed += 1

    # Messages.

    def refused(self, limit: str) -> None:
        """Note what a limit has refused, by its setting."""
        self.parts.registry.refused[limit] += 1

    def count(self, *, is_write: bool) -> None:
        """Count a request for all who send it; raise `TooManyRequests`."""
        rates = self.parts.rates
        if rates is not None:
            rates.take_address(self.request)
            rates.take_project(self.request, self.project, is_write=is_write)
            rates.take_user(self.project, self.identity, is_write=is_write)

    def count_frame(self) -> None:
        """Count a frame, or a message, that is not a request; beyond a rate read on a little later.

        There is no answer that could refuse it, and closing the socket would make a client connect
        again, which costs more.
        """
        try:
            self.count(is_write=False)
        except TooManyRequests:
            self._socket.hold()

    def receive(self, message: Message) -> None:
        """Handle a message, now or after those before it."""
        self.parts.registry.messages_in += 1
        self.inbox.add(message)

    def set_parsing(self, is_parsing: bool) -> None:
        """Leave the client unread while what it has sent is parsed."""
        self.inbox.is_parsing = is_parsing
        self.inbox.bound_reading()

    def _receive_one(self, message: Message) -> None:
        if not self.may_receive():
            return
        try:
            self._actions.handle(message)
        except NotAnEnvelope:
            self._socket.close(CloseCode.POLICY_VIOLATION, "not a message of the protocol")
        except UnknownLongMessage:
            self._socket.close(CloseCode.MESSAGE_TOO_BIG, "the message is too long")
        except Exception:
            self.fail()

    # What is sent.

    def send(self, message: bytes) -> None:
        """Send a message that is never dropped."""
        if not self.is_over:
            self.parts.registry.messages_out += 1
            self.outbox.send_answer(frame_message(message))

    def drop(self, listen: Listen) -> None:
        """Forget a listen that has ended."""
        if not self.is_over:
            self._actions.listens.forget(listen)
