"""Runs of the `treedb` command that may be killed (SIGKILL), with their number and memory.

A run is killed after a time, or at a step: when it calls a function, `package.module:Class.method`,
for the n-th time. A machine that is busy makes no difference to a step.
"""

from __future__ import annotations

import contextlib
import os
import pathlib
import random
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from typing import IO, Any, Final, NamedTuple

from tests.fork_server import SHARED, ForkedDaemon, fork_server

RECORD_BYTES: Final = 250
TREEDB: Final = (sys.executable, "-m", "treedbd.cli")
_LOOK_S: Final = 0.02
_STEP: Final = """
import importlib, os, signal, sys
from treedbd.cli.main import main
module, _, name = sys.argv[1].partition(":")
owner = importlib.import_module(module)
*above, last = name.split(".")
for each in above:
    owner = getattr(owner, each)
real, left = getattr(owner, last), int(sys.argv[2])
def call(*arguments, **more):
    global left
    left -= 1
    if not left:
        os.kill(os.getpid(), signal.SIGKILL)
    return real(*arguments, **more)
setattr(owner, last, call)
sys.exit(main(sys.argv[3:]))
"""


class Moment(NamedTuple):
    """When a command is killed: after `seconds`, or at the call of a function with a number."""

    seconds: float = float("inf")
    function: str = ""
    number: int = 1


END: Final = Moment()


def choose_moment(chance: random.Random, steps: Sequence[str], size: int) -> Moment:
    """Return a time that a command for `size` bytes may take, or one of the steps."""
    if not steps or chance.random() < 0.3:
        return Moment(chance.uniform(0.1, 1.5 + size / 1e7))
    number = chance.randint(1, 1 + size // 2_000_000)
    return Moment(function=chance.choice(steps), number=number)


class KilledCommands:
    """Runs `treedb`, and kills it at a moment.

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
        moment: Moment = END,
        meanwhile: Callable[[], object] = lambda: None,
    ) -> int | None:
        """Run a command; return its status, None if it was killed.

        `meanwhile` is called again and again until it ends.
        """
        self.runs += 1
        program: Sequence[str] = TREEDB
        if moment.function:
            program = (sys.executable, "-c", _STEP, moment.function, str(moment.number))
        with tempfile.TemporaryFile() as errors:
            process = _start([*program, *map(str, words), "--quiet"], errors)
            end = time.monotonic() + moment.seconds
            while process.poll() is None:
                self.peak_bytes = max(self.peak_bytes, _peak_of(process.pid))
                if time.monotonic() > end:
                    process.kill()
                meanwhile()
                time.sleep(_LOOK_S)
            errors.seek(0)
            self.errors = errors.read().decode()
        if process.returncode == -signal.SIGKILL:
            self.kills += 1
            return None
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


def _start(command: Sequence[str], errors: IO[bytes]) -> subprocess.Popen[bytes] | ForkedDaemon:
    """Start a command; for the tests it is forked, as daemons are."""
    if SHARED in os.environ:
        return ForkedDaemon(fork_server(), command, pathlib.Path.cwd(), errors)
    return subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=errors)


def _peak_of(pid: int) -> int:
    with contextlib.suppress(OSError):
        if found := re.search(
            r"VmHWM:\s+(\d+) kB", pathlib.Path(f"/proc/{pid}/status").read_text()
        ):
            return int(found[1]) * 1024
    return 0
