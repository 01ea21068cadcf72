"""Reads and writes in process, against the same over the REST interface of a daemon, in one run.

    .venv/bin/python bench/embedding.py

Both are one caller after another, and 64 at a time; both engines are files on the same disk. The
daemon has a process of its own; its client, which is Python too, sends a request on each of its
connections and then reads all responses. The ratio, the median of several rounds, says how many
times as many calls a second there are in process.
"""

from __future__ import annotations

import http.client
import statistics
import tempfile
import time
from collections.abc import Awaitable, Callable
from typing import Any

from servers import serve_treedb
from twisted.internet import reactor as installed_reactor
from twisted.internet.defer import Deferred, gatherResults
from twisted.internet.task import react
from twisted.internet.threads import deferToThread

from treedbd import LocalDatabase, Settings, TreeService

CALLS = 2000
ROUNDS = 5
AT_A_TIME = 64
CONFIG = """
default_project = "app"
[projects.app]
rules_file = "open.json"
"""
reactor: Any = installed_reactor


async def rate(call: Callable[[int], Awaitable[object]], at_a_time: int) -> float:
    """Return the calls a second."""

    async def run(first: int) -> None:
        for number in range(first, CALLS, at_a_time):
            await call(number)

    begun = time.perf_counter()
    await gatherResults([Deferred.fromCoroutine(run(first)) for first in range(at_a_time)])
    return CALLS / (time.perf_counter() - begun)


def rest_rate(port: int, method: str, callers: int) -> float:
    """Return the requests a second of one connection after another; runs in a thread."""
    connections = [http.client.HTTPConnection("127.0.0.1", port) for _ in range(callers)]
    begun = time.perf_counter()
    for at in range(0, CALLS, callers):
        for number, connection in enumerate(connections, at):
            connection.request(method, "/a/k.json", str(number) if method == "PUT" else None)
        for connection in connections:
            connection.getresponse().read()
    taken = time.perf_counter() - begun
    for connection in connections:
        connection.close()
    return CALLS / taken


async def measure(database: LocalDatabase, port: int) -> None:
    """Print the rates of each round's median, and their ratio."""
    await database.put("a/k", 0)
    calls: dict[str, Callable[[int], Awaitable[object]]] = {
        "GET": lambda _: database.get("a/k"),
        "PUT": lambda number: database.put("a/k", number),
    }
    for at_a_time in (1, AT_A_TIME):
        for method, call in calls.items():
            rounds = []
            for _ in range(ROUNDS):
                here = await rate(call, at_a_time)
                rounds.append((here, await deferToThread(rest_rate, port, method, at_a_time)))
            here, rest = (statistics.median(rates) for rates in zip(*rounds, strict=True))
            ratio = statistics.median(one / other for one, other in rounds)
            print(
                f"{method} {at_a_time:2} at a time: {here:8.0f}/s in process, {rest:8.0f}/s by "
                f"REST, ratio {ratio:.1f}"
            )


async def main(port: int, folder: str) -> None:
    """Measure a service of this process, and the daemon that listens at a port."""
    settings = Settings.from_values(folder=folder, data="local", projects={"app": {}})
    local = TreeService(settings, reactor)
    local.privilegedStartService()
    local.startService()
    await measure(local.database("app"), port)
    await local.stopService()


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as scratch, serve_treedb(scratch, CONFIG) as url:
        react(lambda _: Deferred.fromCoroutine(main(int(url.rpartition(":")[2]), scratch)))
