"""The hooks of all databases, whose events one process sends.

Theory of operation. One process of those that serve the databases is elected (`election`). It looks
at each database that was written (`Runtime.news`): whether there are hooks, by one row, and if so
makes a `HookDelivery` of each, which reads on where its cursor is. What there is to be read is read
at once if the database is known to have hooks, else within a second. Hooks that an admin changes
change the stamp of their rows, so that the deliveries are made again; those of others go on.

A process becomes a candidate when it has seen a database with hooks: where they are not used no
process is elected, and of each write only its database is noted. When it starts, it looks for them
in all databases, without opening any: a few at a time in their files, or by one query over
PostgreSQL (`FindHooked`). Some that other processes have written may be missed, as hints may be
lost, so that is done again now and then.

A standby sends nothing (`WriteGate`), and has the hooks and their cursors of its first. When it is
promoted it looks at all databases.

Databases that are not written, and of which nothing is left to be sent, are forgotten.
"""

from __future__ import annotations

import pathlib
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Any, Final, TypeAlias

import attrs
from twisted.internet.defer import Deferred, DeferredList, DeferredSemaphore
from twisted.internet.interfaces import IDelayedCall
from twisted.internet.task import LoopingCall
from twisted.logger import Logger

from treedbd.database.catalog import Catalog
from treedbd.database.database import Database
from treedbd.database.election import Election
from treedbd.database.log_reader import CursorLost, write_rows
from treedbd.database.requests import UnknownDatabase
from treedbd.database.runtime import Problem, RunInThread, Runtime
from treedbd.errors import LineBudget, in_one_line
from treedbd.hooks.addresses import LookUp, Resolver, look_up
from treedbd.hooks.client import MakeCreator, PostAnswer, Poster, Receiver
from treedbd.hooks.delivery import HookCounts, HookDelivery, Slots
from treedbd.hooks.functions import FunctionService
from treedbd.hooks.letters import RemoveRows, has_rows_of_others, read_state
from treedbd.hooks.letters import read_stamp as read_letter_stamp
from treedbd.hooks.message import headers_of, make_test
from treedbd.limits import DEFAULT_TIMEOUT_S, HookLimits
from treedbd.names import EVERYTHING, AllowedTargets, DatabaseName
from treedbd.store.engine import CannotOpenStore, ReadView, StoreFailed, StoreUnreachable
from treedbd.store.hooks import HOOK_FIRST, Hook, read_stamp
from treedbd.store.sqlite.file import connect_reader
from treedbd.store.sqlite.reader import SqliteReader

ELECTION: Final = "hooks"
LOOK_S: Final = 1.0
"""Seconds between two looks at databases that were written."""
SOON_S: Final = 0.005
"""Seconds until a database that has hooks is read after it was written."""
FORGOTTEN_S: Final = 60.0
SWEEP_S: Final = 600.0
"""Seconds after which all databases are looked at again."""
SWEPT_AT_ONCE: Final = 50
"""Databases that are looked at in a second without having been written."""
LOOKS_AT_ONCE: Final = 8
STOP_S: Final = 1.0
"""Seconds for which a stop waits until cursors are stored; else more is sent again."""

FindHooked: TypeAlias = Callable[[Sequence[DatabaseName]], Awaitable[set[DatabaseName]]]
"""Returns which databases have rows of hooks, without opening them here.

It may raise `StoreUnreachable`.
"""


@attrs.define(eq=False)
class _Followed:
    """A database that has hooks."""

    database: Database
    stamp: bytes | None
    letter_stamp: bytes | None
    deliveries: dict[str, HookDelivery]
    used_at: float
    configured: tuple[Hook, ...] = ()
    waiting: tuple[Hook, ...] = ()
    """Hooks that have no cursor yet."""


