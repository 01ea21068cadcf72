"""Fault injection for daemons: system calls that fail, wait or kill, a full disk, a damaged row.

System calls are injected by strace, which is attached to a daemon, also to one that waits before it
begins (`Daemon.hold`), and detached again. strace counts calls separately for each thread and each
kind of call, so `when=N` is the Nth call of one kind in the thread that reaches it first.
"""

from __future__ import annotations

import contextlib
import os
import pathlib
import resource
import signal
import subprocess
from collections.abc import Iterable, Iterator
from typing import Final

from tests.closing import Closing
from treedbd.store.sqlite.file import connect
from treedbd.tree.path import encode_path

DETACH_S: Final = 20


def shelf_files(data: pathlib.Path, label: str = "demo/default") -> list[pathlib.Path]:
    """Return the files of a database that SQLite writes durably, whether they exist or not."""
    shelf = data / f"{label}.shelf"
    return [shelf, shelf.with_name(f"{shelf.name}-wal")]


@contextlib.contextmanager
def inject(
    pid: int,
    calls: str,
    effect: str,
    paths: Iterable[pathlib.Path],
    trace: pathlib.Path,
    *,
    watched: str = "",
) -> Iterator[None]:
    """Inject an effect into `calls` on `paths` while the `with` block runs.

    `calls` are names separated by commas; `effect` is an injection of strace (`error=EIO`,
    `delay_enter=500ms:when=1`). These calls and the `watched` ones are written to `trace`.
    """
    traced = ",".join(filter(None, [calls, watched]))
    command = [
        *("strace", "-f", "--decode-fds=path", "-s", "1000", "-o", str(trace), "-p", str(pid)),
        *("-e", f"trace={traced}", "-e", f"inject={calls}:{effect}", *_path_options(paths)),
    ]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as tracer:
        assert tracer.stderr is not None
        output = []
        for line in tracer.stderr:
            output.append(line)
            if " attached" in line:
                break
        else:
            raise AssertionError(f"strace could not attach to the daemon: {''.join(output)}")
        try:
            yield
        finally:
            tracer.send_signal(signal.SIGINT)
            tracer.communicate(timeout=DETACH_S)


class SmallDisk(Closing):
    """A file system of a few megabytes, mounted at a folder for chosen programs only.

    It exists in a mount namespace that a process holds, and is gone when that process ends. A user
    other than root gets it in a user namespace. AssertionError if neither can be created.

    Attributes:
        pid: that process.
        prefix: the command that runs a program which sees the file system.
        folder: the folder as other programs reach it.

    """

    def __init__(self, folder: pathlib.Path, size: int) -> None:
        """Create it with `size` bytes, empty; the folder must exist."""
        mount = f'mount -t tmpfs -o size={size},mode=700 tmpfs "$0" && echo mounted && exec cat'
        output = []
        for flags in (["-m"], ["-m", "-U", "-r"]):
            holder = subprocess.Popen(
                ["unshare", *flags, "sh", "-c", mount, str(folder)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
            )
            assert holder.stdout is not None
            line = holder.stdout.readline()
            if line == "mounted\n":
                break
            output.append(line)
            holder.communicate()
        else:
            raise AssertionError(
                "This test needs a small file system and cannot mount one: run it as root, or "
                f"where user namespaces are allowed. {''.join(output)}"
            )
        self._holder = holder
        self.pid = holder.pid
        self.prefix = ["nsenter", "-t", str(holder.pid), "-m", f"--wd={folder.parent}"]
        if "-U" in flags:
            self.prefix += ["-U", "--preserve-credentials"]
        self.folder = pathlib.Path(f"/proc/{holder.pid}/root{folder}")

    def close(self) -> None:
        """Unmount it; its contents are lost."""
        self._holder.communicate()

    def fill(self, name: str = "filler", *, leave: int = 0) -> None:
        """Use up all free space but `leave` bytes."""
        with (self.folder / name).open("wb", buffering=0) as filler:
            with contextlib.suppress(OSError):
                while filler.write(bytes(4096)):
                    pass
            filler.truncate(max(0, filler.tell() - leave))

    def empty(self, name: str = "filler") -> None:
        """Free the space that `fill` used."""
        (self.folder / name).unlink()


def _path_options(paths: Iterable[pathlib.Path]) -> list[str]:
    return [part for path in paths for part in ("-P", str(path))]


def corrupt_row(file: pathlib.Path, *path: str) -> None:
    """Make the JSON of the row at a path invalid, as a failing disk might; it is not in a page."""
    with contextlib.closing(connect(file)) as connection:
        statement = "UPDATE kv SET v = CAST(substr(v, 1, 9) || x'00' AS BLOB) WHERE k = ?"
        connection.execute(statement, (encode_path(path),))
        assert connection.changes() == 1


@contextlib.contextmanager
def no_descriptors() -> Iterator[None]:
    """Let this process open no further file while the `with` block runs."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    next_free = os.open(os.devnull, os.O_RDONLY)
    os.close(next_free)
    resource.setrlimit(resource.RLIMIT_NOFILE, (next_free, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
