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
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import suppress
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

_PAUSED: Final = object()


class _Idle(threading.local):
    """The greenlets of a thread that have nothing to do: making one costs more than using it."""

    def __init__(self) -> None:
        self.workers: list[_Worker] = []


_idle: Final = _Idle()
_threads: Final = ThreadPoolExecutor(2, thread_name_prefix="treedb-beside")
_freeing: Final = ThreadPoolExecutor(1, thread_name_prefix="treedb-freeing")


class _Worker(greenlet):
    """Runs one function after the other, each in steps; no step ends before `until`."""

    seconds: Seconds
    until: float

    def run(self, work: Callable[[], object]) -> NoReturn:
        """Run the function of the first `resume`, then those of the following ones."""
        while True:
            result: object
            try:
                result = work()
            except GreenletExit:
                raise
            except BaseException as error:
                result = _Failure(error)
            work = self.resumer.switch(result)

    def resume(self, *work: Callable[[], object]) -> Any:
        """Go on, with `work` at first; return its result, or `_PAUSED`, or what it waits for."""
        self.resumer = self.parent = getcurrent()
        return self.switch(*work)


class _Failure:
    """What a function raised."""

    def __init__(self, error: BaseException) -> None:
        self.error = error


def pause() -> None:
    """End the step that is under way, if the caller is run in steps and it has lasted enough."""
    current = getcurrent()
    if type(current) is _Worker and current.seconds() >= current.until:
        current.resumer.switch(_PAUSED)


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
    worker.seconds = seconds
    try:
        worker.until = seconds() + STEP_SECONDS
        result = worker.resume(work)
        while result is _PAUSED or type(result) is Future:
            yield None if result is _PAUSED else result
            worker.until = seconds() + STEP_SECONDS
            result = worker.resume()
        is_over = True
    finally:
        if not is_over:
            worker.parent = getcurrent()
            worker.throw(GreenletExit)
    workers.append(worker)
    if type(result) is _Failure:
        raise result.error
    done: T = result
    return done
