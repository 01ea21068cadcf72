"""Measures the turns of a daemon from within: with this folder in PYTHONPATH, Python imports it.

A turn is what the main thread does between two polls of its reactor. Each process keeps the longest
one in the file `turns-<pid>` of the folder that TURN_PROBE names: nanoseconds of the processor that
the process used meanwhile, with all its threads, and that the main thread used; nanoseconds of the
clock; and in how many turns the process used more than 50 ms. A reader writes zeros there to begin
again. With TURN_PROBE_WHERE a thread notes in `where-<pid>` what the longest turn was
doing. When a file `trim-<pid>` is made, cycles of garbage are collected, the allocator gives back
what is free, and the file is removed. It works with any version of treedb, and with its workers.
"""

from __future__ import annotations

import ctypes
import gc
import mmap
import os
import select
import struct
import sys
import threading
import time
import traceback
from operator import gt
from pathlib import Path
from typing import Any

FIELDS = struct.Struct("QQQQ")
LONG_NS = 50_000_000
SAMPLE_S = 0.01


class Probe:
    """What one process knows of the turns of its reactor."""

    def __init__(self, folder: str) -> None:
        """Prepare the file of this process."""
        file = Path(folder, f"turns-{os.getpid()}")
        file.write_bytes(bytes(FIELDS.size))
        with file.open("r+b") as opened:
            self._kept = mmap.mmap(opened.fileno(), FIELDS.size)
        self._where = Path(folder, f"where-{os.getpid()}")
        self._trim = Path(folder, f"trim-{os.getpid()}")
        self._main = threading.get_ident()
        self._watches = [self.watch_memory]
        self._watches += [self.watch_turns] * ("TURN_PROBE_WHERE" in os.environ)
        self.began_ns = 0

    def watch(self) -> None:
        """Begin to watch, once the daemon has been made: it sets up how threads allocate."""
        while self._watches:
            threading.Thread(target=self._watches.pop(), daemon=True).start()

    def add(self, *turn_ns: int) -> None:
        """Count a turn: what the process used, what its main thread did, and the clock's time."""
        *longest, count = FIELDS.unpack(self._kept)
        is_long = turn_ns[0] > LONG_NS
        if is_long or any(map(gt, turn_ns, longest)):
            self._kept[:] = FIELDS.pack(*map(max, turn_ns, longest), count + is_long)

    def watch_memory(self) -> None:
        """Give back what is garbage when the file is made, for ever, in another thread."""
        while True:
            time.sleep(0.2)
            if self._trim.exists():
                gc.collect()
                ctypes.CDLL(None).malloc_trim(0)
                self._trim.unlink()

    def watch_turns(self) -> None:
        """Note what the longest turn does, for ever, in another thread."""
        longest = 0
        while True:
            time.sleep(SAMPLE_S)
            began = self.began_ns
            length = time.perf_counter_ns() - began
            if not FIELDS.unpack(self._kept)[2]:
                longest = 0
            if not began or length < max(longest, LONG_NS * 4 // 5):
                continue
            frame = sys._current_frames().get(self._main)
            stack = "".join(traceback.format_stack(frame)[-30:])
            if began == self.began_ns:
                longest = length
                self._where.write_text(f"{length / 1e6:.0f} ms into a turn:\n{stack}")


class ProbedPoller:
    """A poller that counts the turns between its calls of `poll`."""

    def __init__(self, poller: Any, probe: Probe) -> None:
        """Stand in for an epoll object."""
        self._poller = poller
        self._probe = probe
        self._began_ns = (0, 0)

    def __getattr__(self, name: str) -> Any:
        """Return what the poller has."""
        return getattr(self._poller, name)

    def poll(self, *limits: Any) -> Any:
        """Wait for events; between two calls of this is a turn."""
        probe = self._probe
        probe.watch()
        if probe.began_ns:
            process_ns, thread_ns = self._began_ns
            used_ns = time.process_time_ns() - process_ns, time.thread_time_ns() - thread_ns
            probe.add(*used_ns, time.perf_counter_ns() - probe.began_ns)
        probe.began_ns = 0
        try:
            return self._poller.poll(*limits)
        finally:
            self._began_ns = time.process_time_ns(), time.thread_time_ns()
            probe.began_ns = time.perf_counter_ns()


def install(folder: str) -> None:
    """Make the pollers of the main thread count the turns of its reactor."""
    make_epoll = select.epoll
    probe = None

    def probed_epoll(*limits: Any, **flags: Any) -> Any:
        nonlocal probe
        poller = make_epoll(*limits, **flags)
        if threading.current_thread() is not threading.main_thread():
            return poller
        if probe is None:  # imports make pollers, too, before the reactor does
            probe = Probe(folder)
        return ProbedPoller(poller, probe)

    # Not the function itself: selectors keep it as an attribute of a class.
    select.epoll = staticmethod(probed_epoll)  # type: ignore[misc, assignment]


if "TURN_PROBE" in os.environ:
    install(os.environ["TURN_PROBE"])
