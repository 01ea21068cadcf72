"""Trouble made for a daemon: system calls that fail, wait or kill it, a full disk, a damaged row.

strace does the first, in two ways: `attached` takes hold of a daemon that runs and lets go of it
again; `prefix` starts one under it. It counts calls for each thread and each kind of call by
itself, so `when=N` means the Nth call of one kind in whichever thread comes to it first.
"""

from __future__ import annotations

import contextlib
import pathlib
import signal
import subprocess
from collections.abc import Iterable, Iterator
from typing import Final

import apsw

from tests.closing import Closing
from treedbd.tree.order import encode_path

DETACH_S: Final = 20


def shelf_files(data: pathlib.Path, label: str = "demo/default") -> list[pathlib.Path]:
    """Return the files of a database that SQLite writes durably, whether they are there or not."""
    shelf = data / f"{label}.shelf"
    return [shelf, shelf.with_name(f"{shelf.name}-wal")]


@contextlib.contextmanager
def attached(
    pid: int,
    calls: str,
    effect: str,
    paths: Iterable[pathlib.Path],
    trace: pathlib.Path,
    *,
    watched: str = "",
) -> Iterator[None]:
    """Let `calls` on `paths` have an effect for as long as the context lasts.

    `calls` are names with commas, `effect` is what strace calls an injection (`error=EIO`,
    `delay_enter=500ms:when=1`). These calls, and those that are `watched`, are written to `trace`.
    """
    seen = ",".join(filter(None, [calls, watched]))
    command = [
        *("strace", "-f", "--decode-fds=path", "-s", "1000", "-o", str(trace), "-p", str(pid)),
        *("-e", f"trace={seen}", "-e", f"inject={calls}:{effect}", *_limited_to(paths)),
    ]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as tracer:
        assert tracer.stderr is not None
        said = []
        for line in tracer.stderr:
            said.append(line)
            if " attached" in line:
                break
        else:
            raise AssertionError(f"strace could not take hold of the daemon: {''.join(said)}")
        try:
            yield
        finally:
            tracer.send_signal(signal.SIGINT)
            tracer.communicate(timeout=DETACH_S)


class SmallDisk(Closing):
    """A file system of a few megabytes at a folder that only programs with its `prefix` see.

    It lives in a mount namespace that a process holds, and ends with that process. Whoever is not
    root gets one in a user namespace. Fails with AssertionError where neither may be made.
    """

    def __init__(self, folder: pathlib.Path, size: int) -> None:
        """Make it, empty, `size` bytes large; the folder must be there."""
        mount = f'mount -t tmpfs -o size={size},mode=700 tmpfs "$0" && echo mounted && exec cat'
        said = []
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
            said.append(line)
            holder.communicate()
        else:
            raise AssertionError(
                "This test fills a small disk, and may mount none: run it as root, or where user "
                f"namespaces are allowed. {''.join(said)}"
            )
        self._holder = holder
        self.prefix = ["nsenter", "-t", str(holder.pid), "-m", f"--wd={folder.parent}"]
        if "-U" in flags:
            self.prefix += ["-U", "--preserve-credentials"]
        self.folder = pathlib.Path(f"/proc/{holder.pid}/root{folder}")
        """The folder as seen from outside."""

    def close(self) -> None:
        """Let it go, with all that is on it."""
        self._holder.communicate()

    def fill(self, name: str = "filler", *, leave: int = 0) -> None:
        """Take all the room that there is but `leave` bytes."""
        with (self.folder / name).open("wb", buffering=0) as filler:
            with contextlib.suppress(OSError):
                while filler.write(bytes(4096)):
                    pass
            filler.truncate(max(0, filler.tell() - leave))

    def empty(self, name: str = "filler") -> None:
        """Give the room back."""
        (self.folder / name).unlink()


def prefix(
    calls: str, effect: str, paths: Iterable[pathlib.Path], trace: pathlib.Path
) -> list[str]:
    """Return the command that starts a daemon with such an effect from its first call on."""
    return [
        *("strace", "-D", "-f", "-qq", "--decode-fds=path", "-o", str(trace)),
        *("-e", f"trace={calls}", "-e", f"inject={calls}:{effect}", *_limited_to(paths)),
    ]


def _limited_to(paths: Iterable[pathlib.Path]) -> list[str]:
    return [part for path in paths for part in ("-P", str(path))]


def spoil_row(file: pathlib.Path, *path: str) -> None:
    """Break the JSON of the row at a path, as a bad disk might."""
    with contextlib.closing(apsw.Connection(str(file))) as connection:
        statement = "UPDATE kv SET v = CAST(substr(v, 1, 9) || x'00' AS BLOB) WHERE k = ?"
        connection.execute(statement, (encode_path(path),))
        assert connection.changes() == 1
