"""From a parsed rules document to a tree of rule nodes, type-checked and compiled.

This module knows which members a rules document may have. It finds the first error in the order of
the text and gives it its line and column.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

from treedbd.limits import RulesLimits
from treedbd.rules.ast import Variable
from treedbd.rules.compile import compile_rule
from treedbd.rules.document import ArrayItem, Item, ObjectItem, ScalarItem, Source, TextItem
from treedbd.rules.errors import ExpressionError
from treedbd.rules.evaluate import READ, VALIDATE, WRITE, Rule, RuleNode
from treedbd.rules.grammar import parse_expression
from treedbd.rules.typecheck import typecheck_rule
from treedbd.tree.errors import InvalidPath
from treedbd.tree.path import check_key
from treedbd.tree.types import Path

TOP: Final = "rules"
INDEX_ON: Final = ".indexOn"

_RULE_KINDS: Final = frozenset({READ, WRITE, VALIDATE})
_FORBIDDEN = re.compile(r"[.#$/\[\]]")
_BAD_KEY: Final = 'String can\'t contain ".", "#", "$", "/", "[", or "]"'
_BAD_RULE: Final = "Invalid rule expression.  Expected 'true', 'false', or an expression string."
_BAD_INDEX: Final = "Invalid indexOn expression. Must be either a string or an array of strings"


def build_rules(source: Source, document: Item, limits: RulesLimits) -> RuleNode:
    """Return the root of the rules in a document; raise `InvalidRules`."""
    if not isinstance(document, ObjectItem):
        source.fail(document.offset, "Expected '{'.")
    if not document.members or document.members[0][0].value != TOP:
        offset = document.members[0][0].offset if document.members else document.end
        source.fail(offset, f"Expected '{TOP}' property.")
    if len(document.members) > 1:
        extra = document.members[1][0]
        source.fail(extra.offset, f"Unexpected property '{extra.value}'.")
    return _Builder(source, limits).node(document.members[0][1], ())


class _Builder:
    """The build of one document; `names` are the keys and captures from the root to a node."""

    def __init__(self, source: Source, limits: RulesLimits) -> None:
        self.source = source
        self.limits = limits

    def node(self, item: Item, names: Path) -> RuleNode:
        if not isinstance(item, ObjectItem):
            self.source.fail(item.offset, "Expected '{'.")
        rules: dict[str, Rule] = {}
        children: dict[str, RuleNode] = {}
        index_on: frozenset[str] = frozenset()
        for key, value in item.members:
            name = key.value
            if name in _RULE_KINDS:
                rules[name] = self.rule(name, value, names)
            elif name == INDEX_ON:
                index_on = self.index_on(value)
            else:
                self.check_child(key, value, names, children)
                children[name] = self.node(value, (*names, name))
        capture = next((name for name in children if name.startswith("$")), "")
        below = children.pop(capture, None)
        return RuleNode(rules, index_on, children, below, capture)

    def check_child(
        self, key: TextItem, value: Item, names: Path, siblings: Mapping[str, RuleNode]
    ) -> None:
        if not isinstance(value, ObjectItem):
            self.source.fail(value.offset, "Expected '{'.")
        name = key.value
        is_capture = name.startswith("$")
        bare = name[1:] if is_capture else name
        if _FORBIDDEN.search(bare) or name == "$":
            self.source.fail(key.offset, _BAD_KEY)
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
            self.source.fail(key.offset, text)
        if name in names:
            self.source.fail(key.offset, f"The variable '{name}' is already bound above.")

    def rule(self, kind: str, value: Item, names: Path) -> Rule:
        location = "/".join((TOP, *names, kind))
        if isinstance(value, ScalarItem) and isinstance(value.value, bool):
            constant = value.value
            position = self.source.position(value.offset)
            return Rule(kind, location, position, lambda _: constant, constant=constant)
        if not isinstance(value, TextItem):
            self.source.fail(value.offset, _BAD_RULE)
        captures = {name: index for index, name in enumerate(names) if name.startswith("$")}
        try:
            expression = parse_expression(value.value, self.limits)
            types = typecheck_rule(expression, captures, for_read=kind == READ)
        except ExpressionError as error:
            self.source.fail(value.offset_of(error.offset), error.text)
        test = compile_rule(expression, types, captures)
        reads_time = any(isinstance(node, Variable) and node.name == "now" for node in types)
        return Rule(kind, location, self.source.position(value.offset_of(0)), test, reads_time)

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
