"""Readers of configuration values: one function for each kind of value.

A `Reader` is called with the raw value of the file or a flag and its `SettingLocation`; it returns
the value or raises a `ConfigError`. A table of keys is an attrs class: the name of a field is the
name of its key, and a field is made by `key`, or by `limits.limit` for a limit.
"""

from __future__ import annotations

import os
import pathlib
import re
from collections.abc import Callable, Mapping
from typing import Any, Final, TypeAlias, TypeGuard, TypeVar

import attrs

from treedbd.errors import OperatorError, find_similar
from treedbd.limits import Bounds, bounds_of, has_bounds
from treedbd.names import HTTPS_URL, ISSUER_URL, is_https_url, is_issuer_url

T = TypeVar("T")

_READER: Final = "reader"


class ConfigError(OperatorError):
    """A setting that cannot be used."""


@attrs.frozen
class SettingLocation:
    """The origin of a value: a file or the command line, and the key in it.

    Relative paths in the value start from `folder`.
    """

    source: str
    folder: pathlib.Path
    key: str = ""

    def __str__(self) -> str:
        """Return the subject of a sentence about the value."""
        return f"{self.source}: {self.key}"

    def at(self, key: str) -> SettingLocation:
        """Return the location of a key in the table at this one."""
        return attrs.evolve(self, key=f"{self.key}.{key}" if self.key else key)

    def error(self, problem: str, remedy: str = "correct it or remove it") -> ConfigError:
        """Return the error of the value at this location; `problem` begins with a verb."""
        return ConfigError(self, problem, remedy)


Reader: TypeAlias = Callable[[object, SettingLocation], T]


def key(default: Any, reader: Reader[Any]) -> Any:
    """Return a field that is a key of the configuration, with its default."""
    return attrs.field(default=default, metadata={_READER: reader})


def table(kind: type[T]) -> Reader[T]:
    """Return a reader of a table whose keys are the fields of `kind`."""

    def read(raw: object, location: SettingLocation) -> T:
        if not isinstance(raw, dict):
            raise location.error("must be a table")
        return kind(**read_table(kind, raw, location))

    return read


def read_table(
    kind: type[Any], raw: Mapping[str, object], location: SettingLocation
) -> dict[str, Any]:
    """Read the keys of one table; return the values of the fields of `kind` that it sets."""
    readers = {
        field.name: reader
        for field in attrs.fields(kind)
        if (reader := _reader_of(field)) is not None
    }
    values = {}
    for name, value in raw.items():
        if name not in readers:
            close = find_similar(name, readers)
            known = f"did you mean {close}?" if close else "the keys are " + ", ".join(readers)
            raise location.at(name).error(f"is not a key ({known})")
        values[name] = readers[name](value, location.at(name))
    return values


def as_in_a_file(values: Mapping[str, object]) -> dict[str, object]:
    """Return values of a program in the form of a file: lists, tables, paths as text."""
    return {name: _as_in_a_file(value) for name, value in values.items()}


def _as_in_a_file(value: object) -> object:
    if isinstance(value, Mapping):
        return as_in_a_file(value)
    if isinstance(value, list | tuple):
        return [_as_in_a_file(item) for item in value]
    return os.fspath(value) if isinstance(value, os.PathLike) else value


def integer(low: int, high: int) -> Reader[int]:
    """Return a reader of an integer from `low` to `high`."""
    expected = str(low) if low == high else f"an integer from {low} to {high}"

    def read(raw: object, location: SettingLocation) -> int:
        if not isinstance(raw, int) or isinstance(raw, bool) or not low <= raw <= high:
            raise location.error(f"must be {expected}")
        return raw

    return read


def seconds(high: float) -> Reader[float]:
    """Return a reader of a number of seconds above 0, at most `high`."""

    def read(raw: object, location: SettingLocation) -> float:
        if not _is_number(raw) or not 0 < raw <= high:
            raise location.error(f"must be a number of seconds above 0 and at most {high:.0f}")
        return float(raw)

    return read


def number(low: float, high: float) -> Reader[float]:
    """Return a reader of a number from `low` to `high`."""

    def read(raw: object, location: SettingLocation) -> float:
        if not _is_number(raw) or not low <= raw <= high:
            raise location.error(f"must be a number from {low:g} to {high:.0f}")
        return float(raw)

    return read


def _is_number(raw: object) -> TypeGuard[int | float]:
    return isinstance(raw, int | float) and not isinstance(raw, bool)


def boolean(raw: object, location: SettingLocation) -> bool:
    """Read true or false."""
    if not isinstance(raw, bool):
        raise location.error("must be true or false")
    return raw


def text(raw: object, location: SettingLocation) -> str:
    """Read a string."""
    if not isinstance(raw, str):
        raise location.error("must be a string")
    return raw


def one_of(*choices: str) -> Reader[str]:
    """Return a reader of one of several strings."""

    def read(raw: object, location: SettingLocation) -> str:
        if raw not in choices:
            raise location.error("must be one of " + ", ".join(choices))
        return text(raw, location)

    return read


def texts(pattern: str, what: str) -> Reader[tuple[str, ...]]:
    """Return a reader of a list of strings that match `pattern`, which messages name `what`."""
    compiled = re.compile(pattern)

    def read(raw: object, location: SettingLocation) -> tuple[str, ...]:
        strings = [each for each in items(raw, location) if isinstance(each, str)]
        if len(strings) != len(items(raw, location)) or not all(map(compiled.fullmatch, strings)):
            raise location.error(f"must be a list of {what}")
        return tuple(strings)

    return read


def items(raw: object, location: SettingLocation) -> list[object]:
    """Read a list."""
    if not isinstance(raw, list):
        raise location.error("must be a list")
    return raw


def file(raw: object, location: SettingLocation) -> pathlib.Path:
    """Read the path of a file; a relative one starts from the folder of the location."""
    return _path(raw, location, "a file")


def files(raw: object, location: SettingLocation) -> tuple[pathlib.Path, ...]:
    """Read a list of paths of files."""
    return tuple(file(each, location) for each in items(raw, location))


def folder(raw: object, location: SettingLocation) -> pathlib.Path:
    """Read the path of a directory; a relative one starts from the folder of the location."""
    return _path(raw, location, "a directory")


def https_url(raw: object, location: SettingLocation) -> str:
    """Read an https URL."""
    url = text(raw, location)
    if not is_https_url(url):
        raise location.error(f"must be {HTTPS_URL}")
    return url


def issuer_url(raw: object, location: SettingLocation) -> str:
    """Read the identifier of an OpenID issuer."""
    url = text(raw, location)
    if not is_issuer_url(url):
        raise location.error(f"must be {ISSUER_URL}")
    return url


def _reader_of(field: attrs.Attribute[Any]) -> Reader[Any] | None:
    if has_bounds(field):
        return _limit(bounds_of(field))
    reader: Reader[Any] | None = field.metadata.get(_READER)
    return reader


def _limit(bounds: Bounds) -> Reader[Any]:
    if bounds.unit == "seconds":
        return seconds(bounds.high)
    return integer(int(bounds.low), int(bounds.high))


def _path(raw: object, location: SettingLocation, what: str) -> pathlib.Path:
    path = text(raw, location)
    if not path or "\0" in path:
        raise location.error(f"must be the path of {what}")
    return location.folder / path
