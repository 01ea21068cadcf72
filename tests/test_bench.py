"""The measurements run and print their rows, with the smallest load; no time is asserted."""

from __future__ import annotations

import contextlib
import os
import pathlib
import re
import shutil
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator

import pytest

BENCH = pathlib.Path(__file__).parent.parent / "bench"
RATE = r"[0-9,]+/s"
RATIO = r"[0-9]+\.[0-9]{2}"
STORE_TASKS = (
    "load|whole read|one record read|one leaf read|one record replaced|one leaf updated"
    "|record replaced, batched|leaf updated, batched"
)
SMALLEST = {
    "rates.py": ("--seconds=0.1", "--rounds=1"),
    "rules.py": ("--seconds=0.1", "--rounds=1"),
    "store.py": ("--records=20", "--operations=2", "--rounds=1"),
    "streams.py": ("--listeners=2", "--events=4", "--seconds=0.1", "--rounds=1"),
}
ROWS = [
    ("rates.py", rf"GET (50 B|10 KB|1 MB), (treedb|Klein|twisted\.web) +{RATE}", 9),
    ("rates.py", rf"PUT durable, (1|32) connections? +{RATE}", 2),
    ("rates.py", rf"GET (50 B|10 KB|1 MB): treedb is {RATIO} of (Klein|twisted\.web)", 6),
    ("rates.py", rf"PUT durable, (1|32) connections?: {RATIO} of GET 50 B", 2),
    (
        "rules.py",
        rf"(GET|PUT), (1|32) connections? .* {RATE} with rules and a token: {RATIO} .*",
        3,
    ),
    ("store.py", rf"({STORE_TASKS}) .* {RATIO}", 8),
    ("store.py", rf"bytes on disk .* {RATIO}", 1),
    ("streams.py", rf"(one path|N paths) +2  (treedb|twisted\.web) +{RATE} .* {RATIO} +{RATIO}", 4),
    ("streams.py", rf"PUT, 32 connections: {RATE} alone, {RATE} beside 2 listeners .*: {RATIO}", 1),
    ("streams.py", r"an idle stream (in plain|over TLS): -?[0-9]+\.[0-9] KiB \(aim [0-9]+\)", 2),
]


MEASURE = """
import sys, load, servers
load.WAIT_S = 0.1
load.measure(sys.argv[1], 1, 0.1, servers.LOAD_CORE)
"""


@pytest.fixture(scope="module")
def without_wrk(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """An environment without `wrk`, so that our own client makes the load."""
    programs = tmp_path_factory.mktemp("programs")
    if taskset := shutil.which("taskset"):
        (programs / "taskset").symlink_to(taskset)
    return {**os.environ, "PATH": str(programs)}


def run(environment: dict[str, str], *words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *words],
        cwd=BENCH,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.parametrize("script", SMALLEST)
def test_a_measurement_prints_all_its_rows(script: str, without_wrk: dict[str, str]) -> None:
    done = run(without_wrk, script, *SMALLEST[script])
    assert done.returncode == 0, done.stdout + done.stderr
    for name, pattern, count in ROWS:
        if name == script:
            rows = re.findall(f"^{pattern}$", done.stdout, re.MULTILINE)
            assert len(rows) == count, f"{pattern}\n{done.stdout}"


@contextlib.contextmanager
def responding(response: bytes) -> Iterator[str]:
    """Send `response` to one request, on a port of this machine; nothing at all if it is empty."""

    def serve() -> None:
        connection, _ = listening.accept()
        with connection:
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
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", "no Content-Length"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhal", "closed a connection"),
    ],
    ids=["no response", "error status", "no length", "cut off"],
)
def test_a_load_with_bad_responses_is_an_error(
    response: bytes, problem: str, without_wrk: dict[str, str]
) -> None:
    with responding(response) as url:
        done = run(without_wrk, "-c", MEASURE, url)
    assert done.returncode == 1
    assert re.search(f"RuntimeError: .*{problem}", done.stderr), done.stderr
