"""Sending parts to a daemon: some requests at a time, each of which may be repeated.

Parts that conflict are never under way together. When parts have been written out of order and the
import breaks, it goes on after the first ones that are all written; those after them are written
again, in order, which has the same effect.
"""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable
from typing import Any, Final

from twisted.internet.defer import Deferred
from twisted.python.failure import Failure

from treedbd.cli.client import content
from treedbd.cli.data import JSON_HEADERS
from treedbd.cli.loading.parts import Part
from treedbd.cli.loading.retries import LONGEST, Refused, Retries
from treedbd.cli.options import InvalidUrl, Url, split_url
from treedbd.tree.types import Path
from treedbd.tree.value import NULL, compact

UNDER_WAY: Final = 3
_TOO_LARGE: Final = 413
_LEAF: Final = re.compile(rb'["\-0-9tf]')
"""How the JSON of a leaf begins."""


class Sender:
    """Writes parts below the node that a URL names."""

    def __init__(self, retries: Retries, url: Url) -> None:
        self._retries = retries
        self._given = url
        self._url = url.to_json()
        self._long = self._url.with_parameters({"print": "silent", "timeout": LONGEST})

    async def is_empty(self) -> bool:
        """Return whether nothing is at the target, or nothing that may be read."""
        # One key, and not its value, however many there are and however large that is.
        url = self._url.with_parameters({"shallow": "true", "limitToFirst": "1"})
        return await content(await self._retries.request("GET", url), url) == NULL

    async def find_leaf_above(self) -> Path | None:
        """Return the path of the single value that a write at the target would replace.

        None if there is none, or none that may be read.
        """
        try:
            root, path = split_url(self._given)
        except InvalidUrl:
            return None  # no path of a database, or one that the server refuses
        for length in range(len(path) - 1, -1, -1):
            above = root.below(path[:length]).to_json()
            url = above.with_parameters({"shallow": "true", "limitToFirst": "1"})
            try:
                found = await content(await self._retries.request("GET", url), url)
            except Refused:
                return None
            if found != NULL:
                return path[:length] if _LEAF.match(found) else None
        return None

    async def remove(self) -> None:
        """Remove what is at the target."""
        await self._send("DELETE", None)

    async def replace(self, body: bytes) -> bool:
        """Write the whole value in one request; return False if that is too large."""
        try:
            await self._send("PUT", body)
        except Refused as error:
            if error.status != _TOO_LARGE:
                raise
            return False
        return True

    async def write(self, part: Part) -> None:
        """Write a part, in several requests if the server takes no such long bodies."""
        if () in part.members:
            await self._send("PUT", compact(part.members[()]))
            return
        try:
            await self._send("PATCH", compact(part.body()))
        except Refused as error:
            if error.status != _TOO_LARGE or len(part.members) == 1:
                raise
            for half in _halves(part):
                await self.write(half)

    async def _send(self, method: str, body: bytes | None) -> None:
        headers = None if body is None else JSON_HEADERS
        response = await self._retries.request(method, self._long, headers, body)
        await content(response, self._long)


def _halves(part: Part) -> tuple[Part, Part]:
    members = list(part.members.items())
    middle = len(members) // 2
    return Part(dict(members[:middle])), Part(dict(members[middle:]))


class Queue:
    """Writes parts, some at a time, and knows how many of the first ones are written."""

    def __init__(
        self, write: Callable[[Part], Awaitable[None]], done: int, on_done: Callable[[int], None]
    ) -> None:
        """Call `on_done` when more of the first parts are written; `done` of them are."""
        self._write = write
        self._on_done = on_done
        self._done = done
        self._begun = done
        self._under_way: dict[int, Part] = {}
        self._error: Failure | None = None
        self._changed: Deferred[None] = Deferred()

    async def run(self, next_part: Callable[[], Awaitable[Part | None]]) -> None:
        """Write the parts that `next_part` returns, until it returns None; raise the first error.

        They are numbered from the number of those that are written.
        """
        try:
            while self._error is None and (part := await next_part()) is not None:
                while self._error is None and not self._may_begin(part):
                    await self._changed
                if self._error is None:
                    self._begin(part)
        finally:
            while self._under_way:
                await self._changed
        if self._error is not None:
            self._error.raiseException()

    def _may_begin(self, part: Part) -> bool:
        others = self._under_way.values()
        return len(others) < UNDER_WAY and not any(part.conflicts(other) for other in others)

    def _begin(self, part: Part) -> None:
        number = self._begun
        self._begun += 1
        self._under_way[number] = part

        async def write() -> None:
            await self._write(part)

        def end(result: Any) -> None:
            del self._under_way[number]
            if isinstance(result, Failure):
                self._error = self._error or result
            elif self._error is None:
                self._advance()
            changed, self._changed = self._changed, Deferred()
            changed.callback(None)

        Deferred.fromCoroutine(write()).addBoth(end)

    def _advance(self) -> None:
        done = min(self._under_way, default=self._begun)
        if done > self._done:
            self._done = done
            self._on_done(done)
