from __future__ import annotations

import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.examples import examples
from treedbd.archive.packing import pack, unpack
from treedbd.archive.sealing import Damaged, WrongKey, make_key, parse_key
from treedbd.archive.segments import (
    Deleted,
    Entry,
    Gap,
    Record,
    Rules,
    SegmentHeader,
    Span,
    describe,
    make_header,
    name_segment,
    parse_name,
    read_header,
    read_segment,
    write_segment,
)

KEY = parse_key(make_key())
START_MS = 1_796_000_000_000


def entry(db: str, sequence: int, ms: int = START_MS, *, body: bool = True) -> Entry:
    content = orjson.dumps({"time": ms, "method": "put", "path": ["a"], "size": 1})
    if body:
        content = content[:-1] + b',"sent":{"n":"\\n,\\"entry\\":"}}'
    return Entry(db, sequence, bytes((sequence % 256,)) * 16, content)


RECORDS: list[Record] = [
    entry("app/default", 11),
    entry("shop/eu", 1, START_MS + 5),
    Gap("app/b", 'The cursor was dropped,"entry":.', 5, START_MS),
    entry("app/default", 12, START_MS - 7, body=False),
    Deleted("app/c", START_MS),
    Rules("app", '{"rules":{}}\n', START_MS),
    entry("app/default", 13, START_MS + 1),
]
AFTER = {"app/default": (10, b"\x0a" * 16), "shop/eu": (0, b"")}


def header(number: int = 7) -> SegmentHeader:
    return make_header(number, START_MS, AFTER, RECORDS)


def test_a_segment_is_read_as_it_was_written() -> None:
    for key in (None, KEY):
        written = list(write_segment(header(), RECORDS, key))
        name = name_segment(7, START_MS, key)
        found, records = read_segment(written, key, name=name)
        assert found == header()
        assert list(records) == RECORDS
        assert read_header(written, key, name=name) == header()


def test_the_header_has_the_spans_and_the_events() -> None:
    made = header()
    assert made.databases["app/default"] == [
        Span(
            after=10,
            after_op=b"\x0a" * 16,
            through=13,
            through_op=b"\x0d" * 16,
            first_ms=START_MS,
            last_ms=START_MS + 1,
            min_ms=START_MS - 7,
            is_whole=False,
        )
    ]
    assert made.databases["shop/eu"][0].is_whole
    assert [type(event) for event in made.events] == [Gap, Deleted, Rules]
    assert made.events[2] == Rules("app", None, START_MS)


def test_entries_of_a_span_have_consecutive_numbers() -> None:
    with pytest.raises(ValueError, match="does not follow"):
        make_header(1, START_MS, {"a/b": (1, b"")}, [entry("a/b", 2), entry("a/b", 4)])
    with pytest.raises(ValueError, match="does not follow"):
        make_header(1, START_MS, {}, [entry("a/b", 2)])


def test_a_segment_is_not_written_to_its_end_if_the_header_is_wrong() -> None:
    with pytest.raises(ValueError, match="header"):
        list(write_segment(header(), RECORDS[:-1]))


def test_entries_that_are_not_lines_are_kept_byte_by_byte() -> None:
    odd = [Entry("a/b", 1 + i, b"", content) for i, content in enumerate((b"", b"{\n}", b"\xff"))]
    made = make_header(1, START_MS, {"a/b": (0, b"")}, odd)
    assert list(read_segment(write_segment(made, odd))[1]) == odd


@settings(max_examples=examples(60))
@given(st.data())
def test_a_segment_that_is_cut_off_or_changed_is_damaged(data: st.DataObject) -> None:
    key = data.draw(st.sampled_from([None, KEY]))
    whole = b"".join(write_segment(header(), RECORDS, key))
    at = data.draw(st.integers(0, len(whole) - 1))
    cut = data.draw(st.sampled_from([whole[:at], whole[:at] + b"\x00" * (len(whole) - at)]))
    if cut == whole:
        return
    with pytest.raises((Damaged, WrongKey)):
        list(read_segment([cut], key, name=name_segment(7, START_MS, key))[1])


def test_a_cut_at_a_line_is_found_though_the_frame_is_whole() -> None:
    lines = b"".join(unpack(write_segment(header(), RECORDS))).splitlines(keepends=True)
    for kept in (lines[:-1], lines[:-2] + lines[-1:], [*lines, b"{}\n"], lines[:1], []):
        with pytest.raises(Damaged):
            list(read_segment(pack([b"".join(kept)]))[1])


def test_an_entry_that_is_changed_is_found_though_the_frame_is_whole() -> None:
    content = b"".join(unpack(write_segment(header(), RECORDS)))
    changed = content.replace(b'"path":["a"]', b'"path":["b"]', 1)
    assert changed != content
    with pytest.raises(Damaged, match="check sum"):
        list(read_segment(pack([changed]))[1])


def test_the_time_and_the_body_of_an_entry_are_found_however_it_is_printed() -> None:
    for content, expected in (
        (b'{"time":5,"method":"put","path":[",\\"sent\\":"],"size":1}', (5, False)),
        (b'{"time":5,"path":[],"sent":null}', (5, True)),
        (b'{"path":[],"time":5,"sent":1}', (5, True)),
        (b'{"time":-5,"path":[]}', (-5, False)),
        (b"", (0, False)),
        (b"{}", (0, False)),
    ):
        assert describe(content) == expected


def test_a_segment_under_another_name_is_damaged() -> None:
    with pytest.raises(Damaged, match="another name"):
        read_header(write_segment(header(8), RECORDS), name=name_segment(7, START_MS))


def test_names_are_those_of_segments_only() -> None:
    name = name_segment(7, START_MS, KEY)
    assert name == "segments/20261130/000000000007.jsonl.zst.sealed"
    found = parse_name(name_segment(7, START_MS, last=9))
    assert found is not None
    assert (found.first, found.last) == (7, 9)
    for other in ("segments/x", "segments/20261130/000000000009-000000000007.jsonl.zst", "bases/a"):
        assert parse_name(other) is None
