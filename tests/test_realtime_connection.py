"""The connection of the real-time protocol: envelopes, keep-alive, closes, sessions."""

from __future__ import annotations

import json
import pathlib
from typing import Any

import pytest

from tests.daemon import Daemon
from tests.realtime import RealtimeClient
from tests.rest import Client
from tests.websocket_frames import BINARY, CLOSE, PING, PONG, print_close


def request_text(number: int, action: str, body: Any = None) -> str:
    return json.dumps({"t": "d", "d": {"r": number, "a": action, "b": body or {}}})


# Envelopes and control messages.


def test_a_ping_of_the_protocol_is_answered_with_the_member_d(tree: Client) -> None:
    with RealtimeClient(tree) as client:
        for _ in range(3):
            assert client.ping() == {"t": "o", "d": None}


def test_the_text_zero_is_read_and_not_answered(tree: Client) -> None:
    with RealtimeClient(tree) as client:
        for _ in range(3):
            client.send_text("0")
        client.put("a", 1)
        assert not client.has_data(0.1)


def test_the_server_never_sends_a_text_that_clients_read_as_a_count(tmp_path: pathlib.Path) -> None:
    config = '[streams]\nkeep_alive_s = 1\n[projects.shop]\nrules_file = "open.json"\n'
    (tmp_path / "open.json").write_text('{"rules": {".read": true, ".write": true}}')
    with (
        Daemon(tmp_path, config=config) as daemon,
        RealtimeClient(Client(daemon), "/.ws?v=5&ns=shop") as client,
    ):
        with pytest.raises(TimeoutError):
            client.next_text(3.5)
        assert client.pings >= 2
        client.put("a", 1)


def test_a_websocket_ping_is_answered_with_its_payload(tree: Client) -> None:
    with RealtimeClient(tree) as client:
        for payload in (b"", b"abc", bytes(125)):
            client.send_frame(PING, payload)
            frame = client.receive_frame()
            assert frame is not None
            assert (frame.opcode, frame.payload) == (PONG, payload)


def test_a_pong_that_nobody_asked_for_is_ignored(tree: Client) -> None:
    with RealtimeClient(tree) as client:
        client.send_frame(PONG, b"x")
        client.put("a", 1)
    assert tree.get("/a.json") == 1


@pytest.mark.parametrize("code", [1000, 1001, 3000, 4999])
def test_a_close_is_answered_with_its_code_and_ends_the_connection(tree: Client, code: int) -> None:
    with RealtimeClient(tree) as client:
        client.send(print_close(code, "bye"))
        assert client.await_close() == code
        client.await_end()


def test_a_close_without_a_code_is_answered(tree: Client) -> None:
    with RealtimeClient(tree) as client:
        client.send(print_close(None))
        frame = client.receive_frame()
        assert frame is not None
        assert frame.opcode == CLOSE
        assert frame.payload in (b"", (1000).to_bytes(2, "big"))
        client.await_end()


@pytest.mark.parametrize(
    "text",
    [
        *("", "x", "{", "null", "[]", "true", '"text"', "{}", "[1,2]", "0x10", "-", "1.5e"),
        *('{"t":"d"}', '{"t":1,"d":{}}', '{"d":{}}', '{"t":"d","d":[]}', '{"t":"x","d":{}}'),
        '{"t":"c","d":7}',
        *('{"t":"d","d":{"a":"s"}}', '{"t":"d","d":{"r":"1","a":"s","b":{}}}'),
        *('{"t":"d","d":{"r":1}}', '{"t":"d","d":{"r":1,"a":7,"b":{}}}'),
        '{"t":"d","d":{"r":1,"a":"s","b":{}}} {"t":"d"}',
    ],
)
def test_what_is_no_envelope_closes_the_connection(tree: Client, text: str) -> None:
    with RealtimeClient(tree) as client:
        client.send_text(text)
        assert client.await_close() == 1008
        client.await_end()


def test_a_binary_frame_closes_the_connection(tree: Client) -> None:
    with RealtimeClient(tree) as client:
        client.send_frame(BINARY, request_text(1, "s").encode())
        assert client.await_close() == 1003
        client.await_end()


