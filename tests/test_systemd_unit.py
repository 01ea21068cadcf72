"""The units of systemd in `conf/`: accepted by systemd, with a sandbox that the daemon works in."""

from __future__ import annotations

import os
import pathlib
import re
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator

import pytest

from tests.command import run_command
from tests.daemon import SERVE, Daemon
from tests.rights import someone_else
from tests.sandbox import read_unit
from treedbd.config.endpoints import parse_endpoint
from treedbd.config.settings import Settings

CONF = pathlib.Path(__file__).parent.parent / "conf"
UNIT = CONF / "treedb.service"
SOCKET = CONF / "treedb.socket"
SANDBOX = pathlib.Path(__file__).parent / "sandbox.py"
MAX_EXPOSURE = 2.0
OWNER = {"Authorization": "Bearer owner"}


def exposure_of(unit: pathlib.Path) -> float:
    """Return how much systemd finds that a unit is exposed, from 0 to 10."""
    done = subprocess.run(
        ["systemd-analyze", "security", "--offline=true", "--no-pager", str(unit)],
        capture_output=True,
        text=True,
        check=False,
    )
    found = re.search(r"Overall exposure level for \S+: ([0-9.]+) ", done.stdout)
    assert found is not None, done.stdout + done.stderr
    return float(found[1])


