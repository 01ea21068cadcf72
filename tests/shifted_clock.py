"""Runs a Python program with a wall clock that is wrong: `shifted_clock.py SECONDS PROGRAM ...`."""

from __future__ import annotations

import runpy
import sys
import time
from collections.abc import Callable


def shift(clock: Callable[[], float], seconds: float) -> Callable[[], float]:
    """Return a clock that is ahead of another one."""
    return lambda: clock() + seconds


if __name__ == "__main__":
    time.time = shift(time.time, float(sys.argv[1]))
    sys.argv = sys.argv[2:]
    runpy.run_path(sys.argv[0], run_name="__main__")
