"""What one caller can make others wait, and can make the daemon hold, by each of many attacks.

    .venv/bin/python bench/attackers.py [--only PATTERN] [--quick] [--clone DIR] [--workers N]
                                        [--engine memory|postgresql]

Each attack has a daemon of its own (all have one with `--quick`), with the default limits: only the
caches are smaller, so that they do not count as memory that is left. It was restarted after its
data had been loaded. The attacker is a process on another core, killed at the end. Meanwhile a
neighbour reads a leaf of another database every few milliseconds. Printed are

    GET     milliseconds that the neighbour waited: median, p99 and longest
    turn    milliseconds of the processor that the process used in the longest turn of the reactor,
            with all its threads, since they share the lock of the interpreter; that the reactor's
            thread used (own); of the clock, which a busy machine makes longer; and how many turns
            used more than 50 ms of the processor (long)
    memory  MiB resident before, more at the peak, and more after the attacker has gone: at the
            earliest time at which less than 20 MiB remain, else after `--rest` seconds; and what
            is held: it remains after cycles of garbage were collected and free memory given back

and `TURN` and `MEMORY` where the aims are missed: no turn above 50 ms, less than 20 MiB left. The
docstring of an attack says what its caller does; `--list` prints them. `--clone` attacks another
checkout of treedb, such as an older one. `--where` prints what the longest turn was doing.
Timings need a quiet machine; the processor time of turns is good on any.
"""

from __future__ import annotations

import argparse
import contextlib
import multiprocessing
import os
import re
import sys
import tempfile
import time
import traceback
from collections.abc import Iterator
from multiprocessing.connection import Connection
from pathlib import Path

import attacks_bodies
import attacks_connections
import attacks_queries
import attacks_reads
import attacks_rules
import attacks_sockets
import attacks_streams
from attacked import CHECKOUT, MIB, OPEN, Attacked, Scene, pack
from attacks import ATTACKS, Attack
from listeners import dial
from neighbours import Times, call
from servers import LOAD_CORE
from sessions import Session, encode

from tests.postgresql import servers

MODULES = (
    *(attacks_bodies, attacks_connections, attacks_queries, attacks_reads),
    *(attacks_rules, attacks_sockets, attacks_streams),
)
LONGEST_TURN_MS = 50
LEFT_MIB = 20
QUICK_SCALE, QUICK_S = 0.0005, 0.005
PATIENCE_S = 240.0
"""An attacker that takes longer is killed."""
CONTEXT = multiprocessing.get_context("fork")


def main() -> None:
    """Attack and print one line for each attack."""
    options = parse()
    if options.list:
        for each in ATTACKS:
            print(f"{each.name}: {(each.run.__doc__ or '').strip()}")
        return
    wanted = [
        each
        for each in ATTACKS
        if (options.workers == 1 or each.in_workers) and re.search(options.only, each.name)
    ]
    print(
        f"{'':36}{'GET p50':>9}{'p99':>8}{'max':>8}{'turn':>8}{'own':>6}{'clock':>7}{'long':>6}",
        end="",
    )
    print(f"{'before':>9}{'peak':>8}{'left':>8}{'held':>8}", flush=True)
    for some in [wanted] if options.quick else [[each] for each in wanted]:
        with serving(options) as server, neighbour() as reader:
            for each in some:
                print(f"{each.name:36}{measure(server, reader, each, options)}", flush=True)


def parse() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", default="", metavar="PATTERN", help="attacks by their names")
    parser.add_argument("--list", action="store_true", help="print what the attacks are, and end")
    parser.add_argument("--quick", action="store_true", help="the smallest form of each attack")
    parser.add_argument("--scale", type=float, default=1.0, help="of all that is sent and stored")
    parser.add_argument("--seconds", type=float, default=8.0, help="of what is repeated")
    parser.add_argument("--rest", type=float, default=12.0, help="most seconds for what is left")
    parser.add_argument("--clone", type=Path, default=CHECKOUT, metavar="DIR")
    parser.add_argument("--workers", type=int, default=1, help="above 1: only the main attacks")
    parser.add_argument("--engine", choices=("memory", "postgresql"), help="instead of files")
    parser.add_argument("--where", action="store_true", help="print what the longest turn did")
    options = parser.parse_args()
    if options.quick:
        options.scale, options.seconds, options.rest = QUICK_SCALE, QUICK_S, 0.0
    return options


@contextlib.contextmanager
def serving(options: argparse.Namespace) -> Iterator[Attacked]:
    """Run a daemon within a block."""
    with contextlib.ExitStack() as ends:
        folder = ends.enter_context(tempfile.TemporaryDirectory())
        server = Attacked(folder, options.clone.resolve(), options.workers, where=options.where)
        if options.engine == "postgresql":
            server.flags += "--engine", ends.enter_context(servers(standbys=0)).primary.dsn()
        elif options.engine is not None:
            server.flags += "--engine", options.engine
        yield ends.enter_context(server)


