"""Gives memory back that a process does not need any more, after a load and while it lasts.

Theory of operation. Connections, streams, sockets and their listens are free at their end: what
refers back to them forgets them. Three things are left that keep memory in a process that serves.

*Garbage in cycles.* The interpreter looks at all objects when their number has grown by a quarter,
whatever they hold, and in any turn: with 2,000 sockets that takes 90 ms, five times until they are
open. So here the young objects are collected as usual, and all of them at a moment of ours, if they
are few; if they are very many, only when they have become twice as many. Those that connections
have in use do not count then: nothing of a stream or a socket becomes garbage in cycles.

*Free memory that the allocator keeps.* The one of glibc gives back what is free at the end of its
memory alone: after 1,000 connections with long heads it kept 500 MB. So a thread asks it to give
back the rest, which takes 0.1 ms of the processor per MB. That leaves out the end of what threads
have for themselves, 20 to 45 MB after strings of 10 MB, so here all threads use the same memory.
Other allocators give it back by themselves.

*What lies among what was freed.* The interpreter gives back only arenas of 1 MiB in which nothing
is left, and one cached path is enough: after 3,500 streams 1.6 MB in caches kept 31 MiB. So small
caches are emptied when a load is over, also the interpreter's own, of the names of attributes.

All is done only after the process has worked: one that is idle is left alone. What an embedding
program does with its own garbage and its own memory is left to that program.
"""

from __future__ import annotations

import ctypes
import gc
import sys
import time
from collections.abc import Callable
from functools import partial
from typing import Any, Final

from twisted.internet.interfaces import IReactorTime
from twisted.internet.task import LoopingCall

from treedbd.caches import empty_caches

LOOK_S: Final = 5.0
"""Seconds between two looks."""
WORKED_S: Final = 0.02
"""Seconds of the processor beyond which the process has worked between two looks."""
LOAD_S: Final = 0.5
"""Seconds of the processor that are a load; it is over when a look finds that less were used."""
FEW_OBJECTS: Final = 30_000
"""So many objects are collected at each look: that takes 8 ms, and 50 ms if all are garbage."""
MANY_OBJECTS: Final = 500_000
"""More than connections have are collected in any case, if they have become twice as many."""
CONNECTION_OBJECTS: Final = 100
"""Objects of a connection, with its stream, or its socket and a listen: 64 to 88."""
_NEVER: Final = 1_000_000_000
_M_ARENA_MAX: Final = -8
"""The number of the setting in the `malloc.h` of glibc."""

Trim = Callable[[], object]


def find_trim() -> Trim | None:
    """Return what makes the allocator give back free memory; None if it knows no such call."""
    try:
        trim = ctypes.CDLL(None).malloc_trim
    except (AttributeError, OSError, TypeError):
        return None
    trim.argtypes = (ctypes.c_size_t,)
    return partial(trim, 0)


def share_arena() -> None:
    """Let all threads allocate from the memory of the first; to be called before there are others.

    Threads that each have memory of their own would allocate without waiting for each other, but
    here one at a time runs, but for calls of the database and of the system.
    """
    if find_trim() is not None:
        ctypes.CDLL(None).mallopt(_M_ARENA_MAX, 1)


class FreeMemory:
    """Gives back what one process does not need any more; nothing else of it may collect all."""

    def __init__(
        self,
        clock: IReactorTime,
        run_in_thread: Callable[[Trim], object],
        trim: Trim | None,
        count_connections: Callable[[], int],
        used_s: Callable[[], float] = time.process_time,
    ) -> None:
        """Look by `clock`.

        `count_connections` returns how many are open, `used_s` the seconds that the process has
        used a processor.
        """
        self._run_in_thread = run_in_thread
        self._trim = trim
        self._count_connections = count_connections
        self._used_s = used_s
        self._used = 0.0
        self._used_before_load = 0.0
        self._kept = 0
        self._blocks = 0
        self._looking = LoopingCall(self._look)
        self._looking.clock = clock

    def begin(self) -> None:
        """Look from now on, for as long as the process serves."""
        young, middle, _ = gc.get_threshold()
        gc.set_threshold(young, middle, _NEVER)
        self._blocks = sys.getallocatedblocks()
        self._looking.start(LOOK_S, now=False)

    def _look(self) -> None:
        used = self._used_s()
        worked = used - self._used
        is_load_over = worked < LOAD_S <= used - self._used_before_load
        if worked < WORKED_S and not is_load_over:
            return
        self._used = used
        self._collect()
        if is_load_over:
            self._used_before_load = used
            empty_caches()
            sys._clear_type_cache()
        if self._trim is not None:
            self._run_in_thread(self._trim)

    def _collect(self) -> None:
        """Collect all garbage, unless that takes long and there can be little of it."""
        if not gc.get_count()[2]:  # no object is older than at the last time
            return
        in_use = CONNECTION_OBJECTS * self._count_connections()
        many = max(MANY_OBJECTS + in_use, 2 * self._kept)
        # To count them is a turn of 60 ms with 8,000 streams: not if they are neither few nor many.
        if in_use > 2 * FEW_OBJECTS and sys.getallocatedblocks() < self._blocks + many:
            return
        if FEW_OBJECTS < count_old() < many:
            return
        gc.collect()
        self._kept = count_old()


def begin_for(reactor: Any) -> None:
    """Begin in a process that serves by a reactor."""
    FreeMemory(
        reactor, reactor.callInThread, find_trim(), lambda: len(reactor.getReaders())
    ).begin()


def count_old() -> int:
    """Return how many objects have become old that are not excluded from collection."""
    return len(gc.get_objects(generation=2))
