from __future__ import annotations

import os

import pytest

from treedbd.archive.packing import pack, unpack
from treedbd.archive.sealing import Damaged, WrongKey, make_key, parse_key

KEY = parse_key(make_key())
CONTENT = [b"header\n", os.urandom(300_000), b"x" * 3_000_000]


@pytest.mark.parametrize("key", [None, KEY])
def test_a_packed_object_is_unpacked_in_bounded_pieces(key: object) -> None:
    own = KEY if key else None
    packed = list(pack(CONTENT, own))
    pieces = list(unpack(packed, own))
    assert b"".join(pieces) == b"".join(CONTENT)
    assert max(map(len, pieces)) <= 1024 * 1024
    assert len(b"".join(packed)) < 310_000


def test_what_is_not_sealed_is_not_in_a_sealed_archive() -> None:
    with pytest.raises(Damaged, match="It is not sealed"):
        list(unpack(pack(CONTENT), KEY))


def test_the_header_is_read_without_the_rest() -> None:
    first, *rest = pack(CONTENT)
    assert rest
    assert next(unpack([first])) == b"header\n"


def test_what_is_cut_off_or_longer_is_damaged() -> None:
    whole = b"".join(pack([b"header\n", b"abc"]))
    for end in range(len(whole)):
        with pytest.raises(Damaged):
            list(unpack([whole[:end]]))
    for wrong in ([whole, b"x"], [whole + b"x"], [whole, whole]):
        with pytest.raises(Damaged):
            list(unpack(wrong))
    assert b"".join(unpack([bytes((byte,)) for byte in whole])) == b"header\nabc"


def test_an_object_in_the_clear_is_not_accepted_as_a_sealed_one() -> None:
    clear = list(pack(CONTENT))
    with pytest.raises(Damaged, match="not sealed"):
        list(unpack(clear, KEY, name="segments/x.sealed"))
    sealed = list(pack(CONTENT, KEY))
    with pytest.raises(WrongKey):
        list(unpack(sealed))
