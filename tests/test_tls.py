"""TLS from outside: two public scanners, HSTS, resumed sessions, and a reload under open streams.

The daemon has the certificates of an authority for tests, one RSA and one elliptic, as a public
authority would issue them; another runs in development mode.
"""

from __future__ import annotations

import http.client
import json
import pathlib
import socket
import ssl
import subprocess
from collections.abc import Iterator
from typing import Any, Final, NamedTuple
from urllib.parse import urlsplit

import pytest
import trustme
from cryptography.hazmat.primitives.asymmetric import ec, rsa

from tests.access import reload
from tests.authority import issue_like_public, serial_of
from tests.daemon import Daemon

SSLYZE: Final = pathlib.Path(__file__).parent / "scanners/.venv/bin/sslyze"
HSTS: Final = "Strict-Transport-Security"
YEAR: Final = "max-age=31536000"
CONFIG: Final = """
default_project = "demo"
[http]
hsts_s = 31_536_000
[projects.demo]
rules_file = "rules.json"
"""
SCAN_S: Final = 280
LOOKED_AT: Final = {
    "-p": ("TLS1_2", "TLS1_3"),
    "-S": ("cert_trust",),
    "-h": ("HSTS_time",),
    "-B": ("BREACH",),
    "-C": ("CRIME_TLS",),
}
"""What testssl must find to be in order, by the flag of the check.

They are of protocols, the certificate, headers and compression.
"""


class Served(NamedTuple):
    """A daemon with its endpoints for a key of each kind; `authority` verifies both."""

    daemon: Daemon
    folder: pathlib.Path
    authority: trustme.CA
    ports: dict[str, int]

    def issue(self, kind: str) -> None:
        """Write another key and certificate of this kind."""
        key = (
            rsa.generate_private_key(65537, 2048)
            if kind == "rsa"
            else ec.generate_private_key(ec.SECP256R1())
        )
        file = self.folder / f"{kind}.pem"
        file.touch(0o600)
        file.write_bytes(issue_like_public(self.authority, "localhost", key))

    def client(self, version: str = "TLSv1_3") -> ssl.SSLContext:
        """Return a context of a client that verifies, and speaks this version alone."""
        context = ssl.create_default_context(cafile=str(self.folder / "ca.pem"))
        context.minimum_version = context.maximum_version = ssl.TLSVersion[version]
        return context

    def connect(self, kind: str) -> http.client.HTTPSConnection:
        """Open a connection that is not opened again when it is closed."""
        connection = http.client.HTTPSConnection(
            "localhost", self.ports[kind], timeout=30, context=self.client()
        )
        connection.connect()
        connection.auto_open = 0
        return connection


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    folder = tmp_path_factory.mktemp("tls")
    authority = trustme.CA()
    authority.cert_pem.write_to_path(folder / "ca.pem")
    (folder / "rules.json").write_text('{"rules": {".read": true, ".write": true}}')
    kinds = ("rsa", "ec")
    listen = [
        f"ssl:0:interface=127.0.0.1:privateKey={kind}.pem:certKey={kind}.pem" for kind in kinds
    ]
    config = f"listen = {json.dumps([*listen, 'tcp:0:interface=127.0.0.1'])}\n{CONFIG}"
    daemon = Daemon(folder, config=config, listen=[])
    made = Served(daemon, folder, authority, {})
    for kind in kinds:
        made.issue(kind)
    with daemon:
        ports = [urlsplit(url).port for url in daemon.urls if url.startswith("https:")]
        made.ports.update(zip(kinds, [port for port in ports if port], strict=True))
        yield made


# Scanners.


def scan(port: int, authority: pathlib.Path, output: pathlib.Path) -> tuple[str, Any]:
    """Let sslyze compare an endpoint with the profile; return its text and its findings."""
    done = subprocess.run(
        [
            *(str(SSLYZE), "--mozilla_config", "intermediate", "--json_out", str(output)),
            *("--certinfo_ca_file", str(authority), f"localhost:{port}"),
        ],
        capture_output=True,
        text=True,
        timeout=SCAN_S,
        check=False,
    )
    (found,) = json.loads(output.read_text())["server_scan_results"]
    return done.stdout, found["scan_result"]


def issues_of(text: str) -> list[str]:
    """Return what sslyze says that does not comply."""
    assert "COMPLIANCE AGAINST TLS CONFIGURATION" in text
    lines = text.partition("COMPLIANCE AGAINST TLS CONFIGURATION")[2].splitlines()
    return [line.strip() for line in lines if line.strip().startswith("* ")]


@pytest.mark.parametrize("kind", ["rsa", "ec"])
def test_sslyze_finds_that_an_endpoint_complies_with_mozillas_intermediate_profile(
    served: Served, tmp_path: pathlib.Path, kind: str
) -> None:
    text, found = scan(served.ports[kind], served.folder / "ca.pem", tmp_path / "found.json")
    assert issues_of(text) == []
    assert f"localhost:{served.ports[kind]}: OK - Compliant." in text
    assert found["tls_compression"]["result"]["supports_compression"] is False
    renegotiation = found["session_renegotiation"]["result"]
    assert renegotiation["is_vulnerable_to_client_renegotiation_dos"] is False


def test_sslyze_finds_that_development_mode_complies_too(
    shared_daemon: Daemon, tmp_path: pathlib.Path
) -> None:
    port = urlsplit(shared_daemon.https).port
    assert port is not None
    text, _ = scan(port, shared_daemon.ca, tmp_path / "found.json")
    assert issues_of(text) == []
    assert f"localhost:{port}: OK - Compliant." in text


