"""The service embedded in a program: start and stop in order, and no resources left open."""

from __future__ import annotations

import datetime
import os
import pathlib
import socket
import stat
from collections.abc import Generator
from typing import Any

import attrs
import pytest
import pytest_twisted
import treq
from treq.testing import StubTreq
from twisted.application.service import MultiService
from twisted.internet import reactor as installed_reactor
from twisted.internet.defer import Deferred, inlineCallbacks, maybeDeferred
from twisted.internet.endpoints import clientFromString
from twisted.internet.protocol import Factory, Protocol
from twisted.internet.task import deferLater
from twisted.logger import capturedLogs, eventAsText
from twisted.web.http_headers import Headers
from twisted.web.resource import Resource
from twisted.web.server import Site

from tests.system import find_port
from treedbd.config.certificate import ensure_local_certificate
from treedbd.config.endpoints import parse_endpoint
from treedbd.config.listening import CannotStart
from treedbd.config.settings import HttpSettings, ProjectSettings, Settings
from treedbd.config.values import SettingLocation
from treedbd.database.files import DatabaseFiles
from treedbd.limits import Limits
from treedbd.service import TreeService
from treedbd.store.directory_lock import DirectoryLock
from treedbd.store.engine import CannotOpenStore
from treedbd.store.sqlite.engine import SqliteEngine

LOOPBACK = "127.0.0.1"
SECONDS = 20
EVENTS = Headers({"Accept": ["text/event-stream"]})
reactor: Any = installed_reactor
Steps = Generator[Deferred[Any], Any, None]


@pytest.fixture
def settings(tmp_path: pathlib.Path) -> Settings:
    """Settings without endpoints, with rules that allow everything."""
    return Settings(
        default_project="shop",
        data=tmp_path / "data",
        projects={"shop": ProjectSettings(None)},
        development=True,
    )


def listening(settings: Settings, *endpoints: str) -> Settings:
    parsed = tuple(parse_endpoint(each, settings.data) for each in endpoints)
    return attrs.evolve(settings, listen=parsed)


def is_open(port: int) -> bool:
    with socket.socket() as client:
        return client.connect_ex((LOOPBACK, port)) == 0


def is_locked(folder: pathlib.Path) -> bool:
    try:
        DirectoryLock(folder).release()
    except CannotOpenStore:
        return True
    return False


@pytest_twisted.inlineCallbacks
def test_it_is_mounted_under_a_prefix_of_another_site(settings: Settings) -> Steps:
    host = MultiService()
    host.startService()
    tree = TreeService(settings)
    tree.setServiceParent(host)
    root = Resource()
    api = Resource()
    root.putChild(b"api", api)
    api.putChild(b"db", tree.resource())
    port = reactor.listenTCP(0, Site(root), interface=LOOPBACK)
    url = f"http://{LOOPBACK}:{port.getHost().port}/api/db"
    put = yield treq.put(f"{url}/a/b.json", b"1", persistent=False, timeout=SECONDS)
    assert put.code == 200
    read = yield treq.get(f"{url}/a.json", persistent=False, timeout=SECONDS)
    assert (yield read.content()) == b'{"b":1}'
    assert tree.urls() == []
    yield port.stopListening()
    yield maybeDeferred(host.stopService)
    assert not is_locked(settings.data)


LISTENING = "tcp:0:interface=127.0.0.1"
OWN = {"listen": LISTENING, "domains": ("db.test",)}


