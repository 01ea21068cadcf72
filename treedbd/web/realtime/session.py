"""One session of the real-time protocol: a client, its WebSocket, and what it may see and do.

Theory of operation. Messages are handled in the order in which they came (`inbox`). What the client
is sent has one order too (`outbox`): events of a commit, then the answers to writes in it.
When the connection ends, for whatever reason, what the client has left for that is written
(`presence`); the database stays open until then.
"""

from __future__ import annotations

from typing import Final

from twisted.internet.defer import Deferred
from twisted.internet.interfaces import IPushProducer
from twisted.logger import Logger
from twisted.python.failure import Failure
from websockets.frames import CloseCode
from zope.interface import implementer

from treedbd.database.database import Database
from treedbd.database.requests import Caller
from treedbd.database.shared_window import SharedWindow
from treedbd.http1.connection import HeldBody
from treedbd.http1.content import WaitingBytesRefused
from treedbd.http1.interface import IHttp1Request
from treedbd.http1.writer import UpgradedConnection
from treedbd.names import DatabaseName
from treedbd.web.auth.identity import Identity, uid_of
from treedbd.web.rates import TooManyRequests
from treedbd.web.realtime import messages
from treedbd.web.realtime.actions import SessionActions, UnknownLongMessage
from treedbd.web.realtime.answers import SessionAnswers
from treedbd.web.realtime.callers import SessionCaller
from treedbd.web.realtime.inbox import Inbox
from treedbd.web.realtime.listens import Listen
from treedbd.web.realtime.messages import EXPIRED, NotAnEnvelope
from treedbd.web.realtime.service import RealtimeParts
from treedbd.web.realtime.socket import Outbox, RealtimeSocket
from treedbd.web.realtime.wire import Message, frame_message


@implementer(IPushProducer)
class RealtimeSession(SessionAnswers):
    """A client that has opened a WebSocket.

    Its parts refer to it. At the end it has forgotten its actions, and the others have forgotten
    it, so that it is freed without a collection of garbage, when no work goes on for it any more.

    Attributes:
        id: a random id, by which the client names the session when it comes back.
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
        """Write no more until the client has read what was sent."""
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
        """Be nobody from now on: the token is not trusted any more."""
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
        """Count a frame, or a message, that is no request; beyond a rate read on a little later.

        There is no answer that could refuse it, and closing the socket would make a client connect
        again, which costs more.
        """
        try:
            self.count(is_write=False)
        except TooManyRequests:
            self._socket.hold()

    def receive(self, message: Message) -> None:
        """Handle a message, now or in its turn."""
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
