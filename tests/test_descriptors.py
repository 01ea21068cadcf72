"""Connections and open databases fit into the files that the process may open."""

from __future__ import annotations

import resource

import attrs
import pytest

from treedbd.limits import Limits
from treedbd.service import RESERVED_FILES as RESERVED
from treedbd.service import DescriptorPlan, descriptor_limit, plan_descriptors

LIMITS = Limits(connections=1000, open_databases=100)
NEEDED = 1000 + 100 * 9 + RESERVED


def test_what_fits_is_as_the_settings_say() -> None:
    plan = DescriptorPlan(1000, 100, None)
    assert plan_descriptors(LIMITS, 9, NEEDED) == plan
    assert plan_descriptors(LIMITS, 9, 2**31) == plan


def test_what_does_not_fit_is_less_and_a_warning_names_the_remedy() -> None:
    plan = plan_descriptors(LIMITS, 9, NEEDED - 1)
    assert plan.connections == 1000
    assert plan.open_databases == 99
    assert plan.warning == (
        "The process may open 2411 files, and the settings connections = 1000 and open_databases = "
        "100 need 2412: at most 1000 connections and 99 databases are open at a time. Raise the "
        "limit (LimitNOFILE= in a unit of systemd, ulimit -n in a shell), or lower the settings."
    )


def test_defaults_that_do_not_fit_are_lowered_without_a_warning() -> None:
    plan = plan_descriptors(Limits(), 9, 1024)
    assert plan.connections + plan.open_databases * 9 < 1024
    assert plan.warning is None
    for name, number in (("connections", 20_001), ("open_databases", 4001)):
        assert plan_descriptors(attrs.evolve(Limits(), **{name: number}), 9, 1024).warning


@pytest.mark.parametrize("available", [1, 8, 64, 100, 256, 1024, 2000, 20_000, 55_000])
@pytest.mark.parametrize("connections", [1, 100, 20_001])
@pytest.mark.parametrize("databases", [1, 100, 4000])
def test_the_plan_never_needs_more_than_there_is(
    available: int, connections: int, databases: int
) -> None:
    limits = attrs.evolve(LIMITS, connections=connections, open_databases=databases)
    plan = plan_descriptors(limits, 9, available)
    assert 1 <= plan.connections <= connections
    assert 1 <= plan.open_databases <= databases
    if available >= 64:
        used = plan.connections + plan.open_databases * 9
        assert used <= available - min(RESERVED, available // 4)
    is_whole = (plan.connections, plan.open_databases) == (connections, databases)
    assert (plan.warning is None) == (used_by(limits) <= available)
    assert is_whole or plan.warning is not None


def used_by(limits: Limits) -> int:
    return limits.connections + limits.open_databases * 9 + RESERVED


def test_databases_receive_a_quarter_or_what_connections_leave() -> None:
    many = plan_descriptors(attrs.evolve(LIMITS, connections=20_000), 9, 1024)
    assert many.open_databases == (1024 - 256) // 4 // 9
    few = plan_descriptors(attrs.evolve(LIMITS, connections=10), 9, 1024)
    assert few.open_databases == (1024 - 256 - 10) // 9


@pytest.mark.parametrize("soft", [200, resource.RLIM_INFINITY])
def test_the_limit_is_that_of_the_process(soft: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resource, "getrlimit", lambda _: (soft, soft))
    assert descriptor_limit() == (200 if soft == 200 else 2**31 - 1)
