"""From a parsed document to a tree of rules, checked and compiled.

A `RuleNode` stands for a node of the data, or, below a capture, for any node there. This module
knows what may stand where in a rules document, finds the first
error in the order of the text, and gives every error its place.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from typing import Final

import attrs

from treedbd.rules.check import check_rule
from treedbd.rules.compile import compile_rule
from treedbd.rules.document import Array, Item, Object, Scalar, Source, Text
from treedbd.rules.evaluation import Scope
from treedbd.rules.expression import Variable
from treedbd.rules.grammar import parse_expression
from treedbd.rules.limits import RulesLimits
from treedbd.rules.refusal import Fault, Position
from treedbd.tree.path import InvalidPath, Path, check_key

TOP: Final = "rules"
READ: Final = ".read"
WRITE: Final = ".write"
VALIDATE: Final = ".validate"
INDEX_ON: Final = ".indexOn"

_RULES: Final = frozenset({READ, WRITE, VALIDATE})
_BANNED = re.compile(r"[.#$/\[\]]")
_BAD_KEY: Final = 'String can\'t contain ".", "#", "$", "/", "[", or "]"'
_BAD_RULE: Final = "Invalid rule expression.  Expected 'true', 'false', or an expression string."
_BAD_INDEX: Final = "Invalid indexOn expression. Must be either a string or an array of strings"


@attrs.frozen(eq=False)
class Rule:
    """One rule, ready to run."""

    kind: str
    location: str
    """Where it stands in the document: `rules/users/$uid/.read`."""
    position: Position
    test: Callable[[Scope], bool]
    """Raises `EvaluationError`."""
    asks_time: bool = False


@attrs.frozen(eq=False)
class RuleNode:
    """The rules for one node, and the rule nodes below it."""

    rules: Mapping[str, Rule]
    index_on: frozenset[str]
    literals: Mapping[str, RuleNode]
    capture: RuleNode | None
    capture_name: str = ""
    read: Rule | None = attrs.field(init=False)
    write: Rule | None = attrs.field(init=False)
    validate: Rule | None = attrs.field(init=False)
    validates_below: bool = attrs.field(init=False)
    """Whether a `.validate` stands anywhere below this node."""

    @read.default
    def _find_read(self) -> Rule | None:
        return self.rules.get(READ)

    @write.default
    def _find_write(self) -> Rule | None:
        return self.rules.get(WRITE)

    @validate.default
    def _find_validate(self) -> Rule | None:
        return self.rules.get(VALIDATE)

    @validates_below.default
    def _find_below(self) -> bool:
        return any(node.validate or node.validates_below for _, node in self.below())

    def child(self, key: str) -> RuleNode | None:
        """Return the rule node for a child: its own where there is one, else the capture's."""
        return self.literals.get(key, self.capture)

    def below(self) -> Iterator[tuple[str, RuleNode]]:
        """Iterate over the rule nodes below with the names they have in the document."""
        yield from self.literals.items()
        if self.capture is not None:
            yield self.capture_name, self.capture


def outline(source: Source, document: Item, limits: RulesLimits) -> RuleNode:
    """Return the root of the rules in a document; raise `InvalidRules`."""
    if not isinstance(document, Object):
        source.refuse(document.offset, "Expected '{'.")
    if not document.members or document.members[0][0].value != TOP:
        at = document.members[0][0].offset if document.members else document.end
        source.refuse(at, f"Expected '{TOP}' property.")
    if len(document.members) > 1:
        extra = document.members[1][0]
        source.refuse(extra.offset, f"Unexpected property '{extra.value}'.")
    return _Outliner(source, limits).node(document.members[0][1], ())


class _Outliner:
    """One walk over one document; `names` are the keys and captures from the root to a node."""

    def __init__(self, source: Source, limits: RulesLimits) -> None:
        self.source = source
        self.limits = limits

    def node(self, item: Item, names: Path) -> RuleNode:
        if not isinstance(item, Object):
            self.source.refuse(item.offset, "Expected '{'.")
        rules: dict[str, Rule] = {}
        children: dict[str, RuleNode] = {}
        index_on: frozenset[str] = frozenset()
        for key, value in item.members:
            name = key.value
            if name in _RULES:
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
        self, key: Text, value: Item, names: Path, siblings: Mapping[str, RuleNode]
    ) -> None:
        if not isinstance(value, Object):
            self.source.refuse(value.offset, "Expected '{'.")
        name = key.value
        is_capture = name.startswith("$")
        bare = name[1:] if is_capture else name
        if _BANNED.search(bare) or name == "$":
            self.source.refuse(key.offset, _BAD_KEY)
        try:
            check_key(bare)
        except InvalidPath as error:
            self.source.refuse(key.offset, str(error))
        if len(names) >= self.limits.node_depth:
            deepest = self.limits.node_depth
            self.source.refuse(key.offset, f"Rules are nested deeper than {deepest} levels.")
        if is_capture:
            self.check_capture(key, names, siblings)

    def check_capture(self, key: Text, names: Path, siblings: Mapping[str, RuleNode]) -> None:
        name = key.value
        other = next((one for one in siblings if one.startswith("$")), None)
        if other:
            text = f"Cannot have multiple default rules ('{other}' and '{name}')."
            self.source.refuse(key.offset, text)
        if name in names:
            self.source.refuse(key.offset, f"The variable '{name}' is already bound above.")

    def rule(self, kind: str, value: Item, names: Path) -> Rule:
        location = "/".join((TOP, *names, kind))
        if isinstance(value, Scalar) and isinstance(value.value, bool):
            verdict = value.value
            return Rule(kind, location, self.source.position(value.offset), lambda _: verdict)
        if not isinstance(value, Text):
            self.source.refuse(value.offset, _BAD_RULE)
        captures = {name: at for at, name in enumerate(names) if name.startswith("$")}
        try:
            expression = parse_expression(value.value, self.limits)
            kinds = check_rule(expression, captures, for_read=kind == READ)
        except Fault as fault:
            self.source.refuse(value.offset_of(fault.at), fault.text)
        test = compile_rule(expression, kinds, captures)
        asks_time = any(isinstance(part, Variable) and part.name == "now" for part in kinds)
        return Rule(kind, location, self.source.position(value.offset_of(0)), test, asks_time)

    def index_on(self, value: Item) -> frozenset[str]:
        items = value.items if isinstance(value, Array) else (value,)
        for item in items:
            if not isinstance(item, Text):
                self.source.refuse(value.offset, _BAD_INDEX)
        return frozenset(
            "/".join(filter(None, item.value.split("/")))
            for item in items
            if isinstance(item, Text)
        )
