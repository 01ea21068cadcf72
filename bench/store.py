"""Measures the store alone, on SQLite: subtree rows against one row for each leaf.

Both use the same engine; each round does every task once with each, and the table shows medians and
ratios. Only the store is measured: no HTTP, no rules, one thread. A write is one durable
transaction.

    .venv/bin/python bench/store.py [--records N] [--record-bytes N] [--operations N] [--rounds N]
        [--folder DIR]
"""

from __future__ import annotations

import argparse
import gc
import random
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path as File
from typing import Any, Protocol

from treedbd.store.engine import ReadView, Transaction
from treedbd.store.node_writer import NodeWriter
from treedbd.store.nodes import Nodes
from treedbd.store.rows import below, seal
from treedbd.store.sqlite.engine import SqliteEngine
from treedbd.tree.path import encode_path
from treedbd.tree.types import Change, Path, Place, Value
from treedbd.tree.value import compact, members, plain

COLLECTION = "records"


class Store(Protocol):
    """One way to store the tree in rows."""

    def read(self, rows: ReadView, path: Path) -> bytes:
        """Print a subtree."""
        ...

    def write(self, transaction: Transaction, path: Path, value: Value) -> None:
        """Replace a subtree."""
        ...


class SubtreeRows:
    """As treedb stores it."""

    def read(self, rows: ReadView, path: Path) -> bytes:
        """Print a subtree."""
        return Nodes(rows).print(path)

    def write(self, transaction: Transaction, path: Path, value: Value) -> None:
        """Replace a subtree."""
        NodeWriter(transaction).apply([Change(Place(path), value)])


class LeafRows:
    """One row for each leaf, for comparison, without arrays and priorities.

    For a reader such rows are a tree in which every container is spread, so the same code reads
    both.
    """

    def read(self, rows: ReadView, path: Path) -> bytes:
        """Print a subtree."""
        return Nodes(rows).print(path)

    def write(self, transaction: Transaction, path: Path, value: Value) -> None:
        """Replace a subtree."""
        encoded = encode_path(path)
        transaction.delete(encoded)
        transaction.delete_range(*below(encoded))
        for depth in range(len(path)):
            transaction.delete(encode_path(path[:depth]))
        for leaf_path, leaf in _leaves(value, path):
            key = encode_path(leaf_path)
            transaction.put(key, seal(key, compact(leaf)))


def _leaves(value: Value, path: Path) -> Iterator[tuple[Path, Value]]:
    if not isinstance(value, dict):
        yield path, value
    for name, child in members(value):
        yield from _leaves(child, (*path, name))


def make_record(number: int, record_bytes: int) -> Value:
    """Return a record whose JSON has `record_bytes` bytes."""
    record: dict[str, Value] = {
        "active": number % 3 == 0,
        "address": {"city": f"City {number % 97}", "street": f"{number % 211} Main Street"},
        "age": number % 90,
        "email": f"person{number:06}@example.org",
        "name": f"Person {number:06}",
        "note": "",
        "score": number / 8,
        "visits": number * 7,
    }
    missing = record_bytes - len(compact(record))
    return {**record, "note": "n" * missing} if missing > 0 else record


class Bench:
    """One way to store rows, with its files and its measurements."""

    def __init__(self, name: str, store: Store, folder: File, records: Value) -> None:
        self.name = name
        self.store = store
        self.times: dict[str, list[float]] = {}
        self.bytes = 0
        self._folder = folder
        self._records = records
        self._engine: SqliteEngine | None = None

    @property
    def engine(self) -> SqliteEngine:
        """The file of this round."""
        assert self._engine is not None
        return self._engine

    def begin_round(self, number: int) -> None:
        """Start with a new file."""
        self._engine = SqliteEngine.create(self._file(number))

    def end_round(self, number: int) -> None:
        """Close the file and record its size."""
        self.engine.close()
        self.bytes = self._file(number).stat().st_size

    def _file(self, number: int) -> File:
        return self._folder / f"{self.name}-{number}.shelf"

    def measure(self, task: str, work: Callable[[Bench], Any], operations: int) -> None:
        """Do `work` and record the seconds of one operation."""
        gc.collect()
        start = time.perf_counter()
        work(self)
        self.times.setdefault(task, []).append((time.perf_counter() - start) / operations)

    def load(self) -> None:
        """Write the collection in one transaction."""
        self.write((COLLECTION,), self._records)

    def read(self, path: Path) -> bytes:
        """Print a subtree."""
        return self.engine.read(lambda rows: self.store.read(rows, path))

    def write(self, path: Path, value: Value) -> None:
        """Replace a subtree, durably."""
        transaction = self.engine.begin()
        self.store.write(transaction, path, value)
        transaction.commit()

    def write_many(self, changes: list[tuple[Path, Value]]) -> None:
        """Replace subtrees, one after the other in one durable transaction."""
        transaction = self.engine.begin()
        for path, value in changes:
            self.store.write(transaction, path, value)
        transaction.commit()


