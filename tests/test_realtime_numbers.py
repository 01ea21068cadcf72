"""What a socket receives has no digits beyond 64 bits, and the values of the REST interface."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any, Final

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.access import Tree, trusting, user
from tests.digits import as_doubles, check_digits
from tests.examples import examples
from tests.realtime import RealtimeClient
from tests.realtime_copy import hash_of
from tests.rest import Client

LARGE: Final = [1e19, -1e19, 2.0**63, -(2.0**63), 1.8e19, 123456789012345680000, 9.9e20]
WITHIN: Final = [2**63 - 1, -(2**63), 10**18, 0, 1.5, 1e21, 1e-7]
TEXT: Final = ",12345678901234567890,"
NUMBERS = st.integers(-(2**70), 2**70) | st.floats(-1e22, 1e22) | st.sampled_from([*LARGE, *WITHIN])
KEYS = st.sampled_from(["a", "b", "0", "1", "12345678901234567890", ":1,2", '"', "\\"])
TEXTS = st.sampled_from([TEXT, '"' + TEXT + '"', "\\" + TEXT, "12345678901234567890", "a"])
VALUES = st.recursive(
    NUMBERS | TEXTS,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(KEYS, inner, max_size=4),
    max_leaves=10,
)


class Reader(RealtimeClient):
    """A client that checks each message, before it is parsed.

    Attributes:
        texts: the messages.

    """

    texts: list[str]

    def _next_message(self, seconds: float) -> str:
        text = super()._next_message(seconds)
        check_digits(text)
        self.__dict__.setdefault("texts", []).append(text)
        return text


@pytest.fixture
def reader(tree: Client) -> Iterator[Reader]:
    with Reader(tree) as reader:
        yield reader


def export(tree: Client, path: str) -> Any:
    return as_doubles(json.loads(tree.request("GET", f"/{path}.json?format=export").body))


@pytest.mark.parametrize("number", [*LARGE, *WITHIN])
def test_a_number_is_the_same_by_all_ways(tree: Client, reader: Reader, number: float) -> None:
    before = reader.listen("n")
    assert before is None
    tree.put("/n.json", number)
    assert as_doubles(reader.next_push().body["d"]) == export(tree, "n") == float(number)
    tree.put("/n.json", {".value": True, ".priority": number})
    pushed = reader.next_push().body["d"]
    assert as_doubles(pushed) == export(tree, "n") == {".value": True, ".priority": float(number)}
    tree.request("PATCH", "/n.json", json.dumps({"x": number, "y/z": [number, TEXT]}))
    pushed = reader.next_push()
    expected = {"x": float(number), "y/z": {"0": float(number), "1": TEXT}}
    assert (pushed.action, as_doubles(pushed.body["d"])) == ("m", expected)
    assert as_doubles(reader.get("n")) == export(tree, "n")
    assert as_doubles(reader.get("n/x")) == float(number)
    same = reader.get("n", {"i": ".value", "sp": number, "ep": number})
    assert as_doubles(same["x"]) == float(number)
    with Reader(tree) as other:
        assert as_doubles(other.listen("n")) == export(tree, "n")
        assert as_doubles(other.listen("n/x")) == float(number)
        by_key = as_doubles(other.listen("n", {"i": ".key"}, 1))
        assert by_key | {".priority": float(number)} == export(tree, "n")


@pytest.mark.parametrize("number", LARGE)
def test_rest_prints_digits_as_before(tree: Client, number: float) -> None:
    tree.put("/n.json", number)
    text = tree.request("GET", "/n.json").body
    assert text.lstrip(b"-").isdigit()
    assert tree.request("GET", "/n.json?format=export").body == text


@settings(
    max_examples=examples(100),
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(value=VALUES)
def test_whatever_is_there_a_socket_receives_the_values_of_an_export(
    shared_tree: Client, value: Any
) -> None:
    body = json.dumps(value).replace('"\\\\"', '"backslash"')
    with Reader(shared_tree) as reader:
        shared_tree.put("/any.json", None)
        reader.listen("any")
        response = shared_tree.request("PUT", "/any.json", body)
        assert response.status == 200, body
        assert as_doubles(reader.next_push().body["d"]) == export(shared_tree, "any")
        assert as_doubles(reader.get("any")) == export(shared_tree, "any")


def long_value(size: int) -> dict[str, Any]:
    """Return a value whose JSON is not shorter, with digits of all kinds, also across chunks."""
    members = {"n": LARGE, "w": WITHIN, "t": TEXT, "long": TEXT * 5000, "esc": '\\"' + TEXT}
    return {f"k{number:06}": members for number in range(1 + size // 110_000)} | {
        f"m{number:06}": LARGE[number % len(LARGE)] for number in range(size // 60)
    }


@pytest.mark.parametrize("size", [20_000, 300_000, 4_000_000])
def test_large_values_are_the_same_too(tree: Client, size: int) -> None:
    value = long_value(size)
    assert tree.request("PUT", "/big.json?print=silent", json.dumps(value)).status == 204
    tree.put("/big/k000000/t.json", TEXT)
    expected = export(tree, "big")
    with Reader(tree) as first, Reader(tree) as second:
        asked = [each.send_request("g", {"p": "big"}) for each in (first, second)]
        for each, number in zip((first, second), asked, strict=True):
            assert as_doubles(each.await_answer(number).data) == expected
        assert as_doubles(first.listen("big")) == expected
        assert as_doubles(second.listen("big", {"i": ".key", "l": 10**6}, 1)) == expected
        assert as_doubles(second.get("big/k000000/long")) == TEXT * 5000


def test_a_transaction_on_such_a_number_fits_its_hash(tree: Client, reader: Reader) -> None:
    tree.put("/n.json", {"a": 1e19, "b": -(2.0**63)})
    reader.listen("n")
    for path, held in (("n/a", 1e19), ("n/b", -(2.0**63))):
        # The client hashes the doubles that it has received.
        assert (
            reader.request("p", {"p": path, "d": 0, "h": hash_of(held * 2)}).status == "datastale"
        )
        assert as_doubles(reader.get(path)) == held
        assert reader.request("p", {"p": path, "d": held * 2, "h": hash_of(held)}).status == "ok"
        assert as_doubles(reader.get(path)) == held * 2
    hash_of_both = hash_of(reader.get("n"))
    with Reader(tree) as other:
        other.succeed("q", {"p": "n", "h": hash_of_both})
        assert other.pushed == []  # it has the value already


def test_claims_and_queries_of_the_client_come_back_without_such_digits(
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    folder = tmp_path_factory.mktemp("claims")
    with trusting(folder, "", ["shop"]) as daemon, Tree(daemon, "shop") as shop:
        shop.put_rules({".read": "auth.uid === 'ada'", "x": {".indexOn": "n"}})
        with Reader(shop) as reader:
            token = user("shop", "ada", count=18446744073709551615, other=1e19)
            data = reader.succeed("auth", {"cred": token})
            assert as_doubles(data["auth"]["token"]["count"]) == float(18446744073709551615)
            reader.listen("x", {"i": "n", "sp": 18446744073709551615}, 1)
            shop.put_rules({".read": False})
            pushed = reader.next_push()
            assert pushed.action == "c"
            assert as_doubles(pushed.body["q"][0]["sp"]) == float(18446744073709551615)
