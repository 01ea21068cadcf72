"""Requests a second over HTTP, beside a bare Klein route and a bare `twisted.web` Resource.

    .venv/bin/python bench/rates.py [--seconds S] [--rounds N]

The servers share one core, the load has another. All are measured in turn, round by round, so that
a machine that slows down slows all of them; medians and ratios are printed. The references return
the same number of bytes from memory, with their length; treedb reads them from its store at a deep
path.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile

from load import measure
from servers import LOAD_CORE, put, serve_reference, serve_treedb

DEEP = "apps/shop/users/u0000001/profile"
SIZES = {"50 B": 50, "10 KB": 10_240, "1 MB": 1_048_576}


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=3)
    parser.add_argument("--rounds", type=int, default=5)
    wanted = parser.parse_args()
    with (
        tempfile.TemporaryDirectory() as folder,
        serve_treedb(folder) as base,
        serve_reference("klein") as klein,
        serve_reference("web") as web,
    ):
        cases: dict[str, tuple[str, int, str | None]] = {}
        for name, size in SIZES.items():
            put(f"{base}/{DEEP}/{size}/value.json", '"%s"' % ("x" * (size - 2)))
            cases[f"GET {name}, treedb"] = (f"{base}/{DEEP}/{size}/value.json", 32, None)
            cases[f"GET {name}, Klein"] = (f"{klein}/{size}", 32, None)
            cases[f"GET {name}, twisted.web"] = (f"{web}/{size}", 32, None)
        cases["PUT durable, 1 connection"] = (f"{base}/{DEEP}/put.json", 1, '"small"')
        cases["PUT durable, 32 connections"] = (f"{base}/{DEEP}/put.json", 32, '"small"')
        rates: dict[str, list[float]] = {name: [] for name in cases}
        for _ in range(wanted.rounds):
            for name, (url, connections, body) in cases.items():
                rates[name].append(measure(url, connections, wanted.seconds, LOAD_CORE, body))
    report({name: statistics.median(found) for name, found in rates.items()})


def report(rates: dict[str, float]) -> None:
    """Print the rates, and the ratios that matter."""
    for name, rate in rates.items():
        print(f"{name:32} {rate:10,.0f}/s")
    print()
    for size in SIZES:
        for other in ("Klein", "twisted.web"):
            ratio = rates[f"GET {size}, treedb"] / rates[f"GET {size}, {other}"]
            print(f"GET {size}: treedb is {ratio:.2f} of {other}")
    for name in ("PUT durable, 1 connection", "PUT durable, 32 connections"):
        print(f"{name}: {rates[name] / rates['GET 50 B, treedb']:.2f} of GET 50 B")


if __name__ == "__main__":
    main()
