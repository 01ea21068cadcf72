"""The right to go on watching: judged at the start, and again whenever it may have changed.

A permit records what the rules read to grant it. It hangs on those paths like any observer and is
judged again when a commit touches one of them, before anyone hears of that commit; a rule that
reads nothing but `auth` costs nothing per commit. Rules that ask for the time are judged again
whenever something is about to be sent: `is_timed` says so to whoever sends.

A permit is judged by what a whole batch left behind; whether it held between the writes of the
batch may be in doubt. One that cannot be judged is withdrawn.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Final, TypeAlias

import attrs
from twisted.logger import Logger

from treedbd.database.question import READ_DENIED, Caller, PermissionDenied
from treedbd.database.rulebook import Rulebook
from treedbd.database.watchers import Notice, Watchers
from treedbd.rules.dependencies import Dependencies
from treedbd.rules.evaluation import Context, QueryFacts
from treedbd.tree.event import Telling
from treedbd.tree.path import Path
from treedbd.tree.view import View

Read: TypeAlias = Callable[[Callable[[View], None]], None]

_NOTHING = Dependencies(frozenset(), now=False)


@attrs.frozen
class Claim:
    """What somebody wants to watch: who, which path, by which query; `now` tells the time in ms."""

    caller: Caller
    path: Path
    query: QueryFacts | None
    now: Callable[[], int]


class Permits:
    """The permits of everyone who watches one database."""

    def __init__(self, rulebook: Rulebook, read: Read) -> None:
        """Judge by `rulebook`; `read` runs work on what is there now."""
        self.rulebook: Final = rulebook
        self.guards: Final = Watchers()
        self.held: Final[set[Permit]] = set()
        self.read: Final = read
        self.is_plural = False

    def tell(self, tellings: Sequence[Telling]) -> None:
        """Judge anew those whose right rests on what the writes of one batch have changed."""
        self.is_plural = len(tellings) > 1
        self.guards.tell(tellings)

    def recheck(self) -> None:
        """Judge all anew, because the rules have changed."""
        for permit in list(self.held):
            permit.recheck()


class Permit:
    """One claim; granted from the first `judge` that does not raise until it is closed."""

    _log = Logger()

    def __init__(
        self,
        permits: Permits,
        claim: Claim,
        revoked: Callable[[], None],
        doubted: Callable[[], None],
    ) -> None:
        """Call `revoked` when the right is taken away later, `doubted` when it may have been.

        It may have been, for a moment, where one batch has several writes and one of them changed
        what the right rests on: what was written in that moment must not be heard.
        """
        self._permits = permits
        self._claim = claim
        self._revoked = revoked
        self._doubted = doubted
        self._rests_on = _NOTHING

    @property
    def is_timed(self) -> bool:
        """Whether the time alone may take the right away."""
        return self._rests_on.now

    def held_through(self, written: Iterable[Path], rules: str) -> bool:
        """Tell whether the right, if it is there now, was there when these paths were written.

        `rules` is the fingerprint of those that held then. False where it cannot be told.
        """
        if self._claim.caller.is_admin:
            return True
        if rules != self._permits.rulebook.rules.fingerprint:
            return False
        return not self.is_timed and not self._rests_on.touched_by(written)

    def judge(self, view: View) -> None:
        """Judge by what is there now; raise `PermissionDenied`."""
        claim = self._claim
        if claim.caller.is_admin:
            return
        context = Context(claim.caller.auth, claim.now(), view, claim.query)
        verdict = self._permits.rulebook.rules.may_read(claim.path, context, record=True)
        if not verdict.allowed:
            self.close()
            raise PermissionDenied(READ_DENIED)
        self._permits.held.add(self)
        self._rest_on(verdict.dependencies or _NOTHING)

    def notify(self, _: Notice) -> None:
        """Hear that something was written that the rules had read."""
        if self.recheck() and self._permits.is_plural:
            self._doubted()

    def recheck(self) -> bool:
        """Judge anew; tell whether the right is still there."""
        if self not in self._permits.held:
            return self._claim.caller.is_admin
        try:
            self._permits.read(self.judge)
        except Exception as error:
            if not isinstance(error, PermissionDenied):
                self._log.failure("A permit cannot be judged.")
            self.close()
            self._revoked()
            return False
        return True

    def close(self) -> None:
        """Give the right up."""
        self._permits.held.discard(self)
        self._rest_on(_NOTHING)

    def _rest_on(self, found: Dependencies) -> None:
        guards = self._permits.guards
        for path in self._rests_on.paths - found.paths:
            guards.remove(path, self)
        for path in found.paths - self._rests_on.paths:
            guards.add(path, self, since=0)
        self._rests_on = found
