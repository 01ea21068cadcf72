"""The measurements run and print their rows, with the smallest load; no time is asserted."""

from __future__ import annotations

import contextlib
import json
import os
import pathlib
import platform
import re
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from typing import Any

import pytest

BENCH = pathlib.Path(__file__).parent.parent / "bench"
RATE = r"[0-9,]+/s"
RATIO = r"[0-9]+\.[0-9]{2}"
STORE_TASKS = (
    "load|whole read|one record read|one leaf read|one record replaced|one leaf updated"
    "|record replaced, batched|leaf updated, batched"
)
SMALLEST = {
    "attackers.py": ("--quick",),
    "backups.py": ("--rounds=1", "--connections=2"),
    "big_trees.py": ("--records=200", "--small=50", "--rounds=1", "--samples=1"),
    "bit_flips.py": ("--flips=4", "--records=200"),
    "crashes.py": ("--rounds=1", "--records=500"),
    "held.py": ("--only=idle_connections", "--share=50"),
    "histories.py": ("--rounds=2", "--operations=300", "--cut-every=100", "--kill-every=150"),
    "import_kills.py": ("--command=faults", "--rounds=1", "--sizes=1000"),
    "loading.py": ("--records=20", "--rounds=1"),
    "memory.py": ("--kept-mib=1",),
    "move_kills.py": ("--rounds=1", "--sizes=1000"),
    "neighbours.py": ("--scale=0.0005", "--seconds=0.5"),
    "postgresql_store.py": ("--commits=2", "--rounds=1"),
    "presence.py": ("--rounds=1",),
    "presence_over_postgresql.py": ("--rounds=1", "--only=in"),
    "rules.py": ("--seconds=0.1", "--rounds=1"),
    "schemathesis_run.py": ("--seconds=1", "--sender=admin"),
    "sockets.py": ("--sockets=100",),
    "soak.py": ("--minutes=0.1", "--clients=4", "--rate=80", "--samples=4"),
    "store.py": ("--records=20", "--operations=2", "--rounds=1"),
    "streams.py": ("--listeners=2", "--events=4", "--seconds=0.1", "--rounds=1"),
    "watched_queries.py": ("--items=50", "--seconds=0.1", "--rounds=1", "--most=1"),
    "worker_kills.py": ("--kills=1", "--operations=700"),
    "workers.py": ("--seconds=1", "--rounds=1", "--streams=8"),
}
ATTACKS = 171
ROWS = [
    ("attackers.py", r".{36}(?: +[0-9.]+){8}(?: +[+-][0-9]+){3}(?!.*ended by).*", ATTACKS),
    ("backups.py", r"1 backups, each of one moment: median [0-9.]+ s, [0-9,]+ writes/s .*", 1),
    ("big_trees.py", r"(point|record|limitTo|orderBy|equalTo|page|shallow|append).* +[0-9.]+", 8),
    ("bit_flips.py", r"answers: \{.*'right': [0-9]+.*\}", 1),
    ("crashes.py", r"[A-Za-z]+ +[0-9]+ killed in the middle, [0-9]+ whole; nothing lost", 5),
    ("held.py", r"idle_connections +-?[0-9.]+ MiB held, +-?[0-9.]+ MiB left .*", 1),
    ("histories.py", r"round [0-9]: [0-9.]+ s, judged in [0-9.]+ s", 2),
    ("histories.py", r"stream [01]: [0-9]+ events in order, 0 restarts", 4),
    ("histories.py", r"no violation in 600 operations", 1),
    ("import_kills.py", r" +1,000 bytes: 1 rounds, [01] of .* MB, every read was right", 1),
    ("move_kills.py", r" +1,000 bytes: 1 rounds, [0-6] of .* refused, nothing lost", 1),
    (
        "neighbours.py",
        r"(nothing|PUT|250|index|PATCH|import|DELETE|message:|28) .*(MB|x)( .*)?",
        16,
    ),
    ("loading.py", r"sqlite3 \.import +[0-9.]+ +1\.00 *", 1),
    ("loading.py", r"(im|ex)port(, ndjson| --data)? +[0-9.]+ +[0-9.]+ +[0-9]+", 6),
    (
        "memory.py",
        r"(at rest|after some requests|with 1 MiB of kept answers) +[0-9]+\.[0-9] MB",
        3,
    ),
    ("postgresql_store.py", rf"(1|32) rows per commit +[0-9]+ us +[0-9]+ us +{RATIO} +{RATIO}", 2),
    (
        "rules.py",
        rf"(GET|PUT), (1|32) connections? .* {RATE} with rules and a token: {RATIO} .*",
        3,
    ),
    ("schemathesis_run.py", r"admin \(seed 1\): [0-9]+ requests in [0-9]+ s; 200: .*", 1),
    ("schemathesis_run.py", r"[0-9]+ requests, no failure", 1),
    ("soak.py", r"level, nothing lost, no traceback, no token", 1),
    ("soak.py", r" *[0-9]+ s +[0-9.]+ MB +[0-9]+ descriptors +[0-9]+ threads +[0-9]+ files", 4),
    ("store.py", rf"({STORE_TASKS}) .* {RATIO}", 8),
    ("store.py", rf"bytes on disk .* {RATIO}", 1),
    (
        "presence.py",
        r"(closed|left|killed|cut|back|stopped|crashed) +1 rounds, online right .* s",
        7,
    ),
    ("presence_over_postgresql.py", r"in +1 rounds, written once in each: median .* s", 1),
    (
        "sockets.py",
        r"an idle socket(| with a listen), (plain|tls): -?[0-9.]+ KiB \(aim [0-9]+\)",
        4,
    ),
    ("streams.py", rf"(one path|N paths) +2  (treedb|twisted\.web) +{RATE} .* {RATIO} +{RATIO}", 4),
    ("streams.py", rf"PUT, 32 connections: {RATE} alone, {RATE} beside 2 listeners .*: {RATIO}", 1),
    ("streams.py", rf"fan-out to 1,000 listeners (in plain|over TLS): {RATE}, .*", 2),
    ("watched_queries.py", rf"(1 plain|[0-9]+ queries).* +[0-9.]+ +{RATIO} +[0-9.]+ +[0-9.]+", 3),
    ("watched_queries.py", rf"1000 writes at once, .*: [0-9.]+ s, ratio {RATIO}", 3),
    ("worker_kills.py", r"1 holder, 1 other, 1 parent", 1),
    ("worker_kills.py", r"nothing acknowledged was lost, and nothing was left", 1),
    ("workers.py", rf"(GET|PUT|events).* +[12] workers +{RATE} .*", 8),
    ("workers.py", rf"(GET|PUT|events).* +ratio {RATIO} +alone {RATIO} +cost {RATIO}", 4),
    ("streams.py", r"an idle stream, (plain|tls): -?[0-9]+\.[0-9] KiB \(aim [0-9.]+\)", 2),
]


