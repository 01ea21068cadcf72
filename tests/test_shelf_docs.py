"""The examples of a shelf in the documentation do what the page says."""

from __future__ import annotations

import pathlib
import re
import subprocess
import sys

from tests.pages import DOCS, read_blocks
from treedbd import open_shelf


def run(folder: pathlib.Path, *arguments: str | pathlib.Path) -> list[str]:
    """Run Python in a folder; return the lines that it prints."""
    done = subprocess.run(
        [sys.executable, *arguments], cwd=folder, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def test_the_program_fills_a_database_and_reports_it(tmp_path: pathlib.Path) -> None:
    printed = ["ada {'age': 36, 'name': 'Ada'}", "alan {'age': 42, 'name': 'Alan'}"]
    assert run(tmp_path, DOCS / "shelf.py") == [*printed, "2 people; False unknown"]


def test_the_program_reports_the_file_that_it_is_given(tmp_path: pathlib.Path) -> None:
    file = tmp_path / "demo" / "default.shelf"
    with open_shelf(file, "c") as shelf:
        shelf["people/grace/age"] = 85
    printed = run(tmp_path, DOCS / "shelf.py", file)
    assert printed == ["grace {'age': 85}", "1 people; False 85"]


def test_the_example_of_the_page_prints_what_its_comments_say(tmp_path: pathlib.Path) -> None:
    *_, (_, example) = read_blocks("embedding.md", "python")
    comments = re.findall(r"#[ ](.*)$", example, re.MULTILINE)
    shown = [line for comment in comments for line in comment.split(", then ")]
    assert run(tmp_path, "-c", example) == shown
    with open_shelf(tmp_path / "treedb-data/demo/default.shelf") as shelf:
        assert shelf[""] == {"people": {"ada": {"age": 36, "name": "Ada"}}}
