"""Rates: how much callers may do in each second.

Theory of operation. Each client address, user and project has a token bucket for each rate, of
which only a time is stored: the *level*, when the bucket will be full again. Taking one from a
bucket advances the level by the time in which one is refilled. A bucket is empty when its level is
a whole burst ahead of the clock, and full when it is in the past; then it need not be stored
(`counting.Levels`). Bytes are known only after they were sent: they are taken whatever the level
is, and a caller whose bucket is overdrawn is refused until it is refilled.

A request is counted for its address before anything else is done for it, for its project when that
is known, and for its user when the token is verified. If one of them refuses it, those before have
counted it already. What the program that embeds the service does by itself is not counted.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Final

import attrs

from treedbd.counting import Levelling, Levels
from treedbd.http1.adapter import AdaptedRequest
from treedbd.http1.parser import ErrorReply
from treedbd.http1.request import IHttp1Request, size_of_body
from treedbd.limits import RateLimits
from treedbd.loop import network_of
from treedbd.web.auth.identity import Identity
from treedbd.web.auth.verifier import Authenticator
from treedbd.web.request import Question
from treedbd.web.response import address_of

if TYPE_CHECKING:
    from treedbd.config.settings import Settings

_HEALTH: Final = [b".health"]


class TooManyRequests(Exception):
    """A caller has used up a rate.

    Attributes:
        retry_after_s: after how many whole seconds a retry can succeed, at least 1.

    """

    def __init__(self, what: str, rate: int, setting: str, wait_s: float) -> None:
        """Say what was too much; `setting` is the key of the limit."""
        self.retry_after_s: Final = max(1, math.ceil(wait_s))
        super().__init__(
            f"Too many {what}: at most {rate} a second ({setting}). "
            f"Try again in {self.retry_after_s} s."
        )


@attrs.frozen(eq=False)
class _Bucket:
    """The buckets of all callers for one rate.

    `levels` stores them under keys that begin with `setting`; one is refilled in `interval`
    seconds, and a whole bucket in `burst` seconds.
    """

    levels: Levelling
    setting: str
    what: str
    rate: int
    interval: float
    burst: float

    def take(self, caller: str, now: float) -> None:
        """Take one; raise `TooManyRequests` if there is none."""
        levels, key = self.levels, self.setting + caller
        level = levels.get(key)
        if level <= now:
            levels.set(key, now + self.interval)
            return
        level += self.interval
        wait = level - now - self.burst
        if wait > 0:
            # Stored unchanged, so that it does not expire as unused.
            levels.set(key, level - self.interval)
            raise TooManyRequests(self.what, self.rate, self.setting, wait)
        levels.set(key, level)

    def take_anyway(self, caller: str, count: int, now: float) -> None:
        """Take `count`, even if there are fewer."""
        key = self.setting + caller
        self.levels.set(key, max(self.levels.get(key), now) + count * self.interval)

    def check(self, caller: str, now: float) -> None:
        """Raise `TooManyRequests` if the bucket is overdrawn."""
        key = self.setting + caller
        level = self.levels.get(key)
        wait = level - now - self.burst
        if wait > 0:
            self.levels.set(key, level)
            raise TooManyRequests(self.what, self.rate, self.setting, wait)


@attrs.frozen(eq=False)
class _Buckets:
    """The rates of one kind of callers; None where there is no limit."""

    requests: _Bucket | None
    writes: _Bucket | None
    bytes: _Bucket | None
    is_any: bool

    def take(self, caller: str, now: float, *, is_write: bool) -> None:
        """Count a request; raise `TooManyRequests`."""
        if self.bytes is not None:
            self.bytes.check(caller, now)
        if self.requests is not None:
            self.requests.take(caller, now)
        if is_write and self.writes is not None:
            self.writes.take(caller, now)


def _make_buckets(rates: RateLimits, kind: str, whom: str, levels: Levelling) -> _Buckets:
    def make(measure: str) -> _Bucket | None:
        setting = f"{measure}_per_{kind}"
        rate: int = getattr(rates, setting)
        if not rate:
            return None
        # However short a burst is, a full bucket holds one.
        burst = max(rates.burst_s, 1 / rate)
        return _Bucket(
            levels=levels,
            setting=setting,
            what=f"{measure} {whom}",
            rate=rate,
            interval=1 / rate,
            burst=burst,
        )

    made = make("requests"), make("writes"), make("bytes")
    return _Buckets(*made, is_any=any(made))


class Rates:
    """Counts what callers do, and refuses what exceeds a rate.

    Attributes:
        counts_bytes: whether `note_bytes` has to be called at all.

    """

    def __init__(
        self,
        rates: RateLimits,
        of_projects: Mapping[str, RateLimits],
        authenticator: Authenticator,
        seconds: Callable[[], float],
        levels: Levelling | None = None,
    ) -> None:
        """Count by the clock `seconds`, which all who share `levels` have in common.

        `of_projects` are the rates of those projects that have rates of their own.
        """
        levels = Levels() if levels is None else levels
        self._recall = authenticator.recall
        self._seconds = seconds
        self._address = _make_buckets(rates, "address", "from this address", levels)
        self._of_others = _make_pair(rates, levels)
        self._of_projects = {name: _make_pair(each, levels) for name, each in of_projects.items()}
        buckets = [self._address, *self._of_others]
        buckets += [each for pair in self._of_projects.values() for each in pair]
        self.counts_bytes: Final = any(each.bytes is not None for each in buckets)
        self._has_uid_bytes = any(
            pair[0].bytes is not None for pair in (self._of_others, *self._of_projects.values())
        )

    # Requests, in the order in which they are counted.

    def take_address(self, request: IHttp1Request) -> None:
        """Count a request for its address; raise `TooManyRequests`, but not for `/.health`."""
        buckets = self._address
        if not buckets.is_any:
            return
        try:
            buckets.take(network_of(address_of(request)), self._seconds(), is_write=False)
        except TooManyRequests:
            # A probe must not report the server as failed because its address is busy.
            if request.postpath != _HEALTH:
                raise

    def take_project(self, request: IHttp1Request, project: str, *, is_write: bool) -> None:
        """Count a request for its project, and a write for its address too."""
        if is_write and self._address.writes is not None:
            self._address.writes.take(network_of(address_of(request)), self._seconds())
        buckets = self._of_projects.get(project, self._of_others)[1]
        if buckets.is_any:
            buckets.take(project, self._seconds(), is_write=is_write)

    def take_user(self, project: str, identity: Identity, *, is_write: bool) -> None:
        """Count a request for its user; admins and anonymous callers have no rate."""
        buckets = self._of_projects.get(project, self._of_others)[0]
        if not buckets.is_any:
            return
        uid = identity.uid
        if uid is not None:
            buckets.take(f"{project}/{uid}", self._seconds(), is_write=is_write)

    def refuse_malformed(self, address: str) -> ErrorReply | None:
        """Count a malformed request; return the reply if there were too many, else None."""
        if self._address.requests is None:
            return None
        try:
            self._address.requests.take(network_of(address), self._seconds())
        except TooManyRequests as error:
            return ErrorReply(429, "too_many_requests", str(error), error.retry_after_s)
        return None

    # Bytes.

    def note_answered(self, request: Any) -> None:
        """Count the bytes of an answered request; those of a stream are counted elsewhere."""
        self.note_sent(request, request.sentLength)

    def note_sent(self, request: Any, sent: int) -> None:
        """Count the bytes of a request of whose response `sent` bytes were sent."""
        self._note(request, size_of_body(request) + sent)

    def follow(self, request: AdaptedRequest) -> None:
        """Count the bytes of an adapted request when it ends."""
        if self.counts_bytes:
            received = size_of_body(
                request
            )  # now, because that server closes the body before the end
            request.notifyFinish().addBoth(
                lambda _: self._note(request, received + request.sentLength)
            )

    def _note(self, request: Any, count: int) -> None:
        if request.code == 429:
            return  # else a client that retries too early would never be served
        question = request.head_memory.question
        project, uid = None, None
        if isinstance(question, Question):
            if question.wanted.accepts_events:
                return  # the registry of streams counts them
            project = question.name.project
            if question.wanted.token is not None and self._has_uid_bytes:
                identity = self._recall(project, question.wanted.token)
                uid = None if identity is None else identity.uid
        self.note_bytes(address_of(request), project, uid, count)

    def note_bytes(
        self, address: str | None, project: str | None, uid: str | None, count: int
    ) -> None:
        """Count bytes for an address, a project and a user of it, each unless it is None."""
        now = self._seconds()
        if address is not None and self._address.bytes is not None:
            self._address.bytes.take_anyway(network_of(address), count, now)
        if project is None:
            return
        of_users, of_project = self._of_projects.get(project, self._of_others)
        if of_project.bytes is not None:
            of_project.bytes.take_anyway(project, count, now)
        if uid is not None and of_users.bytes is not None:
            of_users.bytes.take_anyway(f"{project}/{uid}", count, now)


def _make_pair(rates: RateLimits, levels: Levelling) -> tuple[_Buckets, _Buckets]:
    """Return the rates of users and of projects."""
    return (
        _make_buckets(rates, "uid", "of this user", levels),
        _make_buckets(rates, "project", "of this project", levels),
    )


def make_rates(
    settings: Settings,
    levels: Levelling | None,
    authenticator: Authenticator,
    seconds: Callable[[], float],
) -> Rates | None:
    """Return the rates of the settings, None if they limit nothing."""
    rates = settings.rates
    of_projects = {
        name: attrs.evolve(rates, **project.rates)
        for name, project in settings.projects.items()
        if project.rates
    }
    plain = RateLimits(burst_s=rates.burst_s)
    if rates == plain and all(each == plain for each in of_projects.values()):
        return None
    return Rates(
        rates=rates,
        of_projects=of_projects,
        authenticator=authenticator,
        seconds=seconds,
        levels=levels,
    )
