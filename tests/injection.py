"""System calls of a daemon made to fail, to wait or to kill it, by strace.

Two ways: `attached` takes hold of a daemon that runs and lets go of it again; `prefix` starts one
under strace. strace counts calls for each thread and each kind of call by itself, so `when=N`
means the Nth call of one kind in whichever thread comes to it first.
"""

from __future__ import annotations

import contextlib
import pathlib
import signal
import subprocess
from collections.abc import Iterable, Iterator
from typing import Final

DETACH_S: Final = 20
_FOLLOW: Final = ("strace", "-f", "-qq", "--decode-fds=path")


def shelf_files(data: pathlib.Path, label: str = "demo/default") -> list[pathlib.Path]:
    """Return the files of a database that SQLite writes durably, whether they are there or not."""
    shelf = data / f"{label}.shelf"
    return [shelf, shelf.with_name(f"{shelf.name}-wal")]


@contextlib.contextmanager
def attached(
    pid: int, calls: str, effect: str, paths: Iterable[pathlib.Path], trace: pathlib.Path
) -> Iterator[None]:
    """Let `calls` on `paths` have an effect for as long as the context lasts.

    `calls` are names with commas, `effect` is what strace calls an injection (`error=EIO`,
    `delay_enter=500ms:when=1`); the calls concerned are written to `trace`.
    """
    command = [
        *("strace", "-f", "--decode-fds=path", "-o", str(trace), "-p", str(pid)),
        *("-e", f"trace={calls}", "-e", f"inject={calls}:{effect}", *_limited_to(paths)),
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


def prefix(
    calls: str, effect: str, paths: Iterable[pathlib.Path], trace: pathlib.Path
) -> list[str]:
    """Return the command that starts a daemon with such an effect from its first call on."""
    return [
        *(*_FOLLOW, "-D", "--seccomp-bpf", "-o", str(trace)),
        *("-e", f"trace={calls}", "-e", f"inject={calls}:{effect}", *_limited_to(paths)),
    ]


def _limited_to(paths: Iterable[pathlib.Path]) -> list[str]:
    return [part for path in paths for part in ("-P", str(path))]
