"""Which projects and databases there are, and the one place where databases are opened.

A database is stored at `<folder>/<project>/<name>.shelf`. Reading one that was never written
creates nothing; it is created by the first write that succeeds.
"""

from __future__ import annotations

import pathlib
from collections.abc import Mapping, MutableMapping
from typing import Any, Final
from weakref import WeakValueDictionary

from twisted.internet.defer import Deferred, DeferredList
from twisted.logger import Logger

from treedbd.database.active_rules import ActiveRules
from treedbd.database.data_directory import SHELF, walk
from treedbd.database.database import Database, ProjectSpec
from treedbd.database.errors import UnknownDatabase
from treedbd.database.runtime import Runtime
from treedbd.limits import MIB, Limits, RulesLimits
from treedbd.names import DEFAULT_DATABASE, DatabaseName, DialectName, EngineName
from treedbd.rules.ruleset import DEFAULT_LIMITS, DENY, RuleSet
from treedbd.store.create_on_write import CreateOnWriteEngine
from treedbd.store.engine import CannotCreateStore, CannotOpenStore, Engine
from treedbd.store.memory import MemoryEngine
from treedbd.store.sqlite.engine import SqliteEngine
from treedbd.store.sqlite.file import damaged
from treedbd.store.verify import find_unreadable

CHECKED_BYTES: Final = 256 * MIB
"""A larger database is not checked when it is opened: that would take too long."""


