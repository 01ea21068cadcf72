"""The names that programs may import from `treedbd`."""

from __future__ import annotations

import ast
import pathlib
from enum import Enum
from typing import get_args

import pytest

import treedbd

ALIASES = {"Auth", "Identify"}
"""Types that are written in annotations."""
TREE = ast.parse(pathlib.Path(treedbd.__file__).read_text())


def type_checked_imports() -> dict[str, str]:
    """Return the names that the TYPE_CHECKING block imports, with their modules."""
    (block,) = (
        node
        for node in TREE.body
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"
    )
    imports = [node for node in block.body if isinstance(node, ast.ImportFrom)]
    assert len(imports) == len(block.body)
    return {alias.name: node.module or "" for node in imports for alias in node.names}


@pytest.mark.parametrize("name", treedbd.__all__)
def test_every_public_name_can_be_imported_and_is_documented(name: str) -> None:
    value = getattr(treedbd, name)
    if isinstance(value, str):
        assert name == "__version__"
    elif isinstance(value, Enum):
        assert value.name == name
        assert vars(type(value))["__doc__"]
    elif name in ALIASES:
        assert get_args(value)
    else:
        assert value.__name__ == name
        assert vars(value)["__doc__"] if isinstance(value, type) else value.__doc__


def test_the_public_names_are_those_that_type_checkers_see() -> None:
    names = type_checked_imports()
    assert treedbd.__all__ == sorted([*names, "__version__"])
    for name, module in names.items():
        if name in ALIASES:  # an alias does not know its module
            continue
        value = getattr(treedbd, name)
        kind = type(value) if isinstance(value, Enum) else value
        assert kind.__module__ == module


def test_another_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="has no attribute 'Catalog'"):
        treedbd.Catalog  # noqa: B018
