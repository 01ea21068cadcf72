"""The measurements run and print their rows, with the smallest load; no time is asserted."""

from __future__ import annotations

import contextlib
import json
import os
import pathlib
import platform
import random
import re
import shutil
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from tests.examples import examples
from tests.fork_server import SHARED, ForkedProcess, fork_server

BENCH = pathlib.Path(__file__).parent.parent / "bench"
RATE = r"[0-9,]+/s"
RATIO = r"[0-9]+\.[0-9]{2}"
STORE_TASKS = (
    "load|whole read|one record read|one leaf read|one record replaced|one leaf updated"
    "|record replaced, batched|leaf updated, batched"
)
ATTACKS = [
    name
    for file in BENCH.glob("attacks_*.py")
    for name in re.findall(r'^@attack\("([^"]+)"', file.read_text(), re.MULTILINE)
]
CHOSEN = random.sample(ATTACKS, examples(len(ATTACKS)))
"""Attacks that this run makes: what it does not draw a later one does."""
SMALLEST = {
    "attackers.py": ("--quick", f"--only=^({'|'.join(map(re.escape, CHOSEN))})$"),
    "backups.py": ("--rounds=1", "--connections=2"),
    "big_trees.py": ("--records=200", "--small=50", "--rounds=1", "--samples=1"),
    "bit_flips.py": ("--flips=4", "--records=200"),
    "crashes.py": ("--rounds=1", "--records=500"),
    "expiry.py": ("--nodes=20", "--rate=20", "--seconds=1", "--rounds=3"),
    "held.py": ("--only=idle_connections", "--share=50"),
    "histories.py": ("--rounds=2", "--operations=300", "--cut-every=100", "--kill-every=150"),
    "import_kills.py": ("--command=faults", "--rounds=1", "--sizes=1000"),
    "loading.py": ("--records=20", "--rounds=1"),
    "memory.py": ("--kept-mib=1",),
    "move_kills.py": ("--rounds=1", "--sizes=1000", "--kills=1"),
    "neighbours.py": ("--scale=0.0005", "--seconds=0.5"),
    "postgresql_store.py": ("--commits=2", "--rounds=1"),
    "presence.py": ("--rounds=1",),
    "presence_over_postgresql.py": ("--rounds=1", "--only=in"),
    "rules.py": ("--seconds=0.1", "--rounds=1"),
    "run_on.py": ("--events=60", "--paths=6", "--kills=1", "--hang=1000"),
    "schemathesis_run.py": ("--seconds=1", "--sender=admin"),
    "sockets.py": ("--sockets=20", "--seconds=0.1"),
    "soak.py": ("--minutes=0.05", "--clients=4", "--rate=80", "--samples=4"),
    "standby.py": ("--rounds=1", "--kinds=cut"),
    "store.py": ("--records=20", "--operations=2", "--rounds=1"),
    "streams.py": ("--listeners=2", "--events=4", "--seconds=0.1", "--rounds=1", "--fan-out=9"),
    "watched_queries.py": ("--items=50", "--seconds=0.1", "--rounds=1", "--most=1"),
    "webhooks.py": ("--events=40", "--paths=4", "--kills=1", "--away=0"),
    "worker_kills.py": ("--kills=1", "--operations=480"),
    "workers.py": ("--seconds=0.2", "--rounds=1", "--streams=8"),
}
ROWS = [
    ("attackers.py", r".{36}(?: +[0-9.]+){8}(?: +[+-][0-9]+){3}(?!.*ended by).*", len(CHOSEN)),
    ("backups.py", r"1 backups, each of one moment: median [0-9.]+ s, [0-9,]+ writes/s .*", 1),
    (
        "big_trees.py",
        r"(first )?(point|record|limitTo|orderBy|equalTo|page|shallow|append).* +[0-9.]+",
        13,
    ),
    ("big_trees.py", r"(big|small): [0-9]+ records imported in .* MB/s, .*", 2),
    ("big_trees.py", r"(start after a kill|memory).*: [0-9.]+ (s|MiB)", 3),
    ("bit_flips.py", r"answers: \{.*'right': [0-9]+.*\}", 1),
    ("crashes.py", r"[A-Za-z]+ +[0-9]+ killed in the middle, [0-9]+ whole; nothing lost", 5),
    ("held.py", r"idle_connections +-?[0-9.]+ MiB held, +-?[0-9.]+ MiB left .*", 1),
    ("expiry.py", r"a PUT with a \.ttl \((seconds|at)\), beside one without: [0-9.]+", 2),
    ("expiry.py", r"20 nodes a second: 20 of 20 went, late by .*", 1),
    ("expiry.py", rf"a PUT beside 20 nodes that go, .* meanwhile, ratio {RATIO}", 3),
    ("histories.py", r"round [0-9]: [0-9.]+ s, judged in [0-9.]+ s", 2),
    ("histories.py", r"stream [01]: [0-9]+ events in order, 0 restarts", 4),
    ("histories.py", r"no violation in 600 operations", 1),
    ("import_kills.py", r" +1,000 bytes: 1 rounds, [01] of .* MB, every read was right", 1),
    ("move_kills.py", r" +1,000 bytes: 1 rounds, [0-2] of .* refused, nothing lost", 1),
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
    ("run_on.py", r"60 events in order in .* s, .* twice", 1),
    ("schemathesis_run.py", r"admin \(seed 1\): [0-9]+ requests in [0-9]+ s; 200: .*", 1),
    ("schemathesis_run.py", r"[0-9]+ requests, no failure", 1),
    ("soak.py", r"level, nothing lost, no traceback, no token", 1),
    ("soak.py", r" *[0-9]+ s +[0-9.]+ MB +[0-9]+ descriptors +[0-9]+ threads +[0-9]+ files", 4),
    ("standby.py", r"cut +1 rounds, median [0-9.]+ s", 1),
    ("standby.py", r"1 rounds, nothing lost that was said to be there", 1),
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
    ("streams.py", rf"fan-out to 9 listeners (in plain|over TLS): {RATE}, .*", 2),
    ("watched_queries.py", rf"(1 plain|[0-9]+ queries).* +[0-9.]+ +{RATIO} +[0-9.]+ +[0-9.]+", 3),
    ("watched_queries.py", rf"1000 writes at once, .*: [0-9.]+ s, ratio {RATIO}", 3),
    ("webhooks.py", rf"40 events accepted in [0-9.]+ s: {RATE} .*", 1),
    ("webhooks.py", r"40 events to a bad receiver, 1 kills: .*; each came, in order", 1),
    ("worker_kills.py", r"1 holder, 1 other, 1 parent", 1),
    ("worker_kills.py", r"nothing acknowledged was lost, and nothing was left", 1),
    ("workers.py", rf"(GET|PUT|events).* +[12] workers +{RATE} .*", 8),
    ("workers.py", rf"(GET|PUT|events).* +ratio {RATIO} +alone {RATIO} +cost {RATIO}", 4),
    ("streams.py", r"an idle stream, (plain|tls): -?[0-9]+\.[0-9] KiB \(aim [0-9.]+\)", 2),
    ("streams.py", rf"2 streams on one core: {RATE} events, .* p99 [0-9.]+ ms, alone .*", 1),
    ("sockets.py", rf"20 sockets that listen on one core: {RATE} events, .* alone .*", 1),
]