def test_an_unknown_action_fails_and_the_connection_goes_on(tree: Client) -> None:
    with RealtimeClient(tree) as client:
        for action in ("", "x", "Q", "toString", "__class__", "é" * 500):
            assert client.request(action, {"p": "a"}).status == "failure"
        client.put("a", 1)


@pytest.mark.parametrize("action", ["s", "unauth", "appcheck", "unappeck"])
def test_actions_that_need_nothing_succeed(tree: Client, action: str) -> None:
    with RealtimeClient(tree) as client:
        assert client.request(action, {"c": {"sdk.js.9": 1}, "token": "x"}).status == "ok"


@pytest.mark.parametrize("number", [0, 1, 2**31, 2**53 - 1, 2**53])
def test_the_number_of_a_request_comes_back_as_it_was(tree: Client, number: int) -> None:
    with RealtimeClient(tree) as client:
        client.send_text(request_text(number, "s"))
        answered = json.loads(client.next_text())
        assert answered["d"]["r"] == number


@pytest.mark.parametrize(
    "number",
    [
        *("9007199254740993", "18446744073709551616", "1" + "0" * 300, "-1", "1.0", "1e3", "1.5"),
        *('"1"', "true", "null", "[]", "9007199254740992.0"),
    ],
)
def test_another_number_is_that_of_no_request(tree: Client, number: str) -> None:
    with RealtimeClient(tree) as client:
        client.send_text(f'{{"t":"d","d":{{"r":{number},"a":"p","b":{{"p":"a","d":1}}}}}}')
        assert client.await_close() == 1008
        assert tree.get("/a.json") is None


def test_requests_without_waiting_are_answered_in_order(tree: Client) -> None:
    with RealtimeClient(tree) as client:
        numbers = [client.send_request("p", {"p": f"a/{at % 7}", "d": at}) for at in range(200)]
        for number in numbers:
            assert client.await_answer(number).status == "ok"
        assert [each[0] for each in client.received if isinstance(each, tuple)] == numbers


def test_the_data_of_an_answer_is_always_there(tree: Client) -> None:
    """Clients for the JVM fail on an answer to a listen whose data is not an object."""
    with RealtimeClient(tree) as client:
        assert isinstance(client.succeed("q", {"p": "a", "h": ""}), dict)
        client.send_text(request_text(99, "q", {"p": "b", "h": ""}))
        texts = [json.loads(client.next_text())["d"] for _ in range(2)]
        assert "d" in texts[1]["b"]


# The last session.


def test_a_new_connection_ends_the_former_one_that_it_names(tree: Client) -> None:
    with (
        RealtimeClient(tree) as former,
        RealtimeClient(tree, f"/.ws?v=5&ls={former.session}") as client,
    ):
        assert client.session != former.session
        former.await_close()
        former.await_end()
        client.put("a", 1)


def test_the_former_session_ends_before_the_new_one_is_greeted(tree: Client) -> None:
    with RealtimeClient(tree) as former:
        former.put("online", True)
        former.succeed("o", {"p": "online", "d": False})
        with RealtimeClient(tree, f"/.ws?v=5&ls={former.session}") as client:
            assert client.get("online") is False
            client.put("online", True)
            former.await_end()
            assert tree.get("/online.json") is True


def test_a_session_of_another_database_cannot_be_ended(tree: Client) -> None:
    with (
        Client.of_new_tree(tree.daemon) as other,
        RealtimeClient(other) as victim,
        RealtimeClient(tree, f"/.ws?v=5&ls={victim.session}") as client,
    ):
        client.put("a", 1)
        victim.put("a", 2)
        assert (tree.get("/a.json"), other.get("/a.json")) == (1, 2)


def test_a_connection_that_ends_in_a_frame_does_no_harm(tree: Client) -> None:
    with RealtimeClient(tree) as client:
        client.send(b"\x81\xff")
    with RealtimeClient(tree) as client:
        client.put("a", 1)
        client.leave()
    assert tree.get("/a.json") == 1
