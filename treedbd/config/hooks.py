"""The hooks of the configuration: `[[projects.<name>.webhooks]]`, with their secrets.

They are made and checked at the start, and are the same until the next one; their secrets are read
with those of the projects (`credentials`), and again at a reload.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import attrs

from treedbd.config.settings import HookSettings, Settings
from treedbd.config.values import SettingLocation
from treedbd.names import DatabaseName
from treedbd.store.hooks import HOOK_NAME, KINDS, Hook
from treedbd.tree.pattern import InvalidPattern, parse_pattern


class ConfiguredHooks:
    """The hooks of the configuration."""

    def __init__(self, settings: Settings) -> None:
        """Make them without their secrets; raise `ConfigError`."""
        self._databases: dict[tuple[str, str], frozenset[str] | None] = {}
        self._hooks: dict[str, tuple[Hook, ...]] = {}
        for name, project in settings.projects.items():
            location = settings.location_of(name).at("webhooks")
            self._hooks[name] = tuple(_make(each, location) for each in project.webhooks)
            self._databases |= {(name, each.name): each.databases for each in project.webhooks}

    def of(self, name: DatabaseName) -> tuple[Hook, ...]:
        """Return the hooks of a database, as `Runtime.hooks_of` does."""
        hooks = self._hooks.get(name.project, ())
        return tuple(each for each in hooks if self._is_of(name, each))

    def _is_of(self, name: DatabaseName, hook: Hook) -> bool:
        databases = self._databases[name.project, hook.name]
        return databases is None or name.database in databases

    def use_secrets(self, project: str, secrets: Mapping[str, tuple[str, ...]]) -> None:
        """Sign what the hooks of a project send with these secrets, by the names of hooks."""
        self._hooks[project] = tuple(
            attrs.evolve(each, secrets=secrets.get(each.name, ())) for each in self._hooks[project]
        )


_ALL: Final = frozenset(KINDS)


def _make(settings: HookSettings, location: SettingLocation) -> Hook:
    """Return a hook without its secrets; raise `ConfigError`."""
    if not HOOK_NAME.fullmatch(settings.name):
        raise location.error(
            f'has the name "{settings.name}"', "use a-z, 0-9 and hyphens, 50 characters at most"
        )
    try:
        pattern = parse_pattern(settings.on)
    except InvalidPattern as error:
        problem = str(error).removesuffix(".")
        raise location.error(
            f"has an `on` for {settings.name} that is not valid ({problem})"
        ) from None
    return Hook(
        name=settings.name,
        on=pattern,
        kinds=frozenset(kind for kind in _ALL if {kind, "written"} & {*settings.events}),
        url=settings.url,
        form=settings.form,
        is_configured=True,
    )