@pytest.mark.parametrize(
    "checks",
    [
        ("-p", "-h", "-C", "-B"),
        # Also the choice of the server, the certificate and renegotiation, which sslyze looks at
        # too. The rest of its checks are those of sslyze, at a hundred times the time.
        pytest.param(("-p", "-S", "-h", "-R", "-C", "-B"), marks=pytest.mark.slow),
    ],
    ids=["some", "all"],
)
def test_testssl_has_no_finding_above_low(
    served: Served, tmp_path: pathlib.Path, checks: tuple[str, ...]
) -> None:
    findings = tmp_path / "findings.json"
    done = subprocess.run(
        [
            *("testssl", "--quiet", "--color", "0", "--warnings", "off", "--nodns", "none"),
            *("--add-ca", str(served.folder / "ca.pem"), "--jsonfile", str(findings)),
            *(*checks, f"https://localhost:{served.ports['ec']}"),
        ],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=SCAN_S,
        check=False,
    )
    found = {each["id"]: each for each in json.loads(findings.read_text())}
    looked_at = [name for check, names in LOOKED_AT.items() if check in checks for name in names]
    assert {name: found[name]["severity"] for name in looked_at} == dict.fromkeys(
        looked_at, "OK"
    ), done
    # WARN is of the scanner itself: what it has no program for, or where it could not connect,
    # which happens to its own openssl on a busy machine.
    passed = {"OK", "INFO", "LOW", "WARN"}
    assert [each for each in found.values() if each["severity"] not in passed] == []


# Strict-Transport-Security.


REQUESTS: Final = {
    200: b"GET /a.json HTTP/1.1\r\nHost: localhost\r\n\r\n",
    204: b"PUT /a.json?print=silent HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1\r\n\r\n1",
    404: b"GET /a HTTP/1.1\r\nHost: localhost\r\n\r\n",
    400: b"GET /a.json HTTP/9\r\n\r\n",
    414: b"GET /%b HTTP/1.1\r\n\r\n" % (b"a" * 200_000),
    413: b"PUT /a.json HTTP/1.1\r\nHost: localhost\r\nContent-Length: 999999999\r\n\r\n",
    "page": b"GET / HTTP/1.1\r\nHost: localhost\r\nAccept: text/html\r\n\r\n",
    "stream": b"GET /a.json HTTP/1.1\r\nHost: localhost\r\nAccept: text/event-stream\r\n\r\n",
}


def exchange(reached: socket.socket, sent: bytes) -> tuple[int, list[str]]:
    """Send a request; return the status and the values of Strict-Transport-Security."""
    with reached:
        reached.settimeout(30)
        reached.sendall(sent)
        response = http.client.HTTPResponse(reached)
        response.begin()
        return response.status, response.headers.get_all(HSTS, [])


@pytest.mark.parametrize("expected", REQUESTS)
def test_each_response_over_tls_and_none_without_has_strict_transport_security(
    served: Served, expected: int | str
) -> None:
    status = expected if isinstance(expected, int) else 200
    plain = served.daemon.port
    reached = socket.create_connection(("127.0.0.1", plain), 30)
    assert exchange(reached, REQUESTS[expected]) == (status, [])
    reached = socket.create_connection(("127.0.0.1", served.ports["ec"]), 30)
    secured = served.client().wrap_socket(reached, server_hostname="localhost")
    assert exchange(secured, REQUESTS[expected]) == (status, [YEAR])


def test_development_mode_never_sends_strict_transport_security(shared_daemon: Daemon) -> None:
    response = shared_daemon.request("GET", "/a.json", secure=True)
    assert response.status == 200
    assert HSTS not in response.headers


# Sessions and certificates.


@pytest.mark.parametrize("version", ["TLSv1_2", "TLSv1_3"])
@pytest.mark.parametrize("kind", ["rsa", "ec"])
def test_a_session_is_resumed_by_the_next_connection(
    served: Served, kind: str, version: str
) -> None:
    client = served.client(version)
    session, resumed = None, []
    for _ in range(3):
        reached = socket.create_connection(("127.0.0.1", served.ports[kind]), 30)
        with client.wrap_socket(reached, server_hostname="localhost", session=session) as secured:
            secured.sendall(REQUESTS[200])
            assert secured.recv(65536).startswith(b"HTTP/1.1 200 ")  # a ticket comes before it
            session = secured.session
            resumed.append(secured.session_reused)
    assert resumed == [False, True, True]


def status_of(connection: http.client.HTTPSConnection, method: str, body: str | None = None) -> int:
    """Send a request by a connection that is kept; return the status."""
    connection.request(method, "/watched.json", body)
    response = connection.getresponse()
    response.read()
    return response.status


@pytest.mark.parametrize("kind", ["rsa", "ec"])
def test_a_reload_gives_new_connections_the_new_certificate_and_open_ones_go_on(
    served: Served, kind: str
) -> None:
    kept, streaming = served.connect(kind), served.connect(kind)
    assert status_of(kept, "PUT", '"before"') == 200
    streaming.request("GET", "/watched.json", headers={"Accept": "text/event-stream"})
    stream = streaming.getresponse()
    assert read_event(stream) == {"path": "/", "data": "before"}
    served.issue(kind)
    reload(served.daemon)
    renewed = served.connect(kind)
    assert serial_of(renewed) != serial_of(kept)
    assert status_of(kept, "PUT", '"kept"') == 200
    assert read_event(stream) == {"path": "/", "data": "kept"}
    assert status_of(renewed, "PUT", '"renewed"') == 200
    assert read_event(stream) == {"path": "/", "data": "renewed"}
    for each in (kept, streaming, renewed):
        each.close()


def read_event(stream: http.client.HTTPResponse) -> Any:
    """Return the data of the next event of a stream."""
    while not (line := stream.readline()).startswith(b"data: "):
        assert line, "The stream has ended."
    return json.loads(line.removeprefix(b"data: "))
