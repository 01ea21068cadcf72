"""Three PostgreSQL servers that Patroni manages, with etcd: the fail-over of real operators.

Needs the extra `slow`, and etcd (`apt-get install etcd-server`). All run as an unprivileged user
where the servers would refuse the superuser.
"""

from __future__ import annotations

import contextlib
import json
import os
import pathlib
import shutil
import signal
import subprocess
import sys
import tempfile
import urllib.request
from typing import Any, Final

import psycopg

from tests.closing import Closing
from tests.postgresql import BIN, OWNER, as_unprivileged, children, give_away, reachable_folder
from tests.system import find_port, wait_until

TTL_S: Final = 20
CONFIGURATION: Final = """
scope: treedb
name: {name}
restapi: {{listen: "127.0.0.1:{rest}", connect_address: "127.0.0.1:{rest}"}}
etcd3: {{hosts: "127.0.0.1:{etcd}"}}
bootstrap:
  dcs:
    ttl: {ttl}
    loop_wait: 4
    retry_timeout: 8
    maximum_lag_on_failover: 1048576
    synchronous_mode: quorum
    synchronous_node_count: 1
    postgresql:
      use_pg_rewind: true
      parameters:
        wal_level: replica
        wal_log_hints: "on"
        max_connections: 60
        dynamic_shared_memory_type: mmap
  initdb: [{{encoding: UTF8}}, {{locale: C}}]
  pg_hba: ["host all all 127.0.0.1/32 trust", "host replication all 127.0.0.1/32 trust"]
postgresql:
  listen: "127.0.0.1:{port}"
  connect_address: "127.0.0.1:{port}"
  data_dir: {folder}/{name}
  bin_dir: {bin}
  pgpass: {folder}/{name}.pgpass
  authentication:
    superuser: {{username: {owner}, password: unused}}
    replication: {{username: replicator, password: unused}}
    rewind: {{username: rewinder, password: unused}}
  parameters: {{unix_socket_directories: ""}}
"""


class PatroniNode(Closing):
    """One server, and the process of Patroni that manages it."""

    def __init__(self, folder: pathlib.Path, name: str, etcd: int) -> None:
        """Write the configuration; nothing is started yet."""
        self.name: Final = name
        self.port: Final = find_port()
        self._rest = find_port()
        self._folder = folder
        self._file = folder / f"{name}.yml"
        self._file.write_text(
            CONFIGURATION.format(
                name=name,
                rest=self._rest,
                etcd=etcd,
                ttl=TTL_S,
                port=self.port,
                folder=folder,
                bin=BIN,
                owner=OWNER,
            )
        )
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start Patroni, which starts the server."""
        with (self._folder / f"{self.name}.log").open("ab") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "patroni", str(self._file)],
                cwd=self._folder,
                stdout=log,
                stderr=log,
                start_new_session=True,
                **as_unprivileged(),
            )

    def state(self) -> dict[str, Any]:
        """Return what Patroni says of the server; empty if it does not answer."""
        with contextlib.suppress(OSError, ValueError):
            url = f"http://127.0.0.1:{self._rest}/patroni"
            request = urllib.request.Request(url, method="GET")
            with urllib.request.urlopen(request, timeout=2) as response:
                found: dict[str, Any] = json.load(response)
                return found
        return {}

    @property
    def is_leader(self) -> bool:
        state = self.state()
        return state.get("role") in ("master", "primary") and state.get("state") == "running"

    @property
    def log(self) -> str:
        return (self._folder / f"{self.name}.log").read_text(errors="replace")

    def kill(self) -> None:
        """Kill Patroni and the server at once, as a power failure."""
        process, self._process = self._process, None
        if process is None:
            return
        pids = [process.pid]
        for pid in pids:
            pids += children(pid)
        pid_file = self._folder / self.name / "postmaster.pid"
        if pid_file.exists():  # the server is no child of Patroni if that was started again
            server = int(pid_file.read_text().split()[0])
            pids += [server, *children(server)]
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        process.wait()

    def close(self) -> None:
        """Kill it."""
        self.kill()


class PatroniCluster(Closing):
    """Three servers; one is the leader once there is one."""

    def __init__(self) -> None:
        """Start everything, and wait until commits are confirmed by a standby."""
        self._stack = contextlib.ExitStack()
        with self._stack as starting:
            self._folder = pathlib.Path(tempfile.mkdtemp(prefix="patroni-", dir=reachable_folder()))
            starting.callback(shutil.rmtree, self._folder, ignore_errors=True)
            give_away(self._folder)
            etcd = self._start_etcd(starting)
            self.nodes: Final[list[PatroniNode]] = []
            for number in range(3):
                node = PatroniNode(self._folder, f"node{number}", etcd)
                self.nodes.append(starting.enter_context(node))
                node.start()
            self.await_quorum(self.nodes)
            with psycopg.connect(self._dsn("postgres"), autocommit=True) as connection:
                connection.execute("CREATE DATABASE treedb")
            self._stack = starting.pop_all()

    @property
    def dsn(self) -> str:
        """The connection string that names all servers."""
        return self._dsn("treedb")

    def leader(self) -> PatroniNode:
        """Return the server that takes writes, as soon as there is one."""
        found: list[PatroniNode] = []

        def find() -> bool:
            found[:] = [each for each in self.nodes if each.is_leader]
            return bool(found)

        wait_until(find)
        return found[0]

    def await_quorum(self, nodes: list[PatroniNode]) -> None:
        """Wait until one of some servers leads, and the others confirm its commits."""

        def is_complete() -> bool:
            leaders = [each for each in nodes if each.is_leader]
            if not leaders:
                return False
            streaming = leaders[0].state().get("replication", [])
            confirming = [each for each in streaming if each.get("sync_state") == "quorum"]
            return len(confirming) >= len(nodes) - 1

        wait_until(is_complete)

    def close(self) -> None:
        """End everything."""
        self._stack.close()

    def _dsn(self, database: str) -> str:
        hosts = ",".join(f"127.0.0.1:{node.port}" for node in self.nodes)
        options = "sslmode=disable&target_session_attrs=read-write"
        return f"postgresql://{OWNER}@{hosts}/{database}?{options}"

    def _start_etcd(self, starting: contextlib.ExitStack) -> int:
        program = shutil.which("etcd")
        assert program is not None, "etcd is missing: apt-get install etcd-server"
        client, peer = find_port(), find_port()
        clients, peers = f"http://127.0.0.1:{client}", f"http://127.0.0.1:{peer}"
        words = ["--data-dir", str(self._folder / "etcd"), "--name", "one"]
        words += ["--listen-client-urls", clients, "--advertise-client-urls", clients]
        words += ["--listen-peer-urls", peers, "--initial-advertise-peer-urls", peers]
        words += ["--initial-cluster", f"one={peers}"]
        process = subprocess.Popen(
            [program, *words],
            cwd=self._folder,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            **as_unprivileged(),
        )
        starting.callback(process.wait)
        starting.callback(process.kill)
        return client
