"""A device of the ESP32 kind: the recorded exchange `device.exchange`, and a stream, over TLS."""

from __future__ import annotations

import re
import ssl
from collections.abc import Iterator
from http.client import HTTPSConnection
from typing import NamedTuple
from urllib.parse import urlsplit

import pytest

from tests.clients.stage import DOMAIN, HERE, Domain, sign_token
from tests.rest import Client, Wire

HOST = f"devices.{DOMAIN}"
PATIENCE_S = 30
LOOSE = {
    "{key}": r"[-_0-9A-Za-z]{20}",
    "{reason}": r'[^"]+',
    "{length}": r"[0-9]+",
}


class Exchange(NamedTuple):
    """What is sent, and what is to come back; heads and bodies apart."""

    title: str
    head: list[str]
    body: str
    answer_head: list[str]
    answer_body: str


def read_recording() -> Iterator[Exchange]:
    """Read the exchanges that the file holds."""
    _, *exchanges = (HERE / "device.exchange").read_text().strip().split("\n\n")
    for exchange in exchanges:
        title, *lines = exchange.splitlines()
        sent = "\n".join(line[2:] for line in lines if line[0] == ">")
        answered = "\n".join(line[2:] for line in lines if line[0] == "<")
        head, _, body = sent.partition("\n\n")
        answer_head, _, answer_body = answered.partition("\n\n")
        yield Exchange(
            title.removeprefix("# "),
            head.rstrip().split("\n"),
            body,
            answer_head.rstrip().split("\n"),
            answer_body,
        )


def loosen(recorded: str) -> str:
    """Return the pattern of recorded text."""
    pattern = re.escape(recorded)
    for name, loose in LOOSE.items():
        pattern = pattern.replace(re.escape(name), loose)
    return pattern


def receive(wire: Wire) -> tuple[list[str], str]:
    """Read an answer as a device does: by the length in its head; return head and body."""
    received = b""
    while not received.endswith(b"\r\n\r\n"):
        received += wire.socket.recv(1)
    head = received.decode()
    length = re.search(r"^Content-Length: ([0-9]+)\r$", head, re.MULTILINE)
    body = b""
    while length is not None and len(body) < int(length[1]):
        body += wire.socket.recv(int(length[1]) - len(body))
    return head.strip().split("\r\n"), body.decode()


def test_a_device_is_answered_as_it_was_recorded(domain: Domain) -> None:
    token = sign_token("devices", admin=True)
    exchanges = list(read_recording())
    assert len(exchanges) > 15
    with Wire(domain.https, domain.ca) as wire:
        for exchange in exchanges:
            head = "\r\n".join([*exchange.head, "", ""]).replace("{token}", token)
            wire.send((head + exchange.body).encode())
            answer_head, answer_body = receive(wire)
            status, *fields = exchange.answer_head
            assert answer_head[0] == status, exchange.title
            for field in fields:
                assert any(re.fullmatch(loosen(field), line) for line in answer_head), field
            assert re.fullmatch(loosen(exchange.answer_body), answer_body), exchange.title


@pytest.fixture
def device(domain: Domain) -> Iterator[HTTPSConnection]:
    """A connection that reads what comes, as it comes."""
    context = ssl.create_default_context(cafile=str(domain.ca))
    address = urlsplit(domain.https)
    assert address.hostname is not None
    connection = HTTPSConnection(
        address.hostname, address.port, timeout=PATIENCE_S, context=context
    )
    yield connection
    connection.close()


def test_a_device_hears_what_is_written(domain: Domain, device: HTTPSConnection) -> None:
    token = sign_token("devices", admin=True)
    headers = {"Host": HOST, "User-Agent": "ESP", "Accept": "text/event-stream"}
    device.request("GET", f"/d2.json?auth={token}", headers=headers)
    stream = device.getresponse()
    assert (stream.status, stream.reason) == (200, "OK")
    assert ("Content-Type", "text/event-stream; charset=utf-8") in stream.getheaders()
    with Client(domain, HOST, secure=True) as client:
        for method, path, body in (
            ("PUT", "/d2/state", '{"on":true}'),
            ("PATCH", "/d2/state", '{"level":0.5}'),
            ("DELETE", "/d2", None),
        ):
            assert client.ask(method, f"{path}.json?auth={token}", body).status == 200
    expected = (
        *(b"event: put\n", b'data: {"path":"/","data":null}\n', b"\n"),
        *(b"event: put\n", b'data: {"path":"/state","data":{"on":true}}\n', b"\n"),
        *(b"event: patch\n", b'data: {"path":"/state","data":{"level":0.5}}\n', b"\n"),
        *(b"event: put\n", b'data: {"path":"/","data":null}\n', b"\n"),
    )
    for line in expected:
        assert stream.readline() == line


def test_a_device_without_a_token_hears_why_not(domain: Domain, device: HTTPSConnection) -> None:
    headers = {"Host": HOST, "Accept": "text/event-stream"}
    device.request("GET", "/d2.json", headers=headers)
    answer = device.getresponse()
    assert (answer.status, answer.read()) == (401, b'{\n  "error" : "Permission denied"\n}\n')
