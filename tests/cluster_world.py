"""Three daemons over a primary and two standbys, whose connections and processes tests break.

Two daemons, `a` and `b`, reach the servers on the near side and `c` on the far side: each side can
be cut off from any of the servers. Every test uses a project of its own.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import pathlib
import signal
import sys
import time
from collections.abc import Sequence
from typing import Any, Final, overload

from tests.closing import Closing
from tests.daemon import FOREGROUND, Daemon, Response
from tests.postgresql import OWNER, PostgresqlNode, PostgresqlServers
from tests.rest import OPEN_RULES, Client
from tests.stream_follower import Follower
from tests.system import wait_until
from tests.tcp_proxy import TcpProxy
from treedbd.store.postgresql.cluster import trim
from treedbd.store.postgresql.connection import PostgresqlSettings, SessionPool

OWNER_TOKEN: Final = {"Authorization": "Bearer owner"}
COMMIT: Final = b"\0win\0", b"COMMIT\0"
"""What only the message of a commit contains, and what the answer to it if it is durable."""

MARGIN_S: Final = 1.0
LOCAL_PROJECT: Final = "local"
"""The project of daemons with local reads."""

_projects = (f"world{number}" for number in itertools.count())


def new_project() -> str:
    """Return a project that no other test uses."""
    return next(_projects)


class Side(Closing):
    """The way of some daemons to the servers: a proxy before each."""

    def __init__(self, nodes: Sequence[PostgresqlNode]) -> None:
        self.proxies: Final = {node.name: TcpProxy(node.port) for node in nodes}

    @property
    def dsn(self) -> str:
        """The connection string that names all servers."""
        hosts = ",".join(f"127.0.0.1:{proxy.port}" for proxy in self.proxies.values())
        return f"postgresql://{OWNER}@{hosts}/treedb?sslmode=disable"

    @property
    def lost_bytes(self) -> int:
        """How much was kept from the daemons by the proxies."""
        return sum(proxy.lost_bytes for proxy in self.proxies.values())

    def mute(self, pattern: bytes) -> int:
        """Do as `TcpProxy.mute` at all proxies."""
        return sum(proxy.mute(pattern) for proxy in self.proxies.values())

    def cut_off(self, *nodes: PostgresqlNode) -> None:
        """Drop all packets to and from some servers."""
        for node in nodes:
            self.proxies[node.name].block()

    def heal(self) -> None:
        """Let everything pass, over new connections."""
        for proxy in self.proxies.values():
            proxy.cut()
            proxy.unblock()

    def close(self) -> None:
        """Cut all connections."""
        for proxy in self.proxies.values():
            proxy.close()


class ClusterWorld(Closing):
    """The servers, the daemons, and what is between them.

    Attributes:
        daemons: `a`, `b` and `c`.
        ports: the port of each; it changes when a daemon is started again.

    """

    def __init__(self, servers: PostgresqlServers, folder: pathlib.Path) -> None:
        """Start the daemons."""
        self.servers: Final = servers
        self.daemons: Final[list[Daemon]] = []
        self.ports: Final[list[int]] = []
        self._stopped: set[int] = set()
        self._killed: set[int] = set()
        self._stack = contextlib.ExitStack()
        with self._stack as starting:
            self.near: Final = starting.enter_context(Side(servers.nodes))
            self.far: Final = starting.enter_context(Side(servers.nodes))
            for name, side in (("a", self.near), ("b", self.near), ("c", self.far)):
                (folder / name).mkdir()
                arguments = ["--engine", side.dsn]
                daemon = Daemon(folder / name, arguments=arguments, program=FOREGROUND)
                self.daemons.append(starting.enter_context(daemon))
                self.ports.append(daemon.port)
            self._stack = starting.pop_all()

    @property
    def a(self) -> Daemon:
        return self.daemons[0]

    @property
    def b(self) -> Daemon:
        return self.daemons[1]

    @property
    def c(self) -> Daemon:
        return self.daemons[2]

    def urls(self, project: str, daemons: int = 3) -> Sequence[str]:
        """Return the base URLs of a project at the first daemons, which change with the ports."""
        return ProjectUrls(project, self.ports, daemons)

    def client(self, number: int, project: str) -> Client:
        """Return a client of a project at one daemon."""
        return Client(self.daemons[number], f"{project}.localhost")

    def follower(self, project: str, number: int, path: str = "/") -> Follower:
        """Return a follower of a project at one daemon."""
        return Follower([self.urls(project)[number]], f"{path}.json?resume=true")

    def log(self, number: int, project: str) -> list[Any]:
        """Return the last writes to a database, as one daemon knows them."""
        with self.client(number, project) as client:
            target = "/.settings/log.json?limitToFirst=1000"
            response = client.request("GET", target, headers=OWNER_TOKEN)
        assert response.status == 200, response
        return list(response.json)

    def trim(self, project: str) -> int:
        """Drop from PostgreSQL all records of commits to a database but the last."""
        (row,) = self.servers.primary.query(
            "SELECT db FROM treedb.dbs WHERE project = %s", [project]
        )
        pool = SessionPool(PostgresqlSettings(self.servers.dsn), 1)
        try:
            return trim(pool, row[0], retain=1, age_s=0)
        finally:
            pool.close()

    def kill(self, number: int) -> None:
        """Kill a daemon by SIGKILL."""
        self.daemons[number].kill()
        self._killed.add(number)

    def restart(self, number: int) -> None:
        """Start a daemon again that was killed."""
        self.daemons[number].start()
        self.ports[number] = self.daemons[number].port
        self._killed.discard(number)

    def stop(self, number: int) -> None:
        """Stop a daemon where it is, by SIGSTOP."""
        self.daemons[number].signal(signal.SIGSTOP)
        self._stopped.add(number)

    def go_on(self, number: int) -> None:
        """Let a daemon go on that was stopped."""
        self.daemons[number].signal(signal.SIGCONT)
        self._stopped.discard(number)

    def fail_over_cut_off(self) -> PostgresqlNode:
        """Cut the primary and `c` off from everybody else, and promote a standby.

        Returns the old primary, which runs.
        """
        self.far.cut_off(*self.servers.standbys)
        self.near.cut_off(self.servers.primary)
        return self.servers.fail_over(kill=False)

    def heal(self) -> None:
        """Let everything and everybody run, and wait until all daemons say that they are well."""
        for number in list(self._stopped):
            self.go_on(number)
        self.servers.heal()
        for side in (self.near, self.far):
            side.heal()
        for number in list(self._killed):
            self.restart(number)
        self.await_healthy()

    def await_healthy(self) -> None:
        """Wait until all daemons say that they are well."""
        for daemon in self.daemons:
            wait_until(lambda: daemon.request("GET", "/.health").status == 200)  # noqa: B023

    def close(self) -> None:
        """Kill the daemons."""
        self._stack.close()


def with_wrong_clock(folder: pathlib.Path, dsn: str, ahead_s: float) -> Daemon:
    """Return a daemon whose wall clock is ahead of that of the others, or behind."""
    script = pathlib.Path(__file__).with_name("shifted_clock.py")
    prefix = [sys.executable, str(script), str(ahead_s)]
    return Daemon(folder, arguments=["--engine", dsn], prefix=prefix)


def with_local_reads(folder: pathlib.Path, dsn: str) -> Daemon:
    """Return a daemon that shows what it has, and says how old that may be."""
    (folder / "open.json").write_text(OPEN_RULES)
    config = f"""engine = "{dsn}"