AIMS = {
    "GET 50 B": 6,
    "GET 10 KB, 109 children": 5,
    "GET 1 MB, 11,000 children": 0.25,
    "the 10 KB, first read": 2,
    "the 1 MB, first read": 0.1,
    "GET 50 B, token and rules": 3.5,
    "PUT 50 B, synced": 1.6,
    "PUT, token and rules": 1.2,
    "query, 10 of 100, repeated": 2.5,
    "query, 10 of 100, first time": 1.0,
    "TLS GET 50 B": 3.5,
    "TLS GET 1 MB": 0.2,
    "new TLS connection for each GET": 0.3,
    "fan-out, events, 2 streams": 22,
}
MEASURE = """
import sys, load, servers
load.WAIT_S = 0.1
load.measure(sys.argv[1], 1, 0.1, servers.LOAD_CORE)
"""
STEPS = """
import operator, pkgutil, sys
sys.path.append("..")
import import_kills, move_kills
steps = [
    *(import_kills.ONLINE_STEPS + import_kills.OFFLINE_STEPS + import_kills.MIGRATION_STEPS),
    *(move_kills.IN_STEPS + move_kills.OUT_STEPS),
]
print(sum(callable(pkgutil.resolve_name(step)) for step in steps))
"""


def run(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *words], cwd=BENCH, capture_output=True, text=True, check=False
    )


def test_the_steps_at_which_a_script_kills_a_command_are_there() -> None:
    done = run("-c", STEPS)
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) > 40


