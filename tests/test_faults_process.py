"""Faults of the machine around the daemon: its clock jumps, it stands still, its descriptors end."""

from __future__ import annotations

import contextlib
import os
import pathlib
import signal
from collections.abc import Iterator

import pytest

from tests.daemon import Daemon
from tests.rest import Client, Wire, configured, print_request
from tests.sse import KEEP_ALIVE, EventStream, Listener

CLIENTS = 20
DESCRIPTORS = 64
CONNECTIONS = 200
MAX_CPU_SHARE = 0.5
FAKETIME = next(iter(sorted(pathlib.Path("/usr/lib").glob("*/faketime/libfaketime.so.1"))), None)
FREQUENT = """
default_project = "shop"
[streams]
keep_alive_s = 1
[projects.shop]
rules_file = "open.json"
"""


def test_a_daemon_that_was_stopped_answers_what_was_sent_meanwhile(daemon: Daemon) -> None:
    with contextlib.ExitStack() as stack:
        client = stack.enter_context(Client(daemon))
        client.put("/n.json", {"before": 1})
        listener = stack.enter_context(Listener(client, "/n.json"))
        wires = [stack.enter_context(client.connect()) for _ in range(CLIENTS)]
        daemon.signal(signal.SIGSTOP)
        try:
            os.waitid(os.P_PID, daemon.pid, os.WSTOPPED)
            for at, wire in enumerate(wires):
                wire.send(print_request("PUT", f"/n/k{at}.json", str(at)))
        finally:
            daemon.signal(signal.SIGCONT)
        assert [wire.receive("PUT").status for wire in wires] == [200] * CLIENTS
        expected = {"before": 1, **{f"k{at}": at for at in range(CLIENTS)}}
        assert client.get("/n.json") == expected
        assert listener.wait_until(lambda: len(listener.received) == 1 + CLIENTS)
        assert sorted(frame.path for frame in listener.received[1:]) == sorted(
            f"/k{at}" for at in range(CLIENTS)
        )


# Descriptors


def cpu_s(pid: int) -> float:
    """Return the seconds of processor time that a process has used."""
    fields = pathlib.Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def test_at_the_limit_of_descriptors_the_served_stay_served_and_it_recovers(
    tmp_path: pathlib.Path,
) -> None:
    limit = f"--nofile={DESCRIPTORS}:{DESCRIPTORS}"
    with Daemon(tmp_path, prefix=["prlimit", limit]) as daemon, Client(daemon) as client:
        client.put("/a.json", 0)
        listener = Listener(client, "/a.json")
        with listener, contextlib.ExitStack() as stack:
            wires = [stack.enter_context(Wire(daemon.http)) for _ in range(CONNECTIONS)]
            for number in range(1, 20):
                client.put("/a.json", number)
                assert client.get("/a.json") == number
            before = cpu_s(daemon.pid)
            wires[0].has_response(2)
            assert cpu_s(daemon.pid) - before < 2 * MAX_CPU_SHARE
            assert len(os.listdir(f"/proc/{daemon.pid}/fd")) <= DESCRIPTORS
            assert listener.wait_until(lambda: listener.received[-1].value == 19)
        assert daemon.request("GET", "/a.json").json == 19
        assert "Traceback" not in daemon.log


# The clock


@pytest.fixture
def clocked(tmp_path: pathlib.Path) -> Iterator[tuple[Daemon, pathlib.Path]]:
    """A daemon and the file that says how far its wall clock is off."""
    assert FAKETIME is not None
    offset = tmp_path / "offset"
    offset.write_text("+0\n")
    daemon = configured(tmp_path, FREQUENT)
    daemon.prefix = [
        "env",
        f"LD_PRELOAD={FAKETIME}",
        f"FAKETIME_TIMESTAMP_FILE={offset}",
        "FAKETIME_NO_CACHE=1",
        "DONT_FAKE_MONOTONIC=1",
    ]
    with daemon:
        yield daemon, offset


def test_steps_of_the_clock_disturb_no_stream_and_push_ids_still_increase(
    clocked: tuple[Daemon, pathlib.Path],
) -> None:
    daemon, offset = clocked
    with Client(daemon) as client, EventStream(client, "/quiet.json") as stream:
        stream.next_change()
        pushed: list[str] = []
        times: list[int] = []
        for step in ("+0", "-3600", "+7200"):
            (offset.with_suffix(".new")).write_text(f"{step}\n")
            offset.with_suffix(".new").replace(offset)
            client.put("/time.json", {".sv": "timestamp"})
            times.append(client.get("/time.json"))
            for _ in range(5):
                pushed.append(client.request("POST", "/list.json", "1").json["name"])
            frame = stream.next_frame()
            assert frame is not None
            assert frame.event == KEEP_ALIVE
        assert times[1] < times[0] - 3_000_000
        assert times[2] > times[0] + 6_000_000
        assert pushed == sorted(set(pushed))
        assert "Traceback" not in daemon.log
