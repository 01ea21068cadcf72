from __future__ import annotations

import pathlib

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.archive.written_archive import START_MS, WrittenArchive, found_in
from tests.examples import examples
from treedbd.archive.merge import HOUR_MS, merge
from treedbd.archive.places import MARKER
from treedbd.archive.prune import prune
from treedbd.archive.segments import Rules

DB = "app/default"
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("write"), st.integers(1, 6)),
        st.tuples(st.just("write without a body"), st.just(1)),
        st.tuples(st.just("send"), st.sampled_from([0, 0, 0, 1, 3])),
        st.tuples(st.just("base"), st.just(0)),
        st.tuples(st.just("replace"), st.integers(0, 20)),
        st.tuples(st.just("skip"), st.just(0)),
        st.tuples(st.just("pass"), st.integers(1, 5)),
        st.tuples(st.just("merge"), st.just(0)),
    ),
    max_size=40,
)


def take(world: WrittenArchive, step: str, count: int) -> None:
    match step:
        case "write":
            world.write(count)
        case "write without a body":
            world.write(count, body=False)
        case "send":
            world.send(again=count)
        case "base":
            world.base()
        case "replace":
            world.replace(min(count, len(world.log)))
        case "skip":
            world.skip()
        case "pass":
            world.now_ms += count * HOUR_MS // 4
        case "merge":
            merge(world.archive(), world.now_ms)


@settings(max_examples=examples(150))
@given(STEPS)
def test_an_archive_knows_exactly_what_can_be_restored(
    tmp_path_factory: pytest.TempPathFactory, steps: list[tuple[str, int]]
) -> None:
    world = WrittenArchive(tmp_path_factory.mktemp("a") / "archive")
    for step, count in steps:
        take(world, step, count)
    expected = {state for state in world.times if world.is_reachable(state)}
    assert found_in(world.archive()) == expected
    merge(world.archive(), world.now_ms + HOUR_MS)
    archive = world.archive()
    assert found_in(archive) == expected
    assert not archive.faults


@settings(max_examples=examples(100))
@given(STEPS, st.integers(0, 8), st.integers(1, 3))
def test_what_is_younger_than_the_retention_or_counted_stays(
    tmp_path_factory: pytest.TempPathFactory,
    steps: list[tuple[str, int]],
    quarters: int,
    keep_bases: int,
) -> None:
    world = WrittenArchive(tmp_path_factory.mktemp("a") / "archive")
    for step, count in steps:
        take(world, step, count)
    before = found_in(world.archive())
    newest = [base for base in world.archive().bases(DB)[-keep_bases:] if base.sequence]
    keep_s = quarters * 900
    horizon_ms = world.now_ms - 1000 * keep_s
    missing = world.archive().holes()
    prune(world.archive(), keep_s, keep_bases, world.now_ms)
    assert set(world.archive().holes()) <= set(missing)
    after = found_in(world.archive())
    young = {state for state in before if world.times[state] > horizon_ms}
    assert young <= after
    assert {(base.sequence, base.header.op_id) for base in newest} <= after
    state = world.end
    while newest and state[0] > newest[0].sequence:
        assert state in after or state not in before
        state = world.previous[state]


def test_a_branch_keeps_the_base_that_it_begins_with(tmp_path: pathlib.Path) -> None:
    world = WrittenArchive(tmp_path / "archive")
    for _ in range(2):
        world.write(2)
        world.send()
        world.base()
    world.now_ms += 10 * HOUR_MS
    world.replace(3)
    world.write(1)
    world.send()
    before = found_in(world.archive())
    assert world.end in before
    removed = prune(world.archive(), 3600, 1, world.now_ms)
    assert not removed.bases
    assert found_in(world.archive()) - {(1, world.log[0])} == before - {(1, world.log[0])}


def test_what_is_older_than_the_retention_is_removed(tmp_path: pathlib.Path) -> None:
    world = WrittenArchive(tmp_path / "archive")
    for _ in range(4):
        world.write(2)
        world.send()
        world.base()
        world.now_ms += 24 * HOUR_MS
    removed = prune(world.archive(), 30 * 3600, 1, world.now_ms)
    assert len(removed.bases) == 2  # the third is the newest at or before the horizon
    assert len(removed.segments) == 3
    world.now_ms += 365 * 24 * HOUR_MS  # a clock that jumps ahead
    assert not prune(world.archive(), 30 * 3600, 2, world.now_ms).bases
    (stretch,) = world.archive().spans(DB)
    assert (stretch.first, stretch.through) == (6, 8)


