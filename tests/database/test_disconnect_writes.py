"""Writes that are kept for the end of a session are done once, in order, as who has set them."""

from __future__ import annotations

from typing import Any

import pytest
from twisted.logger import LogLevel, capturedLogs, formatEvent

from tests.database.world import ADMIN, Disk, Recorder, World, logged_failures
from tests.rules.evaluating import rules
from treedbd.database.disconnect import RETRY_S, DisconnectWrites
from treedbd.database.requests import (
    Caller,
    PermissionDenied,
    QuotaExceeded,
    TooLarge,
    TooManyDisconnectWrites,
    Unavailable,
)
from treedbd.database.slices import SLICE_SECONDS
from treedbd.database.volatile import VolatileFull
from treedbd.limits import MAX_DISCONNECT_BYTES
from treedbd.rules.ruleset import OPEN, RuleSet, parse_rules
from treedbd.store.disconnect_rows import DisconnectEntry, DisconnectRow, list_owners, list_rows
from treedbd.store.engine import DiskFull, StoreFailed
from treedbd.tree.edit import Edit, has_effect, make_patch, make_put, make_remove
from treedbd.tree.types import InvalidData, Json, Path, Place

ADA = Caller({"uid": "ada"})
NOW = 1_000
LATER = 2_000
VOLATILE = parse_rules(
    """{"rules": {".read": true, ".write": true, "boards": {"$board": {
        "cursors": {"$user": {".volatile": true}}}}}}"""
)
SECRET = "only-in-memory"
OWN = rules({"users": {"$uid": {".read": True, ".write": "auth.uid === $uid"}}})


def put(path: str, value: Json) -> Edit:
    return make_put(Place(tuple(path.split("/"))), value)


class SessionsWorld(World):
    """Its sessions have writes that are made when they end."""

    def __init__(self, rules: RuleSet = OPEN, *, disk: Disk | None = None, **quotas: Any) -> None:
        super().__init__(rules=rules, disk=disk, now_ms=LATER, **quotas)
        self.writes = self.database.disconnect_writes

    def set(self, edit: Edit, caller: Caller = ADMIN, session: str = "1", limit: int = 100) -> Any:
        return self.wait(self.writes.set(session, edit, caller, NOW, limit))

    def cancel(self, path: Path, session: str = "1") -> Any:
        return self.wait(self.writes.cancel(session, path))

    def run(self, session: str = "1") -> None:
        assert self.wait(self.writes.run(session)) is None

    @property
    def is_kept(self) -> bool:
        """Whether anything is stored for the end of sessions."""
        return self.engine.read(lambda view: list(list_owners(view))) != []

    @property
    def sequence(self) -> int:
        return self.engine.read(lambda view: view.sequence())


def test_what_was_set_is_done_when_the_session_is_run_and_not_before() -> None:
    world = SessionsWorld()
    world.write(put("a", "online"))
    world.set(put("a", "offline"))
    assert world.get("a") == "online"
    assert world.is_kept
    world.run()
    assert world.get("a") == "offline"
    assert not world.is_kept


def test_a_session_is_run_once_however_often_it_is_called_for() -> None:
    world = SessionsWorld()
    world.set(put("n", {".sv": {"increment": 1}}))
    first, second = world.writes.run("1"), world.writes.run("1")
    world.wait(first)
    world.wait(second)
    world.run()
    assert world.get("n") == 1


