"""Fixtures of the tests of moves: one PostgreSQL, without tables, and a data directory."""

from __future__ import annotations

import pathlib

import pytest

from tests.cli.moving.places import Places
from tests.postgresql import PostgresqlServers


@pytest.fixture
def places(clean_server: PostgresqlServers, tmp_path: pathlib.Path) -> Places:
    return Places(tmp_path, clean_server)
