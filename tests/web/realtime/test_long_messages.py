"""Long writes are found at both ends of a message, in the orders in which clients print members."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from treedbd.web.realtime.messages import (
    InvalidRequest,
    RealtimeRequest,
    as_long_write,
    find_long_write,
)
from treedbd.web.realtime.wire import LongMessage

VALUES: Any = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=20),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(["p", "d", "h", "r", "a", "b", "t", "x"]), inner)
    ),
    max_leaves=12,
)


def text(json_value: object) -> str:
    """Print JSON as clients do."""
    return json.dumps(json_value, separators=(",", ":"), ensure_ascii=False)


def shuffled(draw: st.DataObject, members: dict[str, str]) -> str:
    """Return an object whose members, printed already, come in any order."""
    names = draw.draw(st.permutations(sorted(members)))
    return "{" + ",".join(f'"{name}":{members[name]}' for name in names) + "}"


@given(st.data(), VALUES, st.booleans())
def test_the_value_is_found_whatever_it_is_and_wherever(
    data: st.DataObject, value: Any, has_hash: bool
) -> None:
    body = {"p": '"/a/b"', "d": text(value)}
    if has_hash:
        body["h"] = '"abc="'
    request = {"r": "7", "a": '"p"', "b": shuffled(data, body)}
    message = shuffled(data, {"t": '"d"', "d": shuffled(data, request)}).encode()
    found = find_long_write(message)
    assert found is not None
    assert json.loads(b"".join(found.pieces())) == value
    assert message[found.start : found.end] == b"".join(found.pieces())
    assert (found.request.number, found.request.action) == (7, "p")
    assert found.request.body == {key: json.loads(body[key]) for key in body if key != "d"}


@pytest.mark.parametrize(
    "message",
    [
        b"",
        b"{}",
        b'{"t":"c","d":{"t":"p","d":{}}}',
        b'{"t":"d","d":{"r":1,"a":"p","b":{"p":"x"}}}',
        b'{"t":"d","d":{"a":"p","b":{"p":"x","d":1}}}',
        b'{"t":"d","d":{"r":1,"a":"p","b":{"p":"x","d":1}}',
        b'{"t":"d","d":{"r":1,"a":"p","b":{"p":"x","d":1},"x":2}}',
    ],
)
def test_what_has_another_form_is_not_taken_for_a_write(message: bytes) -> None:
    assert find_long_write(message) is None


@pytest.mark.parametrize("part", [1000, 65_536, 10**7])
def test_a_message_in_parts_is_recognised_by_its_ends(part: int) -> None:
    value = json.dumps({f"k{at}": at for at in range(50_000)}).encode()
    message = b'{"t":"d","d":{"r":3,"a":"m","b":{"p":"/a","d":%b,"h":"x"}}}' % value
    parts = tuple(message[at : at + part] for at in range(0, len(message), part))
    found = find_long_write(LongMessage(parts, len(message)))
    assert found is not None
    assert (found.size, b"".join(found.pieces())) == (len(value), value)
    assert found.request == RealtimeRequest(3, "m", {"p": "/a", "h": "x"})


def test_a_write_in_another_form_becomes_a_long_one() -> None:
    request = RealtimeRequest(5, "p", {"p": "a", "d": {"b": [1.5, None, "é"]}, "x": 1})
    long = as_long_write(request)
    assert json.loads(b"".join(long.pieces())) == request.body["d"]
    assert long.request == RealtimeRequest(5, "p", {"p": "a", "x": 1})
    with pytest.raises(InvalidRequest):
        as_long_write(RealtimeRequest(5, "p", {"p": "a"}))
