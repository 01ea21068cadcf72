"""Where the rules of a project are stored: beside its databases, or in a cluster."""

from __future__ import annotations

import pathlib
from collections.abc import Callable
from typing import Final, NamedTuple, Protocol

from twisted.internet.defer import Deferred

from treedbd.database.requests import Unavailable
from treedbd.files import create_directory, write_atomically

UNKNOWN_EPOCH: Final = -1
"""The epoch of rules of a cluster that have not been loaded yet: nothing is judged by them."""


class LoadedRules(NamedTuple):
    """The text of stored rules, None if nobody has put any, and what their place counts.

    The epoch grows with every replacement; where only one machine stores rules, it is always 0.
    """

    text: bytes | None
    epoch: int


class RulesStorage(Protocol):
    """The place where the rules of one project are stored; all but `label` may be slow.

    Attributes:
        is_shared: whether they are loaded before each use, since others replace them.

    """

    is_shared: bool

    @property
    def label(self) -> str:
        """What the log calls the stored rules."""
        ...

    def load(self) -> LoadedRules:
        """Return what is stored, in any thread; raise OSError or `Unavailable`."""
        ...

    def store(self, text: bytes) -> None:
        """Replace what is stored, durably, in any thread; raise `Unavailable`."""
        ...


class FollowedRules(Protocol):
    """The rules in force of one project, for those who follow what others store.

    Attributes:
        epoch: that of the rules in force.

    """

    epoch: int

    def load_stored(self, epoch: int | None = None) -> Deferred[None]:
        """Put the rules in force that others have stored, unless those of `epoch` are."""
        ...


class FileRules:
    """Rules in a file, written whole or not at all."""

    is_shared = False

    def __init__(
        self, file: pathlib.Path, find_misplaced: Callable[[], str | None] = lambda: None
    ) -> None:
        """Store in `file`; `find_misplaced` returns why nothing can be stored at present."""
        self._file = file
        self._find_misplaced = find_misplaced

    @property
    def label(self) -> str:
        """The path of the file."""
        return str(self._file)

    def load(self) -> LoadedRules:
        """Return the content of the file, if there is one; raise OSError."""
        try:
            return LoadedRules(self._file.read_bytes(), 0)
        except FileNotFoundError:
            return LoadedRules(None, 0)

    def store(self, text: bytes) -> None:
        """Replace the file; raise `Unavailable`."""
        if (problem := self._find_misplaced()) is not None:
            raise Unavailable(f"The rules cannot be stored: {problem}")
        try:
            create_directory(self._file.parent)
            write_atomically(self._file, text)
        except OSError as error:
            raise Unavailable(f"The rules cannot be stored: {error.strerror}.") from None
