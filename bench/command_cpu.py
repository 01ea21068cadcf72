"""CPU time of commands: medians of ten runs each, user and system, in seconds.

    .venv/bin/python bench/command_cpu.py FOLDER URL

FOLDER holds the package to be measured, so two versions can be compared; URL is that of a daemon in
development mode without TLS, whose value at /a is replaced. `serve` is a daemon in development mode
until it is ready.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Final

from load import cpu_s
from servers import environment, first_line

RUNS: Final = 10


def command_cpu_s(folder: str, *words: str) -> float:
    """Run a command that must succeed; return the CPU time that it took."""
    process = subprocess.Popen(
        [sys.executable, "-m", "treedbd.cli", *words],
        stdout=subprocess.DEVNULL,
        cwd="/",
        env={**environment(Path(folder)), "TREEDB_TOKEN": "owner"},
    )
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise SystemExit(f"treedb {' '.join(words)} failed.")
    return usage.ru_utime + usage.ru_stime


def serve_cpu_s(folder: str) -> float:
    """Start a daemon; return the CPU time that it took until it was ready."""
    with tempfile.TemporaryDirectory() as data:
        listen = "tcp:0:interface=127.0.0.1"
        process = subprocess.Popen(
            [sys.executable, "-m", "treedbd.cli", "serve", "--data", data, "--listen", listen],
            stdout=subprocess.PIPE,
            cwd="/",
            env=environment(Path(folder)),
            text=True,
        )
        first_line(process, ".*treedb ready .*")
        used = cpu_s(process.pid)
        process.terminate()
        process.wait()
    return used or 0.0


def main() -> None:
    """Print a line for each command."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder")
    parser.add_argument("url")
    options = parser.parse_args()
    folder, url = options.folder, options.url
    commands = (
        ["--version"],
        ["get", f"{url}/a"],
        ["set", f"{url}/a", "1"],
        ["log", url],
        ["rules", "get", url],
    )
    for words in commands:
        command_cpu_s(folder, *words)  # compiles and reads what the others find
        median = statistics.median(command_cpu_s(folder, *words) for _ in range(RUNS))
        print(f"{' '.join(words[:2]) if words[0] == 'rules' else words[0]:10} {median:.3f}")
    median = statistics.median(serve_cpu_s(folder) for _ in range(RUNS))
    print(f"{'serve':10} {median:.3f}")


if __name__ == "__main__":
    main()
