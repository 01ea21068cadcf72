"""Pages of the documentation, whose blocks tests run in the order in which a reader would.

The first word after a fence is the language of the block; further words, which a reader does not
see, say how a test runs it. A block `text` shows the output of the block before it; in it `…`
stands for anything.
"""

from __future__ import annotations

import os
import pathlib
import re
import signal
import subprocess
import sys
import textwrap
from collections.abc import Callable, Iterable, Mapping
from typing import Final, NamedTuple, TypeAlias
from urllib.parse import urlsplit

from tests.closing import Closing
from tests.command import PATIENCE_S, Lines
from tests.daemon import Daemon
from treedbd.cli.options import TOKEN_VARIABLE

DOCS: Final = pathlib.Path(__file__).parent.parent / "docs"
ANY: Final = "…"
OUTPUT: Final = "text"

_BLOCK: Final = re.compile(r"^( *)```(\w[^\n]*)\n(.*?)^\1```$", re.DOTALL | re.MULTILINE)

Check: TypeAlias = Callable[[str], None]
"""Compares the output of a block with what the page shows."""


class Block(NamedTuple):
    """A fenced block: the words after its fence, and its lines."""

    kind: str
    text: str


def read_blocks(page: str, *languages: str) -> list[Block]:
    """Return the blocks of a page of `docs/`, all or those of some languages."""
    fenced = _BLOCK.findall((DOCS / page).read_text())
    found = [Block(kind, textwrap.dedent(text)) for _, kind, text in fenced]
    return [block for block in found if not languages or block.kind.split()[0] in languages]


def matches(shown: str, received: str) -> bool:
    """Return whether what was received is what the page shows; `…` stands for anything."""
    pattern = ".+?".join(map(re.escape, shown.split(ANY)))
    return re.fullmatch(pattern, received, re.DOTALL) is not None


def check_blocks(blocks: Iterable[Block], run: Mapping[str, Callable[[str], Check]]) -> None:
    """Run blocks in their order, each by its kind, and compare the outputs that the page shows."""
    check: Check | None = None
    for kind, text in blocks:
        if kind == OUTPUT:
            assert check is not None, f"Nothing has this output: {text}"
            check(text.rstrip("\n"))
        else:
            check = run[kind](text)


def no_output(shown: str) -> None:
    """Fail, since a block of this kind has no output."""
    raise AssertionError(f"The block before has no output: {shown}")


def with_ports_of(text: str, daemon: Daemon) -> str:
    """Return lines for development mode with the ports that a daemon has in a test."""
    for port, url in {"9000": daemon.http, "8443": daemon.https}.items():
        text = re.sub(rf"(localhost|127\.0\.0\.1):{port}", rf"\1:{urlsplit(url).port}", text)
    return text


class Shell(Closing):
    """Runs blocks as a reader types them: in one folder, with the variables set before.

    `adapt` replaces what is different in a test, such as the ports. `programs` is a folder whose
    programs come first.
    """

    def __init__(
        self,
        folder: pathlib.Path,
        adapt: Callable[[str], str] = str,
        programs: pathlib.Path | None = None,
        variables: Mapping[str, str] | None = None,
    ) -> None:
        """Begin in a folder, which is also the home; its file `.variables` is used."""
        self._folder = folder
        self._adapt = adapt
        self._state = folder / ".variables"
        self._state.touch()
        own = {TOKEN_VARIABLE: "", "HOME": str(folder), "LANG": "C.UTF-8"}
        searched = [str(pathlib.Path(sys.executable).parent), os.environ["PATH"]]
        if programs is not None:
            searched.insert(0, str(programs))
        self._environment = {**os.environ, **own, **(variables or {})}
        self._environment["PATH"] = ":".join(searched)
        self.output = ""
        self._started: list[tuple[subprocess.Popen[bytes], Lines, str]] = []

    def run(self, text: str) -> Check:
        """Run a block to its end; each of its lines must succeed."""
        script = f"set -ea; . {self._state}\n{self._adapt(text)}\nexport -p >{self._state}"
        done = subprocess.run(
            ["bash", "-c", script],
            cwd=self._folder,
            env=self._environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=4 * PATIENCE_S,
            check=False,
        )
        assert done.returncode == 0, f"{text}\n{done.stdout}"
        output = self.output = done.stdout.rstrip("\n")

        def check(shown: str) -> None:
            assert matches(shown, output), f"{text}\n{output}"

        return check

    def start(self, text: str) -> Check:
        """Start a block that does not end by itself; its first lines are compared as they come."""
        process = subprocess.Popen(
            ["bash", "-c", f"set -a; . {self._state}\n{self._adapt(text)}"],
            cwd=self._folder,
            env=self._environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        lines = Lines(process.stdout)
        self._started.append((process, lines, text))

        def check(shown: str) -> None:
            for line in shown.splitlines():
                received = lines.next()
                assert matches(line, received), f"{text}\n{received}"

        return check

    def await_lines(self, command: str, text: str) -> None:
        """Wait until the block with a command that was started prints these lines in this order.

        Other lines may stand between them.
        """
        (lines,) = (lines for _, lines, block in self._started if command in block)
        for shown in text.splitlines():
            while not matches(shown, lines.next()):
                pass

    def interrupt(self, text: str) -> Check:
        """Send Ctrl-C to what was started last: `text` must be its last lines, and it succeeds.

        Lines that say how far it is are not looked at: they come if it takes ten seconds.
        """
        process, lines, _ = self._started[-1]
        os.killpg(process.pid, signal.SIGINT)
        rest = [line for line in lines.rest() if not line.startswith("copied: ")]
        assert process.wait(PATIENCE_S) == 0, rest
        shown = text.splitlines()
        assert matches("\n".join(shown), "\n".join(rest[-len(shown) :])), rest
        return no_output

    def close(self) -> None:
        """Kill what was started and still runs."""
        for process, _, _ in self._started:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
            process.wait(PATIENCE_S)
