"""Which projects and databases there are, and the one place where databases are opened.

A database lies in `<folder>/<project>/<name>.shelf`. Reading one that nobody has written creates
nothing; it comes into being with the first write that succeeds.
"""

from __future__ import annotations

import pathlib
from collections.abc import Mapping, MutableMapping
from typing import Any, Literal, TypeAlias
from weakref import WeakValueDictionary

import attrs
from twisted.internet.defer import Deferred, DeferredList
from twisted.logger import Logger

from treedbd.database.database import Database
from treedbd.database.directory import SHELF, walk
from treedbd.database.platform import Platform
from treedbd.database.rulebook import Rulebook
from treedbd.rules.limits import RulesLimits
from treedbd.rules.ruleset import DEFAULT_LIMITS, DENY, RuleSet
from treedbd.store.lazy import LazyMapping
from treedbd.store.mapping import Mapping as StoreMapping
from treedbd.store.mapping import NotMade, Refused
from treedbd.store.memory import MemoryMapping
from treedbd.store.sqlite import SqliteMapping
from treedbd.store.verification import find_unreadable

EngineName: TypeAlias = Literal["sqlite", "memory"]
DialectChoice: TypeAlias = Literal["auto", "standard", "firebase"]
DEFAULT_DATABASE = "default"
MOST_DATABASES = 4000
"""Each that is open holds six files open."""
CHECKED_BYTES = 256 * 1_048_576
"""A larger database is not looked through when it is opened: that would take too long."""


@attrs.frozen
class ProjectSpec:
    """What the configuration says of a project.

    `databases` is None where any may be created. A project that `is_governed` has its rules from a
    file of the configuration, and denies everything until they have been read.
    """

    name: str
    databases: frozenset[str] | None = frozenset({DEFAULT_DATABASE})
    dialect: DialectChoice = "auto"
    require_index: bool = False
    is_governed: bool = False


@attrs.frozen
class DatabaseName:
    """A database of a project."""

    project: str
    database: str = DEFAULT_DATABASE

    @property
    def label(self) -> str:
        """The label that addresses it: `shop`, or `eu--shop`."""
        if self.database == DEFAULT_DATABASE:
            return self.project
        return f"{self.database}--{self.project}"


