"""The rules of one project: stored, compiled, in force.

`ActiveRules` is the rules of one project, whose `current` rule set is what databases are judged by.
Rules that were PUT over HTTP are kept by a `RulesStorage`: `FileRules` beside the databases of the
project, `MemoryRules`, or a cluster, where others replace them too, so that they are loaded again
before they are used. It also keeps the versions before (`store.rules_versions`). The rules of a
project whose configuration names a rules file are *managed by the file*: then nothing is stored
here, a PUT is a conflict, and there are no versions.

A rules document of a mebibyte takes seconds to compile, and only the caller that puts or checks it
waits. `RulesWork` compiles in slices between which the reactor serves others, one slice of the
service in each turn, so that several documents take no larger share of the reactor's time than one.
What is put is compiled whole, in the order of arrival. A document that is only checked lets what
arrived meanwhile go first after each slice, so that a PUT waits for one slice of it at most, and
the projects check theirs in alternation. Of one project one is checked at a time, and
`WAITING_DRAFTS` wait.

Rules that take long for a request are logged (`SlowRulesLog`).
"""

from __future__ import annotations

import errno
import pathlib
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from functools import partial
from typing import Final, NamedTuple, NoReturn, Protocol, TypeVar

from twisted.internet.defer import Deferred, DeferredLock
from twisted.internet.interfaces import IReactorTime
from twisted.internet.task import deferLater
from twisted.logger import Logger

from treedbd.database.requests import (
    DeadlinePassed,
    NoDescriptors,
    RulesChanged,
    RulesManagedByFile,
    RulesUnreadable,
    TooManyDrafts,
    Unavailable,
    UnknownVersion,
)
from treedbd.database.runtime import RulesExchange, RunInThread, WriteGate
from treedbd.database.slices import SLICE_SECONDS
from treedbd.errors import LineBudget
from treedbd.files import NO_DESCRIPTOR_ERRNOS, create_directory, write_atomically
from treedbd.limits import RULES_VERSIONS, WAITING_DRAFTS, RulesLimits
from treedbd.loop import Steps
from treedbd.names import DatabaseName
from treedbd.rules.context import SlowRules, SlowRulesReport
from treedbd.rules.document import InvalidRules, RulesWarning, TextPosition, with_hint
from treedbd.rules.ruleset import (
    DEFAULT_LIMITS,
    DENY,
    RuleSet,
    check_rules_in_steps,
    parse_rules,
    parse_rules_in_steps,
)
from treedbd.store.rules_versions import (
    UNKNOWN,
    Origin,
    RulesReplaced,
    RulesVersion,
    VersionFiles,
    mark_current,
)
from treedbd.tree.hashes import ETagSet, etag_of_canonical
from treedbd.tree.types import Json

Result = TypeVar("Result")

UNKNOWN_EPOCH: Final = -1
"""The epoch of rules of a cluster that have not been loaded yet: nothing is judged by them."""
FIELDS: Final = ("project", "database", "rule", "line", "column", "rules_ms")
"""The names of the fields of the warning."""
_LASTING_ERRNOS: Final = frozenset({errno.EACCES, errno.EPERM, errno.ENOTDIR})
"""Errors that do not pass by themselves: the project is refused for them."""


class LoadedRules(NamedTuple):
    """Stored rules: their text, None if none were put, and how often they were replaced.

    The epoch grows with every replacement; where only one machine stores rules, it is always 0.
    """

    text: bytes | None
    epoch: int


class RulesStorage(Protocol):
    """The place where the rules of one project are stored; all methods but `label` may block.

    Attributes:
        is_shared: whether others replace the rules, so that they are loaded before each use.

    """

    is_shared: bool

    @property
    def label(self) -> str:
        """What the log calls the stored rules."""
        ...

    def load(self) -> LoadedRules:
        """Return what is stored, in any thread; raise OSError or `Unavailable`."""
        ...

    def store(self, text: bytes, origin: Origin, epoch: int | None = None) -> None:
        """Replace what is stored, durably, in any thread; raise `Unavailable`.

        What differs from the text before is a version. Where rules are shared, raises
        `RulesReplaced` if those of another `epoch` are stored.
        """
        ...

    def list_versions(self) -> list[RulesVersion]:
        """Return the versions that are kept, the newest first; raise `Unavailable`."""
        ...

    def read_version(self, number: int) -> bytes | None:
        """Return the text of a version, None if it is not kept; raise `Unavailable`."""
        ...