def test_the_rules_of_kept_moments_and_the_last_number_stay(tmp_path: pathlib.Path) -> None:
    world = WrittenArchive(tmp_path / "archive")
    for number in range(3):
        world.send(extra=(Rules("app", f"{number}", world.now_ms),))
    world.write(1)
    world.send()
    world.base()
    later = world.now_ms + 100 * HOUR_MS
    removed = prune(world.archive(), 3600, 1, later)
    assert [name.split("/")[2][:12] for name in removed.segments] == [
        "000000000001",
        "000000000002",
    ]
    assert [each.text for each in world.archive().rules("app")] == ["2"]
    assert world.archive().next_number() == 5  # the fourth has nothing that is needed


def test_a_deleted_database_goes_after_bases_of_others(tmp_path: pathlib.Path) -> None:
    world = WrittenArchive(tmp_path / "archive")
    other = WrittenArchive(tmp_path / "archive", "shop/eu")
    world.write(2)
    world.send()
    world.base()
    other.write(1)
    other.send()
    world.delete()
    later = world.now_ms + 100 * HOUR_MS
    for made in range(2):
        assert not prune(world.archive(), 3600, 2, later).bases
        assert world.archive().databases() == [DB, "shop/eu"]
        other.now_ms += HOUR_MS * made
        other.write(1)
        other.send()
        other.base()
    assert [name.split("/")[1] for name in prune(world.archive(), 3600, 2, later).bases] == ["app"]
    assert world.archive().deletions(DB) or world.archive().databases() == ["shop/eu"]


def test_the_history_at_a_time_is_the_newest_that_had_begun(tmp_path: pathlib.Path) -> None:
    world = WrittenArchive(tmp_path / "archive")
    world.write(5)
    world.send()
    world.now_ms += 1000
    world.replace(3)
    world.write(4)
    world.send()
    old, new = world.archive().spans(DB)
    assert (old.first, old.through, old.own_ms) == (0, 5, START_MS)
    assert (new.first, new.through, new.own_ms) == (0, 7, START_MS + 1000)
    assert merge(world.archive(), world.now_ms + HOUR_MS)
    archive = world.archive()
    old, new = archive.spans(DB)
    assert [entry.op_id for entry in archive.entries(new, 0)] == world.log
    assert [entry.sequence for entry in archive.entries(old, 0)] == [1, 2, 3, 4, 5]


def test_the_last_write_at_a_time_is_the_last_in_the_order_of_the_log(
    tmp_path: pathlib.Path,
) -> None:
    world = WrittenArchive(tmp_path / "archive")
    for ms in (10, 20, 15, 30):  # the clock is set back
        world.now_ms = START_MS + ms
        world.write(1)
        world.send()
    archive = world.archive()
    (stretch,) = archive.spans(DB)
    found = [archive.find_time(stretch, START_MS + ms) for ms in (9, 10, 14, 15, 29, 30, 99)]
    assert found == [None, 1, 1, 3, 3, 4, 4]


def test_a_segment_that_cannot_be_read_is_a_hole_and_a_fault(tmp_path: pathlib.Path) -> None:
    world = WrittenArchive(tmp_path / "archive")
    for _ in range(3):
        world.write(2)
        world.send()
    second = world.archive().segments()[1].name
    (tmp_path / "archive" / second).write_bytes(b"\x00")
    archive = world.archive()
    assert [(each.first, each.through) for each in archive.spans(DB)] == [(0, 2)]
    assert list(archive.faults) == [second]


def test_entries_go_on_while_segments_are_merged(tmp_path: pathlib.Path) -> None:
    world = WrittenArchive(tmp_path / "archive")
    for _ in range(5):
        world.write(2)
        world.send()
    archive = world.archive()
    (stretch,) = archive.spans(DB)
    entries = archive.entries(stretch, 0)
    first = [next(entries) for _ in range(3)]
    assert merge(world.archive(), world.now_ms + HOUR_MS)
    assert [entry.sequence for entry in [*first, *entries]] == list(range(1, 11))
    assert [each.name for each in world.place.list("")] == [
        "segments/20261130/000000000001-000000000005.jsonl.zst",
        MARKER,
    ]


def test_a_database_that_begins_with_its_first_write_needs_no_base(tmp_path: pathlib.Path) -> None:
    world = WrittenArchive(tmp_path / "archive")
    world.write(3)
    world.send()
    (stretch,) = world.archive().spans(DB)
    assert stretch.base_for(2) is None
    world.base()
    world.write(1)
    world.send()
    (stretch,) = world.archive().spans(DB)
    base = stretch.base_for(4)
    assert base is not None
    assert base.sequence == 3


def test_an_empty_archive_has_nothing(tmp_path: pathlib.Path) -> None:
    archive = WrittenArchive(tmp_path / "archive").archive()
    assert not archive.databases()
    assert not archive.spans(DB)
    assert archive.next_number() == 1
