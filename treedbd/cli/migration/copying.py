"""Copies what is at a path of one database to the same path of another, however large it is.

What is short is read and written at once. Of a longer container the children are read in pages, and
one that is too long for a page is copied by itself. So no more than a page is in memory. Children
that the source does not have are removed from the target. Everything may be done again: the result
is what the source had when it was read.
"""

from __future__ import annotations

from typing import Any, Final

import orjson

from treedbd.cli.client import content, receive
from treedbd.cli.data import JSON_HEADERS
from treedbd.cli.exit import CommandFailed
from treedbd.cli.loading.retries import LONGEST, Retries
from treedbd.cli.progress import ProgressReport
from treedbd.cli.url import Url
from treedbd.limits import MIB
from treedbd.tree.order import rank_key
from treedbd.tree.path import format_path
from treedbd.tree.printing import NULL, compact
from treedbd.tree.types import PRIORITY, Path

PAGE_BYTES: Final = 4 * MIB
PAGE_CHILDREN: Final = 1000
REMOVED_AT_ONCE: Final = 1000


class _TooLong(Exception):
    """A response has more bytes than were asked for."""


class Copying:
    """Copies from one database to another.

    Attributes:
        bytes: how many bytes of JSON have been written.

    """

    def __init__(
        self,
        source: Retries,
        source_url: Url,
        target: Retries,
        target_url: Url,
        progress: ProgressReport,
    ) -> None:
        """Read `source_url`, and write below `target_url`."""
        self.bytes = 0
        self._source = source
        self._source_url = source_url
        self._target = target
        self._target_url = target_url
        self._progress = progress

    async def copy(self, path: Path, *, is_new: bool = False) -> None:
        """Copy what is at a path; `is_new` if nothing is there in the target.

        Raises `CommandFailed`.
        """
        found = await self._read(path, {"format": "export"})
        if found is not None:
            if found != NULL or not is_new:
                await self._write("PUT", path, found)
            return
        if not is_new:
            await self._remove_others(path)
        await self._copy_children(path, is_new=is_new)
        priority = await self._read((*path, PRIORITY), {})
        if priority not in (None, NULL):
            await self._write("PUT", (*path, PRIORITY), priority or NULL)

    async def _copy_children(self, path: Path, *, is_new: bool) -> None:
        last: str | None = None
        count = PAGE_CHILDREN
        while True:
            page = await self._read_page(path, last, count)
            if page is None and count > 1:
                count = max(1, count // 8)
                continue
            if page is None:
                last = await self._next_key(path, last)
                await self.copy((*path, last), is_new=is_new)
                continue
            if page:
                await self._write("PATCH", path, compact(page))
                last = max(page, key=rank_key)
            if len(page) < count:
                return
            count = min(2 * count, PAGE_CHILDREN)

    async def _read_page(self, path: Path, last: str | None, count: int) -> dict[str, Any] | None:
        """Return the children after a key, None if they are too long for a page."""
        parameters = {"format": "export", "orderBy": '"$key"', "limitToFirst": str(count + 1)}
        if last is not None:
            parameters["startAt"] = compact(last).decode()
        text = await self._read(path, parameters)
        if text is None:
            return None
        page: dict[str, Any] = orjson.loads(text) or {}
        if last is not None:
            page.pop(last, None)
        return dict(sorted(page.items(), key=lambda each: rank_key(each[0]))[:count])

    async def _next_key(self, path: Path, last: str | None) -> str:
        keys = await self._keys(self._source, self._source_url, path)
        after = [key for key in keys if last is None or rank_key(key) > rank_key(last)]
        if not after:
            raise CommandFailed(f"{format_path(path)} of the source has changed: try again.")
        return min(after, key=rank_key)

    async def _remove_others(self, path: Path) -> None:
        """Remove the children of the target that the source does not have."""
        wanted = await self._keys(self._source, self._source_url, path)
        present = await self._keys(self._target, self._target_url, path)
        others = sorted(present - wanted)
        for at in range(0, len(others), REMOVED_AT_ONCE):
            gone = dict.fromkeys(others[at : at + REMOVED_AT_ONCE])
            await self._write("PATCH", path, compact(gone))

    async def _keys(self, retries: Retries, url: Url, path: Path) -> set[str]:
        address = at_path(url, path).with_parameters({"shallow": "true", "timeout": LONGEST})
        response = await retries.request("GET", address)
        found = orjson.loads(await content(response, address))
        return set(found) if isinstance(found, dict) else set()

    async def _read(self, path: Path, parameters: dict[str, str]) -> bytes | None:
        """Return the JSON of a read, None if it is too long for a page."""
        address = at_path(self._source_url, path).with_parameters(
            {**parameters, "timeout": LONGEST}
        )
        response = await self._source.request("GET", address)
        pieces: list[bytes] = []
        size = 0

        def consume(piece: bytes) -> None:
            nonlocal size
            size += len(piece)
            if size > PAGE_BYTES:
                raise _TooLong
            pieces.append(piece)

        try:
            await receive(response, address, consume)
        except _TooLong:
            return None
        return b"".join(pieces).strip()

    async def _write(self, method: str, path: Path, body: bytes) -> None:
        address = at_path(self._target_url, path).with_parameters(
            {"print": "silent", "timeout": LONGEST}
        )
        await self._target.request(method, address, JSON_HEADERS, body)
        self.bytes += len(body)
        self._progress.advance_to(self.bytes)


def at_path(url: Url, path: Path) -> Url:
    """Return the URL of a path below the one that a URL names."""
    return url.below(path).to_json()
