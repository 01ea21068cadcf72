"""Events from bytes to lines, and the position from which a broken stream is resumed."""

from __future__ import annotations

import itertools
import json
import math
from collections.abc import Iterable, Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from treedbd.cli.watch import (
    EventParser,
    InvalidEvent,
    ResumePoint,
    StreamEvent,
)

# Pieces of streams, among them all line ends, fields and characters that the standard treats apart.
PIECES = [
    *(b"\r", b"\n", b"\r\n", b"\n\n", b"\r\r", b"\r\n\r\n", b"\xef\xbb\xbf", b"\xef\xbb", b"\0"),
    *(b":", b" ", b": ", b"data", b"data:", b"data: 1", b"event:a", b"event", b"id: 7", b"id"),
    *(b"id: \0", b"retry:20", b"retry: x", b": comment", b"\xc3\xbc", b"\xe2\x82", b"\xff", b"\t"),
]

# Each vector: the bytes of a stream, and its events as kind, data and id.
VECTORS: dict[str, tuple[bytes, list[tuple[str, str, str]]]] = {
    "nothing": (b"", []),
    "only blank lines": (b"\n\r\r\n\n", []),
    "an event of this service": (b"event: put\ndata: 1\nid: 7\n\n", [("put", "1", "7")]),
    "lines end in LF": (b"data:1\n\ndata:2\n\n", [("message", "1", ""), ("message", "2", "")]),
    "lines end in CR": (b"data:1\r\rdata:2\r\r", [("message", "1", ""), ("message", "2", "")]),
    "lines end in CRLF": (b"data:1\r\n\r\n", [("message", "1", "")]),
    "line ends are mixed": (b"event:a\rdata:1\ndata:2\r\n\n", [("a", "1\n2", "")]),
    "a CRLF is one line end": (b"data:1\r\ndata:2\r\n\r\n", [("message", "1\n2", "")]),
    "an LF and a CR are two": (
        b"data:1\n\rdata:2\n\n",
        [("message", "1", ""), ("message", "2", "")],
    ),
    "other line ends are data": (
        b"data:1\x0b\x0c\x1c\xc2\x85\xe2\x80\xa8\n\n",
        [("message", "1\x0b\x0c\x1c\x85\u2028", "")],
    ),
    "a mark of order": (b"\xef\xbb\xbfdata:1\n\n", [("message", "1", "")]),
    "two marks of order": (b"\xef\xbb\xbf\xef\xbb\xbfdata:1\n\n", []),
    "a mark of order alone": (b"\xef\xbb\xbf", []),
    "a mark of order in a later line": (b"\n\xef\xbb\xbfdata:1\n\n", []),
    "a mark of order in a value": (b"data:\xef\xbb\xbf\n\n", [("message", "\ufeff", "")]),
    "comments": (b": a\n:\ndata:1\n:id:5\n\n", [("message", "1", "")]),
    "unknown fields": (b"Data:1\nda ta:1\n data:1\ndata:2\n\n", [("message", "2", "")]),
    "a field without a colon": (
        b"data\n\ndata\ndata\n\n",
        [("message", "", ""), ("message", "\n", "")],
    ),
    "an empty value": (b"data:\n\n", [("message", "", "")]),
    "one leading space is no data": (b"data:  1 \n\n", [("message", " 1 ", "")]),
    "a leading tab is data": (b"data:\t1\n\n", [("message", "\t1", "")]),
    "a colon in a value": (b"data:a: b:\n\n", [("message", "a: b:", "")]),
    "several lines of data": (b"data:a\ndata\ndata: b\n\n", [("message", "a\n\nb", "")]),
    "the last kind counts": (b"event:a\nevent:b\ndata:1\n\n", [("b", "1", "")]),
    "an empty kind": (b"event:a\nevent\ndata:1\n\n", [("message", "1", "")]),
    "a kind is of one event": (
        b"event:a\ndata:1\n\ndata:2\n\n",
        [("a", "1", ""), ("message", "2", "")],
    ),
    "a kind without data": (b"event:a\n\ndata:1\n\n", [("message", "1", "")]),
    "an id persists": (
        b"id:7\ndata:1\n\ndata:2\n\n",
        [("message", "1", "7"), ("message", "2", "7")],
    ),
    "an id without data persists": (b"id:7\n\ndata:1\n\n", [("message", "1", "7")]),
    "an empty id": (
        b"id:7\ndata:1\n\nid\ndata:2\n\n",
        [("message", "1", "7"), ("message", "2", "")],
    ),
    "an id with a NUL": (b"id:7\nid:8\x009\ndata:1\n\n", [("message", "1", "7")]),
    "an id with spaces": (b"id:  a b\ndata:1\n\n", [("message", "1", " a b")]),
    "an id in UTF-8": (b"id:\xc3\xbc\ndata:1\n\n", [("message", "1", "\xfc")]),
    "invalid UTF-8": (
        b"event:\xff\ndata:\xe2\x82|\xed\xa0\x80\n\n",
        [("\ufffd", "\ufffd|\ufffd\ufffd\ufffd", "")],
    ),
    "an event without its blank line": (b"data:1\n\ndata:2\n", [("message", "1", "")]),
    "an event that ends inside a line": (b"data:1\n\ndata:2", [("message", "1", "")]),
}


