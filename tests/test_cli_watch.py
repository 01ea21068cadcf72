"""`treedb watch` as a process: what it prints, what it outlives, and how it ends."""

from __future__ import annotations

import json
import os
import pathlib
import signal
import socket
import subprocess
from collections.abc import Iterator

import pytest

from tests.command import COMMAND, Running, environment, mint, process
from tests.daemon import Daemon

DENY = '{"rules": {}}'


@pytest.fixture(scope="module")
def shared_daemon(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    """A daemon in development mode, that comes back at the same port."""
    folder = tmp_path_factory.mktemp("daemon")
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    with Daemon(folder, listen=[f"tcp:{port}:interface=127.0.0.1"]) as running:
        yield running


class Project:
    """A project that no other test uses, and how it is written to."""

    def __init__(self, daemon: Daemon, name: str) -> None:
        self.host = f"{name}.localhost"
        self.url = daemon.http.replace("127.0.0.1", self.host)
        self._daemon = daemon
        self._host = {"Host": self.host}

    def write(self, method: str, path: str, value: object, token: str = "") -> None:
        headers = self._host | ({"Authorization": f"Bearer {token}"} if token else {})
        answer = self._daemon.request(method, path, json.dumps(value), headers)
        assert answer.status == 200, answer


@pytest.fixture
def project(shared_daemon: Daemon, request: pytest.FixtureRequest) -> Project:
    return Project(shared_daemon, request.node.name.replace("_", "-")[-60:].strip("-"))


def interrupt(watching: Running) -> None:
    """End it by Ctrl-C, without a word."""
    watching.signal(signal.SIGINT)
    assert watching.wait() == 0


def test_events_are_lines_of_kind_path_and_data_until_ctrl_c(project: Project) -> None:
    project.write("PUT", "/a.json", {"b": 1})
    with Running("watch", f"{project.url}/a") as watching:
        assert watching.lines.next() == 'put\t/\t{"b":1}'
        project.write("PUT", "/a/c%20d.json", "é")
        assert watching.lines.next() == 'put\t/c d\t"é"'
        project.write("PATCH", "/a.json", {"b": 2, "e/f": None})
        assert watching.lines.next() == 'patch\t/\t{"b":2,"e/f":null}'
        interrupt(watching)
        assert watching.lines.rest() == []
        assert watching.errors.rest() == []


def test_events_are_json_lines_where_asked_for(project: Project) -> None:
    with Running("watch", f"{project.url}/.json", "--json") as watching:
        assert json.loads(watching.lines.next()) == {"event": "put", "path": "/", "data": None}
        project.write("PATCH", "/.json", {"a": [1]})
        expected = {"event": "patch", "path": "/", "data": {"a": [1]}}
        assert json.loads(watching.lines.next()) == expected
        interrupt(watching)


def test_a_query_is_watched(project: Project) -> None:
    project.write("PUT", "/.json", {"a": 1, "b": 2, "c": 3})
    options = ("--order-by", "$value", "--limit-to-last", "2")
    with Running("watch", project.url, *options) as watching:
        assert watching.lines.next() == 'put\t/\t{"b":2,"c":3}'
        project.write("PUT", "/a.json", 4)
        assert sorted((watching.lines.next(), watching.lines.next())) == [
            "put\t/a\t4",
            "put\t/b\tnull",
        ]
        interrupt(watching)


def test_nothing_is_lost_or_repeated_when_the_daemon_is_killed_and_comes_back(
    project: Project, shared_daemon: Daemon
) -> None:
    with Running("watch", project.url, "--keep-alive", "60") as watching:
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
            # It is not back yet, or just so: this write may be replayed or told.
            written += 1
            project.write("PUT", f"/{written}.json", written)
            assert watching.lines.next() == f"put\t/{written}\t{written}"
        interrupt(watching)
        assert watching.lines.rest() == []
        assert watching.errors.rest() == []


def test_a_stream_that_stands_still_is_opened_again(
    project: Project, shared_daemon: Daemon
) -> None:
    with Running("watch", project.url, "--keep-alive", "1") as watching:
        assert watching.lines.next() == "put\t/\tnull"
        os.kill(shared_daemon.pid, signal.SIGSTOP)
        try:
            told = watching.errors.next()
        finally:
            os.kill(shared_daemon.pid, signal.SIGCONT)
        assert told == f"treedb: {project.url} was silent for 2.5 s. Trying again."
        project.write("PUT", "/a.json", 1)
        assert watching.lines.next() == "put\t/a\t1"
        interrupt(watching)


def test_ctrl_c_ends_it_while_nobody_answers(project: Project, shared_daemon: Daemon) -> None:
    with Running("watch", project.url) as watching:
        assert watching.lines.next() == "put\t/\tnull"
        shared_daemon.kill()
        watching.errors.next()
        interrupt(watching)
    shared_daemon.start()


def test_it_ends_when_the_rules_take_the_stream_away(
    shared_daemon: Daemon, project: Project
) -> None:
    admin = mint(shared_daemon, project.host, "root", "--admin")
    with Running("watch", project.url) as watching:
        assert watching.lines.next() == "put\t/\tnull"
        assert process("rules", "put", project.url, DENY, token=admin).status == 0
        assert watching.wait() == 1
        assert watching.lines.rest() == []
        assert watching.errors.rest() == [
            "treedb: The stream was ended: the rules do not allow it any more."
        ]
    with Running("watch", project.url, token=admin) as watching:
        assert watching.lines.next() == "put\t/\tnull"
        interrupt(watching)
    denied = process("watch", project.url).sentence
    assert denied == "403 permission_denied: The rules do not allow this read."


def test_a_reader_who_has_enough_ends_it_without_a_word(project: Project) -> None:
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


def test_what_cannot_be_watched_is_one_sentence(project: Project, tmp_path: pathlib.Path) -> None:
    assert (
        process("watch", "http://localhost:1").sentence == "Nobody listens at http://localhost:1."
    )
    assert "400 invalid_query" in process("watch", f"{project.url}?shallow=true").sentence
