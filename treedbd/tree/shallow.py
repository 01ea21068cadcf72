"""Shallow reads: the keys of a node's children, without what is below them.

Version 1 shows `true` for each child; version 2 (`v=2`) shows leaves as they are and the size of
containers. The caller reads the rows.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal, TypeAlias

import attrs
import orjson

from treedbd.tree.path import check_key
from treedbd.tree.query import PARAMETERS, WHERE, parse_limit
from treedbd.tree.types import InvalidPath, InvalidQuery

Version: TypeAlias = Literal[1, 2]

_PAGING = frozenset({"limitToFirst", "startAfter"})


@attrs.frozen
class Shallow:
    """A shallow read: which version, and which page of the keys."""

    version: Version = 1
    limit: int | None = None
    start_after: str | None = None


def parse_shallow(parameters: Mapping[str, str]) -> Shallow | None:
    """Return the shallow read in decoded request parameters, None if there is none.

    Raises `InvalidQuery`.
    """
    version = _parse_version(parameters.get("v"))
    wanted = parameters.get("shallow", "false")
    if wanted not in ("true", "false"):
        raise InvalidQuery("shallow must be true or false.")
    if wanted == "false":
        return None
    for name in (*PARAMETERS, WHERE):
        if name in parameters and name not in _PAGING:
            raise InvalidQuery(f"shallow works with limitToFirst and startAfter, not with {name}.")
    return Shallow(
        version,
        parse_limit(parameters, "limitToFirst"),
        _parse_start(parameters.get("startAfter")),
    )


def _parse_version(text: str | None) -> Version:
    if text is None:
        return 1
    if text != "2":
        raise InvalidQuery("v must be 2, or absent.")
    return 2


def _parse_start(text: str | None) -> str | None:
    if text is None:
        return None
    try:
        return check_key(orjson.loads(text) if text.startswith('"') else text)
    except InvalidPath as error:
        raise InvalidQuery(f"startAfter is not a key: {error}") from None
    except orjson.JSONDecodeError:
        raise InvalidQuery("startAfter begins with a quote but is not a JSON string.") from None
