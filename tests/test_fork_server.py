"""A daemon that was forked is, from outside, as one that has imported its modules itself."""

from __future__ import annotations

import pathlib
import re

import pytest

from tests.daemon import NEW_PROCESSES, Daemon
from tests.fork_server import ForkedProcess, fork_server

STATUS = ("Umask", "Threads", "SigBlk", "SigIgn", "SigCgt")


def seen(folder: pathlib.Path) -> tuple[bool, dict[str, str], list[str], str, list[str]]:
    """Start and stop a daemon; return whether it was forked, and what is seen of it."""

    def shown(text: str) -> str:
        return re.sub("[0-9]+", "#", text.replace(str(folder), "folder"))

    folder.mkdir()
    with Daemon(folder) as daemon:
        process = pathlib.Path(f"/proc/{daemon.pid}")
        lines = (line.split(":\t") for line in (process / "status").read_text().splitlines())
        status = {name: value for name, value in lines if name in STATUS}
        files = sorted(shown(str(each.readlink())) for each in (process / "fd").iterdir())
        working = shown(str((process / "cwd").readlink()))
        is_forked = isinstance(daemon._process, ForkedProcess)
        assert daemon.stop() == 0
        return is_forked, status, files, working, list(map(shown, daemon.log.splitlines()))


def test_a_forked_daemon_is_as_one_in_a_new_process(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    is_forked, *forked = seen(tmp_path / "a")
    assert is_forked
    monkeypatch.setenv(NEW_PROCESSES, "1")
    is_forked, *new = seen(tmp_path / "b")
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
    process = fork_server().start(["twistd", "--no-such-option"], tmp_path)
    with process.stdout:
        assert "no-such-option" in process.stdout.read()
    assert process.wait(20) == 1
    assert process.poll() == 1


def test_forked_processes_share_no_reactor(tmp_path: pathlib.Path) -> None:
    with Daemon(tmp_path):
        server = pathlib.Path(f"/proc/{fork_server()._process.pid}/fd")
        files = [str(each.readlink()) for each in server.iterdir()]
    assert any(each.startswith("socket:") for each in files)
    assert not [each for each in files if "event" in each]
