"""Daemons for the clients: one in development mode, one with a domain and TLS."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.clients.harness import Domain
from tests.daemon import Daemon


@pytest.fixture(scope="session")
def development(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    """A running daemon in development mode."""
    with Daemon(tmp_path_factory.mktemp("development")) as running:
        yield running


@pytest.fixture(scope="session")
def domain(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Domain]:
    """A running daemon with a domain and TLS."""
    with Domain(tmp_path_factory.mktemp("domain")) as running:
        yield running
