"""The structure of the package: what the contracts of import-linter cannot express."""

from __future__ import annotations

import ast
import functools
import pathlib
import re
import subprocess
import sys
from collections.abc import Iterator
from graphlib import TopologicalSorter
from typing import Final

PROJECT: Final = pathlib.Path(__file__).parent.parent
PACKAGE: Final = PROJECT / "treedbd"
PURE: Final = ("tree", "rules", "store")

MAX_MODULES: Final = 270
MAX_ROOT_MODULES: Final = 13
MAX_FUNCTION_LINES: Final = 30
LOWER_LAYERS: Final = {
    "CountsCallers": "`web.rates`, of which `http1` does not know",
    "CountsRequests": "`web.activity`, of which `http1` does not know",
    "OtherProcesses": "`workers.process`, of which `database` does not know",
    "RulesExchange": "`workers.process`, of which `database` does not know",
    "WorkerContext": "`workers.process`, which `service` loads only in a worker",
}
"""Protocols with one class, which is in a layer above: who has it."""
LIBRARIES: Final = {
    "Trace": "OpenTelemetry",
    "Tracer": "OpenTelemetry",
    "_Decoder": "zlib, brotli and zstandard",
}
"""Protocols with one class or none, because they hide a library."""
MAX_POSITIONAL: Final = 4
"""Arguments of a constructor that a call may give by their order."""
MADE_IN_LOOPS: Final = {"Child"}
"""Classes of which one read makes thousands; a call that names its arguments takes longer."""


@functools.cache
def syntax() -> dict[str, ast.Module]:
    """Return the syntax tree of each module, by its path without the suffix, as in `tree/edit`."""
    return {
        str(file.relative_to(PACKAGE).with_suffix("")): ast.parse(file.read_text())
        for file in sorted(PACKAGE.rglob("*.py"))
    }


@functools.cache
def modules() -> dict[str, ast.Module]:
    """Return those that are no packages."""
    return {path: tree for path, tree in syntax().items() if not path.endswith("__init__")}


def package_of(path: str) -> str:
    return path.partition("/")[0]


def is_for_types_only(node: ast.AST) -> bool:
    return isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test)


def imports_of(nodes: list[ast.stmt]) -> Iterator[str]:
    """Yield the full names of what is imported when a module is, or for its types is not."""
    for node in nodes:
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield from (f"{node.module}.{alias.name}" for alias in node.names)
        elif isinstance(node, ast.If) and not is_for_types_only(node):
            yield from imports_of([*node.body, *node.orelse])


def own_imports_of(path: str) -> set[str]:
    """Return which modules of the package a module imports, as their paths."""
    found = set()
    for name in imports_of(modules()[path].body):
        parts = name.split(".")[1:]
        for whole in ("/".join(parts), "/".join(parts[:-1])):
            if name.startswith("treedbd.") and whole in modules():
                found.add(whole)
    return found


