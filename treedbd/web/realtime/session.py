"""One session of the real-time protocol: a client, its WebSocket, and what it may read and write.

Theory of operation. Messages are handled in the order in which they arrived (`Inbox`). The identity
of the client is here, its listens are in `listens`, its writes, also those at its end, in `writes`.
Messages to the client have one order too (`Outbox`): events of a commit, then the answers to the
writes in it. When the connection ends, for whatever reason, the writes that the client has set for
that are done; the database stays open until then.

A write is answered after its own events, and before those of the next write: an SDK shows what it
has written until then, and then decides by the content of its query at that moment whether the
write was kept. So an answer waits until the watchers were notified of everything that is durable,
or until a listen of the session is about to send a later event.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Callable, Coroutine, Iterable, Iterator
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import attrs
from twisted.internet.defer import Deferred
from twisted.internet.interfaces import IPushProducer
from twisted.logger import Logger
from twisted.python.failure import Failure
from websockets.frames import CloseCode
from zope.interface import implementer

from treedbd.database.catalog import Catalog
from treedbd.database.database import Database
from treedbd.database.requests import Caller, PermissionDenied, Write
from treedbd.database.rights import ReadRequest
from treedbd.database.watched_queries import SharedWindow
from treedbd.database.watchers import Notification
from treedbd.http1.content import WaitingBytesRefused
from treedbd.http1.parser import Headers
from treedbd.http1.registry import HeldBody
from treedbd.http1.request import IHttp1Request
from treedbd.http1.senders import UpgradedConnection
from treedbd.limits import DEFAULT_TIMEOUT_S, MAX_CLAIM_LEVELS
from treedbd.loop import do_nothing
from treedbd.names import DatabaseName
from treedbd.rules.evaluate import Verdict, explanation
from treedbd.rules.ruleset import format_explanation
from treedbd.tree.path import format_path
from treedbd.tree.types import Json
from treedbd.web.auth.identity import AuthOverride, Identity, ReadOnlyToken
from treedbd.web.auth.jwt import BadToken, exceeds_levels
from treedbd.web.auth.verifier import unsigned_identity
from treedbd.web.listeners import SocketRegistry
from treedbd.web.rates import TooManyRequests
from treedbd.web.realtime import messages
from treedbd.web.realtime.listens import Get, KnownHashes, Listen, SessionListens
from treedbd.web.realtime.messages import (
    EXPIRED,
    OK,
    TOO_BIG,
    InvalidRequest,
    LongWrite,
    NotAnEnvelope,
    Ping,
    RealtimeRequest,
    as_long_write,
    find_long_write,
    status_of,
)
from treedbd.web.realtime.socket import Inbox, Outbox, Pending, RealtimeSocket
from treedbd.web.realtime.wire import (
    END_BYTES,
    WHOLE_BYTES,
    LongMessage,
    Message,
    OversizedMessage,
    frame_message,
)
from treedbd.web.realtime.writes import METHODS, SessionWrites, is_long

if TYPE_CHECKING:
    from treedbd.web.resource import DataHandlers


class UnknownLongMessage(Exception):
    """The message is too long to be parsed, and its form does not show its request."""


class RealtimeContext:
    """What the sessions of one service share.

    Attributes:
        registry: the open WebSockets.
        hashes: the hashes of values that clients listen to.
        guard: refuses pages of other sites; None if nothing does.
        rates: bounds what callers do; None if nothing does.
        audit: records who writes; None if nothing does.
        now_ms: returns the time in milliseconds since 1970.
        explains_denials: whether every client is sent the reason of a denial, and not only an admin
            who overrides `auth`.
        accepts_unsigned: whether tokens without a signature are valid, as in emulator mode.

    """

    def __init__(self, data: DataHandlers, catalog: Catalog) -> None:
        """Open databases by `catalog`."""
        web = data.context
        settings = web.settings
        self.catalog: Final = catalog
        self.limits: Final = settings.limits
        self.buffer_bytes: Final = settings.streams.buffer_bytes
        self.registry: Final = SocketRegistry(web)
        self.registry.listen_kinds = Listen, Get
        self.hashes: Final = KnownHashes()
        self.authenticator: Final = web.authenticator
        self.guard: Final = web.guard
        self.rates: Final = web.rates
        self.audit: Final = web.audit
        self.reads: Final = web.reads
        self.slices: Final = web.reads.slices
        self.gate: Final = data.gate
        self.missing_indexes: Final = data.missing_indexes
        self.clock: Final = web.clock
        self.now_ms: Final = data.now_ms
        self.explains_denials: Final = settings.development
        self.accepts_unsigned: Final = settings.is_local and settings.admin_token is None

    def is_local(self, headers: Headers) -> bool:
        """Return whether a program or a page of this machine has sent a request."""
        return self.guard is None or self.guard.is_local(headers)


def _parse_override(body: dict[str, Any]) -> AuthOverride | None:
    """Return the `auth` that replaces an admin's own in the session: `authvar` or `noauth`."""
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


