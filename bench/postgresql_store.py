"""Measures commits of the store over PostgreSQL, beside those of the store on SQLite alone.

One thread commits small rows, each with an entry of the log: one row per commit, and batches. Both
engines sync, on the same disk; the servers run on this machine, so no network is measured. A ratio
says how many times as long a commit takes as on SQLite.

    .venv/bin/python bench/postgresql_store.py [--standbys N] [--commits N] [--rounds N]
        [--folder DIR]
"""

from __future__ import annotations

import argparse
import importlib
import os
import random
import statistics
import sys
import tempfile
import time
from pathlib import Path as File
from typing import Any

from treedbd.store.engine import Engine
from treedbd.store.postgresql.cluster import PostgresqlCluster
from treedbd.store.postgresql.connection import PostgresqlSettings
from treedbd.store.sqlite.engine import SqliteEngine

ROW_BYTES = 240
ENTRY_BYTES = 180
KEYS = 10_000
RETAIN = 1000
SIZES = (1, 32)


def commit(engine: Engine, chance: random.Random, rows: int) -> None:
    """Commit some rows in one transaction."""
    transaction = engine.begin()
    for _ in range(rows):
        transaction.put(
            b"\x03records\x01%06d" % chance.randrange(KEYS), chance.randbytes(ROW_BYTES)
        )
        number = transaction.append(chance.randbytes(16), chance.randbytes(ENTRY_BYTES))
        if number % 64 == 0:
            transaction.trim(number - RETAIN)
    engine.pin()
    transaction.commit()
    engine.advance()
    if engine.needs_checkpoint():
        engine.checkpoint()


def measure(engine: Engine, commits: int, rows: int) -> list[float]:
    """Return the seconds of each commit."""
    chance = random.Random(5)
    times = []
    for _ in range(commits):
        before = time.perf_counter()
        commit(engine, chance, rows)
        times.append(time.perf_counter() - before)
    return times


def run(options: argparse.Namespace, folder: File, dsn: str) -> None:
    """Measure both engines alternately, and print medians and ratios."""
    cluster = PostgresqlCluster(PostgresqlSettings(dsn), retain=RETAIN)
    database = cluster.projects.create_database("bench", folder.name)
    over = cluster.open_engine(folder / "copy.shelf", database.db, epoch=database.epoch)
    over.catch_up()
    engines: dict[str, Engine] = {
        "SQLite": SqliteEngine.create(folder / "own.shelf"),
        "PostgreSQL": over,
    }
    times: dict[tuple[str, int], list[float]] = {}
    for _ in range(options.rounds):
        for rows in SIZES:
            for name, engine in engines.items():
                found = measure(engine, options.commits, rows)
                times.setdefault((name, rows), []).extend(found)
    print(f"{'':22}{'SQLite':>12}{'PostgreSQL':>12}{'ratio':>8}{'p99':>8}")
    for rows in SIZES:
        alone, decided = times["SQLite", rows], times["PostgreSQL", rows]
        here, there = statistics.median(decided), statistics.median(alone)
        ends = _p99(decided) / _p99(alone)
        label = f"{rows} rows per commit"
        print(f"{label:22}{_us(there):>12}{_us(here):>12}{here / there:>8.2f}{ends:>8.2f}")
    for engine in engines.values():
        engine.close()
    cluster.close()


def _p99(times: list[float]) -> float:
    return sorted(times)[int(len(times) * 0.99)]


def _us(seconds: float) -> str:
    return f"{seconds * 1e6:.0f} us"


def load_servers() -> Any:
    """Return the module of the tests that starts servers."""
    sys.path.append(os.fspath(File(__file__).parent.parent))
    return importlib.import_module("tests.postgresql")


def main() -> None:
    """Read the arguments, measure, print."""
    parser = argparse.ArgumentParser(description="Measure commits over PostgreSQL and on SQLite.")
    parser.add_argument("--standbys", type=int, default=0)
    parser.add_argument("--commits", type=int, default=1000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--folder", type=File, help="where temporary files are made")
    options = parser.parse_args()
    parent = options.folder or File(tempfile.gettempdir())
    with (
        load_servers().servers(options.standbys, parent, is_durable=True) as running,
        tempfile.TemporaryDirectory(dir=parent) as folder,
    ):
        run(options, File(folder), running.dsn)


if __name__ == "__main__":
    main()
