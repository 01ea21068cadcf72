"""Presence over streams: what is written when a client or a daemon is gone, however it goes."""

from __future__ import annotations

import json
import pathlib
import signal
from collections.abc import Iterator
from typing import Any
from urllib.parse import quote

import pytest

from tests.command import run_command
from tests.daemon import Daemon
from tests.rest import Client
from tests.sse import EventStream
from tests.system import wait_until
from tests.workers_of import is_running, kill, worker_of, worker_pids
from treedbd.database.session_owners import OWNER_FILE

OFFLINE = {"state": "offline", "seen": {".sv": "timestamp"}}
TARGET = f"/status/ada.json?onDisconnect={quote(json.dumps(OFFLINE))}"
ONE, TWO = (), ("--workers", "2")


@pytest.fixture(params=[ONE, TWO], ids=["alone", "workers"])
def daemon(request: pytest.FixtureRequest, tmp_path: pathlib.Path) -> Iterator[Daemon]:
    with Daemon(tmp_path, arguments=request.param) as running:
        yield running


def appear(daemon: Daemon) -> EventStream:
    """Open a stream as Ada, who is online from then on."""
    stream = EventStream(Client(daemon, "localhost"), TARGET)
    assert stream.status == 200
    stream.next_change()
    assert daemon.request("PUT", "/status/ada/state.json", '"online"').status == 200
    return stream


def state(daemon: Daemon) -> Any:
    return daemon.request("GET", "/status/ada/state.json").json


def owner_files(daemon: Daemon) -> list[pathlib.Path]:
    return list(daemon.data.glob(f"{OWNER_FILE}*"))


def test_a_client_that_is_gone_is_offline(daemon: Daemon) -> None:
    stream = appear(daemon)
    assert state(daemon) == "online"
    stream.close()
    wait_until(lambda: state(daemon) == "offline")
    assert daemon.request("GET", "/status/ada/seen.json").json > 1_600_000_000_000


def test_after_a_stop_it_is_offline_and_no_file_is_left(daemon: Daemon) -> None:
    with appear(daemon):
        assert daemon.stop() == 0
        assert owner_files(daemon) == []
        daemon.start()
        assert state(daemon) == "offline"


def test_after_a_kill_the_first_answer_is_offline(daemon: Daemon) -> None:
    with appear(daemon):
        pids = worker_pids(daemon)
        daemon.kill()
        wait_until(lambda: not any(map(is_running, pids)))
        assert len(owner_files(daemon)) == 1
        daemon.start()
        assert state(daemon) == "offline"
        wait_until(lambda: owner_files(daemon) == [])


def test_what_a_worker_that_is_killed_has_left_another_one_writes_soon(
    tmp_path: pathlib.Path,
) -> None:
    with Daemon(tmp_path, arguments=TWO) as daemon:
        stream = appear(daemon)
        assert state(daemon) == "online"
        kill(worker_of(daemon, stream.wire.socket))
        wait_until(lambda: state(daemon) == "offline", 10)


def test_commands_on_a_stopped_daemon_and_a_backup_leave_it_to_the_next_start(
    tmp_path: pathlib.Path,
) -> None:
    with Daemon(tmp_path) as daemon, appear(daemon):
        daemon.kill()
        checked = run_command("check", "--data", daemon.data)
        assert checked.status == 0, checked
        copy = tmp_path / "copy"
        assert run_command("backup", "--data", daemon.data, copy).status == 0
        assert len(owner_files(daemon)) == 1
        daemon.start()
        assert state(daemon) == "offline"
    other = tmp_path / "other"
    assert run_command("restore", copy, "--data", other / "data").status == 0
    with Daemon(other) as restored:
        assert state(restored) == "offline"


def test_a_client_that_is_stopped_with_its_process_is_offline_for_others(
    tmp_path: pathlib.Path,
) -> None:
    with Daemon(tmp_path) as daemon:
        watcher = EventStream(Client(daemon, "localhost"), "/status.json")
        watcher.next_change()
        stream = appear(daemon)
        assert watcher.next_change().value == "online"
        stream.close()
        frame = watcher.next_change()
        assert (frame.event, frame.path, frame.value["state"]) == ("patch", "/ada", "offline")


def test_a_stop_by_sigint_is_one_too(tmp_path: pathlib.Path) -> None:
    with Daemon(tmp_path) as daemon, appear(daemon):
        daemon.signal(signal.SIGINT)
        daemon.wait()
        daemon.start()
        assert state(daemon) == "offline"
