"""Documents in fragments: put together again they are what a parser makes of the whole."""

from __future__ import annotations

import json
from itertools import pairwise
from typing import Any

import orjson
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from tests.examples import examples
from treedbd.limits import MAX_BODY_NESTING
from treedbd.tree.fragments import (
    FRAGMENT_BYTES,
    NODE_BYTES,
    Fragment,
    InvalidFragment,
    Splitter,
    find_line,
)
from treedbd.tree.types import InvalidData

LEAVES = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(2**63), 2**63 - 1),
    st.floats(allow_nan=False, allow_infinity=False),
    st.text(max_size=12),
    st.sampled_from(['a,"b]{', "\\", '\\"' * 30, "\u2028é😀", "x" * 60]),
)
DOCUMENTS = st.recursive(
    LEAVES,
    lambda inner: st.one_of(
        st.lists(inner, max_size=6), st.dictionaries(st.text(max_size=6), inner, max_size=6)
    ),
    max_leaves=40,
)


def split(text: bytes, limit: int, step: int = 7) -> list[Fragment]:
    splitter = Splitter(limit)
    found: list[Fragment] = []
    for at in range(0, len(text), step):
        found += splitter.feed(text[at : at + step])
    return [*found, *splitter.finish()]


def assemble(fragments: list[Fragment]) -> Any:
    """Put a document together; containers that came in fragments are objects with all keys."""
    if len(fragments) == 1 and fragments[0].path == ():
        return as_objects(orjson.loads(fragments[0].json))
    root: dict[str, Any] = {}
    for fragment in fragments:
        container = root
        for depth, key in enumerate(fragment.path, 1):
            if depth == fragment.begun:
                container[key] = {}
            container = container.setdefault(key, {})
        members = orjson.loads(fragment.json)
        if isinstance(members, list):
            members = {str(fragment.first + at): item for at, item in enumerate(members)}
        container.update({key: as_objects(item) for key, item in members.items()})
    return root


def as_objects(json: Any) -> Any:
    if isinstance(json, list):
        return {str(at): as_objects(item) for at, item in enumerate(json)}
    if isinstance(json, dict):
        return {key: as_objects(item) for key, item in json.items()}
    return json


@settings(max_examples=examples(300))
@given(DOCUMENTS, st.integers(1, 80), st.integers(1, 100), st.booleans())
@example({"a": {"b": [1, [2, {"c": "x" * 90}], 3]}, "d": {"e": [[], {}]}}, 8, 3, True)
def test_the_fragments_of_a_document_are_all_of_it(
    document: Any, limit: int, step: int, is_indented: bool
) -> None:
    text = orjson.dumps(document, option=orjson.OPT_INDENT_2 if is_indented else None)
    fragments = split(text, limit, step)
    assert assemble(fragments) == as_objects(document)
    for each in fragments:
        assert each.parsed in (None, orjson.loads(each.json))


@pytest.mark.parametrize("bio", ["short, but with a comma", "[", '"}],{"', "\\"])
@pytest.mark.parametrize("is_indented", [False, True])
def test_the_records_of_a_collection_are_parsed_once(bio: str, is_indented: bool) -> None:
    record = {"age": 36, "bio": bio, "tags": {"a": True}, "list": [1, [2]]}
    records = {f"k{at}": record for at in range(500)}
    document = {"users": records, "teams": [record] * 500, "last": 1}
    text = orjson.dumps(document, option=orjson.OPT_INDENT_2 if is_indented else None)
    fragments = split(text, 4000, 4096)
    assert assemble(fragments) == as_objects(document)
    parsed = sum(each.parsed is not None for each in fragments)
    has_brackets = bio[0] in '["'
    assert (parsed > 0.8 * len(fragments)) is not has_brackets


DAMAGE = [b",", b"]", b"}", b"[", b"{", b'"', b":", b"x", b" 1", b"[1]", b'{"x":1}', b'"x":[1]']


@given(DOCUMENTS, st.integers(1, 30), st.data())
def test_what_is_not_valid_is_found(document: Any, limit: int, data: st.DataObject) -> None:
    text = orjson.dumps(document)
    at = data.draw(st.integers(0, len(text)))
    inserted = data.draw(st.sampled_from(DAMAGE))
    damaged = text[:at] + inserted + text[at + data.draw(st.integers(0, 1)) :]
    assert accepts(damaged, limit) == is_valid(damaged)


