"""`--lan` as a user meets it: other machines, their certificate, the admin's token."""

from __future__ import annotations

import os
import pathlib
import pty
import re
import shlex
import signal
import socket
import ssl
import subprocess
from collections.abc import Iterator
from urllib.parse import urlsplit

import pytest

from tests.command import COMMAND, environment, run_command
from tests.daemon import SERVE, TWISTD, Daemon, request
from treedbd.config.certificate import LAN_CERTIFICATE
from treedbd.config.endpoints import AUTHORITY_CERTIFICATE, find_local_network

ANY_PORTS = ("ssl:0", "tcp:0:interface=127.0.0.1")
NETWORK = find_local_network()
RULES = "/.settings/rules.json"
TOKEN = re.compile(r"^    ([0-9a-f]{32})$", re.MULTILINE)


class LanDaemon(Daemon):
    """A daemon with `--lan`, at any ports; its log is a file, apart from what it prints."""

    def __init__(self, folder: pathlib.Path, *flags: str) -> None:
        self.log_file = folder / "daemon.log"
        more = ("--logfile", str(self.log_file))
        super().__init__(
            folder, listen=ANY_PORTS, arguments=["--lan", *more, *flags], program=SERVE
        )

    @property
    def token(self) -> str:
        """The token that was printed last."""
        return str(TOKEN.findall(self.log)[-1])

    def admin(self) -> dict[str, str]:
        """Return the header of an admin."""
        return {"Authorization": f"Bearer {self.token}"}

    def is_admin(self, headers: dict[str, str], target: str = RULES) -> int:
        """Return the status of what only an admin may read."""
        return self.request("GET", target, headers=headers).status


