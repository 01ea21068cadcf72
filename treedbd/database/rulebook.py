"""The rules in force of one project: judging by them, keeping them, and telling when they change.

Rules that were put over HTTP lie beside the project's databases, in `rules.json`, written whole or
not at all. A project whose configuration names a rules file is *governed* by it: then nothing is
kept here, and a PUT is a conflict.
"""

from __future__ import annotations

import pathlib
from collections.abc import Callable

from twisted.internet.defer import Deferred, DeferredLock
from twisted.logger import Logger

from treedbd.database.platform import RunCommit
from treedbd.database.question import READ_DENIED, Caller, PermissionDenied, Unavailable
from treedbd.rules.evaluation import Context, QueryFacts
from treedbd.rules.limits import RulesLimits
from treedbd.rules.refusal import InvalidRules
from treedbd.rules.ruleset import DEFAULT_LIMITS, DENY, RuleSet, parse_rules
from treedbd.store.files import make_directory, write_new
from treedbd.tree.path import Path
from treedbd.tree.view import View

RULES_FILE = "rules.json"


class Governed(Exception):
    """The rules of this project are set by its configuration; they cannot be put."""


class Rulebook:
    """What one project's rules allow."""

    _log = Logger()

    def __init__(
        self,
        rules: RuleSet,
        *,
        is_governed: bool,
        folder: pathlib.Path | None,
        run_commit: RunCommit,
        changed: Callable[[], None],
        limits: RulesLimits = DEFAULT_LIMITS,
    ) -> None:
        """Begin with `rules`, or with those kept in `folder`; None keeps them in memory only.

        `changed` is called whenever other rules have come into force.
        """
        self.rules = rules
        self.is_governed = is_governed
        self._file = None if folder is None else folder / RULES_FILE
        self._run_commit = run_commit
        self._changed = changed
        self._limits = limits
        self._putting = DeferredLock()
        if not is_governed:
            self._load()

    def check_read(
        self, path: Path, caller: Caller, now: int, view: View, query: QueryFacts | None = None
    ) -> None:
        """Raise `PermissionDenied` unless `caller` may read `path`, by a query where there is one.

        `now` is in milliseconds since 1970; `view` is what is there.
        """
        if not self.may_read(path, caller, now, view, query):
            raise PermissionDenied(READ_DENIED)

    def may_read(
        self, path: Path, caller: Caller, now: int, view: View, query: QueryFacts | None = None
    ) -> bool:
        """Tell whether `caller` may read `path`."""
        if caller.is_admin:
            return True
        return self.rules.may_read(path, Context(caller.auth, now, view, query)).allowed

    def parse(self, text: bytes) -> RuleSet:
        """Return the rules in a document; raise `InvalidRules`."""
        return parse_rules(text, self._limits)

    def put(self, text: bytes) -> Deferred[None]:
        """Put rules in force; fires once they are durable and hold.

        Raises `InvalidRules` or `Governed`; errbacks with `Unavailable` or `Governed`. Whoever
        cancels waits no longer, and the rules are put all the same.
        """
        self._check_ungoverned()
        rules = self.parse(text)
        done: Deferred[None] = Deferred()
        # One after the other, so that those in force are those that were kept.
        self._putting.run(self._put, rules, text).addCallbacks(done.callback, done.errback)
        return done

    def govern(self, rules: RuleSet) -> None:
        """Put rules in force that a file of the configuration sets; none can be put from now on."""
        if self.is_governed and self.rules is DENY:
            # The first reading: nobody has been let in by other rules.
            self.rules = rules
        self.is_governed = True
        self._enforce(rules)

    def release(self) -> None:
        """Let rules be put, since no file governs any more; those in force stay until then.

        They are not kept: the next start finds those that were put last, or none.
        """
        self.is_governed = False

    def _put(self, rules: RuleSet, text: bytes) -> Deferred[None]:
        def enforce(_: None) -> None:
            self._check_ungoverned()
            self._enforce(rules)

        self._check_ungoverned()
        return self._run_commit(lambda: self._keep(text)).addCallback(enforce)

    def _check_ungoverned(self) -> None:
        if self.is_governed:
            raise Governed("The rules of this project are set by a file in its configuration.")

    def _enforce(self, rules: RuleSet) -> None:
        if rules.text != self.rules.text:
            self.rules = rules
            self._changed()

    def _keep(self, text: bytes) -> None:
        if self._file is None:
            return
        try:
            make_directory(self._file.parent)
            write_new(self._file, text)
        except OSError as error:
            raise Unavailable(f"The rules cannot be kept: {error.strerror}.") from None

    def _load(self) -> None:
        if self._file is None:
            return
        try:
            self.rules = self.parse(self._file.read_bytes())
        except FileNotFoundError:
            return
        except (OSError, InvalidRules) as error:
            self.rules = DENY
            self._log.error(
                "The rules in {file} are no good, and everything is denied: {error}",
                file=str(self._file),
                error=error,
            )
