"""Hooks that databases have from their first write on, because they are for a pattern of databases.

A hook of one database is a row of it. Those of a pattern of databases are kept in a file of the
data directory, and become rows of a database in the transaction of its first write; so no write is
missed, whichever process does it. In memory they are kept by the process.
"""

from __future__ import annotations

import pathlib
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final
from weakref import WeakSet

import attrs
import orjson
from twisted.logger import Logger

from treedbd.files import write_atomically
from treedbd.names import DatabaseName
from treedbd.store.hooks import Hook, decode_hook, encode_hook

if TYPE_CHECKING:
    from treedbd.database.event_capture import EventCapture

FILE: Final = "treedb.functions"
"""The name of the file in a data directory; no project has such a name."""
_log = Logger()


@attrs.frozen
class FirstHook:
    """A hook of all databases of a pattern.

    `project` is the only one whose databases it is of, None for all; `instances` is the pattern of
    their labels.
    """

    hook: Hook
    project: str | None
    instances: str

    def is_of(self, name: DatabaseName) -> bool:
        """Return whether a database has the hook."""
        is_of_project = self.project is None or self.project == name.project
        return is_of_project and is_label_of(self.instances, name.label)


class FirstHooks:
    """The hooks that databases have from their first write on."""

    def __init__(self, folder: pathlib.Path | None = None) -> None:
        """Keep them in a file of `folder`, or in memory."""
        self._file = None if folder is None else folder / FILE
        self._kept: list[FirstHook] = []
        self._waiting: WeakSet[EventCapture] = WeakSet()

    def all(self) -> list[FirstHook]:
        """Return all; raise OSError, or ValueError for a file that cannot be read."""
        if self._file is None:
            return list(self._kept)
        try:
            content = self._file.read_bytes()
        except FileNotFoundError:
            return []
        try:
            return [_decode(json) for json in orjson.loads(content)]
        except (ValueError, LookupError, TypeError):
            raise ValueError("It is damaged.") from None

    def find_readable(self) -> list[FirstHook]:
        """Return all, none if the file is damaged, which is logged; raise OSError."""
        try:
            return self.all()
        except ValueError:
            _log.error("{file} is damaged: functions have to register again.", file=str(self._file))
            return []

    def of(self, name: DatabaseName) -> list[Hook]:
        """Return those of a database; none if that cannot be read, which is logged."""
        try:
            return [each.hook for each in self.find_readable() if each.is_of(name)]
        except OSError as error:
            _log.error("{file} cannot be read: {error}", file=str(self._file), error=error)
            return []

    def replace(self, hooks: Sequence[FirstHook]) -> None:
        """Keep these and no others; may block, and raise OSError.

        Databases without a write look for theirs again.
        """
        if self._file is None:
            self._kept = list(hooks)
        else:
            write_atomically(self._file, orjson.dumps([_encode(each) for each in hooks]))
        for capture in list(self._waiting):
            capture.changed()

    def watch(self, capture: EventCapture) -> None:
        """Make a database look again when these change, which has no write yet."""
        self._waiting.add(capture)


def is_label_of(instances: str, label: str) -> bool:
    """Return whether a label is one of a pattern."""
    first, *others = instances.split("*")
    if not others:
        return label == instances
    *inner, last = others
    if not label.startswith(first):
        return False
    at = len(first)
    for part in inner:
        at = label.find(part, at) + len(part)
        if at < len(part):
            return False
    return len(label) >= at + len(last) and label.endswith(last)


def _encode(first: FirstHook) -> dict[str, Any]:
    return {
        "hook": encode_hook(first.hook),
        "project": first.project,
        "instances": first.instances,
    }


def _decode(json: Any) -> FirstHook:
    return FirstHook(decode_hook(json["hook"]), json["project"], json["instances"])
