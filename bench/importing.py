"""The import of a file into a running daemon by `treedb import`, in MB of JSON a second."""

from __future__ import annotations

import itertools
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

from load import Sample, cpu_s, pin
from loading import Bench
from servers import LOAD_CORE, environment

RECORD_BYTES = 250


def measure_import(
    base: str, pid: int | None, folder: Path, megabytes: float, checkout: Path
) -> Callable[[float], Sample]:
    """Write a file of about so many MB; return what imports it to a new path each time.

    The command runs on the core of the load, and its start counts. `us` is the processor time of
    the daemon for each MB.
    """
    bench = Bench(folder, max(1, round(megabytes * 1e6 / RECORD_BYTES)))
    paths = (f"{base}/import/r{number}" for number in itertools.count())

    def measure(_: float) -> Sample:
        words = ["import", str(bench.document), next(paths), "--quiet"]
        command = [*pin(LOAD_CORE), sys.executable, "-m", "treedbd.cli", *words]
        served, start = cpu_s(pid), time.perf_counter()
        subprocess.run(command, cwd="/", env=environment(checkout), check=True)
        took, size = time.perf_counter() - start, bench.size / 1e6
        us = None if served is None else 1e6 * ((cpu_s(pid) or 0.0) - served) / size
        return Sample(size / took, us=us)

    return measure
