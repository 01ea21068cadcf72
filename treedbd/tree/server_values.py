"""Server values: objects `{".sv": …}` in a body that the server replaces when it writes.

`{".sv": "timestamp"}` becomes the time of the request in milliseconds; `{".sv": {"increment": n}}`
becomes the number at its place plus `n`.

A body exists in two forms: as the JSON that was sent, and as the normal form (`normalise`), with
a placeholder in place of each server value. A `Resolver` resolves both and computes each server
value once, so what is echoed and what is written cannot differ. It pauses.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, TypeAlias

import attrs

from treedbd.loop import pause
from treedbd.tree.types import PRIORITY, VALUE, InvalidData, Json, Leaf, Path, Place, Value
from treedbd.tree.value import add, canonical_number

SERVER_VALUE: Final = ".sv"


@attrs.frozen
class Timestamp:
    """Becomes the time of the request."""


@attrs.frozen
class Increment:
    """Becomes the present number at its place plus `by`."""

    by: int | float


Placeholder: TypeAlias = Timestamp | Increment
Unresolved: TypeAlias = "Leaf | Placeholder | dict[str, Unresolved] | None"
"""A `Value` that may have placeholders in place of leaves and priorities."""

ReadNumber: TypeAlias = Callable[[Place], object]
"""Returns the leaf or the priority at a place before the write, None if there is none."""


def parse_placeholder(json: dict[str, Json]) -> Placeholder:
    """Parse an object with a `.sv` member; raise `InvalidData` if it is not a server value."""
    content = json[SERVER_VALUE]
    if len(json) > 1:
        raise InvalidData(f"An object with {SERVER_VALUE} must have no other member.")
    if content == "timestamp":
        return Timestamp()
    if isinstance(content, dict) and list(content) == ["increment"]:
        by = content["increment"]
        if isinstance(by, int | float) and not isinstance(by, bool):
            try:
                return Increment(canonical_number(by))
            except (ValueError, OverflowError):
                raise InvalidData("A number is out of range.") from None
    raise InvalidData(f'{SERVER_VALUE} must be "timestamp" or {{"increment": <number>}}.')


class Resolver:
    """Replaces the server values of one write."""

    def __init__(self, now: int, read: ReadNumber | None) -> None:
        """Resolve with `now`, milliseconds since 1970, and the numbers that `read` returns.

        Without `read` increments stay as they were sent.
        """
        self._now = now
        self._read = read
        # By plain tuples of text, which the garbage collector leaves alone, unlike places.
        self._sums: dict[Path, int | float] = {}

    def resolve_value(self, value: Unresolved, path: Path) -> Value:
        """Return the normal form to be written at `path` with its placeholders replaced.

        Raises `InvalidData` if a sum is not finite.
        """
        if isinstance(value, dict):
            return {key: self._member(key, child, path) for key, child in value.items()}
        if isinstance(value, Timestamp | Increment):
            # Without `read` an increment is an object, and the result is only for an echo.
            return self.resolve_placeholder(value, Place(path))  # type: ignore[return-value]
        return value

    def resolve_sent(self, json: Json, path: Path) -> Json:
        """Return the JSON that was sent for `path` with its server values replaced.

        `normalise` has accepted it. Raises `InvalidData` if a sum is not finite.
        """
        if isinstance(json, list):
            return [self.resolve_sent(item, (*path, str(at))) for at, item in enumerate(json)]
        if not isinstance(json, dict):
            return json
        if SERVER_VALUE in json:
            return self.resolve_placeholder(parse_placeholder(json), Place(path))
        return {key: self._sent_member(key, item, path) for key, item in json.items()}

    def resolve_sent_priority(self, json: Json, path: Path) -> Json:
        """Return the priority that was sent for the node at `path`, server values replaced."""
        if isinstance(json, dict):
            return self.resolve_placeholder(parse_placeholder(json), Place(path, True))
        return json

    def resolve_placeholder(self, placeholder: Placeholder, place: Place) -> Json:
        """Return what one placeholder becomes at a place; raise `InvalidData`."""
        if isinstance(placeholder, Timestamp):
            return self._now
        if self._read is None:
            return {SERVER_VALUE: {"increment": placeholder.by}}
        key = (*place.path, PRIORITY) if place.is_priority else place.path
        if key not in self._sums:
            pause()  # a body may have tens of thousands, and reading is what takes long
            self._sums[key] = self._add(self._read(place), placeholder.by)
        return self._sums[key]

    def _add(self, present: object, by: int | float) -> int | float:
        if isinstance(present, bool) or not isinstance(present, int | float):
            return by
        try:
            return add(present, by)
        except ValueError as error:
            raise InvalidData(str(error)) from None

    def _member(self, key: str, child: Unresolved, path: Path) -> Value:
        if key == PRIORITY:
            if isinstance(child, Timestamp | Increment):
                # As in `resolve_value`: only an echo has an object here.
                return self.resolve_placeholder(child, Place(path, True))  # type: ignore[return-value]
            return self.resolve_value(child, path)
        return self.resolve_value(child, path if key == VALUE else (*path, key))

    def _sent_member(self, key: str, item: Json, path: Path) -> Json:
        if key == PRIORITY:
            return self.resolve_sent_priority(item, path)
        return self.resolve_sent(item, path if key == VALUE else (*path, key))
