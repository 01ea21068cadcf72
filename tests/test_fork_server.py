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

from tests.command import CommandResult, result_of, run_command, start
from tests.daemon import SERVE, Daemon
from tests.fork_server import NEW_PROCESSES, PROJECT, SHARED, ForkedDaemon, can_fork, fork_server
from tests.injection import SmallDisk, inject
from tests.system import wait_until
from tests.workers_of import is_running, kill, worker_pids

CONFIG = 'default_project = "shop"\nworkers = 2\n[projects.shop]\n'
STATUS = ("Umask", "Threads", "SigBlk", "SigIgn", "SigCgt")
BUSY = "no client was answered"
"""What only a daemon on a busy machine logs."""
OWN_SIGNALS = (1 << 31) - 1
"""Those that a program may use: the two after them are the C library's."""

PROGRAM = """
import os, sys
name = __name__
def show():
    print(name, sys.argv, sys.path[0], os.getcwd(), os.environ["SEEN"], sys.stdin.read())
show()
sys.exit("a failure")
"""

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


def seen_worker(folder: pathlib.Path, *, is_configured: bool) -> tuple[bool, Process]:
    """Start a daemon and kill it; return whether its workers were forked, and what one is like."""
    folder.mkdir()
    config, arguments = (CONFIG, []) if is_configured else (None, ["--workers", "2"])
    with Daemon(folder, config=config, arguments=arguments) as daemon:
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


@pytest.mark.parametrize("is_configured", [False, True])
def test_a_forked_worker_is_as_one_in_a_new_process(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch, is_configured: bool
) -> None:
    is_forked, forked = seen_worker(tmp_path / "a", is_configured=is_configured)
    assert is_forked
    monkeypatch.setenv(NEW_PROCESSES, "1")
    is_forked, new = seen_worker(tmp_path / "b", is_configured=is_configured)
    assert not is_forked
    assert forked == new


def test_a_daemon_in_another_environment_has_it_and_can_be_held(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TREEDB_TEST_SEEN", "yes")
    daemon = Daemon(tmp_path)
    daemon.hold()
    held = pathlib.Path(f"/proc/{daemon.pid}")
    assert (held / "comm").read_text() == "sh\n"
    with daemon:
        assert pathlib.Path(f"/proc/{daemon.pid}") == held
        assert b"\0TREEDB_TEST_SEEN=yes\0" in (held / "environ").read_bytes()


def test_a_forked_daemon_can_be_held_and_is_the_only_one_that_sees_its_disk(
    tmp_path: pathlib.Path,
) -> None:
    data = tmp_path / "data"
    data.mkdir(mode=0o700)
    with SmallDisk(data, 4_000_000) as disk:
        daemon = Daemon(tmp_path, disk=disk)
        daemon.hold()
        with inject(daemon.pid, "chdir", "delay_enter=1", [], tmp_path / "trace"), daemon:
            pass
        assert f'chdir("{tmp_path}")' in (tmp_path / "trace").read_text()
        assert list(data.iterdir()) == []
        assert list(disk.folder.iterdir()) != []


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


def seen_starts(folder: pathlib.Path) -> tuple[list[tuple[int, str, str]], str, CommandResult]:
    """Return what starts that fail print, and what a Python program prints to a file."""
    flags = [["--no-such-option"], ["--engine", "tape"], ["--workers", "2", "--engine", "memory"]]
    starts = []
    for program in (None, SERVE):
        for each in flags:
            done = Daemon(folder, arguments=each, program=program).run()
            starts.append((done.returncode, done.stdout, done.stderr))
    file = folder / "output"
    with file.open("wb") as output:
        variables = {"SEEN": "yes"}
        process = start(
            ["a", "b"], folder=folder, program=PROGRAM, variables=variables, output=output
        )
        result = result_of(process, b"input")
    return starts, file.read_text(), result


def test_a_start_that_fails_and_a_program_are_as_in_a_new_process(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert can_fork(os.environ)
    forked = seen_starts(tmp_path)
    monkeypatch.setenv(NEW_PROCESSES, "1")
    new = seen_starts(tmp_path)
    assert forked == new
    starts, printed, result = new
    assert all(status in (1, 2) and "treedb: " in errors for status, _, errors in starts)
    assert printed == f"__main__ ['-c', 'a', 'b']  {tmp_path} yes input\n"
    assert result == (1, b"", "a failure\n")


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
