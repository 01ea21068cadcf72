"""The right to watch: granted to a watcher at the start, and checked again while it watches.

A `ReadGrant` records what the rules read when they allowed it. It is registered at those paths like
any watcher, and is checked again when a commit touches one of them, before watchers are notified of
that commit; a rule that reads nothing but `auth` costs nothing for a commit. Rules that read the
time are checked again whenever something is about to be sent (`ReadGrant.is_timed`).

Each write of a batch is followed by itself: a grant that depends on it is checked against the state
that it made, whatever the next ones do. If that state is not known, it is uncertain whether the
grant held there. A grant that cannot be checked is revoked.

Many checks are done in slices. The database is in a round meanwhile, so what was just committed is
not sent before the checks are over. When the rules change there is no such order: a grant
`must_be_checked` before anything is sent, unless it has been checked by then.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Final

import attrs
from twisted.logger import Logger

from treedbd.database.requests import Caller, PermissionDenied
from treedbd.database.slices import Steps
from treedbd.database.watchers import Notification, Watchers, do_nothing
from treedbd.rules.context import Dependencies, QueryFacts, WrittenPaths
from treedbd.rules.ruleset import RuleSet
from treedbd.store.nodes import Nodes
from treedbd.tree.event import Commit, Event
from treedbd.tree.overlay import StateUnknown
from treedbd.tree.types import Path, View

if TYPE_CHECKING:
    from treedbd.database.database import Database
    from treedbd.database.resume import Replay


_NOTHING: Final = Dependencies(frozenset(), reads_time=False)
_WRITTEN: Final = Event("put", (), None)
"""That something was written is all that a grant is notified of."""


@attrs.frozen
class ReadRequest:
    """Which caller wants to watch which path, by which query; `now` returns milliseconds."""

    caller: Caller
    path: Path
    query: QueryFacts | None
    now: Callable[[], int]

    def check(self, database: Database, nodes: Nodes) -> None:
        """Raise as `Database.check_read` unless the rules allow it, without a grant."""
        database.check_read(self.path, self.caller, self.now(), nodes, self.query)


class ReadGrant:
    """The right to one read; held from the first `check` that does not raise until it is closed."""

    __slots__ = (
        "_depends_on",
        "_grants",
        "_request",
        "_revoked",
        "_rules",
        "_uncertain",
    )
    _log = Logger()

    def __init__(
        self,
        grants: ReadGrants,
        request: ReadRequest,
        revoked: Callable[[], None],
        uncertain: Callable[[], None],
    ) -> None:
        """Call `revoked` when the right is lost later, `uncertain` when it may have been lost.

        It may have been, for a moment, if the state is not known that a write has made which
        changed what the rules read: what was written in that moment must not be sent.
        """
        self._grants = grants
        self._request = request
        self._revoked = revoked
        self._uncertain = uncertain
        self._depends_on = _NOTHING
        self._rules: RuleSet | None = None

    @property
    def is_timed(self) -> bool:
        """Whether time alone can revoke the grant."""
        return self._depends_on.reads_time

    @property
    def is_outdated(self) -> bool:
        """Whether the grant is held under rules that are not in force any more."""
        return self._rules is not self._grants.rules.current and self in self._grants.held

    @property
    def must_be_checked(self) -> bool:
        """Whether time or other rules may have revoked the grant since it was checked."""
        # Called for each stream and event: `is_outdated` and `is_timed`, without further calls.
        return self._depends_on.reads_time or (
            self._rules is not self._grants.rules.current and self in self._grants.held
        )

    def held_through(
        self, checked: int, nodes: Nodes, written: WrittenPaths, rules: Iterable[str]
    ) -> bool:
        """Return whether the grant holds at a state, and held when these paths were written before.

        `checked` is the number of the state for which it was checked last; for another it is
        checked again. `rules` are the fingerprints of the rules that were in force when the paths
        were written. False if anything is uncertain.
        """
        if self._request.caller.is_admin:
            return True
        if self not in self._grants.held:
            return False
        if nodes.rows.sequence() != checked or self.is_outdated:
            try:
                self.check(nodes)
            except PermissionDenied:
                return False
        fingerprint = self._grants.rules.current.fingerprint
        if any(former != fingerprint for former in rules):
            return False
        return not self.is_timed and not self._depends_on.touched_by(written)

    def check(self, view: View) -> None:
        """Evaluate the rules against `view`; raise `PermissionDenied`."""
        request = self._request
        if request.caller.is_admin:
            return
        grants = self._grants
        context = grants.database.rights.context(
            request.caller.auth, request.now(), view, request.query
        )
        self._rules = grants.rules.current
        verdict = self._rules.may_read(request.path, context, record=True)
        if not verdict.allowed:
            self.close()
            raise PermissionDenied("this read")
        self._grants.held.add(self)
        self._depend_on(verdict.dependencies or _NOTHING)

    def check_again(self, view: View) -> None:
        """Evaluate the rules against an older state, then the present one; see `check`."""
        self.check(view)
        self.recheck()  # what it depends on may have changed since

    def notify(self, _: Notification) -> None:
        """Check again: a path that the rules read was written."""
        grants = self._grants
        if self in grants.held:
            if not self._is_allowed():
                grants.lost.append(self._revoked)
            elif grants.is_uncertain:
                grants.lost.append(self._uncertain)

    def recheck(self) -> bool:
        """Check again; return whether the grant still holds."""
        if self not in self._grants.held:
            return self._request.caller.is_admin
        if not self._is_allowed():
            self._revoked()
            return False
        return True

    def _is_allowed(self) -> bool:
        """Check again; close the grant if the rules deny."""
        try:
            self._grants.read_state(self.check)
        except Exception as error:
            if not isinstance(error, PermissionDenied):
                self._log.failure("The read rules of a stream cannot be evaluated.")
            self.close()
            return False
        return True

    def close(self) -> None:
        """Release the grant."""
        self._grants.held.discard(self)
        self._depend_on(_NOTHING)

    def end(self) -> None:
        """Release the grant for good, and drop what is called, so that it keeps no watcher."""
        self.close()
        self._revoked = self._uncertain = do_nothing

    def _depend_on(self, found: Dependencies) -> None:
        watchers = self._grants.watchers
        for path in self._depends_on.paths - found.paths:
            watchers.remove(path, self)
        for path in found.paths - self._depends_on.paths:
            # Whatever is checked from the beginning of a round on, has seen all of it.
            watchers.add(path, self, since=self._grants.state)
        self._depends_on = found


class ReadGrants:
    """The grants of all watchers of one database."""

    def __init__(self, database: Database) -> None:
        """Evaluate the rules of `database` for its present state."""
        self.database: Final = database
        self.rules: Final = database.rules
        self.watchers: Final = Watchers()
        self.held: Final[set[ReadGrant]] = set()
        self.lost: list[Callable[[], None]] = []
        self.is_uncertain = False
        self.last_round = 0
        self._replay: Replay | None = None

    @property
    def state(self) -> int:
        """The number of the state that grants are checked against."""
        return self.last_round if self._replay is None else self._replay.through

    def follow(
        self, commit: Commit, replay: Replay | None, deliver: Callable[[], Steps], *, is_last: bool
    ) -> Steps:
        """Check the grants that depend on what a write has changed.

        `replay` shows the state after it; if it `is_last`, reads do as well. Before a watcher
        learns that it has lost its right, `deliver` notifies of the writes before this one.
        """
        if not self.held:
            return
        sequence = commit.position.sequence
        is_present = is_last and not self.database.is_behind(sequence)
        notification = Notification(((commit.position, _WRITTEN),))
        for each in self.watchers.concerned(commit):
            audience = None if each is None else each.node.audience
            for grant in [] if audience is None else list(audience.watchers):
                if audience is not None and audience.watchers.get(grant, sequence) < sequence:
                    self._replay = None if is_present else replay
                    self.is_uncertain = not is_present and replay is None
                    grant.notify(notification)
                    self._replay = None
                    if self.lost:
                        lost, self.lost = self.lost, []
                        yield from deliver()
                        for call in lost:
                            call()
                yield
            yield

    def read_state(self, work: Callable[[View], None]) -> None:
        """Run work on the state that grants are checked against."""
        if self._replay is None:
            self.database.read(work)
            return
        try:
            work(self._replay.view)
        except StateUnknown:
            self._replay, self.is_uncertain = None, True
            self.database.read(work)

    def recheck(self) -> Steps:
        """Check all grants, because the rules have changed."""
        for grant in list(self.held):
            if grant.is_outdated:
                grant.recheck()
                yield
