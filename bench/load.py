"""A bounded load on one server of this machine, and how it was answered.

A number of connections are kept busy with one request at a time each, for a number of seconds. The
requests are made beforehand, or by a generator that only fills in a number. Nothing of a response
is looked at but its status and its length, so that one core for the load is enough for one core of
a server: a small request takes about 10 us of it. `Sample.busy` says whether it was enough.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import select
import shutil
import statistics
import time
from collections.abc import Iterator
from pathlib import Path

import attrs
from callers import Caller, Pacer, Reconnector, make_target, request, resumes

WAIT_S = 30.0


@attrs.frozen
class Beside:
    """Requests of one more connection at a steady rate, which are not measured themselves."""

    requests: Iterator[bytes]
    per_s: float


@attrs.frozen
class Load:
    """What a server receives: requests, one after the other, by a number of connections.

    The iterator goes on where the sample before has stopped, so requests that are never the same
    stay so. With `reconnects` each request has a connection of its own, which resumes the TLS
    session of the one before if the server allows it. `pid` is the process whose time is measured.
    """

    url: str
    """The base URL of the server."""
    requests: Iterator[bytes]
    connections: int = 32
    reconnects: bool = False
    pid: int | None = None
    beside: Beside | None = None


@attrs.frozen
class Sample:
    """How a load was answered: requests a second, and percentiles of their times.

    `busy` is the share of its core that the load used; near 1 the load is the bottleneck. `us` is
    the processor time of the server for one request, in microseconds. What has no such figure is
    None. `resumes` is whether connections resumed their TLS sessions, None if there was one for all
    requests. `beside` is how many requests a second were answered of those beside the load.
    """

    rate: float
    p50_ms: float | None = None
    p99_ms: float | None = None
    busy: float = 0.0
    us: float | None = None
    resumes: bool | None = None
    beside: float | None = None


def measure(url: str, connections: int, seconds: float, core: int, put: str | None = None) -> float:
    """Return the requests a second that `url` answers; `put` is the body of a PUT, None for GET."""
    scheme, _, rest = url.partition("://")
    host, _, target = rest.partition("/")
    base = f"{scheme}://{host}"
    sent = request(base, target, "GET" if put is None else "PUT", put)
    return sample(Load(base, itertools.repeat(sent), connections), seconds, core).rate


def sample(load: Load, seconds: float, core: int | None, least: int = 0) -> Sample:
    """Load a server for some seconds, from the core `core` if not from all; return how it answered.

    If less has been answered by then than `least`, or than there are connections, the load goes on
    for a while. Raises RuntimeError if a status is not 2xx, a connection breaks, or nothing is
    answered.
    """
    target, pacer = make_target(load.url), None
    callers: dict[int, Caller] = {}
    kind = Reconnector if load.reconnects else Caller
    with on_core(core), contextlib.ExitStack() as opened, select.epoll() as poll:

        def register(number: int, caller: Caller) -> None:
            poll.register(number, select.EPOLLIN)
            callers[number] = caller

        if load.beside is not None:
            pacer = Pacer(target, load.beside.requests, register, load.beside.per_s)
            opened.callback(pacer.close)
        for _ in range(load.connections):
            caller = kind(target, load.requests, register)
            opened.callback(caller.close)
            caller.begin()
        used = cpu_s(load.pid)
        least = max(least, load.connections)
        delays, took, busy = _run(poll, callers, pacer, seconds, least)
        used = None if used is None else (cpu_s(load.pid) or 0.0) - used
    if not delays:
        raise RuntimeError(f"{load.url} answered nothing.")
    return Sample(
        len(delays) / took,
        *percentiles_ms(delays),
        busy=busy,
        us=None if used is None else 1e6 * used / len(delays),
        resumes=resumes(target, next(load.requests)) if load.reconnects else None,
        beside=None if pacer is None else pacer.answered / took,
    )


def percentiles_ms(delays: list[float]) -> tuple[float, float]:
    """Return the median and the 99th percentile of seconds, in milliseconds."""
    percentiles = statistics.quantiles([*delays, delays[-1]], n=100, method="inclusive")
    return 1000 * percentiles[49], 1000 * percentiles[98]


def cpu_s(pid: int | None) -> float | None:
    """Return the processor time of all threads of a process, None where it is not to be had."""
    tasks = Path(f"/proc/{pid}/task")
    total = 0
    try:
        for task in os.listdir(tasks):
            with contextlib.suppress(FileNotFoundError):  # a thread that has ended
                total += int((tasks / task / "schedstat").read_text().split()[0])
    except OSError:
        return None
    return total / 1e9 or None


def _run(
    poll: select.epoll,
    callers: dict[int, Caller],
    pacer: Pacer | None,
    seconds: float,
    least: int,
) -> tuple[list[float], float, float]:
    """Return the seconds of each request, those until the last response, and the share used."""
    delays: list[float] = []
    start, used = time.perf_counter(), time.process_time()
    now = last = start
    while now < start + seconds or (len(delays) < least and now < start + seconds + WAIT_S):
        if pacer is not None:
            pacer.tick(now)
        for number, _ in poll.poll(1):
            caller = callers[number]
            delay = caller.proceed()
            if delay is not None:
                delays.append(delay)
                caller.begin()
                last = time.perf_counter()
        now = time.perf_counter()
    return delays, last - start, (time.process_time() - used) / (now - start)


def pin(core: int) -> list[str]:
    """Return a command prefix that keeps a process on one core; empty without `taskset`."""
    taskset = shutil.which("taskset")
    return [taskset, "-c", str(core)] if taskset else []


@contextlib.contextmanager
def on_core(core: int | None) -> Iterator[None]:
    """Keep this process on one core within a block, if the system can."""
    if core is None or not hasattr(os, "sched_setaffinity"):
        yield
        return
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {core})
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)
