"""Sockets that systemd passes: `systemd:` endpoints of a real daemon, which an activator starts."""

from __future__ import annotations

import contextlib
import datetime
import os
import pathlib
import signal
import socket
import stat
import sys
from collections.abc import Mapping, Sequence

import pytest

from tests.closing import Closing
from tests.daemon import SERVE, Daemon
from tests.system import find_port
from tests.workers_of import worker_pids
from treedbd.config.certificate import ensure_local_certificate
from treedbd.files import create_directory

CONFIG = 'default_project = "shop"\n[projects.shop]\n'
GET = b"GET /.health HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"
ACTIVATE = """
import fcntl, os, sys
names, *command = sys.argv[1:]
names = dict(pair.split("=") for pair in names.split(","))
passed = [fcntl.fcntl(int(descriptor), fcntl.F_DUPFD_CLOEXEC, 100) for descriptor in names.values()]
for number, descriptor in enumerate(passed, 3):
    os.dup2(descriptor, number, inheritable=True)
os.environ.update(
    LISTEN_PID=str(os.getpid()), LISTEN_FDS=str(len(names)), LISTEN_FDNAMES=":".join(names)
)
os.execvp(command[0], command)
"""
"""Passes sockets by fixed numbers, as systemd does: it is the process that becomes the daemon."""


class Activated(Closing):
    """Listening sockets that outlive the daemon to which they are passed."""

    def __init__(self, folder: pathlib.Path, sockets: Mapping[str, socket.socket]) -> None:
        self.folder = folder
        self.sockets = sockets

    def close(self) -> None:
        """Close the sockets."""
        for each in self.sockets.values():
            each.close()

    def daemon(
        self, *listen: str, config: str | None = CONFIG, arguments: Sequence[str] = ()
    ) -> Daemon:
        """Return a daemon that is given the sockets."""
        pairs = ",".join(f"{name}={each.fileno()}" for name, each in self.sockets.items())
        return Daemon(
            self.folder,
            config=config,
            listen=listen,
            arguments=arguments,
            prefix=[sys.executable, "-c", ACTIVATE, pairs],
            descriptors=[each.fileno() for each in self.sockets.values()],
        )


def on_loopback(backlog: int = 100) -> socket.socket:
    return socket.create_server(("127.0.0.1", 0), backlog=backlog)


@pytest.fixture
def short_folder(tmp_path: pathlib.Path) -> pathlib.Path:
    """The path of a Unix socket has room for about a hundred bytes."""
    folder = tmp_path / "s"
    folder.mkdir()
    return folder


def ask(connected: socket.socket) -> bytes:
    """Send a request and return the status line of the response."""
    connected.settimeout(60)
    connected.sendall(GET)
    received = b""
    while piece := connected.recv(65_536):
        received += piece
    return received.partition(b"\r\n")[0]


def ask_at(listening: socket.socket) -> bytes:
    with socket.socket(listening.family) as connected:
        connected.connect(listening.getsockname())
        return ask(connected)