def measure(server: Attacked, reader: Connection, each: Attack, options: argparse.Namespace) -> str:
    """Return the line of an attack."""
    scene = Scene(server.url, server.secure_url, options.scale, options.seconds)
    try:
        prepare(scene, each)
        if not options.quick:
            if options.engine != "memory":
                server.restart()
            warm(scene)
        line = observe(server, reader, scene, each, options.rest)
    except (OSError, RuntimeError) as problem:
        return f" failed: {problem!r}"[:300]
    if options.where and (seen := server.where()):
        line += f"\n{seen}"
    return line


def prepare(scene: Scene, each: Attack) -> None:
    """Load what the attack needs, and the leaf of the neighbour."""
    owner = scene.owner()
    owner.put_rules(OPEN)
    Session(scene.url, "other").ask("PUT", "leaf", "", b"1")
    each.prepare(scene)
    owner.close()


def warm(scene: Scene) -> None:
    """Do a little of everything, so that what is made once is made before."""
    owner, client = scene.owner(), scene.client()
    client.ask("GET", "/.json?shallow=true")
    for number in range(3):
        text = encode(["x" * 10_000] * 100)
        client.put_gzip("/warm.json?print=silent", pack(text))
        client.ask("PATCH", f"/warm{number}.json", {"a": {"b": 1}})
        client.ask("GET", "/warm.json?print=pretty")
        owner.ask("DELETE", "warm")
    attacks_sockets.opened(scene).close()
    attacks_streams.opened(scene, "/warm.json").close()
    with dial(scene.secure_url) as secured:
        secured.sendall(b"GET /warm.json HTTP/1.1\r\nHost: localhost\r\n\r\n")
        secured.recv(65_536)
    owner.close()


def observe(server: Attacked, reader: Connection, scene: Scene, each: Attack, rest_s: float) -> str:
    """Attack, and return what was seen."""
    time.sleep(min(1.0, rest_s))
    before = server.resident()
    server.begin()
    with reading(reader, server.url) as times:
        note = attack_apart(scene, each)
        time.sleep(min(1.0, rest_s))
    left = await_rest(server, before, rest_s)
    turns, waited = server.turns(), Times.of(times)
    missed = ["TURN"] * (turns.cpu_ms > LONGEST_TURN_MS) + ["MEMORY"] * (left >= LEFT_MIB)
    line = f"{waited.p50:9.1f}{waited.p99:8.1f}{waited.longest:8.0f}"
    line += f"{turns.cpu_ms:8.0f}{turns.thread_ms:6.0f}{turns.wall_ms:7.0f}{turns.long_ones:6}"
    line += f"{before / MIB:9.0f}{(server.peak() - before) / MIB:+8.0f}{left:+8.0f}"
    if rest_s:
        server.trim()
    line += f"{(server.resident() - before) / MIB:+8.0f}"
    return f"{line}  {' '.join([*missed, note])}".rstrip()


def await_rest(server: Attacked, before: int, rest_s: float) -> float:
    """Return the MiB that remain, when they are few or time is over."""
    end = time.monotonic() + rest_s
    while (left := (server.resident() - before) / MIB) >= LEFT_MIB and time.monotonic() < end:
        time.sleep(0.5)
    return left


def attack_apart(scene: Scene, each: Attack) -> str:
    """Attack from a process of its own, and return its note when it has gone."""
    ours, theirs = CONTEXT.Pipe()
    process = CONTEXT.Process(target=act, args=(scene, each, theirs))
    process.start()
    note: str = ours.recv() if ours.poll(PATIENCE_S) else "was killed"
    process.kill()
    process.join()
    return note


def act(scene: Scene, each: Attack, pipe: Connection) -> None:
    """Attack, and send the note."""
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, {LOAD_CORE})
    try:
        pipe.send(each.run(scene) or "")
    except Exception as problem:  # a server that defends itself is a result
        traceback.print_exc(file=sys.stderr)
        pipe.send(f"ended by {problem!r}"[:100])
    time.sleep(PATIENCE_S)  # what it holds open is open until it is killed


@contextlib.contextmanager
def neighbour() -> Iterator[Connection]:
    """Run a process within a block that reads when it receives a URL; yield the pipe to it."""
    ours, theirs = CONTEXT.Pipe()
    process = CONTEXT.Process(target=read_from_each, args=(theirs,))
    process.start()
    try:
        yield ours
    finally:
        process.kill()
        process.join()


def read_from_each(pipe: Connection) -> None:
    """Read a leaf from each URL that is received, until the next message."""
    while True:
        call(pipe.recv(), "other", "GET", "leaf", pipe)
        pipe.recv()


@contextlib.contextmanager
def reading(reader: Connection, url: str) -> Iterator[list[float]]:
    """Run the reads of the neighbour within a block; yield a list that has their seconds then."""
    times: list[float] = []
    reader.send(url)
    reader.recv()  # it is ready
    try:
        yield times
    finally:
        reader.send("end")
        times += reader.recv()


if __name__ == "__main__":
    main()
