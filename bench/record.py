"""What a run of measurements was made on, and what came of it: as a record and as tables."""

from __future__ import annotations

import datetime
import os
import platform
import re
import statistics
import subprocess
import sysconfig
from pathlib import Path
from typing import Any

import attrs
from cases import KLEIN, Case
from cryptography.hazmat.backends.openssl import backend
from load import Sample

FULL = 0.9  # a load that uses more of its core may be the bottleneck
COLUMNS = ("", "of Klein", "aim", "p50 ms", "p99 ms", "of the floor")


@attrs.frozen
class Row:
    """Medians of all rounds; multiples are of the reference in the same round.

    `is_least` says that the load was the bottleneck, so the server can do at least this.
    """

    name: str
    klein: float
    aim: float | None
    p50_ms: float
    p99_ms: float
    floor: float | None = None
    is_least: bool = False

    def cells(self) -> tuple[str, ...]:
        """Return the row as text."""
        least = "≥ " if self.is_least else ""
        floor = "" if self.floor is None else f"{least}{self.floor:.2f}"
        return (
            self.name,
            f"{least}{significant(self.klein)}",
            "" if self.aim is None else f"{self.aim:g}",
            significant(self.p50_ms),
            significant(self.p99_ms),
            floor,
        )


def significant(value: float) -> str:
    """Return a number with two digits that count, or without a fraction."""
    if value < 0.1:
        return f"{value:.2g}"
    return f"{value:.{0 if value >= 100 else 1 if value >= 10 else 2}f}"


def make_rows(cases: list[Case], rounds: dict[str, list[Sample]]) -> list[Row]:
    """Compare each case with Klein and with its floor."""

    def multiple(name: str, reference: str) -> float:
        pairs = zip(rounds[name], rounds[reference], strict=True)
        return statistics.median(each.rate / other.rate for each, other in pairs)

    def median(name: str, attribute: str) -> float:
        found: list[float] = [getattr(each, attribute) for each in rounds[name]]
        return statistics.median(found)

    return [
        Row(
            case.name,
            multiple(case.name, KLEIN),
            case.aim,
            median(case.name, "p50_ms"),
            median(case.name, "p99_ms"),
            None if case.floor is None else multiple(case.name, case.floor),
            median(case.name, "busy") > FULL,
        )
        for case in cases
    ]


def print_table(rows: list[Row], *, markdown: bool) -> None:
    """Print rows in columns, or as a table of Markdown."""
    if markdown:
        for cells in (COLUMNS, ("---",) * len(COLUMNS), *(row.cells() for row in rows)):
            print(f"| {' | '.join(cells)} |")
        return
    for cells in (COLUMNS, *(row.cells() for row in rows)):
        print(f"{cells[0]:34}" + "".join(f"{cell:>13}" for cell in cells[1:]))


def describe_machine() -> dict[str, Any]:
    """Return what the figures depend on besides the code."""
    return {
        "processor": _processor(),
        "cores": os.cpu_count(),
        "kernel": f"{platform.system()} {platform.release()}",
        "python": platform.python_version(),
        "python_is_optimised": is_optimised(),
        "openssl": backend.openssl_version_text(),
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "commit": _commit(),
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


def _commit() -> str | None:
    """Return the commit that is checked out, marked if files differ; None without git."""
    command = ["git", "describe", "--always", "--dirty", "--exclude=*"]
    try:
        done = subprocess.run(
            command, cwd=Path(__file__).parent, capture_output=True, text=True, check=False
        )
    except FileNotFoundError:
        return None
    return done.stdout.strip() or None
