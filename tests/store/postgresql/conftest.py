"""Fixtures of the tests over PostgreSQL: servers for the whole run, a database for each test."""

from __future__ import annotations

import pathlib
from collections.abc import Iterator

import pytest

from tests.postgresql import PostgresqlServers, servers
from tests.store.postgresql.daemons import DaemonSide


@pytest.fixture(scope="session")
def three_servers() -> Iterator[PostgresqlServers]:
    """A primary and two synchronous standbys."""
    with servers(standbys=2) as running:
        yield running


@pytest.fixture
def cluster_servers(three_servers: PostgresqlServers) -> Iterator[PostgresqlServers]:
    """The three servers, for a test that may break them."""
    three_servers.heal()
    yield three_servers
    three_servers.heal()


@pytest.fixture
def one(lone_server: PostgresqlServers, tmp_path: pathlib.Path) -> Iterator[DaemonSide]:
    """What a daemon has of a new database."""
    with DaemonSide(lone_server.dsn, tmp_path / "one") as side:
        yield side


@pytest.fixture
def other(one: DaemonSide, tmp_path: pathlib.Path) -> Iterator[DaemonSide]:
    """What another daemon has of the same database."""
    with one.beside(tmp_path / "other") as side:
        yield side
