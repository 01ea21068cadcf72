"""Activity: what clients do with the databases, how long it takes, and which requests are slowest.

A connection only notes each answered request. What was noted is counted once a second, when it is
many requests, or when the counts are read, so a request costs next to nothing here. `Activity`
counts by database, for admins; `RequestCounts` by project, method, status and code, for metrics.

Nothing that a client chooses becomes a label of a metric. A project has its own name there if it is
configured, or in development mode if it is one of the first `MAX_OTHERS` that exist; all others
count under the empty name.
"""

from __future__ import annotations

import heapq
from bisect import bisect_left
from collections import Counter, deque
from collections.abc import Awaitable, Callable, Collection, Iterable, Sequence
from typing import Final, TypeAlias

import attrs
from twisted.internet.interfaces import IReactorTime
from twisted.web.http import SWITCHING

from treedbd.counting import Histogram
from treedbd.database.requests import PermissionDenied
from treedbd.http1.registry import AnsweredRequest
from treedbd.http1.request import IHttp1Request, shown_path
from treedbd.names import DatabaseName
from treedbd.tree.path import format_path
from treedbd.web.auth.jwt import BadToken
from treedbd.web.request import METHODS, READING, DataRequest, Question

MAX_NOTED: Final = 65_536
"""Answered requests that wait to be counted; beyond them, the oldest are dropped."""
MAX_DATABASES: Final = 4096
"""Databases that are counted; beyond them, the half with the fewest requests is dropped."""
SLOWEST: Final = 20
SLOW_S: Final = 60.0
"""The slowest requests of this many seconds are kept, and those of the period before."""
MAX_PATH: Final = 200


@attrs.define(eq=False)
class _Total:
    requests: int = 0
    seconds: float = 0.0


@attrs.frozen(order=True)
class SlowRequest:
    """One of the slowest requests.

    Attributes:
        at: when it was counted, in seconds of the clock.
        path: the path as admins see it, or the request that it is computed from when needed.

    """

    seconds: float
    at: float
    name: DatabaseName = attrs.field(order=False)
    method: str
    path: DataRequest | str = attrs.field(order=False)
    status: int


@attrs.frozen
class ProjectActivity:
    """What clients did with the databases of a project, since the process began.

    Attributes:
        for_s: how many seconds ago the process began.
        totals: the requests to each database by its label, and the seconds they took in all,
            without those of streams.
        slowest: the slowest of the last two minutes: seconds, seconds ago, label, method, path and
            status.

    """

    for_s: float
    totals: dict[str, tuple[int, float]]
    slowest: list[tuple[float, float, str, str, str, int]]


Measure: TypeAlias = Callable[[Sequence[DatabaseName]], Awaitable[Sequence[int]]]
"""Returns how many bytes databases have on the disk."""
AskOthers: TypeAlias = Callable[[str], Awaitable[Sequence[ProjectActivity]]]
"""Asks the other processes that serve the same databases about a project."""


class Activity:
    """Counts the answered requests of this process.

    Attributes:
        answered: those that were not counted yet.
        see: what is called with the answered requests too; None if nothing is.

    """

    def __init__(
        self,
        clock: IReactorTime,
        measure: Measure | None = None,
        ask_others: AskOthers | None = None,
        count_too: Callable[[Iterable[AnsweredRequest]], None] | None = None,
    ) -> None:
        """Measure time by `clock`.

        `measure` is None if nothing is stored on a disk, `ask_others` if no other process serves.
        `count_too` is called with the answered requests before they are counted here.
        """
        self._count_too = count_too
        self.see: Callable[[Iterable[AnsweredRequest]], None] | None = None
        self.answered: Final[deque[AnsweredRequest]] = deque(maxlen=MAX_NOTED)
        self._clock = clock
        self._measure = measure
        self._ask_others = ask_others
        self._began = clock.seconds()
        self._totals: dict[DatabaseName, _Total] = {}
        self._slowest: list[SlowRequest] = []
        self._slowest_before: list[SlowRequest] = []
        self._next_minute = self._began + SLOW_S

    def count(self) -> None:
        """Count what was answered since the last call."""
        now = self._clock.seconds()
        if now >= self._next_minute:
            self._slowest_before, self._slowest = self._slowest, []
            self._next_minute = now + SLOW_S
        answered = self.answered
        if self._count_too is not None:
            self._count_too(answered)
        if self.see is not None:
            self.see(answered)
        is_slow = False
        while answered:
            memory, method, status, seconds, _, _ = answered.popleft()
            question = memory.question
            if not isinstance(question, Question):
                continue  # it addressed no database
            total = self._totals.get(question.name)
            if total is None:
                if len(self._totals) >= MAX_DATABASES:
                    self._forget_idle()
                total = self._totals[question.name] = _Total()
            total.requests += 1
            if question.wanted.accepts_events:
                continue
            total.seconds += seconds
            if len(self._slowest) < SLOWEST or seconds > self._slowest[0].seconds:
                self._keep_slow(question, method, status, seconds, now)
                is_slow = True
        if is_slow:  # formatting a long path takes long: only the kept ones are
            self._slowest = list(map(_with_path, self._slowest))

    def _forget_idle(self) -> None:
        """Make room: clients may address any number of databases that do not exist."""
        totals = heapq.nlargest(
            MAX_DATABASES // 2, self._totals.items(), key=lambda item: item[1].requests
        )
        self._totals = dict(totals)

    def _keep_slow(
        self, question: Question, method: bytes, status: int, seconds: float, now: float
    ) -> None:
        name, wanted = question.name, question.wanted
        slow = SlowRequest(
            seconds=seconds,
            at=now,
            name=name,
            method=method.decode("ascii"),
            path=wanted,
            status=status,
        )
        keep = heapq.heappush if len(self._slowest) < SLOWEST else heapq.heapreplace
        keep(self._slowest, slow)

    def of_this_process(self, project: str) -> ProjectActivity:
        """Return what this process has counted of a project."""
        self.count()
        now = self._clock.seconds()
        oldest = now - 2 * SLOW_S
        kept = (*self._slowest, *self._slowest_before)
        slowest = heapq.nlargest(SLOWEST, (each for each in kept if each.at >= oldest))
        return ProjectActivity(
            now - self._began,
            {
                name.label: (total.requests, total.seconds)
                for name, total in self._totals.items()
                if name.project == project
            },
            [
                (
                    each.seconds,
                    now - each.at,
                    each.name.label,
                    each.method,
                    str(each.path),
                    each.status,
                )
                for each in slowest
                if each.name.project == project
            ],
        )

    async def of(self, project: str) -> ProjectActivity:
        """Return what all processes have counted of a project."""
        own = self.of_this_process(project)
        if self._ask_others is None:
            return own
        return add_up([own, *await self._ask_others(project)])

    async def measure(self, names: Sequence[DatabaseName]) -> Sequence[int | None]:
        """Return how many bytes databases have on the disk, None for what is in memory."""
        return [None] * len(names) if self._measure is None else await self._measure(names)


