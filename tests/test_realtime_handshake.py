"""The handshake of the real-time protocol and its hello, and the answer to long polling."""

from __future__ import annotations

import json
import pathlib
import re
import time

import pytest

from tests.daemon import Daemon
from tests.realtime import RealtimeClient
from tests.rest import Client, check_error, check_refused, print_request
from tests.websocket import Refused, WebSocket, upgrade_headers
from tests.websocket_frames import TEXT, print_frame

# The handshake.


@pytest.mark.parametrize("secure", [False, True])
def test_a_client_is_greeted_before_it_sends_anything(tree: Client, secure: bool) -> None:
    with RealtimeClient(Client(tree.daemon, tree.host, secure=secure)) as client:
        assert list(client.hello) == ["ts", "v", "h", "s"]
        assert client.hello["v"] == "5"
        assert abs(client.hello["ts"] - time.time() * 1000) < 10_000
        assert isinstance(client.hello["ts"], int)


def test_the_hello_names_the_host_as_the_client_addressed_it(tree: Client) -> None:
    for host in (tree.host, f"{tree.host}:80", tree.host.upper()):
        with RealtimeClient(tree, host=host) as client:
            assert client.hello["h"] == host


def test_every_connection_has_a_session_of_its_own(tree: Client) -> None:
    sessions = set()
    for _ in range(5):
        with RealtimeClient(tree) as client:
            sessions.add(client.session)
    assert len(sessions) == 5
    assert all(re.fullmatch(r"[0-9A-Za-z_-]{16,64}", session) for session in sessions)


def test_no_extension_and_no_subprotocol_is_agreed_on(tree: Client) -> None:
    offers = {
        "Sec-WebSocket-Extensions": "permessage-deflate; client_max_window_bits",
        "Sec-WebSocket-Protocol": "chat",
    }
    with RealtimeClient(tree, headers=offers) as client:
        assert "Sec-WebSocket-Extensions" not in client.headers
        assert "Sec-WebSocket-Protocol" not in client.headers
        client.put("a", 1)


@pytest.mark.parametrize(
    "target",
    [
        "/.ws?v=5&p=1:23:web:45&ac=token&r=f",
        "/.ws?v=5&s=unknown",
        "/.ws?v=5&ls=unknown",
        "/.ws?ls=&s=&v=5",
    ],
)
def test_what_clients_add_to_the_address_is_accepted(tree: Client, target: str) -> None:
    with RealtimeClient(tree, target) as client:
        client.put("a", 1)
        assert client.get("a") == 1


def test_a_client_that_authorises_its_handshake_is_served(tree: Client) -> None:
    headers = {
        "User-Agent": "Firebase/5/20.0.0/17/Admin",
        "Authorization": "Bearer owner",
        "X-Firebase-AppCheck": "x",
    }
    with RealtimeClient(tree, headers=headers) as client:
        assert client.get("a") is None


UPGRADE = "A WebSocket is opened by a request with Connection: Upgrade and Upgrade: websocket."
KEY = "Sec-WebSocket-Key must be there once, and be 16 bytes in base64."
NO_VERSION = "Sec-WebSocket-Version must be there once, and be 13."
VERSION = "The version of the WebSocket protocol is 13."


@pytest.mark.parametrize(
    ("headers", "reason"),
    [
        ({"Upgrade": ""}, UPGRADE),
        ({"Connection": "keep-alive"}, UPGRADE),
        ({"Sec-WebSocket-Key": ""}, KEY),
        ({"Sec-WebSocket-Key": "short"}, KEY),
        ({"Sec-WebSocket-Key": "c2hvcnQ="}, KEY),
        ({"Sec-WebSocket-Version": ""}, NO_VERSION),
        ({"Sec-WebSocket-Version": "8"}, VERSION),
        ({"Upgrade": "h2c"}, UPGRADE),
    ],
)
def test_a_request_that_is_no_handshake_is_refused(
    tree: Client, headers: dict[str, str], reason: str
) -> None:
    with pytest.raises(Refused) as refused:
        WebSocket(tree, headers=headers)
    assert refused.value.status in (400, 426)
    assert refused.value.headers["Content-Type"].startswith("application/json")
    assert json.loads(refused.value.body)["error"]
    assert json.loads(refused.value.body)["message"] == reason


def test_only_a_get_opens_a_socket(tree: Client) -> None:
    for method in ("POST", "PUT", "DELETE", "PATCH"):
        response = tree.request(method, "/.ws?v=5", "{}")
        assert response.status == 405, method


