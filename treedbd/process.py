"""What a process that serves does to itself: signals, limits, clock, garbage and free memory.

The daemon and each of its workers do so; a program that embeds the service does not, and what it
does with its own garbage and its own memory is left to it.

Signals, from the moment the plugin is used to the end of the process: SIGTERM and SIGINT end it
with status 0. Before the reactor runs they end it at once: the stores survive that as they survive
a crash. SIGHUP reloads; one that comes too early is remembered until the reactor runs. Where it
means that the window was closed (`is_bound_to_terminal`), it ends the daemon as SIGTERM does. The
command line imports this module before any signal is handled, so it imports little itself.

`FreeMemory` gives memory back that a process does not need any more, after a load and while it
lasts.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import linecache
import os
import resource
import signal
import sys
import time
from collections.abc import Callable
from functools import partial
from types import FrameType
from typing import Any, Final, NoReturn

from twisted.logger import Logger
from twisted.python.reflect import namedAny

from treedbd.caches import empty_caches

_log: Final = Logger()

STOP_SIGNALS: Final = (signal.SIGTERM, signal.SIGINT)


class Signals:
    """The signal handlers of the process, and its last exit."""

    def __init__(self, pid_file: str = "", *, ends_on_hangup: bool = False) -> None:
        """`pid_file` is the file that twistd removes at an orderly end; empty for none."""
        self._pid_file = pid_file
        self._ends_on_hangup = ends_on_hangup
        self._must_reload = False

    def await_reactor(self) -> None:
        """Handle what comes before the reactor runs."""
        early = self._exit_on_signal if self._ends_on_hangup else self._remember_reload
        signal.signal(signal.SIGHUP, early)
        for stop in STOP_SIGNALS:
            signal.signal(stop, self._exit_on_signal)

    def follow_reactor(
        self, reactor: Any, stop: Callable[[], None], reload: Callable[[], None]
    ) -> None:
        """From now on call `stop` and `reload` in the reactor, as soon as it runs."""

        def in_reactor(call: Callable[[], None]) -> Callable[[int, FrameType | None], None]:
            return lambda _signal, _frame: reactor.callFromThread(call)

        signal.signal(signal.SIGHUP, in_reactor(stop if self._ends_on_hangup else reload))
        if self._must_reload:
            reactor.callWhenRunning(reload)
        for each in STOP_SIGNALS:
            signal.signal(each, in_reactor(stop))
            # Again when the reactor runs, in place of Twisted's own handlers, which would end
            # twistd by that signal instead of with status 0.
            reactor.callWhenRunning(signal.signal, each, in_reactor(stop))

    def follow_rotation(self, reactor: Any, reopen: Callable[[], None]) -> None:
        """Call `reopen` in the reactor at each SIGUSR1: a file of the log has been renamed."""
        signal.signal(signal.SIGUSR1, lambda _signal, _frame: reactor.callFromThread(reopen))

    def ignore(self) -> None:
        """Ignore further signals: the process is ending, and no handler can run in the end."""
        for stop in (*STOP_SIGNALS, signal.SIGHUP):
            signal.signal(stop, signal.SIG_IGN)

    def exit(self, status: int = 0) -> NoReturn:
        """End the process now, whatever its threads are waiting for."""
        if self._pid_file:
            with contextlib.suppress(OSError):
                os.unlink(self._pid_file)
        os._exit(status)

    def _remember_reload(self, _signal: int, _frame: FrameType | None) -> None:
        self._must_reload = True

    def _exit_on_signal(self, _signal: int, _frame: FrameType | None) -> None:
        self.exit()


def is_bound_to_terminal() -> bool:
    """Return whether a SIGHUP is that of the terminal, and is not to be outlived (`nohup`)."""
    if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN:
        return False
    try:
        os.close(os.open("/dev/tty", os.O_RDONLY | os.O_NOCTTY | os.O_CLOEXEC))
    except OSError:
        return False
    return True


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
    among them is little, and to find it takes 50 ms. The text of the methods that attrs has made,
    which it keeps for debuggers in 0.7 MB, is forgotten.
    """
    linecache.clearcache()
    gc.freeze()


