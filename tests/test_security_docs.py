"""`docs/security.md`: each promise names tests, and the tests are there."""

from __future__ import annotations

import ast
import pathlib
import re
from typing import Final

from tests.pages import DOCS

PAGE: Final = (DOCS / "security.md").read_text()
PROJECT: Final = DOCS.parent
PROMISED: Final = PAGE.partition("\n## What is promised\n")[2].partition("\n## ")[0]
HEADINGS: Final = ("| promise | held by |", "|---|---|")
NAMED: Final = re.compile(r"`(tests/[\w/]+\.py)?(?:::(\w+))?`")


def promises() -> list[tuple[str, str]]:
    """Return each promise with the column that names its tests."""
    lines = [line for line in PROMISED.splitlines() if line.startswith("|")]
    rows = [line for line in lines if line not in HEADINGS]
    return [(row.split("|")[1].strip(), row.split("|")[2].strip()) for row in rows]


def functions_of(file: pathlib.Path) -> set[str]:
    """Return the names of the test functions of a module."""
    nodes = ast.walk(ast.parse(file.read_text()))
    return {
        node.name
        for node in nodes
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name.startswith("test")
    }


def missing_tests(column: str) -> list[str]:
    """Return what a column names that is not there; a name without a file is of the file before."""
    missing, file = [], ""
    for path, test in NAMED.findall(column):
        file = path or file
        found = (PROJECT / file).is_file()
        if not found or (test and test not in functions_of(PROJECT / file)):
            missing.append(f"{file}::{test}")
    return missing


def test_each_promise_names_tests_that_exist() -> None:
    found = promises()
    assert len(found) >= 30
    for promise, column in found:
        names = re.findall(r"`[^`]+`", column)
        assert names, promise
        assert all(NAMED.fullmatch(name) for name in names), promise
        assert missing_tests(column) == [], promise


def test_a_name_that_is_not_there_is_missing() -> None:
    here = "`tests/test_security_docs.py::test_a_name_that_is_not_there_is_missing`"
    assert missing_tests(here) == []
    assert missing_tests(f"{here}, `::test_that_nobody_wrote`") == [
        "tests/test_security_docs.py::test_that_nobody_wrote"
    ]
    assert missing_tests("`tests/test_nothing.py`") == ["tests/test_nothing.py::"]
