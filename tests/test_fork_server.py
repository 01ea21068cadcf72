"""A daemon that was forked is, from outside, as one that has imported its modules itself."""

from __future__ import annotations

import contextlib
import os
import pathlib
import re
import subprocess
import sys
from collections.abc import Sequence
from typing import TypeAlias

import pytest

from tests.command import run_command
from tests.daemon import SERVE, Daemon
from tests.fork_server import NEW_PROCESSES, PROJECT, SHARED, ForkedDaemon, fork_server
from tests.system import wait_until
from tests.workers_of import is_running, kill, worker_pids

STATUS = ("Umask", "Threads", "SigBlk", "SigIgn", "SigCgt")
BUSY = "no client was answered"
"""What only a daemon on a busy machine logs."""
OWN_SIGNALS = (1 << 31) - 1
"""Those that a program may use: the two after them are the C library's."""

PARENT_OF_A_DAEMON = """
import pathlib, sys
from tests.fork_server import ForkedDaemon, fork_server
process = ForkedDaemon(fork_server(), ["twistd", "--version"], pathlib.Path(sys.argv[1]))
status = pathlib.Path(f"/proc/{process.pid}/status").read_text()
print(status.partition("PPid:")[2].split()[0], process.wait())
"""


def shown(text: str, folder: pathlib.Path) -> str:
    return re.sub("[0-9]+", "#", text.replace(str(folder), "folder"))


Process: TypeAlias = tuple[dict[str, int], list[str], str]
"""What is seen of a process: its status, files and working directory."""


def look_at(pid: int, folder: pathlib.Path) -> Process:
    path = pathlib.Path(f"/proc/{pid}")
    lines = (line.split(":\t") for line in (path / "status").read_text().splitlines())
    status = {name: int(value, 16) & OWN_SIGNALS for name, value in lines if name in STATUS}
    files = sorted(shown(str(each.readlink()), folder) for each in (path / "fd").iterdir())
    return status, files, shown(str((path / "cwd").readlink()), folder)


def process(pid: int, folder: pathlib.Path) -> Process:
    """Return what is seen of a process as soon as that stays: it may be opening a file."""
    found: list[Process] = []

    def stays() -> bool:
        with contextlib.suppress(FileNotFoundError):
            found.append(look_at(pid, folder))
            return found[-2:-1] == found[-1:]
        return False

    wait_until(stays)
    return found[-1]


def seen(folder: pathlib.Path, program: Sequence[str] | None) -> tuple[bool, Process, list[str]]:
    """Start and stop a daemon; return whether it was forked, and what is seen of it."""
    folder.mkdir()
    with Daemon(folder, program=program) as daemon:
        found = process(daemon.pid, folder)
        is_forked = isinstance(daemon._process, ForkedDaemon)
        assert daemon.stop() == 0
        lines = [line for line in daemon.log.splitlines() if BUSY not in line]
        return is_forked, found, [shown(line, folder) for line in lines]


@pytest.mark.parametrize("program", [None, SERVE], ids=["twistd", "serve"])
def test_a_forked_daemon_is_as_one_in_a_new_process(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch, program: Sequence[str] | None
) -> None:
    is_forked, *forked = seen(tmp_path / "a", program)
    assert is_forked
    monkeypatch.setenv(NEW_PROCESSES, "1")
    is_forked, *new = seen(tmp_path / "b", program)
    assert not is_forked
    assert forked == new


def seen_worker(folder: pathlib.Path) -> tuple[bool, Process]:
    """Start a daemon and kill it; return whether its workers were forked, and what one is like."""
    folder.mkdir()
    with Daemon(folder, arguments=["--workers", "2"]) as daemon:
        _, last = pids = worker_pids(daemon)
        found = process(last, folder)
        command = pathlib.Path(f"/proc/{last}/cmdline").read_bytes()
        kill(pids[0])
        daemon.await_line(r"Worker \d serves again")
        pids += worker_pids(daemon)
        assert len(set(pids)) == 3
        daemon.kill()
        wait_until(lambda: not any(map(is_running, pids)))
        return b"tests.fork_server" in command, found


def test_a_forked_worker_is_as_one_in_a_new_process(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    is_forked, forked = seen_worker(tmp_path / "a")
    assert is_forked
    monkeypatch.setenv(NEW_PROCESSES, "1")
    is_forked, new = seen_worker(tmp_path / "b")
    assert not is_forked
    assert forked == new


def test_a_daemon_in_another_environment_has_it(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TREEDB_TEST_SEEN", "yes")
    with Daemon(tmp_path) as daemon:
        assert (
            b"\0TREEDB_TEST_SEEN=yes\0" in pathlib.Path(f"/proc/{daemon.pid}/environ").read_bytes()
        )


def test_the_end_of_a_forked_process_is_known(tmp_path: pathlib.Path) -> None:
    process = ForkedDaemon(fork_server(), ["twistd", "--no-such-option"], tmp_path)
    assert process.stdout is not None
    with process.stdout:
        assert "no-such-option" in process.stdout.read()
    assert process.wait(20) == 1
    assert process.poll() == 1


def test_forked_processes_share_no_reactor(tmp_path: pathlib.Path) -> None:
    with Daemon(tmp_path):
        process = fork_server()._process
        assert process is not None
        server = pathlib.Path(f"/proc/{process.pid}/fd")
        files = [str(each.readlink()) for each in server.iterdir()]
    assert any(each.startswith("socket:") for each in files)
    assert not [each for each in files if "event" in each]


def test_a_forked_command_is_as_one_in_a_new_process(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "rules.json").write_text('{"rules":{".read":"nobody"}}')
    runs = [
        (("rules", "check", "-"), '{"rules":{".read":true}}'),
        (("rules", "check", "rules.json"), ""),
        (("set", "http://127.0.0.1:1/a", "-"), '{"a":1}'),
        (("--version",), ""),
        (("get", "http://127.0.0.1:1/a"), ""),
        (("no-such-command",), ""),
    ]
    forked, new = [], []
    for words, stdin in runs:
        forked.append(run_command(*words, stdin=stdin.encode()))
    monkeypatch.setenv(NEW_PROCESSES, "1")
    for words, stdin in runs:
        new.append(run_command(*words, stdin=stdin.encode()))
    assert forked == new
    assert [done.status for done in new] == [0, 1, 1, 0, 1, 2]


def test_a_program_that_inherits_a_server_has_daemons_forked_by_it(tmp_path: pathlib.Path) -> None:
    server = fork_server()
    assert server._process is not None
    done = subprocess.run(
        [sys.executable, "-c", PARENT_OF_A_DAEMON, str(tmp_path)],
        cwd=PROJECT,
        env={**os.environ, SHARED: str(server.descriptor)},
        pass_fds=[server.descriptor],
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.stdout, done.stderr) == (f"{server._process.pid} 0\n", "")
