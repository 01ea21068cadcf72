"""The pure modules of the console's tree: rows and their numbers, differences, JSON as text."""

from __future__ import annotations

import os
import pathlib
import subprocess
from typing import Final

PROJECT: Final = pathlib.Path(__file__).parents[2]
NODE: Final = PROJECT / "tests" / "clients" / ".venv" / "bin"
TESTS: Final = pathlib.Path(__file__).with_name("model.test.mjs")


def test_rows_differences_and_json_as_text() -> None:
    environment = {
        **os.environ,
        "PATH": f"{NODE}:{os.environ['PATH']}",
        "CONSOLE": str(PROJECT / "treedbd" / "console"),
    }
    done = subprocess.run(
        ["node", "--test", str(TESTS)],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
