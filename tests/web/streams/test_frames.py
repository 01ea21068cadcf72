"""Frames, byte for byte, and the identifiers by which streams are resumed."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from treedbd.tree.event import Event, Position
from treedbd.web.streams import (
    frame_end,
    parse_id,
    print_frames,
)

OP_ID = bytes.fromhex("0123456789abcdeffedcba9876543210")
POSITIONS = st.builds(
    Position,
    st.integers(0, 10**18 - 1),
    st.binary(min_size=16, max_size=16),
)


def test_a_frame_has_its_fields_in_order_and_ends_with_an_empty_line() -> None:
    event = Event("patch", ("a", "b"), {"c/d": [1, None]})
    frame = b'event: patch\ndata: {"path":"/a/b","data":{"c/d":[1,null]}}\n'
    assert print_frames([(Position(7, OP_ID), event)], with_ids=False) == frame + b"\n"
    assert (
        print_frames([(Position(7, OP_ID), event)], with_ids=True)
        == frame + b"id: 7-0123456789abcdef\n\n"
    )


def test_a_line_end_in_a_string_does_not_end_the_line_of_data() -> None:
    event = Event("put", ("\u2028",), "a\nb\rc\u2028")
    frame = print_frames([(Position(1), event)], with_ids=False)
    assert frame.count(b"\n") == 3
    assert b"\r" not in frame


def test_a_frame_ends_with_the_identifier_of_its_write_if_there_is_one() -> None:
    assert frame_end(Position(7, OP_ID)) == b"id: 7-0123456789abcdef\n\n"
    assert frame_end(Position(0)) == b"id: 0\n\n"
    assert frame_end(None) == b"\n"


@given(POSITIONS)
def test_an_identifier_is_parsed_to_the_position_it_was_printed_from(position: Position) -> None:
    printed = frame_end(position).decode().removeprefix("id: ").strip()
    found = parse_id(printed)
    assert found is not None
    assert found.sequence == position.sequence
    assert position.op_id.startswith(found.op_id)
    assert len(found.op_id) == 8


@pytest.mark.parametrize(
    "text",
    [
        None,
        "",
        "x",
        "-1",
        "+1",
        " 1",
        "1 ",
        "1\n",
        "٣",
        "1-",
        "1-0123",
        "1-0123456789ABCDEF",
        "1-0123456789abcdef-",
        "1-0123456789abcdef-0",
        "1-0123456789abcdef-01",
        "1-0123456789abcdef-1-1",
        "1--1",
        "9" * 19,
        "00",
        "01-0123456789abcdef",
    ],
)
def test_other_text_is_not_an_identifier(text: str | None) -> None:
    assert parse_id(text) is None
