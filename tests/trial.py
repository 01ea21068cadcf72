"""A workload and followers of its stream, over a list of base URLs, and the verdict on them."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from typing import Final, Self

import attrs

from tests.closing import Closing
from tests.history import (
    BadHistory,
    Outcome,
    check_push_keys,
    check_pushed,
    check_unique_writes,
)
from tests.linearizability import check_linearizable
from tests.stream_follower import Follower
from tests.stream_judge import Verdict, check_events
from tests.workload import Plan, Workload, fetch


@attrs.frozen
class Report:
    """The counts of a trial in which nothing was found to be wrong."""

    operations: int
    outcomes: dict[str, int]
    streams: list[Verdict]

    def __str__(self) -> str:
        parts = [f"{self.operations:,} operations"]
        parts += [f"{count:,} {name}" for name, count in self.outcomes.items() if count]
        parts += [
            f"stream {number}: {each.events:,} events in order, {each.restarts} restarts"
            for number, each in enumerate(self.streams)
        ]
        return "\n".join(parts)


class Trial(Closing):
    """Clients that do what a plan says, while followers watch all of it.

    `urls` may change meanwhile, as after a restart. Between `start` and `finish` a test may do to
    the daemons, and to the connections of the followers, what they have to bear.
    """

    def __init__(self, urls: Sequence[str], plan: Plan, followers: int = 2) -> None:
        """Open the streams; the root of the plan has to be empty."""
        self.plan: Final = plan
        self.workload: Final = Workload(urls, plan)
        self.followers: Final[list[Follower]] = []
        self._urls = urls
        self._stack = contextlib.ExitStack()
        self._root = f"/{plan.root}"
        stream = "&".join(filter(None, ["resume=true", plan.query]))
        for number in range(followers):
            follower = Follower(urls, f"{self._root}.json?{stream}", number)
            self.followers.append(self._stack.enter_context(follower))

    def start(self) -> Self:
        """Start the clients."""
        self.workload.start()
        return self

    def finish(self) -> None:
        """Wait until all operations have ended and all followers have received the last one."""
        self.workload.join()
        self.workload.finish()
        last = [each for each in self.workload.history if each.register == self.plan.end][-1]
        for follower in self.followers:
            follower.await_child(self.plan.end.rpartition("/")[2], last.argument)

    def check(self, *, restarts: int = 0, is_alone: bool = True) -> Report:
        """Judge what happened; raise `BadHistory` with an explanation if anything is wrong.

        `restarts` is how often each stream may start over with the whole value; `is_alone` says
        that nobody else writes to the database.
        """
        history = self.workload.history
        check_unique_writes(history)
        check_linearizable(history)
        check_push_keys(history)
        self._check_end()
        streams = [
            check_events(each.events, history, self._root, restarts=restarts, is_alone=is_alone)
            for each in self.followers
        ]
        operations = list(history)
        outcomes = {
            outcome.value: sum(each.outcome is outcome for each in operations)
            for outcome in Outcome
        }
        return Report(len(operations), outcomes, streams)

    def close(self) -> None:
        """End the clients and the followers."""
        self.workload.stop()
        self._stack.close()

    def _check_end(self) -> None:
        """Check that what is there now at each URL is what followers and pushes say."""
        for url in self._urls:
            present = fetch(url, self.plan.target(self._root))
            pushed = present.get(self.plan.log.rpartition("/")[2], {})
            check_pushed(self.workload.history, {self.plan.log: pushed})
            for number, follower in enumerate(self.followers):
                if not follower.replica.equals(present):
                    raise BadHistory(f"Stream {number} led to another value than {url} has.")