class FileRules:
    """Rules in a file of the data directory, written whole or not at all; versions beside it."""

    is_shared = False

    def __init__(
        self,
        file: pathlib.Path,
        versions: pathlib.Path,
        find_misplaced: Callable[[], str | None] = lambda: None,
    ) -> None:
        """Store in `file`, and what was put last in the folder `versions`.

        `find_misplaced` returns why nothing can be stored at present.
        """
        self._file = file
        self._versions = VersionFiles(versions)
        self._find_misplaced = find_misplaced

    @property
    def label(self) -> str:
        """The path of the file."""
        return str(self._file)

    def load(self) -> LoadedRules:
        """Return the content of the file, if there is one; raise OSError."""
        try:
            return LoadedRules(self._file.read_bytes(), 0)
        except FileNotFoundError:
            return LoadedRules(None, 0)

    def store(self, text: bytes, origin: Origin, epoch: int | None = None) -> None:
        """Replace the file; raise `Unavailable`."""
        del epoch
        if (problem := self._find_misplaced()) is not None:
            raise Unavailable(f"The rules cannot be stored: {problem}")
        try:
            create_directory(self._file.parent)
            self._replace(text, origin)
        except OSError as error:
            raise Unavailable(f"The rules cannot be stored: {error.strerror}.") from None

    def list_versions(self) -> list[RulesVersion]:
        """Return the versions that are kept; raise `Unavailable`."""
        try:
            return self._list_versions(self.load().text)
        except OSError as error:
            raise _unreadable_versions(error) from None

    def read_version(self, number: int) -> bytes | None:
        """Return the text of a version; raise `Unavailable`."""
        try:
            text = self._versions.read(number)
            if text is None:
                stored = self.load().text
                newest = self._list_versions(stored)[:1]
                text = stored if [each.number for each in newest] == [number] else None
        except OSError as error:
            raise _unreadable_versions(error) from None
        return text

    def _replace(self, text: bytes, origin: Origin) -> None:
        """Store the version, then the rules: a crash in between leaves one that is not current."""
        stored = self.load().text
        if text == stored:
            write_atomically(self._file, text)
            return
        number = self._next_number(stored)
        try:
            self._versions.add(RulesVersion(number, origin, len(text)), text)
            write_atomically(self._file, text)
        except OSError:
            self._versions.remove(number)
            raise
        self._versions.trim()

    def _next_number(self, stored: bytes | None) -> int:
        """Return the number of the next version; the `stored` rules are one before it."""
        newest = self._versions.newest()
        # To read all versions takes 500 system calls, each of which may wait for the reactor.
        if newest is not None and self._versions.read(newest) == stored:
            return newest + 1
        versions = self._list_versions(stored)
        if stored is not None and self._versions.read(versions[0].number) is None:
            self._versions.add(versions[0], stored)  # it was there before versions were kept
        return versions[0].number + 1 if versions else 1

    def _list_versions(self, stored: bytes | None) -> list[RulesVersion]:
        origin = UNKNOWN
        if stored is not None:
            origin = Origin(time=int(self._file.stat().st_mtime * 1000))
        return self._versions.list_all(stored, origin)


def _unreadable_versions(error: OSError) -> Unavailable:
    return Unavailable(f"The versions of the rules cannot be read: {error.strerror}.")


