"""The curl commands of the README, run with the ports and folders of a test daemon."""

from __future__ import annotations

import pathlib
import re
import shlex
from collections.abc import Iterator

import pytest

from tests.clients.harness import run_client
from tests.daemon import TWISTD, Daemon
from tests.pages import with_ports_of

README = pathlib.Path(__file__).parents[2] / "README.md"
REFUSED = {"curl http://localhost:9000/notes/ada.json": 403}
STREAMED_FOR_S = 1


def read_commands() -> list[str]:
    """Return the lines of the README that call curl, and those that set variables for them."""
    commands = re.findall(
        r"^    ((?:curl|[A-Z]+=\$\(.*treedb) .*)$", README.read_text(), re.MULTILINE
    )
    assert len(commands) > 10
    return commands


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    """A daemon in development mode, in a folder with the names of the README."""
    with Daemon(tmp_path_factory.mktemp("readme")) as daemon:
        (daemon.folder / "treedb-data").symlink_to(daemon.data)
        (daemon.folder / ".venv").mkdir()
        (daemon.folder / ".venv/bin").symlink_to(TWISTD.parent)
        yield daemon


def adapt(line: str, daemon: Daemon) -> str:
    """Return a command with the daemon's ports; curl also prints the status of the response."""
    line = with_ports_of(line, daemon)
    if "curl" not in shlex.split(line)[0]:
        return line
    options = ["-sS", "-w", r"\n%{http_code}\n"]
    if "text/event-stream" in line:
        options += ["-m", str(STREAMED_FOR_S)]
    return line.replace("curl", f"curl {shlex.join(options)}", 1)


def test_every_command_of_the_readme_works(folder: Daemon) -> None:
    commands = read_commands()
    script = "\n".join(adapt(line, folder) for line in commands)
    output = run_client(["bash", "-c", f"{script}\ntrue"], folder.folder, {})
    statuses = [int(status) for status in re.findall(r"^([1-5][0-9][0-9])$", output, re.MULTILINE)]
    calls = [line for line in commands if line.startswith("curl")]
    assert statuses == [REFUSED.get(line, 200) for line in calls], output
    assert "\n".join(["event: put", 'data: {"path":"/","data":{"ada":{"age":38}']) in output