def report_long_turns(count: int, longest_s: float) -> None:
    """Log how long no client was answered, and how often since the last such line."""
    _log.warn(
        "For up to {ms} ms no client was answered, {count} times since the last such line: look "
        "for a busy machine, or for large requests at this time.",
        ms=round(longest_s * 1000),
        count=count,
    )


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
YOUNG_OBJECTS: Final = 2_500
"""So many are made, and in use, before cycles are sought among them, which takes 0.1 ms. A write
that is under way has 25 to 60 objects: to seek among those finds nothing, and took a thirtieth of
its time at the interpreter's own 700."""
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
    """Make all threads allocate from the memory of the first; to be called before there are others.

    Threads that each have memory of their own would allocate without waiting for each other, but
    here one at a time runs, but for calls of the database and of the system.
    """
    if find_trim() is not None:
        ctypes.CDLL(None).mallopt(_M_ARENA_MAX, 1)


class FreeMemory:
    """Gives back what one process does not need any more; nothing else of it may collect all.

    Theory of operation. Connections, streams, sockets and their listens are free at their end: what
    refers back to them forgets them. Three things are left that keep memory in a process that
    serves.

    *Garbage in cycles.* The interpreter looks at all objects when their number has grown by a
    quarter, whatever they hold, and in any turn: with 2,000 sockets that takes 90 ms, five times
    until they are open. So here the young objects are collected by themselves, and all of them at
    a moment of ours, if they are few; if they are very many, only when they have become twice as
    many. Those that connections have in use do not count then: nothing of a stream or a socket
    becomes garbage in cycles.

    *Free memory that the allocator keeps.* The one of glibc gives back what is free at the end of
    its memory alone: after 1,000 connections with long heads it kept 500 MB. So a thread asks it to
    give back the rest, which takes 0.1 ms of the processor per MB. That leaves out the end of what
    threads have for themselves, 20 to 45 MB after strings of 10 MB, so here all threads use the
    same memory (`share_arena`). Other allocators give it back by themselves.

    *What remains among what was freed.* The interpreter gives back only arenas of 1 MiB in which
    nothing is left, and one cached path is enough: after 3,500 streams 1.6 MB in caches kept
    31 MiB. So small caches are emptied when a load is over, also the interpreter's own, of the
    names of attributes.

    All is done only after the process has worked: one that is idle is left alone.
    """

    def __init__(
        self,
        reactor: Any,
        trim: Trim | None,
        used_s: Callable[[], float] = time.process_time,
    ) -> None:
        """Look by the clock of `reactor`, and count its readers for connections.

        `trim` runs in one of its threads. `used_s` returns the seconds that the process has used a
        processor.
        """
        self._reactor = reactor
        self._trim = trim
        self._used_s = used_s
        self._used = 0.0
        self._used_before_load = 0.0
        self._kept = 0
        self._blocks = 0
        # Not imported at the top: `tap` would handle signals that much later.
        make_looping_call: Any = namedAny("twisted.internet.task.LoopingCall")
        self._looking = make_looping_call(self._look)
        self._looking.clock = reactor

    def begin(self) -> None:
        """Look from now on, for as long as the process serves."""
        gc.set_threshold(YOUNG_OBJECTS, gc.get_threshold()[1], _NEVER)
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
            self._reactor.callInThread(self._trim)

    def _collect(self) -> None:
        """Collect all garbage, unless that takes long and there can be little of it."""
        if not gc.get_count()[2]:  # no object is older than at the last time
            return
        in_use = CONNECTION_OBJECTS * len(self._reactor.getReaders())
        many = max(MANY_OBJECTS + in_use, 2 * self._kept)
        # To count them is a turn of 60 ms with 8,000 streams: not if they are neither few nor many.
        if in_use > 2 * FEW_OBJECTS and sys.getallocatedblocks() < self._blocks + many:
            return
        if FEW_OBJECTS < count_old() < many:
            return
        gc.collect()
        self._kept = count_old()


def begin_freeing(reactor: Any) -> None:
    """Give memory back from now on, in a process that serves by a reactor."""
    FreeMemory(reactor, find_trim()).begin()


def count_old() -> int:
    """Return how many objects have become old that are not excluded from collection."""
    return len(gc.get_objects(generation=2))
