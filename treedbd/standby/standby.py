"""A standby: it follows the first in all projects, says how old its data is, and is promoted.

Theory of operation. As long as the daemon is a standby, the gate of all writes is closed
(`WriteGate`). A promotion does these things in this order:

1. The first receives the notice that it is superseded, if it can be reached. It refuses writes
   durably from then on, and goes on with its streams. So what it has acknowledged comes to an end,
   and this standby waits until it has all of it, for some seconds.
2. The streams end; what has come is applied.
3. The term of this data directory is raised above that of the first, durably.
4. The gate is opened: writes are accepted.
5. What sessions at the first had kept for their ends is done: their owners count as dead.
6. A first that could not be reached is sent the notice until it answers, also after a restart.

A crash before 3 leaves a standby, which can be promoted again; one after it leaves a first.

A first that does not know what happened and comes back accepts writes until the notice, or asks its
peers: what it has accepted meanwhile is lost when it becomes a standby. So a promotion without its
consent is for a first that is gone.
"""

from __future__ import annotations

import pathlib
from collections.abc import Callable, Iterable
from typing import Any, Final

import attrs
from twisted.internet.defer import Deferred
from twisted.internet.interfaces import IDelayedCall
from twisted.internet.task import deferLater
from twisted.logger import Logger

from treedbd.database.catalog import Catalog
from treedbd.database.requests import Unavailable
from treedbd.database.runtime import Problem, Runtime
from treedbd.errors import OperatorError
from treedbd.loop import do_nothing, seconds_since_boot
from treedbd.standby.client import Answer, FirstClient, FirstFailed
from treedbd.standby.follower import CannotFollow, Hello, ProjectFollower
from treedbd.standby.office import TERM_PATH, Office
from treedbd.standby.term import Peer, Term, parse_shown

SUPERSEDED_PATH: Final = "/.standby/superseded.json"
NOTICE_S: Final = 5.0
"""Seconds between two notices to the old first that it was superseded."""
ASK_S: Final = 3.0
"""Seconds that the first has to answer."""
LAST_S: Final = 20.0
"""Seconds that a promotion waits for all data, and for the last of a first that has the notice."""
CLOSE_S: Final = 5.0
"""A first that can be reached does not step down for a standby with a longer lag."""
LOOK_S: Final = 0.05
SEEN_S: Final = 15.0
"""How often it is stored when this standby last had a state of the first."""
MAX_LAG_S: Final = 60.0
"""A longer lag is a problem of the service."""
DECIDING: Final = "This server first asks another one whether that was promoted; try again soon."


_LAST_MISSING: Final = (
    "{url} has stepped down, but what it had accepted last has not come: promote this again, or "
    "force it."
)
_COMPLETE: Final = "It has all that the old first had acknowledged."
_INCOMPLETE: Final = "What the old first had acknowledged last may be missing."


class CannotPromote(Unavailable):
    """A standby that is not made the first; the text says why, in a sentence."""


class NotOfStandby(OperatorError):
    """A data directory whose databases would be replaced by those of the first."""

    def __init__(self, folder: pathlib.Path) -> None:
        super().__init__(
            f"The data directory {folder}",
            "holds databases, and is that of neither a standby nor a first that one has followed",
            "choose an empty directory (data), because what it holds would be replaced",
        )


def refusal_of(url: str) -> str:
    """Return the sentence by which a standby refuses writes."""
    return f"This is a standby of {url}: write there."


