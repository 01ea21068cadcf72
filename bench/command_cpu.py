"""CPU time of commands: medians of ten runs each, user and system, in seconds.

    python command_cpu.py FOLDER URL

FOLDER holds the package to be measured, so two versions can be compared; URL is that of a daemon in
development mode without TLS, whose value at /a is replaced.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
from typing import Final

RUNS: Final = 10


def cpu_s(folder: str, *words: str) -> float:
    """Run a command that must succeed; return the CPU time that it took."""
    environment = {**os.environ, "PYTHONPATH": folder, "TREEDB_TOKEN": "owner"}
    environment.pop("PYTHONDONTWRITEBYTECODE", None)  # an installed package has bytecode
    process = subprocess.Popen(
        [sys.executable, "-m", "treedbd.cli", *words],
        stdout=subprocess.DEVNULL,
        cwd="/",
        env=environment,
    )
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise SystemExit(f"treedb {' '.join(words)} failed.")
    return usage.ru_utime + usage.ru_stime


def main() -> None:
    """Print a line for each command."""
    folder, url = sys.argv[1:]
    commands = (
        ["--version"],
        ["get", f"{url}/a"],
        ["set", f"{url}/a", "1"],
        ["log", url],
        ["rules", "get", url],
    )
    for words in commands:
        cpu_s(folder, *words)  # compiles and reads what the others find
        median = statistics.median(cpu_s(folder, *words) for _ in range(RUNS))
        print(f"{' '.join(words[:2]) if words[0] == 'rules' else words[0]:10} {median:.3f}")


main()
