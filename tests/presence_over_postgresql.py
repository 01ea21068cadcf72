"""Rounds of presence over PostgreSQL: a daemon ends, and its data directory or its engine changes.

What its client has left must be written once, by whichever daemon is there afterwards. The same
rounds are run by a test, a few of each way, and by `bench/presence.py`, many.
"""

from __future__ import annotations

import contextlib
import pathlib
import shutil
import signal
import time
from collections.abc import Sequence
from typing import Any, Final

from tests.closing import Closing
from tests.command import result_of, start
from tests.daemon import Daemon
from tests.postgresql import PostgresqlServers
from tests.presence_client import Address, come_online
from tests.realtime import RealtimeClient
from tests.rest import OPEN_RULES, Client
from tests.system import wait_until

CONFIG: Final = 'default_project = "shop"\n[projects.shop]\nrules_file = "open.json"\n'
DONE: Final = {"online": False, "ends": 1}
_KILL: Final = """
import importlib, os, signal, sys
from treedbd.cli.main import main
owner = importlib.import_module(sys.argv[1])
for part in sys.argv[2].split(".")[:-1]:
    owner = getattr(owner, part)
setattr(owner, sys.argv[2].split(".")[-1], lambda *_, **__: os.kill(os.getpid(), signal.SIGKILL))
sys.exit(main(sys.argv[3:]))
"""
_MOVE: Final = "treedbd.cli.moving"
STEPS: Final[dict[str, Sequence[tuple[str, str]]]] = {
    "in": (
        (_MOVE, "stage"),
        (_MOVE, "compare_all"),
        (_MOVE, "switch"),
        ("treedbd.store.postgresql.moving", "_name"),
        (_MOVE, "_InwardMove.mark"),
    ),
    "out": (
        (_MOVE, "_OutwardMove._bring"),
        (_MOVE, "freeze"),
        (_MOVE, "_OutwardMove._verify"),
        (_MOVE, "_finish"),
        (_MOVE, "_OutwardMove._put_in_place"),
    ),
}
"""The functions of a move in each direction at which it is killed."""


