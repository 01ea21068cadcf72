"""A fail-over that nobody of ours makes: Patroni promotes when the primary is killed."""

from __future__ import annotations

import contextlib
import pathlib
from collections.abc import Iterator

import pytest

from tests.cluster_world import ProjectUrls, new_project
from tests.daemon import Daemon
from tests.patroni import PatroniCluster
from tests.trial import Trial
from tests.workload import Plan

KILLS = 2
OPERATIONS = 40_000
"""Many of them are refused while there is no primary."""


@pytest.fixture
def cluster() -> Iterator[PatroniCluster]:
    with PatroniCluster() as running:
        yield running


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_nothing_acknowledged_is_lost_when_patroni_fails_over(
    cluster: PatroniCluster, tmp_path: pathlib.Path
) -> None:
    with contextlib.ExitStack() as stack:
        ports = []
        for name in "abc":
            (tmp_path / name).mkdir()
            daemon = Daemon(tmp_path / name, arguments=["--engine", cluster.dsn])
            ports.append(stack.enter_context(daemon).port)
        plan = Plan(operations=OPERATIONS, query="timeout=2s")
        urls = ProjectUrls(new_project(), ports, 3)
        running = stack.enter_context(Trial(urls, plan, followers=3)).start()
        for _ in range(KILLS):
            running.workload.await_ended(running.workload.ended + 800)
            old = cluster.leader()
            old.kill()
            assert cluster.leader() is not old
            running.workload.await_ended(running.workload.ended + 200)
            old.start()  # Patroni rewinds it, and lets it follow
            cluster.await_quorum(cluster.nodes)
        running.finish()
        report = running.check()
    assert {each.restarts for each in report.streams} == {0}
    assert report.outcomes["ok"] > plan.operations / 2
