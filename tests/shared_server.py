"""One PostgreSQL server for all daemons of a run of the tests, each with a database of its own."""

from __future__ import annotations

import atexit
import contextlib
import functools
import itertools
import pathlib

from tests.postgresql import PostgresqlNode, servers

_numbers = itertools.count()


@functools.cache
def shared_server() -> PostgresqlNode:
    """Return a server that is started at the first use, and stopped when this process ends."""
    running = contextlib.ExitStack()
    atexit.register(running.close)
    return running.enter_context(servers(standbys=0)).primary


@functools.cache
def database_of(folder: pathlib.Path) -> str:
    """Return the connection string of a database for daemons in a folder, on the shared server."""
    name = f"daemon{next(_numbers)}"
    shared_server().query(f"CREATE DATABASE {name}", dbname="postgres")
    return shared_server().dsn(dbname=name)
