"""The services that histories are judged of: daemons of each engine, which have one database.

`ENGINES` says how each is made; another one is added there, and each test of histories runs with it
too. `DURABLE` are those that lose nothing if a daemon is killed.
"""

from __future__ import annotations

import contextlib
import pathlib
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Final

from tests.closing import Closing
from tests.daemon import Daemon
from tests.postgresql import servers


class Served(Closing):
    """Daemons that serve one database; `urls` has the base URL of each, without TLS.

    A daemon that was killed has no URL of its own until it is started again: its old one refuses
    connections. `urls` is one list, which changes.
    """

    def __init__(self, daemons: Sequence[Daemon]) -> None:
        """Start all daemons."""
        self.daemons: Final = daemons
        self.urls: Final[list[str]] = []
        self._stack = contextlib.ExitStack()
        with self._stack as starting:
            for daemon in daemons:
                starting.enter_context(daemon)
                self.urls.append(daemon.http)
            self._stack = starting.pop_all()

    def kill(self, number: int = 0) -> None:
        """Kill a daemon by SIGKILL."""
        self.daemons[number].kill()

    def restart(self, number: int = 0) -> None:
        """Start a daemon again."""
        self.daemons[number].start()
        self.urls[number] = self.daemons[number].http

    def close(self) -> None:
        """Kill all daemons."""
        self._stack.close()


def _sqlite(folder: pathlib.Path) -> Served:
    return Served([Daemon(folder)])


def _memory(folder: pathlib.Path) -> Served:
    return Served([Daemon(folder, arguments=["--engine", "memory"])])


def make_workers(folder: pathlib.Path) -> Served:
    return Served([Daemon(folder, arguments=["--workers", "2"])])


class Cluster(Served):
    """Two daemons over one PostgreSQL server, which stops with them.

    Attributes:
        servers: the server.
        dsn: the connection string.

    """

    def __init__(self, folder: pathlib.Path) -> None:
        self._stopping = contextlib.ExitStack()
        with self._stopping as starting:
            running = starting.enter_context(servers(standbys=0))
            self.servers = running
            self.dsn = running.primary.dsn()
            arguments = ["--engine", self.dsn]
            for name in ("a", "b"):
                (folder / name).mkdir()
            super().__init__([Daemon(folder / name, arguments=arguments) for name in ("a", "b")])
            self._stopping = starting.pop_all()

    def close(self) -> None:
        """Kill all daemons, and stop the server."""
        super().close()
        self._stopping.close()


ENGINES: Final[Mapping[str, Callable[[pathlib.Path], AbstractContextManager[Served]]]] = {
    "sqlite": _sqlite,
    "workers": make_workers,
    "memory": _memory,
    "postgresql": Cluster,
}
DURABLE: Final = ("sqlite", "workers", "postgresql")