@pytest.mark.parametrize(
    ("changes", "host", "origin", "status"),
    [
        ({"development": True}, "localhost", "", 204),
        ({"development": True}, "127.0.0.1", "http://localhost:3000", 204),
        ({"development": True}, "localhost", "https://evil.example", 403),
        ({"development": True}, "evil.example", "", 421),
        ({"emulator": True}, "localhost", "https://evil.example", 403),
        ({"emulator": True}, "evil.example", "", 421),
        ({"emulator": True, **OWN}, "shop.db.test", "", 204),
        ({}, "www.example.com", "https://www.example.com", 204),
        ({"domains": ("db.test",)}, "www.example.com", "", 204),
        ({"listen": LISTENING}, "www.example.com", "https://other.example", 204),
        (OWN, "shop.db.test", "https://other.example", 204),
        (OWN, "www.example.com", "", 421),
    ],
)
def test_the_settings_decide_which_hosts_and_pages_are_served(
    settings: Settings, changes: dict[str, Any], host: str, origin: str, status: int
) -> None:
    own = {"development": False, "engine": "memory", **changes}
    endpoints = (own.pop("listen"),) if "listen" in own else ()
    tree = TreeService(listening(attrs.evolve(settings, **own), *endpoints))
    headers = Headers({"Origin": [origin]} if origin else {})
    web: Any = StubTreq(tree.resource())
    responses: list[Any] = []
    web.request("OPTIONS", f"http://{host}/a.json", headers=headers).addCallback(responses.append)
    assert [response.code for response in responses] == [status]


def test_nothing_is_opened_before_it_starts(settings: Settings) -> None:
    port = find_port()
    tree = TreeService(listening(settings, f"tcp:{port}:interface={LOOPBACK}"))
    assert tree.resource() is tree.resource()
    assert not is_open(port)
    assert not settings.data.exists()


@pytest_twisted.inlineCallbacks
def test_its_urls_are_those_of_its_endpoints(settings: Settings, tmp_path: pathlib.Path) -> Steps:
    tree = TreeService(
        listening(
            settings,
            "tcp:0",
            r"tcp6:0:interface=\:\:1",
            f"tcp:0:interface={LOOPBACK}",
            f"unix:{tmp_path}/socket",
        )
    )
    tree.privilegedStartService()
    tree.startService()
    anywhere, six, four, unix = tree.urls()
    assert anywhere.startswith("http://127.0.0.1:")
    assert six.startswith("http://[::1]:")
    assert four.startswith("http://127.0.0.1:")
    assert unix == f"unix:{tmp_path}/socket"
    read = yield treq.get(f"{four}/a.json", persistent=False, timeout=SECONDS)
    assert (yield read.content()) == b"null"
    yield tree.stopService()


@pytest_twisted.inlineCallbacks
def test_a_stopped_service_has_released_everything(settings: Settings) -> Steps:
    port = find_port()
    tree = TreeService(listening(settings, f"tcp:{port}:interface={LOOPBACK}"))
    tree.privilegedStartService()
    tree.startService()
    assert is_locked(settings.data)
    put = yield treq.put(
        f"http://{LOOPBACK}:{port}/a.json", b"1", persistent=False, timeout=SECONDS
    )
    assert put.code == 200
    yield tree.stopService()
    assert not is_open(port)
    assert not is_locked(settings.data)
    assert tree.urls() == []


@pytest_twisted.inlineCallbacks
def test_a_service_that_never_started_can_be_stopped(settings: Settings) -> Steps:
    yield TreeService(settings).stopService()
    assert not settings.data.exists()


@pytest_twisted.inlineCallbacks
def test_a_port_in_use_leaves_the_others_closed(settings: Settings) -> Steps:
    port = find_port()
    used = reactor.listenTCP(0, Factory.forProtocol(Protocol), interface=LOOPBACK)
    number = used.getHost().port
    tree = TreeService(
        listening(
            settings, f"tcp:{port}:interface={LOOPBACK}", f"tcp:{number}:interface={LOOPBACK}"
        )
    )
    with pytest.raises(CannotStart, match=f"tcp:{number}:.*Address already in use"):
        tree.privilegedStartService()
    yield deferLater(reactor, 0)
    assert not is_open(port)
    yield maybeDeferred(used.stopListening)


def test_an_endpoint_that_cannot_be_opened_is_reported_with_its_setting(
    settings: Settings, tmp_path: pathlib.Path
) -> None:
    location = SettingLocation("treedb.toml", tmp_path, "listen")
    settings = attrs.evolve(settings, listen_location=location)
    key = tmp_path / "key.pem"
    for endpoint, message in (
        (f"ssl:0:privateKey={key}", f"the privateKey {key} cannot be read (No such file"),
        ("tcp:0:interface=192.0.2.1", "tcp:0:interface=192.0.2.1 cannot be opened ("),
    ):
        with pytest.raises(CannotStart) as caught:
            TreeService(listening(settings, endpoint)).privilegedStartService()
        assert str(caught.value).startswith(f"treedb.toml: listen: {message}")
        assert str(caught.value).endswith(".")


