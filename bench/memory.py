"""The memory of a daemon: at rest, after some requests, and with as many kept answers as it may.

    .venv/bin/python bench/memory.py [--kept-mib N]

Prints the resident memory of the process (RSS, as Linux counts it) in MB of a million bytes, of a
daemon with two projects. Kept answers are those to different queries of one object of 10 KB, until
their bytes are more than twice what may be kept.
"""

from __future__ import annotations

import argparse
import itertools
import json
import pathlib
import tempfile

from servers import put, serve_treedb
from streams import resident_bytes
from worlds import OBJECTS, answer_size, children

CONFIG = """
default_project = "demo"
[limits]
kept_answer_bytes = {}
[projects.demo]
rules_file = "open.json"
[projects.other]
rules_file = "open.json"
"""
KEPT_MIB = 64
MIB = 1 << 20
PATHS = ("object.json", "object/u0000001/name.json", "object.json?shallow=true")


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kept-mib", type=int, default=KEPT_MIB, help="the most that is kept")
    most = parser.parse_args().kept_mib * MIB
    with (
        tempfile.TemporaryDirectory() as folder,
        serve_treedb(folder, CONFIG.format(most)) as base,
    ):
        report("at rest", folder)
        put(f"{base}/object.json", json.dumps(children(OBJECTS["10 KB"])))
        for path in PATHS:
            answer_size(f"{base}/{path}")
        report("after some requests", folder)
        fill(base, 2 * most)
        report(f"with {most // MIB} MiB of kept answers", folder)


def measure_rest(checkout: pathlib.Path) -> int:
    """Return the bytes of a daemon of a checkout that has just started."""
    config = CONFIG.format(KEPT_MIB * MIB)
    with (
        tempfile.TemporaryDirectory() as folder,
        serve_treedb(folder, config, checkout=checkout),
    ):
        return resident_bytes(folder)


def fill(base: str, total: int) -> None:
    """Read different answers, until their bytes are `total`."""
    received = 0
    for number in itertools.count():
        query = f"orderBy=%22$key%22&endAt=%22u1{number:06}%22"
        received += answer_size(f"{base}/object.json?{query}")
        if received >= total:
            return


def report(state: str, folder: str) -> None:
    """Print one line."""
    print(f"{state:32}{resident_bytes(folder) / 1e6:8.1f} MB", flush=True)


if __name__ == "__main__":
    main()
