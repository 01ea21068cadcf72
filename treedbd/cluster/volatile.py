"""Volatile nodes over several daemons: changes and states, in the order of PostgreSQL.

Theory of operation. PostgreSQL passes notifications on to all who listen, the sender included, in
one order (`store.postgresql.cluster.VolatileChannel`). That is the order of all that the exchange
of a database needs (`database.volatile_exchange`): a change has its place in it when its own
notification is received. `VolatilePeers` are the messages, `VolatileThreads` the two threads that
wait for PostgreSQL. Both begin with the first database that has volatile nodes.

A daemon that lacks a state sends a `want`. Those that have one send an `offer`, and all see the
same one first: who has made it sends its state as it is at that place of the order, and all who
want one replace their own by it. If nothing is offered, as to the only daemon, it offers its own
after `OFFER_S`, and founds another *line* of states with that. Lines are ordered by the time at
which they were founded. A daemon that sees an offer of an older line than its own receives that
state; to one of a later line it answers with an offer. So two states that were founded at the same
time, or while another daemon was slow, become one.

When all have lost their connections, all want a state. Then a daemon that never had one, because
it has just started, waits longer before it offers its own, and so does one whose last state was of
an older line than that of another: it may have been cut off with an old server.

Offers and states are of one *group*: of daemons whose rules call the same volatile. Changes are of
all; they are applied as far as the rules allow.

Notifications may be missed when a connection ends. So all databases want a state after that, and
what has not come back is sent once more. The same is done if an own message is not received in time
(`LATE_S`): the connection may be to a server that is cut off. To find that, one is sent when there
is nothing else.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final, NamedTuple, TypeAlias

import attrs
import orjson
from twisted.internet.defer import Deferred, fail, succeed
from twisted.internet.interfaces import IDelayedCall, IReactorTime
from twisted.logger import Logger

from treedbd.cluster.connections import ClusterConnections
from treedbd.database.slices import StepQueue, Steps
from treedbd.database.volatile_exchange import VolatileExchange, VolatileLink, encode_changes
from treedbd.names import DatabaseName, parse_label
from treedbd.store.engine import StoreUnreachable
from treedbd.tree.types import Change

FIRST_S: Final = 0.2
"""Seconds that requests wait for the state of others, of which there may be none."""
OFFER_S: Final = 0.3
"""Seconds in which others may offer their state."""
WAITS: Final = 3
"""How many times as long a daemon waits that has lost a state: others may come back meanwhile."""
LONG_WAITS: Final = 10
"""The same of a daemon that has none although it has just joined, or an older one than another."""
JUST_S: Final = 5.0
"""Seconds since which a daemon has just joined."""
STATE_S: Final = 3.0
"""Seconds that may pass between two parts of a state; then another one is wanted."""
BEAT_S: Final = 2.0
"""Seconds between two looks at what has not come back."""
LATE_S: Final = 8.0
"""Seconds in which an own message has to come back."""
WAIT_S: Final = 0.5
PAUSE_S: Final = 0.5
SENT_AT_ONCE: Final = 250_000
"""Bytes of messages in one transaction."""
STATE_AT_ONCE: Final = 100_000
"""The same of states, which are sent after what is changed meanwhile."""

_FORGOTTEN_FROM: Final = 200
"""Databases that are remembered, whether they are in use or not."""

_CHANGE, _WANT, _OFFER, _STATE, _BEAT = "change", "want", "offer", "state", "beat"


_Source: TypeAlias = tuple[str, int]
"""The sender of a message, and its number."""


class _Received(NamedTuple):
    """A message about the state of a database: `rest` is what its kind has, `content` a part."""

    name: DatabaseName
    exchange: VolatileExchange
    source: _Source
    rest: Sequence[Any]
    content: bytes


class CutOff(Exception):
    """A change may have no place in the order of all."""


@attrs.define(eq=False)
class _Member:
    """The part of this daemon in the state of one database.

    Attributes:
        waiting: is fired when it has a state that others have, too.
        line: of the state that it has or receives; empty if it has none.
        former: of the last state that it had; empty if it never had one.
        patience: how often it waits for an offer before it makes one.
        source: whose state it receives: the sender and the number of the offer.
        is_wanted: whether another daemon wants the state.
        is_offered: whether an own offer has not come back.

    """

    waiting: list[Deferred[object]] = attrs.field(factory=list)
    line: str = ""
    former: str = ""
    patience: int = 1
    source: _Source | None = None
    is_wanted: bool = False
    is_offered: bool = False
    timer: IDelayedCall | None = None

    @property
    def has_state(self) -> bool:
        """Whether it has the state of its line."""
        return bool(self.line) and self.source is None

    def reset(self) -> None:
        """Have no state."""
        self.former = self.line if self.has_state else self.former
        self.line, self.source, self.is_offered = "", None, False
        self.stop()

    def stop(self) -> None:
        """Wait for nothing."""
        if self.timer is not None and self.timer.active():
            self.timer.cancel()
        self.timer = None


class VolatilePeers:
    """The messages of one daemon about volatile nodes; of the reactor's thread.

    Attributes:
        sender: the name of this daemon in messages; another one for each connection, empty if
            there is none.

    """

    def __init__(
        self,
        send: Callable[[bytes], None],
        send_state: Callable[[Iterator[bytes]], None],
        find: Callable[[DatabaseName], VolatileExchange | None],
        clock: IReactorTime,
        *,
        now_ms: Callable[[], int] = lambda: int(time.time() * 1000),
    ) -> None:
        """Send messages by `send`, and those of a state by `send_state`, in any thread."""
        self.sender = ""
        self._send_message = send
        self._send_state = send_state
        self._find = find
        self._clock = clock
        self._now_ms = now_ms
        self._joined_at = 0.0
        self._number = 0
        self._members: dict[DatabaseName, _Member] = {}
        self._most = _FORGOTTEN_FROM
        # What has not come back, the oldest first: since when, and what is fired then.
        self._out: dict[int, tuple[float, Deferred[object] | None]] = {}
        self._calls: dict[str, Callable[[_Received], None]] = {
            _WANT: self._wanted,
            _OFFER: self._offered,
            _STATE: self._received,
        }

    # For the exchanges of databases.

    def share(self, name: DatabaseName, content: bytes) -> Deferred[object]:
        """Send changes; fires when they have their place in the order, errbacks with `CutOff`."""
        if not self.sender:
            return fail(CutOff())
        done: Deferred[object] = Deferred()
        self._send([_CHANGE, name.label], content, done)
        return done

    def want(self, name: DatabaseName) -> Deferred[object]:
        """Want a state; fires when this daemon has one, or is cut off: `join` fetches it then."""
        self._forget_some()
        member = self._members.setdefault(name, _Member())
        member.reset()
        if not self.sender:
            return succeed(None)
        done: Deferred[object] = Deferred()
        member.waiting.append(done)
        member.timer = self._clock.callLater(0, self._ask, name)  # the database is in use then
        return done

    # For the connection.

    def join(self, sender: str) -> None:
        """Begin: all that is sent from now on is received."""
        self.leave()
        self.sender, self._joined_at = sender, self._clock.seconds()
        for name in list(self._members):
            exchange = self._find(name)
            if exchange is None:
                self._end(name)
            else:
                exchange.fetch()

    def leave(self) -> None:
        """Stop: something may have been missed."""
        self.sender = ""
        for name, member in self._members.items():
            member.reset()
            self._complete(name)
        out, self._out = self._out, {}
        for _, done in out.values():
            if done is not None:
                done.errback(CutOff())

    def beat(self) -> bool:
        """Send something if nothing is under way; return whether an own message is late."""
        for since, _ in self._out.values():
            return self._clock.seconds() - since > LATE_S
        if self.sender:
            self._send([_BEAT])
        return False

    def receive(self, message: bytes) -> None:
        """Apply a message of any daemon, this one included."""
        head, _, content = message.partition(b"\n")
        try:
            kind, sender, number, *rest = orjson.loads(head)
        except (ValueError, TypeError):
            return
        is_own = sender == self.sender
        if is_own:
            _, done = self._out.pop(number, (0.0, None))
            if done is not None:
                done.callback(None)
        name = parse_label(rest[0]) if rest else None
        exchange = None if name is None else self._find(name)
        if name is None or exchange is None:
            return
        if kind == _CHANGE:
            if not is_own:
                exchange.receive(content, is_state=False)
        elif rest[1] == exchange.group and name in self._members:
            call = self._calls.get(kind)
            if call is not None:
                source = sender, number
                call(_Received(name, exchange, source, rest=rest[2:], content=content))

    # Messages.

    def _wanted(self, message: _Received) -> None:
        """Offer the state to another daemon; without one let it go first that had a newer one."""
        name, exchange, of, rest, _ = message
        member = self._members[name]
        if of[0] != self.sender:
            member.is_wanted = True
            if rest[0] > member.former:
                member.patience = LONG_WAITS
            self._offer_if_wanted(name, exchange)

    def _offered(self, message: _Received) -> None:
        """Receive the state that was offered, or answer with one of an older line."""
        name, exchange, of, rest, _ = message
        member, line = self._members[name], rest[0]
        is_own = of[0] == self.sender
        if is_own:
            member.is_offered = False
        is_first = not member.line or line < member.line
        if is_first and not is_own:
            member.line, member.source = line, of
            exchange.begin_state()
            self._wait(name, STATE_S)
        elif is_first or (is_own and member.is_wanted and line == member.line):
            member.line, member.source, member.is_wanted = line, None, False
            self._give(name, exchange, of)
            self._complete(name)
        if not is_first and not is_own and line > member.line:
            member.is_wanted = True
            self._offer_if_wanted(name, exchange)
        else:
            member.is_wanted = False  # who wants one receives that

    def _received(self, message: _Received) -> None:
        """Apply a part of the state that was offered."""
        name, exchange, of, rest, content = message
        member, (offer, is_last) = self._members[name], rest
        source = of[0], offer
        if member.source != source:
            return
        self._wait(name, STATE_S)
        exchange.receive(content, is_state=True)
        if is_last:

            def end() -> None:
                if member.source == source:
                    member.source = None
                    self._complete(name)
                    self._offer_if_wanted(name, exchange)

            exchange.end_state(end)

    def _give(self, name: DatabaseName, exchange: VolatileExchange, of: _Source) -> None:
        """Send the state as it is now."""
        head = [_STATE, of[0], 0, name.label, exchange.group, of[1]]
        self._send_state(_print_state(head, exchange.state()))

    def _offer_if_wanted(self, name: DatabaseName, exchange: VolatileExchange) -> None:
        member = self._members[name]
        if member.is_wanted and member.has_state and not member.is_offered:
            self._offer(name, exchange, member.line)

    def _offer(self, name: DatabaseName, exchange: VolatileExchange, line: str) -> None:
        self._members[name].is_offered = True
        self._send([_OFFER, name.label, exchange.group, line])

    def _send(
        self, head: list[Any], content: bytes = b"", done: Deferred[object] | None = None
    ) -> None:
        self._number += 1
        self._out[self._number] = self._clock.seconds(), done
        kind, *rest = head
        message = orjson.dumps([kind, self.sender, self._number, *rest])
        self._send_message(message + b"\n" + content)

    # Waiting for a state.

    def _ask(self, name: DatabaseName) -> None:
        exchange = self._find(name)
        if exchange is None:
            self._end(name)
        else:
            member = self._members[name]
            has_just_joined = self._clock.seconds() - self._joined_at < JUST_S
            member.patience = WAITS if member.former else LONG_WAITS if has_just_joined else 1
            self._send([_WANT, name.label, exchange.group, member.former])
            self._wait(name, OFFER_S)

    def _wait(self, name: DatabaseName, seconds: float) -> None:
        member = self._members[name]
        member.stop()
        member.timer = self._clock.callLater(seconds, self._late, name)

    def _late(self, name: DatabaseName) -> None:
        """Want another state if that of an offer does not come; without an offer, make one."""
        member, exchange = self._members[name], self._find(name)
        if exchange is None:
            self._end(name)
        elif member.line:
            member.reset()
            self._ask(name)
        else:
            member.patience -= 1
            if member.patience <= 0 and not member.is_offered:
                self._offer(name, exchange, f"{self._now_ms():016d} {self.sender}")
            self._wait(name, OFFER_S)

    def _complete(self, name: DatabaseName) -> None:
        member = self._members[name]
        member.stop()
        waiting, member.waiting = member.waiting, []
        for each in waiting:
            each.callback(None)

    def _forget_some(self) -> None:
        """Forget databases that are not in use any more, when there are twice as many as before."""
        if len(self._members) < self._most:
            return
        for name, member in list(self._members.items()):
            if not member.waiting and self._find(name) is None:
                self._end(name)
        self._most = max(_FORGOTTEN_FROM, 2 * len(self._members))

    def _end(self, name: DatabaseName) -> None:
        """Forget a database that is not in use any more."""
        self._complete(name)
        del self._members[name]


def _print_state(head: list[Any], changes: Iterator[Change]) -> Iterator[bytes]:
    """Yield the messages of a state."""
    for part in encode_changes(changes):
        yield orjson.dumps([*head, False]) + b"\n" + part
    yield orjson.dumps([*head, True]) + b"\n[]"


class VolatileThreads:
    """The threads of one daemon that send and receive what is volatile, and what they send.

    Neither begins before a database has volatile nodes.
    """

    _log = Logger()

    def __init__(
        self,
        connections: ClusterConnections,
        find: Callable[[DatabaseName], VolatileExchange | None],
        reactor: Any,
    ) -> None:
        """`find` returns the exchange of a database that is in use."""
        self._connections = connections
        self._reactor = reactor
        self._peers: Final = VolatilePeers(self._send, self._send_state, find, reactor)
        self._steps = StepQueue(connections.slices)
        self._joined = 0
        self._has_begun = False
        self._has_failed = False
        self._next_beat: IDelayedCall | None = None
        self._is_over = threading.Event()
        self._due = threading.Condition()
        self._messages: deque[bytes] = deque()
        self._states: deque[Iterator[bytes]] = deque()
        self.link: Final = VolatileLink(self._peers.share, self._want, wait_s=FIRST_S)

    def stop(self) -> None:
        """Send what is left, and end the threads."""
        self._is_over.set()
        if self._next_beat is not None:
            self._next_beat.cancel()
        self._peers.leave()
        with self._due:
            self._due.notify()

    def _want(self, name: DatabaseName) -> Deferred[object]:
        if not (self._has_begun or self._is_over.is_set()):
            self._has_begun = True
            for name_of, target in (("send", self._run_sending), ("receive", self._run_receiving)):
                threading.Thread(target=target, name=f"volatile-{name_of}", daemon=True).start()
            self._beat()
        return self._peers.want(name)

    def _beat(self) -> None:
        self._next_beat = self._reactor.callLater(BEAT_S, self._beat)
        if self._peers.beat():
            self._leave("A message has not come back.")

    def _join(self, joined: int) -> None:
        if joined != self._joined or self._is_over.is_set():
            return
        if self._has_failed:
            self._log.info("Volatile nodes are exchanged with other daemons again.")
        self._has_failed = False
        self._peers.join(f"{self._connections.daemon}.{joined}")

    def _leave(self, reason: str) -> None:
        """Connect again: something may have been missed."""
        if self._is_over.is_set():
            return
        self._joined += 1
        if not self._has_failed:
            self._log.error(
                "Volatile nodes are not exchanged with other daemons: {reason}", reason=reason
            )
        self._has_failed = True
        self._peers.leave()
        with self._due:
            self._messages.clear()
            self._states.clear()

    def _send(self, message: bytes) -> None:
        with self._due:
            self._messages.append(message)
            self._due.notify()

    def _send_state(self, messages: Iterator[bytes]) -> None:
        with self._due:
            self._states.append(messages)
            self._due.notify()

    # In threads.

    def _run_sending(self) -> None:
        while (messages := self._take()) is not None:
            try:
                self._connections.store.volatile.send(messages)
            except StoreUnreachable as error:
                self._reactor.callFromThread(self._leave, str(error))
                self._is_over.wait(PAUSE_S)

    def _take(self) -> list[bytes] | None:
        """Return what is sent next, when there is anything; None at the end, after all changes."""
        with self._due:
            self._due.wait_for(lambda: self._messages or self._states or self._is_over.is_set())
            if self._is_over.is_set():
                self._states.clear()
                if not self._messages:
                    return None
            taken: list[bytes] = []
            size = 0
            while self._messages and size < SENT_AT_ONCE:
                taken.append(self._messages.popleft())
                size += len(taken[-1])
            state = self._states[0] if self._states else None
        size = 0
        while state is not None and size < STATE_AT_ONCE:
            part = next(state, None)
            if part is None:
                with self._due:
                    if self._states and self._states[0] is state:
                        self._states.popleft()
                break
            taken.append(part)
            size += len(part)
        return taken

    def _run_receiving(self) -> None:
        while not self._is_over.is_set():
            joined = self._joined
            try:
                channel = self._connections.store.volatile
                channel.listen()
                self._reactor.callFromThread(self._join, joined)
                while joined == self._joined and not self._is_over.is_set():
                    self._hand_over(joined, channel.receive(WAIT_S))
            except StoreUnreachable as error:
                self._reactor.callFromThread(self._leave, str(error))
            self._is_over.wait(PAUSE_S)

    def _hand_over(self, joined: int, messages: list[bytes]) -> None:
        """Apply messages in the reactor's thread, and return when that is done."""
        if not messages:
            return
        done = threading.Event()
        steps = self._apply(joined, messages, done)
        self._reactor.callFromThread(self._steps.add, steps)
        while not (done.wait(WAIT_S) or self._is_over.is_set()):
            pass

    def _apply(self, joined: int, messages: list[bytes], done: threading.Event) -> Steps:
        try:
            for message in messages:
                if joined != self._joined:
                    break
                try:
                    self._peers.receive(message)
                except Exception:
                    self._log.failure("A message about volatile nodes cannot be applied.")
                yield
        finally:
            done.set()
