"""The limits that an operator can set: their defaults, bounds and units, and the keys for them."""

from __future__ import annotations

import ast
import pathlib
from typing import Any, get_args

import attrs
import pytest

import treedbd
from treedbd.config.settings import Settings, load_settings
from treedbd.config.values import ConfigError
from treedbd.limits import (
    Bounds,
    FunctionLimits,
    HookLimits,
    Limits,
    RateLimits,
    ReaderLimits,
    RulesLimits,
    StreamLimits,
    Unit,
    bounds_of,
    has_bounds,
)

PACKAGE = pathlib.Path(treedbd.__file__).parent
TABLES: dict[str, type[Any]] = {
    "limits": Limits,
    "streams": StreamLimits,
    "rates": RateLimits,
    "readers": ReaderLimits,
    "webhooks": HookLimits,
    "functions": FunctionLimits,
    "rules": RulesLimits,
}
FIELDS: dict[str, attrs.Attribute[Any]] = {
    f"{table}.{field.name}": field for table, kind in TABLES.items() for field in attrs.fields(kind)
}
COMMON = {"timeout_s", "value_bytes", "attempts"}
"""Limits of hooks whose names others have too, for other things."""
BESIDES = {"webhooks": ("allow",), "functions": ("url",)}
"""Keys of tables that are no limits."""
each_limit = pytest.mark.parametrize("key", FIELDS)


def load(folder: pathlib.Path, key: str, value: float) -> Settings:
    table, _, name = key.partition(".")
    (folder / "treedb.toml").write_text(f"[{table}]\n{name} = {value}\n")
    return load_settings(pathlib.Path("treedb.toml"), {}, folder)


def load_error(folder: pathlib.Path, key: str, value: float) -> str:
    with pytest.raises(ConfigError) as caught:
        load(folder, key, value)
    return str(caught.value)


def value_of(settings: Settings, key: str) -> Any:
    table, _, name = key.partition(".")
    return getattr(getattr(settings, table), name)


def has_number(value: ast.expr | None) -> bool:
    """Return whether an expression contains a number."""
    return value is not None and any(
        isinstance(each, ast.Constant) and type(each.value) in (int, float)
        for each in ast.walk(value)
    )


def defaults_in(module: ast.Module) -> list[tuple[str, ast.expr | None]]:
    """Return the names and values of the defaults of parameters, of fields and of constants."""
    found: list[tuple[str, ast.expr | None]] = []
    for node in ast.walk(module):
        if isinstance(node, ast.arguments):
            positional = [each.arg for each in (*node.posonlyargs, *node.args)]
            found += zip(reversed(positional), reversed(node.defaults), strict=False)
            found += zip([each.arg for each in node.kwonlyargs], node.kw_defaults, strict=True)
        elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            found.append((node.target.id, node.value))
        elif isinstance(node, ast.Assign):
            names = [each.id for each in node.targets if isinstance(each, ast.Name)]
            found += [(name, node.value) for name in names]
    return found


@each_limit
def test_a_limit_has_bounds_and_a_unit_and_a_default_within_them(key: str) -> None:
    field = FIELDS[key]
    assert has_bounds(field)
    bounds = bounds_of(field)
    assert bounds.unit in get_args(Unit)
    assert bounds.low < bounds.high
    default: Any = field.default
    assert bounds.low <= default <= bounds.high
    if bounds.unit == "seconds":
        assert bounds.low == 0 < default


def test_the_default_settings_are_those_of_the_limits() -> None:
    settings = Settings()
    assert (settings.limits, settings.streams, settings.rules) == (
        Limits(),
        StreamLimits(),
        RulesLimits(),
    )


def test_no_other_module_has_a_default_of_a_limit() -> None:
    names = {field.name for field in FIELDS.values()} - COMMON
    modules = [each for each in PACKAGE.rglob("*.py") if each != PACKAGE / "limits.py"]
    assert modules
    found = [
        f"{module.relative_to(PACKAGE)}: {name}"
        for module in modules
        for name, value in defaults_in(ast.parse(module.read_text()))
        if name.lower() in names and has_number(value)
    ]
    assert found == []


@pytest.mark.parametrize("table", TABLES)
def test_the_keys_of_a_table_are_exactly_the_limits(tmp_path: pathlib.Path, table: str) -> None:
    names = [*(field.name for field in attrs.fields(TABLES[table])), *BESIDES.get(table, ())]
    sentence = load_error(tmp_path, f"{table}.zzz", 1)
    assert f"(the keys are {', '.join(names)})" in sentence


@each_limit
def test_a_limit_accepts_its_bounds(tmp_path: pathlib.Path, key: str) -> None:
    bounds = bounds_of(FIELDS[key])
    low = 0.001 if bounds.unit == "seconds" else bounds.low
    for value in (low, bounds.high):
        assert value_of(load(tmp_path, key, value), key) == value


def values_beyond(bounds: Bounds) -> list[float]:
    if bounds.unit == "seconds":
        return [-1, 0, bounds.high + 1]
    return [bounds.low - 1, bounds.high + 1]


@each_limit
def test_the_error_of_a_value_beyond_its_bounds_names_file_key_and_bounds(
    tmp_path: pathlib.Path, key: str
) -> None:
    bounds = bounds_of(FIELDS[key])
    expected = f"an integer from {bounds.low} to {bounds.high}"
    if bounds.unit == "seconds":
        expected = f"a number of seconds above 0 and at most {bounds.high}"
    for value in values_beyond(bounds):
        sentence = load_error(tmp_path, key, value)
        assert sentence == f"treedb.toml: {key} must be {expected}: correct it or remove it."
