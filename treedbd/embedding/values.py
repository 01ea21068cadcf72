"""Values between a program and the tree, and waiting in the coroutines of the program.

Values pass as JSON text, so neither side can change those of the other. What a program writes is
printed, and then parsed as a body is; what it reads is parsed from what a GET would send. So the
same is legal, and the same numbers come back.

`wait_for` waits in coroutines of Twisted and in tasks of asyncio.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Coroutine, Mapping
from typing import Any, Final, TypeVar

import orjson
from twisted.internet.defer import Deferred

from treedbd.database.requests import TooLarge
from treedbd.http1.content import Content
from treedbd.limits import MAX_BODY_NESTING, MAX_SHOWN_BYTES
from treedbd.tree.types import InvalidData, Json
from treedbd.tree.value import compact, parse
from treedbd.web.response import Response

T = TypeVar("T")

_OPTIONS: Final = orjson.OPT_PASSTHROUGH_DATACLASS | orjson.OPT_PASSTHROUGH_DATETIME


class TooLargeToRead(TooLarge):
    """A value is too large to be returned at once."""

    def __init__(self) -> None:
        super().__init__(
            f"The value has more than {MAX_SHOWN_BYTES} bytes of JSON: read it in parts, with "
            "limit_to_first and start_after, or its children one by one."
        )


def encode(value: object) -> bytes:
    """Return a value as JSON text; raise `InvalidData` for what is not JSON.

    Lists may be tuples. An integer beyond 64 bits becomes a float.
    """
    try:
        text = orjson.dumps(value, option=_OPTIONS)
    except TypeError:
        return orjson.dumps(_checked(value, 0))
    if b"null" in text:  # which may stand for a number that is none
        _checked(value, 0)
    return text


def decode(response: Response) -> Json:
    """Return the value that a response shows; raise `TooLargeToRead`."""
    return parse(text_of(response.body))


def text_of(body: object) -> bytes:
    """Return the text of a body; raise `TooLargeToRead`."""
    if isinstance(body, bytes):
        return body
    if not isinstance(body, Content):
        raise TypeError(f"a {type(body).__name__} has not been rendered")
    reader = body.open("", may_refuse=False)  # which frees what has no other reader
    try:
        if body.size > MAX_SHOWN_BYTES:
            raise TooLargeToRead
        return body.whole()
    finally:
        reader.close()


def copy(json: Json) -> Json:
    """Return JSON as a program may have it."""
    return parse(compact(json))


def _checked(value: Any, level: int) -> Json:
    """Return a copy of a value; raise `InvalidData` that says what is wrong with it."""
    if level > MAX_BODY_NESTING:
        raise InvalidData(f"The data is nested deeper than {MAX_BODY_NESTING} levels.")
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, str):
        return _check_text(value)
    if isinstance(value, int | float):
        return _check_number(value)
    if isinstance(value, list | tuple):
        return [_checked(item, level + 1) for item in value]
    if not isinstance(value, Mapping):
        raise InvalidData(
            f"A value of type {type(value).__name__} is not JSON: use dict, list, str, int, float, "
            "bool or None."
        )
    for key in value:
        if not isinstance(key, str):
            raise InvalidData(f"A key must be a str, not {type(key).__name__}.")
    return {_check_text(key): _checked(item, level + 1) for key, item in value.items()}


def _check_text(text: str) -> str:
    try:
        text.encode()
    except UnicodeEncodeError:
        raise InvalidData("A string holds a surrogate, which UTF-8 cannot.") from None
    return str(text)


def _check_number(number: int | float) -> int | float:
    if isinstance(number, int) and -(2**63) <= number < 2**64:
        return int(number)
    try:
        double = float(number)
    except OverflowError:
        double = math.inf
    if not math.isfinite(double):
        raise InvalidData("A number is out of range.")
    return double


async def wait_for(work: Coroutine[Deferred[Any], Any, T]) -> T:
    """Run a coroutine that waits for Deferreds, in whichever kind of coroutine this is.

    A coroutine that Twisted runs (`Deferred.fromCoroutine`, `inlineCallbacks`) waits for a
    Deferred, a task of asyncio for a future of its loop. Which of them runs is seen by whether
    there is a current task; so a task must not run coroutines of Twisted in its own step. If this
    is cancelled, what it waits for is cancelled.
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
