"""Requests of every form: any JSON at any action is answered or closes the socket by the rules."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from typing import Any, Final

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from tests.daemon import Daemon
from tests.examples import examples
from tests.realtime import RealtimeClient
from tests.rest import Client
from tests.websocket import SocketClosed
from tests.websocket_frames import print_close

ACTIONS: Final = (
    *("q", "n", "g", "p", "m", "o", "om", "oc", "auth", "gauth", "unauth", "s"),
    *("appcheck", "unappeck", "x", ""),
)
WORDS: Final = frozenset(
    {
        *("ok", "failure", "permission_denied", "datastale", "expired_token", "invalid_token"),
        *("unavailable", "too_big"),
    }
)
CLOSES: Final = (1003, 1007, 1008, 1009)

keys = st.one_of(
    st.sampled_from(
        ["a", "b", "0", "1", "-1", "01", ".priority", ".value", ".sv", "", "a/b", "$x"]
    ),
    st.text(max_size=8),
)
paths = st.one_of(
    st.lists(keys, max_size=5).map("/".join),
    st.text(max_size=20),
    st.sampled_from(["", "/", ".info/connected", ".settings/rules", "a/" * 40, "x" * 800]),
)
scalars = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(2**70), 2**70),
    st.floats(allow_nan=False, allow_infinity=False),
    st.text(max_size=20),
    st.sampled_from([{".sv": "timestamp"}, {".sv": {"increment": 1}}, "[MIN_NAME]", "[MAX_NAME]"]),
)
values = st.recursive(
    scalars,
    lambda inner: st.one_of(st.lists(inner, max_size=4), st.dictionaries(keys, inner, max_size=4)),
    max_leaves=12,
)
queries = st.one_of(
    values,
    st.fixed_dictionaries(
        {},
        optional={
            "i": st.one_of(paths, st.sampled_from([".key", ".value", ".priority"]), values),
            **dict.fromkeys(("sp", "ep"), scalars),
            **dict.fromkeys(("sn", "en"), st.one_of(keys, values)),
            **dict.fromkeys(("sin", "ein"), st.one_of(st.booleans(), values)),
            "l": st.one_of(st.integers(-2, 5), values),
            "vf": st.one_of(st.sampled_from(["l", "r"]), values),
        },
    ),
)
bodies = st.one_of(
    values,
    st.fixed_dictionaries(
        {"p": st.one_of(paths, values)},
        optional={
            "d": values,
            "q": queries,
            "t": st.one_of(st.integers(-1, 3), values),
            "h": st.one_of(st.text(max_size=30), values),
            "ch": values,
            "cred": st.one_of(st.sampled_from(["owner", "a.b.c", "", "x" * 9000]), values),
            "authvar": values,
            "noauth": values,
        },
    ),
)


@pytest.fixture(scope="module")
def any_tree(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Client]:
    with Daemon(tmp_path_factory.mktemp("requests")) as daemon:
        with Client.of_new_tree(daemon) as tree:
            yield tree
        assert "Traceback" not in daemon.log, daemon.log
        assert "Unhandled" not in daemon.log, daemon.log
        assert "internal error" not in daemon.log, daemon.log


def check_answers(client: RealtimeClient, requests: list[tuple[str, Any]]) -> None:
    """Send requests and check that each is answered by one of the words of the protocol."""
    numbers = [client.send_request(action, body) for action, body in requests]
    for number in numbers:
        answer = client.await_answer(number)
        assert answer.status in WORDS
        assert answer.data is None or answer.status == "ok" or isinstance(answer.data, str)
        assert answer.data is None or "internal error" not in str(answer.data)
    for push in client.pushed:
        assert push.action in ("d", "m", "c", "ac", "sd")
        assert isinstance(push.body.get("p", ""), str)


@settings(max_examples=examples(450), suppress_health_check=list(HealthCheck))
@example([("p", {"p": "", "cred": "x" * 20_000})])  # a long write without a value
@given(st.lists(st.tuples(st.sampled_from(ACTIONS), bodies), min_size=1, max_size=12))
def test_any_requests_are_answered(any_tree: Client, requests: list[tuple[str, Any]]) -> None:
    with RealtimeClient(any_tree) as client:
        check_answers(client, [each for each in requests if each[1] is not None])
        client.put("probe", 1)
        assert client.get("probe") == 1
        client.leave()


@settings(max_examples=examples(450), suppress_health_check=list(HealthCheck))
@given(st.one_of(values, st.fixed_dictionaries({"t": values, "d": values})))
def test_any_envelope_is_answered_or_closes_the_socket(any_tree: Client, envelope: Any) -> None:
    check_harmless(any_tree, json.dumps(envelope))


@settings(max_examples=examples(450), suppress_health_check=list(HealthCheck))
@given(st.text(st.characters(exclude_categories=["Cs"]), max_size=200))
def test_any_text_is_answered_or_closes_the_socket(any_tree: Client, text: str) -> None:
    check_harmless(any_tree, text)


@settings(max_examples=examples(150), suppress_health_check=list(HealthCheck))
@given(st.lists(st.text('0123456789{}[]"td:,-+. e', max_size=10), max_size=12))
def test_any_pieces_are_answered_or_close_the_socket(any_tree: Client, texts: list[str]) -> None:
    with RealtimeClient(any_tree) as client:
        with contextlib.suppress(ConnectionError):
            for text in texts:
                client.send_text(text)
            client.send(print_close())
        assert client.await_close() in (*CLOSES, 1000, None)


def check_harmless(tree: Client, text: str) -> None:
    """Send one text frame; what is no message of the protocol closes by one of its codes."""
    with RealtimeClient(tree) as client:
        client.send_text(text)
        client.send_text('{"t":"d","d":{"r":1,"a":"s","b":{}}}')
        expected = {*WORDS, *CLOSES} if not text.isdecimal() else {*WORDS, *CLOSES, None}
        assert outcome_of(client) in expected


def outcome_of(client: RealtimeClient) -> str | int | None:
    """Return the word of the answer to request 1, or the code of the close; None without both."""
    try:
        return client.await_answer(1, 2).status
    except SocketClosed as closed:
        return closed.code
    except TimeoutError:
        return None


@pytest.mark.parametrize("depth", [50, 127, 128, 129, 1000, 5000])
@pytest.mark.parametrize("action", ["p", "m", "q", "g", "o", "om", "auth", "gauth", "s"])
def test_deep_values_fail_or_succeed_and_nothing_breaks(
    any_tree: Client, action: str, depth: int
) -> None:
    for opening, closing in (("[", "]"), ('{"a":', "}")):
        deep = opening * depth + "1" + closing * depth
        text = (
            f'{{"t":"d","d":{{"r":1,"a":"{action}","b":{{"p":"a","d":{deep},"q":{deep},"t":1,'
            f'"cred":"owner","authvar":{deep}}}}}}}'
        )
        with RealtimeClient(any_tree) as client:
            client.send_long(text)
            assert outcome_of(client) in {*WORDS, 1008}