@pytest.mark.parametrize("arguments", [(), ("--workers", "2")])
def test_passed_sockets_are_served_plain_with_tls_and_on_a_path(
    short_folder: pathlib.Path, arguments: Sequence[str]
) -> None:
    unix = socket.socket(socket.AF_UNIX)
    unix.bind(f"{short_folder}/treedb.sock")
    os.chmod(f"{short_folder}/treedb.sock", 0o600)
    unix.listen(5)
    create_directory(short_folder / "data")
    files = ensure_local_certificate(short_folder / "data", datetime.datetime.now(datetime.UTC))
    sockets = {"web": on_loopback(), "tls": on_loopback(), "local": unix}
    listen = (
        *("systemd:domain=INET:index=0", "systemd:local"),
        f"systemd:tls:privateKey={files.key}:certKey={files.certificate}",
    )
    with (
        Activated(short_folder, sockets) as activated,
        activated.daemon(*listen, arguments=arguments) as daemon,
    ):
        port, secure_port = (sockets[name].getsockname()[1] for name in ("web", "tls"))
        assert daemon.urls == [
            f"http://127.0.0.1:{port}",
            f"unix:{short_folder}/treedb.sock",
            f"https://127.0.0.1:{secure_port}",
        ]
        assert daemon.request("GET", "/.health").status == 200
        assert daemon.request("GET", "/.health", secure=True).status == 200
        assert ask_at(unix) == b"HTTP/1.1 200 OK"
        for pid in (daemon.pid, *worker_pids(daemon)):
            environment = pathlib.Path(f"/proc/{pid}/environ").read_bytes()
            assert (b"LISTEN_" in environment) == (pid == daemon.pid)
        assert daemon.stop() == 0
        # Neither its file nor its mode is systemd's to lose.
        found = os.stat(f"{short_folder}/treedb.sock").st_mode
        assert (stat.S_ISSOCK(found), stat.S_IMODE(found)) == (True, 0o600)
        with activated.daemon(*listen, arguments=arguments) as again:
            assert again.request("GET", "/.health").status == 200
            assert ask_at(unix) == b"HTTP/1.1 200 OK"


@pytest.mark.parametrize("arguments", [(), ("--workers", "2")])
def test_a_restart_loses_no_attempt_to_connect(
    short_folder: pathlib.Path, arguments: Sequence[str]
) -> None:
    unix = socket.socket(socket.AF_UNIX)
    unix.bind(f"{short_folder}/treedb.sock")
    unix.listen(100)
    sockets = {"web": on_loopback(), "local": unix}
    with Activated(short_folder, sockets) as activated:
        attempts = []

        def connect_to_each() -> None:
            for each in sockets.values():
                for _ in range(20):
                    connected = socket.socket(each.family)
                    connected.connect(each.getsockname())
                    attempts.append(connected)

        connect_to_each()  # before the first start
        with activated.daemon("systemd:web", "systemd:local", arguments=arguments) as daemon:
            assert {ask(each) for each in attempts} == {b"HTTP/1.1 200 OK"}
            for each in attempts:
                each.close()
            attempts.clear()
            assert daemon.stop() == 0
        connect_to_each()  # while no daemon runs
        with activated.daemon("systemd:web", "systemd:local", arguments=arguments) as daemon:
            daemon.signal(signal.SIGHUP)
            assert {ask(each) for each in attempts} == {b"HTTP/1.1 200 OK"}
        for each in attempts:
            each.close()


def fail_to_start(daemon: Daemon) -> str:
    done = daemon.run()
    assert done.returncode == 1
    (sentence,) = [line for line in done.stderr.splitlines() if line.startswith("treedb: ")]
    return sentence


def test_the_error_of_a_socket_that_was_not_passed_is_one_sentence(tmp_path: pathlib.Path) -> None:
    with Activated(tmp_path, {"web": on_loopback()}) as activated:
        daemon = activated.daemon("systemd:https")
        assert fail_to_start(daemon) == (
            "treedb: the command line: listen: systemd:https cannot be opened (systemd has passed "
            "no such socket): start the socket unit, whose FileDescriptorName= or place the "
            "endpoint names."
        )
    alone = Daemon(
        tmp_path, config=CONFIG, listen=["systemd:index=0"], arguments=["--workers", "2"]
    )
    assert "systemd has passed no such socket" in fail_to_start(alone)


def test_a_socket_that_does_not_listen_is_refused(tmp_path: pathlib.Path) -> None:
    ours, theirs = socket.socketpair()
    datagrams = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    with ours, Activated(tmp_path, {"pair": theirs, "datagrams": datagrams}) as activated:
        for name in activated.sockets:
            sentence = fail_to_start(activated.daemon(f"systemd:{name}"))
            assert "it is not a listening stream socket): give the socket unit" in sentence


