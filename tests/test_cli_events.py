"""Events from bytes to lines, and the position from which a broken stream is resumed."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from treedbd.cli.events import EventParser, InvalidEvent, ResumePoint, StreamEvent

STREAM = (
    b'event: put\ndata: {"path":"/","data":null}\nid: 7\n\n'
    b": a comment\n\n"
    b"event: keep-alive\ndata: null\n\n"
    b'data:{"path":"/a","data":1}\r\nevent:patch\r\nretry: 9\r\n\r\n'
    b"event: two\ndata: a\ndata: b\nid: bad id\n\n"
    b"event: unfinished\ndata: 1\n"
)
EVENTS = [
    StreamEvent("put", b'{"path":"/","data":null}', "7"),
    StreamEvent("keep-alive", b"null"),
    StreamEvent("patch", b'{"path":"/a","data":1}'),
    StreamEvent("two", b"a\nb"),
]


def change(path: str, data: object, number: int | None = None, kind: str = "put") -> StreamEvent:
    shown = json.dumps({"path": path, "data": data}, separators=(",", ":"), ensure_ascii=False)
    return StreamEvent(kind, shown.encode(), None if number is None else str(number))


@given(st.lists(st.integers(0, len(STREAM)), max_size=12))
def test_events_are_the_same_however_their_bytes_are_split(cuts: list[int]) -> None:
    parser = EventParser()
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
def test_an_event_is_one_line_of_text_or_json(
    event: StreamEvent, text: str, parsed: object
) -> None:
    assert event.print_text().decode() == text
    line = event.print_json()
    assert json.loads(line) == parsed
    assert line.endswith(b"}\n")
    assert line.count(b"\n") == 1


@pytest.mark.parametrize("data", [b"null", b"{}", b'{"data":1,"path":"/"}', b'{"path":"/"}', b""])
def test_an_event_that_is_not_a_change_is_not_printed(data: bytes) -> None:
    for show in (StreamEvent.print_text, StreamEvent.print_json):
        with pytest.raises(InvalidEvent):
            show(StreamEvent("put", data))


def test_a_stream_without_ids_starts_from_the_present_value() -> None:
    point = ResumePoint()
    assert point.record(change("/", 1))
    point.record_end()
    assert point.last_event_id is None
    assert point.record(change("/", 1))


def test_a_stream_is_resumed_after_its_first_value() -> None:
    point = ResumePoint()
    assert point.record(change("/", 1, 4))
    point.record_end()
    assert point.last_event_id == "4"


def test_a_write_is_complete_when_another_or_a_keep_alive_follows() -> None:
    point = ResumePoint()
    for number in (4, 5):
        assert point.record(change("/a", number, number))
    assert point.last_event_id == "4"
    point.record_keep_alive()
    assert point.last_event_id == "5"


def test_repeated_events_of_an_interrupted_write_are_skipped_once() -> None:
    point = ResumePoint()
    value, first, second = change("/", 0, 4), change("/a", 1, 5), change("/a", 1, 5)
    assert point.record(value)
    assert point.record(first)
    point.record_end()
    assert point.last_event_id == "4"
    assert not point.record(first)
    assert point.record(second)
    assert point.record(change("/a", 1, 6))


def test_a_value_in_place_of_missed_events_is_shown() -> None:
    point = ResumePoint()
    assert point.record(change("/", 0, 4))
    assert point.record(change("/a", 1, 5))
    point.record_end()
    assert point.record(change("/", {"a": 1}, 5))
    assert point.last_event_id == "5"


def replies(writes: list[list[StreamEvent]], last_id: str | None) -> Iterator[StreamEvent]:
    """Iterate over the events that a server sends to a client with this Last-Event-ID."""
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
    point = ResumePoint()
    shown = []
    for length in [*lengths, None]:
        arriving = list(replies(writes, point.last_event_id))[:length]
        shown += [event for event in arriving if point.record(event)]
        point.record_end()
    assert shown == list(replies(writes, None))
