"""Fixtures of the tests of connections."""

from __future__ import annotations

import socket
from collections.abc import Iterator

import pytest

from tests.http1.test_direct_send import SocketTransport


@pytest.fixture
def transport() -> Iterator[SocketTransport]:
    """A transport with a small socket buffer."""
    made = SocketTransport()
    made.tcp.socket.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
    yield made
    made.close()
