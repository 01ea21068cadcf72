"""Series: how many requests, errors and commits a project had in each of the last seconds.

They are recorded only while an admin has asked for them within the last `RECORDED_S`, from what the
connections note anyway (`web/activity`) and from commits, which are measured meanwhile. Each second
ends at the middle of a second of the clock, so the seconds of several processes, which are added
up, are numbered alike however late a turn of the reactor is.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from math import floor
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import attrs

from treedbd.database.requests import PermissionDenied
from treedbd.database.runtime import Statistics
from treedbd.http1.registry import AnsweredRequest
from treedbd.http1.request import IHttp1Request
from treedbd.names import DatabaseName
from treedbd.tree.types import Json
from treedbd.web.activity import Activity
from treedbd.web.request import Question
from treedbd.web.seen_requests import INSPECTING, format_time

if TYPE_CHECKING:
    from twisted.internet.interfaces import IDelayedCall

    from treedbd.web.context import WebContext

STEPS: Final = 120
"""Seconds that are shown."""
RECORDED_S: Final = 60.0
"""For so many seconds a project is recorded after an admin has asked for its series."""
MAX_RECORDED: Final = 100
"""Projects that are recorded."""
MEASURED_COMMITS: Final = 4096
"""Commits of a second whose times are kept; those of more are not among the quantiles."""

EARLY_S: Final = 0.25

COUNTS: Final = ("requests", "errors", "denied", "writes", "commits")
Second: TypeAlias = tuple[int, list[int], list[float] | None]
"""Its number, the `COUNTS`, and the quantiles 50 and 99 of the milliseconds of its commits."""


@attrs.define(eq=False)
class _Counts:
    requests: int = 0
    bad: int = 0
    denied: int = 0
    denied_messages: int = 0
    writes: int = 0
    commits: int = 0
    commit_s: list[float] = attrs.field(factory=list)

    def end(self, number: int) -> Second:
        """Return what was counted in the second with a number."""
        errors = max(0, self.bad - self.denied)  # a denial may be counted before its reply is sent
        denied = self.denied + self.denied_messages
        counts = [self.requests, errors, denied, self.writes, self.commits]
        times = sorted(self.commit_s)
        if not times:
            return number, counts, None
        median, slow = times[len(times) // 2], times[len(times) * 99 // 100]
        return number, counts, [round(median * 1000, 2), round(slow * 1000, 2)]


class _Recorded:
    """The seconds of one project."""

    def __init__(self) -> None:
        self.until = 0.0
        self.now = _Counts()
        self.seconds: deque[Second] = deque(maxlen=STEPS)


class SeriesRecorder:
    """Records the series of the projects whose admins ask for them."""

    def __init__(
        self,
        context: WebContext,
        activity: Activity,
        statistics: Statistics,
        switch: Callable[[bool], None],
    ) -> None:
        """Count what `activity` and `statistics` count.

        `switch` is called with whether anything is recorded from now on, when that changes.
        """
        self._clock, self._wall_clock = context.clock, context.wall_clock
        self._activity, self._statistics, self._switch = activity, statistics, switch
        self._recorded: dict[str, _Recorded] = {}
        self._due: IDelayedCall | None = None

    def of_this_process(self, project: str) -> list[Second]:
        """Return the seconds that this process has recorded, and record for a while longer."""
        recorded = self._recorded.pop(project, None) or _Recorded()
        recorded.until = self._clock.seconds() + RECORDED_S
        while len(self._recorded) >= MAX_RECORDED:
            del self._recorded[next(iter(self._recorded))]
        self._recorded[project] = recorded
        if self._due is None:
            self._begin()
        return list(recorded.seconds)

    def close(self) -> None:
        """Record nothing from now on."""
        self._recorded.clear()
        if self._due is not None:
            self._due.cancel()
            self._end()

    def show(self, parts: Sequence[Sequence[Second]]) -> Json:
        """Return the series of a project, added up from what several processes have recorded."""
        last = floor(self._wall_clock() - 0.5)
        counts = {name: [0] * STEPS for name in COUNTS}
        quantiles: list[list[float | None]] = [[None] * STEPS, [None] * STEPS]
        for number, counted, times in (second for part in parts for second in part):
            at = number - last + STEPS - 1
            if not 0 <= at < STEPS:
                continue
            for name, count in zip(COUNTS, counted, strict=True):
                counts[name][at] += count
            for values, time in zip(quantiles, times or (), strict=False):
                values[at] = max(time, values[at] or 0.0)  # those of the slowest process
        begun = min((part[0][0] for part in parts if part), default=None)
        shown: dict[str, Any] = {"step_s": 1, "to": format_time(last + 0.5)}
        shown["since"] = None if begun is None else format_time(begun - 0.5)
        shown |= counts
        shown["commit_p50_ms"], shown["commit_p99_ms"] = quantiles
        return shown

    # Counting.

    def note_refusal(self, request: IHttp1Request, error: BaseException, _: str) -> None:
        """Count a denial of the rules that a request is answered with."""
        question = request.head_memory.question
        if isinstance(error, PermissionDenied) and isinstance(question, Question):
            recorded = self._recorded.get(question.name.project)
            if recorded is not None:
                recorded.now.denied += 1

    def note_denial(self, name: DatabaseName) -> None:
        """Count a denial of the rules that a session is answered with."""
        recorded = self._recorded.get(name.project)
        if recorded is not None:
            recorded.now.denied_messages += 1

    def _see_answered(self, requests: Iterable[AnsweredRequest]) -> None:
        for memory, _, status, _, _, _ in requests:
            question = memory.question
            if isinstance(question, Question):
                recorded, path = (
                    self._recorded.get(question.name.project),
                    question.wanted.admin_path,
                )
                if recorded is not None and (path is None or INSPECTING not in path):
                    recorded.now.requests += 1
                    recorded.now.bad += status >= 400

    def _see_commit(self, project: str, writes: int, seconds: float) -> None:
        recorded = self._recorded.get(project)
        if recorded is not None:
            now = recorded.now
            now.commits += 1
            now.writes += writes
            if len(now.commit_s) < MEASURED_COMMITS:
                now.commit_s.append(seconds)

    # Seconds.

    def _begin(self) -> None:
        self._activity.count()  # what was noted before is not of this second
        self._statistics.count()
        self._activity.see = self._see_answered
        self._statistics.show_commits(self._see_commit)
        self._switch(True)
        self._wait()

    def _end(self) -> None:
        self._due = None
        self._activity.see = None
        self._statistics.hide_commits(self._see_commit)
        self._switch(False)

    def _wait(self) -> None:
        """Wait for the middle of a second; the clocks may differ by a little."""
        wait_s = 1 - (self._wall_clock() - 0.5) % 1
        self._due = self._clock.callLater(wait_s + (wait_s < EARLY_S), self._end_second)

    def _end_second(self) -> None:
        self._activity.count()
        self._statistics.count()
        number, now = floor(self._wall_clock()), self._clock.seconds()
        for project, recorded in list(self._recorded.items()):
            recorded.seconds.append(recorded.now.end(number))
            recorded.now = _Counts()
            if recorded.until <= now:
                del self._recorded[project]
        if self._recorded:
            self._wait()
        else:
            self._end()
