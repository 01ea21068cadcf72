"""A long body behaves as a file in memory does, and is never moved."""

from __future__ import annotations

from io import SEEK_CUR, SEEK_END, BytesIO

from hypothesis import given
from hypothesis import strategies as st

from treedbd.http1.parser import SEGMENT_BYTES, LongBody

SIZES = st.one_of(st.integers(0, 9), st.integers(-3, 3).map(lambda more: SEGMENT_BYTES + more))
STEPS = st.one_of(
    st.tuples(st.just("write"), SIZES),
    st.tuples(st.just("read"), st.one_of(st.none(), st.just(-1), SIZES)),
    st.tuples(st.just("seek"), SIZES),
)


@given(st.lists(STEPS, max_size=12))
def test_it_is_read_as_what_was_appended(steps: list[tuple[str, int | None]]) -> None:
    body, model = LongBody(), BytesIO()
    for number, (name, size) in enumerate(steps):
        if name == "write":
            data = bytes([number]) * (size or 0)
            model.seek(0, SEEK_END)
            assert body.write(data) == model.write(data)
        elif name == "read":
            assert body.read(size) == model.read(size)
        else:
            assert body.seek(size or 0) == model.seek(size or 0)
        assert body.tell() == model.tell()
    assert body.seek(0) == 0
    assert body.read() == model.getvalue()


def test_it_can_be_sought_from_anywhere() -> None:
    body = LongBody()
    body.write(b"0123456789" * SEGMENT_BYTES)
    assert body.seek(0, SEEK_END) == 10 * SEGMENT_BYTES
    assert body.seek(-4, SEEK_CUR) == 10 * SEGMENT_BYTES - 4
    assert body.read(3) == b"678"
    assert body.seekable()
    assert body.readable()