@pytest.mark.parametrize("script", SMALLEST)
def test_a_measurement_prints_all_its_rows(script: str) -> None:
    done = run(script, *SMALLEST[script])
    assert done.returncode == 0, done.stdout + done.stderr
    for name, pattern, count in ROWS:
        if name == script:
            rows = re.findall(f"^{pattern}$", done.stdout, re.MULTILINE)
            assert len(rows) == count, f"{pattern}\n{done.stdout}"


@pytest.fixture(scope="module")
def rates(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, Any]:
    """What the rates print and record, each case measured once and shortly."""
    record = tmp_path_factory.mktemp("rates") / "record.json"
    smallest = ("--seconds=0.05", "--rounds=1", "--streams=2", "--markdown")
    done = run("rates.py", *smallest, f"--record={record}")
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout, json.loads(record.read_text())


def test_all_rates_are_measured_and_compared_in_the_same_round(rates: tuple[str, Any]) -> None:
    _, record = rates
    (klein,) = record["rounds"]["Klein, 50 B"]
    rows = {row["name"]: row for row in record["rows"]}
    for name, (sample,) in record["rounds"].items():
        assert sample["rate"] > 0, name
        assert 0 < sample["p50_ms"] <= sample["p99_ms"], name
        assert rows[name]["klein"] == sample["rate"] / klein["rate"]
    small, floor = (record["rounds"][name][0]["rate"] for name in ("GET 50 B", "floor, 50 B"))
    assert rows["GET 50 B"]["floor"] == small / floor
    assert set(AIMS) <= set(rows)
    assert {name: rows[name]["aim"] for name in AIMS} == AIMS
    assert record["streams"]["idle stream, KiB"].keys() == {"plain", "tls"}


def test_the_rates_are_printed_as_a_table_of_markdown(rates: tuple[str, Any]) -> None:
    printed, record = rates
    lines = [line for line in printed.splitlines() if line.startswith("| ")]
    assert [line.split(" | ")[0][2:] for line in lines[2:]] == [
        row["name"] for row in record["rows"]
    ]
    assert {line.count(" | ") for line in lines} == {5}


def test_a_record_says_what_its_rates_depend_on(rates: tuple[str, Any]) -> None:
    _, record = rates
    assert record["machine"]["cores"] == os.cpu_count()
    assert record["machine"]["python"] == platform.python_version()
    assert record["machine"].keys() >= {"processor", "kernel", "openssl", "date", "commit"}
    assert record["parameters"] == {"seconds": 0.05, "rounds": 1, "streams": 2}


def test_only_the_rates_that_are_asked_for_are_measured(tmp_path: pathlib.Path) -> None:
    record = tmp_path / "record.json"
    done = run(
        "rates.py", "--seconds=0.05", "--rounds=1", "--only=^GET 50 B$", f"--record={record}"
    )
    assert done.returncode == 0, done.stdout + done.stderr
    rows = json.loads(record.read_text())["rows"]
    assert [row["name"] for row in rows] == ["Klein, 50 B", "floor, 50 B", "GET 50 B"]


@contextlib.contextmanager
def responding(response: bytes) -> Iterator[str]:
    """Send `response` to one request, on a port of this machine; nothing at all if it is empty."""

    def serve() -> None:
        connection, _ = listening.accept()
        with connection, contextlib.suppress(ConnectionResetError):
            while connection.recv(65_536):
                if response:
                    connection.sendall(response)
                    return

    with socket.create_server(("127.0.0.1", 0)) as listening:
        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        yield f"http://127.0.0.1:{listening.getsockname()[1]}/"
        thread.join()


@pytest.mark.parametrize(
    ("response", "problem"),
    [
        (b"", "answered nothing"),
        (b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n", "not a success: b'HTTP/1.1 404"),
        (b"HTTP/1.1 200 OK\r\nConnection: close\r\n\r\nhalf", "no Content-Length"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhal", "closed a connection"),
    ],
    ids=["no response", "error status", "no length", "cut off"],
)
def test_a_load_with_bad_responses_is_an_error(response: bytes, problem: str) -> None:
    with responding(response) as url:
        done = run("-c", MEASURE, url)
    assert done.returncode == 1
    assert re.search(f"RuntimeError: .*{problem}", done.stderr), done.stderr
