"""What tests of several rooms share."""

from __future__ import annotations

import pathlib
from collections.abc import Iterator

import pytest

from tests.daemon import Daemon


@pytest.fixture
def daemon(tmp_path: pathlib.Path) -> Iterator[Daemon]:
    """A running daemon in development mode."""
    with Daemon(tmp_path) as running:
        yield running