def complaints(*units: pathlib.Path) -> str:
    """Return what systemd does not accept in units."""
    command = ["systemd-analyze", "verify", *map(str, units)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    return "".join(
        line for line in (done.stdout + done.stderr).splitlines(True) if "treedb" in line
    )


def test_the_exposure_of_the_unit_is_below_2(tmp_path: pathlib.Path) -> None:
    assert exposure_of(UNIT) < MAX_EXPOSURE
    # With ports below 1024 too.
    (tmp_path / "treedb.service").write_text(
        UNIT.read_text().replace("#AmbientCapabilities", "AmbientCapabilities")
    )
    assert exposure_of(tmp_path / "treedb.service") < MAX_EXPOSURE


def test_systemd_accepts_the_unit_and_the_socket(tmp_path: pathlib.Path) -> None:
    command = str(pathlib.Path(sys.executable).with_name("treedb"))
    text = UNIT.read_text().replace("/opt/treedb/bin/treedb", command)
    (tmp_path / "treedb.service").write_text(text)
    (tmp_path / "treedb.socket").write_text(SOCKET.read_text())
    assert complaints(tmp_path / "treedb.service", tmp_path / "treedb.socket") == ""
    (tmp_path / "treedb.service").write_text(text.replace("Watchdog", "Watchhog"))
    assert "Watchhog" in complaints(tmp_path / "treedb.service")


def test_the_unit_of_treedb_init_is_the_sample_for_another_place(tmp_path: pathlib.Path) -> None:
    folder = tmp_path / "treedb"
    assert run_command("init", folder).status == 0
    unit = folder / "treedb.service"
    unit.write_text(re.sub("(?m)^User=.*$", "User=treedb", unit.read_text()))  # not that of a test
    assert exposure_of(unit) < MAX_EXPOSURE
    ours, sample = read_unit(unit), read_unit(UNIT)
    assert ours.pop("ReadWritePaths") == [str(folder)]
    for key in ("StateDirectory", "StateDirectoryMode", "ConfigurationDirectory"):
        assert key not in ours
        del sample[key]
    del sample["ConfigurationDirectoryMode"]
    different = {key for key in {*ours, *sample} if ours.get(key) != sample.get(key)}
    assert different - {"ProtectHome"} == {"ExecStart"}


def test_the_unit_uses_what_is_documented_of_the_daemon() -> None:
    unit = read_unit(UNIT)
    assert unit["Type"] == ["notify"]
    assert unit["ExecStart"] == ["/opt/treedb/bin/treedb serve --config /etc/treedb/treedb.toml"]
    assert unit["ExecReload"] == ["/bin/kill -HUP $MAINPID"]
    assert f"/var/lib/{unit['StateDirectory'][0]}" == str(Settings().data)


def test_the_endpoint_of_the_socket_is_named_in_it() -> None:
    (line,) = re.findall(r'^#     listen = \["(.+)"\]$', SOCKET.read_text(), re.MULTILINE)
    endpoint = parse_endpoint(line, pathlib.Path("/etc/treedb"))
    name = read_unit(SOCKET)["FileDescriptorName"]
    assert (endpoint.is_passed, endpoint.is_secure) == (True, True)
    assert endpoint.twisted_string.endswith(f"name={name[0]}")


@pytest.fixture
def folder() -> Iterator[pathlib.Path]:
    """A folder of the user that the sandbox runs a command as.

    Not one of pytest: those are closed to other users whenever a run of pytest begins.
    """
    with tempfile.TemporaryDirectory() as name:
        with someone_else(pathlib.Path(name)):
            pass
        yield pathlib.Path(name)


def test_the_daemon_works_in_the_sandbox_of_the_unit(folder: pathlib.Path) -> None:
    sandbox = [sys.executable, str(SANDBOX), str(UNIT), str(folder)]
    daemon = Daemon(folder, prefix=sandbox, arguments=("--workers", "2", "--quiet"), program=SERVE)
    with daemon:
        large = '{"a":"' + "x" * 3_000_000 + '"}'
        assert daemon.request("PUT", "/large.json?ns=demo", large, secure=True).status == 200
        for number in range(20):
            target = f"/list/{number}.json?ns=demo"
            assert daemon.request("PUT", target, f'{{"n":{number}}}').status == 200
        rules = '{"rules": {".read": true, ".write": true, "list": {".indexOn": "n"}}}'
        put = daemon.request("PUT", "/.settings/rules.json?ns=demo", rules, OWNER)
        assert put.status == 200, put.body
        query = daemon.request(
            "GET", "/list.json?ns=demo&orderBy=%22n%22&startAt=18", None, {}, secure=True
        )
        assert query.json == {"18": {"n": 18}, "19": {"n": 19}}
        read = daemon.request("GET", "/large.json?ns=demo", headers={"Accept-Encoding": "gzip"})
        assert read.status == 200
        daemon.signal(signal.SIGHUP)
        daemon.await_line("The reload of .* is done")
        assert daemon.stop() == 0
    assert "ended" not in daemon.log  # a worker that a system call has killed


@pytest.mark.parametrize("call", ["os.chroot('/')", "os.chown('.', 0, 0)", "signal.pause()"])
def test_what_the_sandbox_does_not_allow_ends_a_process(folder: pathlib.Path, call: str) -> None:
    code = f"import os, signal; signal.alarm(1) if 'pause' in {call!r} else 0; {call}"
    command = [sys.executable, str(SANDBOX), str(UNIT), str(folder), sys.executable, "-c", code]
    done = subprocess.run(command, capture_output=True, check=False, cwd=folder)
    assert done.returncode == (-14 if "pause" in call else -31), done.stderr


def test_the_user_and_the_folders_can_be_made_by_systemd(tmp_path: pathlib.Path) -> None:
    root = tmp_path / "root"
    (root / "etc").mkdir(parents=True)
    for kind, options in (("sysusers", ()), ("tmpfiles", ("--create",))):
        text = (CONF / f"treedb.{kind}").read_text()
        assert f"/etc/{kind}.d/treedb.conf" in text
        (tmp_path / f"{kind}.conf").write_text(text)
        command = [f"systemd-{kind}", f"--root={root}", *options, str(tmp_path / f"{kind}.conf")]
        # Without root the folders cannot be given to another user; they are made all the same.
        subprocess.run(command, check=os.geteuid() == 0, capture_output=True)
    assert (root / "etc" / "passwd").read_text().startswith("treedb:x:")
    for folder in ("etc/treedb", "var/lib/treedb"):
        assert (root / folder).stat().st_mode & 0o777 == 0o700
