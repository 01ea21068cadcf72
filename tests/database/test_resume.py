"""Resuming: each event is received once, and none of a time without permission.

What clients missed is worked out once for all of them, in slices.
"""

from __future__ import annotations

import itertools
import os
import pathlib
import shutil
from collections.abc import Callable
from functools import partial
from typing import Any

import attrs
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.database.world import (
    TurnClock,
    logged_failures,
    make_active_rules,
    make_database,
    run_at_once,
)
from tests.examples import examples
from tests.rules.evaluating import rules
from treedbd.database import resume
from treedbd.database.active_rules import ActiveRules
from treedbd.database.database import Database
from treedbd.database.requests import Caller, Write
from treedbd.database.resume import Resumption, Resumptions, decode_entry
from treedbd.database.rights import ReadRequest
from treedbd.database.runtime import Runtime
from treedbd.database.slices import SLICE_SECONDS
from treedbd.database.watchers import Notification, ReadGrant, ReadGrants
from treedbd.rules.ruleset import DENY, OPEN
from treedbd.store.engine import Engine, LogEntry
from treedbd.store.memory import MemoryEngine
from treedbd.store.nodes import Nodes
from treedbd.store.sqlite.engine import SqliteEngine
from treedbd.tree.edit import make_patch, make_put
from treedbd.tree.event import Commit, Position
from treedbd.tree.types import Path, Place

ADMIN = Caller(None, is_admin=True)
ANONYMOUS = Caller(None)


@attrs.define
class DaemonRun:
    """One run of the daemon: its rules, and a database whose engine outlives the run."""

    engine: Engine = attrs.field(factory=MemoryEngine)
    clock: TurnClock = attrs.field(factory=TurnClock)
    entropy: Callable[[int], bytes] = lambda size: b"e" * size
    rules: ActiveRules = attrs.field(init=False)
    database: Database = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        self.rules = make_active_rules(run_at_once)
        runtime = Runtime(self.clock, self.entropy, run_at_once)
        self.database = make_database(self.engine, runtime, self.rules)

    def put(self, key: str) -> Position:
        self.database.write(Write(make_put(Place((key,)), 1), 0, ADMIN))
        self.clock.run()
        return self.database.watching.position(self.sequence())

    def sequence(self) -> int:
        return self.engine.read(lambda view: view.sequence())

    def resume(self, caller: Caller, after: Position) -> int | None:
        """Return how many events the caller receives, None if it must start again."""
        request = ReadRequest(caller, (), None, lambda: 0)
        grant = self.database.make_grant(request, lambda: None, lambda: None)
        begun: list[Notification | None] = []
        checked = self.database.read(lambda nodes: check(grant, nodes))
        may_continue = partial(grant.held_through, checked)
        self.database.resume(Resumption((), after, Unnotified(), may_continue, begun.append))
        (missed,) = begun
        return None if missed is None else len(missed.events)


class Unnotified:
    """A watcher that is not notified of anything."""

    def notify(self, notification: Notification) -> None:
        raise AssertionError(notification)


def check(grant: ReadGrant, nodes: Nodes) -> int:
    """Check a grant, and return the number of the state that it was checked for."""
    grant.check(nodes)
    return nodes.rows.sequence()


def test_what_was_missed_under_the_same_rules_is_sent() -> None:
    run = DaemonRun()
    received = run.put("a")
    run.put("b")
    assert run.resume(ANONYMOUS, received) == 1


def test_what_was_written_under_other_rules_is_not_sent_even_after_a_restart() -> None:
    run = DaemonRun()
    received = run.put("a")
    run.rules.manage_by_file(DENY)
    run.put("secret")
    run.rules.manage_by_file(OPEN)
    assert run.resume(ANONYMOUS, received) is None
    again = DaemonRun(run.engine)
    assert again.resume(ANONYMOUS, received) is None


def test_an_admin_receives_what_was_written_under_any_rules() -> None:
    run = DaemonRun()
    received = run.put("a")
    run.rules.manage_by_file(DENY)
    run.put("secret")
    assert DaemonRun(run.engine).resume(ADMIN, received) == 1


