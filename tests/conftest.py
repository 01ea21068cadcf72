"""Fixtures that the tests of several packages share."""

from __future__ import annotations

import pathlib
from collections.abc import Iterator

import pytest

from tests.daemon import Daemon
from tests.rest import Client


@pytest.fixture
def daemon(tmp_path: pathlib.Path) -> Iterator[Daemon]:
    """A running daemon in development mode, for one test only."""
    with Daemon(tmp_path) as running:
        yield running


@pytest.fixture(scope="module")
def shared_daemon(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    """A daemon for all tests of a module; a module that configures it overrides this fixture."""
    with Daemon(tmp_path_factory.mktemp("daemon")) as running:
        yield running


@pytest.fixture
def tree(shared_daemon: Daemon) -> Iterator[Client]:
    """A client of a project for one test only, in the daemon that its module shares."""
    with Client.of_new_tree(shared_daemon) as client:
        yield client


@pytest.fixture(scope="module")
def shared_tree(shared_daemon: Daemon) -> Iterator[Client]:
    """A client of a project for all tests of a module, or for all examples of one."""
    with Client.of_new_tree(shared_daemon) as client:
        yield client
