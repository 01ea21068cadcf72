"""What the packages below a service are told of the settings: they do not know the settings."""

from __future__ import annotations

from treedbd.config.settings import Settings
from treedbd.counts import Counting
from treedbd.database.project import ProjectSpec
from treedbd.web.options import WebOptions


def web_options(settings: Settings, counts: Counting | None) -> WebOptions:
    """Return the options of the interface; `counts` are those of all workers, None without."""
    is_local = settings.development or settings.emulator
    # A service that does not listen by itself is mounted in a program that knows its own hosts.
    has_own_hosts = bool(settings.domains and settings.listen)
    return WebOptions(
        domains=settings.domains,
        default_project=settings.default_project,
        etag_headers=settings.http.etag_headers,
        cors_origins=settings.http.cors_origins,
        compression=settings.http.compression,
        any_host=not is_local and not has_own_hosts,
        only_local_pages=is_local,
        limits=settings.limits,
        streams=settings.streams,
        counts=counts,
    )


def project_specs(settings: Settings) -> dict[str, ProjectSpec]:
    """Return what the catalog knows of each configured project."""
    return {
        name: ProjectSpec(
            name,
            project.databases,
            project.dialect,
            project.require_index,
            is_file_managed=project.rules_file is not None,
            databases_max=project.databases_max,
        )
        for name, project in settings.projects.items()
    }
