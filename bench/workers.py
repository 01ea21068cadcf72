"""What a second worker process gains: reads, durable writes and events, with 1 and 2 workers.

    .venv/bin/python bench/workers.py [--seconds S] [--rounds N] [--streams N] [--workers N]

The same load on a daemon with one worker and on one with more, alternately, round by round, on all
cores that this process may use; `wrk` makes the requests (`apt-get install wrk`). With one worker
the load has a core of its own. With as many workers as cores it takes its time from them, so that
is taken out: `ratio` is of the medians as they were measured, `alone` what it would be if the load
ran elsewhere, that is, with each rate multiplied by cores / (cores - the cores that the load used).
For one worker nothing is taken out. `us` is the processor time of all processes of the daemon for
one request or event; the ratio of those says what more workers cost.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import pathlib
import re
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor

import attrs
from listeners import EVENT_BYTES, VALUE, Listeners
from servers import LISTEN, first_line, put

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
WRITES = """
local n = 0
request = function()
  n = n + 1
  local path = "/w/k" .. (n % 500) .. ".json?ns=p" .. (n % {databases})
  return wrk.format("PUT", path, nil, '{{"a":1,"b":"{value}"}}')
end
"""


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

    def measure(self, load: Callable[[], float], load_cpu: Callable[[], float]) -> Sample:
        """Run a load, which returns how many requests it made or events it received."""
        daemon, own, begin = self.cores(), load_cpu(), time.monotonic()
        count = load()
        seconds = time.monotonic() - begin
        return Sample(
            count / seconds, (self.cores() - daemon) / seconds, (load_cpu() - own) / seconds
        )


def cpu_seconds(pid: int) -> float:
    """Return the processor time of a process."""
    fields = pathlib.Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2].split()
    return (int(fields[11]) + int(fields[12])) / TICKS_PER_S


def children_cpu() -> float:
    """Return the processor time of this process and of those that it has waited for."""
    times = os.times()
    return times.user + times.system + times.children_user + times.children_system


@contextlib.contextmanager
def serve(*arguments: str) -> Iterator[Server]:
    """Run a daemon with more arguments on a free port within a block."""
    with tempfile.TemporaryDirectory() as folder:
        pathlib.Path(folder, "open.json").write_text('{"rules":{".read":true,".write":true}}')
        config = pathlib.Path(folder, "treedb.toml")
        config.write_text(CONFIG + "".join(PROJECT.format(number) for number in range(DATABASES)))
        twistd = str(pathlib.Path(sys.executable).with_name("twistd"))
        command = [twistd, "-n", "--pidfile=", "treedb", "--config", str(config)]
        command += ["--data", f"{folder}/data", "--listen", LISTEN]
        process = subprocess.Popen([*command, *arguments], stdout=subprocess.PIPE, text=True)
        try:
            ready = first_line(process, ".*treedb ready .*")
            yield Server(ready.split()[-1], process.pid)
        finally:
            process.terminate()
            process.wait()


def run_wrk(target: str, connections: int, seconds: float, script: str | None = None) -> float:
    """Load a URL by wrk; return how many requests were answered."""
    words = ["wrk", "-t1", f"-c{connections}", f"-d{seconds:g}s", target]
    with tempfile.NamedTemporaryFile("w", suffix=".lua") as file:
        if script is not None:
            file.write(script)
            file.flush()
            words[1:1] = ["-s", file.name]
        done = subprocess.run(words, capture_output=True, text=True, check=True)
    found = re.search(r"(\d+) requests in", done.stdout)
    if found is None or "Non-2xx" in done.stdout:
        raise RuntimeError(done.stdout)
    return int(found[1])


def reads(server: Server, seconds: float) -> Sample:
    """Read 50 bytes over 64 connections."""
    put(f"{server.base}/small.json", json.dumps("x" * 48))
    url = f"{server.base}/small.json"
    return server.measure(lambda: run_wrk(url, 64, seconds), children_cpu)


def writes(databases: int) -> Callable[[Server, float], Sample]:
    """Write 50 bytes over 128 connections, to so many databases, one after the other."""
    script = WRITES.format(databases=databases, value="x" * 32)

    def measure(server: Server, seconds: float) -> Sample:
        return server.measure(lambda: run_wrk(server.base, 128, seconds, script), children_cpu)

    return measure


def events(streams: int) -> Callable[[Server, float], Sample]:
    """Write one path over one connection, while so many streams receive all of it."""
    script = f"wrk.method = 'PUT'; wrk.body = '{json.dumps(VALUE)}'"

    def measure(server: Server, seconds: float) -> Sample:
        with contextlib.closing(Listeners(server.base, ["fan/one"] * streams)) as listeners:

            def fan_out() -> float:
                with ThreadPoolExecutor(1) as writing:
                    url = f"{server.base}/fan/one.json?print=silent"
                    writing.submit(run_wrk, url, 1, seconds, script)
                    received = listeners.count(time.monotonic() + seconds)
                return received / EVENT_BYTES

            return server.measure(fan_out, children_cpu)

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
    rates, alone, costs = [], [], []
    for workers, samples in found.items():
        rate = statistics.median(each.rate for each in samples)
        load = statistics.median(each.load for each in samples)
        cost = statistics.median(each.us for each in samples)
        rates.append(rate)
        costs.append(cost)
        alone.append(rate * (CORES / (CORES - load) if workers > 1 else 1))
        daemon = statistics.median(each.daemon for each in samples)
        print(
            f"{name:22}{workers:2} workers{rate:12,.0f}/s{cost:8.1f} us"
            f"   daemon {daemon:.2f} cores, load {load:.2f}"
        )
    print(
        f"{name:22}ratio {rates[1] / rates[0]:.2f}   alone {alone[1] / alone[0]:.2f}"
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