RECORDS = {
    f"k{at}": {"age": at, "bio": "é" * (at % 400), "tags": ["a", {"b": None}]} for at in range(300)
}


def parse_all(text: bytes, limit: int) -> list[Any]:
    return [fragment.parse() for fragment in split(text, limit, 500)]


@pytest.mark.parametrize("limit", [300, 1000, FRAGMENT_BYTES])
@pytest.mark.parametrize("indent", [None, 1])
@pytest.mark.parametrize(
    "damage", [('age":', 'age"'), ("null", "nul"), ("é", "\x01"), ("é", "\\x"), ('"a",', '"a"')]
)
def test_a_fault_is_where_a_parser_of_the_whole_document_finds_it(
    damage: tuple[str, str], indent: int | None, limit: int
) -> None:
    text = json.dumps(RECORDS, ensure_ascii=False, separators=(",", ":"), indent=indent)
    old, new = damage
    for begin in range(0, len(text) - 1000, len(text) // 20):
        at = text.find(old, begin)
        damaged = (text[:at] + new + text[at + len(old) :]).encode()
        with pytest.raises(InvalidFragment) as error:
            parse_all(damaged, limit)
        with pytest.raises(orjson.JSONDecodeError) as whole:
            orjson.loads(damaged)
        fault = whole.value
        assert error.value.reason == fault.msg
        place = find_line([damaged[:1000], damaged[1000:]], error.value.at)
        assert place == (fault.lineno, fault.colno, fault.pos)


def test_bytes_that_are_not_utf_8_are_found_at_their_place() -> None:
    for size in (100, 60_000):
        text = b'[1,"%b\xff%b",2]' % (b"x" * size, b"x" * size)
        with pytest.raises(InvalidFragment, match="UTF-8") as error:
            parse_all(text, FRAGMENT_BYTES)
        assert error.value.at == len('[1,"') + size


def accepts(text: bytes, limit: int) -> bool:
    """Return whether the fragments of a text are JSON; a long one comes in longer pieces."""
    try:
        for fragment in split(text, limit, max(7, len(text) // 1000 * 7)):
            orjson.loads(fragment.json)
    except (InvalidData, orjson.JSONDecodeError):
        return False
    return True


def is_valid(text: bytes) -> bool:
    try:
        orjson.loads(text)
    except orjson.JSONDecodeError:
        return False
    return True


def test_a_fragment_is_about_as_long_as_it_may_be() -> None:
    records = {f"k{at}": {"name": "n" * 20, "list": [at] * 10} for at in range(500)}
    fragments = split(orjson.dumps({"a": 1, "users": records}), 1000, 4096)
    weights = [len(each.json) + NODE_BYTES * each.json.count(b",") for each in fragments]
    assert max(weights) < 2200
    assert all(weight > 500 for weight, _ in list(pairwise(weights))[1:-1])
    assert {each.path for each in fragments} == {(), ("users",)}


def test_the_last_of_a_repeated_member_counts() -> None:
    text = b'{"a":{"x":[1,2,3,4,5,6,7,8,9]},"a":{"y":[1,2,3,4,5,6,7,8,9]}}'
    assert list(assemble(split(text, 8))["a"]) == ["y"]


LONG = '"\\\n' * 50_000


@pytest.mark.parametrize(
    "document",
    [
        LONG,
        [LONG],
        ["short", LONG, 1],
        {"a": {"b": [{"c": LONG}, 1]}, "d": 2},
        {"": LONG, "b": [LONG, LONG]},
        {"a": {".value": LONG, ".priority": 1}, "b": 1},
    ],
)
def test_a_long_string_is_a_fragment_of_its_own_in_the_pieces_in_which_it_came(
    document: Any,
) -> None:
    text = orjson.dumps(document)
    fragments = split(text, 1000, 5000)
    assert assemble(fragments) == as_objects(document)
    long = [each for each in fragments if each.long_parts]
    assert len(long) == text.count(orjson.dumps(LONG))
    for each in long:
        assert max(map(len, each.parts)) <= 1000
        assert as_objects(each.parse()) == as_objects(orjson.loads(each.json))


class CountingSplitter(Splitter):
    """Counts the bytes of text that it copies, of which it searches a part each time."""

    copied = 0

    def _replace(self, at: int, rest: bytes) -> None:
        super()._replace(at, rest)
        self.copied += len(self._text)


@pytest.mark.parametrize(
    "member", ['"%s",' % ("x" * 15_000), '"\\"",' * 30, "1,", "1%s," % ("0" * 30_000)]
)
def test_short_pieces_do_not_cost_more_than_long_ones(member: str) -> None:
    text = b"[%b0]" % (member.encode() * (200_000 // len(member)))

    def work(step: int) -> int:
        splitter = CountingSplitter()
        for at in range(0, len(text), step):
            list(splitter.feed(text[at : at + step]))
        list(splitter.finish())
        return splitter.copied

    assert work(7) < 1.1 * work(4096) < 40 * len(text)


def test_a_long_text_is_looked_at_once_and_not_kept() -> None:
    splitter = Splitter(1000)
    for piece in [b'{"a":"', *[b"x" * 5000] * 200]:
        assert not list(splitter.feed(piece))
        assert len(splitter._text) <= 1000


@pytest.mark.parametrize("step", [7, 5000])
def test_white_space_of_any_length_is_not_kept(step: int) -> None:
    blank = b" \t\r\n" * 50_000
    text = blank.join([b"", b"{", b'"a"', b":", b"1", b",", b'"b"', b":", b"[", b"]", b"}", b""])
    assert assemble(split(text, 1000, step)) == {"a": 1, "b": {}}


def test_a_number_without_an_end_is_refused_early() -> None:
    splitter = Splitter()
    assert list(splitter.feed(b"[" + b"1" * 60_000)) == []
    with pytest.raises(InvalidData, match="too long"):
        list(splitter.feed(b"1" * 140_000))


def test_a_key_without_an_end_is_refused_early() -> None:
    splitter = Splitter()
    assert list(splitter.feed(b'{"a":1,"' + b"k" * 3000)) == []
    with pytest.raises(InvalidData, match="longer than 768 bytes"):
        list(splitter.feed(b"k" * 20_000))


@pytest.mark.parametrize("shape", [b"1,", b"[],", b'"",', b'{"a":1},', b"[[1],[2]],"])
def test_a_fragment_has_few_members_however_short_they_are(shape: bytes) -> None:
    fragments = split(b"[%b0]" % (shape * (300_000 // len(shape))), FRAGMENT_BYTES, 64 * 1024)
    assert max(each.json.count(b",") for each in fragments) <= 2 * FRAGMENT_BYTES // NODE_BYTES
    assert len(fragments) < 100


def test_a_document_that_is_nested_too_deep_is_refused() -> None:
    with pytest.raises(InvalidData, match="nested deeper"):
        split(b"[" * (MAX_BODY_NESTING + 1), 10)


@pytest.mark.parametrize("text", [b'{"a":1', b'["', b"[1,2,3,4,5,6,7,8,9"])
def test_a_document_that_ends_too_early_is_refused(text: bytes) -> None:
    with pytest.raises(InvalidData, match="too early"):
        split(text, 4)


@pytest.mark.parametrize("after", [b"[1]", b"[%b]", b'{"x":1}', b'{"x":[%b]}', b'"x"', b'"x":[%b]'])
@pytest.mark.parametrize("limit", [8, FRAGMENT_BYTES])
def test_a_value_behind_a_long_one_without_a_comma_is_not_valid(after: bytes, limit: int) -> None:
    items = b",".join([b'"%b"' % (b"x" * limit)] * 4)
    after = after.replace(b"%b", items)
    assert accepts(b'{"a":[%b],"b":1}' % items, limit)
    assert not accepts(b'{"a":[%b]%b,"b":1}' % (items, after), limit)
    assert not accepts(b"[[%b]%b]" % (items, after), limit)


@pytest.mark.parametrize(
    "text", [b"[[1],[2]]\x0b", b"[1,2]\x0c\n", b'{"a":{"b":1},"c"\x0b:{"d":2}}\x0b']
)
def test_white_space_that_json_has_not_is_not_valid(text: bytes) -> None:
    with pytest.raises(InvalidData):
        split(text, 4)
    assert split(b"[1] \t\r\n", 4)