def explain_read(database: Database, read: ReadRequest) -> str:
    """Return why a read is denied, in the form in which the SDKs print it for developers.

    If the read is allowed by now, the text says so.
    """
    return _print_verdict(database.explain_read(read), read.caller.auth)


def explain_write(database: Database, write: Write) -> str:
    """Return why a write is denied, as `explain_read` does for a read."""
    return _print_verdict(database.explain_write(write), write.caller.auth)


def _print_verdict(verdict: Verdict, auth: Json) -> str:
    return "\n".join(format_explanation(explanation(verdict, is_admin=False, auth=auth)))


@attrs.define(eq=False)
class _WaitingAnswer:
    """An answer that waits; `sequence` is the number of the write that it answers, if committed."""

    send: Callable[[], None]
    sequence: int | None
    is_sent: bool = False


_SDK: Final = re.compile(r"[A-Za-z0-9_.-]{1,60}")
_WRITING_ACTIONS: Final = {
    "p": ("PUT", "socket"),
    "m": ("PATCH", "socket"),
    "o": ("PUT", "end"),
    "om": ("PATCH", "end"),
}
"""The method of each, and the means, as the audit names them."""

_Awaited: TypeAlias = Coroutine[Any, Any, None] | None
"""Work that delays the messages after it; None if it is done."""


