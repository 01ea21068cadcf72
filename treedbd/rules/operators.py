"""The run time of the language: snapshots of nodes, operators, and the methods of strings.

A snapshot is what `data`, `newData` and `root` are while a rule is evaluated: a view and a path.
Nothing is read to make one. A method reads only what it needs: `exists()` and `isString()` the type
of the node, the value of a leaf the node alone; the value of a container is a `Subtree`, which is
read only when two of them are compared. A path that no node can have (`child('a.b')`) names an
absent node, and is not an error. It is not passed to the view, because views rely on valid paths.

Operators convert nothing: a number is not a string and null is not zero; an operand of a wrong type
is an `EvaluationError`. Numbers are exact within 64 bits and doubles beyond, as in the tree; an
operation without a result (a division by zero) gives not-a-number. The length of a string that `+`
or `replace` makes is bounded, so that no rule can fill the memory, and comparing objects spends the
characters of the scope in proportion to their size.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Mapping
from typing import Any, Final

from treedbd.caches import short_cache
from treedbd.limits import MAX_DEPTH, MAX_KEY_BYTES
from treedbd.rules.context import EvaluationError, NullBound, Scope, Subtree
from treedbd.tree.path import check_key
from treedbd.tree.types import CONTAINER, VALUE, Container, InvalidPath, Path, Value, View
from treedbd.tree.value import INT64_HIGH, INT64_LOW, canonical_number, members, print_double

_MAX_PATH = MAX_DEPTH * (MAX_KEY_BYTES + 1)
_UNKNOWN_EXCESS: Final = 1 << 30
"""More keys than any path has, so no `parent()` leads back to a node."""
CACHED_PATH: Final = 256
"""Characters of the longest path that is split once for all requests."""


class Snapshot:
    """A node of a view.

    `excess` is the number of keys after the longest prefix of the path that a node can have, by its
    keys and its depth; above 0 the node is absent.
    """

    __slots__ = ("excess", "path", "view")

    def __init__(self, view: View, path: Path, excess: int = 0) -> None:
        self.view: Final = view
        self.path: Final = path
        self.excess: Final = excess

    def child(self, path: str) -> Snapshot:
        """Return the node at a slash path below this one, this node for the empty path."""
        keys, excess = split_path(path)
        return self.descend(keys, excess)

    def descend(self, keys: Path, excess: int) -> Snapshot:
        """Return the node at keys below this one, which are a result of `split_path`."""
        if self.excess:
            excess = self.excess + len(keys)
        path = self.path + keys
        return Snapshot(self.view, path, max(excess, len(path) - MAX_DEPTH))

    def parent(self) -> Snapshot:
        """Return the parent; raise `EvaluationError` at the root."""
        if not self.path:
            raise EvaluationError("The root has no parent.")
        return Snapshot(self.view, self.path[:-1], max(self.excess - 1, 0))

    def has(self, keys: Path, excess: int) -> bool:
        """Return whether a node exists at keys below, which are a result of `split_path`."""
        if self.excess or excess:
            return False
        path = self.path + keys
        return len(path) <= MAX_DEPTH and exists_at(self.view, path)

    def val(self) -> Any:
        """Return the leaf, a `Subtree` for a container, None for an absent node."""
        return None if self.excess else leaf_or_subtree_at(self.view, self.path)

    def exists(self) -> bool:
        """Return whether the node exists."""
        return not self.excess and exists_at(self.view, self.path)

    def has_child(self, path: str) -> bool:
        """Return whether a node exists at a slash path below."""
        return self.child(path).exists()

    def has_children(self) -> bool:
        """Return whether the node has a child."""
        return not self.excess and self.view.type_at(self.path) is Container

    def get_priority(self) -> int | float | str | None:
        """Return the priority, None if there is none."""
        return None if self.excess else self.view.priority(self.path)

    def is_number(self) -> bool:
        """Return whether the value is a number."""
        return not self.excess and is_number_at(self.view, self.path)

    def is_string(self) -> bool:
        """Return whether the value is a string."""
        return not self.excess and is_string_at(self.view, self.path)

    def is_boolean(self) -> bool:
        """Return whether the value is true or false."""
        return not self.excess and is_boolean_at(self.view, self.path)


def leaf_or_subtree_at(view: View, path: Path) -> Any:
    """Return the leaf at a valid path, a `Subtree` for a container, None for an absent node."""
    value = view.peek(path)
    return Subtree(view, path) if value is CONTAINER else value


def exists_at(view: View, path: Path) -> bool:
    """Return whether a node exists at a valid path."""
    return view.type_at(path) is not None


def is_number_at(view: View, path: Path) -> bool:
    """Return whether the value at a valid path is a number."""
    value_type = view.type_at(path)
    return value_type is int or value_type is float


def is_string_at(view: View, path: Path) -> bool:
    """Return whether the value at a valid path is a string."""
    return view.type_at(path) is str


def is_boolean_at(view: View, path: Path) -> bool:
    """Return whether the value at a valid path is true or false."""
    return view.type_at(path) is bool


def split_path(path: str) -> tuple[Path, int]:
    """Return the keys of a slash path, and its excess: the number of keys from an invalid one on.

    Empty keys are skipped. Keys below the depth of any node are not checked, and a text longer than
    the path of any node is not split: then the node is absent, and so are the nodes above it.
    """
    if len(path) <= CACHED_PATH:
        return _split_short_path(path)
    if len(path) > _MAX_PATH:
        return (path,), _UNKNOWN_EXCESS
    return _split_path(path)


def _split_path(path: str) -> tuple[Path, int]:
    keys = tuple([key for key in path.split("/") if key])
    for index, key in enumerate(keys[:MAX_DEPTH]):
        try:
            check_key(key)
        except InvalidPath:
            return keys, len(keys) - index
    return keys, max(0, len(keys) - MAX_DEPTH)


_split_short_path = short_cache(4096)(_split_path)


MAX_STRING: Final = 10 * 1_048_576
"""Characters of a string that an expression makes."""
COMPARED_BYTE: Final = 256
"""Characters that a byte of the tree counts for when objects are compared: it may be a node."""
LONG_TEXT: Final = 1024
"""Characters of texts that count more in a string method, as much as they take at the worst."""

_FREE_COMPARISON: Final = 4096
_COMPARED_AT_ONCE: Final = 16
"""Characters of a string that count as one when it is compared, at the speed of memory."""

# What a character counts for in a long text, by what takes nanoseconds at the worst.
_SEARCHED: Final = 4
_SEARCHED_FOR_LITTLE: Final = 2
_REPLACED: Final = 6
_SHORT_PART: Final = 5
_FOLDED: Final = 24

_OBJECTS = (dict, list, Subtree)


def auth_member(value: Any, name: str) -> Any:
    """Return a member of `auth` or of a value below it, None if it is missing.

    The only member of a string is `length`.
    """
    if isinstance(value, dict):
        return value.get(name)
    if isinstance(value, str):
        return length(value) if name == "length" else None
    if isinstance(value, list) and name.isascii() and name.isdecimal() and len(name) < 10:
        index = int(name)
        return value[index] if index < len(value) and str(index) == name else None
    return None


def index_name(index: Any) -> str:
    """Return the member name of a computed index."""
    if isinstance(index, str):
        return index
    if not is_number(index):
        raise EvaluationError("An index must be a string or a number.")
    return print_number(index)


def equal(left: Any, right: Any, scope: Scope) -> bool:
    """Return whether two values are equal, without any conversion.

    If objects of the tree have to be read, their size is spent from `scope`.
    """
    left_type = type(left)
    if left_type is str or left_type is bool or left is None:
        if type(right) is left_type:
            if left_type is str and len(left) == len(right):
                spend_comparison(left, scope)
            return bool(left == right)
        return _unequal(right)
    if left_type is int or left_type is float:
        if type(right) is int or type(right) is float:
            return bool(left == right)
        return _unequal(right)
    if left is not NullBound.NULL and not isinstance(left, _OBJECTS):
        raise EvaluationError("== compares values only.")
    if not (isinstance(left, _OBJECTS) and isinstance(right, _OBJECTS)):
        return left is right or _unequal(right)
    return _equal_objects(left, right, scope)


def spend_method(method: Callable[..., Any], texts: list[str], scope: Scope) -> None:
    """Spend what a string method costs that reads all of its texts, target and arguments."""
    characters = sum(map(len, texts))
    if characters > LONG_TEXT:
        if method is contains:
            characters *= _SEARCHED if len(texts[1]) > _SHORT_PART else _SEARCHED_FOR_LITTLE
        elif method is replace:
            characters += (_REPLACED - 1) * (len(texts[0]) + len(texts[1]))
        elif not texts[0].isascii():
            characters *= _FOLDED
    scope.spend(characters)


def spend_comparison(text: str, scope: Scope) -> None:
    """Spend what it costs to compare a string with another; short ones are free."""
    if len(text) > _FREE_COMPARISON:
        scope.spend(len(text) // _COMPARED_AT_ONCE)


def _unequal(right: Any) -> bool:
    """Return False for a value; raise `EvaluationError` for what is not a value."""
    if right is None or isinstance(right, (str, bool, int, float, NullBound, *_OBJECTS)):
        return False
    raise EvaluationError("== compares values only.")


def _equal_objects(left: Any, right: Any, scope: Scope) -> bool:
    """Return whether two objects are equal, without recursion: tokens may be nested deeply."""
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
    """Return the members of an object, or the items of an array by index, without nulls."""
    if isinstance(value, Subtree):
        scope.spend(value.size(scope.budget.characters // COMPARED_BYTE) * COMPARED_BYTE)
        return dict(_bare_members(value.get()))
    items = enumerate(value) if isinstance(value, list) else value.items()
    return {str(key): item for key, item in items if item is not None}


def _bare_members(value: Value) -> list[tuple[str, Any]]:
    """Return the children of a node as JSON without priorities and without arrays."""
    return [(key, _bare(child)) for key, child in members(value)]


def _bare(value: Value) -> Any:
    bare = dict(_bare_members(value))
    if bare:
        return bare
    return value[VALUE] if isinstance(value, dict) else value


def _ordering(name: str, test: Callable[[Any, Any], bool]) -> Callable[[Any, Any], bool]:
    """Return an ordering of numbers and of strings; `name` is for its error."""

    def ordered(left: Any, right: Any) -> bool:
        if is_number(left):
            if is_number(right):
                return test(left, right)
        elif isinstance(left, str) and isinstance(right, str):
            return test(left, right)
        raise EvaluationError(f"{name} compares two numbers or two strings.")

    return ordered


def is_number(value: Any) -> bool:
    """Return whether a value is a number."""
    return type(value) is int or type(value) is float


def add(left: Any, right: Any) -> Any:
    """Add two numbers, or join two strings, one of which may be a number."""
    if is_number(left) and is_number(right):
        return _add_numbers(left, right)
    if isinstance(left, str) or isinstance(right, str):
        return join_bounded(_as_text(left), _as_text(right))
    raise EvaluationError("+ takes numbers and strings.")


def _as_text(value: Any) -> str:
    if isinstance(value, str):
        return value
    if is_number(value):
        return print_number(value)
    raise EvaluationError("+ takes numbers and strings.")


def join_bounded(*pieces: str) -> str:
    """Join strings; raise `EvaluationError` if the result is longer than `MAX_STRING`."""
    if sum(map(len, pieces)) > MAX_STRING:
        raise EvaluationError("The string is too long.")
    return "".join(pieces)


def print_number(number: int | float) -> str:
    """Print a number: integers without a point, not-a-number as NaN."""
    number = _canonical(number)
    if isinstance(number, int):
        return str(number)
    if math.isfinite(number):
        return print_double(number)
    return "NaN" if math.isnan(number) else "Infinity" if number > 0 else "-Infinity"


def _canonical(number: int | float) -> int | float:
    """Return a number as the tree holds it, or infinity or not-a-number, which it cannot hold."""
    if isinstance(number, int) and INT64_LOW <= number <= INT64_HIGH:
        return number
    if isinstance(number, float) and not math.isfinite(number):
        return number
    try:
        return canonical_number(number)
    except OverflowError:
        return math.inf if number > 0 else -math.inf


def _arithmetic(
    name: str, compute: Callable[[Any, Any], int | float]
) -> Callable[[Any, Any], int | float]:
    """Return an operator on numbers; `name` is for its error."""

    def computed(left: Any, right: Any) -> int | float:
        if not (is_number(left) and is_number(right)):
            raise EvaluationError(f"{name} takes numbers.")
        try:
            return _canonical(compute(left, right))
        except (ZeroDivisionError, ValueError):
            return math.nan
        except OverflowError:
            return computed(_canonical(left), _canonical(right))

    return computed


_add_numbers: Final = _arithmetic("+", operator.add)


def _remainder(left: int | float, right: int | float) -> int | float:
    """Return the remainder of a division; it has the sign of the dividend."""
    if isinstance(left, int) and isinstance(right, int):
        remainder = abs(left) % abs(right)
        return -remainder if left < 0 else remainder
    return math.fmod(left, right)


def negate(value: Any) -> int | float:
    """Return a number with its sign changed."""
    if not is_number(value):
        raise EvaluationError("- takes a number.")
    return _canonical(-value)


EQUALITIES: Final[Mapping[str, bool]] = {"==": True, "===": True, "!=": False, "!==": False}
"""The operators that compare by `equal`, and its result that makes them true."""
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
    """Return the number of UTF-16 units."""
    return len(text) if text.isascii() else len(text.encode("utf-16-le", "surrogatepass")) // 2


def contains(text: str, part: str) -> bool:
    """Return whether a string has a part."""
    return part in text


def replace(text: str, old: str, new: str) -> str:
    """Replace every occurrence of a plain string; an empty one changes nothing."""
    if not old:
        return text
    if len(new) > len(old) and len(text) * len(new) > MAX_STRING:
        grown = len(text) + text.count(old) * (len(new) - len(old))
        if grown > MAX_STRING:
            raise EvaluationError("The string is too long.")
    return text.replace(old, new)
