"""Where the console is served: at the endpoints that the operator names, and nowhere else."""

from __future__ import annotations

import datetime
import pathlib
import signal
import socket
from collections.abc import Sequence
from typing import Any

import pytest
import pytest_twisted
import treq
from twisted.internet import reactor as installed_reactor
from twisted.internet.defer import maybeDeferred
from twisted.web.resource import Resource
from twisted.web.server import Site

from tests.daemon import Daemon, Response, request
from tests.system import find_port
from tests.test_service import LISTENING, LOOPBACK, SECONDS
from tests.test_socket_activation import Activated, on_loopback
from treedbd.config.certificate import ensure_local_certificate
from treedbd.config.endpoints import AUTHORITY_CERTIFICATE
from treedbd.config.settings import ProjectSettings, Settings
from treedbd.files import create_directory
from treedbd.service import TreeService

reactor: Any = installed_reactor
PROJECT = 'default_project = "shop"\n[projects.shop]\n'
WORKERS = [(), ("--workers", "2")]
PAGE = {"Accept": "text/html"}


def endpoint(port: int) -> str:
    return f"tcp:{port}:interface=127.0.0.1"


def serving(folder: pathlib.Path, *endpoints: str, arguments: Sequence[str] = ()) -> Daemon:
    """Return a daemon that serves the console at some endpoints, and clients at one more."""
    shown = ", ".join(f'"{each}"' for each in endpoints)
    return Daemon(
        folder,
        config=f"console_listen = [{shown}]\n{PROJECT}",
        listen=[LISTENING],
        arguments=arguments,
    )


def look(url: str, path: str = "/.console/") -> Response:
    return request(url, "GET", path)


def is_console(response: Response) -> bool:
    policy = response.headers.get("Content-Security-Policy", "")
    return response.status == 200 and "script-src 'self'" in policy


@pytest.mark.parametrize("arguments", WORKERS)
def test_the_endpoints_that_are_named_have_the_console_and_the_interface(
    tmp_path: pathlib.Path, arguments: Sequence[str]
) -> None:
    with serving(tmp_path, endpoint(find_port()), arguments=arguments) as daemon:
        plain, named = daemon.urls
        assert f"Console: {named}/.console/\n" in daemon.log
        for _ in range(4):  # by whichever worker
            assert is_console(look(named))
            assert look(named, "/.console").status == 308
            assert look(named, "/.health").status == 200
            assert look(named, "/a.json").status == look(plain, "/a.json").status == 403
            assert look(named, "/.console/none.js").status == 404
            for path in ("/.console/", "/.console", "/.console/main.js", "/.console/none.js"):
                assert look(plain, path).short == look(plain, path.replace(".c", ".x")).short
        assert 'href="/.console/"' in request(named, "GET", "/", headers=PAGE).body.decode()
        assert ".console" not in request(plain, "GET", "/", headers=PAGE).body.decode()
        assert daemon.stop() == 0


@pytest.mark.parametrize("arguments", WORKERS)
def test_an_endpoint_that_both_keys_name_is_opened_once(
    tmp_path: pathlib.Path, arguments: Sequence[str]
) -> None:
    port = find_port()
    config = f'console_listen = ["tcp:port={port}:interface=127.0.0.1"]\n{PROJECT}'
    listen = [LISTENING, endpoint(port)]
    with Daemon(tmp_path, config=config, listen=listen, arguments=arguments) as daemon:
        plain, named = daemon.urls
        assert is_console(look(named))
        assert look(plain).status == 404
        assert look(named, "/.health").status == 200


def test_the_console_may_be_all_that_a_daemon_listens_for(tmp_path: pathlib.Path) -> None:
    config = f'console_listen = ["{endpoint(find_port())}"]\n{PROJECT}'
    with Daemon(tmp_path, config=config, listen=[]) as daemon:
        (url,) = daemon.urls
        assert is_console(look(url))


@pytest.mark.parametrize("arguments", WORKERS)
def test_a_socket_that_systemd_passes_and_one_with_tls_may_have_the_console(
    tmp_path: pathlib.Path, arguments: Sequence[str]
) -> None:
    create_directory(tmp_path / "data")
    files = ensure_local_certificate(tmp_path / "data", datetime.datetime.now(datetime.UTC))
    tls = f"systemd:tls:privateKey={files.key}:certKey={files.certificate}"
    config = f'console_listen = ["systemd:console", "{tls}"]\n{PROJECT}'
    sockets = {"web": on_loopback(), "console": on_loopback(), "tls": on_loopback()}
    with (
        Activated(tmp_path, sockets) as activated,
        activated.daemon("systemd:web", config=config, arguments=arguments) as daemon,
    ):
        plain, named, secure = daemon.urls
        assert look(plain).status == 404
        assert is_console(look(named))
        assert is_console(request(secure, "GET", "/.console/", ca=daemon.ca))


def test_a_connection_by_the_proxy_protocol_has_the_console_of_its_endpoint(
    tmp_path: pathlib.Path,
) -> None:
    port = find_port()
    head = b"GET /.console/ HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"
    received = b""
    with (
        serving(tmp_path, f"haproxy:{endpoint(port)}"),
        socket.create_connection((LOOPBACK, port), timeout=SECONDS) as connected,
    ):
        connected.sendall(b"PROXY TCP4 192.0.2.7 192.0.2.8 1 2\r\n" + head)
        while piece := connected.recv(65_536):
            received += piece
    assert received.startswith(b"HTTP/1.1 200 OK\r\n")


