"""What a second worker process gains: reads, durable writes and events, with 1 and 2 workers.

    .venv/bin/python bench/workers.py [--seconds S] [--rounds N] [--streams N] [--workers N]

The same load on a daemon with one worker and on one with more, alternately, round by round, on all
cores that this process may use. With one worker the load has a core of its own. With as many
workers as cores it takes its time from them, so that is taken out: `ratio` is of the medians as
they were measured, `alone` what it would be if the load ran elsewhere, that is, with each rate
multiplied by cores / (cores - the cores that the load used). For one worker nothing is taken out.
`us` is the processor time of all processes of the daemon for one request or event; the ratio of
those says what more workers cost.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import json
import multiprocessing
import os
import pathlib
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor

import attrs
from callers import request
from listeners import EVENT_BYTES, VALUE, Listeners
from load import Load, sample
from load import Sample as Answered
from servers import CHECKOUT, LISTEN, TWISTD, first_line, put, start

CONFIG = """
default_project = "p0"
[limits]
connections_per_address = 20000
streams_per_address = 20000
[streams]
keep_alive_s = 3600
"""
PROJECT = '[projects.p{0}]\nrules_file = "open.json"\n'
DATABASES = 4
TICKS_PER_S = os.sysconf("SC_CLK_TCK")
CORES = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
PATHS = 500
BODY = '{"a":%d,"b":"xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx"}'
WRITING, READING = 128, 64  # connections


@attrs.frozen
class Sample:
    """Requests or events a second, and the cores that the daemon and the load used meanwhile."""

    rate: float
    daemon: float
    load: float

    @property
    def us(self) -> float:
        """The processor time of the daemon for one of them, in microseconds."""
        return self.daemon / self.rate * 1e6


@attrs.frozen
class Server:
    """A daemon with workers that listens at `base`."""

    base: str
    pid: int

    def cores(self) -> float:
        """Return the seconds of processor time that its processes have used."""
        children = pathlib.Path(f"/proc/{self.pid}/task/{self.pid}/children").read_text().split()
        return sum(map(cpu_seconds, [self.pid, *map(int, children)]))

    def measure(self, work: Callable[[], tuple[float, float]]) -> Sample:
        """Run a load, which returns its rate and the cores that it used."""
        daemon, begin = self.cores(), time.monotonic()
        rate, used = work()
        return Sample(rate, (self.cores() - daemon) / (time.monotonic() - begin), used)


def cpu_seconds(pid: int) -> float:
    """Return the processor time of a process."""
    fields = pathlib.Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2].split()
    return (int(fields[11]) + int(fields[12])) / TICKS_PER_S


@contextlib.contextmanager
def serve(*arguments: str, checkout: pathlib.Path = CHECKOUT) -> Iterator[Server]:
    """Run a daemon with more arguments on a free port within a block."""
    with tempfile.TemporaryDirectory() as folder:
        pathlib.Path(folder, "open.json").write_text('{"rules":{".read":true,".write":true}}')
        config = pathlib.Path(folder, "treedb.toml")
        config.write_text(CONFIG + "".join(PROJECT.format(number) for number in range(DATABASES)))
        command = [TWISTD, "-n", "--pidfile=", "treedb", "--config", str(config)]
        command += ["--data", f"{folder}/data", "--listen", LISTEN]
        process = start(*command, *arguments, checkout=checkout, core=None)
        try:
            ready = first_line(process, ".*treedb ready .*")
            yield Server(ready.split()[-1], process.pid)
        finally:
            process.terminate()
            process.wait()


def run(load: Load, seconds: float) -> tuple[float, float]:
    """Load a server from any core; return the requests a second, and the cores that were used."""
    answered = sample(load, seconds, core=None)
    return answered.rate, answered.busy


def make_reads(server: Server, connections: int) -> Load:
    """Put 50 bytes; return reads of them."""
    put(f"{server.base}/small.json", json.dumps("x" * 48))
    return Load(server.base, itertools.repeat(request(server.base, "small.json")), connections)


def reads(server: Server, seconds: float) -> Sample:
    """Read 50 bytes over 64 connections."""
    return server.measure(lambda: run(make_reads(server, READING), seconds))


def make_writes(server: Server, databases: int, connections: int) -> Load:
    """Return writes of 50 bytes, to one of so many databases after the other."""
    requests = (
        request(server.base, f"w/k{number % PATHS}.json?ns=p{number % databases}", "PUT", body)
        for number in itertools.count()
        for body in [BODY % number]
    )
    return Load(server.base, requests, connections)


def writes(databases: int) -> Callable[[Server, float], Sample]:
    """Return what measures writes to so many databases, over 128 connections."""

    def measure(server: Server, seconds: float) -> Sample:
        return server.measure(lambda: run(make_writes(server, databases, WRITING), seconds))

    return measure


def measure_writes(server: Server, workers: int, databases: int) -> Callable[[float], Answered]:
    """Return what measures writes for `rates.py`: the rate is what it would be without the load."""
    load = make_writes(server, databases, WRITING)

    def measure(seconds: float) -> Answered:
        answered = sample(load, seconds, core=None)
        return attrs.evolve(answered, rate=alone(answered.rate, answered.busy, workers))

    return measure


def alone(rate: float, used: float, workers: int) -> float:
    """Return the rate that more than one worker would have if the load ran elsewhere."""
    return rate * (CORES / (CORES - used) if workers > 1 else 1)


def write_for(base: str, seconds: float) -> float:
    """Write one path over one connection; return the cores that this used."""
    sent = request(base, "fan/one.json?print=silent", "PUT", json.dumps(VALUE))
    return run(Load(base, itertools.repeat(sent), 1), seconds)[1] if seconds else 0.0


def events(streams: int) -> Callable[[Server, float], Sample]:
    """Write one path over one connection, while so many streams receive all of it."""

    def measure(server: Server, seconds: float) -> Sample:
        with (
            contextlib.closing(Listeners(server.base, ["fan/one"] * streams)) as listeners,
            ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as writing,
        ):
            writing.submit(write_for, server.base, 0).result()  # starts the process

            def fan_out() -> tuple[float, float]:
                written = writing.submit(write_for, server.base, seconds)
                begin, used = time.monotonic(), time.process_time()
                received = listeners.count(begin + seconds)
                own = (time.process_time() - used) / seconds
                return received / EVENT_BYTES / seconds, own + written.result()

            return server.measure(fan_out)

    return measure


def compare(
    name: str, measure: Callable[[Server, float], Sample], options: argparse.Namespace
) -> None:
    """Measure one case with one worker and with more, and print it."""
    found: dict[int, list[Sample]] = {1: [], options.workers: []}
    for _ in range(options.rounds):
        for workers, samples in found.items():
            with serve("--workers", str(workers)) as server:
                samples.append(measure(server, options.seconds))
    rates, free, costs = [], [], []
    for workers, samples in found.items():
        rate = statistics.median(each.rate for each in samples)
        load = statistics.median(each.load for each in samples)
        cost = statistics.median(each.us for each in samples)
        rates.append(rate)
        costs.append(cost)
        free.append(alone(rate, load, workers))
        daemon = statistics.median(each.daemon for each in samples)
        print(
            f"{name:22}{workers:2} workers{rate:12,.0f}/s{cost:8.1f} us"
            f"   daemon {daemon:.2f} cores, load {load:.2f}"
        )
    print(
        f"{name:22}ratio {rates[1] / rates[0]:.2f}   alone {free[1] / free[0]:.2f}"
        f"   cost {costs[1] / costs[0]:.2f}\n",
        flush=True,
    )


def main() -> None:
    """Print all cases."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seconds", type=float, default=4.0)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--streams", type=int, default=1000)
    parser.add_argument("--workers", type=int, default=2)
    options = parser.parse_args()
    compare("GET 50 bytes", reads, options)
    compare("PUT, 1 database", writes(1), options)
    compare(f"PUT, {DATABASES} databases", writes(DATABASES), options)
    compare(f"events, {options.streams} streams", events(options.streams), options)


if __name__ == "__main__":
    main()
