"""What the configuration says of a project."""

from __future__ import annotations

import attrs

from treedbd.limits import DEFAULT_PROJECT_DATABASES
from treedbd.names import DEFAULT_DATABASE, CreatorName, DialectName


@attrs.frozen
class ProjectSpec:
    """What the configuration says of a project.

    `databases` is None if any may be created, up to `databases_max`. A project that is
    `is_file_managed` has its rules from a file of the configuration, and denies everything until
    they have been read. Databases that may be created are so by writes that the rules allow, or
    by those of an admin alone. A database may hold `database_bytes` and `database_nodes`, 0 for any
    number (`store.usage` says how they are counted).
    """

    name: str
    databases: frozenset[str] | None = frozenset({DEFAULT_DATABASE})
    dialect: DialectName = "auto"
    require_index: bool = False
    is_file_managed: bool = False
    databases_max: int = DEFAULT_PROJECT_DATABASES
    create_databases: CreatorName = "rules"
    database_bytes: int = 0
    database_nodes: int = 0

    @property
    def is_created_by_admins(self) -> bool:
        """Whether only an admin's write may create a database that is not listed."""
        return self.databases is None and self.create_databases == "admin"
