"""The shell at a real terminal."""

from __future__ import annotations

import fcntl
import os
import pathlib
import pty
import re
import select
import stat
import struct
import subprocess
import sys
import termios
import time

import pytest

from tests.closing import Closing
from tests.command import COMMAND, PATIENCE_S, environment
from tests.daemon import Daemon

CTRL_C = b"\x03"
CTRL_D = b"\x04"
_TAKE_TERMINAL = """
import fcntl, os, sys, termios
fcntl.ioctl(0, termios.TIOCSCTTY, 0)
os.execv(sys.argv[1], sys.argv[1:])
"""
_ESCAPES = re.compile(r"\x1b\[[0-9;?]*[a-zA-Z]|\x1b[=>]")


class Terminal(Closing):
    """A shell at a pseudo-terminal."""

    def __init__(self, url: str, state: pathlib.Path) -> None:
        self._leader, follower = pty.openpty()
        fcntl.ioctl(follower, termios.TIOCSWINSZ, struct.pack("HHHH", 40, 120, 0, 0))
        settings = {"TERM": "xterm", "PROMPT_TOOLKIT_NO_CPR": "1", "XDG_STATE_HOME": str(state)}
        self._process = subprocess.Popen(
            [sys.executable, "-c", _TAKE_TERMINAL, *COMMAND, "shell", url],
            stdin=follower,
            stdout=follower,
            stderr=follower,
            env={**environment(), **settings},
            start_new_session=True,
        )
        os.close(follower)
        self._raw = b""

    def send(self, keys: bytes) -> None:
        """Type keys."""
        os.write(self._leader, keys)

    def await_text(self, pattern: str) -> str:
        """Wait until the output since the last call contains a pattern; return all of it.

        Escape sequences are left out where the pattern is searched for.
        """
        end = time.monotonic() + PATIENCE_S
        while True:
            written = self._raw.decode(errors="replace")
            shown = _ESCAPES.sub("", written)
            if re.search(pattern, shown):
                self._raw = b""
                return written
            assert time.monotonic() < end, f"no {pattern!r} in {shown!r}"
            if select.select([self._leader], [], [], 1)[0]:
                self._raw += os.read(self._leader, 65_536)

    def wait(self) -> int:
        """Wait until the shell ends; return its exit status."""
        return self._process.wait(PATIENCE_S)

    def close(self) -> None:
        """Kill the shell if it is running."""
        if self._process.poll() is None:
            self._process.kill()
            self._process.wait()
        os.close(self._leader)


@pytest.fixture
def url(shared_daemon: Daemon) -> str:
    """The URL of some users."""
    value = '{"ada": {"age": 36}, "zoe": 1}'
    assert shared_daemon.request("PUT", "/users.json", value).status == 200
    return shared_daemon.http.replace("127.0.0.1", "localhost") + "/users"


def test_tab_completes_a_key_and_ctrl_c_ends_watch_and_clears_the_line(
    url: str, shared_daemon: Daemon, tmp_path: pathlib.Path
) -> None:
    with Terminal(url, tmp_path) as terminal:
        terminal.await_text("demo:/users>")
        terminal.send(b"cat a\t")
        terminal.await_text("da")
        terminal.send(b"\r")
        terminal.await_text(r'"age": 36[^>]*demo:/users>')
        terminal.send(b"watch ada\r")
        terminal.await_text(r'put\s+/\s+{"age":36}')
        assert shared_daemon.request("PUT", "/users/ada/age.json", "37").status == 200
        terminal.await_text(r"put\s+/age\s+37")
        terminal.send(CTRL_C)
        terminal.await_text("demo:/users>")
        terminal.send(b"rm zoe")
        terminal.await_text("rm zoe")
        terminal.send(CTRL_C)
        terminal.await_text("demo:/users>")
        terminal.send(b"cat zoe\r")
        terminal.await_text(r"\b1\s[^>]*demo:/users>")
        terminal.send(CTRL_D)
        assert terminal.wait() == 0
    (file,) = (tmp_path / "treedb").iterdir()
    assert file.read_text() == '"cat ada"\n"watch ada"\n"cat zoe"\n'
    assert stat.S_IMODE(file.stat().st_mode) == 0o600


def test_a_terminal_has_colours(url: str, tmp_path: pathlib.Path) -> None:
    with Terminal(url, tmp_path) as terminal:
        terminal.await_text("demo:/users>")
        terminal.send(b"ls -l\r")
        assert "\x1b[36mzoe\x1b[0m" in terminal.await_text(r"1 zoe[^>]*demo:/users>")
        terminal.send(b"nothing\r")
        terminal.await_text(r"There is no command nothing\. Try help\.[^>]*demo:/users>")
        terminal.send(b"exit\r")
        assert terminal.wait() == 0
