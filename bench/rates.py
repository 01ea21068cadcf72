"""Requests a second over HTTP, as multiples of a bare Klein route that answers 50 bytes.

    .venv/bin/python bench/rates.py [--seconds S] [--rounds N] [--only PATTERN] [--streams N]
        [--record FILE] [--markdown]

The servers share one core, the load has another. Each round measures all cases one after the other,
so that a machine that slows down slows all of them; a multiple is that of one round, and the median
of the rounds is printed. "First read" is by a treedb that keeps no answers (`kept_answer_bytes =
0`); what a connection remembers of its requests is kept there too. `of the floor` compares with a
constant reply of the same size by the HTTP server of treedb: Python, the parser and the system
without the database. `--only` is a regular expression; the references that a row needs are measured
too. `≥` marks rows in which the load was the bottleneck. docs/performance.md explains the rest.
"""

from __future__ import annotations

import argparse
import json
import re
from pathlib import Path
from typing import Any

import attrs
from cases import KLEIN, Case, make_cases, serve_all
from load import Sample, sample
from record import Row, describe_machine, make_rows, print_table
from servers import LOAD_CORE
from streams import AIMS_KIB, measure_fan_out, measure_idle, prepare

FAN_OUT, FAN_OUT_AIM = "fan-out, events", 22
IDLE = "idle stream, KiB"


def main() -> None:
    """Measure, print and record."""
    options = parse()
    with serve_all() as servers:
        cases = choose(make_cases(servers), options.only)
        rounds = measure_all(cases, options.rounds, options.seconds)
    rows = make_rows(cases, rounds)
    streams = measure_streams(options)
    if FAN_OUT in streams:
        found = streams[FAN_OUT]
        aim, delays = FAN_OUT_AIM, (found["p50_ms"], found["p99_ms"])
        rows.append(Row(f"{FAN_OUT}, {options.streams:,} streams", found["ratio"], aim, *delays))
    machine = describe_machine()
    print_machine(machine)
    print_table(rows, markdown=options.markdown)
    for kind, kib in streams.get(IDLE, {}).items():
        print(f"\nAn idle stream, {kind}: {kib:.1f} KiB (aim {AIMS_KIB[kind]}).")
    if options.record is not None:
        record = make_record(machine, options, rows, rounds, streams)
        options.record.write_text(f"{json.dumps(record, indent=1)}\n")


def parse() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seconds", type=float, default=2, help="of each case in each round")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--only", type=re.compile, default="", metavar="PATTERN")
    parser.add_argument("--streams", type=int, default=1000)
    parser.add_argument("--record", type=Path, metavar="FILE", help="write all rounds as JSON")
    parser.add_argument("--markdown", action="store_true", help="print a table of Markdown")
    return parser.parse_args()


def choose(cases: list[Case], only: re.Pattern[str]) -> list[Case]:
    """Return the cases whose name matches, and the references that they are compared with."""
    chosen = [case for case in cases if re.search(only, case.name)]
    needed = {KLEIN, *(case.name for case in chosen), *(case.floor for case in chosen)}
    return [case for case in cases if case.name in needed]


def measure_all(cases: list[Case], rounds: int, seconds: float) -> dict[str, list[Sample]]:
    """Measure all cases one after the other, several times; return the samples of each."""
    found: dict[str, list[Sample]] = {case.name: [] for case in cases}
    for _ in range(rounds):
        for case in cases:
            found[case.name].append(sample(case.load, seconds, LOAD_CORE))
    return found


def measure_streams(options: argparse.Namespace) -> dict[str, dict[str, float]]:
    """Measure what is wanted of the streams."""
    found = {}
    prepare()
    if re.search(options.only, FAN_OUT):
        found[FAN_OUT] = measure_fan_out(
            listeners=options.streams,
            rounds=options.rounds,
            events=20 * options.streams,
            seconds=options.seconds,
        )
    if re.search(options.only, IDLE):
        found[IDLE] = measure_idle(streams=options.streams)
    return found


def print_machine(machine: dict[str, Any]) -> None:
    """Print one line about the machine."""
    optimised = "optimised" if machine["python_is_optimised"] else "not optimised"
    print(
        f"{machine['processor']}, {machine['cores']} cores; Python {machine['python']}, "
        f"{optimised}; {machine['openssl']}; {machine['kernel']}; commit {machine['commit']}\n"
    )


def make_record(
    machine: dict[str, Any],
    options: argparse.Namespace,
    rows: list[Row],
    rounds: dict[str, list[Sample]],
    streams: dict[str, dict[str, float]],
) -> dict[str, Any]:
    """Return all that was measured, as JSON."""
    names = ("seconds", "rounds", "streams")
    return {
        "machine": machine,
        "parameters": {name: getattr(options, name) for name in names},
        "rows": [attrs.asdict(row) for row in rows],
        "rounds": {
            name: [attrs.asdict(each) for each in samples] for name, samples in rounds.items()
        },
        "streams": streams,
    }


if __name__ == "__main__":
    main()