class Catalog:
    """All databases of one data directory."""

    _log = Logger()

    def __init__(  # noqa: PLR0913 - all but three are given by name
        self,
        folder: pathlib.Path,
        engine: EngineName,
        projects: Mapping[str, ProjectSpec],
        *,
        any_project: bool,
        first_rules: RuleSet,
        rules_limits: RulesLimits = DEFAULT_LIMITS,
        max_databases: int = Limits().databases,
        runtime: Runtime,
        retain_events: int,
    ) -> None:
        """Serve `folder`; with `any_project` every project exists, configured or not.

        `first_rules` are in force in a project until its own are PUT. If `max_databases` are open,
        no other is created.
        """
        self._folder = folder
        self._engine = engine
        self._projects = dict(projects)
        self._any_project = any_project
        self._first_rules = first_rules
        self._rules_limits = rules_limits
        self._max_databases = max_databases
        self._rules: MutableMapping[str, ActiveRules] = WeakValueDictionary()
        self._kept_rules: list[ActiveRules] = []
        self._runtime = runtime
        self._retain_events = retain_events
        self._open: dict[DatabaseName, Database] = {}
        self._unwritten: WeakValueDictionary[DatabaseName, Database] = WeakValueDictionary()

    def open(self) -> None:
        """Open every database in the folder; raise `CannotOpenStore`."""
        if self._engine != "sqlite":
            return
        for entry in walk(self._folder, self._projects):
            if entry.project not in self._projects and not self._any_project:
                self._log.warn(
                    "{file} does not belong to a configured project; it is not opened.",
                    file=str(entry.file),
                )
            elif entry.error is not None:
                raise entry.error
            elif entry.is_shelf:
                name = DatabaseName(entry.project, entry.database)
                self._open[name] = self._make(name, _open_checked(entry.file))
        for project in self._projects:
            self.rules(project)  # so that what is wrong with rules is reported at the start

    def find(self, name: DatabaseName) -> Database:
        """Return a database that exists or may be created; raise `UnknownDatabase`."""
        database = self._open.get(name)
        if database is not None and self._may_exist(name, database.project):
            return database
        project = self._project(name)
        if not self._may_exist(name, project):
            raise UnknownDatabase(name, is_project_known=True)
        return self._unwritten.get(name) or self._make_unwritten(name)

    def dialect(self, name: DatabaseName) -> DialectName:
        """Return the dialect set for the project of a database; raise `UnknownDatabase`."""
        return self._project(name).dialect

    def rules(self, project: str) -> ActiveRules:
        """Return the rules in force of a project; raise `UnknownDatabase`."""
        rules = self._rules.get(project)
        if rules is None:
            spec = self._project(DatabaseName(project))
            rules = self._rules[project] = self._make_rules(spec)
            if project in self._projects or self._engine == "memory":
                # Others are dropped with their databases; rules that were PUT are in a file.
                self._kept_rules.append(rules)
        return rules

    def names(self, project: ProjectSpec) -> list[DatabaseName]:
        """Return the databases of a project that exist or are configured, in order."""
        names = project.databases
        if names is None:
            written = {name.database for name in list(self._open) if name.project == project.name}
            names = frozenset({DEFAULT_DATABASE} | written)
        return [DatabaseName(project.name, name) for name in sorted(names)]

    def write_problems(self) -> dict[str, str]:
        """Return, by label, why databases refuse writes at present; empty if none does."""
        return {
            name.label: problem
            for name, database in list(self._open.items())
            if (problem := database.write_problem) is not None
        }

    def close(self) -> Deferred[None]:
        """Answer the writes under way and close every store."""
        closing = DeferredList([database.close() for _, database in self._live()])
        return closing.addCallback(self._report_failures)

    def _report_failures(self, results: list[tuple[bool, Any]]) -> None:
        for is_closed, result in results:
            if not is_closed:
                self._log.failure("A store could not be closed.", result)

    def _project(self, name: DatabaseName) -> ProjectSpec:
        spec = self._projects.get(name.project)
        if spec is not None:
            return spec
        if self._any_project:
            return ProjectSpec(name.project, None)
        raise UnknownDatabase(name, is_project_known=False)

    def _may_exist(self, name: DatabaseName, project: ProjectSpec) -> bool:
        return project.databases is None or name.database in project.databases

    def _live(self) -> list[tuple[DatabaseName, Database]]:
        """Return every database in use, also those that were never written.

        A worker thread may add to the open ones, at a first commit: iterate over copies.
        """
        written = list(self._open.items())
        names = {name for name, _ in written}
        return written + [each for each in self._unwritten.items() if each[0] not in names]

    def _make_rules(self, project: ProjectSpec) -> ActiveRules:
        def changed() -> None:
            for name, database in self._live():
                if name.project == project.name:
                    database.recheck_grants()

        return ActiveRules(
            DENY if project.is_file_managed else self._first_rules,
            is_file_managed=project.is_file_managed,
            limits=self._rules_limits,
            folder=self._folder / project.name if self._engine == "sqlite" else None,
            run_in_thread=self._runtime.run_in_thread,
            changed=changed,
        )

    def _make_unwritten(self, name: DatabaseName) -> Database:
        def keep() -> None:
            self._open[name] = database

        database = self._make(name, CreateOnWriteEngine(lambda: self._create(name), keep))
        self._unwritten[name] = database
        return database

    def _make(self, name: DatabaseName, engine: Engine) -> Database:
        project, rules = self._project(name), self.rules(name.project)
        return Database(name, engine, project, rules, self._runtime, self._retain_events)

    def _create(self, name: DatabaseName) -> Engine:
        if len(self._open) >= self._max_databases:
            raise CannotCreateStore(
                f"There are {len(self._open)} databases, and no more can be created."
            )
        if self._engine == "memory":
            return MemoryEngine()
        file = self._folder / name.project / f"{name.database}{SHELF}"
        # It exists already if an earlier first commit failed after the file had been created.
        return SqliteEngine.open(file) if file.exists() else SqliteEngine.create(file)


def _open_checked(file: pathlib.Path) -> SqliteEngine:
    """Open the file of a database, and check it if it is not large; raise `CannotOpenStore`."""
    try:
        engine = SqliteEngine.open(file)
    except OSError as error:
        raise CannotOpenStore(
            file,
            f"cannot be opened ({error.strerror})",
            "put the database back, or move the rest of it out of the data directory",
        ) from None
    damage = None
    if engine.size() <= CHECKED_BYTES:
        damage = engine.find_damage() or engine.read(find_unreadable)
    if damage is not None:
        engine.close()
        raise damaged(file, damage)
    return engine
