"""How the values of configuration keys are read: one function for each kind of value.

A `Read` takes what the file or a flag holds and the `Place` it stands in, and returns the value or
raises a `ConfigError`. A record of keys is an attrs class whose fields are made by `key`; the name
of the field is the name of the key. Which keys there are stands in `config`.
"""

from __future__ import annotations

import difflib
import math
import pathlib
import re
from collections.abc import Callable, Mapping
from typing import Any, Final, TypeAlias, TypeVar

import attrs

from treedbd.tree.line import in_one_line

_READ: Final = "read"

T = TypeVar("T")


class ConfigError(Exception):
    """A setting that cannot be used; one sentence says where, which and what to do."""


@attrs.frozen
class Place:
    """Where a value comes from: a file or the command line, and the key in it."""

    source: str
    folder: pathlib.Path
    key: str = ""

    def at(self, key: str) -> Place:
        """Return the place of a key in the table that stands here."""
        return attrs.evolve(self, key=f"{self.key}.{key}" if self.key else key)

    def refuse(self, problem: str, remedy: str = "correct it or remove it") -> ConfigError:
        """Return the error that says what is wrong here and what to do."""
        return ConfigError(in_one_line(f"{self.source}: {self.key} {problem}: {remedy}."))


Read: TypeAlias = Callable[[object, Place], T]


def key(default: Any, read: Read[Any]) -> Any:
    """Return a field that is a key, with the value it has where nothing is said."""
    return attrs.field(default=default, metadata={_READ: read})


def record(kind: type[T]) -> Read[T]:
    """Read a table whose keys are the fields of `kind`."""

    def read(raw: object, place: Place) -> T:
        if not isinstance(raw, dict):
            raise place.refuse("must be a table")
        return kind(**read_fields(kind, raw, place))

    return read


def read_fields(kind: type[Any], raw: Mapping[str, object], place: Place) -> dict[str, Any]:
    """Read the keys of one table; return those fields of `kind` that it sets."""
    reads = {
        field.name: field.metadata[_READ] for field in attrs.fields(kind) if _READ in field.metadata
    }
    values = {}
    for name, value in raw.items():
        if name not in reads:
            close = difflib.get_close_matches(name, reads, 1)
            known = f"did you mean {close[0]}?" if close else "the keys are " + ", ".join(reads)
            raise place.at(name).refuse(f"is not a key ({known})")
        values[name] = reads[name](value, place.at(name))
    return values


def integer(low: int, high: int) -> Read[int]:
    """Read an integer from `low` to `high`."""
    bounds = str(low) if low == high else f"an integer from {low} to {high}"

    def read(raw: object, place: Place) -> int:
        if not isinstance(raw, int) or isinstance(raw, bool) or not low <= raw <= high:
            raise place.refuse(f"must be {bounds}")
        return raw

    return read


def seconds(high: float) -> Read[float]:
    """Read a number of seconds above 0, at most `high`."""

    def read(raw: object, place: Place) -> float:
        if (
            not isinstance(raw, int | float)
            or isinstance(raw, bool)
            or not math.isfinite(raw)
            or not 0 < raw <= high
        ):
            raise place.refuse(f"must be a number of seconds above 0 and at most {high:.0f}")
        return float(raw)

    return read


def switch(raw: object, place: Place) -> bool:
    """Read true or false."""
    if not isinstance(raw, bool):
        raise place.refuse("must be true or false")
    return raw


def text(raw: object, place: Place) -> str:
    """Read a string."""
    if not isinstance(raw, str):
        raise place.refuse("must be a string")
    return raw


def choice(*choices: str) -> Read[str]:
    """Read one of some strings."""

    def read(raw: object, place: Place) -> str:
        if raw not in choices:
            raise place.refuse("must be one of " + ", ".join(choices))
        return text(raw, place)

    return read


def texts(pattern: str, what: str) -> Read[tuple[str, ...]]:
    """Read a list of strings that match `pattern` as a whole; `what` names them."""
    compiled = re.compile(pattern)

    def read(raw: object, place: Place) -> tuple[str, ...]:
        strings = [each for each in items(raw, place) if isinstance(each, str)]
        if len(strings) != len(items(raw, place)) or not all(map(compiled.fullmatch, strings)):
            raise place.refuse(f"must be a list of {what}")
        return tuple(strings)

    return read


def items(raw: object, place: Place) -> list[object]:
    """Read a list."""
    if not isinstance(raw, list):
        raise place.refuse("must be a list")
    return raw


def file(raw: object, place: Place) -> pathlib.Path:
    """Read the path of a file; a relative one starts from the folder of the place."""
    path = text(raw, place)
    if not path or "\0" in path:
        raise place.refuse("must be the path of a file")
    return place.folder / path


def files(raw: object, place: Place) -> tuple[pathlib.Path, ...]:
    """Read a list of paths of files."""
    return tuple(file(each, place) for each in items(raw, place))


def folder(raw: object, place: Place) -> pathlib.Path:
    """Read the path of a directory; a relative one starts from the folder of the place."""
    path = text(raw, place)
    if not path or "\0" in path:
        raise place.refuse("must be the path of a directory")
    return place.folder / path
