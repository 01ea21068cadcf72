"""From a parsed rules document to a tree of rule nodes, type-checked and compiled.

This module knows which members a rules document may have. It finds the first error in the order of
the text and gives it its line and column, and collects the warnings. An expression that a document
repeats is compiled once for all places where its captures mean the same.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from typing import Final, TypeAlias

import attrs

from treedbd.limits import RulesLimits
from treedbd.loop import Steps
from treedbd.rules.compile import compile_rule
from treedbd.rules.context import KnownScope, Scope
from treedbd.rules.document import (
    ArrayItem,
    ExpressionError,
    Item,
    ObjectItem,
    RulesWarning,
    ScalarItem,
    Source,
    TextItem,
    suggest,
)
from treedbd.rules.evaluate import READ, VALIDATE, WRITE, Rule, RuleNode
from treedbd.rules.grammar import Binary, Literal, Member, Pattern, Type, Variable, parse_expression
from treedbd.rules.operators import EQUALITIES
from treedbd.rules.partial import compile_partial
from treedbd.rules.typecheck import TypeTable, typecheck_rule
from treedbd.tree.path import check_key
from treedbd.tree.types import InvalidPath, Path

TOP: Final = "rules"
INDEX_ON: Final = ".indexOn"

_RULE_KINDS: Final = frozenset({READ, WRITE, VALIDATE})
_DOTTED: Final = (READ, WRITE, VALIDATE, INDEX_ON)
_FORBIDDEN = re.compile(r"[.#$/\[\]]")
_BAD_KEY: Final = 'String can\'t contain ".", "#", "$", "/", "[", or "]"'
_BAD_RULE: Final = "Invalid rule expression.  Expected 'true', 'false', or an expression string."
_ANCHORED_BAR: Final = (
    "^ and $ bind the whole pattern, not only the alternative beside them: write brackets around "
    "the alternatives, as in /^(a|b)$/."
)
_BAD_INDEX: Final = "Invalid indexOn expression. Must be either a string or an array of strings"


_AROUND: Final = 'Put the rules into {"rules": {…}}.'
_NESTED: Final = "Write a path as nodes within each other."
_RULE_WITHOUT_NODE: Final = 'A key has an object of rules, as in {".validate": "…"}.'
_RULE_WITH_CHILDREN: Final = "A rule has no children: write them beside it."
MAX_WARNINGS: Final = 20
"""Warnings of one document that are kept; an author who mends these sees the others."""
_COMPARED: Final[Mapping[Type, str]] = {
    Type.BOOLEAN: "A boolean",
    Type.NUMBER: "A number",
    Type.STRING: "A string",
}
_LIMITS: Final = frozenset({"limitToFirst", "limitToLast"})
_BOUNDS: Final = frozenset({"startAt", "endAt"})
_CHOICES: Final = ("where", "equalTo")
"""What `query` has of the ways to choose children that such a rule forgets most easily."""
_TREES: Final = ("data", "newData", "root")
"""The variables of an expression that are nodes of the tree."""
_NO_INDEX: Final[frozenset[str]] = frozenset()
"""Shared by the nodes without one: a document may have a hundred thousand."""
_MEMBERS_PER_STEP: Final = 16
"""Each may have an expression; a long expression has steps of its own."""

_Captures: TypeAlias = tuple[tuple[str, int], ...]
"""The captures that are bound at a node, with their indices in its path."""


@attrs.frozen
class _Compiled:
    """An expression, compiled; `warnings` and `advice` are offsets into it, and texts."""

    test: Callable[[Scope], bool]
    reads_time: bool
    reads_data: bool
    may_be_true: Callable[[KnownScope], bool] | None
    constant: bool | None
    warnings: tuple[tuple[int, str], ...]
    advice: tuple[tuple[int, str], ...]


def build_rules(
    source: Source, document: Item, limits: RulesLimits
) -> Steps[tuple[RuleNode, tuple[RulesWarning, ...]]]:
    """Return the root of the rules in a document, and the warnings; raise `InvalidRules`."""
    if not isinstance(document, ObjectItem):
        source.fail(document.offset, "Expected '{'.", _AROUND)
    if not document.keys or document.keys[0].value != TOP:
        offset = document.keys[0].offset if document.keys else document.end
        source.fail(offset, f"Expected '{TOP}' property.", _AROUND)
    if len(document.keys) > 1:
        extra = document.keys[1]
        text = f"Unexpected property '{extra.value}'."
        source.fail(extra.offset, text, f"Move it below '{TOP}'.")
    builder = _Builder(source, limits)
    root = yield from builder.node(document.values[0], (), ())
    return root, tuple(builder.warnings)


class _Builder:
    """The build of one document; `names` are the keys and captures from the root to a node."""

    def __init__(self, source: Source, limits: RulesLimits) -> None:
        self.source = source
        self.limits = limits
        self.members = 0
        self.warnings: list[RulesWarning] = []
        self.compiled: dict[tuple[str, str, _Captures], _Compiled] = {}

    def node(self, item: Item, names: Path, captures: _Captures) -> Steps[RuleNode]:
        if not isinstance(item, ObjectItem):
            self.source.fail(item.offset, "Expected '{'.")
        rules: dict[str, Rule] = {}
        children: dict[str, RuleNode] = {}
        index_on = _NO_INDEX
        for key, value in item.members:
            self.members += 1
            if self.members % _MEMBERS_PER_STEP == 0:
                yield
            name = key.value
            if name in _RULE_KINDS:
                rules[name] = yield from self.rule(name, value, names, captures)
            elif name == INDEX_ON:
                index_on = self.index_on(value)
            else:
                self.check_child(key, value, names, children)
                bound = ((name, len(names)),) if name.startswith("$") else ()
                below = (*names, name), captures + bound
                children[name] = yield from self.node(value, *below)
        capture = next((name for name in children if name.startswith("$")), "")
        of_capture = children.pop(capture, None)
        return RuleNode(rules, index_on, children, of_capture, capture)

    def check_child(
        self, key: TextItem, value: Item, names: Path, siblings: Mapping[str, RuleNode]
    ) -> None:
        name = key.value
        if not isinstance(value, ObjectItem):
            hint = suggest(name, _DOTTED)
            if not hint and isinstance(value, TextItem) and not name.startswith("."):
                hint = _RULE_WITHOUT_NODE
            self.source.fail(value.offset, "Expected '{'.", hint)
        is_capture = name.startswith("$")
        bare = name[1:] if is_capture else name
        if _FORBIDDEN.search(bare) or name == "$":
            hint = suggest(name, _DOTTED) if name.startswith(".") else ""
            hint = hint or (_NESTED if "/" in name else "")
            self.source.fail(key.offset, _BAD_KEY, hint)
        try:
            check_key(bare)
        except InvalidPath as error:
            self.source.fail(key.offset, str(error))
        if len(names) >= self.limits.node_depth:
            text = f"Rules are nested deeper than {self.limits.node_depth} levels."
            self.source.fail(key.offset, text)
        if is_capture:
            self.check_capture(key, names, siblings)

    def check_capture(self, key: TextItem, names: Path, siblings: Mapping[str, RuleNode]) -> None:
        name = key.value
        other = next((sibling for sibling in siblings if sibling.startswith("$")), None)
        if other:
            text = f"Cannot have multiple default rules ('{other}' and '{name}')."
            hint = "Keep one of them: it applies to every key without rules of its own."
            self.source.fail(key.offset, text, hint)
        if name in names:
            text = f"The variable '{name}' is already bound above."
            self.source.fail(key.offset, text, "Give this one another name.")

    def rule(self, kind: str, value: Item, names: Path, captures: _Captures) -> Steps[Rule]:
        keys = (TOP, *names)
        if isinstance(value, ScalarItem) and isinstance(value.value, bool):
            constant = value.value
            position = self.source.position(value.offset)
            return Rule(kind, keys, position, lambda _: constant, constant=constant)
        if not isinstance(value, TextItem):
            hint = _RULE_WITH_CHILDREN if isinstance(value, ObjectItem) else ""
            self.source.fail(value.offset, _BAD_RULE, hint)
        position = self.source.position(value.offset_of(0))
        case = (value.value, kind, captures)
        compiled = self.compiled.get(case)
        if compiled is None:
            try:
                compiled = self.compiled[case] = yield from _compile(*case, self.limits)
            except ExpressionError as error:
                self.source.fail(value.offset_of(error.offset), error.text, error.hint)
        for offset, text in compiled.warnings:
            self.warn(value.offset_of(offset), text)
        for offset, text in compiled.advice:
            self.warn(value.offset_of(offset), text, is_advice=True)
        return Rule(
            kind,
            keys,
            position,
            compiled.test,
            compiled.reads_time,
            compiled.constant,
            reads_data=compiled.reads_data,
            may_be_true=compiled.may_be_true,
        )

    def warn(self, offset: int, text: str, *, is_advice: bool = False) -> None:
        if len(self.warnings) < MAX_WARNINGS:
            self.warnings.append(RulesWarning(self.source.position(offset), text, is_advice))

    def index_on(self, value: Item) -> frozenset[str]:
        items = value.items if isinstance(value, ArrayItem) else (value,)
        for item in items:
            if not isinstance(item, TextItem):
                self.source.fail(value.offset, _BAD_INDEX)
        return frozenset(
            "/".join(filter(None, item.value.split("/")))
            for item in items
            if isinstance(item, TextItem)
        )


def _find_unequal(types: TypeTable) -> Iterator[tuple[int, str]]:
    """Return warnings of comparisons that have the same result whatever the values are."""
    for node in types:
        if isinstance(node, Binary) and node.operators[0] in EQUALITIES:
            left, right = types[node.terms[0]], types[node.terms[1]]
            if left is not right and left in _COMPARED and right in _COMPARED:
                text = f"{_COMPARED[left]} is never equal to {_COMPARED[right].lower()}."
                yield node.terms[0].offset, text


def _find_forgotten(types: TypeTable) -> Iterator[tuple[int, str]]:
    """Return advice for a rule that bounds queries in some ways, but not in all.

    One that has a limit and looks at the bounds wants a caller to see certain children only.
    """
    named = {
        node.name: node
        for node in types
        if isinstance(node, Member)
        and isinstance(node.target, Variable)
        and node.target.name == "query"
    }
    forgotten = [f"query.{name}" for name in _CHOICES if name not in named]
    if forgotten and not (_LIMITS.isdisjoint(named) or _BOUNDS.isdisjoint(named)):
        offset = min(node.name_offset for node in named.values())
        yield (
            offset,
            (
                "This rule looks at the limit and the bounds of a query, but not at "
                f"{' and '.join(forgotten)}, by which a caller can choose any children: add "
                "!query.where && query.equalTo == null."
            ),
        )


def _compile(text: str, kind: str, captures: _Captures, limits: RulesLimits) -> Steps[_Compiled]:
    """Compile one expression; raise `ExpressionError`."""
    bound = dict(captures)
    expression = yield from parse_expression(text, limits)
    types = yield from typecheck_rule(expression, bound, for_read=kind == READ)
    test = yield from compile_rule(expression, types, bound)
    may_be_true = None
    if kind == WRITE:
        may_be_true = yield from compile_partial(expression, types, bound)
    names = {node.name for node in types if isinstance(node, Variable)}
    patterns = (node for node in types if isinstance(node, Pattern))
    warnings = (
        *[
            (node.offset + 1 + node.regex.bar, _ANCHORED_BAR)
            for node in patterns
            if node.regex.bar is not None
        ],
        *_find_unequal(types),
    )
    reads_data = not names.isdisjoint(_TREES)
    # The expressions "true" and "false" are as constant as the words themselves.
    value = expression.value if isinstance(expression, Literal) else None
    constant = value if isinstance(value, bool) else None
    advice = tuple(_find_forgotten(types))
    return _Compiled(test, "now" in names, reads_data, may_be_true, constant, warnings, advice)
