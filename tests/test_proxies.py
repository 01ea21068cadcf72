"""Behind nginx and Caddy of Debian, with the files in `conf/`: all works as without them."""

from __future__ import annotations

import json
import pathlib
import re
import socket
import subprocess
import time
from collections.abc import Iterator
from http.client import HTTPResponse
from typing import Final
from urllib.parse import urlsplit

import pytest

from tests.daemon import Daemon
from tests.proxies import Front, ProxyClient, start_caddy, start_nginx
from tests.realtime import RealtimeClient
from tests.rest import OPEN_RULES, configured
from tests.sse import EventStream, change, put
from tests.websocket import Refused

CONFIG: Final = """
domains = ["db.example.com"]
trusted_proxies = ["127.0.0.1", "unix"]
[limits]
streams_per_address = 2
sockets_per_address = 2
[http]
access_log = true
[projects.shop]
databases = "*"
rules_file = "open.json"
[projects.other]
rules_file = "open.json"
"""
STREAM: Final = {"Accept": "text/event-stream"}


@pytest.fixture(scope="module")
def daemon(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    with configured(tmp_path_factory.mktemp("behind"), CONFIG) as running:
        yield running


@pytest.fixture(scope="module")
def nginx(daemon: Daemon) -> Iterator[Front]:
    with start_nginx(daemon.folder / "nginx", urlsplit(daemon.http).netloc) as front:
        yield front


@pytest.fixture
def shop(nginx: Front) -> Iterator[ProxyClient]:
    with nginx.client("shop") as client:
        yield client


def read_event(stream: HTTPResponse) -> tuple[str, object]:
    """Return the next event and its data, as soon as it is there."""
    event, data = stream.readline(), stream.readline()
    assert stream.readline() == b"\n"
    return event.decode().strip()[7:], json.loads(data[6:])


def test_reads_and_writes_with_their_conditions_pass(shop: ProxyClient) -> None:
    assert shop.request("PUT", "/people/ada.json", '{"age":36}').status == 200
    read = shop.request("GET", "/people/ada.json", headers={"X-TreeDB-ETag": "true"})
    assert (read.status, read.json) == (200, {"age": 36})
    tag = read.headers["ETag"]
    assert shop.request("PUT", "/people/ada.json", "1", {"If-Match": tag}).status == 200
    failed = shop.request("PUT", "/people/ada.json", "2", {"If-Match": tag})
    assert (failed.status, failed.json["data"]) == (412, 1)
    assert shop.request("PATCH", "/people.json", '{"bob":2}').status == 200
    assert shop.request("DELETE", "/people/ada.json").status in (200, 204)
    assert shop.request("GET", "/people.json").json == {"bob": 2}


def test_hosts_reach_their_databases(nginx: Front) -> None:
    for database in ("shop", "eu--shop", "other"):
        with nginx.client(database) as client:
            assert client.request("PUT", "/name.json", json.dumps(database)).status == 200
    for database in ("shop", "eu--shop", "other"):
        with nginx.client(database) as client:
            assert client.request("GET", "/name.json").json == database


def test_large_bodies_pass_both_ways(shop: ProxyClient) -> None:
    value = {f"k{number}": "x" * 10_000 for number in range(1200)}
    assert shop.request("PUT", "/large.json?print=silent", json.dumps(value)).status == 204
    assert shop.request("GET", "/large.json").json == value


def test_the_error_of_a_body_that_is_too_large_is_that_of_the_daemon(shop: ProxyClient) -> None:
    refused = shop.request("PUT", "/large.json", b"1" * 17_000_000)
    assert (refused.status, refused.json["error"]) == (413, "payload_too_large")


def test_events_arrive_while_nothing_else_is_sent(nginx: Front, shop: ProxyClient) -> None:
    with nginx.client("shop", "127.0.0.3") as watcher:
        stream = watcher.open("GET", "/events.json", headers=STREAM)
        assert read_event(stream) == ("put", {"path": "/", "data": None})
        for number in range(3):
            shop.request("PUT", "/events/n.json", str(number))
            assert read_event(stream) == ("put", {"path": "/n", "data": number})


def test_streams_are_not_chunked_where_nginx_is_configured_so(
    daemon: Daemon, tmp_path: pathlib.Path
) -> None:
    line = "chunked_transfer_encoding off;"
    upstream = urlsplit(daemon.http).netloc
    with (
        start_nginx(tmp_path / "nginx", upstream, {f"# {line}": line}) as front,
        front.client("shop", "127.0.0.17") as shop,
        EventStream(shop, "/plain.json") as stream,
    ):
        assert "Transfer-Encoding" not in stream.headers
        assert change(stream.next_change()) == put("/", None)
        for number in range(3):
            shop.request("PUT", "/plain/n.json", str(number))
            assert change(stream.next_change()) == put("/n", number)


def test_connections_to_the_daemon_are_used_again(daemon: Daemon, nginx: Front) -> None:
    def ask() -> None:
        with nginx.client("shop") as client:
            assert client.request("GET", "/name.json").status == 200

    ask()
    before = _peers_of(daemon)
    for _ in range(20):
        ask()
    # Each of the two processes of nginx may have connected once.
    assert len(_peers_of(daemon) - before) <= 2


def _peers_of(daemon: Daemon) -> set[str]:
    """Return the other ends of the connections of the daemon without TLS, closed ones too."""
    port = daemon.port
    lines = pathlib.Path("/proc/net/tcp").read_text().splitlines()[1:]
    ends = (line.split()[1:3] for line in lines)
    return {local for local, remote in ends if remote.endswith(f":{port:04X}")}


def test_streams_are_counted_for_the_client_and_end_with_its_connection(nginx: Front) -> None:
    def watch(address: str) -> tuple[ProxyClient, HTTPResponse]:
        client = nginx.client("shop", address)
        return client, client.open("GET", "/counted.json", headers=STREAM)

    open_ones = [watch("127.0.0.4") for _ in range(2)]
    assert [stream.status for _, stream in open_ones] == [200, 200]
    third, refused = watch("127.0.0.4")
    assert (refused.status, json.loads(refused.read())["error"]) == (429, "too_many_requests")
    other, accepted = watch("127.0.0.5")
    assert accepted.status == 200
    for each, stream in open_ones:
        stream.close()
        each.close()
    # Once nginx has closed its end, there is room again.
    end = time.monotonic() + 30
    while (opened := third.open("GET", "/counted.json", headers=STREAM)).status != 200:
        assert opened.status == 429
        opened.read()
        assert time.monotonic() < end
    for each in (third, other):
        each.close()


@pytest.mark.parametrize(
    "spoofed",
    [
        {"X-Forwarded-For": "127.0.0.99"},
        {"X-Forwarded-For": "127.0.0.99, 127.0.0.1"},
        {"Forwarded": "for=127.0.0.99;proto=http"},
        {"Forwarded": 'for="', "X-Forwarded-Host": "other.db.example.com"},
    ],
    ids=str,
)
def test_what_a_client_sends_itself_is_not_believed(
    daemon: Daemon, nginx: Front, spoofed: dict[str, str]
) -> None:
    target = f"/spoof-{len(str(spoofed))}.json"
    with nginx.client("shop", "127.0.0.6") as client:
        client.request("PUT", target, '"shop"')
        assert client.request("GET", target, headers=spoofed).json == "shop"
    line = daemon.await_line(f"GET {re.escape(target)}")
    assert "127.0.0.6" in line.string
    assert "127.0.0.99" not in daemon.log


def test_a_peer_that_is_not_trusted_may_say_what_it_likes(daemon: Daemon) -> None:
    address = urlsplit(daemon.http)
    fields = "X-Forwarded-For: 127.0.0.98\r\nX-Forwarded-Host: other.db.example.com\r\n"
    head = f"GET /direct.json HTTP/1.1\r\nHost: shop.db.example.com\r\n{fields}\r\n"
    source = ("127.0.0.7", 0)
    with socket.create_connection(("127.0.0.1", address.port), 30, source) as wire:
        wire.sendall(head.encode())
        assert wire.recv(100).startswith(b"HTTP/1.1 200")
    assert "127.0.0.7" in daemon.await_line("GET /direct.json").string
    assert "127.0.0.98" not in daemon.log


def check_socket(client: ProxyClient) -> None:
    """Check that a WebSocket carries messages and events both ways, long ones too."""
    with RealtimeClient(client) as socket:
        assert socket.hello["h"] == client.host
        assert socket.listen("room") is None
        client.request("PUT", "/room/topic.json", '"birds"')
        assert socket.next_push().change == ("d", "room/topic", "birds", None)
        socket.put("room/long", "x" * 300_000)
        assert socket.get("room/long") == "x" * 300_000
        assert client.request("GET", "/room/topic.json").json == "birds"
        socket.send_request("o", {"p": "gone", "d": True})
        socket.put("room", None)
        socket.leave()
    end = time.monotonic() + 30
    while client.request("GET", "/gone.json").json is not True:
        assert time.monotonic() < end
    client.request("DELETE", "/gone.json")


def test_a_websocket_passes_with_its_host_and_its_end(shop: ProxyClient) -> None:
    check_socket(shop)


def test_websockets_are_counted_for_the_client(nginx: Front) -> None:
    with (
        nginx.client("shop", "127.0.0.14") as client,
        RealtimeClient(client),
        RealtimeClient(client),
        nginx.client("shop", "127.0.0.15") as other,
    ):
        with pytest.raises(Refused) as refused:
            RealtimeClient(client)
        assert (refused.value.status, b"sockets_per_address" in refused.value.body) == (503, True)
        RealtimeClient(other).close()


def test_another_upgrade_is_not_one_and_a_refused_handshake_has_a_reason(nginx: Front) -> None:
    with nginx.client("shop", "127.0.0.16") as client:
        upgrade = {"Connection": "Upgrade", "Upgrade": "h2c"}
        assert client.request("GET", "/name.json", headers=upgrade).status == 200
        with pytest.raises(Refused) as refused:
            RealtimeClient(client, headers={"Sec-WebSocket-Version": "12"})
        assert refused.value.status == 426
        assert refused.value.headers["Sec-WebSocket-Version"] == "13"


def test_the_page_shows_the_address_of_the_proxy(nginx: Front, shop: ProxyClient) -> None:
    page = shop.request("GET", "/", headers={"Accept": "text/html"})
    assert f"https://shop.db.example.com:{nginx.port}/" in page.body.decode()


def test_http_2_passes_with_host_body_and_events(nginx: Front) -> None:
    url = f"https://other.db.example.com:{nginx.port}"
    curl = ["curl", "--silent", "--show-error", "--http2", "--max-time", "60", "--cacert"]
    curl += [str(nginx.ca), "--resolve", f"*:{nginx.port}:127.0.0.1"]

    def run(*arguments: str) -> str:
        return subprocess.run(
            [*curl, *arguments], capture_output=True, check=True, text=True
        ).stdout

    shown = run("-X", "PUT", "-d", '"h2"', "-w", " %{http_version}", f"{url}/h2.json")
    assert shown == '"h2" 2'
    command = [*curl, "--no-buffer", "-H", "Accept: text/event-stream", f"{url}/h2.json"]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as stream:
        assert stream.stdout is not None
        assert [stream.stdout.readline() for _ in range(3)][
            1
        ] == b'data: {"path":"/","data":"h2"}\n'
        run("-X", "PUT", "-d", "7", f"{url}/h2.json")
        assert [stream.stdout.readline() for _ in range(3)][1] == b'data: {"path":"/","data":7}\n'
        stream.kill()


def test_over_a_unix_socket_the_client_has_its_address_too(
    tmp_path: pathlib.Path,
) -> None:
    listen = [f"unix:{tmp_path}/treedb.sock:mode=660"]
    (tmp_path / "open.json").write_text(OPEN_RULES)
    with (
        Daemon(tmp_path, config=CONFIG, listen=listen) as daemon,
        start_nginx(tmp_path / "nginx", f"unix:{tmp_path}/treedb.sock") as front,
        front.client("other", "127.0.0.8") as client,
    ):
        assert client.request("PUT", "/a.json", "1").json == 1
        assert "127.0.0.8" in daemon.await_line("PUT /a.json").string


def test_caddy_passes_requests_events_hosts_and_addresses(daemon: Daemon) -> None:
    with (
        start_caddy(daemon.folder / "caddy", urlsplit(daemon.http).netloc) as front,
        front.client("eu--shop", "127.0.0.10") as client,
        front.client("eu--shop", "127.0.0.11") as watcher,
    ):
        stream = watcher.open("GET", "/caddy.json", headers=STREAM)
        assert read_event(stream) == ("put", {"path": "/", "data": None})
        spoofed = {"X-Forwarded-For": "127.0.0.97", "Forwarded": "for=127.0.0.97"}
        assert client.request("PUT", "/caddy.json", "1", spoofed).json == 1
        assert read_event(stream) == ("put", {"path": "/", "data": 1})
        page = client.request("GET", "/", headers={"Accept": "text/html"})
        assert f"https://eu--shop.db.example.com:{front.port}/" in page.body.decode()
        check_socket(client)
    assert "127.0.0.10" in daemon.await_line("PUT /caddy.json").string
    assert "127.0.0.97" not in daemon.log
