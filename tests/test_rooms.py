"""The rooms of the package: what import-linter's contracts, in pyproject.toml, cannot express."""

from __future__ import annotations

import ast
import pathlib

import pytest

PACKAGE = pathlib.Path(__file__).parent.parent / "treedbd"
ROOMS = sorted(file.parent for file in PACKAGE.glob("*/__init__.py"))
MODULES = sorted(PACKAGE.rglob("*.py"))


def room(module: pathlib.Path) -> str:
    return module.relative_to(PACKAGE).parts[0].removesuffix(".py")


def syntax(module: pathlib.Path) -> ast.Module:
    return ast.parse(module.read_text())


def imported(tree: ast.Module) -> set[str]:
    names = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            names |= {f"{node.module}.{alias.name}" for alias in node.names}
    return names


def test_the_package_has_rooms_and_modules_to_look_at() -> None:
    assert {"tree", "store", "database", "web"} <= {folder.name for folder in ROOMS}
    assert len(MODULES) > len(ROOMS)


@pytest.mark.parametrize("folder", ROOMS, ids=lambda folder: folder.name)
def test_the_init_file_of_a_room_is_empty(folder: pathlib.Path) -> None:
    assert (folder / "__init__.py").read_bytes() == b""


@pytest.mark.parametrize("module", MODULES, ids=lambda module: str(module.relative_to(PACKAGE)))
def test_only_the_web_and_the_command_say_async_def(module: pathlib.Path) -> None:
    if room(module) not in {"web", "cli"}:
        nodes = ast.walk(syntax(module))
        assert not any(isinstance(node, ast.AsyncFunctionDef) for node in nodes)


@pytest.mark.parametrize("module", MODULES, ids=lambda module: str(module.relative_to(PACKAGE)))
def test_below_the_web_nobody_knows_http(module: pathlib.Path) -> None:
    if room(module) in {"database", "rules", "store", "tree"}:
        known = imported(syntax(module))
        assert not [name for name in known if name.startswith(("twisted.web", "http."))]


def test_nothing_stands_in_the_way_of_the_plugins_of_twisted() -> None:
    assert not list((PACKAGE.parent / "twisted").rglob("__init__.py"))
