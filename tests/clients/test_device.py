"""An ESP32 device: the recorded exchange `device.exchange`, and a stream, over TLS."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator
from http.client import HTTPConnection
from typing import NamedTuple

import pytest

from tests.clients.harness import DOMAIN, HERE, Domain, sign_token
from tests.rest import Client, Wire

HOST = f"devices.{DOMAIN}"
PATIENCE_S = 120
PATTERNS = {
    "{key}": r"[-_0-9A-Za-z]{20}",
    "{reason}": r'[^"]+',
    "{length}": r"[0-9]+",
}


class Exchange(NamedTuple):
    """A request and the response that is expected, with heads and bodies separate."""

    title: str
    head: list[str]
    body: str
    response_head: list[str]
    response_body: str


def read_recording() -> Iterator[Exchange]:
    """Iterate over the exchanges of the file."""
    _, *exchanges = (HERE / "device.exchange").read_text().strip().split("\n\n")
    for exchange in exchanges:
        title, *lines = exchange.splitlines()
        sent = "\n".join(line[2:] for line in lines if line[0] == ">")
        received = "\n".join(line[2:] for line in lines if line[0] == "<")
        head, _, body = sent.partition("\n\n")
        response_head, _, response_body = received.partition("\n\n")
        yield Exchange(
            title.removeprefix("# "),
            head.rstrip().split("\n"),
            body,
            response_head.rstrip().split("\n"),
            response_body,
        )


def make_pattern(recorded: str) -> str:
    """Return the pattern of a recorded text."""
    pattern = re.escape(recorded)
    for name, part in PATTERNS.items():
        pattern = pattern.replace(re.escape(name), part)
    return pattern


def receive(wire: Wire) -> tuple[list[str], str]:
    """Read a response as a device does, by its Content-Length; return head and body."""
    received = b""
    while not received.endswith(b"\r\n\r\n"):
        received += wire.socket.recv(1)
    head = received.decode()
    length = re.search(r"^Content-Length: ([0-9]+)\r$", head, re.MULTILINE)
    body = b""
    while length is not None and len(body) < int(length[1]):
        body += wire.socket.recv(int(length[1]) - len(body))
    return head.strip().split("\r\n"), body.decode()


def test_the_responses_to_a_device_are_the_recorded_ones(domain: Domain) -> None:
    token = sign_token("devices", admin=True)
    exchanges = list(read_recording())
    assert len(exchanges) > 15
    with Wire(domain.https, domain.ca) as wire:
        for exchange in exchanges:
            head = "\r\n".join([*exchange.head, "", ""]).replace("{token}", token)
            wire.send((head + exchange.body).encode())
            response_head, response_body = receive(wire)
            status, *fields = exchange.response_head
            assert response_head[0] == status, exchange.title
            for field in fields:
                assert any(re.fullmatch(make_pattern(field), line) for line in response_head), field
            assert re.fullmatch(make_pattern(exchange.response_body), response_body), exchange.title


@pytest.fixture
def device(domain: Domain) -> Iterator[HTTPConnection]:
    """A connection over TLS."""
    with contextlib.closing(domain.connect(secure=True)) as connection:
        yield connection


def test_a_device_receives_writes(domain: Domain, device: HTTPConnection) -> None:
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
            assert client.request(method, f"{path}.json?auth={token}", body).status == 200
    expected = (
        *(b"event: put\n", b'data: {"path":"/","data":null}\n', b"\n"),
        *(b"event: put\n", b'data: {"path":"/state","data":{"on":true}}\n', b"\n"),
        *(b"event: patch\n", b'data: {"path":"/state","data":{"level":0.5}}\n', b"\n"),
        *(b"event: put\n", b'data: {"path":"/","data":null}\n', b"\n"),
    )
    for line in expected:
        assert stream.readline() == line


def test_a_device_without_a_token_receives_an_error(domain: Domain, device: HTTPConnection) -> None:
    headers = {"Host": HOST, "Accept": "text/event-stream"}
    device.request("GET", "/d2.json", headers=headers)
    response = device.getresponse()
    assert (response.status, response.read()) == (401, b'{\n  "error" : "Permission denied"\n}\n')
