"""The rules of a project in PostgreSQL, where all daemons find them."""

from __future__ import annotations

from treedbd.database.active_rules import LoadedRules
from treedbd.database.requests import Unavailable
from treedbd.store.engine import StoreUnreachable
from treedbd.store.postgresql.cluster import ProjectStore


class ClusterRules:
    """A `RulesStorage` of one project."""

    is_shared = True

    def __init__(self, projects: ProjectStore, project: str) -> None:
        """Use the rules that `projects` has of `project`."""
        self._projects = projects
        self._project = project

    @property
    def label(self) -> str:
        """Which rules they are."""
        return f"PostgreSQL, project {self._project}"

    def load(self) -> LoadedRules:
        """Return the rules; blocks. Raises `Unavailable`."""
        try:
            return LoadedRules(*self._projects.read_rules(self._project))
        except StoreUnreachable as error:
            raise Unavailable(str(error)) from None

    def store(self, text: bytes) -> None:
        """Replace the rules, for all daemons; blocks. Raises `Unavailable`."""
        try:
            self._projects.put_rules(self._project, text)
        except StoreUnreachable as error:
            raise Unavailable(str(error)) from None
