"""A bounded load on one server of this machine, and how it was answered.

A number of connections are kept busy with one request at a time each, for a number of seconds.
Nothing of a response is looked at but its status and its length, so that one core for the load is
enough for one core of a server; `Sample.busy` says whether it was.
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

import attrs
from callers import Caller, Reconnector, make_target, resumes

WAIT_S = 30.0


@attrs.frozen
class Load:
    """What is requested: GET of `url`, or PUT of `bodies`, one after the other.

    With `reconnects` each request has a connection of its own, which resumes the TLS session of the
    one before if the server allows it.
    """

    url: str
    connections: int = 32
    bodies: tuple[str, ...] = ()
    reconnects: bool = False


@attrs.frozen
class Sample:
    """How a load was answered: requests a second, and percentiles of their times.

    `busy` is the share of its core that the load used; near 1 the load is the bottleneck. `resumes`
    is whether connections resumed their TLS sessions, None if there was one for all requests.
    """

    rate: float
    p50_ms: float
    p99_ms: float
    busy: float
    resumes: bool | None = None


def measure(url: str, connections: int, seconds: float, core: int, put: str | None = None) -> float:
    """Return the requests a second that `url` answers; `put` is the body of a PUT, None for GET."""
    return sample(Load(url, connections, () if put is None else (put,)), seconds, core).rate


def sample(load: Load, seconds: float, core: int) -> Sample:
    """Load a server from the core `core`, for some seconds; return how it answered.

    If less has been answered by then than there are connections, the load goes on for a while.
    Raises RuntimeError if a status is not 2xx, a connection breaks, or nothing is answered.
    """
    target = make_target(load.url, load.bodies)
    requests = itertools.cycle(target.requests)
    callers: dict[int, Caller] = {}
    kind = Reconnector if load.reconnects else Caller
    with _on_core(core), contextlib.ExitStack() as opened, select.epoll() as poll:

        def register(number: int, caller: Caller) -> None:
            poll.register(number, select.EPOLLIN)
            callers[number] = caller

        for _ in range(load.connections):
            caller = kind(target, requests, register)
            opened.callback(caller.close)
            caller.begin()
        delays, took, busy = _run(poll, callers, seconds)
    if not delays:
        raise RuntimeError(f"{load.url} answered nothing.")
    percentiles = statistics.quantiles([*delays, delays[-1]], n=100, method="inclusive")
    p50_ms, p99_ms = 1000 * percentiles[49], 1000 * percentiles[98]
    has_resumed = resumes(target) if load.reconnects else None
    return Sample(len(delays) / took, p50_ms, p99_ms, busy, has_resumed)


def _run(
    poll: select.epoll, callers: dict[int, Caller], seconds: float
) -> tuple[list[float], float, float]:
    """Return the seconds of each request, those until the last response, and the share used."""
    delays: list[float] = []
    least = len(callers)
    start, used = time.perf_counter(), time.process_time()
    now = last = start
    while now < start + seconds or (len(delays) < least and now < start + seconds + WAIT_S):
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
def _on_core(core: int) -> Iterator[None]:
    """Keep this process on one core within a block, if the system can."""
    if not hasattr(os, "sched_setaffinity"):
        yield
        return
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {core})
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)