class UnknownDatabase(LookupError):
    """No such project, or no such database in it; the message says which."""


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
        most_databases: int = MOST_DATABASES,
        platform: Platform,
        retain_events: int,
    ) -> None:
        """Serve `folder`; with `any_project` a project that is not named exists all the same.

        `first_rules` hold in a project until its own are put. Where `most_databases` are open no
        other comes into being.
        """
        self._folder = folder
        self._engine = engine
        self._projects = dict(projects)
        self._any_project = any_project
        self._first_rules = first_rules
        self._rules_limits = rules_limits
        self._most_databases = most_databases
        self._rulebooks: MutableMapping[str, Rulebook] = WeakValueDictionary()
        self._kept_rulebooks: list[Rulebook] = []
        self._platform = platform
        self._retain_events = retain_events
        self._open: dict[DatabaseName, Database] = {}
        self._unwritten: WeakValueDictionary[DatabaseName, Database] = WeakValueDictionary()

    def open(self) -> None:
        """Open every database that lies in the folder; raise `Refused` for one that is no good."""
        if self._engine != "sqlite":
            return
        for entry in walk(self._folder, self._projects):
            if entry.project not in self._projects and not self._any_project:
                self._log.warn(
                    "{file} belongs to no project here; left alone.", file=str(entry.place)
                )
            elif entry.trouble is not None:
                raise Refused(entry.trouble)
            elif entry.is_shelf:
                name = DatabaseName(entry.project, entry.database)
                self._open[name] = self._make(name, _open_sound(entry.place))
        for project in self._projects:
            self.rulebook(project)  # so that what is wrong with rules is said at once

    def project(self, name: str) -> ProjectSpec:
        """Return a project; raise `UnknownDatabase`."""
        spec = self._projects.get(name)
        if spec is not None:
            return spec
        if self._any_project:
            return ProjectSpec(name, None)
        raise UnknownDatabase(f"There is no project {name}.")

    def check(self, name: DatabaseName) -> ProjectSpec:
        """Return the project of a database that exists or may be; raise `UnknownDatabase`."""
        project = self.project(name.project)
        if project.databases is not None and name.database not in project.databases:
            raise UnknownDatabase(f"The project {name.project} has no database {name.database}.")
        return project

    def database(self, name: DatabaseName) -> Database:
        """Return a database that `check` lets pass, one that has nothing in it yet too."""
        database = self._open.get(name) or self._unwritten.get(name)
        return database if database is not None else self._make_unwritten(name)

    def rulebook(self, project: str) -> Rulebook:
        """Return the rules in force of a project; raise `UnknownDatabase`."""
        rulebook = self._rulebooks.get(project)
        if rulebook is None:
            rulebook = self._rulebooks[project] = self._make_rulebook(self.project(project))
            if project in self._projects or self._engine == "memory":
                # Others are forgotten with their databases; what was put for them is in a file.
                self._kept_rulebooks.append(rulebook)
        return rulebook

    def names(self, project: str) -> list[DatabaseName]:
        """Return the databases of a project that exist or are configured, in order."""
        configured = self.project(project).databases
        if configured is None:
            written = {name.database for name in list(self._open) if name.project == project}
            configured = frozenset({DEFAULT_DATABASE} | written)
        return [DatabaseName(project, database) for database in sorted(configured)]

    def troubles(self) -> dict[str, str]:
        """Return, by label, why databases refuse writes at present; empty while all is well."""
        return {
            name.label: trouble
            for name, database in list(self._open.items())
            if (trouble := database.trouble) is not None
        }

    def close(self) -> Deferred[None]:
        """Answer the writes under way and close every store."""
        closing = DeferredList([database.close() for _, database in self._live()])
        return closing.addCallback(self._report_failures)

    def _report_failures(self, results: list[tuple[bool, Any]]) -> None:
        for is_closed, result in results:
            if not is_closed:
                self._log.failure("A store could not be closed.", result)

    def _live(self) -> list[tuple[DatabaseName, Database]]:
        """Return every database there is, those that nobody has written too.

        A first commit may add to the open ones meanwhile, in its thread: iterate over copies.
        """
        written = list(self._open.items())
        names = {name for name, _ in written}
        return written + [each for each in self._unwritten.items() if each[0] not in names]

    def _make_rulebook(self, project: ProjectSpec) -> Rulebook:
        def changed() -> None:
            for name, database in self._live():
                if name.project == project.name:
                    database.recheck_permits()

        return Rulebook(
            DENY if project.is_governed else self._first_rules,
            is_governed=project.is_governed,
            limits=self._rules_limits,
            folder=self._folder / project.name if self._engine == "sqlite" else None,
            run_commit=self._platform.run_commit,
            changed=changed,
        )

    def _make_unwritten(self, name: DatabaseName) -> Database:
        def keep() -> None:
            self._open[name] = database

        database = self._make(name, LazyMapping(lambda: self._create(name), keep))
        self._unwritten[name] = database
        return database

    def _make(self, name: DatabaseName, mapping: StoreMapping) -> Database:
        rulebook = self.rulebook(name.project)
        return Database(mapping, rulebook, self._platform, self._retain_events)

    def _create(self, name: DatabaseName) -> StoreMapping:
        if len(self._open) >= self._most_databases:
            raise NotMade(f"There are {len(self._open)} databases, and no more may be made.")
        if self._engine == "memory":
            return MemoryMapping()
        file = self._folder / name.project / f"{name.database}{SHELF}"
        # It is there already if an earlier first commit failed when the file had been made.
        return SqliteMapping.open(file) if file.exists() else SqliteMapping.create(file)


def _open_sound(file: pathlib.Path) -> SqliteMapping:
    """Open the file of a database and look through it if it is not large; raise `Refused`."""
    try:
        mapping = SqliteMapping.open(file)
    except OSError as error:
        raise Refused(
            f"{file} cannot be opened ({error.strerror}): put the database back, or move what is "
            "left out of the data directory."
        ) from None
    damage = None
    if mapping.size() <= CHECKED_BYTES:
        damage = mapping.find_damage() or mapping.read(find_unreadable)
    if damage is not None:
        mapping.close()
        raise Refused(
            f"{file} is damaged ({damage}): restore it from a backup, after the -wal and the -shm "
            "beside it have been removed."
        )
    return mapping
