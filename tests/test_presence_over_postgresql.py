"""Presence survives the data directory of a daemon over PostgreSQL, and a move of the engine."""

from __future__ import annotations

import pathlib
from collections.abc import Iterator

import pytest

from tests.postgresql import PostgresqlServers
from tests.presence_over_postgresql import STEPS, PresenceOverPostgresql

ROUNDS = 2
CASES = [(way, step) for way, steps in STEPS.items() for step in (None, *steps)]


@pytest.fixture
def rounds(
    clean_server: PostgresqlServers, tmp_path: pathlib.Path
) -> Iterator[PresenceOverPostgresql]:
    with PresenceOverPostgresql(tmp_path, clean_server) as running:
        yield running
    assert "Traceback" not in running.log, running.log


def test_another_daemon_writes_what_a_lost_one_has_left_once(
    rounds: PresenceOverPostgresql,
) -> None:
    for _ in range(ROUNDS):
        rounds.check_standby()


def test_a_new_container_writes_what_the_lost_one_has_left_once(
    rounds: PresenceOverPostgresql,
) -> None:
    rounds.check_lost_container()


@pytest.mark.parametrize(
    ("way", "step"), CASES, ids=[f"{way}-{step and step[1]}" for way, step in CASES]
)
def test_a_move_takes_along_what_killed_daemons_have_left(
    rounds: PresenceOverPostgresql, way: str, step: tuple[str, str] | None
) -> None:
    rounds.check_move(way, step)


@pytest.mark.parametrize("way", STEPS)
def test_a_move_takes_along_what_connected_clients_leave(
    rounds: PresenceOverPostgresql, way: str
) -> None:
    rounds.check_move(way, None, is_stopped=True)