@pytest.mark.parametrize("config", [None, f"emulator = true\n{CONFIG}"])
def test_a_mode_for_this_machine_only_refuses_a_socket_that_others_reach(
    tmp_path: pathlib.Path, config: str | None
) -> None:
    with Activated(tmp_path, {"all": socket.create_server(("0.0.0.0", 0))}) as activated:
        sentence = fail_to_start(activated.daemon("systemd:all", config=config))
        assert "opens systemd:all to other machines, which" in sentence
        assert "name 127.0.0.1 in ListenStream=, or" in sentence
    with (
        Activated(tmp_path, {"near": on_loopback()}) as activated,
        activated.daemon("systemd:near", config=config) as daemon,
    ):
        assert daemon.request("GET", "/.health").status == 200


def test_for_the_network_a_socket_without_tls_is_for_this_machine(tmp_path: pathlib.Path) -> None:
    with Activated(tmp_path, {"all": socket.create_server(("0.0.0.0", 0))}) as activated:
        daemon = activated.daemon("systemd:all", config=None, arguments=["--lan"])
        sentence = fail_to_start(daemon)
        assert "opens systemd:all to other machines without TLS, which --lan does not" in sentence


def test_sockets_that_were_passed_to_another_process_are_not_taken(tmp_path: pathlib.Path) -> None:
    with on_loopback() as listening:
        os.dup2(listening.fileno(), 200, inheritable=True)
        try:
            daemon = Daemon(
                tmp_path,
                config=CONFIG,
                listen=["systemd:index=0"],
                environment={"LISTEN_PID": "1", "LISTEN_FDS": "1", "LISTEN_FDNAMES": "web"},
                descriptors=[200],
            )
            assert "systemd has passed no such socket" in fail_to_start(daemon)
        finally:
            os.close(200)


def test_a_passed_socket_behind_a_proxy_names_the_client(tmp_path: pathlib.Path) -> None:
    config = f"{CONFIG}[http]\naccess_log = true\n"
    with (
        Activated(tmp_path, {"web": on_loopback()}) as activated,
        activated.daemon("haproxy:systemd:web", config=config) as daemon,
    ):
        with socket.create_connection(activated.sockets["web"].getsockname()) as connected:
            connected.sendall(b"PROXY TCP6 2001:db8::9 ::1 4000 443\r\n")
            assert ask(connected) == b"HTTP/1.1 200 OK"
        daemon.await_line(r"GET /\.health 200 .*client=2001:db8::9 ")


def test_the_activator_of_systemd_starts_the_daemon_at_the_first_connection(
    tmp_path: pathlib.Path,
) -> None:
    port = find_port()
    activate = ("systemd-socket-activate", f"--listen=127.0.0.1:{port}", "--fdname=web")
    daemon = Daemon(tmp_path, config=CONFIG, listen=["systemd:web"], prefix=activate, program=SERVE)
    with contextlib.closing(daemon):
        daemon.launch()
        daemon.await_line("Listening on")
        with socket.create_connection(("127.0.0.1", port), 60) as connected:
            assert ask(connected) == b"HTTP/1.1 200 OK"
        daemon.await_line(f"treedb ready http://127.0.0.1:{port}$")


def test_a_unix_socket_of_several_workers_keeps_its_mode_and_is_removed_at_the_end(
    short_folder: pathlib.Path,
) -> None:
    file = short_folder / "treedb.sock"
    listen = [f"unix:{file}:mode=600"]
    with Daemon(short_folder, config=CONFIG, listen=listen, arguments=["--workers", "2"]) as daemon:
        assert stat.S_IMODE(file.stat().st_mode) == 0o600
        with socket.socket(socket.AF_UNIX) as connected:
            connected.connect(str(file))
            assert ask(connected) == b"HTTP/1.1 200 OK"
        assert daemon.stop() == 0
        assert not file.exists()
        assert "Traceback" not in daemon.log