@implementer(IPushProducer)
class RealtimeSession:
    """A client that has opened a WebSocket.

    Its parts refer to it. At the end it drops its listens and writes, and the other parts drop it,
    so that it is freed without garbage collection when all its work is done.

    Attributes:
        id: a random id, by which the client names the session when it connects again.
        context: what the sessions share.
        database, name: the addressed database; its name.
        request: the request that has opened the WebSocket.
        address: that of the client.
        account: the account for the memory that the session uses.
        inbox, outbox: messages from the client, and messages to it.
        identity: its identity at present.
        caller: the identity as the rules see it; another object after each change.
        can_expire: whether the identity ends with time.
        is_over: whether the connection has ended.
        sdk: the SDK that the client says it uses; empty if it does not.
        ended: fires when the connection has ended and the writes that the client set for its end
            are done.

    """

    _log = Logger()

    def __init__(
        self,
        context: RealtimeContext,
        session_id: str,
        database: Database,
        request: IHttp1Request,
        address: str,
        identity: Identity,
    ) -> None:
        """Prepare; `start` begins. The database is open, and is released at the end."""
        self.id: Final = session_id
        self.context = context
        self.database = database
        self.name: DatabaseName = database.name
        self.request = request
        self.address = address
        self.account = context.reads.held.account(address)
        self.is_over = False
        self.sdk = ""
        self.ended: Final[Deferred[None]] = Deferred()
        self.inbox: Inbox
        self.outbox: Outbox
        self._listens: SessionListens
        self._writes: SessionWrites
        self._answers: Final[deque[_WaitingAnswer]] = deque()
        self._body = HeldBody(context.reads.held, context.limits, address)
        self._socket: RealtimeSocket
        self._paused_at: float | None = None
        self._refused: WaitingBytesRefused | None = None
        self._counted_bytes = 0
        self._first_identity = identity
        self._become(identity)

    # The beginning and the end.

    def start(self, connection: UpgradedConnection, hello: bytes) -> None:
        """Begin on a connection that was upgraded, with the first message."""
        context = self.context
        self._listens = SessionListens(self)
        self._writes = SessionWrites(self)
        self.outbox = Outbox(
            connection=connection,
            limit=context.buffer_bytes,
            session=self,
            slices=context.slices,
            address=self.address,
        )
        self._socket = RealtimeSocket(
            connection=connection,
            outbox=self.outbox,
            session=self,
            limits=context.limits,
            clock=context.clock,
            slices=context.slices,
            note_held=self._note_held,
        )
        self.inbox = Inbox(connection, context.slices, self._receive_one, self._note_held)
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

    def revoke(self) -> None:
        """Close the WebSocket: its database is deleted."""
        self._socket.close(CloseCode.GOING_AWAY)

    def close(self) -> Deferred[None]:
        """Close the WebSocket, if it is open; fires with `ended`."""
        self._socket.close(CloseCode.NORMAL_CLOSURE)
        closed: Deferred[None] = Deferred()
        self.ended.addCallback(lambda _: closed.callback(None))
        return closed

    def fail(self) -> None:
        """End after the exception that is being handled."""
        self._log.failure("A session of the real-time protocol failed.")
        self._socket.close(CloseCode.INTERNAL_ERROR)

    def connection_ended(self) -> None:
        """End the listens, and do the writes that the client has set for its end.

        Requests that wait for others do nothing. A write that has begun goes on.
        """
        if self.is_over:
            return
        self.is_over = True
        self.inbox.close()
        self.outbox.close()
        self._socket.release()
        self._answers.clear()
        self._listens.pending.give_up()
        self._writes.pending.give_up()
        closed = self._listens.close()
        written = self._writes.write_at_end().addErrback(self._not_written_at_end)
        del self._listens, self._writes
        self.account.close()
        self._body.release()
        self.context.registry.remove(self)
        self._count_bytes()
        written.addCallback(lambda _: closed).addBoth(self._release)

    def _not_written_at_end(self, failure: Failure) -> None:
        self._log.failure("What a session has left could not be written.", failure)

    def _release(self, result: object) -> None:
        if isinstance(result, Failure):
            self._log.failure("The listens of a session could not be ended.", result)
        self.context.catalog.release(self.database)
        self.ended.callback(None)

    # The transport.

    def pauseProducing(self) -> None:
        """Stop writing until the client has read what was sent."""
        self.outbox.is_paused = True
        self._paused_at = self.context.clock.seconds()

    def resumeProducing(self) -> None:
        """Write what waits."""
        self.outbox.is_paused = False
        self._paused_at = None
        self.outbox.resume()

    def stopProducing(self) -> None:
        """Stop writing: the connection is gone."""
        self.outbox.close()

    # What is due with the time.

    def tick(self, now: float, wall_now: float) -> None:
        """Do what is due at `now` by the clock, and at `wall_now` in seconds since 1970."""
        registry, limits = self.context.registry, self.context.limits
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

    def _count_bytes(self) -> None:
        rates = self.context.rates
        if rates is None or not rates.counts_bytes:
            return
        total = self.outbox.sent_bytes + self._socket.received
        count, self._counted_bytes = total - self._counted_bytes, total
        if count:
            rates.note_bytes(self.address, self.name.project, self.identity.uid, count)

    # The identity.

    def lose_identity(self) -> None:
        """End the identity: its token is no longer trusted."""
        self._end_identity("invalid_token", "The token is not trusted any more.")

    def may_receive(self) -> bool:
        """Return whether the session goes on; first end the identity of an expired token."""
        if self.is_over:
            return False
        if self.can_expire:
            self._check_expiry(self.context.now_ms() / 1000)
        return True

    def _check_expiry(self, wall_now: float) -> None:
        expires_at = self.identity.expires_at
        if expires_at is not None and expires_at <= wall_now:
            self._end_identity(*EXPIRED)

    def _end_identity(self, status: str, text: str) -> None:
        self._become(self._first_identity)
        self.send(messages.print_push("ac", {"s": status, "d": text}))
        self._listens.rejudge().addErrback(self._not_judged)

    def _not_judged(self, failure: Failure) -> None:
        self._log.failure("The listens of a session could not be judged again.", failure)

    def _become(self, identity: Identity) -> None:
        self.identity = identity
        audit = self.context.audit
        origin = None if audit is None else audit.origin(self.request, identity, "socket")
        self.caller = Caller(identity.auth, identity.is_admin, origin)
        self.can_expire = identity.expires_at is not None

    async def _identify(self, body: dict[str, Any]) -> None:
        """Become the identity that the token of a request proves.

        Raises as `Authenticator.identify`, or `InvalidRequest`; the session then has the identity
        that it began with.
        """
        self._become(self._first_identity)
        token = body.get("cred")
        if not isinstance(token, str):
            raise BadToken("The token is malformed: cred must be a string.")
        override = _parse_override(body)
        context, headers = self.context, self.request.headers
        if context.guard is not None:
            context.guard.check_token(headers, token)
        identity = None
        if context.accepts_unsigned and override is None and context.is_local(headers):
            identity = unsigned_identity(token)
        if identity is None:
            identity = await context.authenticator.identify(
                self.name.project, token, override, DEFAULT_TIMEOUT_S
            )
        self._become(identity)

    # What the outbox and the socket report.

    def set_reading(self, is_reading: bool) -> None:
        """Read from the client, or leave it unread because too many answers wait."""
        self.inbox.may_read = is_reading
        self.inbox.bound_reading()

    def postponed(self, error: WaitingBytesRefused) -> None:
        """Call `Outbox.retry` when there is room for what is to be sent next."""
        self._refused = error.with_traceback(None)

    def overflowed(self) -> None:
        """Count that events were dropped."""
        self.context.registry.overflowed += 1

    def refused(self, limit: str) -> None:
        """Count a refusal; `limit` is the setting of the limit."""
        self.context.registry.refused[limit] += 1

    def receive(self, message: Message) -> None:
        """Handle a message, now or after those before it."""
        self.context.registry.messages_in += 1
        self.inbox.add(message)

    def set_parsing(self, is_parsing: bool) -> None:
        """Leave the client unread while its bytes are parsed."""
        self.inbox.is_parsing = is_parsing
        self.inbox.bound_reading()

    def count_frame(self) -> None:
        """Count a frame, or a message, that is not a request.

        Beyond a rate the socket is read later: no answer could refuse the frame, and closing the
        socket would make the client connect again, which costs more.
        """
        try:
            self._count(is_write=False)
        except TooManyRequests:
            self._socket.hold()

    def _count(self, *, is_write: bool) -> None:
        """Count a request for address, project and user; raise `TooManyRequests`.

        Raises `ReadOnlyToken` for a write of an admin who may only read.
        """
        if is_write and self.identity.is_read_only:
            raise ReadOnlyToken
        rates = self.context.rates
        if rates is not None:
            rates.take_address(self.request)
            rates.take_project(self.request, self.name.project, is_write=is_write)
            rates.take_user(self.name.project, self.identity, is_write=is_write)

    def _note_held(self, grown: int) -> bool:
        """Count bytes of messages that arrive or wait; return whether they are too many."""
        body = self._body
        if self.is_over:
            return False  # it was released
        return not body.count(body.held + grown) and grown > 0

    # Requests.

    def _receive_one(self, message: Message) -> None:
        if not self.may_receive():
            return
        try:
            self._handle(message)
        except NotAnEnvelope:
            self._socket.close(CloseCode.POLICY_VIOLATION, "not a message of the protocol")
        except UnknownLongMessage:
            self._socket.close(CloseCode.MESSAGE_TOO_BIG, "the message is too long")
        except Exception:
            self.fail()

    def _handle(self, message: Message) -> None:
        """Do what a message requests; raise `NotAnEnvelope` or `UnknownLongMessage`."""
        if isinstance(message, OversizedMessage):
            self._refuse(message, self.context.limits.write_body_bytes)
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
        self.count_frame()
        if isinstance(parsed, Ping):
            self.send(messages.PONG)

    def _act(self, request: RealtimeRequest) -> None:
        try:
            self._count(is_write=request.action in _WRITING_ACTIONS)
            act = _ACTIONS.get(request.action)
            if act is None:
                raise messages.UnknownAction(request.action)
            waiting = act(self, request)
            if waiting is not None:
                self._block(request, waiting)
        except Exception as error:
            self._answer_failed(request, error)

    def _block(self, request: RealtimeRequest, work: Coroutine[Any, Any, None]) -> None:
        """Do work that may wait; the messages after it wait, too."""

        async def run() -> None:
            try:
                await work
            except Exception as error:
                self._answer_failed(request, error)

        self.inbox.block(run())

    def _answer_failed(self, request: RealtimeRequest, error: Exception) -> None:
        self._note_denial(error)
        if request.action in _WRITING_ACTIONS:
            self._audit_denial(request.body.get("p"), *_WRITING_ACTIONS[request.action], error)
        self.answer(request.number, *status_of(error))

    async def _write_long(self, long: LongWrite) -> None:
        self._count(is_write=True)
        read = self._listens.pending.when_none()
        if read is not None:
            await read
        await self._writes.write_long(long)

    def _refuse(self, message: OversizedMessage, most: int) -> None:
        """Answer a request that is too long with `too_big`; raise `UnknownLongMessage`."""
        self.refused("write_body_bytes")
        number = messages.find_number(message)
        if number is None:
            raise UnknownLongMessage
        try:
            self._count(is_write=False)
        except TooManyRequests as error:
            self.answer(number, *status_of(error))
        else:
            self.answer(number, TOO_BIG, f"This request may have at most {most} bytes.")

    def _acknowledge(self, request: RealtimeRequest) -> None:
        self.acknowledge(request.number)

    def _note_client(self, request: RealtimeRequest) -> None:
        """Note which SDK the client is, which is the first counter that it sends."""
        counters = request.body.get("c")
        name = next(iter(counters), "") if isinstance(counters, dict) else ""
        if _SDK.fullmatch(name):
            self.sdk = name
        self.acknowledge(request.number)

    def _write(self, request: RealtimeRequest) -> _Awaited:
        """Write, after everything requested before was read."""
        return _after(self._listens.pending, lambda: self._writes.write(request))

    def _listen(self, request: RealtimeRequest) -> _Awaited:
        """Listen, after the answers to all writes before; the value shows these."""
        self._audit_read(request)
        return _after(self._writes.pending, lambda: self._listens.listen(request))

    def _unlisten(self, request: RealtimeRequest) -> _Awaited:
        return _after(self._writes.pending, lambda: self._listens.unlisten(request))

    def _audit_read(self, request: RealtimeRequest) -> None:
        audit, path = self.context.audit, request.body.get("p")
        if audit is not None and audit.reads and isinstance(path, str):
            audit.read_by_message(self.request, self.name, self.identity, path)

    def _audit_denial(
        self, path: object, method: str, means: str, error: BaseException | None
    ) -> None:
        audit = self.context.audit
        if audit is not None and isinstance(path, str):
            audit.denied_by_message(
                self.request, self.name, self.identity, path, method, means, error
            )

    def _get(self, request: RealtimeRequest) -> _Awaited:
        self._audit_read(request)
        return _after(self._writes.pending, lambda: self._listens.get(request))

    def _sign_in(self, request: RealtimeRequest) -> _Awaited:
        """Become another caller, when everything requested before was read."""

        async def sign_in() -> None:
            try:
                await self._identify(request.body)
                data: Json = {"auth": self.identity.auth}
            finally:
                if not self.is_over:
                    await self._listens.rejudge()
            self.answer(request.number, OK, data)

        return _after(self._listens.pending, sign_in)

    def _sign_out(self, request: RealtimeRequest) -> _Awaited:
        """Restore the identity that the session began with."""

        async def sign_out() -> None:
            self._become(self._first_identity)
            await self._listens.rejudge()
            self.answer(request.number, OK, {})

        return _after(self._listens.pending, sign_out)

    def _set_at_end(self, request: RealtimeRequest) -> _Awaited:
        return _after(self._listens.pending, lambda: self._writes.set_at_end(request))

    def _cancel_at_end(self, request: RealtimeRequest) -> None:
        self._writes.cancel_at_end(request)

    # Answers.

    def send(self, message: bytes) -> None:
        """Send a message that is never dropped."""
        if not self.is_over:
            self.context.registry.messages_out += 1
            self.outbox.send_answer(frame_message(message))

    def answer(self, number: int, status: str, data: Json) -> None:
        """Answer a request."""
        self.send(messages.print_answer(number, status, data))

    def acknowledge(self, number: int) -> None:
        """Answer a request that has succeeded, and returns nothing."""
        self.send(messages.ACKNOWLEDGEMENT % number)

    def answer_when_notified(
        self, number: int, sequence: int | None = None, answered: Callable[[], None] = do_nothing
    ) -> None:
        """Answer a request with `ok`, after the events of everything that is durable by now.

        The answer to the write with the number `sequence` comes before events of later ones. Then
        `answered` is called, unless the connection has ended.
        """

        def answer() -> None:
            self.acknowledge(number)
            answered()

        self._send_when_notified(answer, sequence)

    def fail_when_notified(
        self,
        number: int,
        error: BaseException | None,
        write: Write | None,
        answered: Callable[[], None] = do_nothing,
        *,
        is_at_end: bool = False,
    ) -> None:
        """Answer a request with an error, after the events of everything that is durable by now.

        `write` is the write that the rules may have denied, perhaps one for the end of the session.
        Then `answered` is called as above.
        """
        database = self.database
        if write is not None:
            means = "end" if is_at_end else "socket"
            path, method = format_path(write.edit.place.path), write.edit.method.upper()
            self._audit_denial(path, method, means, error)

        def answer() -> None:
            if write is not None:
                self._explain_denial(error, lambda: explain_write(database, write))
            self.answer(number, *status_of(error))
            answered()

        self._send_when_notified(answer, None)

    def answer_error(self, number: int, error: BaseException | None, read: ReadRequest) -> None:
        """Answer a listen or a get with an error; `read` is the read that failed."""
        self._explain_denial(error, lambda: explain_read(self.database, read))
        self.answer(number, *status_of(error))

    @property
    def listen_count(self) -> int:
        """How many listens it has."""
        return 0 if self.is_over else len(self._listens)

    @property
    def listens(self) -> Iterable[Listen]:
        """The listens that it has."""
        return () if self.is_over else self._listens

    @property
    def writes_at_end(self) -> bool:
        """Whether the client has set writes for its end."""
        return not self.is_over and self._writes.may_write_at_end

    def in_order(self, notification: Notification) -> Iterable[Notification]:
        """Return a notification in parts; before each, send the answers that precede it."""
        return self._in_parts(notification) if self._answers else (notification,)

    def _in_parts(self, notification: Notification) -> Iterator[Notification]:
        events, begun = notification.events, 0
        for at, (position, _) in enumerate(events):
            last = self._last_before(position.sequence)
            if last is not None:
                if at > begun:
                    yield Notification(events[begun:at])
                begun = at
                self._send_through(last)
        yield notification if begun == 0 else Notification(events[begun:])

    def drop(self, listen: Listen) -> None:
        """Remove a listen that has ended."""
        if not self.is_over:
            self._listens.forget(listen)

    def _find_behind(self) -> SharedWindow | None:
        """Return the window of a query that has not caught up with the last commit."""
        return None if self.is_over else self._listens.find_behind()

    def _send_when_notified(self, send: Callable[[], None], sequence: int | None) -> None:
        if not self.is_over:
            waiting = _WaitingAnswer(send, sequence)
            self._answers.append(waiting)
            self.database.watching.call_when_notified(
                self, lambda: self._send_through(waiting), self._find_behind
            )

    def _last_before(self, sequence: int) -> _WaitingAnswer | None:
        """Return the last answer to a write before another one, if all its events were sent."""
        found = None
        for waiting in self._answers:
            if waiting.sequence is not None:
                if waiting.sequence >= sequence:
                    break
                found = waiting
        return None if found is None or self._find_behind() is not None else found

    def _send_through(self, last: _WaitingAnswer) -> None:
        """Send the answers up to this one, unless it was sent before."""
        if not last.is_sent and not self.is_over and self._answers[0] is not last:
            self.outbox.gather(lambda: self._send_each_through(last))
        else:
            self._send_each_through(last)

    def _send_each_through(self, last: _WaitingAnswer) -> None:
        while not (last.is_sent or self.is_over):
            first = self._answers.popleft()
            first.is_sent = True
            first.send()

    def _note_denial(self, error: BaseException | None) -> None:
        if isinstance(error, PermissionDenied):
            for note in self.context.registry.denied:
                note(self.name)

    def _explain_denial(self, error: BaseException | None, explain: Callable[[], str]) -> None:
        """Send the reason of a denial, if the client may know it."""
        self._note_denial(error)
        may_explain = self.context.explains_denials or self.identity.admin is not None
        if not isinstance(error, PermissionDenied) or not may_explain:
            return
        try:
            text = explain()
        except Exception:
            self._log.failure("A denial could not be explained.")
            return
        self.send(messages.print_push("sd", {"msg": text}))


def _after(others: Pending, act: Callable[[], _Awaited]) -> _Awaited:
    """Act when none of the `others` is pending, now if none is."""
    waiting_for = others.when_none()
    if waiting_for is None:
        return act()

    async def act_later() -> None:
        await waiting_for
        waiting = act()
        if waiting is not None:
            await waiting

    return act_later()


_Act: TypeAlias = Callable[[RealtimeSession, RealtimeRequest], _Awaited]
_ACTIONS: Final[dict[str, _Act]] = {
    "q": RealtimeSession._listen,
    "n": RealtimeSession._unlisten,
    "g": RealtimeSession._get,
    "p": RealtimeSession._write,
    "m": RealtimeSession._write,
    "o": RealtimeSession._set_at_end,
    "om": RealtimeSession._set_at_end,
    "oc": RealtimeSession._cancel_at_end,
    "auth": RealtimeSession._sign_in,
    "gauth": RealtimeSession._sign_in,
    "unauth": RealtimeSession._sign_out,
    "s": RealtimeSession._note_client,
    "appcheck": RealtimeSession._acknowledge,
    "unappcheck": RealtimeSession._acknowledge,
    "unappeck": RealtimeSession._acknowledge,
}
