"""The first chapter of `docs/operating.md`: its configurations, and certbot's deploy hook."""

from __future__ import annotations

import getpass
import os
import pathlib
import re
import socket
import ssl
import stat
import subprocess
from collections.abc import Iterator
from http.client import HTTPSConnection
from typing import Final

import pytest
import trustme

from tests.authority import serial_of
from tests.command import run_command
from tests.daemon import Daemon
from tests.pages import DOCS, Block, read_blocks
from tests.system import find_port
from treedbd.config.settings import load_settings

HOOK: Final = DOCS.parent / "conf/certbot-deploy-hook"
PAGE: Final = (DOCS / "operating.md").read_text()
NAME: Final = "db.example.com"
LISTEN: Final = "ssl:443:"
RELOADED: Final = "The reload of certificates, secrets, providers and rules files is done"

SYSTEMCTL: Final = """#!/bin/sh
# Plays systemctl for one unit, whose process is in the file `pid`.
case "$*" in
'--quiet is-active treedb') test -e pid ;;
'reload treedb') kill -HUP "$(cat pid)" ;;
*) exit 1 ;;
esac
"""


def configurations() -> list[Block]:
    """Return the configurations of the first chapter."""
    return [block for block in read_blocks("operating.md", "toml") if "privateKey" in block.text]


@pytest.fixture
def folder(tmp_path: pathlib.Path) -> pathlib.Path:
    """The folder that `treedb init` fills for the project of the page."""
    done = run_command("init", "--project", "shop", tmp_path / "treedb")
    assert done.status == 0, done
    return tmp_path / "treedb"


def test_the_configurations_are_valid_with_the_files_of_treedb_init(folder: pathlib.Path) -> None:
    simple, wildcard = configurations()
    (folder / "treedb.toml").write_text(simple.text)
    settings = load_settings(folder / "treedb.toml", {}, folder)
    assert (settings.domains, settings.default_project) == ((), "shop")
    shop = settings.projects["shop"]
    assert [file.name for file in shop.secret_files if file.exists()] == ["shop.secret"]
    assert shop.rules_file is not None
    assert shop.rules_file.exists()
    (folder / "treedb.toml").write_text(wildcard.text)
    settings = load_settings(folder / "treedb.toml", {}, folder)
    assert (settings.domains, sorted(settings.projects)) == ((NAME,), ["blog", "shop"])


def test_the_lines_for_the_unit_complete_what_treedb_init_writes(folder: pathlib.Path) -> None:
    unit = (folder / "treedb.service").read_text()
    (lines,) = read_blocks("operating.md", "ini")
    assert "\n#AmbientCapabilities=CAP_NET_BIND_SERVICE\n" in unit
    for line in lines.text.splitlines():
        assert f"\n{line}\n" not in unit
    assert "/etc/systemd/system/" in PAGE


def test_the_page_names_the_place_of_the_hook_once_and_uses_it() -> None:
    (place,) = re.findall(r"init --print certbot-deploy-hook > (\S+)$", PAGE, re.MULTILINE)
    assert f"    chmod 0755 {place}\n" in PAGE
    assert re.findall(r"--deploy-hook (\S+)$", PAGE, re.MULTILINE) == [place, place]
    assert place in HOOK.read_text()
    assert os.access(HOOK, os.X_OK)


class Machine:
    """A machine with a daemon and certbot, which has got certificates for a name."""

    def __init__(self, folder: pathlib.Path) -> None:
        """Write the configuration of the page, for a port that everybody may listen on."""
        self.folder = folder
        self.file = folder / "tls.pem"
        self._authority = trustme.CA()
        self._authority.cert_pem.write_to_path(folder / "ca.pem")
        programs = folder / "programs"
        programs.mkdir()
        (programs / "systemctl").write_text(SYSTEMCTL)
        (programs / "systemctl").chmod(0o755)
        self._environment = {
            **os.environ,
            "PATH": f"{programs}:{os.environ['PATH']}",
            "TREEDB_CERTIFICATE": str(self.file),
            "TREEDB_USER": getpass.getuser(),
        }
        self.port = find_port()
        endpoint = f"ssl:{self.port}:interface=127.0.0.1:"
        config = configurations()[0].text.replace(LISTEN, endpoint)
        self.daemon = Daemon(folder, config=config, listen=[])

    def issue(self) -> pathlib.Path:
        """Renew the certificate; return its folder, as certbot has it."""
        lineage = self.folder / "live" / NAME
        lineage.mkdir(parents=True, exist_ok=True)
        issued = self._authority.issue_cert(NAME)
        issued.private_key_pem.write_to_path(lineage / "privkey.pem")
        chain = b"".join(blob.bytes() for blob in issued.cert_chain_pems)
        (lineage / "fullchain.pem").write_bytes(chain)
        return lineage

    def run_hook(self, **variables: str) -> subprocess.CompletedProcess[str]:
        """Run the hook as certbot does."""
        return subprocess.run(
            [str(HOOK)],
            cwd=self.folder,
            env={**self._environment, **variables},
            capture_output=True,
            text=True,
            timeout=30,
            check=False,
        )

    def deploy(self) -> None:
        """Renew, and run the hook, which must succeed."""
        done = self.run_hook(RENEWED_LINEAGE=str(self.issue()), RENEWED_DOMAINS=NAME)
        assert (done.returncode, done.stdout, done.stderr) == (0, "", "")

    def start(self) -> None:
        """Start the daemon, as systemd does."""
        self.daemon.start()
        (self.folder / "pid").write_text(str(self.daemon.pid))

    def connect(self) -> HTTPSConnection:
        """Open a connection, by the name that the certificate is for."""
        context = ssl.create_default_context(cafile=str(self.folder / "ca.pem"))
        connection = HTTPSConnection("127.0.0.1", self.port, timeout=30)
        connection.auto_open = 0  # a connection that was closed is an error
        reached = socket.create_connection(("127.0.0.1", self.port), 30)
        connection.sock = context.wrap_socket(reached, server_hostname=NAME)
        return connection


def status_of(connection: HTTPSConnection) -> int:
    """Send a request by a connection; return the status."""
    connection.request("GET", "/users/ada.json", headers={"Host": NAME})
    response = connection.getresponse()
    response.read()
    return response.status


@pytest.fixture
def machine(folder: pathlib.Path) -> Iterator[Machine]:
    machine = Machine(folder)
    yield machine
    machine.daemon.close()


def test_the_hook_gives_a_new_certificate_to_the_daemon_and_no_connection_is_closed(
    machine: Machine,
) -> None:
    machine.deploy()  # before the first start, with nothing to reload
    assert stat.S_IMODE(machine.file.stat().st_mode) == 0o600
    machine.start()
    kept = machine.connect()
    assert status_of(kept) == 403
    machine.deploy()
    machine.daemon.await_line(RELOADED)
    renewed = machine.connect()
    assert serial_of(renewed) != serial_of(kept)
    assert status_of(renewed) == status_of(kept) == 403
    assert list(machine.folder.glob("tls.pem.*")) == []
    kept.close()
    renewed.close()


def test_a_hook_that_fails_leaves_the_certificate_as_it_was(machine: Machine) -> None:
    machine.deploy()
    before = machine.file.read_bytes()
    done = machine.run_hook()
    assert done.returncode != 0
    assert "RENEWED_LINEAGE" in done.stderr
    lineage = machine.issue()
    (lineage / "privkey.pem").unlink()
    done = machine.run_hook(RENEWED_LINEAGE=str(lineage))
    assert done.returncode != 0
    assert machine.file.read_bytes() == before
