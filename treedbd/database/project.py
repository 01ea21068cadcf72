"""What the configuration says of a project."""

from __future__ import annotations

import attrs

from treedbd.limits import DEFAULT_PROJECT_DATABASES
from treedbd.names import DEFAULT_DATABASE, DialectName


@attrs.frozen
class ProjectSpec:
    """What the configuration says of a project.

    `databases` is None if any may be created, up to `databases_max`. A project that is
    `is_file_managed` has its rules from a file of the configuration, and denies everything until
    they have been read.
    """

    name: str
    databases: frozenset[str] | None = frozenset({DEFAULT_DATABASE})
    dialect: DialectName = "auto"
    require_index: bool = False
    is_file_managed: bool = False
    databases_max: int = DEFAULT_PROJECT_DATABASES