def lines_of(function: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    """Return the lines of a function from its first statement on, without its docstring."""
    body = function.body[1:] if ast.get_docstring(function) is not None else function.body
    return (function.end_lineno or 0) - body[0].lineno + 1 if body else 0


def listed_in(docstring: str) -> set[str]:
    """Return the modules that the docstring of a package lists, one a line after its first."""
    return set(re.findall(r"^([a-z0-9_]+) {2,}\S", docstring, re.MULTILINE))


def test_the_modules_are_few() -> None:
    assert len(modules()) <= MAX_MODULES
    assert len([path for path in modules() if "/" not in path]) <= MAX_ROOT_MODULES


def test_a_package_says_in_its_docstring_what_each_of_its_modules_is() -> None:
    wrong = {}
    for path in syntax().keys() - modules().keys() - {"__init__"}:
        folder = path.removesuffix("/__init__")
        there = {file.stem for file in (PACKAGE / folder).glob("*.py")} - {"__init__", "__main__"}
        listed = listed_in(ast.get_docstring(syntax()[path]) or "")
        if listed != there:
            wrong[folder] = (sorted(listed - there), sorted(there - listed))
    assert not wrong


def test_the_init_file_of_a_package_has_no_code() -> None:
    inits = {
        path: syntax()[path].body for path in syntax().keys() - modules().keys() - {"__init__"}
    }
    assert len(inits) > 10
    assert not [path for path, body in inits.items() if len(body) != 1]


def test_no_module_imports_itself_by_way_of_others() -> None:
    graph = {path: own_imports_of(path) for path in modules()}
    assert sum(map(len, graph.values())) > len(modules())
    TopologicalSorter(graph).prepare()  # raises CycleError, which has the cycle


def test_the_pure_packages_and_the_store_do_not_wait() -> None:
    waiting = ast.AsyncFunctionDef | ast.Await
    pure = [path for path in modules() if package_of(path) in PURE]
    assert not [
        p for p in pure if any(isinstance(each, waiting) for each in ast.walk(modules()[p]))
    ]


def test_below_the_web_there_is_no_http() -> None:
    below = [path for path in modules() if package_of(path) in {"database", *PURE}]
    http = ("twisted.web", "http.", "treedbd.http1")
    known = {path: list(imports_of(modules()[path].body)) for path in below}
    assert not [path for path, names in known.items() if any(n.startswith(http) for n in names)]


def test_functions_are_short() -> None:
    functions = [
        (path, node)
        for path, tree in syntax().items()
        for node in ast.walk(tree)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    ]
    assert len(functions) > 1000
    assert not [
        f"{path}:{node.lineno}" for path, node in functions if lines_of(node) > MAX_FUNCTION_LINES
    ]


def classes() -> dict[str, ast.ClassDef]:
    """Return the classes of the package by their names."""
    nodes = (node for tree in syntax().values() for node in ast.walk(tree))
    return {node.name: node for node in nodes if isinstance(node, ast.ClassDef)}


def structural() -> set[str]:
    """Return the names of the Protocols: not of those of Twisted, which are connections."""
    return {
        node.name
        for tree in syntax().values()
        if "typing.Protocol" in set(imports_of(tree.body))
        for node in ast.walk(tree)
        if isinstance(node, ast.ClassDef) and "Protocol" in bases_of(node)
    }


def bases_of(node: ast.ClassDef) -> list[str]:
    return [ast.unparse(base).partition("[")[0] for base in node.bases]


def members_of(node: ast.ClassDef, known: dict[str, ast.ClassDef]) -> set[str]:
    """Return the methods and attributes that a class has, with those of its bases."""
    found: set[str] = set()
    for base in bases_of(node):
        if base in known and base != node.name:
            found |= members_of(known[base], known)
    for child in ast.walk(node):
        if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef):
            found.add(child.name)
        elif isinstance(child, ast.Attribute) and isinstance(child.ctx, ast.Store):
            found.add(child.attr)
        elif isinstance(child, ast.Name) and isinstance(child.ctx, ast.Store):
            found.add(child.id)
    return found


def test_a_protocol_has_two_classes() -> None:
    known = classes()
    members = {name: members_of(node, known) for name, node in known.items()}
    protocols = structural()
    assert len(protocols) > 10
    few = {
        name
        for name in protocols
        if len([each for each in known.keys() - protocols if members[name] <= members[each]]) < 2
    }
    assert few == LOWER_LAYERS.keys() | LIBRARIES.keys()


def test_arguments_are_not_hidden_from_those_who_count_them() -> None:
    calls = [
        (path, node)
        for path, tree in syntax().items()
        for node in ast.walk(tree)
        if isinstance(node, ast.Call)
    ]
    hidden = [
        f"{path}:{call.lineno}"
        for path, call in calls
        for each in call.args
        if isinstance(each, ast.Starred) and isinstance(each.value, ast.Tuple)
    ]
    made = classes().keys() - MADE_IN_LOOPS
    by_order = [
        f"{path}:{call.lineno}"
        for path, call in calls
        if ast.unparse(call.func).rpartition(".")[2] in made and len(call.args) > MAX_POSITIONAL
    ]
    assert len(calls) > 10_000
    assert not hidden
    assert not by_order


def test_twisted_finds_the_plugin() -> None:
    assert not list((PROJECT / "twisted").rglob("__init__.py"))


def test_a_plain_daemon_loads_no_library_that_it_may_never_use() -> None:
    done = subprocess.run(
        [sys.executable, "-c", "import sys, treedbd.daemon; print(*sys.modules)"],
        capture_output=True,
        text=True,
        check=True,
    )
    loaded = {name.partition(".")[0] for name in done.stdout.split()}
    assert "twisted" in loaded
    assert loaded.isdisjoint(
        {"markdown_it", "multiprocessing", "opentelemetry", "psycopg", "segno", "treq"}
    )
