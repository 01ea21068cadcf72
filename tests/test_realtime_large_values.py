"""Large values over sockets: stored as sent, and notified to all who listen, once and in order."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any, Final

import pytest

from tests.realtime import RealtimeClient
from tests.rest import Client
from tests.sse import EventStream, change
from tests.websocket_frames import CONTINUATION, TEXT, print_frame

SIZE: Final = 400_000

SHAPES: Final[dict[str, Any]] = {
    "one string": "x" * SIZE,
    "a string of escapes": '"\\\n\u2028' * (SIZE // 12),
    "a string of surrogates": "\U0001f600" * (SIZE // 4),
    "members": {f"k{at:06}": at for at in range(SIZE // 12)},
    "records": {f"k{at:06}": {"name": f"n{at}", "ok": True} for at in range(SIZE // 40)},
    "escaped keys": {f'k"é{at:06}': "\n" for at in range(SIZE // 24)},
    "long strings": {f"k{at:06}": "é" * (SIZE // 10) for at in range(4)},
    "priorities": {f"k{at:06}": {".value": at, ".priority": at} for at in range(SIZE // 40)},
    "deep": {f"k{at:06}": json.loads('{"a":' * 25 + "1" + "}" * 25) for at in range(SIZE // 180)},
}


def send_in_one_frame(client: RealtimeClient, text: str) -> None:
    client.send_text(text)


def send_in_fragments(client: RealtimeClient, text: str) -> None:
    data = text.encode()
    half = len(data) // 3
    client.send(print_frame(TEXT, data[:half], is_final=False))
    client.send(print_frame(CONTINUATION, data[half : half + 1], is_final=False))
    client.send(print_frame(CONTINUATION, data[half + 1 :]))


def send_in_short_pieces(client: RealtimeClient, text: str) -> None:
    pieces = [text[at : at + 700] for at in range(0, len(text), 700)]
    client.send_text(str(len(pieces)))
    client.send(b"".join(print_frame(TEXT, each.encode()) for each in pieces))


WAYS: Final[dict[str, Callable[[RealtimeClient, str], None]]] = {
    "pieces": lambda client, text: client.send_long(text),
    "one frame": send_in_one_frame,
    "fragments": send_in_fragments,
    "short pieces": send_in_short_pieces,
}


def print_request(number: int, action: str, body: Any) -> str:
    envelope = {"t": "d", "d": {"r": number, "a": action, "b": body}}
    return json.dumps(envelope, ensure_ascii=False, separators=(",", ":"))


def write_between(
    client: RealtimeClient, action: str, value: Any, send: Callable[[RealtimeClient, str], None]
) -> None:
    """Write a large value at `big/v` and small ones before and after it, waiting for no answer."""
    client.send_text(print_request(901, "p", {"p": "big/n", "d": 1}))
    send(client, print_request(902, action, {"p": "big/v", "d": value}))
    client.send_text(print_request(903, "p", {"p": "big/n", "d": 2}))
    assert [client.await_answer(number).status for number in (901, 902, 903)] == ["ok"] * 3


def pushes(client: RealtimeClient, count: int) -> list[Any]:
    """Return the changes that a client has received, of which there must be so many."""
    client.read_until(lambda: len(client.pushed) >= count)
    client.ping()
    return [each.change for each in client.pushed]


@pytest.mark.parametrize(
    ("shape", "way"),
    [(shape, "pieces") for shape in SHAPES]
    + [(shape, way) for shape in ("one string", "escaped keys") for way in WAYS if way != "pieces"],
)
def test_a_value_is_stored_and_notified_in_its_order(tree: Client, shape: str, way: str) -> None:
    value = SHAPES[shape]
    with (
        RealtimeClient(tree) as writer,
        RealtimeClient(tree) as above,
        RealtimeClient(tree) as at,
        RealtimeClient(tree) as below,
        EventStream(tree, "/big.json") as stream,
    ):
        assert above.listen("big") is at.listen("big/v") is below.listen("big/v/k000001") is None
        stream.next_change()
        for each in (above, at, below):
            each.received.clear()
        write_between(writer, "p", value, WAYS[way])
        pushed = ("d", "big/v", value, None)
        assert pushes(above, 3) == [("d", "big/n", 1, None), pushed, ("d", "big/n", 2, None)]
        assert pushes(at, 1) == [pushed]
        inner = value.get("k000001") if isinstance(value, dict) else None
        assert pushes(below, 1) == [("d", "big/v/k000001", inner, None)]
        assert tree.get("/big/v.json?format=export") == value
        plain = tree.get("/big/v.json")
        assert [change(stream.next_change()) for _ in range(3)] == [
            *(("put", "/n", 1), ("put", "/v", plain), ("put", "/n", 2))
        ]


@pytest.mark.parametrize("shape", [name for name in SHAPES if isinstance(SHAPES[name], dict)])
def test_a_merge_is_stored_and_notified_in_its_order(tree: Client, shape: str) -> None:
    value = SHAPES[shape]
    tree.put("/big/v.json", {"kept": 1})
    with (
        RealtimeClient(tree) as writer,
        RealtimeClient(tree) as above,
        RealtimeClient(tree) as below,
        EventStream(tree, "/big.json") as stream,
    ):
        above.listen("big")
        below.listen("big/v/k000001")
        stream.next_change()
        for each in (above, below):
            each.received.clear()
        write_between(writer, "m", value, WAYS["pieces"])
        pushed = ("m", "big/v", value, None)
        assert pushes(above, 3) == [("d", "big/n", 1, None), pushed, ("d", "big/n", 2, None)]
        assert pushes(below, 1) == [("d", "big/v/k000001", value.get("k000001"), None)]
        assert tree.get("/big/v.json?format=export") == {"kept": 1, **value}
        assert [change(stream.next_change()) for _ in range(3)] == [
            *(("put", "/n", 1), ("patch", "/v", value), ("put", "/n", 2))
        ]


@pytest.mark.parametrize("order", ["pdh", "hpd", "dph", "rab", "bar"])
def test_a_value_with_many_members_is_stored_however_its_message_is_printed(
    tree: Client, order: str
) -> None:
    value = {f"k{at}": at for at in range(3000)}
    parts = {"p": "big", "d": value, "h": "", "r": 901, "a": "p"}
    body = {name: parts[name] for name in (order if "p" in order else "pd") if name != "h"}
    request = {name: parts.get(name, body) for name in (order if "r" in order else "rab")}
    with RealtimeClient(tree) as client:
        for indent in (None, 1):
            text = json.dumps({"x": [1], "d": request, "t": "d"}, indent=indent)
            client.send_long(text)
            assert client.await_answer(901).status == "ok"
            assert client.get("big") == value
            client.put("big", None)


@pytest.mark.parametrize("way", WAYS)
def test_a_value_that_is_not_valid_is_refused_and_the_next_write_is_done(
    tree: Client, way: str
) -> None:
    text = print_request(901, "p", {"p": "big", "d": {"a": "#"}})
    broken = text.replace('"#"', "[" + "1," * (SIZE // 2) + "}")
    with RealtimeClient(tree) as client:
        WAYS[way](client, broken)
        assert client.await_answer(901).status == "failure"
        client.put("big", 1)
        assert client.get("big") == 1
