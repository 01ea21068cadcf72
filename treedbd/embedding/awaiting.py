"""Waiting in coroutines of Twisted and in tasks of asyncio.

A coroutine that Twisted runs (`Deferred.fromCoroutine`, `inlineCallbacks`) waits for a Deferred, a
task of asyncio for a future of its loop. Which of them runs is seen by whether there is a current
task; so a task must not run coroutines of Twisted in its own turn.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

from twisted.internet.defer import Deferred

T = TypeVar("T")


async def wait_for(work: Coroutine[Deferred[Any], Any, T]) -> T:
    """Run a coroutine that waits for Deferreds, in whichever kind of coroutine this is.

    If it is cancelled, what it waits for is cancelled.
    """
    if not _is_in_task():
        return await work
    running = Deferred.fromCoroutine(work)
    if running.called:
        return await running
    return await running.asFuture(asyncio.get_running_loop())


def _is_in_task() -> bool:
    try:
        return asyncio.current_task() is not None
    except RuntimeError:  # no loop is running
        return False
