"""`treedb watch` as a process: its output, its reconnections and its end."""

from __future__ import annotations

import json
import os
import pathlib
import signal
import socket
import subprocess
from collections.abc import Iterator

import pytest

from tests.command import COMMAND, RunningCommand, environment, mint, run_command
from tests.daemon import Daemon

DENY = '{"rules": {}}'


@pytest.fixture(scope="module")
def shared_daemon(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    """A daemon in development mode that always has the same port."""
    folder = tmp_path_factory.mktemp("daemon")
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    with Daemon(folder, listen=[f"tcp:{port}:interface=127.0.0.1"]) as running:
        yield running


class Project:
    """A project that no other test uses, and a function that writes to it."""

    def __init__(self, daemon: Daemon, name: str) -> None:
        self.host = f"{name}.localhost"
        self.url = daemon.http.replace("127.0.0.1", self.host)
        self._daemon = daemon
        self._host = {"Host": self.host}

    def write(self, method: str, path: str, value: object, token: str = "") -> None:
        headers = self._host | ({"Authorization": f"Bearer {token}"} if token else {})
        response = self._daemon.request(method, path, json.dumps(value), headers)
        assert response.status == 200, response


@pytest.fixture
def project(shared_daemon: Daemon, request: pytest.FixtureRequest) -> Project:
    return Project(shared_daemon, request.node.name.replace("_", "-")[-60:].strip("-"))


def interrupt(watching: RunningCommand) -> None:
    """End a command by Ctrl-C."""
    watching.signal(signal.SIGINT)
    assert watching.wait() == 0


def test_events_are_lines_of_kind_path_and_data_until_ctrl_c(project: Project) -> None:
    project.write("PUT", "/a.json", {"b": 1})
    with RunningCommand("watch", f"{project.url}/a") as watching:
        assert watching.lines.next() == 'put\t/\t{"b":1}'
        project.write("PUT", "/a/c%20d.json", "é")
        assert watching.lines.next() == 'put\t/c d\t"é"'
        project.write("PATCH", "/a.json", {"b": 2, "e/f": None})
        assert watching.lines.next() == 'patch\t/\t{"b":2,"e/f":null}'
        interrupt(watching)
        assert watching.lines.rest() == []
        assert watching.errors.rest() == []


def test_events_are_json_lines_if_requested(project: Project) -> None:
    with RunningCommand("watch", f"{project.url}/.json", "--json") as watching:
        assert json.loads(watching.lines.next()) == {"event": "put", "path": "/", "data": None}
        project.write("PATCH", "/.json", {"a": [1]})
        expected = {"event": "patch", "path": "/", "data": {"a": [1]}}
        assert json.loads(watching.lines.next()) == expected
        interrupt(watching)


def test_a_query_is_watched(project: Project) -> None:
    project.write("PUT", "/.json", {"a": 1, "b": 2, "c": 3})
    options = ("--order-by", "$value", "--limit-to-last", "2")
    with RunningCommand("watch", project.url, *options) as watching:
        assert watching.lines.next() == 'put\t/\t{"b":2,"c":3}'
        project.write("PUT", "/a.json", 4)
        assert watching.lines.next() == 'patch\t/\t{"b":null,"a":4}'
        interrupt(watching)


def test_nothing_is_lost_or_repeated_when_the_daemon_is_killed_and_restarted(
    project: Project, shared_daemon: Daemon
) -> None:
    with RunningCommand("watch", project.url, "--keep-alive", "60") as watching:
        assert watching.lines.next() == "put\t/\tnull"
        written = 0
        for _ in range(2):
            for _ in range(3):
                written += 1
                project.write("PUT", f"/{written}.json", written)
            assert [watching.lines.next() for _ in range(3)] == [
                f"put\t/{number}\t{number}" for number in range(written - 2, written + 1)
            ]
            shared_daemon.kill()
            assert "Trying again." in watching.errors.next()
            shared_daemon.start()
            # The command may or may not have reconnected: this write is replayed or received live.
            written += 1
            project.write("PUT", f"/{written}.json", written)
            assert watching.lines.next() == f"put\t/{written}\t{written}"
        interrupt(watching)
        assert watching.lines.rest() == []
        assert watching.errors.rest() == []


def test_a_silent_stream_is_opened_again(project: Project, shared_daemon: Daemon) -> None:
    with RunningCommand("watch", project.url, "--keep-alive", "1") as watching:
        assert watching.lines.next() == "put\t/\tnull"
        os.kill(shared_daemon.pid, signal.SIGSTOP)
        try:
            warning = watching.errors.next()
        finally:
            os.kill(shared_daemon.pid, signal.SIGCONT)
        assert warning == f"treedb: {project.url} was silent for 2.5 s. Trying again."
        project.write("PUT", "/a.json", 1)
        assert watching.lines.next() == "put\t/a\t1"
        interrupt(watching)


def test_ctrl_c_ends_it_while_no_server_responds(project: Project, shared_daemon: Daemon) -> None:
    with RunningCommand("watch", project.url) as watching:
        assert watching.lines.next() == "put\t/\tnull"
        shared_daemon.kill()
        watching.errors.next()
        interrupt(watching)
    shared_daemon.start()


def test_it_ends_when_new_rules_deny_the_stream(shared_daemon: Daemon, project: Project) -> None:
    admin = mint(shared_daemon, project.host, "root", "--admin")
    with RunningCommand("watch", project.url) as watching:
        assert watching.lines.next() == "put\t/\tnull"
        assert run_command("rules", "put", project.url, DENY, token=admin).status == 0
        assert watching.wait() == 1
        assert watching.lines.rest() == []
        assert watching.errors.rest() == ["treedb: The stream ended: the rules no longer allow it."]
    with RunningCommand("watch", project.url, token=admin) as watching:
        assert watching.lines.next() == "put\t/\tnull"
        interrupt(watching)
    denied = run_command("watch", project.url).error
    assert denied == "403 permission_denied: The rules do not allow this read."


def test_a_closed_output_ends_the_command_without_a_message(project: Project) -> None:
    with subprocess.Popen(
        [*COMMAND, "watch", project.url],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=environment(),
    ) as watching:
        assert watching.stdout is not None
        assert watching.stderr is not None
        assert watching.stdout.readline() == b"put\t/\tnull\n"
        watching.stdout.close()
        project.write("PUT", "/a.json", 1)
        assert watching.wait(30) == 1
        assert watching.stderr.read() == b""


def test_an_error_before_the_first_stream_is_one_sentence(
    project: Project, tmp_path: pathlib.Path
) -> None:
    assert (
        run_command("watch", "http://localhost:1").error
        == "No server listens at http://localhost:1."
    )
    assert "400 invalid_query" in run_command("watch", f"{project.url}?shallow=true").error