AIMS = {
    "GET 50 B, repeated": 6.5,
    "GET 100 B, 200 leaves at random": 3,
    "GET 100 B, first read": None,
    "GET 10 KB, repeated": 5,
    "GET 10 KB, first read": 2,
    "GET 1 MB, repeated": 0.25,
    "GET 1 MB, first read": 0.1,
    "GET 50 B, token and rules, one user": 3.5,
    "GET 50 B, token and rules, 2 users": 3.5,
    "GET 50 B beside 200 writes a second": 0.9,
    "query 10 of 100, repeated": 2.5,
    "query 10 of 100, each new": 1.0,
    "query 10 of 100 by index, each new": 1.0,
    "query 50 of 200 by index, each new": 0.5,
    "PUT 50 B, one path": 1.6,
    "PUT 50 B, paths at random": 1.6,
    "PUT 50 B, one connection": 0.7,
    "PUT, token and rules": 1.2,
    "PATCH of 10 paths": 0.9,
    "POST": 1.2,
    "TLS GET 50 B": 3.5,
    "TLS GET 1 MB": 0.2,
    "new TLS connection for each GET": 0.3,
    "events to 2 streams": 18,
    "events to 2 sockets": 0.95,
    "import of 0.01 MB, running daemon": 15,
    "PUT of 1 database, one worker": None,
    "PUT of 1 database, two workers": 1.6,
    "PUT of 4 databases, one worker": None,
    "PUT of 4 databases, two workers": 1.7,
}
REFERENCES = {  # what rows are compared with
    "Klein, 50 B",
    "twisted.web, 50 B",
    "floor, 50 B",
    "floor, 10 KB",
    "floor, 1 MB",
    "floor, query",
    "floor, TLS, 50 B",
    "floor, TLS, 1 MB",
    "floor, new TLS connection",
    "disk, a sync of 4 KB",
    "SQLite, a row a commit",
    "SQLite, 32 rows a commit",
}
TINY = ("--seconds=0.05", "--rounds=1", "--records=200", "--streams=2", "--import-mb=0.01")
MEASURE = """
import sys, load, servers
load.WAIT_S = 0.1
load.measure(sys.argv[1], 1, 0.1, servers.LOAD_CORE)
"""
TABLE = """
from cases import KLEIN, Case
from load import Sample
from record import make_rows, print_tables, print_verdict

def samples(busy, *rates):
    return [Sample(rate, 1.0, 2.0, busy, us=1e6 / rate) for rate in rates]

cases = [
    Case(KLEIN, None, is_reference=True),
    Case("fast", None, 3),
    Case("slow", None, 3, floor="fast"),
    Case("change", None, 0.9, of="fast", is_change=True),
]
rounds = {
    KLEIN: [samples(0.1, 100, 50, 100)],
    "fast": [samples(0.95, 500, 500, 100), samples(0.95, 250, 250, 100)],
    "slow": [samples(0.1, 200, 200, 200), samples(0.1, 400, 100, 400)],
    "change": [samples(0.1, 400, 400, 80), samples(0.1, 250, 250, 100)],
}
rows = make_rows(cases, rounds)
print_tables(rows, markdown=True)
print_verdict(rows)
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
    """Run a program in the folder, forked like its daemons by the server of this process.

    Its standard input is what it asks the server by.
    """
    program = words if words[0] == "-c" else (str(BENCH / words[0]), *words[1:])
    server = fork_server()
    with tempfile.TemporaryFile() as output, tempfile.TemporaryFile() as errors:
        standard = [os.dup(each) for each in (server.descriptor, output.fileno(), errors.fileno())]
        pid = server.fork([sys.executable, *program], BENCH, standard, {SHARED: "0"})
        status = ForkedProcess(server, pid).wait()
        output.seek(0)
        errors.seek(0)
        return subprocess.CompletedProcess(
            words, status, output.read().decode(), errors.read().decode()
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


def run_rates(record: pathlib.Path, *words: str) -> tuple[str, Any]:
    done = run("rates.py", *TINY, *words, f"--record={record}")
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout, json.loads(record.read_text())


@pytest.fixture(scope="module")
def rates(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, Any]:
    """What the rates print and record, each case measured once and shortly."""
    return run_rates(tmp_path_factory.mktemp("rates") / "record.json", "--markdown")


def test_all_rates_are_measured_and_compared_in_the_same_round(rates: tuple[str, Any]) -> None:
    _, record = rates
    rows = {row["name"]: row for row in record["rows"]}
    assert record["rounds"].keys() == rows.keys() == AIMS.keys() | REFERENCES
    rate = {name: sample["rate"] for name, (sample,) in record["rounds"].items()}
    for name, (sample,) in record["rounds"].items():
        assert sample["rate"] > 0, name
        of = rows[name]["of"]
        assert rows[name]["figure"] == (rate[name] / rate[of] if of else rate[name])
        if of:
            assert 0 < sample["p50_ms"] <= sample["p99_ms"], name
    small = rows["GET 50 B, repeated"]["floor"]
    assert small == rate["GET 50 B, repeated"] / rate["floor, 50 B"]
    assert {name: rows[name]["aim"] for name in AIMS} == AIMS
    assert record["others"]["an idle stream"].keys() == {"plain", "tls"}
    assert record["others"]["memory at rest"].keys() == {"now"}


def test_what_a_row_is_compared_with_is_what_its_name_says(rates: tuple[str, Any]) -> None:
    rows = {row["name"]: row for row in rates[1]["rows"]}
    compared = {name: row["of"] for name, row in rows.items() if row["of"] != "Klein, 50 B"}
    assert compared == {
        "GET 50 B beside 200 writes a second": "GET 50 B, repeated",
        "PUT 50 B, one connection": "SQLite, a row a commit",
        "events to 2 sockets": "events to 2 streams",
        "import of 0.01 MB, running daemon": None,
        "PUT of 1 database, two workers": "PUT of 1 database, one worker",
        "PUT of 4 databases, two workers": "PUT of 4 databases, one worker",
    }
    without_floor = {name for name in AIMS if rows[name]["floor"] is None}
    assert not {name for name in without_floor if name.startswith(("GET 1", "TLS", "PUT 50"))}


def test_writes_beside_reads_arrive_at_their_rate(rates: tuple[str, Any]) -> None:
    (sample,) = rates[1]["rounds"]["GET 50 B beside 200 writes a second"]
    assert 0 < sample["beside"] <= 300


def test_the_time_of_the_process_of_a_daemon_is_measured(rates: tuple[str, Any]) -> None:
    rounds = rates[1]["rounds"]
    several = {name for name in AIMS if "worker" in name}
    assert {name for name in AIMS if not rounds[name][0]["us"]} <= several


def test_the_rates_are_printed_as_a_table_of_markdown(rates: tuple[str, Any]) -> None:
    printed, record = rates
    lines = [line for line in printed.splitlines() if line.startswith("| ")]
    names = [line.split(" | ")[0][2:] for line in lines if not line.startswith("| --- ")]
    ours = [name for name in AIMS if name in names]
    assert names == ["", *ours, "", *(row["name"] for row in record["rows"] if row["is_reference"])]
    assert {row["name"] for row in record["rows"] if row["is_reference"]} == REFERENCES
    assert [line.count(" | ") for line in lines] == [6] * (len(ours) + 2) + [3] * 14
    shown = {line.split(" | ")[0][2:]: line.split(" | ")[1:] for line in lines}
    change = shown["GET 50 B beside 200 writes a second"]
    assert re.fullmatch(r"[+-][0-9]+ %", change[0])
    assert change[3] == "-10 %"
    units = {name: cells[0].partition(" ")[2] for name, cells in shown.items()}
    assert units["PUT 50 B, one connection"] == "of SQLite"
    assert units["import of 0.01 MB, running daemon"] == "MB/s"
    assert units["PUT of 4 databases, two workers"].endswith("of one worker")


def test_a_record_says_what_its_rates_depend_on(rates: tuple[str, Any]) -> None:
    _, record = rates
    assert record["machine"]["cores"] == os.cpu_count()
    assert record["machine"]["python"] == platform.python_version()
    assert record["machine"].keys() >= {"processor", "kernel", "openssl", "date", "commit"}
    parameters = {"seconds": 0.05, "rounds": 1, "records": 200, "streams": 2, "import_mb": 0.01}
    assert record["parameters"] == parameters


def test_only_the_rates_that_are_asked_for_are_measured(tmp_path: pathlib.Path) -> None:
    _, record = run_rates(tmp_path / "record.json", "--only=^PUT 50 B, one")
    assert [row["name"] for row in record["rows"]] == [
        "Klein, 50 B",
        "disk, a sync of 4 KB",
        "SQLite, a row a commit",
        "SQLite, 32 rows a commit",
        "PUT 50 B, one path",
        "PUT 50 B, one connection",
    ]


def test_a_checkout_beside_is_measured_in_the_same_rounds(tmp_path: pathlib.Path) -> None:
    beside = tmp_path / "beside"
    beside.mkdir()
    for name in ("treedbd", "twisted"):
        shutil.copytree(BENCH.parent / name, beside / name)
    started = tmp_path / "started"
    with open(beside / "treedbd" / "tap.py", "a") as tap:
        tap.write(f"import pathlib\npathlib.Path({str(started)!r}).touch()\n")
    printed, record = run_rates(
        tmp_path / "record.json", "--only=^GET 50 B, repeated", f"--beside={beside}"
    )
    (now,) = record["rounds"]["GET 50 B, repeated"]
    (before,) = record["before"]["GET 50 B, repeated"]
    (row,) = (row for row in record["rows"] if row["name"] == "GET 50 B, repeated")
    (klein,) = record["rounds"]["Klein, 50 B"]
    assert started.exists()
    assert row["faster"] == now["rate"] / before["rate"]
    assert row["before"] == before["rate"] / klein["rate"]
    assert record["before"].keys() == {"GET 50 B, repeated"}
    assert "after : before" in printed


def test_a_row_has_medians_of_the_ratios_of_each_round() -> None:
    done = run("-c", TABLE)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[2:5] == [
        "| fast | ≥ 5.00 | 1.00 | 2.00 | 3 |  | 2000 | 2.50 | 2.00 | 2.00 |",
        "| slow | 2.00 | 1.00 | 2.00 | 3 | 0.40 | 5000 | 4.00 | 0.50 | 0.50 |",
        "| change | -20 % | 1.00 | 2.00 | -10 % |  | 2500 | +0 % | 1.60 | 1.60 |",
    ]
    below, slower = done.stderr.splitlines()
    assert below == "below the aim: slow; change"
    assert slower == "slower than 0.97: slow (0.50; us 0.50)"


def test_a_server_that_does_not_start_says_why() -> None:
    done = run("-c", "import servers\nwith servers.serve('sh', '-c', 'echo no disk'): pass")
    assert done.returncode == 1
    assert re.search("RuntimeError: The server has ended:\nno disk", done.stderr), done.stderr


def test_what_is_no_checkout_is_not_measured(tmp_path: pathlib.Path) -> None:
    done = run("rates.py", *TINY, f"--beside={tmp_path}")
    assert done.returncode == 2
    assert "is not a checkout of treedb" in done.stderr


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
