"""Of all daemons over PostgreSQL one reads, and stops before another one begins."""

from __future__ import annotations

import contextlib
import pathlib
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise
from typing import Any, Final, TypeVar

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from twisted.internet.defer import Deferred, execute
from twisted.internet.task import Clock
from twisted.logger import capturedLogs

from tests.closing import Closing
from tests.examples import examples
from tests.postgresql import PostgresqlServers
from tests.system import wait_until
from treedbd.cluster.election import BELIEF_S, LeaseElection
from treedbd.database.election import POLL_S
from treedbd.loop import do_nothing, seconds_since_boot
from treedbd.store.engine import StoreUnreachable
from treedbd.store.postgresql import schema
from treedbd.store.postgresql.cluster import READER_LEASE_S, ReaderLeases
from treedbd.store.postgresql.connection import PostgresqlSettings
from treedbd.store.postgresql.schema import prepare_schema

T = TypeVar("T")
STEP_S: Final = 0.25
TAKEOVER_S: Final = READER_LEASE_S + 2 * POLL_S
"""Seconds after which another daemon is elected: it sees the lease, waits, and looks again."""
CHILD: Final = """
import sys
from twisted.internet import reactor
from twisted.internet.task import LoopingCall
from treedbd.cluster.connections import ClusterConnections
from treedbd.cluster.election import LeaseElection
from treedbd.loop import seconds_since_boot
from treedbd.store.postgresql.connection import PostgresqlSettings
settings = PostgresqlSettings(sys.argv[1], patience_s=2.0)
connections = ClusterConnections(settings, reactor, retain=10, is_strict=True)
connections.connect()
election = LeaseElection("archive", connections, reactor)
def sample():
    begin = seconds_since_boot()
    if election.is_elected:
        print(begin, flush=True)
LoopingCall(sample).start(0.02)
election.start(lambda: None)
reactor.run()
"""


class Connections:
    """The connections of a daemon, whose work is done in place, or later, or not at all.

    Attributes:
        daemon: the name of the daemon.
        mode: how PostgreSQL answers: "now"; "away"; "late", the work is done when `go_on` is
            called; "unheard", it is done now, and answered then; "lost", it is done, and fails.

    """

    def __init__(self, daemon: str, leases: ReaderLeases, mode: str) -> None:
        self.daemon = daemon
        self.readers = leases
        self.mode = mode
        self._waiting: list[Callable[[], object]] = []

    @property
    def store(self) -> Connections:
        return self

    def run(self, work: Callable[[], T]) -> Deferred[T]:
        if self.mode == "now":
            return execute(work)
        if self.mode in {"away", "lost"}:
            return execute(self._fail, work if self.mode == "lost" else do_nothing)
        done: Deferred[T] = Deferred()
        if self.mode == "late":
            self._waiting.append(lambda: execute(work).addCallbacks(done.callback, done.errback))
        else:
            outcome = execute(work)
            self._waiting.append(lambda: outcome.addCallbacks(done.callback, done.errback))
        return done

    def go_on(self) -> None:
        """Do or answer what waits."""
        waiting, self._waiting = self._waiting, []
        for each in waiting:
            each()

    def _fail(self, work: Callable[[], object]) -> Any:
        work()
        raise StoreUnreachable("PostgreSQL cannot be reached.")


class CandidateDaemon:
    """One daemon: its election, its clock, and its connections."""

    def __init__(self, number: int, leases: ReaderLeases, mode: str = "now") -> None:
        self.clock = Clock()
        self.connections = Connections(f"daemon-{number}", leases, mode)
        connections: Any = self.connections
        self.election = LeaseElection(
            "archive", connections, self.clock, lambda: self.clock.rightNow
        )
        self.changes: list[bool] = []
        self.is_stopped = False
        self.election.start(lambda: self.changes.append(self.election.is_elected))

    @property
    def is_elected(self) -> bool:
        return self.election.is_elected

    def pass_time(self, seconds: float) -> None:
        """Let time pass; if its process is stopped, nothing is done meanwhile."""
        if self.is_stopped:
            self.clock.rightNow += seconds
        else:
            self.clock.advance(seconds)

    def stop(self) -> None:
        Deferred.fromCoroutine(self.election.stop())


class Daemons(Closing):
    """Some daemons over one PostgreSQL, whose clocks run alike."""

    def __init__(self, leases: ReaderLeases, count: int = 2) -> None:
        self.leases = leases
        self.all = [CandidateDaemon(number, leases) for number in range(count)]

    def pass_time(self, seconds: float) -> None:
        """Let time pass in small steps; no two may be elected."""
        for _ in range(round(seconds / STEP_S)):
            for each in self.all:
                each.pass_time(STEP_S)
                self.check()

    def check(self) -> None:
        assert len(self.elected) <= 1, self.elected

    @property
    def elected(self) -> list[int]:
        return [number for number, each in enumerate(self.all) if each.is_elected]

    def close(self) -> None:
        for each in self.all:
            each.connections.mode = "away"
            each.stop()
            each.connections.go_on()