def test_a_client_of_another_version_of_websockets_receives_the_one_that_is_served(
    tree: Client,
) -> None:
    with pytest.raises(Refused) as refused:
        WebSocket(tree, headers={"Sec-WebSocket-Version": "12"})
    assert refused.value.status == 426
    assert refused.value.headers["Sec-WebSocket-Version"] == "13"


def test_tokens_of_headers_may_be_in_any_case_and_lists(tree: Client) -> None:
    headers = {"Connection": "keep-alive, UPGRADE", "Upgrade": "WebSocket"}
    with RealtimeClient(tree, headers=headers) as client:
        client.put("a", 1)
    assert tree.get("/a.json") == 1


def test_frames_that_follow_the_handshake_at_once_are_not_lost(tree: Client) -> None:
    target = "/.ws?v=5"
    with tree.connect() as wire:
        head = print_request("GET", target, None, upgrade_headers(), tree.host)
        wire.send(head + print_frame(TEXT, b'{"t":"d","d":{"r":1,"a":"p","b":{"p":"a","d":7}}}'))
        received = b""
        while b'"r":1' not in received:
            more = wire.socket.recv(65_536)
            assert more
            received += more
    assert received.startswith(b"HTTP/1.1 101 ")
    assert tree.get("/a.json") == 7


# The way back of browsers.


def script_of(tree: Client, query: str) -> str:
    response = tree.request("GET", f"/.lp?{query}", headers={"Sec-Fetch-Site": "none"})
    assert response.status == 200, response
    assert response.headers["Content-Type"].startswith("application/javascript")
    return response.body.decode()


def test_a_browser_that_polls_is_sent_back_to_sockets(tree: Client) -> None:
    script = script_of(tree, "start=t&ser=77&cb=12&v=5&p=x")
    note = 'localStorage.removeItem("firebase:previous_websocket_failure")'
    assert note in script
    assert 'parent.window["pLPCommand12"]("close")' in script
    assert script.startswith("try{")


@pytest.mark.parametrize(
    "query",
    [
        *("", "start=t&ser=1", "cb", "cb=", "cb=&cb=", "cb=1&cb=2", "cb=1&cb=1", "cb=1&cb"),
        *("cb=1x", "cb=-1", "cb=%2B1", "cb=+1", "cb=1+", "cb=1%00", "cb=1%0A", "cb=%D9%A1"),
        *("cb=%22%5D;alert(1)//", "cb=<script>evil</script>", "cb=1%zz", "cb=%ff", "CB=1"),
        *("cb=1.0", "cb=1e3", "cb=0x1", "cb=1;cb=2", "id=1&pw=2&ser=3", "dframe=t&id=1&pw=2"),
    ],
)
def test_a_callback_that_is_not_digits_is_refused(tree: Client, query: str) -> None:
    mark = "evilsearch"
    response = tree.request("GET", f"/.lp?{mark}={mark}&{query}&p={mark}")
    check_error(response, 400, "invalid_query")
    for part in (mark, "alert", "evil", "pLPCommand", "zz"):
        assert part.encode() not in response.body
        assert part not in str(response.headers)


@pytest.mark.parametrize("callback", ["0", "007", "9" * 300, "%31%32"])
def test_any_digits_are_a_callback(tree: Client, callback: str) -> None:
    digits = callback.replace("%31%32", "12")
    script = script_of(tree, f"evil=%22&cb={callback}&p=evil")
    assert f'parent.window["pLPCommand{digits}"]("close")' in script
    assert "evil" not in script


def test_a_poll_of_an_unknown_place_is_refused(tree: Client) -> None:
    assert Client(tree.daemon, "example.com").request("GET", "/.lp?cb=1").status == 421


# Off.


def test_real_time_that_is_not_enabled_is_not_there(tmp_path: pathlib.Path) -> None:
    config = '[realtime]\nenabled = false\n[projects.shop]\nrules_file = "open.json"\n'
    (tmp_path / "open.json").write_text('{"rules": {".read": true, ".write": true}}')
    with Daemon(tmp_path, config=config) as daemon, Client(daemon) as tree:
        with pytest.raises(Refused) as refused:
            WebSocket(tree, "/.ws?v=5&ns=shop")
        assert refused.value.status == 404
        check_refused(tree.request("GET", "/.lp?start=t&cb=1&ns=shop"), 404)
        assert tree.get("/a.json?ns=shop") is None