class Deliverer:
    """Sends the events of the hooks while this process is elected; of the reactor's thread.

    Attributes:
        counts: what is counted.

    """

    _log = Logger()

    def __init__(
        self,
        *,
        catalog: Catalog,
        runtime: Runtime,
        election: Election,
        reactor: Any,
        allowed: AllowedTargets,
        make_creator: MakeCreator,
        find_hooked: FindHooked | None,
        is_used: bool = False,
        functions: FunctionService | None = None,
        look_up: LookUp = look_up,
    ) -> None:
        """Call what is not inside or is `allowed`; `make_creator` verifies certificates.

        `functions` are called at an address that may be inside. `find_hooked` is None if databases
        without hooks are always open. If it `is_used`, there are hooks of the configuration.
        """
        self._catalog, self._runtime, self._election = catalog, runtime, election
        self._clock, self._reactor, self._make_creator = runtime.clock, reactor, make_creator
        self._find_hooked = find_hooked
        self._resolver = Resolver(reactor, allowed, look_up)
        self._functions = functions or FunctionService()
        self._of_functions = Resolver(reactor, EVERYTHING, look_up)
        self._slots, self.counts = Slots(), HookCounts()
        self._lines = LineBudget(runtime.clock.seconds)
        self._followed: dict[DatabaseName, _Followed] = {}
        self._noted: set[DatabaseName] = set()
        self._swept: list[DatabaseName] = []
        self._sweep_at = runtime.clock.seconds()
        self._looking: set[DatabaseName] = set()
        self._failures: dict[DatabaseName, str] = {}
        self._at_once = DeferredSemaphore(LOOKS_AT_ONCE)
        self._is_used: Final = is_used
        self._is_candidate = self._is_over = self._was_sending = self._is_looking = False
        self._is_quick = False
        self._soon: IDelayedCall | None = None
        self._loop = LoopingCall(self._look_at_all)
        self._loop.clock = runtime.clock

    # The beginning and the end.

    def start(self) -> None:
        """Look for hooks, and send their events when elected."""
        self._runtime.news.append(self._noted.add)  # which takes no time
        self._catalog.end_listeners.append(self._leave)
        self._catalog.problem_sources.append(self.problems)
        self._loop.start(LOOK_S, now=False)
        if self._is_used:
            self._be_candidate()

    async def stop(self) -> None:
        """End all deliveries; what is not acknowledged is sent again by the next process."""
        self._is_over = True
        if not self._loop.running:
            return  # it was not started
        self._runtime.news.remove(self._note if self._is_quick else self._noted.add)
        if self._soon is not None and self._soon.active():
            self._soon.cancel()
        self._loop.stop()
        saving = [Deferred.fromCoroutine(each.save()) for each in self._deliveries()]
        saved = DeferredList(saving, consumeErrors=True)
        await saved.addTimeout(STOP_S, self._clock, lambda _, __: None)
        self._forget_all()
        if self._is_candidate:
            await self._election.stop()

    # What is shown.

    def lag_s(self) -> float:
        """Return how long the oldest event has waited that is not acknowledged."""
        return max((each.lag_s() for each in self._deliveries()), default=0.0)

    def count_dead(self) -> int:
        """Return how many dead letters there are, of the databases that are followed."""
        return sum(each.state().dead for each in self._deliveries())

    def problems(self) -> list[Problem]:
        """Return which hooks are stopped, or have lost events."""
        return [problem for each in self._deliveries() for problem in each.problems()]

    def find_delivery(self, name: DatabaseName, hook: str) -> HookDelivery | None:
        """Return what sends the events of a hook, if that is this process."""
        followed = self._followed.get(name)
        return None if followed is None else followed.deliveries.get(hook)

    def describe(self, database: Database, hook: Hook) -> dict[str, Any]:
        """Return what admins see of a hook, as it is now if this process sends its events.

        The database must be open.
        """
        delivery = self.find_delivery(database.name, hook.name)
        if delivery is not None:
            return delivery.state().show()
        return database.read(lambda nodes: read_state(nodes.rows.stored, hook.name)).show()

    def _deliveries(self) -> list[HookDelivery]:
        return [each for one in self._followed.values() for each in one.deliveries.values()]

    async def test(self, hook: Hook, name: DatabaseName) -> PostAnswer:
        """Send an event to a receiver that has not happened; raise `PostFailed`, or ValueError."""
        poster = self._make_poster(hook)
        now_ms = self._runtime.now_ms()
        message = make_test(hook, name, now_ms, self._runtime.entropy(8).hex())
        try:
            return await poster.post(
                headers_of(message, hook.secrets, now_ms, 1, hook.form), message.body
            )
        finally:
            poster.close()

    def _make_poster(self, hook: Hook) -> Poster:
        is_function = self._functions.is_called_by(hook)
        return Poster(
            self._reactor,
            Receiver.parse(hook.url or ""),
            self._of_functions if is_function else self._resolver,
            self._make_creator,
            timeout_s=self._functions.limits.timeout_s if is_function else self._limits.timeout_s,
        )

    @property
    def _limits(self) -> HookLimits:
        return self._runtime.hook_limits

    # What has been written.

    def _note(self, name: DatabaseName) -> None:
        """Look at a database that was written."""
        self._noted.add(name)
        if name in self._followed and (self._soon is None or not self._soon.active()):
            self._soon = self._clock.callLater(SOON_S, self._look_soon)

    def _be_quick(self) -> None:
        """Look soon at what is written from now on, since there are hooks."""
        if not self._is_quick:
            self._is_quick = True
            self._runtime.news.remove(self._noted.add)
            self._runtime.news.append(self._note)

    def _look_soon(self) -> None:
        """Look at those that are known to have hooks; the others are looked at later."""
        if self._judge():
            for name in self._noted & self._followed.keys():
                self._begin_to_look(name)

    def _look_at_all(self) -> Deferred[None] | None:
        if self._is_looking or self._is_over:
            return None
        self._is_looking = True
        return Deferred.fromCoroutine(self._look_at_noted())

    async def _look_at_noted(self) -> None:
        try:
            self._judge()
            await self._sweep()
            await self._look_for_hooks()
            if self._judge():
                for name in self._noted | self._busy():
                    self._begin_to_look(name)
                self._forget_idle()
        except StoreUnreachable:
            return  # others report it
        except Exception:
            self._log.failure("The webhooks cannot be looked at.")
        finally:
            self._is_looking = False

    def _judge(self) -> bool:
        """Return whether this process sends; look at all databases if that has changed."""
        is_sending = self._is_sending()
        if is_sending != self._was_sending:
            self._was_sending = is_sending
            self._forget_all()
            self._sweep_at = self._clock.seconds()
        return is_sending

    def _is_sending(self) -> bool:
        is_elected = self._is_candidate and self._election.is_elected
        return is_elected and self._runtime.gate.refusal is None and not self._is_over

    def _busy(self) -> set[DatabaseName]:
        """Return the databases whose rows are looked at without news: an admin may change them."""
        return {name for name in self._followed if self._catalog.find_open(name) is not None}

    async def _sweep(self) -> None:
        """Look at databases that were not written here: all, some in each second."""
        now = self._clock.seconds()
        if now >= self._sweep_at:
            self._sweep_at = now + SWEEP_S
            for project in await self._runtime.slices.run(self._catalog.projects()):
                refreshing = self._catalog.refresh(project.name)
                if refreshing is not None:
                    await refreshing
                self._catalog.names(project)  # which finds those that others have created
            self._swept = self._catalog.written.all()
        self._noted.update(self._swept[-SWEPT_AT_ONCE:])
        del self._swept[-SWEPT_AT_ONCE:]

    async def _look_for_hooks(self) -> None:
        """Of what is noted keep only what has hooks; be a candidate if there is any."""
        unknown = self._noted - self._followed.keys()
        hooked, closed = set[DatabaseName](), list[DatabaseName]()
        for name in unknown:
            database = self._catalog.find_open(name)
            if self._runtime.hooks_of(name):
                hooked.add(name)
            elif database is not None:
                if database.read(lambda nodes: read_stamp(nodes.rows.stored)) is not None:
                    hooked.add(name)
            else:
                closed.append(name)
        if closed and self._find_hooked is not None:
            hooked |= await self._find_hooked(closed)
        self._noted.difference_update(unknown - hooked)
        if hooked:
            self._be_candidate()

    def _be_candidate(self) -> None:
        if not (self._is_candidate or self._is_over):
            self._is_candidate = True
            self._election.start(self._election_changed)

    def _election_changed(self) -> None:
        self._clock.callLater(0, self._look_at_all)

    def _begin_to_look(self, name: DatabaseName) -> None:
        """Read what there is of a database, unless that is under way."""
        if name in self._looking:
            return
        self._noted.discard(name)
        self._looking.add(name)
        looking = self._at_once.run(lambda: Deferred.fromCoroutine(self._look(name)))
        looking.addBoth(self._looked, name)

    def _looked(self, _: object, name: DatabaseName) -> None:
        self._looking.discard(name)
        if name in self._noted and name not in self._failures:
            self._note(name)  # it was written meanwhile

    async def _look(self, name: DatabaseName) -> None:
        try:
            if self._catalog.has_data(name) and self._is_sending():
                database = self._catalog.find(name)
                async with self._catalog.opened(database, DEFAULT_TIMEOUT_S):
                    await self._look_at(database)
            self._failures.pop(name, None)
        except UnknownDatabase:
            self._forget(name)
        except CursorLost:
            self._forget(name)
            self._noted.add(name)
        except Exception as error:
            self._report(name, error)

    def _report(self, name: DatabaseName, error: Exception) -> None:
        """Look at a database again that cannot be read; log why, once for the same reason."""
        self._noted.add(name)
        reason = in_one_line(str(error)) or type(error).__name__
        if self._failures.get(name) != reason:
            self._failures[name] = reason
            self._log.warn("The webhooks of {label} wait: {why}", label=name.label, why=reason)

    # One database.

    async def _look_at(self, database: Database) -> None:
        """Make deliveries of its hooks, and read for them; it is open."""
        followed = await self._follow(database)
        if followed is None:
            return
        for delivery in list(followed.deliveries.values()):
            await self._runtime.slices.run(delivery.fill())
            await delivery.make_letters()
            if not delivery.is_idle():
                followed.used_at = self._clock.seconds()

    async def _follow(self, database: Database) -> _Followed | None:
        """Return what is followed of a database, None without hooks."""
        name = database.name
        followed = self._followed.get(name)
        if followed is not None and followed.database is not database:
            self._forget(name)
            followed = None
        configured = tuple(self._runtime.hooks_of(name))
        stamp, letter_stamp = database.read(lambda nodes: _read_stamps(nodes.rows.stored))
        if followed is None:
            if stamp is None and not configured:
                return None
            followed = _Followed(
                database=database,
                stamp=None,
                letter_stamp=letter_stamp,
                deliveries={},
                used_at=self._clock.seconds(),
            )
            self._followed[name] = followed
            self._be_quick()
            await self._change(followed, stamp, configured)
        elif (followed.stamp, followed.configured) != (stamp, configured) or followed.waiting:
            await self._change(followed, stamp, configured)
        if followed.letter_stamp != letter_stamp:
            followed.letter_stamp = letter_stamp
            for each in followed.deliveries.values():
                await each.look_at_letters()
        return followed

    async def _change(
        self, followed: _Followed, stamp: bytes | None, configured: tuple[Hook, ...]
    ) -> None:
        """Make the deliveries of a database those of its present hooks."""
        database, is_changed = followed.database, followed.stamp != stamp
        wanted = {each.name: each for each in database.hooks()}
        for name, delivery in list(followed.deliveries.items()):
            if wanted.get(name) != delivery.hook:
                await self._end(delivery)
                del followed.deliveries[name]
        followed.waiting = ()
        for hook in wanted.values():
            if hook.name not in followed.deliveries and hook.url is not None:
                await self._open(followed, hook)
        followed.stamp, followed.configured = stamp, configured
        if is_changed:
            await self._remove_rows(database, wanted)

    async def _open(self, followed: _Followed, hook: Hook) -> None:
        try:
            poster = self._make_poster(hook)
        except ValueError as error:
            self._log.error(
                "{label}: the webhook {hook} cannot be called: {why}",
                label=followed.database.name.label,
                hook=hook.name,
                why=str(error),
            )
            return
        delivery = self._make_delivery(hook, followed.database, poster)
        if not await delivery.open():
            followed.waiting += (hook,)
            delivery.stop()
        elif self._followed.get(followed.database.name) is followed:
            followed.deliveries[hook.name] = delivery
        else:
            delivery.stop()

    def _make_delivery(self, hook: Hook, database: Database, poster: Poster) -> HookDelivery:
        limits = self._limits
        if self._functions.is_called_by(hook):
            concurrency = self._functions.limits.concurrency
            limits = attrs.evolve(limits, concurrency=concurrency)
        return HookDelivery(
            hook,
            database,
            runtime=self._runtime,
            catalog=self._catalog,
            limits=limits,
            poster=poster,
            slots=self._slots,
            counts=self.counts,
            lines=self._lines,
            look=lambda: self._note(database.name),
            host=self._functions.host,
        )

    async def _end(self, delivery: HookDelivery) -> None:
        """End a delivery whose hook was changed or removed."""
        try:
            await delivery.save()
        except Exception as error:
            self._log.debug("A cursor is not stored: {error}", error=error)
        delivery.stop()

    async def _remove_rows(self, database: Database, wanted: Iterable[str]) -> None:
        """Remove the letters and the states of hooks that are not there any more."""
        kept = frozenset(wanted)
        while database.read(lambda nodes: has_rows_of_others(nodes.rows.stored, kept)):
            await write_rows(database, self._runtime, RemoveRows(kept))

    # What is forgotten.

    def _leave(self, name: DatabaseName) -> None:
        """End the deliveries of a database that is being deleted."""
        self._noted.discard(name)
        self._forget(name)

    def _forget(self, name: DatabaseName) -> None:
        followed = self._followed.pop(name, None)
        if followed is not None:
            for each in followed.deliveries.values():
                each.stop()

    def _forget_all(self) -> None:
        for name in list(self._followed):
            self._forget(name)

    def _forget_idle(self) -> None:
        now = self._clock.seconds()
        for name, followed in list(self._followed.items()):
            is_idle = all(each.is_idle() for each in followed.deliveries.values())
            if not is_idle or name in self._noted or name in self._looking:
                followed.used_at = now
            elif now - followed.used_at > FORGOTTEN_S and not any(
                each.problems() for each in followed.deliveries.values()
            ):
                self._forget(name)  # its cursors were stored long ago


def _read_stamps(view: ReadView) -> tuple[bytes | None, bytes | None]:
    return read_stamp(view), read_letter_stamp(view)


def find_in_files(
    file_of: Callable[[DatabaseName], pathlib.Path], run_in_thread: RunInThread
) -> FindHooked:
    """Return what finds the databases that have hooks, in their files."""

    def find(names: Sequence[DatabaseName]) -> Deferred[set[DatabaseName]]:
        found = set[DatabaseName]()

        def look() -> None:
            found.update(name for name in names if _has_hooks(file_of(name)))

        return run_in_thread(look).addCallback(lambda _: found)

    return find


def _has_hooks(file: pathlib.Path) -> bool:
    """Return whether a file has hooks; blocks."""
    try:
        connection = connect_reader(file, is_known=False)
    except (CannotOpenStore, StoreFailed):
        return False
    try:
        reader = SqliteReader(connection)
        reader.begin()
        return reader.get(HOOK_FIRST) is not None
    except StoreFailed:
        return False
    finally:
        connection.close()
