"""What the blocking client does besides: bodies, connections that are used again, time-outs."""

from __future__ import annotations

import signal
import socket
import threading
from collections.abc import Iterator
from typing import Any

import pytest
import pytest_twisted
from twisted.internet.threads import deferToThread

from tests.script import ScriptedServer, respond
from treedbd.cli import data, http_client
from treedbd.cli.exit import FAILED, CommandFailed
from treedbd.cli.http_client import Body, HttpClient
from treedbd.cli.main import main
from treedbd.cli.options import SILENCE_S, NoResponse, parse_url
from treedbd.cli.parser import parse
from treedbd.limits import DEFAULT_TIMEOUT_S


@pytest.fixture
def server() -> Iterator[ScriptedServer]:
    """A plain server."""
    running = ScriptedServer()
    yield running
    pytest_twisted.blockon(running.close())


@pytest_twisted.ensureDeferred
async def test_a_body_of_unknown_length_is_sent_in_chunks(server: ScriptedServer) -> None:
    url = parse_url(server.url())
    body = Body(iter([b"12", b"", b"345"]))
    done: Any = deferToThread(lambda: HttpClient().request("PUT", url, None, body).content())
    request = await server.requests.get()
    assert request.content is not None
    assert request.content.read() == b"12345"
    assert request.getHeader("transfer-encoding") == "chunked"
    respond(request, 200, b"ok")
    assert await done == b"ok"


@pytest_twisted.ensureDeferred
async def test_a_connection_is_used_again_for_reads_and_never_for_writes(
    server: ScriptedServer,
) -> None:
    url = parse_url(server.url())
    client = HttpClient()
    peers = []
    for method in ("GET", "GET", "PUT", "GET"):
        sent: Any = deferToThread(client.request, method, url)
        request = await server.requests.get()
        peers.append(request.getClientAddress().port)
        respond(request, 200, b"1")
        assert (await sent).content() == b"1"
    assert peers[0] == peers[1]
    assert peers[2] != peers[1]
    assert peers[3] == peers[2]


@pytest_twisted.ensureDeferred
async def test_a_read_on_a_connection_that_was_closed_is_sent_again(
    server: ScriptedServer,
) -> None:
    url = parse_url(server.url())
    client = HttpClient()
    for _ in range(2):
        done: Any = deferToThread(lambda: client.request("GET", url).content())
        request = await server.requests.get()
        channel: Any = request.channel
        respond(request, 200, b"1")
        assert await done == b"1"
        channel.transport.loseConnection()


def test_an_error_that_comes_before_the_body_is_sent_is_reported() -> None:
    listener = socket.create_server(("127.0.0.1", 0))

    def refuse() -> None:
        accepted, _ = listener.accept()
        accepted.recv(65_536)
        accepted.sendall(b"HTTP/1.1 413 Too Large\r\nContent-Length: 0\r\n\r\n")
        accepted.close()

    thread = threading.Thread(target=refuse)
    thread.start()
    url = parse_url(f"http://127.0.0.1:{listener.getsockname()[1]}/a")
    endless = Body(iter(lambda: b"x" * 65_536, b""))
    with pytest.raises(CommandFailed, match="returned the status 413"):
        HttpClient().request("PUT", url, None, endless)
    thread.join()
    listener.close()


def test_a_server_that_does_not_respond_in_time_is_reported() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        url = parse_url(f"http://127.0.0.1:{listener.getsockname()[1]}/a")
        with pytest.raises(NoResponse, match=r"was not done within 0\.05 seconds\.$"):
            HttpClient(timeout_s=0.05).request("GET", url)


@pytest.mark.parametrize("words", ["get URL", "set URL 1", "remove URL", "ls URL", "log URL"])
def test_a_command_without_a_time_out_ends_when_the_server_is_silent(
    words: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for module in (http_client, data):
        monkeypatch.setattr(module, "SILENCE_S", 0.05)
    signal_before = signal.getsignal(signal.SIGINT)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        origin = f"http://127.0.0.1:{listener.getsockname()[1]}"
        assert main(words.replace("URL", f"{origin}/a").split()) == FAILED
    signal.signal(signal.SIGINT, signal_before)
    assert capsys.readouterr().err == f"treedb: {origin} was silent for 0.05 s.\n"


def test_only_compacting_may_be_silent_for_long() -> None:
    """The daemon sends nothing before it is done."""
    assert parse(["compact", "http://localhost/"]).silence_s is None
    assert parse(["get", "http://localhost/"]).silence_s == SILENCE_S == 2 * DEFAULT_TIMEOUT_S


def test_a_socket_without_a_server_is_reported() -> None:
    with pytest.raises(NoResponse, match=r"^No server listens at unix:/nowhere/a%20b\.$"):
        HttpClient().request("GET", parse_url("unix:/nowhere/a b:/x"))
