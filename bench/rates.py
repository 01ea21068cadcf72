"""Requests a second over HTTP, as multiples of a bare Klein route that answers 50 bytes.

    .venv/bin/python bench/rates.py [--beside CHECKOUT] [--seconds S] [--rounds N] [--only PATTERN]
        [--records N] [--streams N] [--import-mb MB] [--record FILE] [--markdown]

The servers share one core, the load has another. Each round measures all cases one after the other,
so that a machine that slows down slows all of them; a multiple is that of one round, and the median
of the rounds is printed. With `--beside` each case is measured with the treedb of another checkout
too, right before or after: `before` is its figure, and `after : before` compares both in the same
round. All daemons have a configuration; development mode prints a line for each request. "First
read" is by a daemon that keeps no answers (`kept_answer_bytes = 0`); what a connection remembers of
its requests is kept there too. `of the floor` compares with a constant reply of the same size by
the HTTP server of treedb, a write with SQLite in batches, or with the disk. `--only` is a regular
expression; the references that a row needs are measured too. `≥` marks rows in which the load was
the bottleneck. docs/performance.md explains the rest.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import re
from pathlib import Path
from typing import Any

import attrs
from cases import KLEIN, Case, make_cases
from memory import measure_rest
from record import Rounds, describe_machine, make_rows, print_tables, print_verdict
from servers import CHECKOUT
from streams import AIMS_KIB, allow_connections, measure_idle
from worlds import Measure, References, Size, World

IDLE, REST = "an idle stream", "memory at rest"
AIM_MB = 70


def main() -> None:
    """Measure, print and record."""
    options = parse()
    size = Size(options.records, options.streams, options.import_mb)
    cases = choose(make_cases(size), options.only)
    checkouts = [CHECKOUT] if options.beside is None else [CHECKOUT, options.beside]
    allow_connections()  # the process itself stays on all cores: so do workers, which inherit that
    with contextlib.ExitStack() as opened:
        references = References(opened)
        worlds = [World(opened, references, size, checkout) for checkout in checkouts]
        found = measure_all(cases, worlds, options.rounds, options.seconds)
    rows, machine = make_rows(cases, found), describe_machine(checkouts)
    others = measure_others(options, checkouts)
    print_machine(machine)
    print_tables(rows, markdown=options.markdown)
    print_others(others)
    print_verdict(rows)
    if options.record is not None:
        record = make_record(machine, options, found) | {
            "rows": [attrs.asdict(row) for row in rows],
            "others": others,
        }
        options.record.write_text(f"{json.dumps(record, indent=1)}\n")


def parse() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--beside", type=Path, metavar="CHECKOUT", help="measure this treedb too")
    parser.add_argument("--seconds", type=float, default=0.5, help="of each case in each round")
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--only", type=re.compile, default="", metavar="PATTERN")
    size = Size()
    parser.add_argument("--records", type=int, default=size.records, help="leaves, and indexed")
    parser.add_argument("--streams", type=int, default=size.streams)
    parser.add_argument("--import-mb", type=float, default=size.import_mb, help="92 takes long")
    parser.add_argument("--record", type=Path, metavar="FILE", help="write all rounds as JSON")
    parser.add_argument("--markdown", action="store_true", help="print a table of Markdown")
    options = parser.parse_args()
    if options.beside is not None:
        options.beside = options.beside.resolve()
        if not (options.beside / "treedbd").is_dir():
            parser.error(f"{options.beside} is not a checkout of treedb.")
    return options


def choose(cases: list[Case], only: re.Pattern[str]) -> list[Case]:
    """Return the cases whose name matches, and the references that they are compared with."""
    by_name = {case.name: case for case in cases}
    needed = {KLEIN}
    waiting = [case.name for case in cases if re.search(only, case.name)]
    while waiting:
        name = waiting.pop()
        needed.add(name)
        others = {by_name[name].of, by_name[name].floor} - {None, *needed}
        waiting += [other for other in others if other is not None]
    return [case for case in cases if case.name in needed]


def measure_all(cases: list[Case], worlds: list[World], rounds: int, seconds: float) -> Rounds:
    """Measure all cases one after the other, several times, each in all worlds."""
    measures: dict[str, list[Measure]] = {}
    for case in cases:
        used = worlds[:1] if case.is_reference else worlds
        measures[case.name] = [case.make(world) for world in used]
        if case.every == 1:
            for measure in measures[case.name]:
                measure(min(seconds, 0.2))  # what is done only once is not measured
    found: Rounds = {case.name: [[] for _ in measures[case.name]] for case in cases}
    for number in range(rounds):
        for case in cases:
            pairs = list(zip(measures[case.name], found[case.name], strict=True))
            if number % case.every == 0:
                for measure, samples in pairs if number % 2 else reversed(pairs):
                    samples.append(measure(seconds))
    return found


def measure_others(
    options: argparse.Namespace, checkouts: list[Path]
) -> dict[str, dict[str, float]]:
    """Measure the memory of idle streams, and that of a daemon at rest in each checkout."""
    found: dict[str, dict[str, float]] = {}
    if re.search(options.only, REST):
        names = ("now", "before")
        rest = [measure_rest(checkout) / 1e6 for checkout in checkouts]
        found[REST] = dict(zip(names, rest, strict=False))
    if re.search(options.only, IDLE):
        found[IDLE] = measure_idle(streams=options.streams)
    return found


def print_others(others: dict[str, dict[str, float]]) -> None:
    """Print what has no requests, a line for each."""
    if REST in others:
        each = ", ".join(f"{name} {mb:.1f} MB" for name, mb in others[REST].items())
        print(f"\n{REST}, two projects: {each} (aim {AIM_MB})")
    for kind, kib in others.get(IDLE, {}).items():
        print(f"\n{IDLE}, {kind}: {kib:.1f} KiB (aim {AIMS_KIB[kind]})")


def print_machine(machine: dict[str, Any]) -> None:
    """Print one line about the machine."""
    optimised = "optimised" if machine["python_is_optimised"] else "not optimised"
    before = f", before: {machine['before']}" if machine["before"] else ""
    print(
        f"{machine['processor']}, {machine['cores']} cores; Python {machine['python']}, "
        f"{optimised}; {machine['openssl']}; {machine['kernel']}; commit "
        f"{machine['commit']}{before}\n"
    )


def make_record(
    machine: dict[str, Any], options: argparse.Namespace, found: Rounds
) -> dict[str, Any]:
    """Return the samples of all rounds with what they depend on, as JSON."""
    names = ("seconds", "rounds", "records", "streams", "import_mb")
    rounds, before = (
        {
            name: [attrs.asdict(sample) for sample in worlds[index]]
            for name, worlds in found.items()
            if index < len(worlds)
        }
        for index in (0, 1)
    )
    return {
        "machine": machine,
        "parameters": {name: getattr(options, name) for name in names},
        "rounds": rounds,
        "before": before,
    }


if __name__ == "__main__":
    main()