def parse(pieces: Iterable[bytes]) -> list[tuple[str, str, str]]:
    """Return the kind, data and id of all events of a stream."""
    parser = EventParser()
    events = itertools.chain.from_iterable(map(parser.feed, pieces))
    return [(event.kind, event.data.decode(), event.id) for event in events]


def cut(stream: bytes, cuts: list[int]) -> list[bytes]:
    """Cut a stream into pieces, some of them empty."""
    edges = [0, *sorted(min(cut, len(stream)) for cut in cuts), len(stream)]
    return [stream[low:high] for low, high in itertools.pairwise(edges)]


def change(path: str, data: object, number: int | str = "", kind: str = "put") -> StreamEvent:
    shown = json.dumps({"path": path, "data": data}, separators=(",", ":"), ensure_ascii=False)
    return StreamEvent(kind, shown.encode(), str(number))


@pytest.mark.parametrize("vector", VECTORS)
def test_a_stream_is_parsed_as_the_standard_says(vector: str) -> None:
    stream, events = VECTORS[vector]
    assert parse([stream]) == events
    assert parse(stream[index : index + 1] for index in range(len(stream))) == events


@given(st.lists(st.sampled_from(PIECES)).map(b"".join), st.lists(st.integers(0, 80), max_size=12))
def test_events_are_the_same_however_their_bytes_are_split(stream: bytes, cuts: list[int]) -> None:
    assert parse(cut(stream, cuts)) == parse([stream])


@given(st.binary(), st.lists(st.integers(0, 80), max_size=12))
def test_any_bytes_are_parsed_the_same_however_they_are_split(
    stream: bytes, cuts: list[int]
) -> None:
    assert parse(cut(stream, cuts)) == parse([stream])


def test_the_id_of_the_request_persists_until_the_stream_names_one() -> None:
    parser = EventParser("6")
    events = parser.feed(b"data:1\n\ndata:2\nid:7\n\n")
    assert [event.id for event in events] == ["6", "7"]


@pytest.mark.parametrize(
    ("value", "seconds"),
    [
        *((b"1500", 1.5), (b"0", 0.0), (b"007", 0.007), (b"9" * 5000, math.inf)),
        *((b"", 3.0), (b"1x", 3.0), (b"-1", 3.0), (b"1.5", 3.0), (b" 1", 3.0), (b"\xd9\xa1", 3.0)),
    ],
)
def test_a_pause_is_asked_for_in_digits_only(value: bytes, seconds: float) -> None:
    parser = EventParser()
    assert not list(parser.feed(b"retry:3000\nretry: %b\n" % value))
    assert parser.retry_s == seconds


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


@pytest.mark.parametrize(
    "data",
    [
        b"null",
        b"{}",
        b'{"data":1,"path":"/"}',
        b'{"path":"/"}',
        b"",
        b'{"path":"\\x","data":1}',
        b'{"path":"/","data":[\n1]}',
    ],
)
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


def test_an_event_without_an_id_leaves_nothing_to_resume_after() -> None:
    point = ResumePoint()
    assert point.record(change("/", 1, 4))
    assert point.record(change("/a", 1, 5))
    assert point.record(change("/a", 2))
    assert point.last_event_id is None
    point.record_keep_alive()
    assert point.last_event_id is None


def test_an_event_of_the_write_before_does_not_complete_an_interrupted_one() -> None:
    point = ResumePoint()
    value, first = change("/", 0, 4), change("/a", 1, 5)
    assert point.record(value)
    assert point.record(first)
    point.record_end()
    assert point.record(change("/b", 1, 4))
    assert point.last_event_id == "4"
    assert not point.record(first)


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
