"""Fixtures of the tests of moves: one PostgreSQL, without tables, and a data directory."""

from __future__ import annotations

import pathlib
from collections.abc import Iterator

import pytest

from tests.cli.moving.places import Places
from tests.postgresql import PostgresqlServers, servers


@pytest.fixture(scope="session")
def moving_server() -> Iterator[PostgresqlServers]:
    with servers(standbys=0) as running:
        yield running


@pytest.fixture
def places(moving_server: PostgresqlServers, tmp_path: pathlib.Path) -> Places:
    moving_server.primary.query("DROP SCHEMA IF EXISTS treedb CASCADE")
    return Places(tmp_path, moving_server)