Task = tuple[str, Callable[[Bench], Any], int]


def make_tasks(places: list[Path], record_bytes: int) -> list[Task]:
    """Return the tasks: name, work, and the number of operations in it."""
    replaced = [(place, make_record(7, record_bytes)) for place in places]
    updated: list[tuple[Path, Value]] = [((*place, "visits"), 1) for place in places]
    count = len(places)
    return [
        ("load", Bench.load, 1),
        ("whole read", lambda bench: bench.read(()), 1),
        ("one record read", lambda bench: [bench.read(place) for place in places], count),
        ("one leaf read", lambda bench: [bench.read(place) for place, _ in updated], count),
        ("one record replaced", lambda bench: [bench.write(*c) for c in replaced], count),
        ("one leaf updated", lambda bench: [bench.write(*c) for c in updated], count),
        ("record replaced, batched", lambda bench: bench.write_many(replaced), count),
        ("leaf updated, batched", lambda bench: bench.write_many(updated), count),
    ]


def run(options: argparse.Namespace, folder: File) -> list[Bench]:
    """Measure both stores alternately."""
    names = [f"r{number:06}" for number in range(options.records)]
    records = {name: make_record(number, options.record_bytes) for number, name in enumerate(names)}
    whole = compact({COLLECTION: plain(records)})
    benches = [
        Bench("subtree rows", SubtreeRows(), folder, records),
        Bench("leaf rows", LeafRows(), folder, records),
    ]
    chance = random.Random(5)
    for number in range(options.rounds):
        for bench in benches:
            bench.begin_round(number)
        places: list[Path] = [
            (COLLECTION, name) for name in chance.choices(names, k=options.operations)
        ]
        for task, work, count in make_tasks(places, options.record_bytes):
            benches.reverse()
            for bench in benches:
                bench.measure(task, work, count)
                if task == "load" and bench.read(()) != whole:
                    raise SystemExit(f"{bench.name} are not read as they were loaded.")
        for bench in benches:
            bench.end_round(number)
    return sorted(benches, key=lambda bench: bench.name, reverse=True)


def print_table(benches: list[Bench]) -> None:
    """Print the medians and their ratios."""
    ours, other = benches
    print(f"{'':26}{ours.name:>14}{other.name:>14}{'ratio':>8}")
    for task in ours.times:
        here, there = (statistics.median(bench.times[task]) for bench in benches)
        print(f"{task:26}{_seconds(here):>14}{_seconds(there):>14}{here / there:>8.2f}")
    sizes = [f"{bench.bytes / 1e6:.1f} MB" for bench in benches]
    print(f"{'bytes on disk':26}{sizes[0]:>14}{sizes[1]:>14}{ours.bytes / other.bytes:>8.2f}")


def _seconds(seconds: float) -> str:
    return f"{seconds * 1e6:.1f} us" if seconds < 0.01 else f"{seconds:.3f} s"


def main() -> None:
    """Read the arguments, measure, print."""
    parser = argparse.ArgumentParser(description="Measure the store alone, on SQLite.")
    parser.add_argument("--records", type=int, default=100_000)
    parser.add_argument("--record-bytes", type=int, default=240)
    parser.add_argument("--operations", type=int, default=200)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--folder", type=File, help="where temporary files are made")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=options.folder) as folder:
        print_table(run(options, File(folder)))


if __name__ == "__main__":
    main()