def fail_to_start(daemon: Daemon) -> str:
    done = daemon.run()
    assert done.returncode == 1
    (sentence,) = [line for line in done.stderr.splitlines() if line.startswith("treedb: ")]
    return sentence


@pytest.mark.parametrize("arguments", WORKERS)
def test_an_endpoint_that_cannot_be_opened_is_reported_with_its_key(
    tmp_path: pathlib.Path, arguments: Sequence[str]
) -> None:
    with socket.create_server((LOOPBACK, 0)) as used:
        name = endpoint(used.getsockname()[1])
        sentence = fail_to_start(serving(tmp_path, name, arguments=arguments))
    assert sentence.startswith(f"treedb: treedb.toml: console_listen: {name} cannot be opened")


def test_a_socket_that_others_reach_is_refused_in_emulator_mode(tmp_path: pathlib.Path) -> None:
    config = f'emulator = true\nconsole_listen = ["systemd:all"]\n{PROJECT}'
    sockets = {"web": on_loopback(), "all": socket.create_server(("0.0.0.0", 0))}
    with Activated(tmp_path, sockets) as activated:
        sentence = fail_to_start(activated.daemon("systemd:web", config=config))
    assert "console_listen" in sentence
    assert "opens systemd:all to other machines, which emulator = true does not" in sentence


def test_a_certificate_of_the_console_is_read_again_by_a_reload(tmp_path: pathlib.Path) -> None:
    create_directory(tmp_path / "data")
    files = ensure_local_certificate(tmp_path / "data", datetime.datetime.now(datetime.UTC))
    pem = tmp_path / "tls.pem"
    pem.write_bytes(files.key.read_bytes() + files.certificate.read_bytes())
    pem.chmod(0o600)
    with serving(tmp_path, f"ssl:{find_port()}:interface=127.0.0.1:privateKey=tls.pem") as daemon:
        pem.write_text("nothing")
        daemon.signal(signal.SIGHUP)
        line = daemon.await_line("The certificate read before stays in use")
        assert "treedb.toml: console_listen: " in line.string
        assert is_console(request(daemon.https, "GET", "/.console/", ca=daemon.ca))
        pem.write_bytes(files.key.read_bytes() + files.certificate.read_bytes())
        daemon.signal(signal.SIGHUP)
        daemon.await_line("The reload of certificates, .* is done")


@pytest.mark.parametrize("arguments", WORKERS)
def test_development_mode_has_it_at_all_endpoints(
    tmp_path: pathlib.Path, arguments: Sequence[str]
) -> None:
    with Daemon(tmp_path, arguments=arguments) as daemon:
        assert is_console(daemon.request("GET", "/.console/"))
        assert is_console(daemon.request("GET", "/.console/", secure=True))
        page = daemon.request("GET", "/", headers=PAGE).body.decode()
        assert 'href="/.console/"' in page


def test_for_the_network_it_is_there_too(tmp_path: pathlib.Path) -> None:
    with Daemon(tmp_path, arguments=["--lan"]) as daemon:
        authority = daemon.data / AUTHORITY_CERTIFICATE
        for url in daemon.urls:
            assert is_console(request(url, "GET", "/.console/", ca=authority))


async def read(url: str, **more: Any) -> tuple[Any, bytes]:
    """Return the response to a GET that follows no redirect, and its body."""
    response = await treq.get(url, persistent=False, timeout=SECONDS, allow_redirects=False, **more)
    return response, await response.content()


@pytest.mark.parametrize("has_console", [True, False])
@pytest_twisted.ensureDeferred
async def test_a_program_that_embeds_the_service_mounts_it_if_it_says_so(
    tmp_path: pathlib.Path, has_console: bool
) -> None:
    settings = Settings(
        default_project="shop", data=tmp_path / "data", projects={"shop": ProjectSettings(None)}
    )
    tree = TreeService(settings)
    tree.privilegedStartService()
    tree.startService()
    root, api = Resource(), Resource()
    root.putChild(b"api", api)
    api.putChild(b"db", tree.resource(console=has_console))
    port = reactor.listenTCP(0, Site(root), interface=LOOPBACK)
    url = f"http://{LOOPBACK}:{port.getHost().port}/api/db"
    paths = ("/.console", "/.console/", "/.console/main.js", "/.console/none.js")
    codes = [(await read(f"{url}{path}"))[0].code for path in paths]
    assert codes == ([308, 200, 200, 404] if has_console else [404] * 4)
    redirect, _ = await read(f"{url}/.console")
    location = redirect.headers.getRawHeaders("location")
    assert location == ([".console/"] if has_console else None)
    _, page = await read(f"{url}/", headers={"Accept": "text/html"})
    assert (b'href="/api/db/.console/"' in page) is has_console
    await port.stopListening()
    await maybeDeferred(tree.stopService)


@pytest_twisted.ensureDeferred
async def test_what_a_program_mounts_is_not_served_at_other_endpoints(
    tmp_path: pathlib.Path,
) -> None:
    settings = Settings.from_values(
        data=tmp_path / "data", listen=[LISTENING], projects={"shop": {}}, default_project="shop"
    )
    tree = TreeService(settings)
    tree.resource(console=True)
    tree.privilegedStartService()
    tree.startService()
    response, _ = await read(f"{tree.urls()[0]}/.console/")
    assert response.code == 404
    await maybeDeferred(tree.stopService)
