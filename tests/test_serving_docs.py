"""The page about starting treedb is true: its command lines are run, its flags compared."""

from __future__ import annotations

import os
import pathlib
import re
import shlex
import subprocess
import sys

import pytest

from tests.command import run_command
from tests.daemon import SERVE, Daemon
from treedbd.tap import Options

PAGE = (pathlib.Path(__file__).parent.parent / "docs" / "serving.md").read_text()
PORTS = {"8443": "https", "9000": "http", "8080": "http"}


def lines_of(heading: str) -> list[str]:
    """Return the command lines of a chapter or section."""
    chapter = re.search(rf"^#+ {heading}\n(.*?)(?=^##|\Z)", PAGE, re.DOTALL | re.MULTILINE)
    assert chapter is not None
    blocks = re.findall(r"^```sh\n(.*?)^```", chapter[1], re.DOTALL | re.MULTILINE)
    return [line for block in blocks for line in block.splitlines()]


class Desk:
    """A folder in which the lines of the page are typed, with `treedb` on the path."""

    def __init__(self, folder: pathlib.Path) -> None:
        self.folder = folder
        programs = folder / "programs"
        programs.mkdir()
        script = programs / "treedb"
        script.write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)} -m treedbd "$@"\n')
        script.chmod(0o755)
        self._environment = {**os.environ, "PATH": f"{programs}:{os.environ['PATH']}"}

    def type(self, *lines: str) -> str:
        """Run lines in one shell; return what they print."""
        done = subprocess.run(
            ["sh", "-ec", "\n".join(lines)],
            cwd=self.folder,
            env=self._environment,
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    def serve(self, line: str) -> Daemon:
        """Prepare the daemon of a line."""
        words = shlex.split(line)
        assert words[:2] == ["treedb", "serve"]
        daemon = Daemon(self.folder, listen=[], program=[*SERVE, *words[2:]])
        at = daemon._command.index("--data")
        del daemon._command[at : at + 2]
        return daemon


def at_ports_of(daemon: Daemon, lines: list[str]) -> list[str]:
    """Return lines with the ports that a daemon has got: others may be in use here."""
    real = {url.partition(":")[0]: url.rpartition(":")[2] for url in daemon.urls}
    return [
        re.sub(r"(?<=:)(8443|9000|8080)\b", lambda port: real[PORTS[port[1]]], line)
        for line in lines
    ]


@pytest.fixture
def desk(tmp_path: pathlib.Path) -> Desk:
    return Desk(tmp_path)


def test_the_first_lines_work(desk: Desk) -> None:
    serve, *rest = lines_of("Trying it")
    with desk.serve(serve) as daemon:
        shown = desk.type(*at_ports_of(daemon, rest)).splitlines()
        assert shown == ['{"name":"Ada"}', '{"ada":{"name":"Ada"}}', '"Ada"']


def test_a_configuration_of_ones_own_works(desk: Desk) -> None:
    init, serve, token, write, sample = lines_of("A configuration of your own")
    printed = desk.type(init)
    for line in (serve, token):
        assert f"    {line}\n" in printed
    with desk.serve(serve) as daemon:
        assert desk.type(token, *at_ports_of(daemon, [write])) == '{"name":"Ada"}\n'
    desk.type(sample)
    assert "#listen = []" in (desk.folder / "all-keys.toml").read_text()


def test_the_lines_of_lan_work(desk: Desk) -> None:
    (serve,) = lines_of("Phones, boards and other machines")
    with desk.serve(serve) as daemon:
        assert "With --lan" in daemon.log
        for line in at_ports_of(daemon, lines_of("Trusting the authority")):
            assert desk.type(line).strip() == "null"


def test_the_flags_are_those_that_there_are() -> None:
    rows = re.findall(r"^\| `(--[a-z-]+)", PAGE, re.MULTILINE)
    of_twistd = {"--logfile", "--logger", "--reactor"}
    ours = {f"--{name.removesuffix('=')}" for name in Options().longOpt} - {"--version", "--help"}
    assert sorted(rows) == sorted(ours | of_twistd)
    help_text = run_command("serve", "--help").text
    assert [flag for flag in rows if flag not in help_text] == []
