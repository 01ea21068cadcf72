"""The events that are not done: their order, which may be started, what is done."""

from __future__ import annotations

from typing import Any

import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.examples import examples
from treedbd.cli.running import window as module
from treedbd.cli.running.window import Event, Window, parse_number


def event(sequence: int, number: int, path: str, **more: Any) -> dict[str, Any]:
    return {
        "id": f"demo/default/{sequence}/{number}",
        "path": path,
        "kind": "created",
        "captures": {"id": path},
        **more,
    }


def add(window: Window, sequence: int, *paths: str) -> None:
    events = [event(sequence, number, path) for number, path in enumerate(paths)]
    window.add_entry(str(sequence), events, orjson.dumps)


def take_all(window: Window) -> list[Event]:
    found = []
    while (taken := window.take()) is not None:
        found.append(taken)
    return found


def test_one_event_of_each_path_is_started() -> None:
    window = Window("0")
    add(window, 1, "a", "b")
    add(window, 2, "a")
    add(window, 3, "c")
    assert [each.id for each in take_all(window)] == [
        "demo/default/1/0",
        "demo/default/1/1",
        "demo/default/3/0",
    ]


def test_the_next_event_of_a_path_begins_after_the_one_before() -> None:
    window = Window("0")
    add(window, 1, "a")
    add(window, 2, "a")
    (first,) = take_all(window)
    assert take_all(window) == []
    window.finish(first)
    assert [each.number for each in take_all(window)] == [(2, 0)]


def test_the_position_is_after_the_last_entry_before_which_all_is_done() -> None:
    window = Window("0")
    add(window, 1, "a", "b")
    add(window, 2, "c")
    window.pass_over("5")
    a, b, c = take_all(window)
    window.finish(c)
    assert (window.at, window.done) == ("0", {(2, 0)})
    window.finish(a)
    assert (window.at, window.done) == ("0", {(2, 0), (1, 0)})
    window.finish(b)
    assert (window.at, window.done) == ("5", set())
    assert window.is_empty


def test_what_is_known_to_be_done_is_passed_over() -> None:
    window = Window("0", [(1, 1), (2, 0)])
    add(window, 1, "a", "b")
    add(window, 2, "c")
    (left,) = take_all(window)
    assert left.number == (1, 0)
    window.finish(left)
    assert (window.at, window.done) == ("2", set())


def test_a_path_whose_event_has_failed_waits_while_others_go_on() -> None:
    window = Window("0")
    add(window, 1, "a")
    add(window, 2, "a", "b")
    failed, other = take_all(window)
    window.delay(failed, 10.0)
    window.finish(other)
    window.wake(9.0)
    assert (take_all(window), window.next_due()) == ([], 10.0)
    window.wake(10.0)
    assert (take_all(window), window.next_due(), failed.failures) == ([failed], None, 1)


def test_there_is_room_for_so_many_events(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MOST_EVENTS", 3)
    window = Window("0")
    add(window, 1, "a", "b")
    assert window.room == 1
    add(window, 2, "c", "d")
    assert window.room == 0
    window.finish(take_all(window)[0])
    assert window.room == 0
    monkeypatch.setattr(module, "MOST_EVENTS", 1000)
    assert window.room == 997
    monkeypatch.setattr(module, "MOST_DONE", 1)
    assert window.room == 0
    monkeypatch.setattr(module, "MOST_DONE", 1000)
    monkeypatch.setattr(module, "MOST_BYTES", 10)
    assert window.room == 0


@pytest.mark.parametrize(
    "text", ["", "a/b", "a/1", "demo/default/x/0", "demo/default/1/x-9f3ac1d2e4b5a697"]
)
def test_what_is_not_an_id_is_refused(text: str) -> None:
    with pytest.raises(ValueError):  # noqa: PT011 - any of them
        parse_number(text)


@settings(max_examples=examples(60))
@given(
    st.lists(st.lists(st.sampled_from("abc"), max_size=3, unique=True), max_size=8),
    st.lists(st.integers(0, 5), max_size=60),
)
def test_a_run_that_begins_again_does_what_is_left_in_order(
    entries: list[list[str]], choices: list[int]
) -> None:
    """Each choice finishes, or fails, one of the events that are under way, or kills the run."""
    done: list[tuple[int, str]] = []
    window, under_way = _begin(Window("0"), entries), list[Event]()
    for choice in [*choices, *[0] * 100]:
        window.wake(0.0)
        under_way += take_all(window)
        assert len({each.path for each in under_way}) == len(under_way)
        if choice == 5:
            window, under_way = _begin(Window(window.at, window.done), entries), []
        elif under_way:
            chosen = under_way.pop(choice % len(under_way))
            if choice == 4:
                window.delay(chosen, 0.0)
            else:
                window.finish(chosen)
                done.append((chosen.number[0], chosen.path))
    assert window.at == str(len(entries))
    expected = [(at, path) for at, paths in enumerate(entries, 1) for path in paths]
    assert sorted(done) == sorted(expected)
    for path in "abc":
        of_path = [each for each in done if each[1] == path]
        assert of_path == sorted(of_path)


def _begin(window: Window, entries: list[list[str]]) -> Window:
    for sequence, paths in enumerate(entries, 1):
        if sequence > int(window.at):
            add(window, sequence, *paths)
    return window
