"""The rate of small PUTs with an archive in a folder, or with an audit, to that without.

    .venv/bin/python bench/archived.py [--seconds S] [--rounds N] [--sealed | --audit]

Two daemons serve one core, the load has another; each round measures both, right one after the
other. With `--sealed` the archive has a key. With `--audit` writes are audited, not archived.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import secrets
import statistics
import tempfile
from base64 import b64encode
from collections.abc import Iterator
from pathlib import Path

from callers import request
from load import Load, Sample, sample
from servers import CONFIG, LOAD_CORE, serve_treedb

CONNECTIONS = 32
KEYS = 99_991


def requests(base: str) -> Iterator[bytes]:
    """Yield PUTs of 50 bytes at paths that look random."""
    for number in itertools.count():
        target = f"put/k{number * 7919 % KEYS:06}.json"
        yield request(base, target, "PUT", f'"{number:048}"')


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=5.0, help="of each sample")
    parser.add_argument("--rounds", type=int, default=5)
    kind = parser.add_mutually_exclusive_group()
    kind.add_argument("--sealed", action="store_true")
    kind.add_argument("--audit", action="store_true")
    options = parser.parse_args()
    with contextlib.ExitStack() as opened:
        folders = [Path(opened.enter_context(tempfile.TemporaryDirectory())) for _ in range(3)]
        archive = f'[archive]\nto = "{folders[2]}"\n'
        if options.sealed:
            file = folders[0] / "archive.key"
            file.touch(0o600)
            file.write_bytes(b64encode(secrets.token_bytes(32)))
            archive += f'key_file = "{file}"\n'
        audit = f'[audit]\ndirectory = "{folders[2]}"\n'
        configs = [CONFIG, f"{CONFIG}\n{audit if options.audit else archive}"]
        loads = []
        for folder, config in zip(folders[:2], configs, strict=True):
            base = opened.enter_context(serve_treedb(str(folder), config))
            pid = int((folder / "pid").read_text())
            loads.append(Load(base, requests(base), CONNECTIONS, pid=pid))
        found = measure(loads, options.rounds, options.seconds)
    for what, samples in zip(("without", "with"), found, strict=True):
        rate = statistics.median(each.rate for each in samples)
        p99 = statistics.median(each.p99_ms or 0.0 for each in samples)
        us = statistics.median(each.us or 0.0 for each in samples)
        print(f"{what}: {rate:,.0f} PUT/s, p99 {p99:.1f} ms, {us:.0f} us of the processor each")
    ratios = [archived.rate / plain.rate for plain, archived in zip(*found, strict=True)]
    print(f"{statistics.median(ratios):.3f} of the rate without ({', '.join(_texts(ratios))})")


def measure(loads: list[Load], rounds: int, seconds: float) -> list[list[Sample]]:
    """Return the samples of each load."""
    found: list[list[Sample]] = [[] for _ in loads]
    for load in loads:
        sample(load, 1.0, LOAD_CORE)
    for number in range(rounds):
        order = list(zip(loads, found, strict=True))
        for load, samples in order if number % 2 else reversed(order):
            samples.append(sample(load, seconds, LOAD_CORE))
    return found


def _texts(ratios: list[float]) -> list[str]:
    return [f"{each:.3f}" for each in ratios]


if __name__ == "__main__":
    main()
