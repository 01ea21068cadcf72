"""What requests cost on a big collection, as multiples of the same on one of 10,000 records.

    .venv/bin/python bench/big_trees.py [--records N] [--small N] [--rounds N] [--samples N]

Both collections are in databases of one daemon, which keeps no answers, so each read is a first
read. The records have about 250 bytes; the rules name the indexes. They are loaded by `treedb
import`. Each round sends all requests to both alternately, each time for other records. Printed are
medians of all samples in ms, and their ratio; 1.30 is the aim. A request that fails is printed with
its status. Then the daemon is killed and started: printed are how long the start takes, the first
requests after it, and the memory.

With `--records 10000000` it shows one very big collection: 2.8 GB of JSON, and about twice as much
on the disk.
"""

from __future__ import annotations

import argparse
import itertools
import random
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator

import attrs
from sessions import Records, Server, Session, encode

AIM = 1.3
MIB = 1 << 20
PLACE = "records"
RULES = {".read": True, ".write": True, PLACE: {".indexOn": ["age", "group"]}}

Request = tuple[str, str, str, bytes | None]


@attrs.frozen
class Tree:
    """One collection: its records, its client, and the numbers of records to write or remove."""

    records: Records
    session: Session
    random: random.Random
    new: Iterator[int]

    def any_key(self) -> str:
        """Return the key of a record."""
        return self.records.key(self.random.randrange(self.records.count))


def read_point(tree: Tree) -> Request:
    """Read one leaf."""
    return "GET", f"{PLACE}/{tree.any_key()}/name", "", None


def read_record(tree: Tree) -> Request:
    """Read a whole record."""
    return "GET", f"{PLACE}/{tree.any_key()}", "", None


def patch_record(tree: Tree) -> Request:
    """Change two children of a record, one of which has an index."""
    number = tree.random.randrange(tree.records.count)
    changes = {"age": tree.random.randrange(tree.records.count), "city": "Bern"}
    return "PATCH", f"{PLACE}/{tree.records.key(number)}", "print=silent", encode(changes)


def write_record(tree: Tree) -> Request:
    """Replace a record by one whose indexed children differ."""
    number = tree.random.randrange(tree.records.count)
    value = tree.records.value(number) | {"age": tree.random.randrange(tree.records.count)}
    return "PUT", f"{PLACE}/{tree.records.key(number)}", "print=silent", encode(value)


def read_last(tree: Tree) -> Request:
    """Read the last 50 by key; the limit varies so that nothing is remembered."""
    return "GET", PLACE, 'orderBy="$key"&limitToLast=50', None


def read_between(tree: Tree) -> Request:
    """Read about 50 records by an indexed child, between bounds."""
    first = tree.random.randrange(max(1, tree.records.count - 50))
    return "GET", PLACE, f'orderBy="age"&startAt={first}&endAt={first + 49}', None