@pytest_twisted.inlineCallbacks
def test_a_private_key_that_others_can_read_causes_a_warning(
    settings: Settings, tmp_path: pathlib.Path
) -> Steps:
    files = ensure_local_certificate(tmp_path, datetime.datetime.now(datetime.UTC))
    files.key.chmod(0o640)
    endpoint = f"ssl:0:interface={LOOPBACK}:privateKey={files.key}:certKey={files.certificate}"
    tree = TreeService(listening(settings, endpoint))
    with capturedLogs() as logged:
        tree.privilegedStartService()
    warning = f"Other users of this machine can read {files.key}: run chmod 600 on it."
    assert any(warning in eventAsText(event) for event in logged)
    assert stat.S_IMODE(files.key.stat().st_mode) == 0o640
    yield tree.stopService()


@pytest_twisted.inlineCallbacks
def test_the_key_of_its_own_certificate_loses_the_permissions_of_others(
    settings: Settings,
) -> Steps:
    settings.data.mkdir()
    now = datetime.datetime.now(datetime.UTC)
    key = ensure_local_certificate(settings.data, now).key
    key.chmod(0o644)
    tree = TreeService(listening(settings, f"ssl:0:interface={LOOPBACK}"))
    with capturedLogs() as logged:
        tree.privilegedStartService()
    assert any(
        f"Other users of this machine could read {key}" in eventAsText(event) for event in logged
    )
    assert stat.S_IMODE(key.stat().st_mode) == 0o600
    yield tree.stopService()


@pytest_twisted.inlineCallbacks
def test_a_locked_directory_leaves_the_ports_closed(settings: Settings) -> Steps:
    port = find_port()
    lock = DirectoryLock(settings.data)
    tree = TreeService(listening(settings, f"tcp:{port}:interface={LOOPBACK}"))
    tree.privilegedStartService()
    with pytest.raises(CannotStart, match="in use"):
        tree.startService()
    yield deferLater(reactor, 0)
    assert not is_open(port)
    lock.release()


def open_files(folder: pathlib.Path) -> list[str]:
    """Return the files below a folder that this process has open."""
    links = [os.path.realpath(f"/dev/fd/{each}") for each in os.listdir("/dev/fd")]
    return [link for link in links if link.startswith(f"{folder}/")]


@pytest_twisted.inlineCallbacks
def test_a_failed_start_leaves_no_store_open_and_the_directory_unlocked(
    settings: Settings,
) -> Steps:
    file = settings.data / "shop" / "default.shelf"
    file.parent.mkdir(parents=True)
    SqliteEngine.create(file).close()
    missing = ProjectSettings(None, secret_files=(settings.data / "missing.secret",))
    settings = attrs.evolve(settings, projects={"shop": missing})
    tree = TreeService(settings)
    with pytest.raises(CannotStart, match=r"missing\.secret"):
        tree.startService()
    assert open_files(settings.data) == []
    assert not is_locked(settings.data)
    yield tree.stopService()
    assert open_files(settings.data) == []