def test_after_a_loss_that_was_accepted_no_position_in_the_lost_part_is_known(
    tmp_path: pathlib.Path,
) -> None:
    """The numbers of lost changes are used again, for other changes."""
    path = tmp_path / "p" / "default.shelf"
    run = DaemonRun(SqliteEngine.create(path), entropy=os.urandom)
    kept = run.put("a")
    run.engine.close()
    shutil.copy(path, tmp_path / "older")
    run = DaemonRun(SqliteEngine.open(path), entropy=os.urandom)
    lost = [run.put("b"), run.put("c")]
    run.engine.close()
    shutil.copy(tmp_path / "older", path)
    run = DaemonRun(SqliteEngine.open(path, accept_loss=True), entropy=os.urandom)
    assert [run.resume(ADMIN, position) for position in lost] == [None, None]
    for key in "def":
        run.put(key)
    assert run.sequence() > lost[-1].sequence
    assert [run.resume(ADMIN, position) for position in lost] == [None, None]
    assert run.resume(ADMIN, kept) == 3
    run.engine.close()


class Client:
    """A watcher that resumes, and keeps the numbers of the writes it has received."""

    def __init__(self, run: DaemonRun, after: Position, caller: Caller = ADMIN) -> None:
        self.received: list[int] = []
        self.starts_again = 0
        self.missed: Notification | None = None
        self._run = run
        request = ReadRequest(caller, (), None, lambda: 0)
        self.grant = run.database.make_grant(request, lambda: None, lambda: None)
        checked = run.database.read(lambda nodes: check(self.grant, nodes))
        may_continue = partial(self.grant.held_through, checked)
        self.resumption = Resumption((), after, self, may_continue, self.begin)
        run.database.resume(self.resumption)

    def begin(self, missed: Notification | None) -> None:
        self.missed = missed
        if missed is None:
            self.starts_again += 1
        else:
            self.notify(missed)

    def notify(self, notification: Notification) -> None:
        self.received += [position.sequence for position, _ in notification.events]


@pytest.fixture
def slow_run() -> DaemonRun:
    """Return a run with 50 writes, in which a few steps fill a slice."""
    run = DaemonRun(clock=TurnClock())
    for number in range(50):
        run.put(f"k{number}")
    run.clock.lag = SLICE_SECONDS / 2
    return run


