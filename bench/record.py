"""What a run of measurements was made on, and what came of it: as a record and as tables."""

from __future__ import annotations

import datetime
import os
import platform
import re
import statistics
import subprocess
import sys
import sysconfig
from pathlib import Path
from typing import Any

import attrs
from cases import Case
from cryptography.hazmat.backends.openssl import backend
from load import Sample

FULL = 0.9  # a load that uses more of its core may be the bottleneck
SLOWER = 0.97
COLUMNS = ("", "of Klein", "p50 ms", "p99 ms")
MORE = ("aim", "of the floor", "us")
COMPARED = ("before", "after : before", "us, before : after")

Rounds = dict[str, list[list[Sample]]]
"""The samples of each case: of this checkout, then of the one beside it, in order of the rounds."""


@attrs.frozen
class Row:
    """Medians of all rounds; multiples are of the reference in the same round.

    `figure` is the multiple of the case `of`, or a rate of its own if that is None. `is_least` says
    that the load was the bottleneck, so the server can do at least this. `faster` is the rate as a
    multiple of that of the checkout beside, `cheaper` the processor time that a request takes there
    as a multiple of what it takes here.
    """

    name: str
    figure: float
    of: str | None
    aim: float | None = None
    p50_ms: float | None = None
    p99_ms: float | None = None
    floor: float | None = None
    us: float | None = None
    before: float | None = None
    faster: float | None = None
    cheaper: float | None = None
    unit: str = ""
    is_least: bool = False
    is_change: bool = False
    is_reference: bool = False

    def cells(self) -> tuple[str, ...]:
        """Return the columns that all rows have, as text."""
        figure = f"{self._least()}{self._shown(self.figure)} {self.unit}".strip()
        return self.name, figure, significant(self.p50_ms), significant(self.p99_ms)

    def more(self) -> tuple[str, ...]:
        """Return the columns of treedb, as text."""
        floor = "" if self.floor is None else f"{self._least()}{self.floor:.2f}"
        return self._shown(self.aim, exact=True), floor, significant(self.us)

    def compared(self) -> tuple[str, ...]:
        """Return what compares it with the checkout beside, as text."""
        return self._shown(self.before), significant(self.faster), significant(self.cheaper)

    def _least(self) -> str:
        return "≥ " if self.is_least else ""

    def _shown(self, figure: float | None, *, exact: bool = False) -> str:
        if figure is None:
            return ""
        if self.is_change:
            return f"{100 * (figure - 1):+.0f} %"
        return f"{figure:g}" if exact else significant(figure)


def significant(value: float | None) -> str:
    """Return a number with two digits that count, or without a fraction; nothing for None."""
    if value is None:
        return ""
    if value < 0.1:
        return f"{value:.2g}"
    return f"{value:.{0 if value >= 100 else 1 if value >= 10 else 2}f}"


def make_rows(cases: list[Case], rounds: Rounds) -> list[Row]:
    """Compare each case with its reference, with its floor and with the checkout beside."""
    return [_make_row(case, rounds) for case in cases]


def _make_row(case: Case, rounds: Rounds) -> Row:
    samples, before = rounds[case.name][0], rounds[case.name][1:]

    def multiple(of: str | None, world: int = 0) -> float:
        found = [each.rate for each in rounds[case.name][world]]
        if of is not None:
            others = [each.rate for each in rounds[of][world if len(rounds[of]) > world else 0]]
            found = [rate / other for rate, other in zip(found, others, strict=True)]
        return statistics.median(found)

    def ratio(attribute: str) -> float | None:
        pairs = zip(values(attribute, samples), values(attribute, *before), strict=True)
        found = [new / old for new, old in pairs]
        return statistics.median(found) if found else None

    us = ratio("us") if before else None
    return Row(
        name=case.name,
        figure=multiple(case.of),
        of=case.of,
        unit=case.unit,
        aim=case.aim,
        p50_ms=_median(values("p50_ms", samples)),
        p99_ms=_median(values("p99_ms", samples)),
        floor=None if case.floor is None else multiple(case.floor),
        us=_median(values("us", samples)),
        before=multiple(case.of, 1) if before else None,
        faster=ratio("rate") if before else None,
        cheaper=1 / us if us else None,
        is_least=statistics.median(values("busy", samples)) > FULL,
        is_change=case.is_change,
        is_reference=case.is_reference,
    )


def values(attribute: str, samples: list[Sample]) -> list[float]:
    """Return a figure of each sample, of those that have it."""
    found = (getattr(each, attribute) for each in samples)
    return [value for value in found if value is not None]


def _median(found: list[float]) -> float | None:
    return statistics.median(found) if found else None


def print_tables(rows: list[Row], *, markdown: bool) -> None:
    """Print the rows of treedb and those of the references, in columns or as Markdown."""
    ours = [row for row in rows if not row.is_reference]
    compared = COMPARED if any(row.before is not None for row in ours) else ()
    lines = [(*row.cells(), *row.more(), *(row.compared() if compared else ())) for row in ours]
    _print_table([(*COLUMNS, *MORE, *compared), *lines], markdown=markdown)
    print()
    _print_table([COLUMNS, *(row.cells() for row in rows if row.is_reference)], markdown=markdown)


def _print_table(lines: list[tuple[str, ...]], *, markdown: bool) -> None:
    if markdown:
        for cells in (lines[0], ("---",) * len(lines[0]), *lines[1:]):
            print(f"| {' | '.join(cells)} |")
        return
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    for cells in lines:
        row = f"{cells[0]:{widths[0]}}"
        for cell, width in zip(cells[1:], widths[1:], strict=True):
            row += f"  {cell:>{width}}"
        print(row)


def print_verdict(rows: list[Row]) -> None:
    """Print, apart from the tables, which rows miss their aim or are slower than before."""
    below = [row.name for row in rows if row.aim is not None and row.figure < row.aim]
    slower = [
        f"{row.name} ({significant(row.faster)}; us {significant(row.cheaper)})"
        for row in rows
        if row.faster is not None and row.faster < SLOWER
    ]
    for what, names in (("below the aim", below), (f"slower than {SLOWER}", slower)):
        print(f"{what}: {'; '.join(names) or 'nothing'}", file=sys.stderr)


def describe_machine(checkouts: list[Path]) -> dict[str, Any]:
    """Return what the figures depend on, with the commit of each checkout."""
    commit, before = [*map(_commit, checkouts), None][:2]
    return {
        "processor": _processor(),
        "cores": os.cpu_count(),
        "kernel": f"{platform.system()} {platform.release()}",
        "python": platform.python_version(),
        "python_is_optimised": is_optimised(),
        "openssl": backend.openssl_version_text(),
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "commit": commit,
        "before": before,
    }


def is_optimised() -> bool:
    """Return whether this Python was built with profile-guided optimisation.

    Those of Debian and Ubuntu are, though what they say of their build is that of their library.
    """
    arguments = sysconfig.get_config_var("CONFIG_ARGS") or ""
    return "--enable-optimizations" in arguments or "deb_system" in sysconfig.get_scheme_names()


def _processor() -> str:
    information = Path("/proc/cpuinfo")
    if information.exists():
        named = re.search(r"model name\s*: (.*)", information.read_text())
        if named is not None:
            return named[1]
    return platform.processor() or platform.machine()


def _commit(checkout: Path) -> str | None:
    """Return the commit that is checked out, marked if files differ; None without git."""
    command = ["git", "describe", "--always", "--dirty", "--exclude=*"]
    try:
        done = subprocess.run(command, cwd=checkout, capture_output=True, text=True, check=False)
    except FileNotFoundError:
        return None
    return done.stdout.strip() or None