class Standby:
    """Follows the first, in one process that serves the data directory.

    Attributes:
        is_following: whether this daemon is a standby now.

    """

    _log = Logger()

    def __init__(
        self,
        first: FirstClient,
        *,
        url: str | None,
        projects: Iterable[str],
        data: pathlib.Path,
        catalog: Catalog,
        runtime: Runtime,
        office: Office,
    ) -> None:
        """Follow `first` in these projects; `url` is how it reaches this standby, if it can."""
        self.is_following = False
        self._first, self._url, self._data = first, url, data
        self._catalog, self._runtime, self._office = catalog, runtime, office
        self._clock: Any = runtime.clock
        self._projects = sorted(projects)
        self._followers: list[ProjectFollower] = []
        self._seen: IDelayedCall | None = None
        self._notifying: Deferred[None] | None = None
        self._notice_pause: Deferred[None] | None = None
        self._is_promoting = self._is_stopped = False
        self._lag_bias_s: float | None = None
        self._began = seconds_since_boot()
        self.changed: Callable[[], None] = do_nothing

    # The start.

    def start(self) -> None:
        """Follow, or be the first if this directory was promoted; writes are refused until then."""
        term = self._office.term
        if not term.id or term.role != "first":
            self._begin(term)
            return
        self._runtime.gate.refusal = DECIDING
        Deferred.fromCoroutine(self._decide(term)).addErrback(self._fail)

    def refuse_writes(self) -> None:
        """Refuse writes, before anything is served."""
        self._office.is_standby = True
        self._runtime.gate.refusal = refusal_of(self._first.url)

    def check(self) -> None:
        """Raise `NotOfStandby` if this directory has data that was never followed."""
        if not self._office.term.id and len(self._catalog.written):
            raise NotOfStandby(self._data)

    async def _decide(self, term: Term) -> None:
        """Follow a first of a higher term, or one that this one never replaced."""
        was_promoted = term.first_url == self._first.url
        try:
            answer = await self._first.ask("GET", TERM_PATH, self._projects[0], timeout_s=ASK_S)
            other = parse_shown(answer.json).term
        except (FirstFailed, LookupError, TypeError) as error:
            follows = not was_promoted
            self._log.warn(
                "{url} does not say its term ({error}).", url=self._first.url, error=error
            )
        else:
            follows = other > term.term or (other == term.term and not was_promoted)
        if self._is_stopped:
            return
        if follows:
            self._begin(term)
            return
        self._log.warn(
            "standby_of is set, but this daemon was promoted in the place of {url}: it is the "
            "first. Remove standby_of from its configuration.",
            url=self._first.url,
        )
        self._become_first()
        self._notify_again()

    def _begin(self, term: Term) -> None:
        self.refuse_writes()
        self.is_following = True
        self._lag_bias_s = self._stored_lag_s(term)
        for project in self._projects:
            follower = ProjectFollower(
                project,
                first=self._first,
                catalog=self._catalog,
                runtime=self._runtime,
                data=self._data,
                describe=self._describe_request,
                met=self._meet,
                completed=self._note_complete,
            )
            self._followers.append(follower)
        Deferred.fromCoroutine(self._take_office()).addErrback(self._fail)

    async def _take_office(self) -> None:
        """Record that this is a standby, then follow."""
        now_ms, url = self._runtime.now_ms(), self._first.url
        await self._office.change(
            lambda own: own.to_standby(own.term, url, now_ms) if own.role != "standby" else own
        )
        self._log.info("This daemon is a standby of {url}.", url=url)
        for follower in self._followers:
            if not self._is_stopped:
                follower.start()

    def _fail(self, failure: Any) -> None:
        self._log.failure("The standby cannot follow.", failure)

    async def stop(self) -> None:
        """Apply what has come, and follow no longer."""
        self._is_stopped = True
        if self._seen is not None and self._seen.active():
            self._seen.cancel()
            if self.is_following and all(each.is_complete for each in self._followers):
                await self._note_seen()
        if self._notice_pause is not None:
            self._notice_pause.cancel()
        for follower in self._followers:
            await follower.stop()

    # What is known of the first.

    def _describe_request(self) -> dict[str, object]:
        term = self._office.term
        return {"standby": term.id, "term": term.term, "url": self._url}

    async def _meet(self, hello: Hello) -> bool:
        """Note whom this follows; return whether databases are deleted here that it does not have.

        They are not if it is in the place of another one without a promotion (`Term.knows`). Raises
        `CannotFollow` for a first of a lower term.
        """
        term = self._office.term
        if hello.term < term.term:
            raise CannotFollow(f"it is in the term {hello.term}, and this standby in {term.term}")
        if hello.id == term.id:
            raise CannotFollow("it has the data directory of this standby, or a copy of it")
        is_known = term.knows(hello.id, hello.term)
        now_ms, url = self._runtime.now_ms(), self._first.url
        if [each.id for each in term.peers[-1:]] == [hello.id] and hello.term == term.term:
            return is_known
        await self._office.change(
            lambda own: own.to_standby(hello.term, url, now_ms).with_peer(
                Peer(hello.id, url, _seen_ms(own, hello.id), not is_known)
            )
        )
        if not is_known:
            self._log.warn(
                "{url} has another data directory than before: what it has replaces what is here, "
                "but databases that it does not have are kept.",
                url=url,
            )
        return is_known

    # Lag.

    def lag_s(self) -> float:
        """Return how many seconds old the data may be."""
        lags = [each.lag_s() for each in self._followers]
        known = [each for each in lags if each is not None]
        if len(known) < len(lags) or not lags:
            known.append((self._lag_bias_s or 0.0) + seconds_since_boot() - self._began)
        return max(known)

    def lag_ms(self) -> int:
        """Return the same in milliseconds, for responses."""
        return max(0, int(self.lag_s() * 1000))

    def find_lag_s(self) -> float | None:
        """Return the same for a metric, None if this is not a standby."""
        return self.lag_s() if self.is_following else None

    def _stored_lag_s(self, term: Term) -> float:
        """Return how old the data is at the start, by when it was last caught up."""
        seen_ms = term.peers[-1].seen_ms if term.peers and term.role == "standby" else 0
        seen_ms = seen_ms or term.changed_ms
        return max(0.0, (self._runtime.now_ms() - seen_ms) / 1000) if seen_ms else 0.0

    def _note_complete(self) -> None:
        """Store at once that all projects have had a state of the first, as it is again later."""
        if all(each.is_complete for each in self._followers):
            if self._seen is not None and self._seen.active():
                self._seen.cancel()
            self._store_seen()

    def _store_seen(self) -> None:
        self._seen = self._clock.callLater(SEEN_S, self._store_seen)
        Deferred.fromCoroutine(self._note_seen()).addErrback(lambda _: None)

    async def _note_seen(self) -> None:
        seen_ms = self._runtime.now_ms() - self.lag_ms()

        def note(own: Term) -> Term:
            if own.role != "standby" or not own.peers or own.peers[-1].seen_ms >= seen_ms:
                return own
            return own.with_peer(attrs.evolve(own.peers[-1], seen_ms=seen_ms))

        await self._office.change(note)

    @property
    def is_complete(self) -> bool:
        """Whether this standby has ever had a state of the first, in all projects."""
        if all(each.is_complete for each in self._followers):
            return True
        peers = self._office.term.peers
        is_loading = any(each.is_loading for each in self._followers)
        return bool(peers and peers[-1].seen_ms) and not is_loading

    def problems(self) -> list[Problem]:
        """Return what is wrong, for the health of the service."""
        if not self.is_following:
            return []
        if not self._is_promoting and any(each.has_last for each in self._followers):
            reason = (
                f"{self._first.url} accepts no writes, because another server was promoted: follow "
                "that one (standby_of), or promote this one."
            )
            return [Problem("", None, reason, refuses_writes=False)]
        found = [
            Problem(
                each.project,
                None,
                f"This standby does not follow {self._first.url} ({each.problem}); its data is "
                f"{self.lag_s():.0f} s old.",
                refuses_writes=False,
            )
            for each in self._followers
            if each.problem is not None
        ]
        if not found and not self.is_complete:
            reason = "This standby has not received all data of the first yet."
            found.append(Problem("", None, reason, refuses_writes=False))
        if not found and self.lag_s() > MAX_LAG_S:
            reason = f"The data of this standby is {self.lag_s():.0f} s old."
            found.append(Problem("", None, reason, refuses_writes=False))
        return found

    def describe(self) -> dict[str, Any]:
        """Return what an admin may know."""
        shown = dict(self._office.describe())
        if self.is_following:
            shown |= {
                "standby_of": self._first.url,
                "lag_ms": self.lag_ms(),
                "is_complete": self.is_complete,
                "problems": [each.reason for each in self.problems()],
            }
        return shown

    # Promotion.

    async def promote(self, is_forced: bool) -> dict[str, Any]:
        """Make this daemon the first; return what its admin is shown. Raises `CannotPromote`.

        Forced, also if it has not received all data yet.
        """
        if not self.is_following or self._is_promoting:
            raise CannotPromote("This server is not a standby, or is being promoted already.")
        self._is_promoting = True
        try:
            if not is_forced:
                await self._check_data()
            return await self._promote(is_forced)
        finally:
            self._is_promoting = False

    async def _check_data(self) -> None:
        """Raise `CannotPromote` if this would serve less than the first has, as far as is known.

        A first that can be reached is not made to step down before this standby follows it closely.
        """
        for project in self._projects:
            problem = self._catalog.rules(project).problem
            if problem is not None:
                raise CannotPromote(f"{project}: {problem} Promote another one, or force it.")
        if not await self._wait_for_all():
            raise CannotPromote(
                "This standby has not received all data of the first yet, and would serve less "
                "than that has: promote another one, or force it."
            )
        if not await self._is_reachable():
            return
        for each in self._followers:
            each.hurry()
        await self._wait_until(self._is_close)
        if not self._is_close():
            reasons = [each.problem for each in self._followers if each.problem is not None]
            reason = reasons[0] if reasons else f"its data is {self.lag_s():.0f} s old"
            raise CannotPromote(
                f"{self._first.url} can be reached, but this standby does not follow it closely "
                f"({reason}), and would serve less than that has: promote another one, or force it."
            )

    async def _is_reachable(self) -> bool:
        """Return whether the first answers."""
        try:
            await self._first.ask("GET", TERM_PATH, self._projects[0], timeout_s=ASK_S)
        except FirstFailed:
            return False
        return True

    def _is_close(self) -> bool:
        """Return whether all of the first comes here without much delay."""
        return all(each.problem is None for each in self._followers) and self.lag_s() < CLOSE_S

    async def _promote(self, is_forced: bool) -> dict[str, Any]:
        lag_ms = self.lag_ms()
        terms = [each.hello.term for each in self._followers if each.hello is not None]
        term = max([self._office.term.term, *terms]) + 1
        term, is_notified = await self._notify_before(term, is_forced)
        is_current = is_notified and await self._wait_for_last()
        if is_notified and not (is_current or is_forced):
            raise CannotPromote(_LAST_MISSING.format(url=self._first.url))
        for follower in self._followers:
            await follower.stop()
        self._followers = []
        now_ms = self._runtime.now_ms()
        await self._office.change(lambda own: own.to_first(term, now_ms))
        self._become_first()
        self._log.info(
            "This daemon was promoted: it is the first, in the term {term}. {state}",
            term=term,
            state=_COMPLETE if is_current else _INCOMPLETE,
        )
        if not is_notified:
            self._notify_again()
        return {
            "term": term,
            "role": "first",
            "is_current": is_current,
            "lag_ms": 0 if is_current else lag_ms,
        }

    def _become_first(self) -> None:
        self._office.start()  # while it is a standby: writes need not wait for the first check
        self.is_following = self._office.is_standby = False
        self._runtime.gate.refusal = None
        self._catalog.run_left()
        self.changed()

    async def _wait_for_all(self) -> bool:
        """Wait for data that is on its way; return whether it is complete."""

        def is_cut_off() -> bool:
            return any(each.problem is not None for each in self._followers)

        await self._wait_until(lambda: self.is_complete or is_cut_off())
        return self.is_complete

    async def _wait_for_last(self) -> bool:
        """Wait for what a first has left that has stepped down; return whether all is here."""

        def has_last() -> bool:
            return all(each.has_last for each in self._followers)

        for each in self._followers:
            each.hurry()
        await self._wait_until(has_last)
        return has_last()

    async def _wait_until(self, is_so: Callable[[], bool]) -> None:
        """Wait for something that comes by the streams, up to `LAST_S`."""
        end_at = seconds_since_boot() + LAST_S
        while not is_so() and seconds_since_boot() < end_at:
            await deferLater(self._clock, LOOK_S)
            self.lag_s()  # which looks at what has come

    async def _notify_before(self, term: int, is_forced: bool) -> tuple[int, bool]:
        """Send the notice before the promotion.

        Return the term of the promotion, and whether the old first has stepped down for it. Raises
        `CannotPromote` if that refuses to, unless forced. A daemon that was promoted before, in its
        place, has newer data: then the term is above that of it, too.
        """
        answer = await self._notify(term)
        if answer is None or answer.status != 409:
            return term, answer is not None and answer.status == 200
        if not is_forced:
            raise CannotPromote(f"{self._first.url} refuses to step down: {answer.error}")
        other = _term_in(answer)
        return (term if other is None else max(term, other.term + 1)), False

    async def _notify(self, term: int) -> Answer | None:
        """Send the old first the notice; return its answer, None if there is none."""
        try:
            body = {
                "term": term,
                "id": self._office.term.id,
                "url": self._url,
                "tokens": self._first.tokens(),
            }
            return await self._first.ask(
                "POST", SUPERSEDED_PATH, self._projects[0], body, timeout_s=ASK_S
            )
        except FirstFailed as error:
            self._log.info(
                "{url} does not know yet that it is superseded: {error}.",
                url=self._first.url,
                error=error,
            )
            return None

    def _notify_again(self) -> None:
        self._notifying = Deferred.fromCoroutine(self._notify_until_known())

    async def _notify_until_known(self) -> None:
        while not self._is_stopped:
            own = self._office.term
            answer = await self._notify(own.term)
            if answer is not None and answer.status == 200:
                return
            other = None if answer is None else _term_in(answer)
            if other is not None and other.term >= own.term:
                # Another standby of the same first was promoted before this one.
                await self._office.supersede(other.term, other.first_url, yields=True)
                return
            self._notice_pause = deferLater(self._clock, NOTICE_S)
            try:
                await self._notice_pause
            except Exception:
                return
            finally:
                self._notice_pause = None


def _term_in(answer: Answer) -> Term | None:
    """Return the term that a refusal of a notice shows; None if it has another reason."""
    if answer.status != 409:
        return None
    try:
        return parse_shown(answer.json)
    except (LookupError, TypeError):
        return None


def _seen_ms(term: Term, peer: str) -> int:
    return next((each.seen_ms for each in term.peers if each.id == peer), 0)
