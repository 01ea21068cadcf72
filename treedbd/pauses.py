"""Pauses within plain functions: a long computation lets others run without being a generator.

Applying a large write goes through rules, nodes and rows, which are functions that call each other
and return values. `in_steps` runs such a function in a greenlet, which has a stack of its own: at
each `pause` in it, however deep, the step that is under way ends, and the next one goes on there.
Anywhere else `pause` does nothing, so the same functions serve commands and tests. To end a step
costs some microseconds, so with a clock a step goes on until it has lasted `STEP_SECONDS`.

What cannot be divided, as a call of the store with a row of megabytes, is done by `run_beside` in
another thread, and the steps go on when it is done. What steps that are closed have collected is
freed there too (`free_beside`), since they have no further step for it.

A function that pauses must not be called within `Engine.read`, whose moment ends with the step.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Generator, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import suppress
from heapq import merge
from itertools import islice
from math import inf
from typing import Any, Final, NoReturn, TypeAlias, TypeVar

from greenlet import GreenletExit, getcurrent, greenlet

T = TypeVar("T")
Seconds: TypeAlias = Callable[[], float]

Awaited: TypeAlias = Any
"""What a step yields: the `Future` of work in a thread that the next step waits for, else None.

It is not called so, because mypy then wants a value of each `yield`.
"""

STEP_SECONDS: Final = 0.000_25
PAUSE_AFTER: Final = 256
"""Items that take some hundred microseconds."""

SORTED_AT_ONCE: Final = 512
"""Items that are sorted in one step."""

_OVER: Final = object()


class _Idle(threading.local):
    """The greenlets of a thread that have nothing to do: making one costs more than using it."""

    def __init__(self) -> None:
        self.workers: list[_Worker] = []


_idle: Final = _Idle()
_threads: Final = ThreadPoolExecutor(2, thread_name_prefix="treedb-beside")
_freeing: Final = ThreadPoolExecutor(1, thread_name_prefix="treedb-freeing")


class _Worker(greenlet):
    """Runs one function after the other, each in steps; no step ends before `until`.

    Functions and results are handed over as attributes, since an idle greenlet would hold arguments
    of its calls and its locals, and with them the whole batch of a write, until the next one.
    """

    seconds: Seconds
    until: float
    work: Callable[[], object] | None
    result: object

    def run(self) -> NoReturn:
        """Run `work` at each `resume` that follows `_OVER`."""
        while True:
            try:
                self.result = self.work()  # type: ignore[misc]  # it has work when it is resumed
            except GreenletExit:
                raise
            except BaseException as error:
                self.result = _Failure(error)
            self.resumer.switch(_OVER)

    def resume(self) -> Any:
        """Go on; return `_OVER`, or what the next step waits for, None where it only paused."""
        self.resumer = self.parent = getcurrent()
        return self.switch()

    def take(self) -> object:
        """Return the result, and hold neither it nor the work any more."""
        result = self.result
        self.work = self.result = None
        return result


class _Failure:
    """What a function raised."""

    def __init__(self, error: BaseException) -> None:
        self.error = error


def sort_in_steps(items: Iterable[T]) -> Generator[None, None, list[T]]:
    """Sort items that compare, some in each step."""
    runs: list[list[T]] = []
    items = iter(items)
    while run := sorted(islice(items, SORTED_AT_ONCE)):  # type: ignore[type-var]
        runs.append(run)
        yield
    found: list[T] = []
    merged = merge(*runs)  # type: ignore[type-var]
    while some := list(islice(merged, SORTED_AT_ONCE)):
        found += some
        yield
    return found


def run_paused(steps: Generator[None, None, T]) -> T:
    """Return what steps return at their end, with a pause after each."""
    while True:
        try:
            next(steps)
        except StopIteration as stop:
            result: T = stop.value
            return result
        pause()


def pause() -> None:
    """End the step that is under way, if the caller is run in steps and it has lasted enough."""
    current = getcurrent()
    if type(current) is _Worker and current.seconds() >= current.until:
        current.resumer.switch(None)


def paused(items: Iterable[T], every: int = PAUSE_AFTER) -> Iterator[T]:
    """Iterate, with a pause after every so many items."""
    for number, item in enumerate(items, 1):
        yield item
        if number % every == 0:
            pause()


def run_beside(work: Callable[[], T]) -> T:
    """Run `work` and return its result: if the caller is run in steps, in another thread.

    What `work` uses must not be used by anyone else meanwhile. It ends before this function does,
    also if the steps are closed.
    """
    current = getcurrent()
    if type(current) is not _Worker:
        return work()
    future = _threads.submit(work)
    try:
        while not future.done():
            current.resumer.switch(future)
    finally:
        wait((future,))
    return future.result()


def free_beside(collected: list[Any]) -> None:
    """Free what a list holds, item by item, in another thread: others run in between.

    Nothing else must refer to the items, and each must be freed in less than some milliseconds.
    """
    if collected:
        with suppress(RuntimeError):  # the process ends
            _freeing.submit(_free, collected)


def _free(collected: list[Any]) -> None:
    while collected:
        collected.pop()


def _no_time() -> float:
    return inf  # any step has lasted enough


def in_steps(work: Callable[[], T], seconds: Seconds | None = None) -> Generator[Awaited, None, T]:
    """Run a function in steps, and return its result.

    A step ends at the next pause; if `seconds` returns the time, at the first one after
    `STEP_SECONDS`. Yielded is what the next step waits for, if it does. If the generator is closed,
    `work` ends at its pause with `GreenletExit`.
    """
    seconds = seconds or _no_time
    workers = _idle.workers
    worker = workers.pop() if workers else _Worker()
    is_over = False
    worker.seconds, worker.work = seconds, work
    try:
        worker.until = seconds() + STEP_SECONDS
        while (awaited := worker.resume()) is not _OVER:
            yield awaited
            worker.until = seconds() + STEP_SECONDS
        is_over = True
    finally:
        if not is_over:
            worker.parent = getcurrent()
            worker.throw(GreenletExit)
    result = worker.take()
    workers.append(worker)
    if type(result) is _Failure:
        try:
            raise result.error
        finally:
            del result  # its traceback would hold it here
    done: T = result  # type: ignore[assignment]
    return done
