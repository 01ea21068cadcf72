"""Bodies of writes: decoded, parsed, brought into the normal form, stored as a row, read again."""

from __future__ import annotations

import random
import sys
import zlib
from typing import Any, Final

import orjson

from tests.fuzz.expecting import outcome
from tests.tree.test_fragments import as_objects, assemble
from treedbd.http1.parser import Coding, decode_body, decode_pieces
from treedbd.limits import MAX_BODY_NESTING, MAX_DEPTH
from treedbd.store.rows import encode_row, export_row, load_row, print_row
from treedbd.tree.edit import Edit, make_patch, make_put
from treedbd.tree.fragments import Fragment, Splitter
from treedbd.tree.types import InvalidData, Json, Place
from treedbd.tree.value import as_json, compact, parse, plain

if sys.version_info >= (3, 14):
    from compression import zstd
else:
    from backports import zstd

TOKENS: Final = (
    *(b"{", b"}", b"[", b"]", b",", b":", b'"', b"\\", b"\\u0000", b"\\ud800", b"null", b"true"),
    *(b'".value":', b'".priority":', b'".sv":', b'{".sv":"timestamp"}', b'{"increment":1}', b"-0"),
    *(
        b"1e400",
        b"1e22",
        b"9007199254740993",
        b"-9223372036854775808",
        b'"0":',
        b'"01":',
        b'"a/b":',
    ),
    *(
        b'".priority":1,',
        b'{"a":',
        b"[[[[[[[[",
        b'{"":1}',
        b'{"a.b":1}',
        b"\xc3\x28",
        b"\xed\xa0\x80",
    ),
    *(b"\x1f\x8b\x08\x00", b"\x28\xb5\x2f\xfd", b" ", b"\x00\x00", b"0.1", b"\xef\xbb\xbf"),
)
_LIMIT: Final = 65_536
_CODINGS: Final[tuple[Coding | None, ...]] = (None, "gzip", "zstd", None)


def check(data: bytes) -> None:
    """Write what follows two bytes: the first chooses the coding, the second the depth.

    With 4 in the first one the body is encoded here, so that what is in it is looked at.
    """
    mode, depth, body = (data[:1] or b"\0")[0], (data[1:2] or b"\0")[0] % (MAX_DEPTH + 1), data[2:]
    coding = _CODINGS[mode & 3]
    if coding is not None:
        decoded = _check_coding(_encode(body, coding) if mode & 4 else body, coding)
        assert decoded is None or not mode & 4 or decoded == body
        if decoded is None:
            return
        body = decoded
    json = outcome(lambda: parse(body), InvalidData)
    _check_fragments(body, is_valid=not isinstance(json, InvalidData), seed=mode)
    if isinstance(json, InvalidData):
        return
    path = ("k",) * depth
    for edit in (
        outcome(lambda: make_put(Place(path), json), InvalidData),
        outcome(lambda: make_put(Place(path, is_priority=True), json), InvalidData),
        outcome(lambda: make_patch(path, json), InvalidData),
    ):
        if isinstance(edit, Edit):
            _check_edit(edit)


def _encode(body: bytes, coding: Coding) -> bytes:
    if coding == "zstd":
        return zstd.compress(body)
    coder = zlib.compressobj(wbits=31)
    return coder.compress(body) + coder.flush()


def _check_coding(body: bytes, coding: Coding) -> bytes | None:
    """Return a body decoded; check that it is the same in pieces; None if it is refused."""
    decoded = outcome(lambda: decode_body(body, coding, _LIMIT), InvalidData)
    pieces: list[bytes] = []
    sent = (body[at : at + 1000] for at in range(0, len(body), 1000))

    def collect() -> bool:
        for piece in decode_pieces(sent, coding, 4096):
            assert 0 < len(piece) <= 4096
            pieces.append(piece)
            if sum(map(len, pieces)) > _LIMIT:
                return False
        return True

    fits = outcome(collect, InvalidData)
    if decoded is None:
        assert fits is not True, "A body that is too large is not in pieces."
        return None
    if isinstance(decoded, InvalidData):
        assert isinstance(fits, InvalidData), "A body is valid only in pieces."
        return None
    assert fits is True, "A body is valid only as a whole."
    assert b"".join(pieces) == decoded
    return decoded


def _check_fragments(body: bytes, *, is_valid: bool, seed: int) -> None:
    """Check that the fragments of a body are all of it, and that what is not valid is found."""
    dice = random.Random(seed)
    step, limit = dice.choice((1, 7, 64, 4096)), dice.choice((8, 64, 1000))

    def split() -> Any:
        splitter = Splitter(limit)
        found: list[Fragment] = []
        for at in range(0, len(body), step):
            found += splitter.feed(body[at : at + step])
        return [*found, *splitter.finish()]

    fragments = outcome(split, InvalidData)
    if isinstance(fragments, InvalidData):
        assert not is_valid or _nesting(body) > MAX_BODY_NESTING, "A valid body is refused."
        return
    parts = [outcome(lambda: parse(each.json), InvalidData) for each in fragments]  # noqa: B023
    assert is_valid != any(isinstance(part, InvalidData) for part in parts)
    if is_valid:
        assert assemble(fragments) == as_objects(orjson.loads(body))


def _nesting(body: bytes) -> int:
    deepest = level = 0
    for byte in body:
        level += (byte in b"{[") - (byte in b"}]")
        deepest = max(deepest, level)
    return deepest


def _check_edit(edit: Edit) -> None:
    """Check that an edit can be printed, stored, and made again of what was stored."""
    assert parse(compact(edit.sent)) == edit.sent or edit.has_placeholders or _has_nan(edit.sent)
    for change in edit.changes:
        assert len(change.place.path) <= MAX_DEPTH or change.value is None
        if change.value is None or edit.has_placeholders or change.place.is_priority:
            continue
        raw = encode_row(change.value)
        assert print_row(raw) == compact(plain(change.value))
        assert export_row(raw) == compact(change.value)
        assert load_row(raw) == change.value
        again = make_put(change.place, as_json(change.value))
        assert compact(again.changes[0].value) == compact(change.value), "Not a normal form."


def _has_nan(json: Json) -> bool:
    return isinstance(json, float) and json != json  # noqa: PLR0124 - only NaN is not itself
