from __future__ import annotations

import pathlib

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.examples import examples
from treedbd.archive.sealing import (
    CHUNK_BYTES,
    Damaged,
    WrongKey,
    make_key,
    open_sealed,
    parse_key,
    read_key,
    seal,
)

KEY = parse_key(make_key())
HEAD = 56  # the magic, the id of the key and the id of the file
SEALED = CHUNK_BYTES + 16
CONTENT = bytes(range(256)) * 768  # three chunks


def opened(sealed: bytes, size: int = 1000) -> bytes:
    pieces = [sealed[at : at + size] for at in range(0, len(sealed), size)]
    return b"".join(open_sealed(pieces, KEY))


@pytest.mark.parametrize("size", [0, 1, CHUNK_BYTES - 1, CHUNK_BYTES, CHUNK_BYTES + 1])
def test_what_was_sealed_is_opened(size: int) -> None:
    content = bytes(size)
    sealed = b"".join(seal([content[:7], content[7:]], KEY))
    assert opened(sealed) == opened(sealed, len(sealed)) == content
    assert content not in sealed or not content.strip(b"\0")


def test_equal_contents_are_sealed_differently() -> None:
    assert b"".join(seal([b"a"], KEY)) != b"".join(seal([b"a"], KEY))


def test_chunks_that_are_moved_left_out_or_doubled_are_found() -> None:
    sealed = b"".join(seal([CONTENT], KEY))
    head, body = sealed[:HEAD], sealed[HEAD:]
    first, second, third = (body[at : at + SEALED] for at in range(0, len(body), SEALED))
    other = b"".join(seal([CONTENT], KEY))
    assert opened(head + first + second + third) == CONTENT
    for chunks in (
        (second, first, third),
        (first, third),
        (first, second),
        (first, second, second, third),
        (first, second, third, third),
        (first, second, other[HEAD + 2 * SEALED :]),
        (),
    ):
        with pytest.raises(Damaged):
            opened(head + b"".join(chunks))


@settings(max_examples=examples(60))
@given(st.integers(0, 499), st.integers(1, 255))
def test_a_changed_byte_is_found(at: int, change: int) -> None:
    sealed = bytearray(b"".join(seal([bytes(428)], KEY)))
    assert len(sealed) == 500
    sealed[at] ^= change
    with pytest.raises((Damaged, WrongKey)):
        opened(bytes(sealed))


def test_another_key_or_none_is_not_damage() -> None:
    sealed = list(seal([b"a"], KEY))
    for key in (None, parse_key(make_key())):
        with pytest.raises(WrongKey):
            list(open_sealed(sealed, key))


def test_a_key_file_is_private_and_holds_32_bytes(tmp_path: pathlib.Path) -> None:
    file = tmp_path / "key"
    file.write_text(make_key())
    file.chmod(0o600)
    assert read_key(file) == parse_key(file.read_text())
    assert "secret" not in repr(read_key(file))
    file.chmod(0o644)
    with pytest.raises(ValueError, match="chmod"):
        read_key(file)
    file.chmod(0o600)
    for content in (b"", b"YWJj", b"\xff" * 32, b"a" * 43):
        file.write_bytes(content)
        with pytest.raises(ValueError, match="not a key file"):
            read_key(file)
