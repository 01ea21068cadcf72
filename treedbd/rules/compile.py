"""The compiler: from the type-checked syntax tree of a rule to closures, and what these call.

Theory of operation. Each node becomes a function of a `Scope`, which calls the functions of its
children. No code is generated as text, and no name is looked up while a rule runs: variables,
members, methods and operators are bound here, once. A chain becomes one function with a loop, so
its length uses no stack; the grammar bounds the depth of the rest.

The compiler walks the tree and puts the closures together. For each form of node there is one
factory, which takes the functions of the children of a node and returns the function of the node.
Frequent forms (a member of `auth`, a comparison with null, a child named by a literal) have
factories or branches of their own, for speed only.

The closures do not repeat what the type checker has proved, for example that conditions are
booleans. A Value may be of any type, so a closure that needs a string or a number checks it, and
raises an `EvaluationError`. A capture is a key of the path that the rule is evaluated at, so it is
read by its index there.

What the closures call comes first: snapshots of nodes, operators, and the methods of strings.

A snapshot is what `data`, `newData` and `root` are while a rule is evaluated: a view and a path.
Nothing is read to make one. A method reads only what it needs: `exists()` and `isString()` the type
of the node, the value of a leaf the node alone; the value of a container is a `Subtree`, which is
read only when two of them are compared. A path that no node can have (`child('a.b')`) names an
absent node, and is not an error. It is not passed to the view, because views rely on valid paths.
A node that literals and captures name, as `root.child('users').child($uid)` does, is found at once
(`_Chain`), with the same result, cost and reads as step by step.

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
from functools import cache, lru_cache
from itertools import count
from operator import attrgetter, itemgetter
from typing import Any, Final, NamedTuple, TypeAlias

from treedbd.caches import bounded_cache
from treedbd.limits import MAX_DEPTH, MAX_KEY_BYTES
from treedbd.loop import Steps, run_beside
from treedbd.rules import grammar
from treedbd.rules.context import EvaluationError, NullBound, Scope, Subtree
from treedbd.rules.regex import Regex
from treedbd.rules.typecheck import TypeTable
from treedbd.tree.path import check_key
from treedbd.tree.types import CONTAINER, ROOT, VALUE, Container, InvalidPath, Path, Value, View
from treedbd.tree.value import INT64_HIGH, INT64_LOW, canonical_number, members, print_double

_MAX_PATH = MAX_DEPTH * (MAX_KEY_BYTES + 1)
_UNKNOWN_EXCESS: Final = 1 << 30
"""More keys than any path has, so no `parent()` leads back to a node."""
CACHED_PATH: Final = 256
"""Characters of the longest path that is split once for all requests."""


_NUMBERS: Final[frozenset[Any]] = frozenset({int, float})
_STRINGS: Final[frozenset[Any]] = frozenset({str})
_BOOLEANS: Final[frozenset[Any]] = frozenset({bool})
_ANY_NODE: Final = _NUMBERS | _STRINGS | _BOOLEANS | {Container}
"""What `type_at` of a view returns for a node that exists."""


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
        return len(path) <= MAX_DEPTH and self.view.type_at(path) is not None

    def val(self) -> Any:
        """Return the leaf, a `Subtree` for a container, None for an absent node."""
        if self.excess:
            return None
        value = self.view.peek(self.path)
        return Subtree(self.view, self.path) if value is CONTAINER else value

    def exists(self) -> bool:
        """Return whether the node exists."""
        return not self.excess and self.view.type_at(self.path) in _ANY_NODE

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
        return not self.excess and self.view.type_at(self.path) in _NUMBERS

    def is_string(self) -> bool:
        """Return whether the value is a string."""
        return not self.excess and self.view.type_at(self.path) in _STRINGS

    def is_boolean(self) -> bool:
        """Return whether the value is true or false."""
        return not self.excess and self.view.type_at(self.path) in _BOOLEANS


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


_split_short_path = bounded_cache(4096)(_split_path)


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


_ORDERS: Final[Mapping[str, Callable[[Any, Any], bool]]] = {
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}


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
    **{name: _ordering(name, test) for name, test in _ORDERS.items()},
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


Evaluate: TypeAlias = Callable[[Scope], Any]
"""Returns the value of a node in a scope; raises `EvaluationError` if it has none."""

_QUERY_FACTS: Final = {
    "orderByKey": "is_ordered_by_key",
    "orderByPriority": "order_by_priority",
    "orderByValue": "order_by_value",
    "orderByChild": "order_by_child",
    "startAt": "start_at",
    "endAt": "end_at",
    "equalTo": "equal_to",
    "limitToFirst": "limit_to_first",
    "limitToLast": "limit_to_last",
    "where": "has_where",
}
_VARIABLES: Final[Mapping[str, Evaluate]] = {
    "auth": lambda scope: scope.auth,
    "now": lambda scope: scope.now,
    "query": lambda scope: scope.query,
    "root": lambda scope: Snapshot(scope.before, ROOT),
    "data": lambda scope: Snapshot(scope.before, scope.path),
    "newData": lambda scope: Snapshot(scope.after, scope.path),
}
_SNAPSHOT_METHODS_WITHOUT_ARGUMENTS: Final[Mapping[str, Callable[[Snapshot], Any]]] = {
    "val": Snapshot.val,
    "parent": Snapshot.parent,
    "exists": Snapshot.exists,
    "getPriority": Snapshot.get_priority,
    "isNumber": Snapshot.is_number,
    "isString": Snapshot.is_string,
    "isBoolean": Snapshot.is_boolean,
}
# What type a method tests whether a node has.
_TYPES_TESTED: Final[Mapping[Callable[[Snapshot], Any], frozenset[Any]]] = {
    Snapshot.exists: _ANY_NODE,
    Snapshot.has_children: frozenset({Container}),
    Snapshot.is_number: _NUMBERS,
    Snapshot.is_string: _STRINGS,
    Snapshot.is_boolean: _BOOLEANS,
}
# All string methods but `matches`.
STRING_FUNCTIONS: Final[Mapping[str, Callable[..., Any]]] = {
    "contains": contains,
    "beginsWith": str.startswith,
    "endsWith": str.endswith,
    "toLowerCase": str.lower,
    "toUpperCase": str.upper,
    "replace": replace,
}
_COMPARISONS: Final = frozenset({str.startswith, str.endswith})
"""They count as `==` does, since they compare at the speed of memory."""
_MATCHED_BESIDE: Final = 65_536
"""Bytes of a text that is matched in another thread, if the caller may wait for it."""
_PATH_WEIGHT: Final = 16
"""Characters that a character of a long path counts for: it may be a key."""


_TREES: Final = ("root", "data", "newData")
"""The variables that are nodes of a tree."""


class _Chain(NamedTuple):
    """A node named by literals and captures, from a variable on.

    It is found without a snapshot of each node on the way to it. `keys` are those below the
    variable, a capture by its index in the path of the rule.
    """

    variable: str
    keys: tuple[str | int, ...] = ()

    @property
    def is_after(self) -> bool:
        """Whether it is a node of the tree after the operation."""
        return self.variable == "newData"

    @property
    def is_here(self) -> bool:
        """Whether it is the node at the place of the rule."""
        return not self.keys and self.variable != "root"

    def below(self, keys: tuple[str | int, ...]) -> _Chain | None:
        """Return the chain that goes on with these keys; None if no node is as deep."""
        chain = _Chain(self.variable, self.keys + keys)
        return chain if len(chain.keys) <= MAX_DEPTH else None

    def compile(self) -> Callable[[Scope], Path | None]:
        """Return what finds the path of the node; None if no node is as deep."""
        is_root = self.variable == "root"
        literals = tuple([key for key in self.keys if isinstance(key, str)])
        captures = [key for key in self.keys if isinstance(key, int)]
        if not captures:
            return (lambda _: literals) if is_root else (lambda scope: _join(scope.path, literals))
        # The keys are picked from the literals and, after them, the path of the rule.
        number, first = count(), len(literals)
        picked = [first + key if isinstance(key, int) else next(number) for key in self.keys]
        (at, *others) = picked
        pick = itemgetter(at, *others) if others else itemgetter(slice(at, at + 1))

        def find(scope: Scope) -> Path | None:
            at = scope.path
            for index in captures:
                if len(at[index]) > CACHED_PATH:
                    _as_path(at[index], scope)
            keys: Path = pick(literals + at)
            return keys if is_root else _join(at, keys)

        return find


def _join(path: Path, keys: Path) -> Path | None:
    """Return the path of a node at keys below another one; None if no node is as deep."""
    joined = path + keys
    return joined if len(joined) <= MAX_DEPTH else None


def compile_rule(
    expression: grammar.Expression, types: TypeTable, captures: Mapping[str, int]
) -> Steps[Callable[[Scope], bool]]:
    """Compile a rule that has been type-checked.

    `captures` maps the names of captures to their indices in the path of the rule.
    """
    compiler = _Compiler(types, captures)
    return grammar.fold(compiler.visit, compiler.leaves, expression)


class _Compiler:
    """The compilation of one expression; each method returns the closure of one form of node."""

    def __init__(self, types: TypeTable, captures: Mapping[str, int]) -> None:
        self.types = types
        self.captures = captures
        self.chains = {_VARIABLES[name]: _Chain(name) for name in _TREES}
        self.auth_names: dict[Evaluate, tuple[str, ...]] = {_VARIABLES["auth"]: ()}
        self.leaves: Final[Mapping[type[grammar.AstNode], Callable[[Any], Evaluate]]] = {
            grammar.Literal: self.literal,
            grammar.Pattern: self.not_a_value,
            grammar.ListLiteral: self.not_a_value,
            grammar.Variable: self.variable,
        }

    def visit(self, node: grammar.Expression) -> grammar.Visit[Evaluate]:
        return _VISITORS[type(node)](self, node)

    def literal(self, node: grammar.Literal) -> Evaluate:
        value = node.value
        return (lambda _: value) if isinstance(value, str) else _constant(value)

    def not_a_value(self, _: grammar.Pattern | grammar.ListLiteral) -> Evaluate:
        return _fail

    def variable(self, node: grammar.Variable) -> Evaluate:
        if node.name in self.captures:
            return _capture(self.captures[node.name])
        return _VARIABLES[node.name]

    def member(self, node: grammar.Member) -> grammar.Visit[Evaluate]:
        result_type = self.types[node]
        if result_type is grammar.Type.METHOD:
            return _fail
        target: Evaluate = yield node.target
        if self.types[node.target] is grammar.Type.QUERY:
            fact = attrgetter(_QUERY_FACTS[node.name])
            return lambda scope: fact(target(scope))
        if result_type is grammar.Type.AUTH:
            return self.auth_member(target, node.name)
        return _length_of(target)

    def auth_member(self, target: Evaluate, name: str) -> Evaluate:
        names = self.auth_names.get(target)
        if names is None:
            return lambda scope: auth_member(target(scope), name)
        names = (*names, name)
        evaluate = _read_auth(names)
        self.auth_names[evaluate] = names
        return evaluate

    def index(self, node: grammar.Index) -> grammar.Visit[Evaluate]:
        target, index = yield from grammar.each((node.target, node.index))
        return lambda scope: auth_member(target(scope), index_name(index(scope)))

    def call(self, node: grammar.Call) -> grammar.Visit[Evaluate]:
        callee = node.callee
        assert isinstance(callee, grammar.Member)  # noqa: S101 - the type checker ensures it
        target: Evaluate = yield callee.target
        if self.types[callee.target] is grammar.Type.SNAPSHOT:
            return (yield from self.snapshot_call(target, callee.name, node.arguments))
        if callee.name == "matches":
            (pattern,) = node.arguments
            assert isinstance(pattern, grammar.Pattern)  # noqa: S101 - the type checker ensures it
            return match_regex(target, pattern.regex)
        arguments = yield from grammar.each(node.arguments)
        method = STRING_FUNCTIONS[callee.name]
        return call_string_method(target, method, arguments)

    def snapshot_call(
        self, target: Evaluate, name: str, arguments: tuple[grammar.Expression, ...]
    ) -> grammar.Visit[Evaluate]:
        if name == "hasChildren":
            return (yield from self.has_children(target, arguments))
        chain = self.chains.get(target)
        if not arguments:
            method = _SNAPSHOT_METHODS_WITHOUT_ARGUMENTS[name]
            return _call_snapshot_method(target, chain, method)
        (path,) = yield from grammar.each(arguments)
        below = None if chain is None else self.chain_below(chain, arguments[0])
        if name == "hasChild":
            literal = _literal_string(arguments[0]) or ""
            if below is not None and len(literal) <= CACHED_PATH:  # a longer one costs something
                return _test_type(below, _ANY_NODE)
            return lambda scope: target(scope).has_child(_as_path(path(scope), scope))
        child = _call_child(target, arguments[0], path)
        if below is not None:
            self.chains[child] = below
        return child

    def chain_below(self, chain: _Chain, argument: grammar.Expression) -> _Chain | None:
        """Return the chain to a child; None if it is not named by a literal or a capture."""
        if isinstance(argument, grammar.Variable) and argument.name in self.captures:
            return chain.below((self.captures[argument.name],))
        known = _literal_string(argument)
        keys, excess = ((), 1) if known is None else split_path(known)
        return None if excess else chain.below(keys)

    def has_children(
        self, target: Evaluate, arguments: tuple[grammar.Expression, ...]
    ) -> grammar.Visit[Evaluate]:
        if not arguments:
            return _call_snapshot_method(target, self.chains.get(target), Snapshot.has_children)
        (names,) = arguments
        assert isinstance(names, grammar.ListLiteral)  # noqa: S101 - the type checker ensures it
        literals = [_literal_string(item) for item in names.items]
        known = [literal for literal in literals if literal is not None]
        if len(known) == len(literals):
            chain = self.chains.get(target)
            return _call_has_known_children(target, chain, known)
        return _call_has_children(target, (yield from grammar.each(names.items)))

    def prefix(self, node: grammar.Prefix) -> grammar.Visit[Evaluate]:
        operand: Evaluate = yield node.operand
        if node.operator == "!":
            return lambda scope: not operand(scope)
        return lambda scope: negate(operand(scope))

    def logical(self, node: grammar.Logical) -> grammar.Visit[Evaluate]:
        return _join_terms(node.operator == "||", (yield from grammar.each(node.terms)))

    def binary(self, node: grammar.Binary) -> grammar.Visit[Evaluate]:
        terms = yield from grammar.each(node.terms)
        if len(terms) == 2:
            _, right = node.terms
            expected = EQUALITIES.get(node.operators[0])
            index = self.captures.get(right.name) if isinstance(right, grammar.Variable) else None
            if expected is not None and index is not None:
                return _compare_with_capture(terms[0], index, expected)
            return _apply_operator(node, *terms)
        return _apply_operators(node.operators, terms)

    def conditional(self, node: grammar.Conditional) -> grammar.Visit[Evaluate]:
        conditions = yield from grammar.each(condition for condition, _ in node.arms)
        results = yield from grammar.each(result for _, result in node.arms)
        otherwise: Evaluate = yield node.otherwise
        return _choose(list(zip(conditions, results, strict=True)), otherwise)


_VISITORS: Final[
    Mapping[type[grammar.AstNode], Callable[[_Compiler, Any], grammar.Visit[Evaluate]]]
] = {
    grammar.Member: _Compiler.member,
    grammar.Index: _Compiler.index,
    grammar.Call: _Compiler.call,
    grammar.Prefix: _Compiler.prefix,
    grammar.Logical: _Compiler.logical,
    grammar.Binary: _Compiler.binary,
    grammar.Conditional: _Compiler.conditional,
}


def _fail(_: Scope) -> Any:
    """Evaluate what is not a value: a regular expression, a method that is not called."""
    raise EvaluationError("This is not a value.")


def _require_string(value: Any) -> str:
    """Return a string; raise `EvaluationError` for anything else."""
    if type(value) is not str:
        raise EvaluationError("A string was expected.")
    return value


def _as_path(value: Any, scope: Scope) -> str:
    """Return a string that is used as a path; spend its characters if it has to be split."""
    path = _require_string(value)
    if len(path) > CACHED_PATH:
        scope.spend(len(path) * _PATH_WEIGHT)
    return path


def _literal_string(node: grammar.Expression) -> str | None:
    """Return the value of a string literal, None for any other node."""
    return node.value if isinstance(node, grammar.Literal) and isinstance(node.value, str) else None


@lru_cache(maxsize=1024, typed=True)
def _constant(value: bool | float | None) -> Evaluate:
    """Make a literal other than a string; equal ones share a function, because chains have many."""
    return lambda _: value


@cache
def _capture(index: int) -> Evaluate:
    """Make a capture, which is a key of the path."""
    return lambda scope: scope.path[index]


def _read_auth(names: tuple[str, ...]) -> Evaluate:
    """Make `auth.a.b`, of any depth."""

    def evaluate(scope: Scope) -> Any:
        value = scope.auth
        for name in names:
            value = value.get(name) if type(value) is dict else auth_member(value, name)
        return value

    return evaluate


def _call_snapshot_method(
    target: Evaluate, chain: _Chain | None, method: Callable[[Snapshot], Any]
) -> Evaluate:
    """Make a call of a snapshot method without arguments; `chain` is that to its node, if any."""
    if chain is not None and method is Snapshot.val:
        return _read_value(chain)
    types = _TYPES_TESTED.get(method)
    if chain is None or types is None:
        return lambda scope: method(target(scope))
    return _test_type(chain, types)


def _test_type(chain: _Chain, types: frozenset[Any]) -> Evaluate:
    """Make a test whether the type of a node is one of some."""
    is_after = chain.is_after
    if not chain.keys and chain.variable != "root":
        return lambda scope: (
            (scope.after if is_after else scope.before).type_at(scope.path) in types
        )
    find = chain.compile()

    def evaluate(scope: Scope) -> bool:
        path = find(scope)
        view = scope.after if is_after else scope.before
        return path is not None and view.type_at(path) in types

    return evaluate


def _read_value(chain: _Chain) -> Evaluate:
    """Make `val()` of a node: the leaf, a `Subtree` for a container, None for an absent node."""
    is_after, is_here, find = chain.is_after, chain.is_here, chain.compile()

    def evaluate(scope: Scope) -> Any:
        path = scope.path if is_here else find(scope)
        if path is None:
            return None
        view = scope.after if is_after else scope.before
        value = view.peek(path)
        return Subtree(view, path) if value is CONTAINER else value

    return evaluate


def _call_has_known_children(target: Evaluate, chain: _Chain | None, names: list[str]) -> Evaluate:
    """Make `hasChildren` of literals, which are split here, once."""
    paths = [split_path(name) for name in names]
    if chain is not None and not any(excess for _, excess in paths):
        is_after, find = chain.is_after, chain.compile()
        below = [keys for keys, _ in paths]

        def evaluate_at(scope: Scope) -> bool:
            path = find(scope)
            view = scope.after if is_after else scope.before
            for keys in below:
                child = None if path is None else _join(path, keys)
                if child is None or view.type_at(child) is None:
                    return False
            return True

        return evaluate_at

    def evaluate(scope: Scope) -> bool:
        snapshot = target(scope)
        for keys, excess in paths:  # noqa: SIM110 - a generator would cost more than the test
            if not snapshot.has(keys, excess):
                return False
        return True

    return evaluate


def _call_has_children(target: Evaluate, names: list[Evaluate]) -> Evaluate:
    """Make `hasChildren` of computed names; all are computed before the first child is read."""

    def evaluate(scope: Scope) -> bool:
        snapshot = target(scope)
        computed = [_as_path(name(scope), scope) for name in names]
        return all(snapshot.has_child(name) for name in computed)

    return evaluate


def _call_child(target: Evaluate, argument: grammar.Expression, path: Evaluate) -> Evaluate:
    """Make `child(path)`; `argument` is the node that `path` was compiled from."""
    known = _literal_string(argument)
    if known is not None:
        keys, excess = split_path(known)
        if target is _VARIABLES["root"]:
            root_excess = max(excess, len(keys) - MAX_DEPTH)
            return lambda scope: Snapshot(scope.before, keys, root_excess)
        return lambda scope: target(scope).descend(keys, excess)
    return lambda scope: target(scope).child(_as_path(path(scope), scope))


def match_regex(target: Evaluate, regex: Regex) -> Evaluate:
    """Make `matches(/regex/)`."""
    search, weight, worst_weight = regex.search, regex.weight, regex.worst_weight

    def evaluate(scope: Scope) -> bool:
        text = _require_string(target(scope))
        scope.spend(len(text) * (worst_weight if scope.budget.at_once else weight))
        encoded = text.encode("utf-8", "surrogatepass")
        if len(encoded) > _MATCHED_BESIDE:
            return run_beside(lambda: regex.search_beside(encoded)) is not None
        return search(encoded) is not None

    return evaluate


def call_string_method(
    target: Evaluate, method: Callable[..., Any], arguments: list[Evaluate]
) -> Evaluate:
    """Make a call of a string method; target and arguments must all be strings."""
    if method in _COMPARISONS:
        (argument,) = arguments

        def compare(scope: Scope) -> Any:
            text, part = _require_string(target(scope)), _require_string(argument(scope))
            spend_comparison(part, scope)
            return method(text, part)

        return compare
    operands = (target, *arguments)

    def evaluate(scope: Scope) -> Any:
        texts = [_require_string(operand(scope)) for operand in operands]
        spend_method(method, texts, scope)
        return _count(scope, method(*texts))

    return evaluate


def _length_of(target: Evaluate) -> Evaluate:
    """Make `target.length` of a string."""

    def evaluate(scope: Scope) -> int:
        text = target(scope)
        if type(text) is str and text.isascii():
            return len(text)
        scope.spend(len(_require_string(text)))
        return length(text)

    return evaluate


def _count(scope: Scope, result: Any) -> Any:
    """Return a result; spend its characters if it is a string."""
    if type(result) is str:
        scope.spend(len(result))
    return result


def _join_terms(stops_at: bool, terms: list[Evaluate]) -> Evaluate:
    """Make `&&` or `||` of booleans: terms after the first that is `stops_at` are not evaluated."""
    if len(terms) == 2:
        left, right = terms
        if stops_at:
            return lambda scope: left(scope) or right(scope)
        return lambda scope: left(scope) and right(scope)

    def evaluate(scope: Scope) -> Any:
        for term in terms:
            if term(scope) is stops_at:
                return stops_at
        return not stops_at

    return evaluate


def _apply_operator(node: grammar.Binary, left: Evaluate, right: Evaluate) -> Evaluate:
    """Make a binary operation of two operands."""
    left_node, right_node = node.terms
    (operator,) = node.operators
    is_null = isinstance(right_node, grammar.Literal) and right_node.value is None
    # A conditional may yield what is not a value, for which `equal` raises.
    if is_null and operator[0] in "=!" and not isinstance(left_node, grammar.Conditional):
        return _compare_with_null(left, EQUALITIES[operator])
    expected = EQUALITIES.get(operator)
    if expected is not None:
        return _compare(left, right, expected)
    operate = BINARY[operator]
    if operator == "+":
        return lambda scope: _count(scope, operate(left(scope), right(scope)))
    if isinstance(right_node, grammar.Literal):
        return _operate_on_literal(operator, left, right_node.value)
    operation = _operation(operator)
    return lambda scope: operation(left(scope), right(scope), scope)


def _compare_with_null(left: Evaluate, expected: bool) -> Evaluate:
    """Make `== null` or `!= null`."""
    if left is _VARIABLES["auth"]:
        return lambda scope: (scope.auth is None) is expected
    return lambda scope: (left(scope) is None) is expected


def _compare(left: Evaluate, right: Evaluate, expected: bool) -> Evaluate:
    """Make `==` or `!=`; two short strings, which cost nothing, are compared here."""

    def evaluate(scope: Scope) -> bool:
        one, other = left(scope), right(scope)
        if type(one) is str and type(other) is str and len(one) <= _FREE_COMPARISON:
            return (one == other) is expected
        return equal(one, other, scope) is expected

    return evaluate


def _compare_with_capture(left: Evaluate, index: int, expected: bool) -> Evaluate:
    """Make `==` or `!=` of a capture, such as `auth.uid == $uid`."""

    def evaluate(scope: Scope) -> bool:
        one, key = left(scope), scope.path[index]
        if type(one) is str and len(one) <= _FREE_COMPARISON:
            return (one == key) is expected
        return equal(one, key, scope) is expected

    return evaluate


def _operate_on_literal(operator: str, left: Evaluate, value: Any) -> Evaluate:
    """Make an operation whose right operand is a literal; two numbers are ordered here."""
    operate = BINARY[operator]
    order = _ORDERS.get(operator)
    if order is None or not is_number(value):
        return lambda scope: operate(left(scope), value)
    test = order

    def evaluate(scope: Scope) -> Any:
        one = left(scope)
        if type(one) is int or type(one) is float:
            return test(one, value)
        return operate(one, value)  # which raises

    return evaluate


def _apply_operators(operators: tuple[str, ...], terms: list[Evaluate]) -> Evaluate:
    """Make a chain of binary operations, evaluated from the left."""
    first, *others = terms
    rest = list(zip(map(_operation, operators), others, strict=True))

    def evaluate(scope: Scope) -> Any:
        value = first(scope)
        for operate, term in rest:
            value = _count(scope, operate(value, term(scope), scope))
        return value

    return evaluate


@cache
def _operation(operator: str) -> Callable[[Any, Any, Scope], Any]:
    """Return the function of an operator."""
    expected = EQUALITIES.get(operator)
    if expected is not None:
        return lambda left, right, scope: equal(left, right, scope) is expected
    operate = BINARY[operator]
    if operator[0] in "<>":
        return lambda left, right, scope: _order(operate, left, right, scope)
    return lambda left, right, _: operate(left, right)


def _order(operate: Callable[[Any, Any], Any], left: Any, right: Any, scope: Scope) -> Any:
    """Return the result of an ordering; two strings spend what their comparison costs."""
    if type(left) is str and type(right) is str:
        spend_comparison(left, scope)
    return operate(left, right)


def _choose(arms: list[tuple[Evaluate, Evaluate]], otherwise: Evaluate) -> Evaluate:
    """Make a conditional; only the chosen branch is evaluated."""

    def evaluate(scope: Scope) -> Any:
        for condition, result in arms:
            if condition(scope):
                return result(scope)
        return otherwise(scope)

    return evaluate
