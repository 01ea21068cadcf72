"""The tests themselves: each of them can fail, and none of them because the machine is busy.

A test asserts by an `assert`, by `pytest.raises` or `pytest.fail`, or by a function that is named
for what it checks, such as `check_error`, `expect_end` or `await_line`. A function of that name in
the same file, or else one anywhere in the tests, must assert itself; one of the product raises.
"""

from __future__ import annotations

import ast
import os
import pathlib
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping

import pytest
from hypothesis import HealthCheck, settings

from tests.conftest import LONGEST

TESTS = pathlib.Path(__file__).parent
FOREIGN = (".venv", "node_modules")
CHECKS = ("assert", "await", "check", "expect", "require")
RAISES = ("raises", "fail")

Function = ast.FunctionDef | ast.AsyncFunctionDef


def files() -> Iterator[pathlib.Path]:
    """Iterate over the modules of the tests, without the packages that the clients need."""
    for folder, below, names in os.walk(TESTS):
        below[:] = [name for name in below if name not in FOREIGN]
        yield from (pathlib.Path(folder, name) for name in names if name.endswith(".py"))


def functions(source: str) -> list[Function]:
    """Return the tests of a module and the functions that are named for what they check."""
    nodes = ast.walk(ast.parse(source))
    found = (node for node in nodes if isinstance(node, Function))
    return [function for function in found if function.name.startswith(("test", *CHECKS))]


def name_of(node: ast.expr) -> str:
    """Return the last name of an expression that names something, else nothing."""
    if isinstance(node, ast.Name):
        return node.id
    return node.attr if isinstance(node, ast.Attribute) else ""


def asserts(function: Function, helpers: Mapping[str, bool]) -> bool:
    """Return whether a function asserts; `helpers` tells which functions of the tests do."""
    for node in (node for statement in function.body for node in ast.walk(statement)):
        if isinstance(node, ast.Assert | ast.Raise):
            return True
        if isinstance(node, ast.Call):  # the check may be an argument, as in `read(check_all)`
            names = [name_of(expression) for expression in (node.func, *node.args)]
            if names[0] in RAISES:
                return True
            if any(name.startswith(CHECKS) and helpers.get(name, True) for name in names):
                return True
    return False


def asserting(found: list[Function]) -> dict[str, bool]:
    """Return of each helper's name whether one of that name asserts."""
    helpers: dict[str, bool] = {}
    for function in found:
        if function.name.startswith(CHECKS):
            helpers[function.name] = helpers.get(function.name, False) or asserts(function, {})
    return helpers


def test_every_test_asserts() -> None:
    modules = {file: functions(file.read_text()) for file in files()}
    everywhere = asserting([function for found in modules.values() for function in found])
    tests = [
        (f"{file.relative_to(TESTS)}: {function.name}", asserts(function, everywhere | own))
        for file, found in modules.items()
        for own in [asserting(found)]
        for function in found
        if function.name.startswith("test")
    ]
    assert len(tests) > 1000
    assert [name for name, can_fail in tests if not can_fail] == []


@pytest.mark.parametrize(
    ("body", "can_fail"),
    [
        ("assert x", True),
        ("if x:\n  raise AssertionError", True),
        ("with pytest.raises(E):\n  f()", True),
        ("with a as b:\n  b.check_error(c)", True),
        ("expect_end(s)", True),
        ("require_server_name(c)", True),
        ("...", False),
        ("'A docstring.'", False),
        ("f(x) == 1", False),
        ("recheck(x)", False),
        ("x.check_error", False),
        ("expect_nothing(x)", False),
        ("with contextlib.suppress(E):\n  f()", False),
    ],
)
def test_a_test_that_cannot_fail_is_found(body: str, can_fail: bool) -> None:
    (function,) = functions("def test_it():\n " + body.replace("\n", "\n "))
    helpers = functions("def expect_end(s):\n assert s.is_ended\ndef expect_nothing(s): ...")
    assert asserts(function, asserting(helpers)) == can_fail


def test_an_example_may_take_any_time() -> None:
    assert settings().deadline is None
    assert HealthCheck.too_slow in settings().suppress_health_check


def test_the_files_that_take_longest_exist() -> None:
    assert len(set(LONGEST)) == len(LONGEST) > 20
    assert not [path for path in LONGEST if not (TESTS / f"{path}.py").is_file()]


UNDER_NOHUP = (
    "import os, signal, subprocess, sys\n"
    "for number in (signal.SIGINT, signal.SIGHUP):\n"
    "    signal.signal(number, signal.SIG_IGN)\n"
    "from tests.conftest import pass_on_no_ignored_signals\n"
    "pass_on_no_ignored_signals()\n"
    "for number in (signal.SIGINT, signal.SIGHUP):\n"
    "    os.kill(os.getpid(), number)\n"
    "shown = 'import signal; print(*map(signal.getsignal, (signal.SIGINT, signal.SIGHUP)))'\n"
    "subprocess.run([sys.executable, '-c', shown], check=True)\n"
)


def test_what_tests_start_does_not_ignore_signals_under_nohup() -> None:
    shown = subprocess.run(
        [sys.executable, "-c", UNDER_NOHUP],
        cwd=TESTS.parent,
        capture_output=True,
        text=True,
        check=True,
    )
    handlers = (signal.default_int_handler, signal.SIG_DFL)
    assert shown.stdout == f"{handlers[0]} {handlers[1]}\n"


def test_no_test_inherits_ignored_signals() -> None:
    for number in (signal.SIGINT, signal.SIGHUP):
        assert signal.getsignal(number) is not signal.SIG_IGN
