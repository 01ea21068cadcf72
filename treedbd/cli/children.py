"""The children of a path, read in pages: any number of them in bounded memory."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

import attrs
import orjson

from treedbd.cli.exit import CommandFailed
from treedbd.cli.http_client import HttpClient
from treedbd.cli.options import Url

PAGE_CHILDREN: Final = 1000
_MAX_PAGE_BYTES: Final = 16_777_216
"""A page of values that has more is read again with fewer children."""
_SIZE: Final = ".sz"
_KINDS: Final = {bool: "boolean", str: "string", int: "number", float: "number"}


@attrs.frozen
class ListedChild:
    """A child, or the value at a path itself.

    `kind` is object, string, number or boolean, and `size` the size of its JSON in bytes; of an
    object the `value` is None. Both are unknown, "" and 0, if only keys were read.
    """

    key: str
    kind: str = ""
    size: int = 0
    value: Any = None


class _PageTooLarge(Exception):
    """A page has too many bytes to be read as a whole."""


def read_children(
    client: HttpClient, url: Url, *, with_values: bool, limit: int | None = None
) -> Iterator[ListedChild]:
    """Return the children of a path in key order, at most `limit`; none of a leaf.

    Raises `CommandFailed`. Each page shows its own moment.
    """
    after, size, left = None, PAGE_CHILDREN, limit
    while left is None or left > 0:
        count = size if left is None else min(size, left)
        try:
            page = _read_page(client, url, after, count, with_values=with_values)
        except _PageTooLarge:
            size = max(1, count // 8)
            continue
        if not isinstance(page, dict):
            return
        for key, value in page.items():
            yield describe_child(key, value) if with_values else ListedChild(key)
        if len(page) < count:
            return
        left = None if left is None else left - count
        after = next(reversed(page))


def read_itself(client: HttpClient, url: Url) -> ListedChild | None:
    """Return the value at a path, without its size if it is an object; None for nothing."""
    page = _read_page(client, url, None, 1, with_values=False)
    return None if page is None else describe_child("", page)


def describe_child(key: str, value: Any) -> ListedChild:
    """Return a child of a shallow read."""
    if isinstance(value, dict):
        size = value.get(_SIZE)
        return ListedChild(key, "object", size if isinstance(size, int) else 0)
    return ListedChild(key, _KINDS.get(type(value), "value"), len(orjson.dumps(value)), value)


def _read_page(
    client: HttpClient, url: Url, after: str | None, count: int, *, with_values: bool
) -> Any:
    """Return a page as the interface has it; raise `_PageTooLarge`."""
    parameters = {"shallow": "true", "limitToFirst": str(count)}
    if with_values:
        parameters["v"] = "2"
    if after is not None:
        parameters["startAfter"] = after
    response = client.request("GET", url.to_json().with_parameters(parameters))
    content = response.content() if count == 1 else response.content_up_to(_MAX_PAGE_BYTES)
    if content is None:
        raise _PageTooLarge
    try:
        return orjson.loads(content)
    except ValueError:
        raise CommandFailed(f"{url.origin} did not return JSON.") from None