reads = "local"
emulator = true
domains = ["localhost"]
[projects.{LOCAL_PROJECT}]
rules_file = "open.json"
"""
    return Daemon(folder, config=config)


def put_rules(client: Client, rules: Any) -> None:
    """Put rules of a client's project."""
    body = json.dumps({"rules": rules})
    response = client.request("PUT", "/.settings/rules.json", body, OWNER_TOKEN)
    assert response.status == 200, response


def timed(client: Client, method: str, target: str, body: str | None = None) -> Response:
    """Return the response to a request with `timeout=1s`, which must come in time."""
    begin = time.monotonic()
    response = client.request(method, target, body)
    assert time.monotonic() - begin < 1 + MARGIN_S
    return response


class ProjectUrls(Sequence[str]):
    """The base URLs of a project, as the ports are at the time."""

    def __init__(self, project: str, ports: Sequence[int], count: int) -> None:
        self._project = project
        self._ports = ports
        self._count = count

    def __len__(self) -> int:
        return self._count

    @overload
    def __getitem__(self, at: int) -> str: ...
    @overload
    def __getitem__(self, at: slice) -> Sequence[str]: ...
    def __getitem__(self, at: int | slice) -> str | Sequence[str]:
        if isinstance(at, slice):
            return [self[number] for number in range(self._count)[at]]
        if not 0 <= at < self._count:
            raise IndexError(at)
        return f"http://{self._project}.localhost:{self._ports[at]}"
