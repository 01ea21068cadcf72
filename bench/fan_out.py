"""Events of one value to many streams, and to many WebSockets of the real-time protocol."""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Callable, Iterator

from listeners import VALUE, Listeners, Writer
from load import Sample, cpu_s, on_core, percentiles_ms
from realtime import event_bytes, listen
from servers import LOAD_CORE

STREAMED, HEARD = "fan/one", "fan/two"


@contextlib.contextmanager
def stream_events(base: str, pid: int, count: int) -> Iterator[Callable[[float], Sample]]:
    """Open streams; a sample counts their events, each write after all events of the one before."""
    with contextlib.closing(Listeners(base, [STREAMED] * count)) as opened:
        yield _measure(base, pid, STREAMED, opened)


@contextlib.contextmanager
def socket_events(base: str, pid: int, count: int) -> Iterator[Callable[[float], Sample]]:
    """Do the same with sockets, each of which listens at the same path."""
    opened = Listeners(base, [HEARD] * count, listen, event_bytes(HEARD))
    with contextlib.closing(opened):
        yield _measure(base, pid, HEARD, opened)


def _measure(base: str, pid: int, path: str, opened: Listeners) -> Callable[[float], Sample]:
    def measure(seconds: float) -> Sample:
        writer = Writer(base, "PUT", path, json.dumps(VALUE).encode())
        with contextlib.closing(writer), on_core(LOAD_CORE):
            return _write(writer, opened, pid, seconds)

    return measure


def _write(writer: Writer, opened: Listeners, pid: int, seconds: float) -> Sample:
    delays: list[float] = []
    served, used = cpu_s(pid), time.process_time()
    start = now = time.perf_counter()
    while now < start + seconds or not delays:
        delays += opened.receive(writer.send())
        writer.receive()
        now = time.perf_counter()
    took, count = now - start, len(delays)
    us = None if served is None else 1e6 * ((cpu_s(pid) or 0.0) - served) / count
    busy = (time.process_time() - used) / took
    return Sample(count / took, *percentiles_ms(delays), busy=busy, us=us)
