"""Runs of the `treedb` command that may be killed (SIGKILL), with their number and memory."""

from __future__ import annotations

import contextlib
import pathlib
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from typing import Any, Final

RECORD_BYTES: Final = 250
TREEDB: Final = (sys.executable, "-m", "treedbd.cli")
_LOOK_S: Final = 0.02


class KilledCommands:
    """Runs `treedb`, and kills it when its time is over.

    Attributes:
        errors: what the last run has written to standard error.
        kills: how many runs were killed.
        runs: how many there were.
        peak_bytes: the largest resident memory of one of them.

    """

    def __init__(self) -> None:
        self.errors = ""
        self.kills = self.runs = self.peak_bytes = 0

    def run(
        self,
        *words: str | pathlib.Path,
        seconds: float | None = None,
        meanwhile: Callable[[], object] = lambda: None,
    ) -> int | None:
        """Run a command; return its status, None if it was killed after `seconds`.

        `meanwhile` is called again and again until it ends.
        """
        self.runs += 1
        with tempfile.TemporaryFile() as errors:
            process = subprocess.Popen(
                [*TREEDB, *words, "--quiet"], stdout=subprocess.DEVNULL, stderr=errors
            )
            end = time.monotonic() + (seconds or float("inf"))
            while process.poll() is None:
                self.peak_bytes = max(self.peak_bytes, _peak_of(process.pid))
                if time.monotonic() > end:
                    process.kill()
                    process.wait()
                    self.kills += 1
                    return None
                meanwhile()
                time.sleep(_LOOK_S)
            errors.seek(0)
            self.errors = errors.read().decode()
            return process.returncode

    def describe(self) -> str:
        """Return the counts, in words."""
        return (
            f"{self.kills} of {self.runs} commands killed, at most {self.peak_bytes / 1e6:.0f} MB"
        )


def make_members(size: int, letter: str) -> dict[str, Any]:
    """Return members whose JSON has about `size` bytes."""
    text = letter * (RECORD_BYTES - 20)
    return {f"k{number:08}": text for number in range(size // RECORD_BYTES)}


def check(is_right: bool, sentence: str) -> None:
    """Exit with 1 and a sentence unless what was found is right."""
    if not is_right:
        sys.exit(f"Wrong: {sentence}")


def _peak_of(pid: int) -> int:
    with contextlib.suppress(OSError):
        if found := re.search(
            r"VmHWM:\s+(\d+) kB", pathlib.Path(f"/proc/{pid}/status").read_text()
        ):
            return int(found[1]) * 1024
    return 0
