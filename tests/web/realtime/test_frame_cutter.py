"""Long frames are cut into fragments, which together are what the client has sent."""

from __future__ import annotations

import os

import pytest
from hypothesis import given
from hypothesis import strategies as st
from websockets.frames import Frame, Opcode
from websockets.protocol import State
from websockets.server import ServerProtocol

from tests.websocket_frames import BINARY, CONTINUATION, PING, TEXT, print_frame
from treedbd.web.realtime.wire import FRAGMENT_BYTES, FrameCutter

LONGEST = 100_000
SIZES = st.sampled_from(
    [0, 1, 125, 126, 70, FRAGMENT_BYTES, FRAGMENT_BYTES + 1, 3 * FRAGMENT_BYTES, 65_535, 65_536]
) | st.integers(0, LONGEST)


def parse(sent: bytes, step: int) -> tuple[list[Frame], ServerProtocol]:
    """Return the frames that a server reads when so many bytes come at a time."""
    protocol, cutter = ServerProtocol(state=State.OPEN, max_size=LONGEST), FrameCutter(LONGEST)
    frames: list[Frame] = []
    for at in range(0, len(sent), step):
        protocol.receive_data(cutter.cut(sent[at : at + step]))
        frames += [each for each in protocol.events_received() if isinstance(each, Frame)]
    assert cutter.payload == cutter.held_bytes == 0 or protocol.close_sent
    return frames, protocol


def messages_of(frames: list[Frame]) -> list[bytes]:
    """Return what data frames say together."""
    messages: list[bytes] = []
    is_open = False
    for frame in frames:
        if frame.opcode in (Opcode.TEXT, Opcode.CONT):
            assert is_open is (frame.opcode is Opcode.CONT)
            text = bytes(frame.data)
            messages = [*messages[:-1], messages[-1] + text] if is_open else [*messages, text]
            is_open = not frame.fin
    assert not is_open
    return messages


@given(st.lists(SIZES, max_size=4), st.integers(1, 70_000))
def test_messages_are_the_same_and_no_fragment_is_long(sizes: list[int], step: int) -> None:
    texts = [os.urandom(size) for size in sizes]
    sent = b"".join(print_frame(TEXT, text) + print_frame(PING, b"ping") for text in texts)
    frames, _ = parse(sent, step)
    assert messages_of(frames) == texts
    assert [bytes(each.data) for each in frames if each.opcode is Opcode.PING] == [b"ping"] * len(
        texts
    )
    assert all(len(each.data) <= FRAGMENT_BYTES for each in frames)


@pytest.mark.parametrize("step", [1, 999, 10**6])
def test_a_frame_that_is_a_fragment_already_stays_one(step: int) -> None:
    parts = [os.urandom(20_000) for _ in range(3)]
    sent = (
        print_frame(TEXT, parts[0], is_final=False)
        + print_frame(PING)
        + print_frame(CONTINUATION, parts[1], is_final=False)
        + print_frame(CONTINUATION, parts[2])
        + print_frame(TEXT, b"next")
    )
    frames, _ = parse(sent, step)
    assert messages_of(frames) == [b"".join(parts), b"next"]


@pytest.mark.parametrize(
    ("sent", "code"),
    [
        (print_frame(TEXT, declared=LONGEST + 1)[:10], 1009),
        (print_frame(TEXT, declared=2**63)[:10], 1009),
        (print_frame(TEXT, b"x" * 50_000, is_masked=False)[:4], 1002),
        (print_frame(0x3, b"x" * 50_000), 1002),
        (print_frame(TEXT, b"x" * 50_000, reserved=2), 1002),
        (print_frame(PING, b"x" * 50_000), 1002),
    ],
)
@pytest.mark.parametrize("step", [1, 10**6])
def test_what_is_not_valid_is_refused_as_without_cutting(sent: bytes, code: int, step: int) -> None:
    _, protocol = parse(sent, step)
    assert protocol.close_sent is not None
    assert protocol.close_sent.code == code


def test_a_binary_frame_is_seen_at_its_first_fragment() -> None:
    protocol, cutter = ServerProtocol(state=State.OPEN, max_size=LONGEST), FrameCutter(LONGEST)
    protocol.receive_data(cutter.cut(print_frame(BINARY, b"x" * 50_000)[:20_000]))
    (frame,) = protocol.events_received()
    assert isinstance(frame, Frame)
    assert (frame.opcode, frame.fin, cutter.payload) == (Opcode.BINARY, False, 50_000 - 20_000 + 8)
