"""The settings of the projects, `[projects.<name>]`."""

from __future__ import annotations

import pathlib
from collections.abc import Mapping
from types import MappingProxyType

import attrs

from treedbd.config.provider_settings import ProviderSettings, provider_list
from treedbd.config.values import (
    SettingLocation,
    boolean,
    file,
    files,
    integer,
    items,
    key,
    one_of,
    read_table,
    seconds,
    table,
    text,
)
from treedbd.limits import (
    DEFAULT_PROJECT_DATABASES,
    MAX_LABEL_CHARACTERS,
    PROJECT_RATES,
    RateLimits,
)
from treedbd.names import DEFAULT_DATABASE, CreatorName, DialectName, parse_label


def _databases(raw: object, location: SettingLocation) -> frozenset[str] | None:
    if raw == "*":
        return None
    names = [text(each, location) for each in items(raw, location)]
    project = location.key.split(".")[1]
    for name in names:
        check_label(name, f"{name}--{project}", location)
    return frozenset(names)


def check_label(name: str, label: str, location: SettingLocation) -> None:
    """Raise `ConfigError` unless `name` is one, and `label` one that it may be part of."""
    parsed = parse_label(label)
    if parsed is None or "--" in name or name != name.lower():
        raise location.error(
            f'holds "{name}", which is not a name',
            "use a-z, 0-9 and single hyphens between them; a label <database>--<project> has at "
            f"most {MAX_LABEL_CHARACTERS} characters",
        )


def _rates(raw: object, location: SettingLocation) -> Mapping[str, int]:
    if not isinstance(raw, dict):
        raise location.error("must be a table")
    for name in raw:
        if name not in PROJECT_RATES:
            raise location.at(name).error(
                "is not a rate of a project (the keys are " + ", ".join(PROJECT_RATES) + ")"
            )
    return MappingProxyType(read_table(RateLimits, raw, location))


@attrs.frozen
class ProjectSettings:
    """`[projects.<name>]`; `databases` is None if any may be created, up to `databases_max`.

    `rates` are those that replace the ones of `[rates]`.
    """

    databases: frozenset[str] | None = key(frozenset({DEFAULT_DATABASE}), _databases)
    dialect: DialectName = key("auto", one_of("auto", "standard", "firebase"))
    require_index: bool = key(False, boolean)
    secret_files: tuple[pathlib.Path, ...] = key((), files)
    rules_file: pathlib.Path | None = key(None, file)
    providers: tuple[ProviderSettings, ...] = key((), provider_list)
    max_token_life_s: float | None = key(None, seconds(10 * 365 * 86_400))
    databases_max: int = key(DEFAULT_PROJECT_DATABASES, integer(1, 1_000_000))
    create_databases: CreatorName = key("rules", one_of("rules", "admin"))
    database_bytes: int = key(0, integer(0, 2**50))
    database_nodes: int = key(0, integer(0, 2**50))
    rates: Mapping[str, int] = key(MappingProxyType({}), _rates)


def read_projects(raw: object, location: SettingLocation) -> Mapping[str, ProjectSettings]:
    """Return the settings of the projects by their names; raise `ConfigError`."""
    if not isinstance(raw, dict):
        raise location.error("must hold a table for each project, [projects.<name>]")
    projects = {}
    for name, content in raw.items():
        check_label(name, name, location)
        projects[name] = table(ProjectSettings)(content, location.at(name))
    return MappingProxyType(projects)
