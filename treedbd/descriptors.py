"""How many connections and open databases fit into the files that a process may open."""

from __future__ import annotations

import resource
from typing import Final

import attrs

from treedbd.limits import Limits

RESERVED: Final = 512
"""Descriptors for everything else: connections that are turned away, temporary files, snapshots."""
UNLIMITED: Final = 2**31 - 1
_DEFAULT: Final = Limits()


@attrs.frozen
class DescriptorPlan:
    """How many connections and databases are open at a time.

    `warning` is a sentence for the operator if that is less than he has asked for.
    """

    connections: int
    open_databases: int
    warning: str | None = None


def descriptor_limit() -> int:
    """Return how many files this process may have open."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return UNLIMITED if soft == resource.RLIM_INFINITY else soft


def plan_descriptors(limits: Limits, per_database: int, available: int) -> DescriptorPlan:
    """Divide the `available` descriptors, of which an open database needs `per_database`.

    If there are too few, databases receive a quarter, or what connections leave. That is worth a
    warning only if the limits are not the defaults, which nobody has asked for.
    """
    reserved = min(RESERVED, available // 4)
    needed = limits.connections + limits.open_databases * per_database + RESERVED
    if needed <= available:
        return DescriptorPlan(limits.connections, limits.open_databases)
    free = available - reserved
    for_databases = max(free // 4, free - limits.connections) // per_database
    most_databases = max(1, min(limits.open_databases, for_databases))
    for_connections = free - most_databases * per_database
    most_connections = max(1, min(limits.connections, for_connections))
    if (limits.connections, limits.open_databases) == (
        _DEFAULT.connections,
        _DEFAULT.open_databases,
    ):
        return DescriptorPlan(most_connections, most_databases)
    return DescriptorPlan(
        most_connections,
        most_databases,
        f"The process may open {available} files, and the settings connections = "
        f"{limits.connections} and open_databases = {limits.open_databases} need {needed}: at most "
        f"{most_connections} connections and {most_databases} databases are open at a time. Raise "
        "the limit (LimitNOFILE= in a unit of systemd, ulimit -n in a shell), or lower the "
        "settings.",
    )
