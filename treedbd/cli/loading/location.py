"""Which file of a data directory, and which path in it, a URL names."""

from __future__ import annotations

import pathlib
from urllib.parse import parse_qsl

import attrs

from treedbd.cli.exit import CommandFailed
from treedbd.cli.options import Url
from treedbd.config.settings import Settings
from treedbd.database.data_directory import SHELF
from treedbd.names import DatabaseName
from treedbd.tree.types import InvalidPath, InvalidQuery, Path
from treedbd.web.addressing import Addressing, Misdirected, MissingSuffix, NoDatabaseNamed
from treedbd.web.addressing import parse_path as parse_raw_path


@attrs.frozen
class StoredNode:
    """A node in the file of a database."""

    file: pathlib.Path
    path: Path


def locate(settings: Settings, url: Url) -> StoredNode:
    """Return what a URL names, as a daemon with these settings reads it; raise `CommandFailed`."""
    if settings.engine == "memory":
        raise CommandFailed("The memory engine stores nothing: there is no file.")
    if settings.is_cluster:
        raise CommandFailed("The data is in PostgreSQL, and what is in files is only a copy.")
    try:
        name = _find_database(settings, url)
        place = parse_raw_path(url.to_json().path.encode(), 0)
    except (InvalidPath, InvalidQuery, Misdirected, NoDatabaseNamed, MissingSuffix) as error:
        raise CommandFailed(str(error)) from None
    if place.is_priority:
        raise CommandFailed("A priority is not a node: name the node.")
    return StoredNode(settings.data / name.project / f"{name.database}{SHELF}", place.path)


def path_of(url: Url) -> Path:
    """Return the path of a node that a URL names; empty if no node has it, which a server says."""
    try:
        return parse_raw_path(url.to_json().path.encode(), 0).path
    except (InvalidPath, MissingSuffix):
        return ()


def _find_database(settings: Settings, url: Url) -> DatabaseName:
    addressing = Addressing(
        settings.domains, settings.default_project, any_host=settings.development
    )
    host = f"[{url.host}]" if ":" in url.host else url.host
    name = addressing.find(host.encode(), dict(parse_qsl(url.query)).get("ns"))
    if not settings.development:
        project = settings.projects.get(name.project)
        if project is None:
            raise CommandFailed(f"The project {name.project} is not configured.")
        if project.databases is not None and name.database not in project.databases:
            raise CommandFailed(f"The project {name.project} has no database {name.database}.")
    return name