@pytest.fixture
def leases(clean_server: PostgresqlServers) -> Iterator[ReaderLeases]:
    found = PostgresqlSettings(clean_server.dsn)
    prepare_schema(found)
    made = ReaderLeases(found)
    yield made
    made.close()


@pytest.fixture
def daemons(leases: ReaderLeases) -> Iterator[Daemons]:
    with Daemons(leases) as made, capturedLogs():
        yield made


def test_one_daemon_is_elected_and_renews_its_lease(daemons: Daemons) -> None:
    assert daemons.elected == [0]
    seen = daemons.leases.find("archive")
    daemons.pass_time(30)
    assert daemons.elected == [0]
    assert [each.changes for each in daemons.all] == [[True], []]
    found = daemons.leases.find("archive")
    assert seen is not None
    assert found is not None
    assert found.ends > seen.ends


def test_a_stop_gives_the_lease_up_and_another_daemon_has_it_at_its_next_look(
    daemons: Daemons,
) -> None:
    daemons.pass_time(POLL_S)
    daemons.all[0].stop()
    assert daemons.elected == []
    assert daemons.leases.find("archive") is None
    assert daemons.all[0].clock.getDelayedCalls() == []
    daemons.pass_time(POLL_S)
    assert daemons.elected == [1]


def test_a_daemon_that_is_stopped_is_not_elected_when_it_goes_on(daemons: Daemons) -> None:
    first, second = daemons.all
    first.is_stopped = True
    daemons.pass_time(BELIEF_S)
    assert not first.is_elected
    daemons.pass_time(TAKEOVER_S - BELIEF_S)
    assert daemons.elected == [1]
    first.is_stopped = False
    daemons.pass_time(30)
    assert daemons.elected == [1]
    assert (first.changes, second.changes) == ([True, False], [True])


def test_a_daemon_that_is_cut_off_stops_reading_before_another_begins(daemons: Daemons) -> None:
    first, _ = daemons.all
    first.connections.mode = "away"
    daemons.pass_time(BELIEF_S)
    assert first.changes == [True, False]
    daemons.pass_time(TAKEOVER_S - BELIEF_S)
    assert daemons.elected == [1]
    first.connections.mode = "now"
    daemons.pass_time(30)
    assert daemons.elected == [1]


def test_that_is_reported_also_while_a_renewal_hangs(daemons: Daemons) -> None:
    first, _ = daemons.all
    first.connections.mode = "late"
    daemons.pass_time(BELIEF_S)
    assert first.changes == [True, False]


def test_after_postgresql_was_away_for_all_the_same_daemon_goes_on(daemons: Daemons) -> None:
    for each in daemons.all:
        each.connections.mode = "away"
    daemons.pass_time(60)
    assert daemons.elected == []
    for each in reversed(daemons.all):
        each.connections.mode = "now"
        daemons.pass_time(POLL_S)
    assert daemons.elected == [0]
    daemons.pass_time(30)
    assert daemons.elected == [0]
    assert [each.changes for each in daemons.all] == [[True, False, True], []]


def test_a_lease_that_was_taken_though_the_answer_is_lost_is_renewed(leases: ReaderLeases) -> None:
    daemon = CandidateDaemon(0, leases, "late")
    with capturedLogs():
        daemon.connections.mode = "lost"
        daemon.connections.go_on()
    assert not daemon.is_elected
    assert leases.find("archive") is not None
    daemon.connections.mode = "now"
    daemon.pass_time(POLL_S)
    assert daemon.is_elected
    daemon.stop()
    assert leases.find("archive") is None


def test_a_clock_of_postgresql_that_steps_changes_nothing(
    daemons: Daemons, clean_server: PostgresqlServers
) -> None:
    for step in ("- interval '1 hour'", "+ interval '1 hour'"):
        clean_server.primary.query(f"UPDATE treedb.readers SET ends = ends {step}")
        daemons.pass_time(READER_LEASE_S)
        assert daemons.elected == [0]
    clean_server.primary.query("UPDATE treedb.readers SET ends = ends + interval '1 hour'")
    daemons.all[0].is_stopped = True
    daemons.pass_time(TAKEOVER_S)
    assert daemons.elected == [1]