class PresenceOverPostgresql(Closing):
    """A PostgreSQL, and daemons over it or over files that come and go.

    Attributes:
        log: what all daemons have written.

    """

    def __init__(self, folder: pathlib.Path, server: PostgresqlServers, lease: str = "") -> None:
        """Run rounds in `folder`; with "whole" a lease ends by itself, else by a statement."""
        self.log = ""
        self._folder = folder
        self._server = server
        self._is_whole = lease == "whole"
        self._count = 0
        self._stack = contextlib.ExitStack()
        self._standby: Daemon | None = None

    def close(self) -> None:
        """Kill all daemons."""
        self._stack.close()

    # A daemon whose data directory is lost.

    def check_lost_container(self) -> float:
        """Lose a daemon with its data directory, and start another one; return the seconds."""
        with self._daemon("cluster") as daemon:
            path = self._leave(daemon)
        with self._daemon("cluster") as daemon:
            return self.await_done(daemon, path)

    def check_standby(self) -> float:
        """Lose a daemon with its data directory beside another one; return the seconds."""
        if self._standby is None:
            self._standby = self._stack.enter_context(self._daemon("cluster"))
        with self._daemon("cluster") as daemon:
            path = self._leave(daemon)
        return self.await_done(self._standby, path)

    def check_suspended(self) -> None:
        """Suspend a daemon until another one has found it dead: it ends the client's session."""
        with self._daemon("cluster") as other, self._daemon("cluster") as daemon:
            path = self._next_path()
            with RealtimeClient(_address(daemon)) as client:
                come_online(client, path)
                daemon.signal(signal.SIGSTOP)
                self._end_lease()
                wait_until(lambda: _read(other, path) == DONE)
                daemon.signal(signal.SIGCONT)
                client.await_end()
            with RealtimeClient(_address(daemon)) as client:
                come_online(client, path)
                wait_until(lambda: self._server.primary.query(_LEFT) == [(0,)])
                assert _read(other, path) == {"online": True, "ends": 1}
            wait_until(lambda: _read(other, path) == {"online": False, "ends": 2})

    # A move.

    def check_move(
        self, way: str, step: tuple[str, str] | None, *, is_stopped: bool = False
    ) -> None:
        """Move while a client is connected, killed at a step and run again; check the first read.

        The old daemon is killed before, or stopped after the move.
        """
        self._server.primary.query("DROP SCHEMA IF EXISTS treedb CASCADE")
        before, after = ("files", "cluster") if way == "in" else ("cluster", "files")
        with self._daemon(before) as old, contextlib.ExitStack() as stack:
            path = self._next_path()
            client = stack.enter_context(RealtimeClient(_address(old)))
            come_online(client, path)
            if not is_stopped:
                old.kill()
            target = self._folder / f"target{self._count}"
            words = [
                *("move", "--quiet", "--config", str(self._describe(before, old.data))),
                *("--to", str(self._describe(after, target))),
            ]
            if step is not None:
                assert self._run(_KILL, *step, *words) == -signal.SIGKILL
            program = "import sys; from treedbd.cli.main import main; sys.exit(main(sys.argv[1:]))"
            assert self._run(program, *words) == 0
            if is_stopped:
                old.stop()
        with self._daemon(after, target) as new:
            assert _read(new, path) == DONE
            self._check_online_again(new, path)
            new.restart()
            assert _read(new, path) == {"online": True, "ends": 1}
        shutil.rmtree(target, ignore_errors=True)

    def _run(self, program: str, *words: str) -> int:
        return result_of(start(words, program=program)).status

    def _describe(self, engine: str, data: pathlib.Path) -> pathlib.Path:
        file = self._folder / f"{engine}.toml"
        (self._folder / "open.json").write_text(OPEN_RULES)
        line = f'engine = "{self._server.dsn}"\n' if engine == "cluster" else ""
        file.write_text(f'data = "{data}"\n{line}{CONFIG}')
        return file

    # Daemons and clients.

    @contextlib.contextmanager
    def _daemon(self, engine: str, data: pathlib.Path | None = None) -> Any:
        """Run a daemon with a data directory of its own, which is removed at its end."""
        self._count += 1
        folder = self._folder / f"daemon{self._count}"
        folder.mkdir()
        (folder / "open.json").write_text(OPEN_RULES)
        arguments = ["--engine", self._server.dsn if engine == "cluster" else "sqlite"]
        if data is not None:
            arguments += ["--data", str(data)]
        daemon = Daemon(folder, config=CONFIG, arguments=arguments)
        try:
            with daemon:
                yield daemon
        finally:
            self.log += daemon.log
            shutil.rmtree(folder, ignore_errors=True)

    def _leave(self, daemon: Daemon) -> str:
        """Let a client come online, and kill its daemon; return the path of the client."""
        path = self._next_path()
        with RealtimeClient(_address(daemon)) as client:
            come_online(client, path)
            daemon.kill()
        if not self._is_whole:
            self._end_lease()
        return path

    def _next_path(self) -> str:
        self._count += 1
        return f"round/{self._count}"

    def _end_lease(self) -> None:
        self._server.primary.query("UPDATE treedb.owners SET ends = now() WHERE NOT is_over")

    def await_done(self, daemon: Daemon, path: str) -> float:
        began = time.monotonic()
        wait_until(lambda: _read(daemon, path) == DONE)
        took = time.monotonic() - began
        self._check_online_again(daemon, path)
        wait_until(lambda: self._server.primary.query(_LEFT) == [(0,)])
        assert _read(daemon, path) == {"online": True, "ends": 1}
        return took

    def _check_online_again(self, daemon: Daemon, path: str) -> None:
        with RealtimeClient(_address(daemon)) as client:
            client.put(f"{path}/online", True)
            assert _read(daemon, path) == {"online": True, "ends": 1}


_LEFT: Final = "SELECT count(*) FROM treedb.owners WHERE is_over"


def _address(daemon: Daemon) -> Address:
    port = daemon.port
    assert port is not None
    return Address(port)


def _read(daemon: Daemon, path: str) -> Any:
    with Client(daemon) as client:
        return client.get(f"/{path}.json")
