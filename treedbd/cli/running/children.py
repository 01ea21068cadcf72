"""The commands under way: environment, input, time-out, and their process groups.

Each command leads a session and process group of its own, so that a signal reaches all that it has
started and that has not left the group, and Ctrl-C reaches none of it. Its input is a file that is
removed already: a command that does not read it keeps nothing waiting.

A run that is killed cannot end what it has started. So a process beside it, the `Guard`, knows the
groups that are under way, and kills them when the pipe from the run is closed. It has the lock of
the cursor file as well: another run begins when they are gone, so no event is run twice at once.
"""

from __future__ import annotations

import contextlib
import os
import signal
import struct
import subprocess
import tempfile
import time
from collections.abc import Mapping, Sequence
from typing import Final

import attrs

from treedbd.cli.running.window import Event

KILLED_AFTER_S: Final = 5.0
"""Seconds from SIGTERM until SIGKILL for a command that has timed out."""
_WHEN_GUARDED: Final = 'read -r _ || exit 125; exec "$@" <"$0"'
_NUMBER: Final = struct.Struct("=q")


@attrs.define(eq=False)
class Child:
    """A command under way, until when it may run, and whether it was sent a signal."""

    event: Event
    process: subprocess.Popen[bytes]
    until: float
    has_timed_out: bool = False
    is_killed: bool = False

    def signal(self, number: signal.Signals) -> None:
        """Send a signal to its process group."""
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.process.pid, number)


class Children:
    """Starts commands, ends those that take too long, and finds those that have ended."""

    def __init__(self, command: Sequence[str], timeout_s: float) -> None:
        self._command = list(command)
        self._timeout_s = timeout_s
        self._running: list[Child] = []
        self._guard = Guard()

    def __len__(self) -> int:
        return len(self._running)

    def start(self, event: Event) -> None:
        """Start the command of an event; raise OSError."""
        go, start = os.pipe()
        with tempfile.TemporaryFile() as file, open(go) as stdin, open(start, "wb") as begin:
            file.write(event.json)
            file.seek(0)
            shell = ("/bin/sh", "-c", _WHEN_GUARDED, f"/dev/fd/{file.fileno()}")
            process = subprocess.Popen(  # noqa: S603 - what the user has given
                [*shell, *self._command],
                stdin=stdin,
                env=environment(event),
                start_new_session=True,
                pass_fds=(file.fileno(),),
            )
            self._guard.add(process.pid)
            begin.write(b"\n")
        self._running.append(Child(event, process, time.monotonic() + self._timeout_s))

    def take_ended(self) -> list[tuple[Event, str | None]]:
        """Return the events whose commands have ended; None if with 0, else how, as a clause."""
        ended = [child for child in self._running if child.process.poll() is not None]
        if ended:
            self._running = [child for child in self._running if child not in ended]
        for child in ended:
            if child.has_timed_out:
                child.signal(signal.SIGKILL)  # what it has left
            self._guard.remove(child.process.pid)
        return [(child.event, _describe_end(child, self._timeout_s)) for child in ended]

    def end_late(self, now: float) -> None:
        """End those that have taken too long."""
        for child in self._running:
            if now < child.until:
                continue
            if not child.has_timed_out:
                child.has_timed_out = True
                child.until = now + KILLED_AFTER_S
                child.signal(signal.SIGTERM)
            elif not child.is_killed:
                child.is_killed = True
                child.signal(signal.SIGKILL)

    def next_due(self) -> float | None:
        """Return when one has taken too long; None if none runs."""
        return min((each.until for each in self._running if not each.is_killed), default=None)

    def close(self) -> None:
        """Kill all of them, and wait for their ends; no other is started."""
        for child in self._running:
            child.signal(signal.SIGKILL)
        for child in self._running:
            child.process.wait()
            self._guard.remove(child.process.pid)
        self._running = []
        self._guard.close()


class Guard:
    """A process that kills the groups under way when this process is killed."""

    def __init__(self) -> None:
        """Start it; no other thread may run."""
        read, self._write = os.pipe()
        self._pid = os.fork()
        if not self._pid:
            try:
                os.close(self._write)
                _guard(read)
            finally:
                os._exit(0)
        os.close(read)

    def add(self, group: int) -> None:
        """Guard a process group."""
        self._send(group)

    def remove(self, group: int) -> None:
        """Guard a process group no longer."""
        self._send(-group)

    def close(self) -> None:
        """End it."""
        os.close(self._write)
        with contextlib.suppress(ChildProcessError):
            os.waitpid(self._pid, 0)

    def _send(self, number: int) -> None:
        with contextlib.suppress(BrokenPipeError):  # it was killed itself
            os.write(self._write, _NUMBER.pack(number))


def _guard(read: int) -> None:
    """Be the guard until the pipe is closed."""
    os.setsid()
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    signal.set_wakeup_fd(-1)
    nothing = os.open(os.devnull, os.O_RDWR)
    for descriptor in (0, 1, 2):  # so that who reads our output sees its end
        os.dup2(nothing, descriptor)
    groups: set[int] = set()
    while content := os.read(read, _NUMBER.size):
        (group,) = _NUMBER.unpack(content)
        if group > 0:
            groups.add(group)
        else:
            groups.discard(-group)
    for group in groups:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(group, signal.SIGKILL)


def environment(event: Event) -> Mapping[bytes, bytes]:
    """Return the environment of a command, with variables for its event.

    Values are in UTF-8. No key has an ASCII control character; one that had a NUL would be left
    out.
    """
    own = {
        "TREEDB_EVENT_ID": event.id,
        "TREEDB_KIND": event.kind,
        "TREEDB_PATH": event.path,
        "TREEDB_ATTEMPT": str(event.failures + 1),
        **{f"TREEDB_CAPTURE_{name}": text for name, text in event.captures.items()},
    }
    given = {
        name.encode(): text.encode(errors="surrogatepass")
        for name, text in own.items()
        if "\0" not in text
    }
    before = {
        name: text for name, text in os.environb.items() if not name.startswith(b"TREEDB_CAPTURE_")
    }
    return {**before, **given}


def _describe_end(child: Child, timeout_s: float) -> str | None:
    if child.has_timed_out:
        return f"not done after {timeout_s:g} s (--timeout)"
    code = child.process.returncode
    if code == 0:
        return None
    if code > 0:
        return f"exit status {code}"
    try:
        return f"killed by {signal.Signals(-code).name}"
    except ValueError:
        return f"killed by the signal {-code}"
