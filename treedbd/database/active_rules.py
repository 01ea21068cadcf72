"""The rules in force of one project: stored, loaded and replaced.

Rules that were PUT over HTTP are stored beside the databases of the project, in `rules.json`,
written whole or not at all. The rules of a project whose configuration names a rules file are
*managed by the file*: then nothing is stored here, and a PUT is a conflict.
"""

from __future__ import annotations

import pathlib
from collections.abc import Callable

from twisted.internet.defer import Deferred, DeferredLock
from twisted.logger import Logger

from treedbd.database.data_directory import RULES_FILE
from treedbd.database.errors import NoDescriptors, RulesManagedByFile, Unavailable
from treedbd.database.other_processes import RulesExchange
from treedbd.database.rules_work import RulesWork
from treedbd.database.runtime import RunInThread
from treedbd.files import NO_DESCRIPTOR_ERRNOS, create_directory, write_atomically
from treedbd.limits import RulesLimits
from treedbd.rules.errors import InvalidRules, TextPosition, with_hint
from treedbd.rules.ruleset import (
    DEFAULT_LIMITS,
    DENY,
    RuleSet,
    parse_rules,
    parse_rules_in_steps,
)
from treedbd.tree.types import Json


class ActiveRules:
    """The rules of one project.

    Attributes:
        current: the rule set in force.
        problem: why the stored rules are not in force, and so everything is denied; None if they
            are, or if others have been put since.

    """

    _log = Logger()

    def __init__(  # noqa: PLR0913 - all but one are given by name
        self,
        rules: RuleSet,
        *,
        is_file_managed: bool,
        folder: pathlib.Path | None,
        run_in_thread: RunInThread,
        changed: Callable[[], None],
        work: RulesWork,
        limits: RulesLimits = DEFAULT_LIMITS,
        find_misplaced: Callable[[], str | None] = lambda: None,
        exchange: RulesExchange | None = None,
    ) -> None:
        """Start with `rules`, or with those stored in `folder`; None stores nothing.

        `changed` is called whenever other rules have come into force. `find_misplaced` returns why
        nothing can be stored in `folder` at present, None if it can. By `exchange` other processes
        put the rules in force that were stored.
        """
        self._exchange = exchange
        self.current = rules
        self.problem: str | None = None
        self.is_file_managed = is_file_managed
        self._file = None if folder is None else folder / RULES_FILE
        self._run_in_thread = run_in_thread
        self._changed = changed
        self._work = work
        self._limits = limits
        self._find_misplaced = find_misplaced
        self._putting = DeferredLock()
        self._reported: set[str] = set()
        if not is_file_managed:
            self._load()

    async def check(self, text: bytes, deadline: float | None = None) -> RuleSet:
        """Return the rules in a document, which is not put in force.

        Raises `InvalidRules` and `DeadlinePassed`. It may be cancelled.
        """
        async with self._work.turn(deadline):
            return await self._work.run(parse_rules_in_steps(text, self._limits), deadline)

    async def as_json(self, deadline: float | None = None) -> Json:
        """Return the document in force as plain JSON; raise `DeadlinePassed`."""
        async with self._work.turn(deadline):
            return await self._work.run(self.current.as_json(), deadline)

    def put(self, text: bytes, deadline: float | None = None) -> Deferred[RuleSet]:
        """Put rules in force; fires with them when they are durable and in force.

        `deadline` is in seconds of the clock. Raises `RulesManagedByFile`; errbacks with that,
        `InvalidRules`, `DeadlinePassed` or `Unavailable`, and then nothing has changed. Cancelling
        stops the work as long as the document is being checked; once it has been, it ends the
        waiting only, and the rules are put all the same.
        """
        self._check_not_file_managed()
        return Deferred.fromCoroutine(self._compile_and_put(text, deadline))

    def report_exceeded(self, location: str, position: TextPosition) -> None:
        """Log, once for each rule in force, that a rule reads more than one request may."""
        if location not in self._reported:
            self._reported.add(location)
            self._log.warn(
                "The rule {location} at {line}:{column} of the rules would have read more than "
                "judged_characters ({budget}) for one request, and denied it.",
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
        """Accept rules that are PUT, since no file sets them any more.

        Those in force stay until then but are not stored: the next start loads the rules that were
        PUT last, if any.
        """
        self.is_file_managed = False

    async def _compile_and_put(self, text: bytes, deadline: float | None) -> RuleSet:
        done: Deferred[None] = Deferred()
        async with self._work.turn(deadline):
            rules = await self._work.run(parse_rules_in_steps(text, self._limits), deadline)
            # One after the other, so that the rules in force are those that are stored; queued
            # within the turn, so that the last that arrived are in force in the end.
            putting = self._putting.run(self._put, rules, text, deadline)
            putting.addCallbacks(done.callback, done.errback)
        await done
        return rules

    def _put(self, rules: RuleSet, text: bytes, deadline: float | None) -> Deferred[None]:
        return Deferred.fromCoroutine(self._store_and_enforce(rules, text, deadline))

    async def _store_and_enforce(self, rules: RuleSet, text: bytes, deadline: float | None) -> None:
        self._check_not_file_managed()
        self._work.check_deadline(deadline)
        if self._exchange is None:
            await self._run_in_thread(lambda: self._store(text))
            self._check_not_file_managed()
            self._enforce(rules)
            return
        # Processes take turns, so that all have the rules in force that were stored last.
        async with self._exchange.turn():
            await self._run_in_thread(lambda: self._store(text))
            self._enforce(rules)
            await self._exchange.spread()

    async def load_stored(self) -> None:
        """Put the rules in force that another process has stored."""
        if self.is_file_managed or self._file is None:
            return
        texts: list[bytes] = []
        file = self._file
        await self._run_in_thread(lambda: texts.append(file.read_bytes()))
        async with self._work.turn():
            rules = await self._work.run(parse_rules_in_steps(texts[0], self._limits))
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

    def _store(self, text: bytes) -> None:
        if self._file is None:
            return
        if (problem := self._find_misplaced()) is not None:
            raise Unavailable(f"The rules cannot be stored: {problem}")
        try:
            create_directory(self._file.parent)
            write_atomically(self._file, text)
        except OSError as error:
            raise Unavailable(f"The rules cannot be stored: {error.strerror}.") from None

    def _load(self) -> None:
        if self._file is None:
            return
        try:
            self.current = parse_rules(self._file.read_bytes(), self._limits)
        except FileNotFoundError:
            return
        except (OSError, InvalidRules) as error:
            if isinstance(error, OSError) and error.errno in NO_DESCRIPTOR_ERRNOS:
                raise NoDescriptors from None  # the rules are not known, so nobody is denied
            self.current = DENY
            self.problem = "The stored rules cannot be used, and everything is denied: PUT others."
            self._log.error(
                "The rules in {file} cannot be used, and everything is denied: {error}",
                file=str(self._file),
                error=with_hint(error),
            )
        log_warnings(self._log, self._file, self.current)


def log_warnings(log: Logger, file: pathlib.Path, rules: RuleSet) -> None:
    """Log the warnings about the rules in a file."""
    for warning in rules.warnings:
        log.warn("{file}:{warning}", file=str(file), warning=str(warning))
