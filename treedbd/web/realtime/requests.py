"""What the bodies of requests have in common: paths and members, parsed."""

from __future__ import annotations

from typing import Any

from treedbd.tree.path import make_place
from treedbd.tree.types import InvalidPath, Path, Place

_MISSING = object()


class InvalidRequest(InvalidPath):
    """A request without a member that it needs, or with another type there."""


def place_of(body: dict[str, Any]) -> Place:
    """Return the place that `p` names, with or without a leading slash; raise `InvalidPath`."""
    text = body.get("p")
    if not isinstance(text, str):
        raise InvalidRequest("The path (p) must be a string.")
    return make_place([segment for segment in text.split("/") if segment])


def path_of(body: dict[str, Any]) -> Path:
    """Return the path of a node that `p` names; raise `InvalidPath`."""
    place = place_of(body)
    if place.is_priority:
        raise InvalidPath("A priority can only be set and removed here.")
    return place.path


def tag_of(body: dict[str, Any]) -> int | None:
    """Return the tag of a query; raise `InvalidPath`."""
    tag = body.get("t")
    if tag is not None and (type(tag) is not int or not 0 <= tag < 2**53):
        raise InvalidRequest("The tag (t) must be an integer.")
    return tag


def value_of(body: dict[str, Any]) -> Any:
    """Return the value `d`, which may be null; raise `InvalidPath` without one."""
    value = body.get("d", _MISSING)
    if value is _MISSING:
        raise InvalidRequest("The request needs a value (d).")
    return value
