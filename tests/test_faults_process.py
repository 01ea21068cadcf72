"""Faults around a daemon: its clock jumps, it is stopped, descriptors and memory run out."""

from __future__ import annotations

import contextlib
import json
import os
import pathlib
import select
import signal
import time
from collections.abc import Iterator

import pytest

from tests.access import token, write_secret
from tests.daemon import FOREGROUND, Daemon
from tests.rest import Client, Wire, configured, print_request
from tests.sse import KEEP_ALIVE, EventStream, Listener
from tests.system import wait_until

CLIENTS = 20
DESCRIPTORS = 64
CONNECTIONS = 200
STALLED = 200
WATCHED_S = 1.0
"""Seconds in which a daemon at its limit is watched: nothing is sent to it."""
FAKETIME = next(iter(sorted(pathlib.Path("/usr/lib").glob("*/faketime/libfaketime.so.1"))), None)
FREQUENT = """
default_project = "shop"
[streams]
keep_alive_s = 1
[projects.shop]
rules_file = "open.json"
secret_files = ["shop.secret"]
"""


def test_a_daemon_that_was_stopped_answers_what_was_sent_meanwhile(tmp_path: pathlib.Path) -> None:
    with contextlib.ExitStack() as stack:
        # A program of its own makes it a child of this process, which can wait for the stop.
        daemon = stack.enter_context(Daemon(tmp_path, program=FOREGROUND))
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
        with Listener(client, "/a.json") as listener, contextlib.ExitStack() as stack:
            wires = [stack.enter_context(Wire(daemon.http)) for _ in range(CONNECTIONS)]
            for number in range(1, 20):
                client.put("/a.json", number)
                assert client.get("/a.json") == number
            before = cpu_s(daemon.pid)
            assert not select.select([wires[0].socket], [], [], WATCHED_S)[0]
            assert cpu_s(daemon.pid) - before < WATCHED_S / 2, "It accepts again and again."
            assert len(os.listdir(f"/proc/{daemon.pid}/fd")) <= DESCRIPTORS
            assert listener.wait_until(lambda: listener.received[-1].value == 19)
        wait_until(lambda: daemon.request("GET", "/a.json").json == 19)  # the wires have gone
        assert "Traceback" not in daemon.log


# Memory


def memory_kib(pid: int) -> int:
    """Return how much memory a process has mapped, in KiB."""
    status = pathlib.Path(f"/proc/{pid}/status").read_text()
    return int(status.partition("VmSize:")[2].split()[0])


def test_within_256_mb_streams_that_nobody_reads_leave_room_for_others(
    tmp_path: pathlib.Path,
) -> None:
    config = FREQUENT.replace("[streams]", "[streams]\nstalled_s = 600")
    write_secret(tmp_path, "shop")
    daemon = configured(tmp_path, config)
    with daemon:
        needed = memory_kib(daemon.pid)
        daemon.stop()
        daemon.prefix = ["prlimit", f"--as={(needed + 256 * 1024) * 1024}"]
        daemon.start()
        with Client(daemon) as client, contextlib.ExitStack() as stack:
            stalled = [
                stack.enter_context(EventStream(client, f"/s/{number % 20}.json"))
                for number in range(STALLED)
            ]
            for number in range(60):
                members = {f"{at}/k": f"{number} {'x' * 20_000}" for at in range(20)}
                assert client.request("PATCH", "/s.json", json.dumps(members)).status == 200
                assert client.get("/s/7/k.json").startswith(f"{number} ")
            for stream in (stalled[0], stalled[-1]):
                seen = iter(lambda: stream.next_change().data, None)  # noqa: B023
                assert any('"59 xxx' in data for data in seen)
        assert daemon.request("GET", "/s/0/k.json").json.startswith("59 ")
        assert "Traceback" not in daemon.log
        assert "MemoryError" not in daemon.log


# The clock


@pytest.fixture
def clocked(tmp_path: pathlib.Path) -> Iterator[tuple[Daemon, pathlib.Path]]:
    """A daemon and the file that says how far its wall clock is off."""
    assert FAKETIME is not None
    offset = tmp_path / "offset"
    offset.write_text("+0\n")
    write_secret(tmp_path, "shop")
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
        statuses: list[int] = []
        now = int(time.time())
        half_an_hour = token("shop", uid="ada", iat=now, exp=now + 1800)
        for step in ("+0", "-3600", "+7200"):
            (offset.with_suffix(".new")).write_text(f"{step}\n")
            offset.with_suffix(".new").replace(offset)
            client.put("/time.json", {".sv": "timestamp"})
            times.append(client.get("/time.json"))
            pushed += [client.request("POST", "/list.json", "1").json["name"] for _ in range(5)]
            statuses.append(client.request("GET", f"/quiet.json?auth={half_an_hour}").status)
            frame = stream.next_frame()
            assert frame is not None
            assert frame.event == KEEP_ALIVE
        assert times[1] < times[0] - 3_000_000
        assert times[2] > times[0] + 6_000_000
        assert pushed == sorted(set(pushed))
        assert statuses == [200, 401, 401]  # valid, not yet valid, expired
        assert "Traceback" not in daemon.log
