"""The other processes that serve the same databases, as a catalog and its rules know them."""

from __future__ import annotations

from collections.abc import Awaitable
from contextlib import AbstractAsyncContextManager
from typing import Protocol

from treedbd.database.problems import Problem
from treedbd.names import DatabaseName


class RulesExchange(Protocol):
    """How the processes that serve a project agree on its rules."""

    def turn(self) -> AbstractAsyncContextManager[None]:
        """Wait until no other process stores rules, and let none do so meanwhile."""
        ...

    def spread(self) -> Awaitable[None]:
        """Return when all other processes have the stored rules in force."""
        ...


class OtherProcesses(Protocol):
    """The other processes that serve the same databases.

    Attributes:
        checks_files: whether this process, and no other, checks files for damage.

    """

    @property
    def checks_files(self) -> bool:
        """Whether this process checks files for damage."""
        ...

    def find_problems(self) -> Awaitable[list[Problem]]:
        """Find what keeps them from serving databases as they should."""
        ...

    def tell_damaged(self, name: DatabaseName, *, refuses_reads: bool) -> None:
        """Let them refuse a database that this process has found damaged."""
        ...

    def rules_of(self, project: str) -> RulesExchange:
        """Return how they agree on the rules of a project."""
        ...