def test_the_writes_of_many_sessions_that_end_together_are_parsed_in_slices_in_order(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    world, parsed = SessionsWorld(), []
    for number in range(80):
        world.set(put(f"{number % 4}/{number}", number), session=str(number % 4))
    parse = DisconnectRow.entry

    def record(row: DisconnectRow) -> DisconnectEntry:
        parsed.append(world.clock.turns)
        return parse(row)

    monkeypatch.setattr(DisconnectRow, "entry", record)
    ended = [world.writes.run(str(session)) for session in range(4)]
    world.clock.lag = SLICE_SECONDS / 10
    world.clock.run_until(lambda: all(each.called for each in ended))
    assert len(parsed) == 80
    assert max(map(parsed.count, parsed)) <= 15
    for session in range(4):
        of_session = [str(number) for number in range(80) if number % 4 == session]
        assert world.get(str(session)) == {name: int(name) for name in of_session}


def test_setting_is_no_write_of_the_change_log_and_running_is_one() -> None:
    world = SessionsWorld()
    world.set(put("a", 1))
    assert world.sequence == 0
    world.run()
    assert world.sequence == 1


def test_watchers_are_notified_of_what_is_run() -> None:
    world = SessionsWorld()
    watcher = Recorder()
    world.database.watching.watch((), watcher, lambda _: None)
    world.set(put("a", 1))
    world.run()
    assert watcher.data == [1]


def test_other_sessions_keep_what_they_have_set() -> None:
    world = SessionsWorld()
    world.set(put("a", 1), session="1")
    world.set(put("b", 2), session="2")
    world.run("1")
    assert world.get() == {"a": 1}
    world.run("2")
    assert world.get() == {"a": 1, "b": 2}


def test_entries_are_run_in_the_order_in_which_they_were_set() -> None:
    world = SessionsWorld()
    watcher = Recorder()
    world.database.watching.watch((), watcher, lambda _: None)
    for number in range(40):
        world.set(put(f"k{number}", number))
    world.run()
    assert watcher.data == list(range(40))


def test_server_values_are_those_of_the_moment_when_it_is_run() -> None:
    world = SessionsWorld()
    world.write(put("n", 1))
    world.set(make_patch((), {"at": {".sv": "timestamp"}, "n": {".sv": {"increment": 5}}}))
    world.write(put("n", 10))
    world.run()
    assert world.get() == {"at": LATER, "n": 15}


def test_a_write_that_is_denied_when_it_is_set_is_not_kept() -> None:
    world = SessionsWorld(OWN)
    assert isinstance(world.set(put("users/bob", 1), ADA), PermissionDenied)
    assert not world.is_kept
    assert world.set(put("users/ada", 1), ADA) is None
    world.run()
    assert world.get() == {"users": {"ada": 1}}


def test_rules_of_a_priority_or_an_increment_need_no_right_to_read() -> None:
    world = SessionsWorld(rules({".write": True, ".read": False}))
    assert world.set(put("n", {".sv": {"increment": 1}}), ADA) is None
    world.run()
    assert world.get("n") == 1


def test_a_write_that_is_denied_when_it_is_run_is_forgotten_and_logged_without_its_data() -> None:
    world = SessionsWorld()
    world.set(put("secret", "hidden"), ADA)
    world.set(put("b", 2), ADMIN)
    world.rules.manage_by_file(rules({".read": True}))
    with capturedLogs() as events:
        world.run()
    assert world.get() == {"b": 2}
    assert not world.is_kept
    (line,) = [formatEvent(each) or "" for each in events if each["log_level"] is LogLevel.warn]
    assert "PermissionDenied" in line
    assert "secret" not in line
    assert "hidden" not in line


def test_what_cannot_be_computed_is_refused_now_or_forgotten_later() -> None:
    world = SessionsWorld()
    edit = put("n", {".sv": {"increment": 1e308}})
    world.write(put("n", 1.7e308))
    assert isinstance(world.set(edit), InvalidData)
    world.write(put("n", 0))
    world.set(edit)
    world.write(put("n", 1.7e308))
    world.run()
    assert world.get("n") == 1.7e308
    assert not world.is_kept


def test_more_places_than_the_limit_are_refused_and_the_others_stay() -> None:
    world = SessionsWorld()
    world.set(make_patch((), {"a": 1, "b": 2}), limit=3)
    world.set(put("c", 3), limit=3)
    with capturedLogs() as events:
        assert isinstance(world.set(put("d", 4), limit=3), TooManyDisconnectWrites)
    assert events == []
    assert world.set(put("c", 5), limit=3) is None
    world.run()
    assert world.get() == {"a": 1, "b": 2, "c": 5}


def test_more_bytes_than_the_bound_are_refused() -> None:
    world = SessionsWorld()
    half = "x" * (MAX_DISCONNECT_BYTES // 2)
    assert world.set(put("a", half)) is None
    assert isinstance(world.set(put("b", half)), TooLarge)
    assert world.set(put("a", half)) is None


def test_what_is_cancelled_is_not_run() -> None:
    world = SessionsWorld()
    world.set(put("a/b", 1))
    world.set(make_patch(("a",), {"c": 2, "d": 3}))
    world.cancel(("a", "b"))
    world.cancel(("a", "c"))
    world.run()
    assert world.get() == {"a": {"d": 3}}


def test_calls_are_done_in_their_order_while_the_disk_is_slow() -> None:
    world = SessionsWorld(disk=Disk())
    done = [
        world.writes.set("1", put("a", 1), ADMIN, NOW, 9),
        world.writes.set("1", put("b", 1), ADMIN, NOW, 9),
        world.writes.cancel("1", ("b",)),
        world.writes.run("1"),
    ]
    world.clock.run()
    while world.disk.waiting:
        world.disk.finish()
        world.clock.run()
    assert [each.called for each in done] == [True] * 4
    assert world.get() == {"a": 1}


def test_a_write_counts_only_when_it_is_durable() -> None:
    world = SessionsWorld(disk=Disk())
    setting = world.writes.set("1", put("a", 1), ADMIN, NOW, 9)
    world.clock.run()
    assert not setting.called
    world.disk.finish()
    assert setting.called


@pytest.mark.parametrize("error", [DiskFull(), StoreFailed("The disk failed.")])
def test_a_failed_commit_refuses_what_is_set_and_only_delays_what_is_run(error: Exception) -> None:
    world = SessionsWorld(disk=Disk())
    world.writes.set("1", put("a", 1), ADMIN, NOW, 9)
    world.clock.run()
    world.disk.finish()
    world.clock.run()
    running = world.writes.run("1")
    world.clock.run()
    while not world.disk.commits_next():
        world.disk.finish()
        world.clock.run()
    world.disk.fail(error)
    world.clock.run()
    while world.disk.waiting:
        world.disk.finish()
        world.clock.run()
    assert running.called
    assert world.is_kept
    for _ in range(4):
        world.clock.rightNow += RETRY_S
        world.clock.run()
        while world.disk.waiting:
            world.disk.finish()
            world.clock.run()
    assert world.get() == {"a": 1}
    assert not world.is_kept


def test_after_the_end_nothing_is_set_and_what_is_run_stays_for_the_next_process() -> None:
    world = SessionsWorld()
    world.set(put("a", 1))
    world.database.refuse_writes()
    assert isinstance(world.set(put("b", 1)), Unavailable)
    with capturedLogs():
        world.run()
    assert world.is_kept
    world.wait(world.database.close())
    assert world.clock.getDelayedCalls() == []


def test_a_put_and_a_removal_are_run_as_set() -> None:
    world = SessionsWorld()
    world.write(put("a", {"b": 1, "c": 2}))
    world.set(make_remove(Place(("a", "b"))))
    world.run()
    assert world.get() == {"a": {"c": 2}}


def test_what_is_kept_does_not_count_for_a_quota_and_what_is_run_does() -> None:
    world = SessionsWorld(database_bytes=150)
    assert world.set(put("a", "x" * 100)) is None
    assert world.set(put("b", "x" * 100)) is None
    with capturedLogs() as events:
        world.run()
    assert world.get() == {"a": "x" * 100}
    assert not world.is_kept
    assert [each["error"] for each in events if each["log_level"] is LogLevel.warn] == [
        "QuotaExceeded"
    ]
    quotas = world.database.quotas
    assert quotas is not None
    assert 100 < world.engine.read(quotas.read).size <= 150


def fill(world: SessionsWorld, session: str, caller: Caller = ADMIN) -> Any:
    """Keep nearly as much for the end of a session as one session may."""
    return world.set(put(f"s/{session}", "x" * 250_000), caller, session)


def test_sessions_keep_no_more_in_all_than_the_quota_of_their_database() -> None:
    world = SessionsWorld(database_bytes=1_000_000)
    assert [fill(world, str(number)) for number in range(3)] == [None] * 3
    refusal = fill(world, "3")
    assert isinstance(refusal, QuotaExceeded)
    assert str(refusal) == (
        "What is written in the database p when connections end may have 1000000 bytes in all "
        "(database_bytes), and this would be more."
    )
    assert world.set(put("s/0", "x" * 250_001), session="0") is None  # in place of the first
    assert world.set(make_remove(Place(("s",))), session="4") is None  # it only removes
    assert world.cancel((), "1") is None
    assert fill(world, "3") is None
    world.run("2")
    assert fill(world, "5") is None
    assert isinstance(fill(world, "6"), QuotaExceeded)
    for session in ("0", "3", "5"):
        world.run(session)
    assert [fill(world, f"a{number}") for number in range(3)] == [None] * 3


def test_who_has_set_it_counts_for_what_sessions_keep() -> None:
    world = SessionsWorld(database_bytes=500_000)
    user = Caller({"uid": "ada", "claims": "x" * 100_000})
    sets = [world.set(put("a", 1), user, str(number)) for number in range(5)]
    assert [isinstance(each, QuotaExceeded) for each in sets] == [False] * 4 + [True]


def test_without_a_quota_sessions_keep_what_each_of_them_may() -> None:
    world = SessionsWorld(database_nodes=10)
    assert [fill(world, str(number)) for number in range(8)] == [None] * 8


def test_what_is_not_stored_does_not_count_for_what_sessions_keep() -> None:
    world = SessionsWorld(OWN, database_bytes=300_000)
    for number in range(5):
        assert isinstance(fill(world, str(number), ADA), PermissionDenied)
    assert fill(world, "5") is None
    assert isinstance(world.set(put("b", "x" * 250_000), session="5", limit=1), Exception)
    world.wait(world.writes.forget("5"))
    assert fill(world, "6") is None


def test_a_database_is_in_use_until_its_sessions_are_run_or_forgotten() -> None:
    world = SessionsWorld()
    assert world.database.is_idle
    world.set(put("a", 1), session="1")
    world.set(put("a", 2), session="2")
    world.run("1")
    assert not world.database.is_idle
    world.wait(world.writes.forget("2"))
    assert world.database.is_idle
    assert world.get() == {"a": 1}
    assert not world.is_kept


def test_what_is_only_judged_is_not_kept() -> None:
    world = SessionsWorld(OWN)
    assert world.wait(world.writes.judge(put("users/ada", 1), ADA, NOW, 1)) is None
    denied = world.wait(world.writes.judge(put("users/bob", 1), ADA, NOW, 1))
    assert isinstance(denied, PermissionDenied)
    many = make_patch((), {"users/ada/a": 1, "users/ada/b": 2})
    refused = world.wait(world.writes.judge(many, ADA, NOW, 1))
    assert isinstance(refused, TooManyDisconnectWrites)
    assert not world.is_kept


def test_an_entry_that_cannot_be_read_is_forgotten_and_the_others_are_run() -> None:
    world = SessionsWorld()
    world.set(put("a", 1))
    world.set(put("b", 2))
    transaction = world.engine.begin()
    (row, _) = list_rows(transaction, world.runtime.owner.id, "1")
    transaction.put(row.key, b"rubbish")
    transaction.commit()
    with capturedLogs():
        world.run()
    assert world.get() == {"b": 2}
    assert not world.is_kept


def test_an_entry_whose_write_fails_unexpectedly_is_forgotten(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    world = SessionsWorld()
    world.set(put("a", 1))
    world.set(put("b", 2))

    def fail(edit: Edit, *rest: Any) -> bool:
        if edit.place.path == ("a",):
            raise AssertionError
        return has_effect(edit, *rest)

    monkeypatch.setattr("treedbd.database.apply.has_effect", fail)
    with logged_failures(), capturedLogs():
        world.run()
    world.clock.rightNow += RETRY_S
    world.clock.run()
    assert world.get() == {"b": 2}
    assert not world.is_kept


def board(**values: Json) -> Json:
    return {"boards": {"a": values}}


def rows_of(world: SessionsWorld) -> bytes:
    """Return all that is stored."""
    return repr(world.engine.read(lambda view: list(view.scan(b"", b"\xff" * 8)))).encode()


def run_elsewhere(world: SessionsWorld) -> None:
    """Do the writes of the session as another process does those of a dead one."""
    other = DisconnectWrites(world.database.name, world.database.write, world.runtime, 0)
    world.wait(other.run("1"))


@pytest.mark.parametrize(
    ("edit", "live", "left"),
    [
        (put("boards/a/cursors/ada", SECRET), board(t=0, cursors={"ada": SECRET}), board(t=0)),
        (
            put("boards/a/cursors/ada/x", SECRET),
            board(t=0, cursors={"ada": {"x": SECRET}}),
            board(t=0),
        ),
        (
            make_patch(("boards", "a"), {"t": 1, "cursors/ada": SECRET}),
            board(t=1, cursors={"ada": SECRET}),
            board(t=1),
        ),
        (
            make_patch((), {"boards/a": {"t": 1, "cursors": {"ada": [SECRET], "bob": 2}}}),
            board(t=1, cursors={"ada": [SECRET], "bob": 2}),
            board(t=1),
        ),
        (
            put("boards/a", {"t": [1, 2], "cursors": {"ada": SECRET}}),
            board(t=[1, 2], cursors={"ada": SECRET}),
            board(t=[1, 2]),
        ),
    ],
)
def test_a_value_for_a_volatile_place_is_in_no_row_and_removed_by_another_process(
    edit: Edit, live: Json, left: Json
) -> None:
    for run, expected in ((SessionsWorld.run, live), (run_elsewhere, left)):
        world = SessionsWorld(VOLATILE)
        world.write(put("boards/a", {"t": 0, "cursors": {"ada": {"x": 5}}}))
        world.set(edit)
        assert world.is_kept
        assert SECRET.encode() not in rows_of(world)
        run(world)
        assert world.get() == expected
        assert SECRET.encode() not in rows_of(world)
        assert not world.is_kept


def test_what_is_cancelled_or_replaced_of_a_patch_is_not_done_of_volatile_places_either() -> None:
    world = SessionsWorld(VOLATILE)
    world.set(make_patch(("boards", "a", "cursors"), {"ada": 1, "bob": 2, "cyd": 3}))
    world.cancel(("boards", "a", "cursors", "bob"))
    world.set(put("boards/a/cursors/cyd", 4))
    world.run()
    assert world.get() == board(cursors={"ada": 1, "cyd": 4})


def test_a_server_value_for_a_volatile_place_is_resolved_at_the_end() -> None:
    world = SessionsWorld(VOLATILE)
    world.set(put("boards/a/cursors/ada", {"left": {".sv": "timestamp"}}))
    world.run()
    assert world.get() == board(cursors={"ada": {"left": LATER}})


def test_what_is_stored_at_a_volatile_place_is_replaced_by_any_process() -> None:
    world = SessionsWorld()
    world.write(put("boards/a/cursors/ada", "stored"))
    world.rules.current = VOLATILE
    world.rules_changed()
    world.set(put("boards/a/cursors/ada", "left"))
    run_elsewhere(world)
    assert world.get() == board(cursors={"ada": "left"})


def test_what_sessions_keep_for_volatile_places_is_bounded_by_what_these_may_have() -> None:
    world = SessionsWorld(VOLATILE)
    with pytest.raises(TooLarge, match="32768"):
        raise world.set(put("boards/a/cursors/ada", "x" * 40_000))
    value = "x" * 30_000
    most = world.runtime.volatile_bytes // 30_100
    for _ in range(most + 2):  # what is replaced counts no longer
        assert world.set(put("boards/a/cursors/ada", value)) is None
    for number in range(7):
        assert world.set(put(f"boards/a/cursors/{number}", value)) is None
    with pytest.raises(TooLarge, match=str(MAX_DISCONNECT_BYTES)):
        raise world.set(put("boards/a/cursors/8", value))
    world.cancel(())
    sessions = [str(number) for number in range(most + 2)]
    results = [world.set(put("boards/a/cursors/ada", value), session=each) for each in sessions]
    refused = [each for each in results if each is not None]
    assert 0 < len(refused) < 5
    assert isinstance(refused[0], VolatileFull)
    world.run("5")
    assert world.set(put("boards/a/cursors/ada", value), session="new") is None
