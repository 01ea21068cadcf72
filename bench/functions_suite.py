"""The local suite of Firebase with treedb as its database: functions called, and how soon.

    .venv/bin/python bench/functions_suite.py [--orders N]

The suite (`firebase emulators:start --only functions,database`, of the clients of the tests) starts
its database by the command `java`, which here is a script that starts treedb. It runs the eight
functions of `tests/clients/functions`, and each order is put, changed and removed, so each has 12
calls. The suite runs without a network. Its first call of each function starts a process.
"""

from __future__ import annotations

import argparse
import contextlib
import http.client
import json
import os
import pathlib
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from typing import Any

ROOT = pathlib.Path(__file__).resolve().parent.parent
CLIENTS = ROOT / "tests/clients"
PROJECT = "demo-x"
CALLS_OF_AN_ORDER = 12
SECONDS = 300

JAVA = """#!/bin/sh
case "$*" in *-version*) echo 'openjdk version "21"' >&2; exit 0;; esac
echo $$ > {folder}/treedb.pid
cd {folder} && PYTHONPATH={root} exec {python} -m treedbd serve --config treedb.toml
"""
CONFIG = """emulator = true
domains = ["localhost"]
default_project = "{project}"
data = "data"
listen = ["tcp:{database}:interface=127.0.0.1"]
[functions]
url = "http://127.0.0.1:{functions}"
[projects.{project}]
databases = "*"
"""


def free_ports(count: int) -> list[int]:
    """Return ports that nothing uses."""
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [each.getsockname()[1] for each in sockets]
    for each in sockets:
        each.close()
    return ports


def write_files(folder: pathlib.Path, ports: Sequence[int]) -> None:
    """Write the configurations of both, the functions, and the command that starts treedb."""
    database, functions, hub, logging = ports
    java = folder / "java"
    java.write_text(JAVA.format(folder=folder, root=ROOT, python=sys.executable))
    java.chmod(0o755)
    config = CONFIG.format(project=PROJECT, database=database, functions=functions)
    (folder / "treedb.toml").write_text(config)
    app = folder / "app"
    shutil.copytree(CLIENTS / "functions", app / "functions")
    (app / "functions/node_modules").symlink_to((CLIENTS / "node_modules").resolve())
    emulators = {
        "database": {"host": "127.0.0.1", "port": database},
        "functions": {"host": "127.0.0.1", "port": functions},
        "hub": {"port": hub},
        "logging": {"port": logging},
        "ui": {"enabled": False},
    }
    sources = [{"source": "functions", "codebase": "default"}]
    shown = json.dumps({"functions": sources, "emulators": emulators})
    (app / "firebase.json").write_text(shown)


def start(folder: pathlib.Path) -> subprocess.Popen[bytes]:
    """Start the suite."""
    program = CLIENTS / "node_modules/firebase-tools/lib/bin/firebase.js"
    command = ["node", str(program), "emulators:start", "--project", PROJECT]
    settings = {"PATH": f"{folder}:{os.environ['PATH']}", "HOME": str(folder)}
    settings["DATABASE_EMULATOR_BINARY_PATH"] = str(folder / "java")
    with (folder / "suite.log").open("wb") as log:
        return subprocess.Popen(
            [*command, "--only", "functions,database"],
            cwd=folder / "app",
            env={**os.environ, **settings},
            stdout=log,
            stderr=log,
            start_new_session=True,
        )


def stop(suite: subprocess.Popen[bytes], folder: pathlib.Path) -> None:
    """End the suite, and what it has started."""
    suite.send_signal(signal.SIGINT)
    with contextlib.suppress(subprocess.TimeoutExpired):
        suite.wait(20)
    for end, process in ((os.killpg, suite.pid), (os.kill, read_pid(folder))):
        with contextlib.suppress(ProcessLookupError):
            end(process, signal.SIGKILL)
    suite.wait()


def read_pid(folder: pathlib.Path) -> int:
    """Return the process of treedb."""
    return int((folder / "treedb.pid").read_text())


def request(port: int, method: str, path: str, value: Any = None) -> Any:
    """Send a request as the owner; return the answer, parsed."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
    body = None if value is None else json.dumps(value)
    connection.request(method, f"{path}.json?ns={PROJECT}", body, {"Authorization": "Bearer owner"})
    answer = json.loads(connection.getresponse().read())
    connection.close()
    return answer


def wait(what: str, is_done: Any) -> float:
    """Return the seconds until something is done."""
    began = time.monotonic()
    while time.monotonic() - began < SECONDS:
        try:
            if is_done():
                return time.monotonic() - began
        except OSError:
            pass
        time.sleep(0.1)
    raise SystemExit(f"{what} took more than {SECONDS} s.")


def steps_of(number: int) -> list[tuple[str, str, Any, int]]:
    """Return the writes of an order, and how many functions each calls."""
    path = f"/orders/o{number}"
    return [
        ("PUT", path, {"n": 1, "lines": [1, 2, 3]}, 4),
        ("PUT", path, {"n": 2, "lines": [1, 2]}, 4),
        ("DELETE", path, None, 4),
    ]


def write_orders(port: int, first: int, count: int) -> None:
    """Put, change and remove orders."""
    for number in range(first, first + count):
        for method, path, value, _ in steps_of(number):
            request(port, method, path, value)


def start_processes(port: int) -> float:
    """Have each function called once, a few at a time; return the seconds that takes.

    The emulator gives a process 30 seconds to start, so a slow machine must not start all at once.
    """
    began, wanted = time.monotonic(), 0
    for method, path, value, calls in steps_of(0):
        wanted += calls
        request(port, method, path, value)
        wait("The first calls", lambda: count_calls(port) >= wanted)  # noqa: B023
    return time.monotonic() - began


def count_calls(port: int) -> int:
    """Return how many calls of functions there were that ended."""
    seen = request(port, "GET", "/seen") or {}
    return sum(len(calls) for orders in seen.values() for calls in orders.values())


def main() -> None:
    """Start the suite, write orders, and print how long the calls of all functions take."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--orders", type=int, default=5)
    orders: int = parser.parse_args().orders
    with tempfile.TemporaryDirectory() as name:
        folder, ports = pathlib.Path(name), free_ports(4)
        write_files(folder, ports)
        suite = start(folder)
        try:
            log = folder / "suite.log"
            started = wait("The start", lambda: b"All emulators ready" in log.read_bytes())
            registered = request(ports[0], "GET", "/.settings/functionTriggers")
            print(f"started in {started:.1f} s, {len(registered)} functions registered")
            print(f"1 order: all functions called in {start_processes(ports[0]):.1f} s")
            began = time.monotonic()
            write_orders(ports[0], 1, orders)
            wanted = (1 + orders) * CALLS_OF_AN_ORDER
            wait("The calls", lambda: count_calls(ports[0]) >= wanted)
            took = time.monotonic() - began
            print(f"{orders} orders: {orders * CALLS_OF_AN_ORDER} calls in {took:.1f} s")
            print(f"{count_calls(ports[0]) - wanted} calls more than once")
        finally:
            stop(suite, folder)


if __name__ == "__main__":
    main()
