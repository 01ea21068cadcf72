"""Kill the processes of a daemon with workers under load, and judge what its clients see.

    .venv/bin/python bench/worker_kills.py [--kills N] [--workers N] [--operations N] [--clients N]

There are three kinds of processes: a worker that has the turn to write (which it is seen to have
when it is stopped), one that has not, and the parent. Each is killed by SIGKILL `--kills` times,
while clients read, write, swap, add and push, and followers resume its stream wherever they are
cut. Then the history has to be linearizable, each event has to have come once and in order, and no
process that has ended may have left a lock. The first violation ends the run, with status 1.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections import Counter
from pathlib import Path

from tests.daemon import Daemon
from tests.history import BadHistory
from tests.served import Served
from tests.trial import Trial
from tests.workers_of import kill_one
from tests.workload import Plan

KINDS = ("holder", "other", "parent")
OPERATIONS_BETWEEN = 150


def kill_some(served: Served, plan: Plan, killed: Counter[str], kills: int) -> None:
    """Do one trial, in which processes are killed of which too few have been."""
    (daemon,) = served.daemons
    shelf = daemon.data / "demo" / "default.shelf"
    with Trial(served.urls, plan).start() as trial:
        for number in range(OPERATIONS_BETWEEN, plan.operations, OPERATIONS_BETWEEN):
            trial.workload.await_ended(number)
            kind = min(KINDS, key=lambda each: killed[each])
            if killed[kind] < kills and kill_one(daemon, kind, shelf):
                killed[kind] += 1
                served.urls[0] = daemon.http
        trial.finish()
        print(trial.check(), flush=True)


def main() -> None:
    """Kill until each kind was killed often enough."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--kills", type=int, default=200, help="of each kind")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--operations", type=int, default=6000, help="of each round")
    parser.add_argument("--clients", type=int, default=8)
    options = parser.parse_args()
    killed: Counter[str] = Counter()
    with tempfile.TemporaryDirectory() as folder:
        daemon = Daemon(Path(folder), arguments=["--workers", str(options.workers)])
        with Served([daemon]) as served:
            number = 0
            while min(killed[kind] for kind in KINDS) < options.kills:
                plan = Plan(
                    operations=options.operations,
                    clients=options.clients,
                    root=f"r{number}",
                    seed=number,
                )
                try:
                    kill_some(served, plan, killed, options.kills)
                except BadHistory as violation:
                    sys.exit(f"Round {number}: {violation}")
                number += 1
                print(", ".join(f"{killed[kind]} {kind}" for kind in KINDS), flush=True)
    print("nothing acknowledged was lost, and nothing was left")


if __name__ == "__main__":
    main()