class MemoryRules:
    """Rules that are gone with the process."""

    is_shared = False
    label = "memory"

    def __init__(self) -> None:
        """Nothing is stored yet."""
        self._versions: list[tuple[RulesVersion, bytes]] = []

    def load(self) -> LoadedRules:
        """Return the rules, if any were put."""
        return LoadedRules(self._versions[-1][1] if self._versions else None, 0)

    def store(self, text: bytes, origin: Origin, epoch: int | None = None) -> None:
        """Replace the rules."""
        del epoch
        number = self._versions[-1][0].number + 1 if self._versions else 1
        if text != self.load().text:
            kept = self._versions[1 - RULES_VERSIONS :]
            self._versions = [*kept, (RulesVersion(number, origin, len(text)), text)]

    def list_versions(self) -> list[RulesVersion]:
        """Return the versions that are kept."""
        found = [version for version, _ in self._versions]
        return mark_current(found, found[-1].number if found else None, self.load().text, UNKNOWN)

    def read_version(self, number: int) -> bytes | None:
        """Return the text of a version."""
        return next((text for each, text in self._versions if each.number == number), None)


class RulesWork:
    """Compiles rules documents in slices, one document or one slice at a time."""

    def __init__(self, clock: IReactorTime) -> None:
        """Slice by `clock`, whose seconds deadlines are in."""
        self._clock = clock
        self._lock = DeferredLock()

    @asynccontextmanager
    async def lock(
        self, deadline: float | None = None, lock: DeferredLock | None = None
    ) -> AsyncIterator[None]:
        """Wait until no other document is worked on; the next one begins at the end of the context.

        What is done with the rules under this lock is done in the order in which they arrived.
        Another `lock` is waited for in the same way. Raises `DeadlinePassed`. The waiting may be
        cancelled.
        """
        lock = lock or self._lock
        acquiring = lock.acquire()
        if deadline is not None:
            acquiring.addTimeout(max(0.0, deadline - self._clock.seconds()), self._clock, _time_out)
        await acquiring
        try:
            yield
        finally:
            lock.release()

    async def run(self, steps: Steps[Result], deadline: float | None = None) -> Result:
        """Do the work on a document, under the `lock`, and return its result.

        Raises what the work raises, and `DeadlinePassed`. It may be cancelled.
        """
        while not (results := self._run_slice(steps)):
            await self._end_turn(deadline)
        return results[0]

    async def run_between(self, steps: Steps[Result], deadline: float | None = None) -> Result:
        """Do the work as `run` does, with the `lock` of its own for each slice.

        So what waits for the lock after a slice is done before the next one.
        """
        while True:
            async with self.lock(deadline):
                if results := self._run_slice(steps):
                    return results[0]
                await self._end_turn(deadline)  # before another one runs its slice

    def _run_slice(self, steps: Steps[Result]) -> list[Result]:
        """Run steps for one slice; return their result in a list, which is empty before."""
        end = self._clock.seconds() + SLICE_SECONDS
        while True:
            try:
                next(steps)
            except StopIteration as stop:
                return [stop.value]
            if self._clock.seconds() >= end:
                return []

    async def _end_turn(self, deadline: float | None) -> None:
        self.check_deadline(deadline)
        await deferLater(self._clock, 0)

    def check_deadline(self, deadline: float | None) -> None:
        """Raise `DeadlinePassed` if it is past a deadline."""
        if deadline is not None and self._clock.seconds() >= deadline:
            _time_out()


def _time_out(*_: object) -> NoReturn:
    raise DeadlinePassed("the rules were checked and stored")


class _Put(NamedTuple):
    """A document that is put: by whom, under which condition, until when.

    If one that `is_local` cannot be used, everything is denied.
    """

    text: bytes
    origin: Origin
    condition: ETagSet | None
    deadline: float | None
    is_local: bool = False


def tag_of(rules: RuleSet) -> str:
    """Return the entity tag of rules: that of their text, comments included."""
    return etag_of_canonical(rules.text.encode())