def test_tables_of_version_3_get_the_leases_and_lose_nothing(
    clean_server: PostgresqlServers, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = PostgresqlSettings(clean_server.dsn)
    monkeypatch.setattr(schema, "VERSION", 3)
    cluster = prepare_schema(found)
    query = clean_server.primary.query
    assert query("SELECT to_regclass('treedb.readers')") == [(None,)]
    query("INSERT INTO treedb.projects (project, rules) VALUES ('shop', '{}')")
    monkeypatch.undo()
    assert prepare_schema(found) == cluster
    assert query("SELECT project, epoch FROM treedb.projects") == [("shop", 1)]
    with contextlib.closing(ReaderLeases(found)) as leases:
        assert leases.take("archive", "daemon-1", None)


def test_a_lease_is_taken_only_as_it_was_seen_and_renewed_or_given_up_by_its_daemon(
    leases: ReaderLeases,
) -> None:
    assert leases.take("archive", "daemon-1", None)
    assert not leases.take("archive", "daemon-2", None)
    seen = leases.find("archive")
    assert leases.renew("archive", "daemon-1")
    assert not leases.take("archive", "daemon-2", seen)
    leases.give_up("archive", "daemon-2")
    assert leases.take("archive", "daemon-2", leases.find("archive"))
    assert not leases.renew("archive", "daemon-1")
    leases.give_up("archive", "daemon-1")
    assert leases.renew("archive", "daemon-2")
    assert leases.find("audit") is None


STEPS: Final = st.lists(
    st.tuples(
        st.integers(0, 2),
        st.sampled_from(["now", "away", "late", "unheard", "lost", "stop", "cont"]),
    ),
    max_size=12,
)


@settings(max_examples=examples(100), deadline=None)
@given(steps=STEPS, pauses=st.lists(st.integers(0, 28), min_size=12, max_size=12))
def test_no_two_are_ever_elected_and_one_is_when_all_is_well(
    lone_server: PostgresqlServers, steps: list[tuple[int, str]], pauses: list[int]
) -> None:
    found = PostgresqlSettings(lone_server.dsn)
    prepare_schema(found)
    lone_server.primary.query("DELETE FROM treedb.readers")
    with (
        contextlib.closing(ReaderLeases(found)) as leases,
        Daemons(leases, 3) as daemons,
        capturedLogs(),
    ):
        for (number, step), pause in zip(steps, pauses, strict=False):
            set_state(daemons, number, step)
            daemons.pass_time(pause * STEP_S)
        for number in range(3):
            set_state(daemons, number, "now")
            set_state(daemons, number, "cont")
        daemons.pass_time(2 * TAKEOVER_S)
        assert len(daemons.elected) == 1


def set_state(daemons: Daemons, number: int, step: str) -> None:
    """Change how PostgreSQL answers a daemon, or stop it, or let it go on."""
    daemon = daemons.all[number]
    if step in {"stop", "cont"}:
        daemon.is_stopped = step == "stop"
        daemon.pass_time(0)
    else:
        daemon.connections.mode = step
        daemon.connections.go_on()
    daemons.check()


class ReadingProcess(Closing):
    """A daemon's election in a process of its own, which writes when it is elected."""

    def __init__(self, server: PostgresqlServers, path: pathlib.Path) -> None:
        self._path = path
        with path.open("w") as output:
            self.process = subprocess.Popen(
                [sys.executable, "-c", CHILD, server.dsn], stdout=output
            )

    @property
    def times(self) -> list[float]:
        """When it was elected, in seconds since the boot."""
        return [float(line) for line in self._path.read_text().split("\n")[:-1]]

    def await_elected(self) -> None:
        """Wait until it is elected, later than now."""
        now = seconds_since_boot()
        wait_until(lambda: self.times and self.times[-1] > now)

    def close(self) -> None:
        self.process.kill()
        self.process.wait()


def test_processes_that_are_killed_and_stopped_are_followed_by_others(
    clean_server: PostgresqlServers, tmp_path: pathlib.Path
) -> None:
    with contextlib.ExitStack() as stack:

        def start(number: int) -> ReadingProcess:
            process = ReadingProcess(clean_server, tmp_path / str(number))
            return stack.enter_context(process)

        first = start(0)
        first.await_elected()
        second = start(1)
        first.process.send_signal(signal.SIGKILL)
        second.await_elected()
        third = start(2)
        second.process.send_signal(signal.SIGSTOP)
        third.await_elected()
        second.process.send_signal(signal.SIGCONT)
        third.await_elected()
    check_apart([first, second, third])


def check_apart(processes: Sequence[ReadingProcess]) -> None:
    """Check that between the times of two processes none was elected for as long as must be."""
    times = sorted((time, number) for number, each in enumerate(processes) for time in each.times)
    pauses = [later[0] - former[0] for former, later in pairwise(times) if former[1] != later[1]]
    assert len(pauses) >= 2
    assert min(pauses) >= READER_LEASE_S - BELIEF_S
