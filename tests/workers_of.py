"""The workers of a daemon, and connections to a particular one, for tests.

Which worker has a connection is read from /proc, as `ss -tnp` does it.
"""

from __future__ import annotations

import contextlib
import os
import pathlib
import signal
import socket
import time
from collections.abc import Callable
from typing import TypeVar

from tests.closing import Closing
from tests.daemon import Daemon
from tests.fork_server import FORKING
from tests.system import wait_until
from treedbd.store.sqlite.shared import ShelfLock

PATIENCE_S = 120.0
C = TypeVar("C", bound=Closing)


def worker_pids(daemon: Daemon) -> list[int]:
    """Return the processes of the workers that there are now, in order."""
    children = pathlib.Path(f"/proc/{daemon.pid}/task/{daemon.pid}/children").read_text().split()
    return sorted(int(pid) for pid in children if not forks_workers(pid))


def forks_workers(pid: str) -> bool:
    """Return whether a child of a daemon is the process that forks its workers."""
    with contextlib.suppress(FileNotFoundError, ProcessLookupError):
        return pathlib.Path(f"/proc/{pid}/comm").read_text() == f"{FORKING}\n"
    return False


def kill(pid: int, number: signal.Signals = signal.SIGKILL) -> None:
    """Send a signal to a worker."""
    os.kill(pid, number)


def is_running(pid: int) -> bool:
    """Return whether there is a process that is not a zombie."""
    try:
        status = pathlib.Path(f"/proc/{pid}/stat").read_text()
    except FileNotFoundError:
        return False
    return status.rpartition(") ")[2][0] not in "ZX"


def worker_of(daemon: Daemon, connected: socket.socket) -> int:
    """Return the worker at the other end of a connection that it has accepted."""
    inode = _inode_of_peer(connected)
    for pid in worker_pids(daemon):
        for link in pathlib.Path(f"/proc/{pid}/fd").iterdir():
            with contextlib.suppress(FileNotFoundError):
                if os.readlink(link) == f"socket:[{inode}]":
                    return pid
    raise AssertionError("No worker has the connection.")


def one_of_each(
    daemon: Daemon, make: Callable[[], C], socket_of: Callable[[C], socket.socket]
) -> list[C]:
    """Return what `make` connects, one for each worker; a request was answered over each."""
    found: dict[int, C] = {}
    pids = worker_pids(daemon)
    for _ in range(500):
        connected = make()
        pid = worker_of(daemon, socket_of(connected))
        if pid in found:
            connected.close()
        else:
            found[pid] = connected
        if len(found) == len(pids):
            return [found[pid] for pid in pids]
    raise AssertionError("A worker accepts no connections.")


def _inode_of_peer(connected: socket.socket) -> str:
    """Return the inode of the socket at the other end.

    Its own port counts, too: another server may have a connection from the same port.
    """
    ends = connected.getpeername()[1], connected.getsockname()[1]
    for line in pathlib.Path("/proc/net/tcp").read_text().splitlines()[1:]:
        fields = line.split()
        ports = tuple(int(fields[side].rpartition(":")[2], 16) for side in (1, 2))
        if ports == ends and fields[9] != "0":
            return fields[9]
    raise AssertionError("Nobody has accepted the connection.")


def holds_lock(pid: int, shelf: pathlib.Path, looks: int = 15) -> bool:
    """Stop a worker, and return whether it has the turn to write a shelf; it stays stopped.

    It has it if nobody else can have it while it stands still. Others have it for short.
    """
    kill(pid, signal.SIGSTOP)
    lock = ShelfLock(shelf)
    try:
        for _ in range(looks):
            if lock.try_write():
                lock.end_write()
                return False
            time.sleep(0.002)
        return True
    finally:
        lock.give_up()
        lock.close()


def kill_one(daemon: Daemon, kind: str, shelf: pathlib.Path) -> bool:
    """Kill a process of a kind by SIGKILL; return False if there is none at this moment.

    A `holder` is a worker that has the turn to write the shelf, an `other` one that has not; the
    `parent` is started again, its workers start again by themselves.
    """
    if kind == "parent":
        pids = worker_pids(daemon)
        daemon.kill()
        wait_until(lambda: not any(map(is_running, pids)))
        lock = ShelfLock(shelf)
        wait_until(lock.try_write)  # the last thread of a process ends after the first
        lock.close()
        daemon.start()
        return True
    for pid in worker_pids(daemon):
        if holds_lock(pid, shelf) == (kind == "holder"):
            _kill_and_wait(daemon, pid)
            return True
        kill(pid, signal.SIGCONT)
    return False


def _kill_and_wait(daemon: Daemon, pid: int) -> None:
    begin = daemon.log.count("serves again")
    kill(pid)
    wait_until(lambda: daemon.log.count("serves again") > begin)