class ActiveRules:
    """The rules of one project.

    Attributes:
        current: the rule set in force.
        problem: why the stored rules are not in force, and so everything is denied; None if they
            are, or if others have been put since.
        epoch: that of the rules in force, where several daemons agree on it (`RulesStorage`).

    """

    _log = Logger()

    def __init__(
        self,
        rules: RuleSet,
        *,
        is_file_managed: bool,
        storage: RulesStorage | None,
        run_in_thread: RunInThread,
        changed: Callable[[], None],
        work: RulesWork,
        limits: RulesLimits = DEFAULT_LIMITS,
        exchange: RulesExchange | None = None,
        gate: WriteGate | None = None,
    ) -> None:
        """Start with `rules`, or with those in `storage`; None keeps them in memory.

        `changed` is called whenever other rules have come into force. By `exchange` other processes
        put the rules in force that were stored. No client puts any while the `gate` refuses writes.
        Rules that are shared have to be loaded before
        anything is judged: until then everything is denied. Raises `RulesUnreadable`, or
        `NoDescriptors`, if it is not known what is stored: then the rules are made again later.
        """
        self._exchange, self._gate = exchange, gate
        self.current = rules
        self.problem: str | None = None
        self.is_file_managed = is_file_managed
        self.epoch = 0
        self._first = rules
        self._storage: RulesStorage = MemoryRules() if storage is None else storage
        self._run_in_thread = run_in_thread
        self._changed = changed
        self._work = work
        self._limits = limits
        self._putting = DeferredLock()
        self._loading = DeferredLock()
        self._checking = DeferredLock()
        self._reported: set[str] = set()
        if self._storage.is_shared:
            self.current, self.epoch = DENY, UNKNOWN_EPOCH
        elif not is_file_managed:
            self._load(self._storage)

    async def compile_draft(self, text: bytes, deadline: float | None = None) -> RuleSet:
        """Return the rules in a document, which is not put in force.

        Raises `InvalidRules`, `DeadlinePassed` and `TooManyDrafts`. It may be cancelled.
        """
        return await self._run_draft(parse_rules_in_steps(text, self._limits), deadline)

    async def check(self, text: bytes, deadline: float | None = None) -> tuple[RulesWarning, ...]:
        """Return the warnings about a document; raise what `compile_draft` does."""
        return await self._run_draft(check_rules_in_steps(text, self._limits), deadline)

    async def _run_draft(self, steps: Steps[Result], deadline: float | None) -> Result:
        if len(self._checking.waiting) >= WAITING_DRAFTS:
            raise TooManyDrafts
        async with self._work.lock(deadline, self._checking):
            return await self._work.run_between(steps, deadline)

    async def as_json(self, deadline: float | None = None) -> Json:
        """Return the document in force as plain JSON; raise `DeadlinePassed`."""
        async with self._work.lock(deadline):
            return await self._work.run(self.current.as_json(), deadline)

    def check_condition(self, condition: ETagSet | None) -> None:
        """Raise `RulesChanged` unless the rules in force have one of the tags of a condition."""
        if condition is None:
            return
        tag = tag_of(self.current)
        if not condition.matches(tag, exists=True):
            raise RulesChanged(tag)

    def put(
        self,
        text: bytes,
        deadline: float | None = None,
        origin: Origin = UNKNOWN,
        condition: ETagSet | None = None,
        *,
        is_local: bool = False,
    ) -> Deferred[RuleSet]:
        """Put rules in force; fires with them when they are durable and in force.

        `deadline` is in seconds of the clock; `origin` is kept with their version. They replace
        only rules that meet the `condition`. Rules that are `is_local` are those of the first, not
        of a client: they are put also where no writes are accepted (`WriteGate`), and stored even
        if they cannot be used here, and then everything is denied. Raises `RulesManagedByFile`,
        and `WrittenElsewhere`; errbacks with the first,
        `InvalidRules`, `RulesChanged`, `DeadlinePassed` or `Unavailable`, and then nothing has
        changed. Cancelling stops the work as long as the document is being checked; once it has
        been, it ends the waiting only, and the rules are put all the same.
        """
        if self._gate is not None and not is_local:
            self._gate.check()
        self._check_not_file_managed()
        put = _Put(text, origin, condition, deadline, is_local=is_local)
        return Deferred.fromCoroutine(self._compile_and_put(put))

    async def list_versions(self) -> list[RulesVersion]:
        """Return the versions that are kept; raise `RulesManagedByFile` or `Unavailable`."""
        self._check_not_file_managed()
        return await self._run_with_result(self._storage.list_versions)

    async def read_version(self, number: int) -> bytes:
        """Return the text of a version.

        Raises `UnknownVersion`, `RulesManagedByFile` or `Unavailable`.
        """
        self._check_not_file_managed()
        text = await self._run_with_result(lambda: self._storage.read_version(number))
        if text is None:
            raise UnknownVersion(number)
        return text

    def report_exceeded(self, location: str, position: TextPosition) -> None:
        """Log, once for each rule in force, that a rule reads more than one request may."""
        if location not in self._reported:
            self._reported.add(location)
            self._log.warn(
                "The rule {location} at {line}:{column} of the rules would have read more than "
                "judged_characters ({budget}; half of it for a read), and denied the request.",
                location=location,
                line=position.line,
                column=position.column,
                budget=self._limits.judged_characters,
            )

    def manage_by_file(self, rules: RuleSet) -> None:
        """Put rules in force that a file of the configuration sets; none can be PUT from now on."""
        if self.is_file_managed and self.current is DENY:
            # The first reading: no stream can have been opened under other rules.
            self.current = rules
        self.is_file_managed = True
        self._enforce(rules)

    def stop_managing_by_file(self) -> None:
        """Accept rules that are PUT, since no file sets them now.

        Those in force stay until then but are not stored: the next start loads the rules that were
        PUT last, if any.
        """
        self.is_file_managed = False

    async def _compile_and_put(self, put: _Put) -> RuleSet:
        done: Deferred[None] = Deferred()
        async with self._work.lock(put.deadline):
            parsing = parse_rules_in_steps(put.text, self._limits)
            refused: InvalidRules | None = None
            try:
                rules = await self._work.run(parsing, put.deadline)
            except InvalidRules as error:
                if not put.is_local:
                    raise
                rules, refused = DENY, error
            # One after the other, so that the rules in force are those that are stored; queued
            # within the context, so that the last that arrived are in force in the end.
            putting = self._putting.run(
                lambda: Deferred.fromCoroutine(self._store_and_enforce(rules, put, refused))
            )
            putting.addCallbacks(done.callback, done.errback)
        await done
        return rules

    async def _store_and_enforce(
        self, rules: RuleSet, put: _Put, refused: InvalidRules | None
    ) -> None:
        self._check_not_file_managed()
        self._work.check_deadline(put.deadline)
        if self._storage.is_shared:
            while not await self._store_shared(put):
                self._work.check_deadline(put.deadline)
            await self.load_stored()  # with their epoch; another daemon may have been later
            return
        if self._exchange is None:
            self.check_condition(put.condition)
            await self._store(put)
            self._check_not_file_managed()
            if refused is None:
                self._enforce(rules)
            else:
                self._deny(refused, self._storage)
            return
        # One process at a time, so that all have the rules in force that were stored last.
        async with self._exchange.lock():
            self.check_condition(put.condition)
            await self._store(put)
            self._enforce(rules)
            await self._exchange.spread()

    async def _store_shared(self, put: _Put) -> bool:
        """Store where other daemons do, too; return False if one has been first meanwhile."""
        epoch = None
        if put.condition is not None:
            await self.load_stored()
            self.check_condition(put.condition)
            epoch = self.epoch
        try:
            await self._store(put, epoch)
        except RulesReplaced:
            return False
        return True

    def load_stored(self, epoch: int | None = None) -> Deferred[None]:
        """Put the rules in force that others have stored, unless those of `epoch` are.

        Errbacks with `Unavailable`, or OSError.
        """
        # One after the other, so that the last to be put in force are those that were read last.
        return self._loading.run(lambda: Deferred.fromCoroutine(self._load_stored(epoch)))

    async def _load_stored(self, known: int | None) -> None:
        storage = self._storage
        if known == self.epoch:
            return
        if self.is_file_managed and not storage.is_shared:
            return
        text, epoch = await self._run_with_result(storage.load)
        if not self.is_file_managed:
            if text is None:
                self._enforce(self._first)
            elif text != self.current.text.encode() or epoch != self.epoch:
                await self._parse_and_enforce(text, storage)
        self.epoch = epoch

    async def _parse_and_enforce(self, text: bytes, storage: RulesStorage) -> None:
        async with self._work.lock():
            try:
                rules = await self._work.run(parse_rules_in_steps(text, self._limits))
            except InvalidRules as error:
                self._deny(error, storage)
            else:
                self._enforce(rules)

    def _check_not_file_managed(self) -> None:
        if self.is_file_managed:
            raise RulesManagedByFile

    def _enforce(self, rules: RuleSet) -> None:
        self.problem = None
        if rules.text != self.current.text:
            self.current = rules
            self._reported.clear()
            self._changed()

    async def _store(self, put: _Put, epoch: int | None = None) -> None:
        await self._run_in_thread(lambda: self._storage.store(put.text, put.origin, epoch))

    async def _run_with_result(self, work: Callable[[], Result]) -> Result:
        results: list[Result] = []
        await self._run_in_thread(lambda: results.append(work()))
        return results[0]

    def _load(self, storage: RulesStorage) -> None:
        try:
            text = storage.load().text
            if text is None:
                return
            self.current = parse_rules(text, self._limits)
        except OSError as error:
            if error.errno in _LASTING_ERRNOS:
                self._deny(error, storage)
            # Else the rules are not known, so no caller is denied: clients of the real-time
            # protocol would end their listens for good.
            elif error.errno in NO_DESCRIPTOR_ERRNOS:
                raise NoDescriptors from None
            else:
                raise RulesUnreadable from error
        except InvalidRules as error:
            self._deny(error, storage)
        log_warnings(self._log, storage.label, self.current)

    def _deny(self, error: OSError | InvalidRules, storage: RulesStorage) -> None:
        """Deny everything, because what is stored cannot be used."""
        self._enforce(DENY)
        self.problem = "The stored rules cannot be used, and everything is denied: PUT others."
        self._log.error(
            "The rules in {file} cannot be used, and everything is denied: {error}",
            file=storage.label,
            error=with_hint(error),
        )


