"""Streams: the cost of one write to many listeners, and of listeners while nothing is written.

    .venv/bin/python bench/streams.py [--listeners N,N] [--events N] [--seconds S] [--rounds N]

One writer, N listeners: of one path, and of N paths that one PATCH sets. The reference is the same
fan-out by the smallest `twisted.web` resource, with the same bytes. A write is sent when all have
received the one before. Events of one path are printed as multiples of the requests of a bare Klein
route too, in plain and over TLS, with the delays when ten values are written each second. Servers
share one core, the listeners and the writer another; all are measured alternately, round by round,
and medians and ratios are printed. `aim` is the most memory that an idle stream should take. Last,
the largest number of listeners is open at once: what they take and receive, and how long a GET of
another client lasts meanwhile.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import json
import math
import multiprocessing
import os
import resource
import socket
import statistics
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import attrs
from callers import request
from listeners import EVENT_BYTES, FRAME, VALUE, WAIT_S, Listeners, Writer, listening
from load import Load, measure, sample
from servers import LOAD_CORE, put, serve_reference, serve_treedb

# All listeners here share one address, and receive no keep-alive during a measurement.
CONFIG = """
default_project = "demo"
[limits]
connections_per_address = 20000
streams_per_address = 20000
[streams]
keep_alive_s = 3600
[projects.demo]
rules_file = "open.json"
"""
WARM, MAX_IDLE = 100, 2000
AIMS_KIB = {"plain": 6.5, "tls": 31}
PUT_CONNECTIONS = KLEIN_CONNECTIONS = 32
PACED_PER_S = 10


@attrs.define
class Measured:
    """The measurements of one server in one case."""

    rates: list[float] = attrs.field(factory=list)
    delays_s: list[float] = attrs.field(factory=list)
    busy: list[float] = attrs.field(factory=list)
    """The share of its core that the client used; near 1 the client is the bottleneck."""

    @property
    def rate(self) -> float:
        """Events a second, the median of the rounds."""
        return statistics.median(self.rates)

    def delay_ms(self, percent: int) -> float:
        """Return a percentile of the delays."""
        return 1000 * statistics.quantiles(self.delays_s, n=100)[percent - 1]


def fan_out(writer: Writer, listeners: Listeners, writes: int, found: Measured) -> None:
    """Write several times, each time to all listeners, and record the measurements."""
    start, used, received = time.perf_counter(), time.process_time(), 0
    for _ in range(writes):
        delays = listeners.receive(writer.send())
        writer.receive()
        found.delays_s += delays
        received += len(delays)
    took = time.perf_counter() - start
    found.rates.append(received / took)
    found.busy.append((time.process_time() - used) / took)


def pace(writer: Writer, listeners: Listeners, seconds: float, found: Measured) -> None:
    """Write at a steady rate for some seconds, and record the delays."""
    due = time.perf_counter()
    for _ in range(max(1, round(seconds * PACED_PER_S))):
        time.sleep(max(0.0, due - time.perf_counter()))
        found.delays_s += listeners.receive(writer.send())
        writer.receive()
        due += 1 / PACED_PER_S


def measure_fan_out(
    *,
    listeners: int = 1000,
    rounds: int = 5,
    events: int = 20_000,
    seconds: float = 2.0,
    secure: bool = False,
) -> dict[str, float]:
    """Return what it costs to send each write of one path to many listeners.

    `events_per_s` is also given as a multiple, `ratio`, of `klein_per_s`: the requests for 50 bytes
    that a bare Klein route answers, in plain, on the same core in the same rounds. `p50_ms` and
    `p99_ms` are of the delays from sending one of ten writes each second to receiving its event, of
    all listeners. A round has about `events` events, then `seconds` of each other measurement.
    """
    fast, paced, klein_rates = Measured(), Measured(), list[float]()
    with (
        tempfile.TemporaryDirectory() as folder,
        serve_treedb(folder, CONFIG, secure=secure) as base,
        serve_reference("klein") as klein,
        listening(base, ["fan/one"] * listeners) as opened,
        contextlib.closing(Writer(base, "PUT", "fan/one", json.dumps(VALUE).encode())) as writer,
    ):
        fan_out(writer, opened, 2, Measured())
        for _ in range(rounds):
            fan_out(writer, opened, max(2, events // listeners), fast)
            klein_rates.append(measure(f"{klein}/50", KLEIN_CONNECTIONS, seconds, LOAD_CORE))
            pace(writer, opened, seconds, paced)
    klein_rate = statistics.median(klein_rates)
    return {
        "events_per_s": fast.rate,
        "klein_per_s": klein_rate,
        "ratio": fast.rate / klein_rate,
        "client_busy": statistics.median(fast.busy),
        "p50_ms": paced.delay_ms(50),
        "p99_ms": paced.delay_ms(99),
    }


def measure_idle(*, streams: int = 1000) -> dict[str, float]:
    """Return the KiB that an idle stream takes, `plain` and over `tls`."""
    plain, tls = (measure_memory(streams, secure=secure) / 1024 for secure in (False, True))
    return {"plain": plain, "tls": tls}


def compare(
    treedb: str, reference: str, count: int, rounds: int, events: int, *, shared: bool
) -> None:
    """Measure one case with both servers and print it; a round has about `events` events."""
    names = [f"k{number:05}" for number in range(count)]
    paths = ["fan/one"] * count if shared else [f"fan/many/{name}" for name in names]
    writes = max(2, events // count)
    found = {"treedb": Measured(), "twisted.web": Measured()}
    with contextlib.ExitStack() as stack:
        opened = {
            "treedb": stack.enter_context(listening(treedb, paths)),
            "twisted.web": stack.enter_context(listening(reference, paths)),
        }
        if shared:
            writer = Writer(treedb, "PUT", "fan/one", json.dumps(VALUE).encode())
        else:
            body = json.dumps(dict.fromkeys(names, VALUE)).encode()
            writer = Writer(treedb, "PATCH", "fan/many", body)
        writers = {"treedb": writer, "twisted.web": Writer(reference, "PUT", "", FRAME)}
        for writer in writers.values():
            stack.callback(writer.close)
        for name, listeners in opened.items():
            fan_out(writers[name], listeners, 2, Measured())
        for _ in range(rounds):
            for name, listeners in opened.items():
                fan_out(writers[name], listeners, writes, found[name])
    for name, each in found.items():
        print(
            f"{'one path' if shared else 'N paths':10}{count:6,}  {name:12}{each.rate:10,.0f}/s"
            f"{each.delay_ms(50):10.2f} ms{each.delay_ms(99):10.2f} ms"
            f"{each.rate / found['twisted.web'].rate:8.2f}{statistics.median(each.busy):8.2f}",
            flush=True,
        )


def measure_memory(count: int, *, secure: bool) -> float:
    """Return the bytes that each of `count` idle streams of one path adds to a daemon."""
    with (
        tempfile.TemporaryDirectory() as folder,
        serve_treedb(folder, CONFIG, secure=secure) as base,
        listening(base, ["fan/one"] * min(WARM, count)),
    ):
        before = resident_bytes(folder)
        with listening(base, ["fan/one"] * count):
            return (resident_bytes(folder) - before) / count


def measure_crowd(
    count: int,
    seconds: float,
    *,
    open_one: Callable[[str, str], socket.socket] | None = None,
    event_bytes: int = EVENT_BYTES,
    config: str = CONFIG,
) -> dict[str, float]:
    """Return what many listeners of one path cost, and what they receive.

    Each is opened by `open_one`, and an event has so many bytes. `kib` is the memory of one while
    it is idle. Then events are sent for some seconds, each when all have received the one before:
    `events_per_s`, of all together. Meanwhile another client sends one GET after the other:
    `p99_ms`, and `alone_ms` without the listeners.
    """
    fork = multiprocessing.get_context("fork")
    found = Measured()
    with (
        ProcessPoolExecutor(1, mp_context=fork) as pool,
        tempfile.TemporaryDirectory() as folder,
        serve_treedb(folder, config) as base,
    ):
        put(f"{base}/neighbour.json", f'"{VALUE}"')
        warm = ["fan/one"] * min(WARM, count)
        alone = pool.submit(p99_of_neighbour, base, seconds).result()
        with (
            contextlib.closing(Listeners(base, warm, open_one, event_bytes)),
            contextlib.closing(
                Writer(base, "PUT", "fan/one", json.dumps(VALUE).encode())
            ) as writer,
        ):
            before = resident_bytes(folder)
            opened = Listeners(base, ["fan/one"] * count, open_one, event_bytes)
            with contextlib.closing(opened):
                kib = (resident_bytes(folder) - before) / count / 1024
                fan_out(writer, opened, 2, Measured())
                beside = pool.submit(p99_of_neighbour, base, seconds)
                while not beside.done():
                    fan_out(writer, opened, 1, found)
    return {
        "kib": kib,
        "events_per_s": found.rate,
        "p99_ms": beside.result(),
        "alone_ms": alone,
    }


def p99_of_neighbour(base: str, seconds: float) -> float:
    """Return the p99 in ms of one client that sends one GET after the other."""
    load = Load(base, itertools.repeat(request(base, "neighbour.json")), connections=1)
    found = sample(load, seconds, LOAD_CORE).p99_ms
    return math.nan if found is None else found


def show_crowd(name: str, found: dict[str, float]) -> None:
    """Print what many listeners cost, which the name counts."""
    print(
        f"{name} on one core: {found['events_per_s']:,.0f}/s events, {found['kib']:.1f} KiB each; "
        f"a GET of another client p99 {found['p99_ms']:.1f} ms, alone {found['alone_ms']:.1f} ms"
    )


def resident_bytes(folder: str) -> int:
    """Return the memory of the daemon of a folder."""
    pages = Path("/proc", Path(folder, "pid").read_text(), "statm").read_text().split()[1]
    return int(pages) * os.sysconf("SC_PAGE_SIZE")


def measure_writes(base: str, folder: str, count: int, rounds: int, seconds: float) -> None:
    """Print the rate of small writes with and without listeners elsewhere in the tree."""
    url = f"{base}/apps/shop/users/u0000001/name.json"
    found: dict[int, list[float]] = {0: [], count: []}
    for _ in range(rounds):
        for listeners, rates in found.items():
            await_disconnects(folder)
            with listening(base, [f"fan/many/k{number:05}" for number in range(listeners)]):
                rates.append(measure(url, PUT_CONNECTIONS, seconds, LOAD_CORE, '"small"'))
    without, beside = (statistics.median(rates) for rates in found.values())
    print(
        f"\nPUT, {PUT_CONNECTIONS} connections: {without:,.0f}/s alone, {beside:,.0f}/s beside "
        f"{count:,} listeners elsewhere: {beside / without:.2f}"
    )


def await_disconnects(folder: str) -> None:
    """Wait until the daemon of a folder has closed the connections of earlier listeners."""
    files = Path("/proc", Path(folder, "pid").read_text(), "fd")
    until = time.monotonic() + WAIT_S
    while len(os.listdir(files)) > WARM and time.monotonic() < until:
        time.sleep(0.1)


def allow_connections() -> None:
    """Raise the limit of connections of this process."""
    _, most_files = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most_files, most_files))


def prepare() -> None:
    """Raise the limit of connections of this process, and keep it on the core of the load."""
    allow_connections()
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, {LOAD_CORE})


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--listeners", default="100,1000,10000")
    parser.add_argument("--events", type=int, default=20_000, help="of a round")
    parser.add_argument("--seconds", type=float, default=2, help="of the writes beside listeners")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--fan-out", type=int, default=1000, help="listeners of one path")
    wanted = parser.parse_args()
    counts = [int(count) for count in wanted.listeners.split(",")]
    prepare()
    with (
        tempfile.TemporaryDirectory() as folder,
        serve_treedb(folder, CONFIG) as treedb,
        serve_reference("fanout") as reference,
    ):
        put(f"{treedb}/fan/one.json", '"nothing"')
        print(f"{'':30}{'events':>12}{'p50':>13}{'p99':>13}{'ratio':>8}{'client':>8}")
        for shared in (True, False):
            for count in counts:
                compare(treedb, reference, count, wanted.rounds, wanted.events, shared=shared)
        measure_writes(treedb, folder, max(counts), wanted.rounds, wanted.seconds)
    for secure in (False, True):
        found = measure_fan_out(
            listeners=wanted.fan_out,
            rounds=wanted.rounds,
            events=wanted.events,
            seconds=wanted.seconds,
            secure=secure,
        )
        print(
            f"fan-out to {wanted.fan_out:,} listeners {'over TLS' if secure else 'in plain'}: "
            f"{found['events_per_s']:,.0f}/s, {found['ratio']:.1f} of a Klein route "
            f"({found['klein_per_s']:,.0f}/s); at {PACED_PER_S} writes a second "
            f"p50 {found['p50_ms']:.1f} ms, p99 {found['p99_ms']:.1f} ms"
        )
    for name, kib in measure_idle(streams=min(max(counts), MAX_IDLE)).items():
        print(f"an idle stream, {name}: {kib:.1f} KiB (aim {AIMS_KIB[name]})")
    show_crowd(f"{max(counts):,} streams", measure_crowd(max(counts), wanted.seconds))


if __name__ == "__main__":
    main()
