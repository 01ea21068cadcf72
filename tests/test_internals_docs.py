"""`docs/internals.md`: the modules that it names exist, and a write passes those that it lists."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from typing import Final

from tests.pages import DOCS
from tests.test_layers import PACKAGE, PROJECT, modules

PAGE: Final = (DOCS / "internals.md").read_text()


def exists(path: str) -> bool:
    """Return whether a path below the package is a module, a package or another folder of it."""
    return path in modules() or (PACKAGE / path).is_dir()


def named_paths() -> set[str]:
    """Return what the page names like a module: `tree/edit`, in backticks or in a drawing."""
    tops = {path.partition("/")[0] for path in modules()}
    quoted = re.findall(r"`([a-z][a-z0-9_]*(?:/[a-z0-9_]+)+)`", PAGE)
    drawn = [
        path
        for line in re.findall(r"^    .*$", PAGE, re.MULTILINE)
        for path in re.findall(r"(?<![\w/.])[a-z0-9_]+(?:/[a-z0-9_]+)+(?![\w/])", line)
        if path.partition("/")[0] in tops
    ]
    return {*quoted, *drawn}


def rows() -> list[list[str]]:
    """Return the cells of all rows of tables."""
    lines = [line for line in PAGE.splitlines() if line.startswith("| ")]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]


def test_each_module_that_the_page_names_exists() -> None:
    found = named_paths()
    assert len(found) > 100
    assert not [path for path in found if not exists(path)]
    files = re.findall(r"`((?:treedbd|tests|bench)/[\w/]+\.py)`", PAGE)
    assert len(files) > 12
    assert not [file for file in files if not (PROJECT / file).is_file()]


def test_each_class_and_method_that_the_page_names_exists() -> None:
    names = re.findall(r"`([A-Z][a-z]+[A-Z]\w+|[A-Z]\w+\.\w+)(?:\([^`]*\))?`", PAGE)
    assert len(names) > 15
    defined = {
        node.name
        for tree in modules().values()
        for node in ast.walk(tree)
        if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef)
    }
    assert not {part for name in names for part in name.split(".")} - defined


def test_a_row_of_a_table_names_modules_each_once() -> None:
    cells = [row[-1] for row in rows()]
    assert len(cells) > 80
    for cell in cells:
        names = re.findall(r"`([a-z0-9_/]+)`", cell)
        assert len(names) == len(set(names)), cell
        assert all(map(exists, names)), cell


def test_a_write_passes_the_modules_that_the_page_lists() -> None:
    section = PAGE.partition("\n## The way of a write\n")[2].partition("\n## ")[0]
    listed = re.findall(r"^      ([a-z0-9_/]+) ", section, re.MULTILINE)
    assert len(listed) == len(set(listed))
    assert all(map(exists, listed))
    done = subprocess.run(
        [sys.executable, "request_trace.py", "--files"],
        cwd=PROJECT / "bench",
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    _, _, rest = done.stdout.partition("\nPUT of a leaf ")
    lines = rest.partition("\nPATCH")[0]
    passed = set(re.findall(r"^    ([a-z0-9_/]+)\.py$", lines, re.MULTILINE))
    assert passed == set(listed)
