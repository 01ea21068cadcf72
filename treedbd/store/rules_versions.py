"""The last versions of the rules of a project: what is known of each, and the files of them.

Every replacement of rules by others makes a version; they are numbered from 1, and the last
`RULES_VERSIONS` are kept. Which of them is in force is not recorded, but found by its text: so what
is shown is true whatever a crash has left, or another program has put in place of the stored rules.
If no version has the text of the stored rules (they are older than versions, or were replaced by
hand), they count as a version of their own, the newest, whose origin is not known.

`VersionFiles` keeps each version in a file: a line of JSON with its origin, then its text.
"""

from __future__ import annotations

import contextlib
import pathlib
import re
from collections.abc import Sequence
from typing import Any, Final

import attrs
import orjson

from treedbd.files import create_directory, write_atomically
from treedbd.limits import RULES_VERSIONS

_NAME: Final = re.compile(r"([1-9][0-9]{0,17})\.rules")
_MAX_HEAD_BYTES: Final = 4096


class RulesReplaced(Exception):
    """Others have replaced the stored rules since they were read."""


@attrs.frozen
class Origin:
    """When a version was put, in milliseconds since 1970, and by whom.

    An admin may have no uid. What is not known is None or False.
    """

    time: int | None = None
    uid: str | None = None
    is_admin: bool = False


UNKNOWN: Final = Origin()


@attrs.frozen
class RulesVersion:
    """One version: its number, where it came from, its size in bytes, whether it is in force."""

    number: int
    origin: Origin
    size: int
    is_current: bool = False


def mark_current(
    found: Sequence[RulesVersion], number: int | None, stored: bytes | None, origin: Origin
) -> list[RulesVersion]:
    """Return versions with the newest first, and with the `stored` rules among them.

    `found` are ordered by their numbers, and `number` is that of the newest that has the text of
    the stored rules, if any. If there is none, the rules are a version of `origin`.
    """
    versions = [attrs.evolve(each, is_current=each.number == number) for each in found]
    if number is None and stored is not None:
        following = found[-1].number + 1 if found else 1
        versions.append(RulesVersion(following, origin, len(stored), is_current=True))
    return versions[: -RULES_VERSIONS - 1 : -1]


class VersionFiles:
    """The versions in one folder; all methods but the constructor may block and raise OSError."""

    def __init__(self, folder: pathlib.Path) -> None:
        """Keep them in `folder`, which is created with the first one."""
        self._folder = folder

    def list_all(self, stored: bytes | None, origin: Origin) -> list[RulesVersion]:
        """Return the versions, the newest first; the `stored` rules are in force."""
        found, current = [], None
        for number in self._numbers():
            with contextlib.suppress(FileNotFoundError):  # removed meanwhile
                each, text = self._read(number, stored)
                found.append(each)
                current = number if text is not None and text == stored else current
        return mark_current(found, current, stored, origin)

    def newest(self) -> int | None:
        """Return the number of the newest version; None if there is none."""
        return max(self._numbers(), default=None)

    def read(self, number: int) -> bytes | None:
        """Return the text of a version; None if there is no such file."""
        try:
            with self._file(number).open("rb") as file:
                file.readline(_MAX_HEAD_BYTES)
                return file.read()
        except FileNotFoundError:
            return None

    def add(self, version: RulesVersion, text: bytes) -> None:
        """Keep a version durably."""
        create_directory(self._folder)
        origin = version.origin
        head = {"time": origin.time, "uid": origin.uid, "admin": origin.is_admin}
        write_atomically(self._file(version.number), orjson.dumps(head) + b"\n" + text)

    def remove(self, number: int) -> None:
        """Remove a version that has not come into force."""
        self._file(number).unlink(missing_ok=True)

    def trim(self) -> None:
        """Remove the oldest versions; what cannot be removed is tried again with the next."""
        for number in self._numbers()[:-RULES_VERSIONS]:
            with contextlib.suppress(OSError):
                self.remove(number)

    def _read(self, number: int, stored: bytes | None) -> tuple[RulesVersion, bytes | None]:
        """Return a version, and its text if it may be that of the `stored` rules."""
        file = self._file(number)
        with file.open("rb") as opened:
            head = opened.readline(_MAX_HEAD_BYTES)
            size = file.stat().st_size - len(head)
            text = opened.read() if stored is not None and size == len(stored) else None
        return RulesVersion(number, _parse_head(head), size), text

    def _numbers(self) -> list[int]:
        """Return the numbers of the versions in order."""
        try:
            names = [file.name for file in self._folder.iterdir()]
        except FileNotFoundError:
            return []
        return sorted(int(found[1]) for found in map(_NAME.fullmatch, names) if found)

    def _file(self, number: int) -> pathlib.Path:
        return self._folder / f"{number}.rules"


def _parse_head(head: bytes) -> Origin:
    """Return what the first line of a file says; what is damaged is not known."""
    try:
        found: Any = orjson.loads(head)
    except orjson.JSONDecodeError:
        return UNKNOWN
    if not isinstance(found, dict):
        return UNKNOWN
    time, uid = found.get("time"), found.get("uid")
    return Origin(
        time=time if type(time) is int else None,
        uid=uid if isinstance(uid, str) else None,
        is_admin=found.get("admin") is True,
    )
