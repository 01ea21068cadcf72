"""The volatile nodes of workers: what each sends by the parent, which orders, gives and locks.

Theory of operation. `database.volatile_exchange` needs one order of all changes of a database: it
is that in which the parent receives them, and sends them on. All that it sends to one worker
arrives in that order, answers included.

A worker that wants the state of a database is sent that of a member: of a worker that has one, for
the same *group*, since workers may have other rules in force for a moment. Without a member of that
group its own state, if it has one by rules that were in force before, is the one that others
receive later; a worker that has none receives that of any group. So the workers of a group have one
state. One that wants a state is served after the other, so that none begins by itself while another
one does. A member that does not have the database in use any more has nothing to send, and is
removed.

While a worker has the lock of a database, changes of others wait for their place in the order.

`VolatileRelay` is at the parent, `WorkerVolatile` at a worker.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Final
from weakref import WeakKeyDictionary

import attrs
from twisted.internet.defer import Deferred, DeferredLock, succeed
from twisted.internet.interfaces import IDelayedCall, IReactorTime
from twisted.logger import Logger

from treedbd.database.volatile_exchange import VolatileExchange, VolatileLink, encode_changes
from treedbd.loop import do_nothing
from treedbd.names import DatabaseName, parse_label
from treedbd.workers import protocol

if TYPE_CHECKING:
    from treedbd.workers.supervisor import WorkerProcess

LOCK_S: Final = 2.0
"""Seconds for which a worker may have the lock of a database."""


@attrs.define(eq=False)
class _Shared:
    """What the parent knows of the volatile nodes of one database.

    Attributes:
        users: the workers that have asked for it, which changes are sent to.
        members: those that have a state, with its group; that is empty if they want another.
        wanting: is held while a worker receives a state.
        owner: who has the lock; None if none has.
        waiting: who waits for the lock.
        held: changes that wait for the end of the lock, with their senders.
        timer: ends the lock of a worker that does not.

    """

    users: dict[WorkerProcess, None] = attrs.field(factory=dict)
    members: dict[WorkerProcess, str] = attrs.field(factory=dict)
    wanting: DeferredLock = attrs.field(factory=DeferredLock)
    owner: WorkerProcess | None = None
    waiting: deque[tuple[WorkerProcess, Deferred[None]]] = attrs.field(factory=deque)
    held: deque[tuple[WorkerProcess, bytes, Deferred[None]]] = attrs.field(factory=deque)
    timer: IDelayedCall | None = None


class VolatileRelay:
    """Passes what is volatile on between workers."""

    _log = Logger()

    def __init__(self, workers: Sequence[WorkerProcess], clock: IReactorTime) -> None:
        """Serve `workers`, by their numbers."""
        self._workers = workers
        self._clock = clock
        self._databases: dict[str, _Shared] = {}

    def share(self, worker: WorkerProcess, label: str, content: bytes, to: int) -> Deferred[None]:
        """Send changes to the other workers; fires when these have their place in the order.

        Or send a part of a state to one worker, at once.
        """
        done: Deferred[None] = Deferred()
        shared = self._of(label)
        if to >= 0:
            self._send(self._workers[to], label, content, to)
            done.callback(None)
        elif shared.owner in {None, worker}:
            self._relay(shared, worker, label, content)
            done.callback(None)
        else:
            shared.held.append((worker, content, done))
        return done

    async def want(self, worker: WorkerProcess, label: str, group: str, *, has_state: bool) -> bool:
        """Make a member send its state to a worker; return whether one did.

        The worker may have one, of other rules (`has_state`).
        """
        shared = self._of(label)
        shared.users[worker] = None
        shared.members.pop(worker, None)
        if has_state:
            shared.members[worker] = ""
        await shared.wanting.acquire()
        try:
            is_given = await self._find_state(shared, worker, label, group)
            if not (is_given or has_state):
                is_given = await self._find_state(shared, worker, label, "")
            if worker in shared.users:  # it may have ended
                shared.members[worker] = group
        finally:  # what follows is sent after the answer
            self._clock.callLater(0, shared.wanting.release)
        return is_given

    def lock(self, worker: WorkerProcess, label: str) -> Deferred[None]:
        """Lock the order of a database for a worker; fires when that is done."""
        shared = self._of(label)
        waiting: Deferred[None] = Deferred()
        shared.waiting.append((worker, waiting))
        if shared.owner is None:
            self._next(shared, label)
        return waiting

    def unlock(self, worker: WorkerProcess, label: str) -> None:
        """Release the lock of a worker, if it has it still."""
        shared = self._of(label)
        if shared.owner is worker:
            self._next(shared, label)

    def ended(self, worker: WorkerProcess) -> None:
        """Do without a worker whose process has ended."""
        for label, shared in list(self._databases.items()):
            shared.users.pop(worker, None)
            shared.members.pop(worker, None)
            shared.waiting = deque(each for each in shared.waiting if each[0] is not worker)
            self.unlock(worker, label)

    def _of(self, label: str) -> _Shared:
        shared = self._databases.get(label)
        if shared is None:
            shared = self._databases[label] = _Shared()
        return shared

    def _relay(self, shared: _Shared, worker: WorkerProcess, label: str, content: bytes) -> None:
        for other in shared.users:
            if other is not worker:
                self._send(other, label, content, -1)

    def _send(self, worker: WorkerProcess, label: str, content: bytes, to: int) -> None:
        sent = worker.tell(protocol.ShareVolatile, label=label, content=content, to=to)
        sent.addErrback(_ignore)

    async def _find_state(
        self, shared: _Shared, worker: WorkerProcess, label: str, group: str
    ) -> bool:
        """Make a member of a group, or of any if that is empty, send its state."""
        sources = [each for each, has in shared.members.items() if group in {has, ""}]
        for source in sources:
            if source is worker:
                continue
            worker.tell(protocol.BeginVolatile, label=label).addErrback(_ignore)
            asked = source.tell(
                protocol.GiveVolatile, label=label, group=group, number=worker.number
            )
            answer: dict[str, Any] = await asked.addErrback(_ignore)
            if answer["is_given"]:
                return True
            if answer["has_state"] and group:
                shared.members[source] = ""  # its rules have changed
            else:
                shared.members.pop(source, None)
        return False

    def _next(self, shared: _Shared, label: str) -> None:
        """Give what was held its place in the order, and the lock to the next who waits."""
        if shared.timer is not None and shared.timer.active():
            shared.timer.cancel()
        shared.owner = None
        while shared.held:
            worker, content, done = shared.held.popleft()
            self._relay(shared, worker, label, content)
            done.callback(None)
        if shared.waiting:
            shared.owner, waiting = shared.waiting.popleft()
            shared.timer = self._clock.callLater(LOCK_S, self._late, shared, label)
            waiting.callback(None)

    def _late(self, shared: _Shared, label: str) -> None:
        self._log.warn(
            "A worker has had the volatile nodes of {label} locked for {seconds} s; others go on.",
            label=label,
            seconds=LOCK_S,
        )
        self._next(shared, label)


class WorkerVolatile:
    """Exchanges the volatile nodes of one worker with the others.

    Attributes:
        link: is used by the databases.
        find: returns the exchange of a database, None if it is not in use.
        call: sends a command to the parent; None before there is a connection.

    """

    def __init__(self, clock: IReactorTime) -> None:
        """Send nothing yet."""
        self.link: Final = VolatileLink(self._share, self._want, self._lock)
        self.find: Callable[[DatabaseName], VolatileExchange | None] = lambda _: None
        self.call: Callable[..., Deferred[Any]] | None = None
        self._clock = clock
        self._asked: WeakKeyDictionary[VolatileExchange, object] = WeakKeyDictionary()

    def receive(self, label: str, content: bytes, *, is_state: bool) -> None:
        """Apply changes of another worker, or a part of its state."""
        exchange = self._find(label)
        if exchange is not None:
            exchange.receive(content, is_state=is_state)

    def begin(self, label: str) -> None:
        """Receive the state of another worker, as it is at this place in the order."""
        exchange = self._find(label)
        if exchange is not None and exchange.is_fetching:
            exchange.begin_state(has_all=True)

    def give(self, label: str, group: str, number: int) -> bool:
        """Send the state of a database to another worker; return whether it is known here.

        That of the rules in force must be of a `group`, if that is not empty.
        """
        exchange = self._find(label)
        if exchange is None or self.call is None:
            return False
        exchange.finish_state()
        if group != "" and (exchange.group != group or exchange.is_fetching):
            return False
        if not exchange.has_state:
            return False
        for content in encode_changes(exchange.state()):
            self._send(label, content, number).addErrback(_ignore)
        return True

    def has_state(self, label: str) -> bool:
        """Return whether this worker has a state of a database, by whatever rules."""
        exchange = self._find(label)
        return exchange is not None and exchange.has_state

    def _share(self, name: DatabaseName, content: bytes) -> Deferred[Any]:
        return self._send(name.label, content, -1)

    def _want(self, name: DatabaseName) -> Deferred[object]:
        wanted: Deferred[object] = Deferred()
        self._clock.callLater(0, self._ask, name, wanted)  # the database is in use then
        return wanted

    def _ask(self, name: DatabaseName, wanted: Deferred[object]) -> None:
        exchange = self.find(name)
        if self.call is None or exchange is None:
            wanted.callback(None)
            return

        self._asked[exchange] = wanted

        def end(response: dict[str, Any]) -> None:
            if self._asked[exchange] is not wanted:  # another one is wanted by now
                wanted.callback(None)
            elif response["is_given"]:
                exchange.end_state(lambda: wanted.callback(None))
            else:
                exchange.give_up_state()
                wanted.callback(None)

        called = self.call(
            protocol.WantVolatile,
            label=name.label,
            group=exchange.group,
            has_state=exchange.has_state,
        )
        called.addErrback(_ignore).addCallback(end)

    def _lock(self, name: DatabaseName) -> Deferred[Callable[[], None]]:
        call = self.call
        if call is None:
            return succeed(do_nothing)

        def release() -> None:
            call(protocol.UnlockVolatile, label=name.label).addErrback(_ignore)

        return call(protocol.LockVolatile, label=name.label).addCallback(lambda _: release)

    def _send(self, label: str, content: bytes, to: int) -> Deferred[Any]:
        if self.call is None:
            return succeed(None)
        return self.call(protocol.ShareVolatile, label=label, content=content, to=to)

    def _find(self, label: str) -> VolatileExchange | None:
        name = parse_label(label)
        return None if name is None else self.find(name)


def _ignore(_: object) -> dict[str, Any]:
    """Ignore that a worker has ended, or cannot answer: it has no state then."""
    return {"is_given": False, "has_state": False}
