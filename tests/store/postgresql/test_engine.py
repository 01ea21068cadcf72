"""The engine over PostgreSQL: the contract, two daemons with one database, and what copies hold."""

from __future__ import annotations

import pathlib
from collections.abc import Iterator

import pytest

from tests.postgresql import PostgresqlServers
from tests.store.conformance import EngineContract
from tests.store.postgresql.daemons import DaemonSide
from treedbd.store.postgresql.engine import PostgresqlEngine


class TestPostgresqlEngine(EngineContract):
    @pytest.fixture
    def side(self, lone_server: PostgresqlServers, tmp_path: pathlib.Path) -> Iterator[DaemonSide]:
        with DaemonSide(lone_server.dsn, tmp_path / "contract") as side:
            yield side

    @pytest.fixture
    def engine(
        self,
        side: DaemonSide,
        lone_server: PostgresqlServers,
        request: pytest.FixtureRequest,
    ) -> Iterator[PostgresqlEngine]:
        yield side.engine
        if "close" not in request.node.name:
            assert side.stored_rows(lone_server.primary) == side.rows()
