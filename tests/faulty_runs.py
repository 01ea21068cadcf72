"""Runs of one Python function under faults, each in a process of its own that is forked.

A process that starts imports for longer than it does what is tested, and strace stops it at each
call meanwhile. Here one process imports the function, and forks one for each run, which waits until
strace is attached.
"""

from __future__ import annotations

import json
import os
import pathlib
import pkgutil
import subprocess
import sys
import traceback
from collections.abc import Callable, Iterable, Sequence
from typing import Final

from tests import injection
from tests.closing import Closing

PROJECT: Final = pathlib.Path(__file__).parent.parent
MOST_BYTES: Final = 65_536
"""The longest request: paths and numbers."""


class FaultyRuns(Closing):
    """A process that has imported `module:function`, and forks one for each run of it."""

    def __init__(self, function: str) -> None:
        """Start it."""
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.faulty_runs", function],
            cwd=PROJECT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def run(
        self,
        arguments: Sequence[str],
        calls: str,
        effect: str,
        paths: Iterable[pathlib.Path],
        trace: pathlib.Path = pathlib.Path(os.devnull),
    ) -> int:
        """Run the function with strings, and with a fault as in `injection.inject`.

        It must print nothing. Returns the exit status, negative for a signal.
        """
        self._send(json.dumps(list(arguments)))
        with injection.inject(self._receive(), calls, effect, paths, trace):
            self._send("begin")
            return self._receive()

    def close(self) -> None:
        """End it."""
        self._process.communicate()

    def _send(self, line: str) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(f"{line}\n")
        self._process.stdin.flush()

    def _receive(self) -> int:
        assert self._process.stdout is not None
        return int(self._process.stdout.readline())


def serve(function: Callable[..., object]) -> None:
    """Fork a process for each request; print its number, and its exit status when it has ended."""
    while request := os.read(0, MOST_BYTES):
        arguments = json.loads(request)
        pid = os.fork()
        if not pid:
            run(function, arguments)
        print(pid, flush=True)
        _, status = os.waitpid(pid, 0)
        print(os.waitstatus_to_exitcode(status), flush=True)


def run(function: Callable[..., object], arguments: list[str]) -> None:
    """Call the function once a line has come, and end this process."""
    status = 1
    try:
        os.read(0, MOST_BYTES)
        function(*arguments)
        status = 0
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(status)


if __name__ == "__main__":
    serve(pkgutil.resolve_name(sys.argv[1]))
