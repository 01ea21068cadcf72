"""The `treedb` command for tests: done in this process, or run as one of its own."""

from __future__ import annotations

import io
import os
import pathlib
import queue
import re
import signal
import subprocess
import sys
import threading
from argparse import Namespace
from typing import Any, NamedTuple

import pytest
from twisted.internet import reactor as installed_reactor

from tests.closing import Closing
from tests.daemon import Daemon
from treedbd.cli.main import parse
from treedbd.cli.online import make_client, online
from treedbd.cli.options import TOKEN_VARIABLE
from treedbd.cli.outcome import CommandFailed, ReaderLeft, conclude

reactor: Any = installed_reactor

COMMAND = (sys.executable, "-m", "treedbd.cli")
PATIENCE_S = 30


class Done(NamedTuple):
    """What became of a command."""

    status: int
    output: bytes
    errors: str

    @property
    def text(self) -> str:
        """What it printed, without the line end; raise AssertionError if it failed."""
        assert (self.status, self.errors) == (0, ""), self
        assert self.output.endswith(b"\n")
        return self.output.decode().removesuffix("\n")

    @property
    def sentence(self) -> str:
        """Why it failed; raise AssertionError unless it failed as it should."""
        assert (self.status, self.output) == (1, b""), self
        found = re.fullmatch(r"treedb: (.+)\n", self.errors)
        assert found, self
        return found[1]


def environment(token: str = "") -> dict[str, str]:
    """The environment of this process, with this token and no other."""
    return {**os.environ, TOKEN_VARIABLE: token}


async def treedb(*words: str | pathlib.Path, token: str = "", given: bytes = b"") -> Done:
    """Do what a command does, in this process; `given` is its standard input.

    All is as in a process of its own, but that the reactor runs already and signals are left alone.
    """
    buffer, errors = io.BytesIO(), io.StringIO()
    output = io.TextIOWrapper(buffer)
    status: Any
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(TOKEN_VARIABLE, token)
        patch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(given)))
        patch.setattr(sys, "stdout", output)
        patch.setattr(sys, "stderr", errors)
        try:
            status = await _do(parse([str(word) for word in words]))
        except (CommandFailed, ReaderLeft) as error:
            status = conclude(error)
        except SystemExit as end:
            status = end.code
        output.flush()
    return Done(status, buffer.getvalue(), errors.getvalue())


async def _do(arguments: Namespace) -> Any:
    if arguments.run is not online:
        return arguments.run(arguments)
    await arguments.work(reactor, make_client(reactor, arguments), arguments)
    return 0


async def text(*words: str | pathlib.Path, token: str = "", given: bytes = b"") -> str:
    """Return what a command prints that does its work."""
    return (await treedb(*words, token=token, given=given)).text


async def sentence(*words: str | pathlib.Path, token: str = "", given: bytes = b"") -> str:
    """Return why a command fails."""
    return (await treedb(*words, token=token, given=given)).sentence


def process(
    *words: str | pathlib.Path,
    token: str = "",
    given: bytes = b"",
    folder: pathlib.Path | None = None,
) -> Done:
    """Run a command to its end in a process of its own; `given` is its standard input."""
    done = subprocess.run(
        [*COMMAND, *map(str, words)],
        input=given,
        capture_output=True,
        cwd=folder,
        env=environment(token),
        timeout=PATIENCE_S,
        check=False,
    )
    return Done(done.returncode, done.stdout, done.stderr.decode())


def mint(daemon: Daemon, host: str, uid: str, *options: str) -> str:
    """Return a token for the project of a host, in development mode."""
    project = host.removesuffix(".localhost")
    words = ("token", "--project", project, "--uid", uid, *options)
    return process(*words, "--data", daemon.data).text


class Running(Closing):
    """A command that goes on; a context that is left with it running kills it."""

    def __init__(self, *words: str | pathlib.Path, token: str = "") -> None:
        """Start."""
        self._process = subprocess.Popen(
            [*COMMAND, *map(str, words)],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=environment(token),
        )
        self.lines = Lines(self._process.stdout)
        self.errors = Lines(self._process.stderr)

    def close(self) -> None:
        """Kill it if it runs."""
        if self._process.poll() is None:
            self._process.kill()
        self.wait()

    def signal(self, number: signal.Signals) -> None:
        """Send a signal."""
        self._process.send_signal(number)

    def wait(self) -> int:
        """Wait for its end; return the exit status."""
        return self._process.wait(PATIENCE_S)


class Lines:
    """The lines of an output as they come."""

    def __init__(self, stream: Any) -> None:
        """Read in a thread."""
        self._stream = stream
        self._lines: queue.SimpleQueue[str | None] = queue.SimpleQueue()
        threading.Thread(target=self._read, daemon=True).start()

    def next(self) -> str:
        """Wait for a line; raise EOFError at the end, queue.Empty if none comes."""
        line = self._lines.get(timeout=PATIENCE_S)
        if line is None:
            raise EOFError
        return line

    def rest(self) -> list[str]:
        """Wait for the end; return all lines until there."""
        lines = []
        while (line := self._lines.get(timeout=PATIENCE_S)) is not None:
            lines.append(line)
        return lines

    def _read(self) -> None:
        with self._stream as stream:
            for line in stream:
                self._lines.put(line.decode().removesuffix("\n"))
        self._lines.put(None)