def log_warnings(log: Logger, label: str, rules: RuleSet) -> None:
    """Log the warnings about rules, which are at `label`."""
    for warning in rules.warnings:
        log.warn("{file}:{warning}", file=label, warning=str(warning))


class SlowRulesLog:
    """Logs rules that are slow, of all databases, but only so many lines a minute.

    A line names the rule that takes longest, and what helps.
    """

    _log = Logger()

    def __init__(self, least_s: float, seconds: Callable[[], float]) -> None:
        """Rules are slow that take `least_s` seconds for one request; `seconds` is the clock."""
        self._least_s = least_s
        self._lines = LineBudget(seconds)

    def measure(self, name: DatabaseName) -> SlowRulesReport:
        """Return what slow rules of a database are reported to."""
        return SlowRulesReport(self._least_s, partial(self._warn, name))

    def _warn(self, name: DatabaseName, slow: SlowRules) -> None:
        note = self._lines.take()
        if note is None:
            return
        self._log.warn(
            "Rules were slow: {ms} ms for one request to {label}, {slowest_ms} ms of them in "
            "{location} at {line}:{column} of the rules, which was evaluated {count} times. Make "
            "it read less: a small node in place of a large one, no long regular expression, no "
            ".validate for each of many children.{note}",
            ms=round(slow.seconds * 1000, 1),
            label=name.label,
            slowest_ms=round(slow.slowest_s * 1000, 1),
            location=slow.location,
            line=slow.position.line,
            column=slow.position.column,
            count=slow.count,
            note=note,
            treedb_fields={
                "project": name.project,
                "database": name.database,
                "rule": slow.location,
                "line": slow.position.line,
                "column": slow.position.column,
                "rules_ms": round(slow.seconds * 1000, 1),
            },
        )