def _with_path(slow: SlowRequest) -> SlowRequest:
    wanted = slow.path
    if isinstance(wanted, str):
        return slow
    path = wanted.admin_path or format_path(wanted.place.path).encode()
    end = path.find(b"/", MAX_PATH)  # a token is recognised in a whole segment only
    shown = shown_path(path if end < 0 else path[:end])
    if end >= 0 or len(shown) > MAX_PATH:
        shown = shown[:MAX_PATH] + "…"
    return attrs.evolve(slow, path=shown)


def add_up(parts: Sequence[ProjectActivity]) -> ProjectActivity:
    """Return the sum of what several processes, at least one, have counted of a project."""
    totals: dict[str, tuple[int, float]] = {}
    for part in parts:
        for label, (requests, seconds) in part.totals.items():
            requests_before, seconds_before = totals.get(label, (0, 0.0))
            totals[label] = (requests_before + requests, seconds_before + seconds)
    slowest = heapq.nlargest(SLOWEST, (each for part in parts for each in part.slowest))
    return ProjectActivity(max(part.for_s for part in parts), totals, slowest)


MAX_OTHERS: Final = 100
"""Projects that are not configured but are counted under their own name."""
_OTHER_METHOD: Final = b"other"


class RequestCounts:
    """Counts since the start.

    Attributes:
        answered: requests by method, status and project.
        seconds: how long each request took; streams and WebSockets are left out.
        sent, received: bytes of bodies by project; streams are left out.
        refused: refusals by the code of the error.
        denied: denials of the rules by project and operation: `read`, `stream` or `write`.
        bad_tokens: invalid tokens, by the reason.

    """

    def __init__(self, projects: Collection[str], *, any_project: bool = False) -> None:
        """Count by these projects; with `any_project` also by the first others that exist."""
        self.answered: Final[Counter[tuple[bytes, int, str]]] = Counter()
        self.seconds: Final = Histogram()
        self.sent: Final[Counter[str]] = Counter()
        self.received: Final[Counter[str]] = Counter()
        self.refused: Final[Counter[str]] = Counter()
        self.denied: Final[Counter[tuple[str, str]]] = Counter()
        self.bad_tokens: Final[Counter[str]] = Counter()
        self._projects = set(projects)
        self._room = MAX_OTHERS if any_project else 0

    def label_of(self, project: str) -> str:
        """Return the name under which an existing project is counted."""
        if project not in self._projects:
            if not self._room:
                return ""
            self._room -= 1
            self._projects.add(project)
        return project

    def add(self, requests: Iterable[AnsweredRequest]) -> None:
        """Count answered requests."""
        # Called for each request, so it has few calls and look-ups of attributes.
        answered, sent, received, known = self.answered, self.sent, self.received, self._projects
        bounds, counts, total = self.seconds.bounds, self.seconds.counts, 0.0
        for memory, method, status, seconds, sent_bytes, received_bytes in requests:
            question, project, is_stream = memory.question, "", False
            if isinstance(question, Question):
                project = question.name.project
                is_stream = question.wanted.accepts_events
                if project not in known:
                    project = self.label_of(project)
            answered[method if method in METHODS else _OTHER_METHOD, status, project] += 1
            if not is_stream and status != SWITCHING:
                counts[bisect_left(bounds, seconds)] += 1
                total += seconds
                if sent_bytes:
                    sent[project] += sent_bytes
                if received_bytes:
                    received[project] += received_bytes
        self.seconds.total += total

    def note_refusal(self, request: IHttp1Request, error: BaseException, code: str) -> None:
        """Count an error, which has this code, that a request is answered with."""
        self.refused[code] += 1
        if isinstance(error, BadToken):
            self.bad_tokens[error.reason] += 1
        elif isinstance(error, PermissionDenied):
            question = request.head_memory.question
            if isinstance(question, Question):
                operation = "write"
                if question.wanted.method in READING:
                    operation = "stream" if question.wanted.accepts_events else "read"
                self.denied[self.label_of(question.name.project), operation] += 1
