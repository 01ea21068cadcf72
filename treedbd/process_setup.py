"""What a process does to itself that serves: the daemon, and each of its workers."""

from __future__ import annotations

import gc
import resource
import time
from typing import Any, Final

from twisted.logger import Logger

_log: Final = Logger()


def use_monotonic_clock(reactor: Any) -> None:
    """Make timers follow the monotonic clock, so that a step of the wall clock cannot stop them.

    Must be called before anything is scheduled.
    """
    reactor.seconds = time.monotonic


def raise_open_file_limit() -> None:
    """Raise the limit of open files to its maximum: each connection is one."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def freeze_objects() -> None:
    """Exclude all objects that exist from garbage collection: they are in use until the end.

    A full collection then visits what requests have created, not every module. What is garbage
    among them is little, and to find it takes 50 ms.
    """
    gc.freeze()


def report_long_turns(count: int, longest_s: float) -> None:
    """Log how long nobody was answered, and how often since the last such line."""
    _log.warn(
        "For up to {ms} ms nobody was answered, {count} times since the last such line: look "
        "for a busy machine, or for large requests at this time.",
        ms=round(longest_s * 1000),
        count=count,
    )
