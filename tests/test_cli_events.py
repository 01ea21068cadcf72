"""Events from bytes to lines, and going on where a stream broke off."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from treedbd.cli.events import Event, NoEvent, Parser, Position

STREAM = (
    b'event: put\ndata: {"path":"/","data":null}\nid: 7\n\n'
    b": a comment\n\n"
    b"event: keep-alive\ndata: null\n\n"
    b'data:{"path":"/a","data":1}\r\nevent:patch\r\nretry: 9\r\n\r\n'
    b"event: two\ndata: a\ndata: b\nid: bad id\n\n"
    b"event: unfinished\ndata: 1\n"
)
EVENTS = [
    Event("put", b'{"path":"/","data":null}', "7"),
    Event("keep-alive", b"null"),
    Event("patch", b'{"path":"/a","data":1}'),
    Event("two", b"a\nb"),
]


def change(path: str, data: object, number: int | None = None, kind: str = "put") -> Event:
    shown = json.dumps({"path": path, "data": data}, separators=(",", ":"), ensure_ascii=False)
    return Event(kind, shown.encode(), None if number is None else str(number))


@given(st.lists(st.integers(0, len(STREAM)), max_size=12))
def test_events_are_the_same_in_whatever_pieces_they_come(cuts: list[int]) -> None:
    parser = Parser()
    edges = [0, *sorted(cuts), len(STREAM)]
    pieces = (STREAM[low:high] for low, high in itertools.pairwise(edges))
    assert [event for piece in pieces for event in parser.feed(piece)] == EVENTS


@pytest.mark.parametrize(
    ("event", "text", "parsed"),
    [
        (change("/", None), "put\t/\tnull\n", {"event": "put", "path": "/", "data": None}),
        (
            change("/a b/ü", {"x": [1, "}"]}, kind="patch"),
            'patch\t/a b/ü\t{"x":[1,"}"]}\n',
            {"event": "patch", "path": "/a b/ü", "data": {"x": [1, "}"]}},
        ),
        (
            change('/"\\', '"data":', 9),
            'put\t/"\\\t"\\"data\\":"\n',
            {"event": "put", "path": '/"\\', "data": '"data":'},
        ),
    ],
)
def test_an_event_is_one_line_of_text_or_json(event: Event, text: str, parsed: object) -> None:
    assert event.print_text().decode() == text
    line = event.print_json()
    assert json.loads(line) == parsed
    assert line.endswith(b"}\n")
    assert line.count(b"\n") == 1


@pytest.mark.parametrize("data", [b"null", b"{}", b'{"data":1,"path":"/"}', b'{"path":"/"}', b""])
def test_what_is_no_change_is_not_printed(data: bytes) -> None:
    for show in (Event.print_text, Event.print_json):
        with pytest.raises(NoEvent):
            show(Event("put", data))


def test_a_stream_without_ids_is_begun_anew() -> None:
    position = Position()
    assert position.is_new(change("/", 1))
    position.break_off()
    assert position.last_event_id is None
    assert position.is_new(change("/", 1))


def test_a_stream_is_resumed_behind_its_first_value() -> None:
    position = Position()
    assert position.is_new(change("/", 1, 4))
    position.break_off()
    assert position.last_event_id == "4"


def test_a_write_counts_as_complete_when_another_or_a_keep_alive_follows() -> None:
    position = Position()
    for number in (4, 5):
        assert position.is_new(change("/a", number, number))
    assert position.last_event_id == "4"
    position.keep_alive()
    assert position.last_event_id == "5"


def test_events_of_a_torn_write_are_left_out_once_only() -> None:
    position = Position()
    whole, first, second = change("/", 0, 4), change("/a", 1, 5), change("/a", 1, 5)
    assert position.is_new(whole)
    assert position.is_new(first)
    position.break_off()
    assert position.last_event_id == "4"
    assert not position.is_new(first)
    assert position.is_new(second)
    assert position.is_new(change("/a", 1, 6))


def test_a_value_that_replaces_what_was_missed_is_shown() -> None:
    position = Position()
    assert position.is_new(change("/", 0, 4))
    assert position.is_new(change("/a", 1, 5))
    position.break_off()
    assert position.is_new(change("/", {"a": 1}, 5))
    assert position.last_event_id == "5"


def replies(writes: list[list[Event]], last_id: str | None) -> Iterator[Event]:
    """What a server sends to one who comes with this identifier."""
    begin = 0 if last_id is None else int(last_id)
    if last_id is None:
        yield change("/", "all", 0)
    for write in writes[begin:]:
        yield from write


@given(st.lists(st.integers(1, 3), max_size=5), st.lists(st.integers(0, 12), max_size=5))
def test_a_stream_that_breaks_anywhere_loses_and_repeats_nothing(
    sizes: list[int], lengths: list[int]
) -> None:
    writes = [
        [change(f"/{index % 2}", "same", number) for index in range(size)]
        for number, size in enumerate(sizes, 1)
    ]
    position = Position()
    shown = []
    for length in [*lengths, None]:
        coming = list(replies(writes, position.last_event_id))[:length]
        shown += [event for event in coming if position.is_new(event)]
        position.break_off()
    assert shown == list(replies(writes, None))
