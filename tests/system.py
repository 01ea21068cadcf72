"""The machine that the tests run on: its free ports, and what other processes on it have done."""

from __future__ import annotations

import contextlib
import random
import socket
import time
from collections.abc import Callable
from typing import Final

PATIENCE_S: Final = 120.0


def find_port() -> int:
    """Return a free port outside the range that the system assigns, so that it stays free."""
    for port in random.sample(range(20_000, 32_000), 50):
        with socket.socket() as server, contextlib.suppress(OSError):
            server.bind(("127.0.0.1", port))
            return port
    raise AssertionError("There is no free port.")


def wait_until(is_reached: Callable[[], object], seconds: float = PATIENCE_S) -> None:
    """Poll until another process has done something; raise AssertionError if it does not."""
    end = time.monotonic() + seconds
    while not is_reached():
        assert time.monotonic() < end, f"It has not happened within {seconds} s."
        time.sleep(0.01)
