"""Values that are not known yet: what an expression may result in before any data is read.

An `Unknown` is the set of the kinds of results that are possible. It may be too large, never too
small: what is not in it cannot happen. The functions here are the operators of the language over
known values and unknown ones; an evaluation that is certain to fail is the unknown `FAILS`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import attrs

from treedbd.rules.budget import BudgetExceeded, EvaluationError

# The kinds of results.
TRUE: Final = 1
FALSE: Final = 2
TEXT: Final = 4
OTHER: Final = 8
"""A number, null or an object."""
ERROR: Final = 16


@attrs.frozen
class Unknown:
    """One of several results; `kinds` is the sum of what it can be."""

    kinds: int


ANYTHING: Final = Unknown(TRUE | FALSE | TEXT | OTHER | ERROR)
SOME_TEXT: Final = Unknown(TEXT)
SOME_NUMBER: Final = Unknown(OTHER)
SOME_TEST: Final = Unknown(TRUE | FALSE | ERROR)
FAILS: Final = Unknown(ERROR)


def kinds_of(value: Any) -> int:
    """Return the kinds of a known or unknown value."""
    if isinstance(value, Unknown):
        return value.kinds
    if isinstance(value, bool):
        return TRUE if value else FALSE
    return TEXT if isinstance(value, str) else OTHER


def certainly_fails(value: Any) -> bool:
    """Return whether the evaluation of a value is certain to fail."""
    return isinstance(value, Unknown) and value.kinds == ERROR


def may_be_true(value: Any) -> bool:
    """Return whether a value can be true."""
    return bool(kinds_of(value) & TRUE)


def attempt(operate: Callable[..., Any], *operands: Any) -> Any:
    """Apply an operator to known operands."""
    try:
        return operate(*operands)
    except BudgetExceeded:  # which the evaluation of fewer rules might not exceed
        return ANYTHING
    except EvaluationError:
        return FAILS


def negate_test(value: Any) -> Any:
    """Return `!value`."""
    if not isinstance(value, Unknown):
        return not value
    kinds = value.kinds & ERROR
    kinds |= FALSE if value.kinds & TRUE else 0
    return Unknown(kinds | (TRUE if value.kinds & FALSE else 0))


def are_equal(left: Any, right: Any, compare: Callable[[Any, Any], bool]) -> Any:
    """Return `left == right`; `compare` compares known values."""
    if certainly_fails(left) or certainly_fails(right):
        return FAILS
    if not isinstance(left, Unknown) and not isinstance(right, Unknown):
        return attempt(compare, left, right)
    ones, others = kinds_of(left), kinds_of(right)
    kinds = FALSE | ((ones | others) & ERROR)
    return Unknown(kinds | (TRUE if ones & others & ~ERROR else 0))


def operate_on(operate: Callable[[Any, Any], Any], left: Any, right: Any) -> Any:
    """Return the result of an ordering or of arithmetic."""
    if not isinstance(left, Unknown) and not isinstance(right, Unknown):
        return attempt(operate, left, right)
    if _is_no_operand(left) or _is_no_operand(right):
        return FAILS
    return ANYTHING


def _is_no_operand(value: Any) -> bool:
    """Return whether every ordering and all arithmetic fails with an operand."""
    if isinstance(value, Unknown):
        return value.kinds == ERROR
    return type(value) not in (str, int, float)


def call_with_strings(call: Callable[..., Any], operands: list[Any], unknown: Unknown) -> Any:
    """Return the result of a method of strings; `unknown` is what it may be for unknown ones."""
    is_known = True
    for operand in operands:
        if isinstance(operand, Unknown):
            if not operand.kinds & TEXT:
                return FAILS
            is_known = False
        elif type(operand) is not str:
            return FAILS
    return attempt(call, *operands) if is_known else unknown


def join_tests(stops_at: bool, terms: list[Any]) -> Any:
    """Return what `&&` or `||` yields, which stops at the first term that is `stops_at`."""
    stop, go_on = (TRUE, FALSE) if stops_at else (FALSE, TRUE)
    kinds = 0
    for term in terms:
        found = kinds_of(term)
        kinds |= found & (stop | ERROR)
        if not found & go_on:
            return Unknown(kinds)
    return Unknown(kinds | go_on)


def choose(arms: list[tuple[Any, Any]], otherwise: Any) -> Any:
    """Return what a conditional yields: the result beside the first condition that is true."""
    kinds = 0
    for condition, result in arms:
        found = kinds_of(condition)
        kinds |= found & ERROR
        if found & TRUE:
            kinds |= kinds_of(result)
        if not found & FALSE:
            return Unknown(kinds)
    return Unknown(kinds | kinds_of(otherwise))
