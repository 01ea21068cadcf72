"""Concurrent clients and followers of a stream agree on one history, on each engine."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import pytest

from tests.served import DURABLE, ENGINES, Served
from tests.trial import Trial
from tests.workload import Plan

CUTS = 4
KILLS = 2


_roots = (f"trial{number}" for number in itertools.count())


@pytest.fixture(params=[300, pytest.param(1000, marks=pytest.mark.slow)])
def plan(request: pytest.FixtureRequest) -> Plan:
    """A plan for a path that no other test uses."""
    return Plan(operations=request.param, root=next(_roots))


@pytest.fixture(scope="module", params=ENGINES)
def served(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Served]:
    """A service of each engine; of fewer, if a test is parametrised with `served` indirectly."""
    with ENGINES[request.param](tmp_path_factory.mktemp("served")) as running:
        yield running


def test_concurrent_clients_and_streams_see_one_history(served: Served, plan: Plan) -> None:
    with Trial(served.urls, plan).start() as trial:
        trial.finish()
        report = trial.check()
    assert report.operations > plan.operations
    assert report.outcomes["mismatch"]
    assert not report.outcomes["refused"]
    assert not report.outcomes["unknown"]
    for stream in report.streams:
        assert stream.events > plan.operations // 4


def test_streams_that_are_cut_miss_nothing(served: Served, plan: Plan) -> None:
    with Trial(served.urls, plan).start() as trial:
        for part in range(1, CUTS + 1):
            trial.workload.await_ended(part * plan.operations // (CUTS + 1))
            for follower in trial.followers:
                follower.cut()
        trial.finish()
        report = trial.check()
        assert all(follower.connections >= CUTS for follower in trial.followers)
    assert {each.restarts for each in report.streams} == {0}


@pytest.mark.parametrize("served", DURABLE, indirect=True)
def test_a_history_with_kills_in_it_is_one_history(served: Served, plan: Plan) -> None:
    with Trial(served.urls, plan).start() as trial:
        for part in range(1, KILLS + 1):
            trial.workload.await_ended(part * plan.operations // (KILLS + 1))
            served.kill(part % len(served.daemons))
            served.restart(part % len(served.daemons))
        trial.finish()
        report = trial.check()
    assert report.outcomes["unknown"]
    assert {each.restarts for each in report.streams} == {0}
