"""Copies what is at a path of one database to the same path of another, however large it is.

What is short is read and written at once. Of a longer container the children are read in pages, and
one that is too long for a page is copied by itself. So no more than a page is in memory, or the one
string that is longer. Children that the source does not have are removed from the target.
Everything may be done again: the result is what the source had when it was read.
"""

from __future__ import annotations

from bisect import bisect_right
from typing import Any, Final

import orjson

from treedbd.cli.client import content, receive
from treedbd.cli.data import JSON_HEADERS
from treedbd.cli.exit import CommandFailed
from treedbd.cli.loading.retries import LONGEST, Refused, Retries
from treedbd.cli.options import Url
from treedbd.cli.progress import ProgressReport
from treedbd.limits import MIB
from treedbd.tree.path import format_path, rank_key
from treedbd.tree.types import PRIORITY, Path
from treedbd.tree.value import NULL, compact

PAGE_BYTES: Final = 4 * MIB
PAGE_CHILDREN: Final = 1000
REMOVED_AT_ONCE: Final = 1000
LEAF_BYTES: Final = 64 * MIB
"""More than the JSON of the longest string, 10 MB of characters that may all be escaped."""
TOO_LARGE: Final = 413
_EXPORT: Final = {"format": "export"}


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

    def give_up(self) -> None:
        """End the copy that is under way, if it waits to try a request again."""
        self._source.give_up()
        self._target.give_up()

    async def copy(self, path: Path, *, is_new: bool = False) -> None:
        """Copy what is at a path; `is_new` if nothing is there in the target.

        Raises `CommandFailed`.
        """
        found = await self._read_value(path, _EXPORT)
        if found is None:
            await self._copy_large(path, is_new=is_new)
        elif found != NULL or not is_new:
            try:
                await self._write("PUT", path, found)
            except Refused as error:
                if error.status != TOO_LARGE:
                    raise
                await self._copy_large(path, is_new=is_new)

    async def _copy_large(self, path: Path, *, is_new: bool) -> None:
        """Copy what is too long for one request."""
        if not is_new:
            await self._remove_others(path)
        if not await self._copy_children(path, is_new=is_new):
            await self._copy_leaf(path)
            return
        priority = await self._read_value((*path, PRIORITY), {}) or NULL
        if priority != NULL or not is_new:
            await self._write("PUT", (*path, PRIORITY), priority)

    async def _copy_leaf(self, path: Path) -> None:
        found = await self._read_value(path, _EXPORT, LEAF_BYTES)
        if found is None:  # it had no children just now
            raise CommandFailed(f"{format_path(path)} of the source has changed: try again.")
        await self._write("PUT", path, found)

    async def _copy_children(self, path: Path, *, is_new: bool) -> bool:
        """Copy children in pages; return whether there were any.

        A bound includes its key, so the last child of a page is the first of the next one and is
        written with that. The page that has no other child is the last one, also if a server
        returns fewer children than were asked for.
        """
        start: str | None = None
        count = PAGE_CHILDREN
        keys: list[str] | None = None
        while True:
            page = await self._read_page(path, start, count + 1)
            if page is None and count > 1:
                count = max(1, count // 8)
                continue
            if page is None:  # what follows the first child is only known from the keys
                keys = await self._sorted_keys(path) if keys is None else keys
                first = next(iter(keys), None) if start is None else start
                if first is not None:
                    await self.copy((*path, first), is_new=is_new)
                following = _key_after(keys, first)
            else:
                first = next(iter(page), None)
                following = [*page][-1] if len(page) > 1 else None
                members = {key: page[key] for key in page if key != following}
                await self._write_children(path, members, is_new=is_new)
                count = min(2 * count, PAGE_CHILDREN)
            if following is None:
                return start is not None or first is not None
            start = following

    async def _write_children(self, path: Path, page: dict[str, Any], *, is_new: bool) -> None:
        """Write children, in several requests if the target takes no such long bodies."""
        if not page:
            return
        try:
            await self._write("PATCH", path, compact(page))
        except Refused as error:
            if error.status != TOO_LARGE:
                raise
            if len(page) == 1:
                await self.copy((*path, *page), is_new=is_new)
                return
            members, middle = [*page.items()], len(page) // 2
            await self._write_children(path, dict(members[:middle]), is_new=is_new)
            await self._write_children(path, dict(members[middle:]), is_new=is_new)

    async def _read_page(self, path: Path, start: str | None, count: int) -> dict[str, Any] | None:
        """Return the first children from a key on in order, None if they are too long."""
        parameters = {**_EXPORT, "orderBy": '"$key"', "limitToFirst": str(count)}
        if start is not None:
            parameters["startAt"] = compact(start).decode()
        text = await self._read(path, parameters)
        if text is None:
            return None
        members = _members(_parse(text, self._source_url))
        return {key: members[key] for key in sorted(members, key=rank_key) if key != PRIORITY}

    async def _sorted_keys(self, path: Path) -> list[str]:
        return sorted(await self._keys(self._source, self._source_url, path), key=rank_key)

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
        return set(_members(_parse(await content(response, address), url)))

    async def _read_value(
        self, path: Path, parameters: dict[str, str], most: int = PAGE_BYTES
    ) -> bytes | None:
        """Return what `_read` does, if it is JSON."""
        text = await self._read(path, parameters, most)
        if text is not None:
            _parse(text, self._source_url)
        return text

    async def _read(
        self, path: Path, parameters: dict[str, str], most: int = PAGE_BYTES
    ) -> bytes | None:
        """Return the JSON of a read, None if it has more than `most` bytes."""
        address = at_path(self._source_url, path).with_parameters(
            {**parameters, "timeout": LONGEST}
        )
        response = await self._source.request("GET", address)
        pieces: list[bytes] = []
        size = 0

        def consume(piece: bytes) -> None:
            nonlocal size
            size += len(piece)
            if size > most:
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


def _parse(text: bytes, url: Url) -> Any:
    """Return the JSON of a response; raise `CommandFailed` if it is none."""
    try:
        return orjson.loads(text)
    except ValueError:
        raise CommandFailed(f"{url} has answered a read with what is not JSON.") from None


def _members(found: Any) -> dict[str, Any]:
    """Return the children in a response; a hosted service prints some objects as arrays."""
    if isinstance(found, list):
        return {str(at): each for at, each in enumerate(found) if each is not None}
    return found if isinstance(found, dict) else {}


def _key_after(keys: list[str], key: str | None) -> str | None:
    """Return what follows a key among sorted keys, one of which it need not be any more."""
    if key is None:
        return None
    at = bisect_right(keys, rank_key(key), key=rank_key)
    return keys[at] if at < len(keys) else None