def test_clients_that_missed_the_same_share_what_it_is(
    slow_run: DaemonRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    decoded: list[int] = []
    computed: list[int] = []

    def count_decoded(entry: LogEntry) -> Any:
        decoded.append(entry.sequence)
        return decode_entry(entry)

    def count_computed(commit: Commit, watched: Path) -> Any:
        computed.append(commit.position.sequence)
        return event_at(commit, watched)

    event_at = Commit.event_at
    monkeypatch.setattr(resume, "decode_entry", count_decoded)
    monkeypatch.setattr(Commit, "event_at", count_computed)
    clients = [Client(slow_run, slow_run.database.watching.position(10)) for _ in range(20)]
    clients.append(Client(slow_run, slow_run.database.watching.position(20)))
    slow_run.clock.run()
    assert [client.received for client in clients[:20]] == [list(range(11, 51))] * 20
    assert clients[20].received == list(range(21, 51))
    assert decoded == list(range(10, 51))
    assert computed == [*range(11, 51), *range(21, 51)]
    assert not slow_run.database._resumptions._decoded


def test_much_that_was_missed_takes_many_turns(slow_run: DaemonRun) -> None:
    clients = [Client(slow_run, Position(0)) for _ in range(20)]
    assert [client.received for client in clients] == [[]] * 20
    begun = [0]
    while begun[-1] < 20:
        slow_run.clock.take_turn()
        begun.append(sum(bool(client.received) for client in clients))
    assert max(later - former for former, later in itertools.pairwise(begun)) <= 2
    assert slow_run.clock.turns > 10


def test_little_that_was_missed_is_received_at_once() -> None:
    run = DaemonRun()
    received = run.put("a")
    run.put("b")
    assert Client(run, received).received == [2]


@settings(max_examples=examples(200), deadline=None)
@given(st.lists(st.sampled_from(["write", "turn", "resume"]), max_size=40))
def test_whenever_a_client_resumes_it_receives_each_write_once(steps: list[str]) -> None:
    run = DaemonRun(clock=TurnClock(SLICE_SECONDS / 2))
    for number in range(20):
        run.put(f"k{number}")
    clients: list[tuple[int, Client]] = []
    for number, step in enumerate(steps):
        if step == "write":
            run.database.write(Write(make_put(Place((f"n{number}",)), 1), 0, ADMIN))
        elif step == "turn":
            run.clock.take_turn()
        else:
            clients.append((number % 20, Client(run, run.database.watching.position(number % 20))))
    run.clock.run()
    last = run.sequence()
    for after, client in clients:
        assert client.received == list(range(after + 1, last + 1))


def test_a_client_that_waits_no_longer_is_left_alone(slow_run: DaemonRun) -> None:
    gone, other = Client(slow_run, Position(0)), Client(slow_run, Position(0))
    gone.resumption.cancel()
    slow_run.clock.run()
    slow_run.put("later")
    slow_run.clock.run()
    assert (gone.received, gone.starts_again) == ([], 0)
    assert other.received == list(range(1, 52))


def test_of_clients_that_share_what_they_missed_each_is_judged_by_itself() -> None:
    run = DaemonRun(clock=TurnClock())
    run.rules.manage_by_file(rules({".read": "root.child('allowed').child(auth.uid).val() == 1"}))
    for name in ("alice", "bob"):
        run.database.write(Write(make_put(Place(("allowed", name)), 1), 0, ADMIN))
    run.clock.run()
    received = run.database.watching.position(run.sequence())
    run.database.write(Write(make_put(Place(("allowed", "bob")), 1), 0, ADMIN))
    run.clock.run()
    alice, bob = (Client(run, received, Caller({"uid": name})) for name in ("alice", "bob"))
    assert (alice.received, alice.starts_again) == ([3], 0)
    assert (bob.received, bob.starts_again) == ([], 1)


def test_a_right_that_is_lost_while_a_client_waits_is_noticed() -> None:
    run = DaemonRun(clock=TurnClock())
    run.rules.manage_by_file(rules({".read": "root.child('open').val() == 1"}))
    run.put("open")
    for number in range(40):
        run.put(f"k{number}")
    run.clock.lag = SLICE_SECONDS
    client = Client(run, run.database.watching.position(1), Caller(None))
    run.database.write(Write(make_put(Place(("open",)), 0), 0, ADMIN))
    run.clock.run()
    assert (client.received, client.starts_again) == ([], 1)


@pytest.mark.parametrize("is_swept", [False, True])
def test_new_rules_hold_for_a_client_that_missed_nothing(
    slow_run: DaemonRun, is_swept: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not is_swept:
        monkeypatch.setattr(ReadGrants, "recheck", lambda _: iter(()))
    other = Client(slow_run, Position(0))
    client = Client(slow_run, slow_run.database.watching.position(50), Caller(None))
    assert (client.missed, client.starts_again) == (None, 0)
    slow_run.rules.manage_by_file(DENY)
    slow_run.database.recheck_grants()
    slow_run.clock.run()
    assert (client.missed, client.starts_again) == (None, 1)
    assert len(other.received) == 50


def test_if_the_log_cannot_be_decoded_clients_start_again(
    slow_run: DaemonRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(_: LogEntry) -> Any:
        raise ValueError("damage of a test")

    monkeypatch.setattr(resume, "decode_entry", fail)
    with logged_failures() as failures:
        clients = [Client(slow_run, Position(0)) for _ in range(3)]
        slow_run.clock.run()
    assert [client.starts_again for client in clients] == [1] * 3
    assert set(failures) == {ValueError}
    assert slow_run.database._watchers.count == 0


def put_many(run: DaemonRun, count: int, width: int) -> None:
    """Write at many places, each in writes of so many."""
    for number in range(count):
        members: dict[str, Any] = {f"k{number}m{key}": 1 for key in range(width)}
        run.database.write(Write(make_patch((), members, 1000), 0, ADMIN))
        run.clock.run()


def test_wide_writes_are_decoded_few_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    run = DaemonRun()
    first = run.put("first")
    put_many(run, 12, 1500)
    steps: list[int] = []
    advance = Resumptions._advance

    def count_decoded(entry: LogEntry) -> Any:
        steps[-1] += 1
        return decode_entry(entry)

    def count_step(self: Resumptions, missed: Any, client: Resumption) -> bool | None:
        steps.append(0)
        return advance(self, missed, client)

    monkeypatch.setattr(resume, "decode_entry", count_decoded)
    monkeypatch.setattr(Resumptions, "_advance", count_step)
    assert run.resume(ADMIN, first) == 12
    assert sum(steps) == 13
    assert max(steps) <= 3


@pytest.mark.parametrize(("count", "is_known"), [(33, True), (34, False)])
def test_who_missed_very_many_places_starts_again(count: int, is_known: bool) -> None:
    run = DaemonRun()
    first = run.put("first")
    put_many(run, count, 1500)
    assert run.resume(ADMIN, first) == (count if is_known else None)


def test_however_much_was_written_a_right_is_looked_up_by_what_it_depends_on() -> None:
    run = DaemonRun()
    run.rules.manage_by_file(rules({".read": "root.child('open').val() != false"}))
    first = run.put("first")
    put_many(run, 5, 1000)
    assert run.resume(ANONYMOUS, first) == 5
    run.put("open")
    assert run.resume(ANONYMOUS, first) is None