def read_equal(tree: Tree) -> Request:
    """Read the 50 records whose indexed child has one value."""
    group = tree.random.randrange(max(1, tree.records.count // 50))
    return "GET", PLACE, f'orderBy="group"&equalTo="g{group}"', None


def read_page(tree: Tree) -> Request:
    """Read 1,000 records by key."""
    return "GET", PLACE, f'orderBy="$key"&startAt="{tree.any_key()}"&limitToFirst=1000', None


def read_shallow_page(tree: Tree) -> Request:
    """Read 1,000 keys."""
    query = f"shallow=true&startAfter={tree.any_key()}&limitToFirst=1000"
    return "GET", PLACE, query, None


def append(tree: Tree) -> Request:
    """Append a record."""
    return "POST", PLACE, "", encode(tree.records.value(next(tree.new)))


TASKS: dict[str, Callable[[Tree], Request]] = {
    "point read": read_point,
    "record read": read_record,
    "record write": write_record,
    "record patch": patch_record,
    "limitToLast=50 by $key": read_last,
    "orderBy child, 50 between bounds": read_between,
    "equalTo, 50": read_equal,
    "page of 1,000 by $key": read_page,
    "shallow page of 1,000": read_shallow_page,
    "append": append,
}


def main() -> None:
    """Load, measure and print."""
    options = parse()
    sizes = {"big": options.records, "small": options.small}
    with tempfile.TemporaryDirectory() as folder, Server(folder) as server:
        trees = {name: make_tree(server.url, name, count) for name, count in sizes.items()}
        trees["big"].session.put_rules(RULES)
        for name, tree in trees.items():
            import_records(server, name, tree.records)
        for tree in trees.values():
            tree.session.close()  # a connection that was idle for so long may be closed by now
        print_head()
        for name, found in measure(trees, options.rounds, options.samples).items():
            print_row(name, found)
        print(f"longest turn: {trees['big'].session.read_turns().get('longest_ms', '-')} ms")
        print(f"memory at most: {server.memory('VmHWM') / MIB:.0f} MiB")
        restart(server, trees)


def import_records(server: Server, name: str, records: Records) -> None:
    """Load a collection by the command, from a file that is removed afterwards."""
    file = server.folder / f"{name}.ndjson"
    with file.open("wb") as lines:
        for number in range(records.count):
            line = {"key": records.key(number), "value": records.value(number)}
            lines.write(encode(line) + b"\n")
    url = f"{server.url}/{PLACE}?ns={name}--demo"
    begin, cpu = time.perf_counter(), server.cpu_s()
    subprocess.run([sys.executable, "-m", "treedbd", "import", file, url, "--quiet"], check=True)
    rate = file.stat().st_size / (time.perf_counter() - begin) / 1e6
    print(
        f"{name}: {records.count:,} records imported in {since(begin)}, {rate:.1f} MB/s, "
        f"{(server.cpu_s() - cpu) / records.count * 1e6:.1f} µs of the daemon for each",
        flush=True,
    )
    file.unlink()


def restart(server: Server, trees: dict[str, Tree]) -> None:
    """Kill the daemon and start it; print what that and the first requests take."""
    server.kill()
    begin = time.perf_counter()
    server.start()
    print(f"\nstart after a kill: {since(begin)}")
    for tree in trees.values():
        tree.session.close()  # the next request connects again
    print_head()
    for task in ("point read", "orderBy child, 50 between bounds", "record write"):
        asked = {name: tree.session.ask(*TASKS[task](tree)) for name, tree in trees.items()}
        times = {
            name: [seconds if status < 300 else status]
            for name, (status, _, seconds) in asked.items()
        }
        print_row(f"first {task}", times)
    print(f"memory after them: {server.memory('VmRSS') / MIB:.0f} MiB")


def print_head() -> None:
    """Print the names of the columns."""
    print(f"\n{'':40}{'big, ms':>10}{'small, ms':>10}{'ratio':>8}  (aim ≤ {AIM:.2f})")


def parse() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--records", type=int, default=100_000)
    parser.add_argument("--small", type=int, default=10_000)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--samples", type=int, default=20, help="of each request in each round")
    return parser.parse_args()


def make_tree(url: str, database: str, count: int) -> Tree:
    """Return a collection, which is still to be loaded."""
    session = Session(url, database)
    return Tree(Records(count), session, random.Random(1), itertools.count(count))


def measure(
    trees: dict[str, Tree], rounds: int, samples: int
) -> dict[str, dict[str, list[float | int]]]:
    """Return the seconds of each task in each tree; a status in their place if it is an error."""
    found: dict[str, dict[str, list[float | int]]] = {
        name: {tree: [] for tree in trees} for name in TASKS
    }
    for _ in range(rounds):
        for name, task in TASKS.items():
            for _ in range(samples):
                for tree_name, tree in trees.items():
                    if found[name][tree_name][-1:] == [504]:
                        continue  # it would only be another wait of 30 seconds
                    status, _, seconds = tree.session.ask(*task(tree))
                    found[name][tree_name].append(seconds if status < 300 else status)
    return found


def print_row(name: str, found: dict[str, list[float | int]]) -> None:
    """Print the medians of a task and their ratio."""
    failed = {tree: [each for each in times if each >= 300] for tree, times in found.items()}
    medians = {tree: statistics.median(times) for tree, times in found.items()}
    cells = [
        f"{failed[tree][0]:>10.0f}" if failed[tree] else f"{1000 * medians[tree]:>10.2f}"
        for tree in found
    ]
    ratio = "-" if any(failed.values()) else f"{medians['big'] / medians['small']:.2f}"
    print(f"{name:40}{''.join(cells)}{ratio:>8}", flush=True)


def since(begin: float) -> str:
    """Return the time since a moment, for readers."""
    return f"{time.perf_counter() - begin:.1f} s"


if __name__ == "__main__":
    main()
