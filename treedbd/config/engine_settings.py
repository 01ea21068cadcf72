"""The settings of the storage engine and of the processes that use it, as they are read."""

from __future__ import annotations

import os
from typing import Final

from treedbd.config.values import SettingLocation, integer, text

MAX_WORKERS: Final = 64
ENGINES: Final = ("sqlite", "memory")
POSTGRESQL_SCHEMES: Final = ("postgresql://", "postgres://")


def read_engine(raw: object, location: SettingLocation) -> str:
    """Return the engine that a setting names; raise `ConfigError`."""
    engine = text(raw, location)
    if engine.startswith(POSTGRESQL_SCHEMES):
        if "@" in engine and ":" in engine.partition("//")[2].rpartition("@")[0]:
            raise location.error(
                "holds a password",
                "put it into the file that PGPASSFILE names, or into a service file",
            )
        return engine
    if engine not in ENGINES:
        raise location.error("must be sqlite, memory, or a URL postgresql://…")
    return engine


def read_workers(raw: object, location: SettingLocation) -> int:
    """Return a number of worker processes, for `auto` one for each core; raise `ConfigError`."""
    if raw == "auto":
        return min(_cores(), MAX_WORKERS)
    if isinstance(raw, str):
        raise location.error(f'must be an integer from 1 to {MAX_WORKERS}, or "auto"')
    return integer(1, MAX_WORKERS)(raw, location)


def _cores() -> int:
    """Return how many cores this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1
