"""`docs/internals.md`: its modules exist; a write passes those that it lists, and requests few."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from typing import Final

import pytest

from tests.pages import DOCS
from tests.test_layers import PACKAGE, PROJECT, modules

PAGE: Final = (DOCS / "internals.md").read_text()

MAX_FILES: Final = {
    "GET of a leaf repeated": 9,
    "GET of a leaf first": 14,
    "PUT of a leaf first": 28,
    "SSE open first": 20,
    "WebSocket put first": 31,
    "PUT of rules first": 34,
}
MAX_FRAMES: Final = {
    "GET of a leaf repeated": 38,
    "GET of a leaf first": 98,
    "PUT of a leaf first": 270,
}
MAX_IMPORT_DEPTH: Final = 23
MAX_LOADED: Final = 61


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


@pytest.fixture(scope="module")
def trace() -> str:
    """What `bench/request_trace.py` prints of requests, with the files that they pass."""
    done = subprocess.run(
        [sys.executable, "request_trace.py", "--files"],
        cwd=PROJECT / "bench",
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_a_request_passes_through_few_files_and_imports_are_shallow(trace: str) -> None:
    rows = re.findall(r"^(.+?) +(\w+): +(\d+) files +(\d+) frames", trace, re.MULTILINE)
    files = {f"{name} {which}": int(count) for name, which, count, _ in rows}
    frames = {f"{name} {which}": int(count) for name, which, _, count in rows}
    assert {"SSE open first", "GET of a query again", "PATCH of an object first"} < files.keys()
    assert not {name: files[name] for name, limit in MAX_FILES.items() if files[name] > limit}
    assert not {name: frames[name] for name, limit in MAX_FRAMES.items() if frames[name] > limit}
    (depth,) = re.findall(r"^import depth: (\d+) modules$", trace, re.MULTILINE)
    assert int(depth) <= MAX_IMPORT_DEPTH
    (loaded,) = re.findall(r"^treedb --version: (\d+) modules loaded$", trace, re.MULTILINE)
    assert int(loaded) <= MAX_LOADED


def test_a_write_passes_the_modules_that_the_page_lists(trace: str) -> None:
    section = PAGE.partition("\n## The way of a write\n")[2].partition("\n## ")[0]
    listed = re.findall(r"^      ([a-z0-9_/]+) ", section, re.MULTILINE)
    assert len(listed) == len(set(listed))
    assert all(map(exists, listed))
    _, _, rest = trace.partition("\nPUT of a leaf ")
    lines = rest.partition("\nPATCH")[0]
    passed = set(re.findall(r"^    ([a-z0-9_/]+)\.py$", lines, re.MULTILINE))
    assert passed == set(listed)
