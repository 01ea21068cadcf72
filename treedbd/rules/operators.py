"""The operators and string methods at run time (sections 1.8 and 1.9 of the rules language).

Nothing is converted: a number is not a string, null is not zero, and what an operator does not
take is an `EvaluationError`. Numbers are exact within 64 bits and doubles beyond, as in the tree;
what has no result (a division by zero) is not-a-number. A string that `+` or `replace` makes is
bounded, so that no rule can fill the memory, and comparing objects counts what they hold.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Mapping
from typing import Any, Final

from treedbd.rules.evaluation import EvaluationError, Scope
from treedbd.rules.snapshot import Subtree
from treedbd.tree.number import INT64_HIGH, INT64_LOW, print_double, settle

MAX_STRING: Final = 10 * 1_048_576
"""Characters in a string that an expression makes."""
COMPARED_BYTE: Final = 16
"""Characters that a byte of the tree counts for where objects are compared: it must be read."""

_OBJECTS = (dict, list, Subtree)


def claim(value: Any, name: str) -> Any:
    """Return a member of `auth` or of what hangs below it, None where it is missing.

    A string has one, its `length`.
    """
    if isinstance(value, dict):
        return value.get(name)
    if isinstance(value, str):
        return length(value) if name == "length" else None
    if isinstance(value, list) and name.isascii() and name.isdecimal() and len(name) < 10:
        at = int(name)
        return value[at] if at < len(value) and str(at) == name else None
    return None


def name_index(index: Any) -> str:
    """Return the name of the member that a computed index means."""
    if isinstance(index, str):
        return index
    if not is_number(index):
        raise EvaluationError("An index must be a string or a number.")
    return print_number(index)


def equal(left: Any, right: Any, scope: Scope) -> bool:
    """Tell whether two values are the same, without any conversion.

    What has to be read of the tree for that is spent from `scope`.
    """
    kind = type(left)
    if kind is str or kind is bool or left is None:
        if type(right) is kind:
            return bool(left == right)
        return _differ(right)
    if kind is int or kind is float:
        if type(right) is int or type(right) is float:
            return bool(left == right)
        return _differ(right)
    if not isinstance(left, _OBJECTS):
        raise EvaluationError("== compares values only.")
    if not isinstance(right, _OBJECTS):
        return _differ(right)
    return _same_objects(left, right, scope)


def _differ(right: Any) -> bool:
    """Return False for a value that is unlike another; raise for what is no value at all."""
    if right is None or isinstance(right, (str, bool, int, float, *_OBJECTS)):
        return False
    raise EvaluationError("== compares values only.")


def _same_objects(left: Any, right: Any, scope: Scope) -> bool:
    """Compare two objects member by member, with a stack of its own: tokens nest at will."""
    pairs = [(left, right)]
    while pairs:
        one, other = pairs.pop()
        if not (isinstance(one, _OBJECTS) and isinstance(other, _OBJECTS)):
            if not equal(one, other, scope):
                return False
            continue
        ones, others = _as_members(one, scope), _as_members(other, scope)
        if ones.keys() != others.keys():
            return False
        pairs += [(value, others[key]) for key, value in ones.items()]
    return True


def _as_members(value: Any, scope: Scope) -> dict[str, Any]:
    """Return the members of an object, those of an array under their indices, without nulls."""
    if isinstance(value, Subtree):
        scope.spend(value.size(scope.characters // COMPARED_BYTE) * COMPARED_BYTE)
        return value.read()
    items = enumerate(value) if isinstance(value, list) else value.items()
    return {str(key): item for key, item in items if item is not None}


def _ordering(name: str, test: Callable[[Any, Any], bool]) -> Callable[[Any, Any], bool]:
    def ordered(left: Any, right: Any) -> bool:
        if is_number(left):
            if is_number(right):
                return test(left, right)
        elif isinstance(left, str) and isinstance(right, str):
            return test(left, right)
        raise EvaluationError(f"{name} compares two numbers or two strings.")

    return ordered


def is_number(value: Any) -> bool:
    """Tell whether a value is a number."""
    return type(value) is int or type(value) is float


def add(left: Any, right: Any) -> Any:
    """Add two numbers, or join two texts of which one may be a number."""
    if is_number(left) and is_number(right):
        return _add_numbers(left, right)
    if isinstance(left, str) or isinstance(right, str):
        return bound(_as_text(left), _as_text(right))
    raise EvaluationError("+ takes numbers and strings.")


def _as_text(value: Any) -> str:
    if isinstance(value, str):
        return value
    if is_number(value):
        return print_number(value)
    raise EvaluationError("+ takes numbers and strings.")


def bound(*pieces: str) -> str:
    """Join strings; raise `EvaluationError` where the result is too long."""
    if sum(map(len, pieces)) > MAX_STRING:
        raise EvaluationError("A string grew too long.")
    return "".join(pieces)


def print_number(number: int | float) -> str:
    """Print a number: integers without a point, not-a-number as NaN."""
    number = _settle(number)
    if isinstance(number, int):
        return str(number)
    if math.isfinite(number):
        return print_double(number)
    return "NaN" if math.isnan(number) else "Infinity" if number > 0 else "-Infinity"


def _settle(number: int | float) -> int | float:
    """Return the number as the tree would hold it; what is not finite stays so."""
    if isinstance(number, int) and INT64_LOW <= number <= INT64_HIGH:
        return number
    if isinstance(number, float) and not math.isfinite(number):
        return number
    try:
        return settle(number)
    except OverflowError:
        return math.inf if number > 0 else -math.inf


def _arithmetic(
    name: str, compute: Callable[[Any, Any], int | float]
) -> Callable[[Any, Any], int | float]:
    def computed(left: Any, right: Any) -> int | float:
        if not (is_number(left) and is_number(right)):
            raise EvaluationError(f"{name} takes numbers.")
        try:
            return _settle(compute(left, right))
        except (ZeroDivisionError, ValueError):
            return math.nan
        except OverflowError:
            return computed(_settle(left), _settle(right))

    return computed


_add_numbers: Final = _arithmetic("+", operator.add)


def _remainder(left: int | float, right: int | float) -> int | float:
    """Return the rest of a division; it has the sign of the dividend."""
    if isinstance(left, int) and isinstance(right, int):
        rest = abs(left) % abs(right)
        return -rest if left < 0 else rest
    return math.fmod(left, right)


def negate(value: Any) -> int | float:
    """Return the number with its sign changed."""
    if not is_number(value):
        raise EvaluationError("- takes a number.")
    return _settle(-value)


EQUALITIES: Final[Mapping[str, bool]] = {"==": True, "===": True, "!=": False, "!==": False}
"""The operators that compare by `equal`, and what it has to tell."""
BINARY: Final[Mapping[str, Callable[[Any, Any], Any]]] = {
    "<": _ordering("<", operator.lt),
    "<=": _ordering("<=", operator.le),
    ">": _ordering(">", operator.gt),
    ">=": _ordering(">=", operator.ge),
    "+": add,
    "-": _arithmetic("-", operator.sub),
    "*": _arithmetic("*", operator.mul),
    "/": _arithmetic("/", operator.truediv),
    "%": _arithmetic("%", _remainder),
}


def length(text: str) -> int:
    """Count UTF-16 units."""
    return len(text) if text.isascii() else len(text.encode("utf-16-le", "surrogatepass")) // 2


def replace(text: str, old: str, new: str) -> str:
    """Replace every occurrence of a plain text; where that is empty nothing changes."""
    if not old:
        return text
    if len(new) > len(old) and len(text) * len(new) > MAX_STRING:
        grown = len(text) + text.count(old) * (len(new) - len(old))
        if grown > MAX_STRING:
            raise EvaluationError("A string grew too long.")
    return text.replace(old, new)
