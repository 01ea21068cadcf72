"""Presence over PostgreSQL: a daemon is lost with its data directory, or its engine is moved.

    .venv/bin/python bench/presence_over_postgresql.py [--rounds N] [--lease whole]

In each round a client writes that it is online, with a disconnect write that it is not. Then its
daemon is killed and its data directory removed, beside another daemon (`standby`) or with one
that starts afterwards (`container`), or it is suspended until another one has found it dead
(`suspended`), or all is moved from files to PostgreSQL (`in`) or back (`out`), with the command
killed at one of its steps, another each time, and run again. What was left must have been written
once; the time from the kill is printed, without the 15 seconds of the lease unless `--lease whole`.
"""

from __future__ import annotations

import argparse
import itertools
import pathlib
import statistics
import tempfile
import time
from collections.abc import Callable

from tests.postgresql import servers
from tests.presence_over_postgresql import STEPS, PresenceOverPostgresql


def main() -> None:
    """Run the rounds and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=100)
    parser.add_argument("--lease", default="", choices=["", "whole"])
    parser.add_argument("--only", default="")
    wanted = parser.parse_args()
    with (
        tempfile.TemporaryDirectory() as folder,
        servers(standbys=0) as server,
        PresenceOverPostgresql(pathlib.Path(folder), server, wanted.lease) as rounds,
    ):
        for name, run in ways(rounds).items():
            if wanted.only in ("", name):
                took = [run() for _ in range(wanted.rounds)]
                print(
                    f"{name:10} {len(took)} rounds, written once in each: median "
                    f"{statistics.median(took):.1f} s, longest {max(took):.1f} s",
                    flush=True,
                )


def ways(rounds: PresenceOverPostgresql) -> dict[str, Callable[[], float]]:
    """Return what runs a round of each way, and returns its seconds."""

    def suspend() -> float:
        began = time.monotonic()
        rounds.check_suspended()
        return time.monotonic() - began

    def mover(way: str) -> Callable[[], float]:
        steps = itertools.cycle([None, *STEPS[way]])

        def move() -> float:
            began = time.monotonic()
            rounds.check_move(way, next(steps))
            return time.monotonic() - began

        return move

    return {
        "container": rounds.check_lost_container,
        "standby": rounds.check_standby,
        "suspended": suspend,
        **{way: mover(way) for way in STEPS},
    }


if __name__ == "__main__":
    main()