@pytest_twisted.inlineCallbacks
def test_too_few_descriptors_are_a_warning_at_the_start_and_bound_what_is_open(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> Steps:
    monkeypatch.setattr("treedbd.service.descriptor_limit", lambda: 100)
    limits = attrs.evolve(settings.limits, connections=20_001)  # asked for by an operator
    tree = TreeService(attrs.evolve(settings, development=False, limits=limits))
    with capturedLogs() as logged:
        tree.startService()
    (warning,) = [eventAsText(event) for event in logged if "warning" in event]
    assert "The process may open 100 files" in warning
    assert "at most 57 connections and 2 databases are open at a time" in warning
    assert "LimitNOFILE=" in warning
    assert tree._factory.connections.limits.connections == 57
    files = tree.catalog._files
    assert isinstance(files, DatabaseFiles)
    assert files._open._bounds.databases == 2
    yield tree.stopService()


class RawClient(Protocol):
    """A client that sends bytes; `expect` waits until certain bytes are received."""

    def connectionMade(self) -> None:
        self.received = b""
        self.awaited = b""
        self.arrived: Deferred[bytes] = Deferred()

    def expect(self, awaited: bytes) -> Deferred[bytes]:
        self.awaited, self.received, self.arrived = awaited, b"", Deferred()
        return self.arrived.addTimeout(SECONDS, reactor)

    def dataReceived(self, data: bytes) -> None:
        self.received += data
        if self.awaited in self.received and not self.arrived.called:
            self.arrived.callback(self.received)


@pytest_twisted.inlineCallbacks
def test_a_stream_receives_the_last_write_and_is_then_ended(settings: Settings) -> Steps:
    tree = TreeService(listening(settings, f"tcp:0:interface={LOOPBACK}"))
    tree.privilegedStartService()
    tree.startService()
    (url,) = tree.urls()
    stream = yield treq.get(f"{url}/a.json", headers=EVENTS, persistent=False, timeout=SECONDS)
    received: list[bytes] = []
    ended = treq.collect(stream, received.append)
    endpoint = clientFromString(reactor, f"tcp:{LOOPBACK}:{url.rpartition(':')[2]}")
    writer = yield endpoint.connect(Factory.forProtocol(RawClient))
    continued = writer.expect(b"100 Continue")
    writer.transport.write(
        b"PUT /a.json HTTP/1.1\r\nHost: localhost\r\nExpect: 100-continue\r\n"
        b"Content-Length: 2\r\n\r\n"
    )
    yield continued
    responded = writer.expect(b"\r\n\r\n12")
    stopped = tree.stopService()
    writer.transport.write(b"12")
    assert (yield responded).startswith(b"HTTP/1.1 200 ")
    yield stopped
    yield ended.addTimeout(SECONDS, reactor)
    assert b'event: put\ndata: {"path":"/","data":12}\n\n' in b"".join(received)


@pytest_twisted.inlineCallbacks
def test_the_limits_of_the_settings_are_applied(settings: Settings) -> Steps:
    tree = TreeService(
        attrs.evolve(
            listening(settings, f"tcp:0:interface={LOOPBACK}"),
            limits=Limits(
                write_body_bytes=100, string_bytes=10, streams=1, request_line_bytes=2048
            ),
            http=HttpSettings(etag_headers=("Mine",), cors_origins=("https://app.example.com",)),
        )
    )
    tree.privilegedStartService()
    tree.startService()
    (url,) = tree.urls()

    @inlineCallbacks
    def status(method: str, path: str, **more: Any) -> Generator[Deferred[Any], Any, int]:
        response = yield treq.request(method, url + path, persistent=False, timeout=SECONDS, **more)
        yield response.content()
        code: int = response.code
        return code

    assert (yield status("PUT", "/a.json", data=b"[" + b" " * 99 + b"]")) == 413
    assert (yield status("PUT", "/a.json", data=b'"' + b"x" * 11 + b'"')) == 400
    assert (yield status("GET", f"/{'a' * 2048}.json")) == 414
    tagged = yield treq.get(
        f"{url}/a.json", headers=Headers({"X-Mine-ETag": ["true"]}), persistent=False
    )
    assert tagged.headers.hasHeader("ETag")
    origin = "https://app.example.com"
    allowed = yield treq.get(
        f"{url}/a.json", headers=Headers({"Origin": [origin]}), persistent=False
    )
    assert allowed.headers.getRawHeaders("Access-Control-Allow-Origin") == [origin]
    stream = yield treq.get(f"{url}/a.json", headers=EVENTS, persistent=False, timeout=SECONDS)
    assert (yield status("GET", "/a.json", headers=EVENTS)) in {429, 503}
    ended = stream.content()
    yield tree.stopService()
    yield ended.addTimeout(SECONDS, reactor)
