"""The examples of docs/command.md that show what they print, run in a shell, in their order."""

from __future__ import annotations

import pathlib
import re
import subprocess
import sys
from typing import Final

import pytest

from tests.daemon import Daemon

PAGE: Final = pathlib.Path(__file__).parent.parent / "docs" / "command.md"
END: Final = "--- end of a command ---"


def examples() -> list[tuple[str, str]]:
    """Return the commands of the page, and what each prints."""
    found = []
    for block in re.findall(r"^```console\n(.*?)^```$", PAGE.read_text(), re.MULTILINE | re.DOTALL):
        for each in re.split(r"^\$ ", block, flags=re.MULTILINE)[1:]:
            command, _, output = each.partition("\n")
            found.append((command, output))
    return found


def matches(printed: str, expected: str) -> bool:
    """Return whether an output is the expected one; `"…"` and `… A` stand for more text."""
    pattern = re.escape(expected).replace("…\\ A", ".*\\ A").replace('"…"', '".*"')
    return re.fullmatch(pattern, printed) is not None


def test_the_examples_of_the_page_are_true(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = examples()
    assert {"ls", "tree", "cp", "transaction"} <= {command.split()[1] for command, _ in found}
    monkeypatch.delenv("TREEDB_TOKEN", raising=False)
    with Daemon(tmp_path) as daemon:
        base = daemon.http.replace("127.0.0.1", "localhost")
        lines = [f'treedb() {{ "{sys.executable}" -m treedbd.cli "$@"; }}']
        for command, _ in found:
            lines += [command.replace("http://localhost:9000", base), f"echo '{END}'"]
        done = subprocess.run(
            ["bash", "-c", "\n".join(lines)],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            check=True,
            text=True,
            cwd=pathlib.Path(__file__).parent.parent,
        )
    printed = done.stdout.replace(base, "http://localhost:9000").split(f"{END}\n")
    wrong = [
        (command, output)
        for (command, expected), output in zip(found, printed, strict=False)
        if not matches(output, expected)
    ]
    assert not wrong
    assert len(printed) == len(found) + 1
