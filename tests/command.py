"""The `treedb` command for tests, run in this process or in a process of its own."""

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
from collections.abc import Mapping, Sequence
from typing import IO, Any, NamedTuple

import pytest

from tests.closing import Closing
from tests.daemon import Daemon
from tests.fork_server import ForkedCommand, can_fork, fork_server, write_all
from treedbd.cli.exit import CommandFailed, OutputClosed, report_failure
from treedbd.cli.options import TOKEN_VARIABLE
from treedbd.cli.parser import parse

COMMAND = (sys.executable, "-m", "treedbd.cli")
PATIENCE_S = 120


class CommandResult(NamedTuple):
    """The exit status and the output of a command."""

    status: int
    output: bytes
    errors: str

    @property
    def text(self) -> str:
        """The output without its line end; raises AssertionError if the command failed."""
        assert (self.status, self.errors) == (0, ""), self
        assert self.output.endswith(b"\n")
        return self.output.decode().removesuffix("\n")

    @property
    def error(self) -> str:
        """The one sentence of the error; raises AssertionError for any other end."""
        assert (self.status, self.output) == (1, b""), self
        found = re.fullmatch(r"treedb: (.+)\n", self.errors)
        assert found, self
        return found[1]


def environment(token: str = "") -> dict[str, str]:
    """Return the environment of this process, with this token and no other."""
    return {**os.environ, TOKEN_VARIABLE: token}


async def treedb(*words: str | pathlib.Path, token: str = "", stdin: bytes = b"") -> CommandResult:
    """Run a command in this process; `stdin` is its standard input.

    Signals are not set, which differs from a process of its own.
    """
    buffer, errors = io.BytesIO(), io.StringIO()
    output = io.TextIOWrapper(buffer)
    status: Any
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(TOKEN_VARIABLE, token)
        patch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(stdin)))
        patch.setattr(sys, "stdout", output)
        patch.setattr(sys, "stderr", errors)
        patch.setattr(signal, "signal", lambda *_: None)
        try:
            arguments = parse([str(word) for word in words])
            status = arguments.run(arguments)
        except (CommandFailed, OutputClosed) as error:
            status = report_failure(error)
        except SystemExit as end:
            status = end.code
        output.flush()
    return CommandResult(status, buffer.getvalue(), errors.getvalue())


def run_here(*words: str | pathlib.Path, token: str = "") -> CommandResult:
    """Run a command to its end in this process, for a test that waits for nothing meanwhile."""
    running = treedb(*words, token=token)
    try:
        running.send(None)
    except StopIteration as end:
        result: CommandResult = end.value
        return result
    raise AssertionError("The command waits for the reactor.")


async def output_of(*words: str | pathlib.Path, token: str = "", stdin: bytes = b"") -> str:
    """Run a command that succeeds; return its output."""
    return (await treedb(*words, token=token, stdin=stdin)).text


async def error_of(*words: str | pathlib.Path, token: str = "", stdin: bytes = b"") -> str:
    """Run a command that fails; return its error."""
    return (await treedb(*words, token=token, stdin=stdin)).error


def run_command(
    *words: str | pathlib.Path,
    token: str = "",
    stdin: bytes = b"",
    folder: pathlib.Path | None = None,
) -> CommandResult:
    """Run a command to its end in a process of its own; `stdin` is its standard input."""
    return result_of(start(words, token, folder), stdin)


def result_of(
    process: ForkedCommand | subprocess.Popen[bytes], stdin: bytes = b""
) -> CommandResult:
    """Wait for the end of a command; `stdin` is its standard input.

    The result has no output if that is a file.
    """
    output, errors = process.communicate(stdin, PATIENCE_S)
    assert process.returncode is not None
    return CommandResult(process.returncode, output or b"", errors.decode())


def start(
    words: Sequence[str | pathlib.Path],
    token: str = "",
    folder: pathlib.Path | None = None,
    *,
    program: str = "",
    variables: Mapping[str, str] | None = None,
    output: IO[Any] | None = None,
) -> ForkedCommand | subprocess.Popen[bytes]:
    """Start a command, with pipes for its input and its two outputs, or with a file as `output`.

    `program` is a Python program that is run instead, with the words as its arguments. It may be
    one that changes what the command imports; the modules may have been imported before it begins.
    `variables` are others in the environment, which the interpreter itself does not read.
    """
    first = (sys.executable, "-c", program) if program else COMMAND
    command = [*first, *map(str, words)]
    added = {TOKEN_VARIABLE: token, **(variables or {})}
    if can_fork(os.environ):
        where = folder or pathlib.Path.cwd()
        return ForkedCommand(fork_server(), command, where, added, output)
    pipe = subprocess.PIPE
    return subprocess.Popen(
        command,
        stdin=pipe,
        stdout=pipe if output is None else output,
        stderr=pipe,
        cwd=folder,
        env={**os.environ, **added},
    )


def mint(daemon: Daemon, host: str, uid: str, *options: str) -> str:
    """Return a token for the project of a host, in development mode."""
    project = host.removesuffix(".localhost")
    words = ("token", "--project", project, "--uid", uid, *options)
    return run_command(*words, "--data", daemon.data).text


class RunningCommand(Closing):
    """A command that keeps running; it is killed when its `with` block ends."""

    def __init__(self, *words: str | pathlib.Path, token: str = "") -> None:
        """Start the command."""
        self._process = start(words, token)
        write_all(self._process.stdin, b"")
        self.lines = Lines(self._process.stdout)
        self.errors = Lines(self._process.stderr)

    def close(self) -> None:
        """Kill the command if it is running."""
        if self._process.poll() is None:
            self.signal(signal.SIGKILL)
        self.wait()

    def signal(self, number: signal.Signals) -> None:
        """Send a signal."""
        self._process.send_signal(number)

    def poll(self) -> int | None:
        """Return the exit status of the command, None while it runs."""
        return self._process.poll()

    def wait(self) -> int:
        """Wait until the command ends; return its exit status."""
        return self._process.wait(PATIENCE_S)


class Lines:
    """The lines of an output, as they are written."""

    def __init__(self, stream: Any) -> None:
        """Read them in a thread."""
        self._stream = stream
        self._lines: queue.SimpleQueue[str | None] = queue.SimpleQueue()
        threading.Thread(target=self._read, daemon=True).start()

    def next(self) -> str:
        """Wait for a line; raise EOFError at the end, queue.Empty if it takes too long."""
        line = self._lines.get(timeout=PATIENCE_S)
        if line is None:
            raise EOFError
        return line

    def rest(self) -> list[str]:
        """Wait for the end; return the remaining lines."""
        lines = []
        while (line := self._lines.get(timeout=PATIENCE_S)) is not None:
            lines.append(line)
        return lines

    def _read(self) -> None:
        with self._stream as stream:
            for line in stream:
                self._lines.put(line.decode().removesuffix("\n"))
        self._lines.put(None)
