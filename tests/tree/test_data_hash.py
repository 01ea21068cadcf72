"""The hash of values: the texts that clients hash, written out."""

from __future__ import annotations

from base64 import b64encode
from hashlib import sha1
from typing import Any

import pytest

from treedbd.loop import in_steps
from treedbd.tree import hashes as data_hash_module
from treedbd.tree.edit import normalise
from treedbd.tree.hashes import NOTHING, HashedChild, data_hash, hash_container
from treedbd.tree.types import Json, Value

FIVE = "4014000000000000"


def of(text: str) -> str:
    """Return the hash of a text."""
    return b64encode(sha1(text.encode()).digest()).decode()


def value(json: Any) -> Value:
    """Return JSON in normal form."""
    normal: Any = normalise(json, 0).value
    return normal  # type: ignore[no-any-return]  # there is no server value in it


@pytest.mark.parametrize(
    ("json", "text"),
    [
        ("hello", "string:hello"),
        ("", "string:"),
        ("é\U0001f600", "string:é\U0001f600"),
        (True, "boolean:true"),
        (False, "boolean:false"),
        (5, f"number:{FIVE}"),
        (-0.5, "number:bfe0000000000000"),
        (2**53 + 1, "number:4340000000000000"),
        ({".value": "x", ".priority": 5}, f"priority:number:{FIVE}:string:x"),
        ({".value": 5, ".priority": "p"}, f"priority:string:p:number:{FIVE}"),
    ],
)
def test_a_leaf_is_hashed_with_its_type_and_its_priority(json: Json, text: str) -> None:
    assert data_hash(value(json)) == of(text)


def test_nothing_hashes_to_the_empty_string() -> None:
    assert data_hash(None) == NOTHING == ""


def test_a_container_is_hashed_by_its_children_in_key_order() -> None:
    text = f":2:{of('string:b')}:10:{of('string:a')}:x:{of('boolean:true')}"
    assert data_hash(value({"x": True, "10": "a", "2": "b"})) == of(text)


def test_children_with_priorities_come_in_their_order_after_those_without() -> None:
    json: Json = {
        "a": {".value": 1, ".priority": "text"},
        "b": {".value": 1, ".priority": 2},
        "c": {".value": 1, ".priority": 10},
        "d": 1,
    }
    hashed = value(json)
    assert isinstance(hashed, dict)
    text = "".join(f":{key}:{data_hash(hashed[key])}" for key in "dbca")
    assert data_hash(hashed) == of(text)


def test_the_priority_of_a_container_precedes_its_children() -> None:
    assert data_hash(value({".priority": 5, "a": "x"})) == of(
        f"priority:number:{FIVE}::a:{of('string:x')}"
    )


def test_keys_and_priorities_compare_by_utf_16() -> None:
    beyond, below = "\U00010000", "\uffee"  # in UTF-8 and by code points the other way round
    one = of("string:1")
    assert data_hash(value({below: "1", beyond: "1"})) == of(f":{beyond}:{one}:{below}:{one}")
    first = {".value": "1", ".priority": beyond}
    second = {".value": "1", ".priority": below}
    text = f":b:{data_hash(value(first))}:a:{data_hash(value(second))}"
    assert data_hash(value({"a": second, "b": first})) == of(text)


def test_containers_are_nested() -> None:
    inner = of(f":b:{of('string:x')}")
    assert data_hash(value({"a": {"b": "x"}})) == of(f":a:{inner}")


def test_what_was_sorted_is_freed_beside_if_a_hash_is_left_before_its_end(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    freed: list[int] = []
    monkeypatch.setattr(data_hash_module, "SORTED_AT_ONCE", 4)
    monkeypatch.setattr(data_hash_module, "free_beside", lambda runs: freed.append(len(runs)))
    children = [HashedChild(str(at % 10), None, "x") for at in range(100, 0, -1)]
    for steps in (30, 1000):
        work = in_steps(lambda: hash_container(lambda: children, None))
        for _ in range(steps):
            if next(work, "end") == "end":
                break
        work.close()
    assert freed[0] > 0
    assert freed[1:] == [0]
