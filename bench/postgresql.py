"""What a daemon over PostgreSQL costs beside the embedded engine: reads, and durable writes.

    .venv/bin/python bench/postgresql.py [--seconds S] [--rounds N] [--standbys N]

The same load on one daemon with the embedded engine and on one over PostgreSQL, with `reads` local
and strict, alternately, round by round. The servers of PostgreSQL run here too, sync, and need the
extra `test`; they and the load take processor time from the daemon, so what is compared is what a
daemon does in a second of its own processor time (`a core`): that is what limits it where
PostgreSQL runs elsewhere. `ratio` is to the embedded engine, `measured` that of the rates as they
were.
"""

from __future__ import annotations

import argparse
import pathlib
import statistics
import sys
from collections.abc import Callable

from workers import Sample, Server, make_reads, make_writes, run, serve

sys.path.insert(0, str(pathlib.Path(__file__).parent.parent))

from tests.postgresql import servers

CONNECTIONS = 32


def reads(server: Server, seconds: float) -> Sample:
    """Read one small value."""
    return server.measure(lambda: run(make_reads(server, CONNECTIONS), seconds))


def writes(server: Server, seconds: float) -> Sample:
    """Write small objects to one database."""
    return server.measure(lambda: run(make_writes(server, 1, CONNECTIONS), seconds))


def compare(
    name: str,
    measure: Callable[[Server, float], Sample],
    engines: dict[str, list[str]],
    options: argparse.Namespace,
) -> None:
    """Measure one case with each engine, and print it."""
    found: dict[str, list[Sample]] = {engine: [] for engine in engines}
    for _ in range(options.rounds):
        for engine, samples in found.items():
            with serve(*engines[engine]) as server:
                samples.append(measure(server, options.seconds))
    embedded: tuple[float, float] | None = None
    for engine, samples in found.items():
        rate = statistics.median(each.rate for each in samples)
        cost = statistics.median(each.us for each in samples)
        embedded = embedded or (rate, cost)
        print(
            f"{name:6}{engine:12}{rate:10,.0f}/s{cost:8.1f} us"
            f"   ratio {embedded[1] / cost:.2f}   measured {rate / embedded[0]:.2f}",
            flush=True,
        )


def main() -> None:
    """Print all cases."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seconds", type=float, default=4.0)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--standbys", type=int, default=0)
    options = parser.parse_args()
    with servers(standbys=options.standbys, is_durable=True) as running:
        over = ["--engine", running.primary.dsn()]
        engines = {"embedded": [], "local": [*over, "--reads", "local"], "strict": over}
        compare("GET", reads, engines, options)
        compare("PUT", writes, engines, options)


if __name__ == "__main__":
    main()
