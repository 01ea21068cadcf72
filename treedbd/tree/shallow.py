"""Shallow reads: the keys of a node's children, in place of what lies below them.

The first version shows `true` for each child, the second (`v=2`) shows leaves as they are and the
size of containers. How the answer is drawn from the rows is the affair of the caller.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal, TypeAlias

import attrs
import orjson

from treedbd.tree.path import InvalidPath, check_key
from treedbd.tree.query import PARAMETERS, InvalidQuery, parse_limit

Version: TypeAlias = Literal[1, 2]

_PAGING = frozenset({"limitToFirst", "startAfter"})


@attrs.frozen
class Shallow:
    """A shallow read: in which version, and which page of the keys."""

    version: Version = 1
    limit: int | None = None
    start_after: str | None = None


def parse_shallow(parameters: Mapping[str, str]) -> Shallow | None:
    """Return the shallow read that decoded query parameters ask for, None if they ask for none.

    Raises `InvalidQuery`.
    """
    version = _parse_version(parameters.get("v"))
    wanted = parameters.get("shallow", "false")
    if wanted not in ("true", "false"):
        raise InvalidQuery("shallow must be true or false.")
    if wanted == "false":
        return None
    for name in PARAMETERS:
        if name in parameters and name not in _PAGING:
            raise InvalidQuery(f"shallow goes with limitToFirst and startAfter, not with {name}.")
    return Shallow(
        version,
        parse_limit(parameters, "limitToFirst"),
        _parse_start(parameters.get("startAfter")),
    )


def _parse_version(text: str | None) -> Version:
    if text is None:
        return 1
    if text != "2":
        raise InvalidQuery("v must be 2, or left out.")
    return 2


def _parse_start(text: str | None) -> str | None:
    if text is None:
        return None
    try:
        return check_key(orjson.loads(text) if text.startswith('"') else text)
    except InvalidPath as error:
        raise InvalidQuery(f"startAfter is not a key: {error}") from None
    except orjson.JSONDecodeError:
        raise InvalidQuery("startAfter begins with a quote, but is no JSON string.") from None
