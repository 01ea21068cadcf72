"""One PostgreSQL server for a run of the tests.

Tests that leave it as it is have it by the fixture `lone_server`. Daemons have a database each of
their own on it.
"""

from __future__ import annotations

import atexit
import contextlib
import functools
import itertools
import pathlib

from tests.postgresql import PostgresqlServers, servers

_numbers = itertools.count()


@functools.cache
def shared_server() -> PostgresqlServers:
    """Return a server that is started at the first use, and stopped when this process ends."""
    running = contextlib.ExitStack()
    atexit.register(running.close)
    return running.enter_context(servers(standbys=0))


@functools.cache
def database_of(folder: pathlib.Path) -> str:
    """Return the connection string of a database for daemons in a folder, on the shared server."""
    name = f"daemon{next(_numbers)}"
    shared_server().primary.query(f"CREATE DATABASE {name}", dbname="postgres")
    return shared_server().primary.dsn(dbname=name)