@pytest.fixture(scope="module", params=["1", "2"])
def lan(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[LanDaemon]:
    with LanDaemon(tmp_path_factory.mktemp("lan"), "--workers", request.param) as daemon:
        yield daemon


def test_the_printed_token_is_an_admins_for_any_project_and_owner_is_nobodys(
    lan: LanDaemon,
) -> None:
    for project in ("demo", "eu--shop", "new"):
        assert lan.is_admin(lan.admin(), f"{RULES}?ns={project}") == 200
        assert lan.is_admin({}, f"{RULES}?ns={project}&auth={lan.token}") == 200
    refused = lan.request("GET", "/a.json", headers={"Authorization": "Bearer owner"})
    assert refused.status == 401
    assert "does not count with --lan" in refused.body.decode()
    assert lan.is_admin({"Authorization": f"Bearer {lan.token[:-1]}"}) == 401


def test_pages_of_other_machines_are_refused_with_the_token_too(lan: LanDaemon) -> None:
    for origin in ("https://evil.example", "http://192.0.2.77:3000", "http://phone.local"):
        refused = lan.request("GET", RULES, headers={**lan.admin(), "Origin": origin})
        assert refused.status == 403
        assert lan.token not in refused.body.decode()
    own = [*NETWORK.names, *(each for each in NETWORK.addresses if ":" not in each), "localhost"]
    for host in own:
        page = {**lan.admin(), "Origin": f"http://{host}:3000", "Sec-Fetch-Site": "cross-site"}
        assert lan.is_admin(page) == 200


def test_names_of_this_machine_are_served_and_others_are_misdirected(lan: LanDaemon) -> None:
    for host in (*NETWORK.names, "anything.local:1", "192.168.1.1", "shop.localhost"):
        assert lan.request("GET", "/a.json", headers={"Host": host}).status == 200
    for host in ("db.example.com", "local", "evil.example"):
        assert lan.request("GET", "/a.json", headers={"Host": host}).status == 421


def test_a_device_that_trusts_the_authority_connects_by_every_address(lan: LanDaemon) -> None:
    ca = lan.data / AUTHORITY_CERTIFICATE
    context = ssl.create_default_context(cafile=str(ca))
    port = urlsplit(lan.https).port
    addresses = [each for each in NETWORK.addresses if ":" not in each]
    for address in ("127.0.0.1", *addresses):
        assert request(f"https://{address}:{port}", "GET", "/a.json", ca=ca).status == 200
    for name in NETWORK.names:
        with (
            socket.create_connection(("127.0.0.1", port), timeout=30) as opened,
            context.wrap_socket(opened, server_hostname=name) as secured,
        ):
            assert secured.version() in ("TLSv1.2", "TLSv1.3")


def test_what_is_printed_says_where_and_whom_to_trust(lan: LanDaemon) -> None:
    printed = lan.log.partition("treedb ready")[0]
    port = urlsplit(lan.https).port
    for address in [each for each in NETWORK.addresses if ":" not in each][:1]:
        assert f"\n    https://{address}:{port}\n" in printed
    assert f"\n    {lan.data / AUTHORITY_CERTIFICATE}\n" in printed
    assert "docs/serving.md" in printed
    assert "█" not in printed
    assert [urlsplit(url).hostname for url in lan.urls] == ["127.0.0.1", "127.0.0.1"]


def test_the_log_says_the_truth_and_its_command_works(lan: LanDaemon) -> None:
    log = lan.log_file.read_text()
    assert "with --lan every machine of the network can connect" in log
    assert "only this machine" not in log
    printed = re.search(r"curl .*", log)
    assert printed is not None
    done = subprocess.run(
        ["sh", "-c", printed[0]], cwd="/", capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout) == (0, '"world"'), done.stderr


def test_the_command_of_this_machine_trusts_the_authority(lan: LanDaemon) -> None:
    url = f"https://localhost:{urlsplit(lan.https).port}/from/here"
    program = f"cd {shlex.quote(str(lan.folder))}; ln -sfn data treedb-data; "
    program += shlex.join([*COMMAND, "set", url, "1"])
    done = subprocess.run(
        ["sh", "-c", program], capture_output=True, text=True, env=environment(), check=False
    )
    assert (done.returncode, done.stdout) == (0, "1\n"), done.stderr


def test_the_token_is_new_at_each_start_and_nowhere_else(tmp_path: pathlib.Path) -> None:
    tokens = set()
    with LanDaemon(tmp_path) as daemon:
        for _ in range(2):
            token = daemon.token
            tokens.add(token)
            assert daemon.is_admin(daemon.admin()) == 200
            assert daemon.is_admin({}, f"{RULES}?auth={token}") == 200
            assert (
                daemon.is_admin({"Origin": "https://evil.example"}, f"/x.json?auth={token}") == 403
            )
            assert daemon.request("GET", f"/x?access_token={token}").status == 404
            assert daemon.request("GET", "/x.json", headers={"Host": token}).status == 421
            daemon.restart()
        assert len(tokens) == 2
        assert daemon.stop() == 0
        assert len([line for line in daemon.log.splitlines() if token in line]) == 1
    for file in (each for each in tmp_path.rglob("*") if each.is_file()):
        content = file.read_bytes()
        assert not [token for token in tokens if token.encode() in content], file


def test_under_rules_the_logged_command_takes_the_token_from_the_variable(
    tmp_path: pathlib.Path,
) -> None:
    with LanDaemon(tmp_path) as daemon:
        put = daemon.request("PUT", RULES, '{"rules": {}}', daemon.admin())
        assert put.status == 200
        begin = len(daemon.log_file.read_text())
        daemon.restart()
        printed = re.search(r"curl .*", daemon.log_file.read_text()[begin:])
        assert printed is not None
        done = subprocess.run(
            ["sh", "-c", printed[0]],
            capture_output=True,
            text=True,
            env=environment(daemon.token),
            check=False,
        )
        assert (done.returncode, done.stdout) == (0, '"world"'), done.stderr


@pytest.mark.parametrize("workers", ["1", "2"])
def test_sighup_issues_the_certificate_that_is_due(tmp_path: pathlib.Path, workers: str) -> None:
    flags = ["--lan", "--workers", workers]
    with Daemon(tmp_path, listen=ANY_PORTS, arguments=flags, program=SERVE) as daemon:
        port = urlsplit(daemon.https).port
        assert port is not None
        old = ssl.get_server_certificate(("127.0.0.1", port))
        (daemon.data / LAN_CERTIFICATE).unlink()  # as when it is for other addresses
        daemon.signal(signal.SIGHUP)
        daemon.await_line(r"The reload of .* is done\.")
        new = ssl.get_server_certificate(("127.0.0.1", port))
        assert new != old
        assert new in (daemon.data / LAN_CERTIFICATE).read_text()


def test_a_terminal_shows_a_qr_code(tmp_path: pathlib.Path) -> None:
    ours, theirs = pty.openpty()
    command = [*SERVE, "--lan", "--logfile", "the.log", "--listen", "ssl:0", "--data", "data"]
    with subprocess.Popen(
        command,
        cwd=tmp_path,
        stdin=subprocess.DEVNULL,
        stdout=theirs,
        stderr=theirs,
        env={**os.environ, "PYTHONUTF8": "1"},
    ) as process:
        os.close(theirs)
        shown = b""
        while b"treedb ready" not in shown:
            shown += os.read(ours, 65536)
        process.terminate()
    os.close(ours)
    assert process.returncode == 0
    drawn = [line for line in shown.decode().splitlines() if "█" in line]
    assert bool(drawn) is bool(NETWORK.addresses)
    assert len({len(line) for line in drawn}) <= 1


def test_endpoints_on_loopback_stay_there(tmp_path: pathlib.Path) -> None:
    flags = ["--lan", "--logfile", "the.log"]
    with Daemon(tmp_path, arguments=flags, program=SERVE) as daemon:
        assert "None: the endpoints that --listen names are on loopback." in daemon.log


def test_other_machines_are_not_served_without_tls(lan: LanDaemon, tmp_path: pathlib.Path) -> None:
    assert re.findall(r"^    http://", lan.log, re.MULTILINE) == []
    for endpoint in ("tcp:0", "tcp:0:interface=0.0.0.0", "tcp6:0", "haproxy:tcp:0"):
        flags = ["--lan", "--listen", endpoint]
        done = Daemon(tmp_path, listen=["ssl:0"], arguments=flags, program=SERVE).run()
        assert done.returncode == 1
        assert done.stderr == (
            f"treedb: the command line: listen opens {endpoint} to other machines without TLS, "
            "which --lan does not allow: add interface=127.0.0.1, or listen at an endpoint of "
            "ssl:.\n"
        )


@pytest.mark.parametrize("program", [SERVE, (str(TWISTD), "-n", "--pidfile=", "treedb")])
def test_lan_and_a_configuration_exclude_each_other(
    tmp_path: pathlib.Path, program: tuple[str, ...]
) -> None:
    done = Daemon(tmp_path, config="", arguments=["--lan"], program=program).run()
    assert done.returncode == (2 if program is SERVE else 1)
    assert "--lan is for development mode, which has no configuration: leave out" in done.stderr


def test_a_daemon_in_the_background_has_nowhere_to_print(tmp_path: pathlib.Path) -> None:
    program = [str(TWISTD), "--pidfile=", "treedb"]
    done = Daemon(tmp_path, arguments=["--lan"], program=program).run()
    assert done.returncode == 1
    assert "treedb: --lan prints a token, which needs the foreground" in done.stderr
    assert not (tmp_path / "data").exists()


def test_localhost_keeps_its_certificate_without_lan(tmp_path: pathlib.Path) -> None:
    with Daemon(tmp_path, program=SERVE) as daemon:
        assert daemon.request("GET", "/a.json", secure=True).status == 200
        assert not (daemon.data / AUTHORITY_CERTIFICATE).exists()
        assert daemon.request("GET", "/a.json", headers={"Host": "box.local"}).status == 421
        assert run_command("serve", "--help").text.count("--lan") == 2
