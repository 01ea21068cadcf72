"""Judge a service by what concurrent clients and followers of its stream see, again and again.

    .venv/bin/python bench/histories.py [--rounds N] [--operations N] [--clients N] [--registers N]
        [--engine NAME | --command WORDS | --url URL ...] [--kill-every N] [--cut-every N]

Each round is a trial on a path of its own: clients read, write, swap by entity tags, add and push,
over all URLs, while followers resume its stream wherever they are cut. Then the history has to be
linearizable, the keys of pushes have to ascend, and each event has to have come once and in order.
The service is one of the engines of `tests/served.py`, or what a command starts, which prints
`treedb ready URL ...`; either can be killed and started again every so many operations. Or it
is at URLs, where clients may write without a token. The first violation ends the run, with status
1 and an explanation. Printed are the counts of each round.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import random
import shlex
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from tests.daemon import Daemon
from tests.history import BadHistory
from tests.served import DURABLE, ENGINES, Served
from tests.trial import Report, Trial
from tests.workload import Plan


class Command(Daemon):
    """A daemon that a command starts; it listens where the command says."""

    def __init__(self, folder: Path, words: list[str]) -> None:
        """Prepare the command, which runs in `folder`."""
        super().__init__(folder, listen=())
        self._command = words


@contextlib.contextmanager
def serve(options: argparse.Namespace) -> Iterator[tuple[list[str], Served | None]]:
    """Yield the URLs of the service and, if it is one that this script starts, the service."""
    if options.url:
        yield options.url, None
        return
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        service: contextlib.AbstractContextManager[Served] = (
            Served([Command(folder, shlex.split(options.command))])
            if options.command
            else ENGINES[options.engine](folder)
        )
        with service as served:
            yield served.urls, served


def run(
    urls: list[str], served: Served | None, plan: Plan, options: argparse.Namespace
) -> tuple[Report, float, float]:
    """Do one trial; return its report, and the seconds that it and its judgement took."""
    begin = time.monotonic()
    chance = random.Random(plan.seed)
    with Trial(urls, plan, options.followers).start() as trial:
        for number in range(1, plan.operations):
            is_cut = options.cut_every and number % options.cut_every == 0
            is_killed = options.kill_every and number % options.kill_every == 0
            if not is_cut and not is_killed:
                continue
            trial.workload.await_ended(number)
            if is_cut:
                for follower in trial.followers:
                    follower.cut()
            if is_killed and served is not None:
                victim = chance.randrange(len(served.daemons))
                served.kill(victim)
                served.restart(victim)
        trial.finish()
        middle = time.monotonic()
        report = trial.check(restarts=options.restarts, is_alone=not options.shared)
    return report, middle - begin, time.monotonic() - middle


def main() -> None:
    """Run all rounds; exit with status 1 at the first violation."""
    options = parse()
    with serve(options) as (urls, served):
        for number in range(options.rounds):
            plan = Plan(
                operations=options.operations,
                clients=options.clients,
                registers=options.registers,
                counters=options.counters,
                root=f"{options.root}-{number}",
                query=options.query,
                seed=options.seed + number,
            )
            try:
                report, ran_s, judged_s = run(urls, served, plan, options)
            except BadHistory as violation:
                sys.exit(f"Round {number}, path /{plan.root}: {violation}")
            print(f"round {number}: {ran_s:.1f} s, judged in {judged_s:.1f} s")
            print(f"{report}\n", flush=True)
    print(f"no violation in {options.rounds * options.operations:,} operations")


def parse() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--operations", type=int, default=10_000, help="of each round")
    parser.add_argument("--clients", type=int, default=8)
    parser.add_argument("--registers", type=int, default=4)
    parser.add_argument("--counters", type=int, default=2)
    parser.add_argument("--followers", type=int, default=2)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--kill-every", type=int, default=0, metavar="OPERATIONS")
    parser.add_argument("--cut-every", type=int, default=0, metavar="OPERATIONS")
    parser.add_argument("--restarts", type=int, default=0, help="of each stream, with a full put")
    parser.add_argument("--shared", action="store_true", help="others write to the database too")
    parser.add_argument("--root", default=f"history-{os.getpid()}", help="begin of the paths")
    parser.add_argument("--query", default="", help="of each request, such as ns=other--demo")
    service = parser.add_mutually_exclusive_group()
    service.add_argument("--engine", choices=ENGINES, default="sqlite")
    service.add_argument("--command", metavar="WORDS", help="starts a daemon")
    service.add_argument("--url", action="append", help="base URL; may be repeated")
    options = parser.parse_args()
    own = not options.url and (options.command or options.engine in DURABLE)
    if options.kill_every and not own:
        parser.error("--kill-every needs a durable service that this script starts.")
    return options


if __name__ == "__main__":
    main()
