"""Documents in parts: what the parts leave is what a PUT of the whole document leaves."""

from __future__ import annotations

import json
import re
import tracemalloc
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from tests.examples import examples
from tests.tree.strategies import FEW_KEYS, LEAVES, PRIORITIES
from treedbd.cli.exit import CommandFailed
from treedbd.cli.loading.chunks import Part, parts_of
from treedbd.tree.edit import apply, make_put
from treedbd.tree.types import InvalidData, Place, Value
from treedbd.tree.value import parse

TARGET = ("t",)
LONG = st.integers(1, 200).map(lambda size: "x" * size)


def _object(members: list[tuple[str, str]]) -> str:
    return "{" + ",".join(f"{json.dumps(key)}: {text}" for key, text in members) + "}"


def _texts(inner: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    """Containers as text, whose members may be repeated, and may be priorities."""
    priority = st.tuples(st.just(".priority"), PRIORITIES.map(json.dumps))
    member = st.tuples(FEW_KEYS, inner)
    leaf = st.tuples(st.just(".value"), (LEAVES | LONG).map(json.dumps))
    return st.one_of(
        st.lists(member, max_size=6).map(_object),
        st.lists(st.one_of(member, member, priority), max_size=6).map(_object),
        st.permutations([".value", ".priority"]).flatmap(
            lambda names: st.tuples(leaf, priority).map(
                lambda pairs: _object(sorted(pairs, key=lambda pair: names.index(pair[0])))
            )
        ),
        st.lists(inner, max_size=5).map(lambda items: f"[{', '.join(items)}]"),
    )


TEXTS = st.recursive((LEAVES | LONG | st.none()).map(json.dumps), _texts, max_leaves=25)


def cut(text: str, form: Any = "json", **more: Any) -> list[Part]:
    data = text.encode()
    blocks = (data[at : at + 9] for at in range(0, len(data), 9))
    sizes = {"fragment_bytes": 8, "part_bytes": 24, **more}
    return list(parts_of(blocks, form, **sizes))


def written(parts: list[Part], root: Value = None) -> Value:
    for part in parts:
        root = apply(root, part.edit(TARGET, 10**6).changes)
    return root


def expected(text: str) -> Value:
    return apply(None, make_put(Place(TARGET), parse(text.encode())).changes)


@settings(max_examples=examples(300))
@given(TEXTS, st.integers(1, 300))
@example('{"a": {"b": 1, "c": "xxxxxxxxxxxx"}, "a": {"d": "yyyyyyyyyyyyy", "e": 2}}', 1000)
@example('{"a": {".priority": 1, "c": "xxxxxxxxxxxx", "d": 1}, "a": {"e": 2, "f": "x"}}', 1)
@example('{".value": "xxxxxxxxxxxxxxxxxxx", ".priority": 3}', 1)
@example('{"a": [1, null, {"b": "xxxxxxxxxxx", "c": 1}, null, "yyyyyyyyy"]}', 20)
@example(json.dumps({"a": ["x" * 33]}), 1)  # one fragment, and not at the top
@example(json.dumps({"a": {"b": {"c": "x" * 33}}}), 1)
def test_the_parts_leave_what_the_document_leaves(text: str, part_bytes: int) -> None:
    assert written(cut(text, part_bytes=part_bytes)) == expected(text)


@settings(max_examples=examples(200))
@given(TEXTS, st.randoms(use_true_random=False))
def test_parts_without_a_conflict_may_be_written_in_any_order(text: str, random: Any) -> None:
    parts = cut(text)
    waiting = list(parts)
    order = []
    while waiting:
        free = [
            each
            for at, each in enumerate(waiting)
            if not any(each.conflicts(earlier) for earlier in waiting[:at])
        ]
        order.append(random.choice(free))
        waiting.remove(order[-1])
    assert written(order) == expected(text)


@settings(max_examples=examples(200))
@given(TEXTS, st.data())
def test_parts_that_are_written_again_have_the_same_effect(text: str, data: Any) -> None:
    parts = cut(text)
    stop = data.draw(st.integers(0, len(parts)))
    again = data.draw(st.integers(0, stop))
    assert written(parts[again:], written(parts[:stop])) == expected(text)


@settings(max_examples=examples(200))
@given(st.lists(st.tuples(FEW_KEYS, TEXTS), max_size=5), st.booleans())
def test_lines_leave_what_their_document_leaves(members: list[tuple[str, str]], ends: bool) -> None:
    lines = [f'{{"key": {json.dumps(key)}, "value": {text}}}' for key, text in members]
    text = "\n".join(lines) + "\n" * ends
    assert written(cut(text, "ndjson")) == expected(_object(members))


@given(TEXTS)
def test_a_merged_document_keeps_other_children(text: str) -> None:
    before = apply(None, make_put(Place(TARGET), {"other": 1}).changes)
    found: Any = written(cut(text, is_merged=True), before)
    whole: Any = expected(text)
    if whole is None:  # nothing but priorities, or nothing at all
        assert found is None or found["t"]["other"] == 1
    elif isinstance(whole["t"], dict) and ".value" not in whole["t"]:
        assert found == {"t": {**whole["t"], "other": 1}}
    else:
        assert found == whole


@pytest.mark.parametrize("form", ["json", "ndjson"])
def test_a_long_document_needs_the_memory_of_a_few_parts(form: Any) -> None:
    count, record = 4000, "x" * 1000
    read = 0

    def blocks() -> Iterator[bytes]:
        nonlocal read
        line = (
            f'{{"key": "%d", "value": "{record}"}}\n' if form == "ndjson" else f'"%d": "{record}"'
        )
        for number in range(count):
            text = line % number
            if form == "json":
                text = ("," if number else '{"all": {') + text
            read += len(text)
            yield text.encode()
        if form == "json":
            yield b"}}"

    tracemalloc.start()
    try:
        parts = parts_of(blocks(), form, fragment_bytes=4096, part_bytes=50_000)
        sizes = [part.size for part in parts]
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert read > count * 1000
    assert sum(sizes) >= read * 0.98
    assert peak < 500_000


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ('{"a": 1', "Not valid JSON"),
        ('{"a/b": 1, "c": "xxxxxxxxxxxxxxxxx", "d": 1}', "keys must not contain"),
        ('{"x": {".value": "xxxxxxxxxxxxxxxxxxxxxxxx", "b": 1, "c": "yyyyyyyyyyyyyyy"}}', ".value"),
        ('{"x": {"b": "xxxxxxxxxxxxxxxxxxxxxxxxxxxx", ".value": 1, "c": "yyyyyyyyyy"}}', ".value"),
    ],
)
def test_a_document_that_is_not_valid_is_refused(text: str, error: str) -> None:
    with pytest.raises((CommandFailed, InvalidData), match=error):
        written(cut(text))


@pytest.mark.parametrize(
    ("line", "error"),
    [
        ("1", 'A line must be an object with "key" and "value"'),
        ('{"key": "a"}', 'A line must be an object with "key" and "value"'),
        ('{"key": 5, "value": 1}', '"key" must be a string'),
        ('{"key": "a/b", "value": 1}', "The key 'a/b' is not allowed"),
        ('{"key": "a", "value": }', "Not valid JSON"),
        ('{"value": [' + "1, " * 99 + '1], "key": "a"}', '"key" must precede the value'),
        ('{"other": "' + "x" * 300 + '", "key": "a"}', "A line must be an object"),
    ],
)
def test_a_line_that_is_not_valid_is_refused_with_its_number(line: str, error: str) -> None:
    with pytest.raises(CommandFailed) as raised:
        cut(f'{{"key": "z", "value": 0}}\n\n{line}\n{{"key": "y", "value": 0}}', "ndjson")
    sentence = re.sub(r", column \d+|, at [^:]+", "", str(raised.value))
    assert sentence.startswith(f"Line 3: {error}")
