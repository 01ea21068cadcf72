"""The rules in force of one project: stored, loaded and replaced.

Rules that were PUT over HTTP are stored beside the databases of the project, in `rules.json`,
written whole or not at all. The rules of a project whose configuration names a rules file are
*managed by the file*: then nothing is stored here, and a PUT is a conflict.
"""

from __future__ import annotations

import pathlib
from collections.abc import Callable
from typing import Final

from twisted.internet.defer import Deferred, DeferredLock
from twisted.logger import Logger

from treedbd.database.errors import RulesManagedByFile, Unavailable
from treedbd.database.runtime import RunInThread
from treedbd.files import create_directory, write_atomically
from treedbd.limits import RulesLimits
from treedbd.rules.errors import InvalidRules
from treedbd.rules.ruleset import DEFAULT_LIMITS, DENY, RuleSet, parse_rules

RULES_FILE: Final = "rules.json"


class ActiveRules:
    """The rules of one project; `current` is the rule set in force."""

    _log = Logger()

    def __init__(
        self,
        rules: RuleSet,
        *,
        is_file_managed: bool,
        folder: pathlib.Path | None,
        run_in_thread: RunInThread,
        changed: Callable[[], None],
        limits: RulesLimits = DEFAULT_LIMITS,
    ) -> None:
        """Start with `rules`, or with those stored in `folder`; None stores nothing.

        `changed` is called whenever other rules have come into force.
        """
        self.current = rules
        self.is_file_managed = is_file_managed
        self._file = None if folder is None else folder / RULES_FILE
        self._run_in_thread = run_in_thread
        self._changed = changed
        self._limits = limits
        self._putting = DeferredLock()
        if not is_file_managed:
            self._load()

    def parse(self, text: bytes) -> RuleSet:
        """Return the rules in a document; raise `InvalidRules`."""
        return parse_rules(text, self._limits)

    def put(self, text: bytes) -> Deferred[None]:
        """Put rules in force; fires when they are durable and in force.

        Raises `InvalidRules` or `RulesManagedByFile`; errbacks with `Unavailable` or
        `RulesManagedByFile`. Cancelling ends the waiting only: the rules are put all the same.
        """
        self._check_not_file_managed()
        rules = self.parse(text)
        done: Deferred[None] = Deferred()
        # One after the other, so that the rules in force are those that are stored.
        self._putting.run(self._put, rules, text).addCallbacks(done.callback, done.errback)
        return done

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

    def _put(self, rules: RuleSet, text: bytes) -> Deferred[None]:
        return Deferred.fromCoroutine(self._store_and_enforce(rules, text))

    async def _store_and_enforce(self, rules: RuleSet, text: bytes) -> None:
        self._check_not_file_managed()
        await self._run_in_thread(lambda: self._store(text))
        self._check_not_file_managed()
        self._enforce(rules)

    def _check_not_file_managed(self) -> None:
        if self.is_file_managed:
            raise RulesManagedByFile

    def _enforce(self, rules: RuleSet) -> None:
        if rules.text != self.current.text:
            self.current = rules
            self._changed()

    def _store(self, text: bytes) -> None:
        if self._file is None:
            return
        try:
            create_directory(self._file.parent)
            write_atomically(self._file, text)
        except OSError as error:
            raise Unavailable(f"The rules cannot be stored: {error.strerror}.") from None

    def _load(self) -> None:
        if self._file is None:
            return
        try:
            self.current = self.parse(self._file.read_bytes())
        except FileNotFoundError:
            return
        except (OSError, InvalidRules) as error:
            self.current = DENY
            self._log.error(
                "The rules in {file} cannot be used, and everything is denied: {error}",
                file=str(self._file),
                error=error,
            )
