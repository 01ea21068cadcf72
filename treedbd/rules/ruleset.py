"""The rules of a project: built from the text of a document, and evaluated for each request.

This is the interface of the package. `parse_rules` makes a `RuleSet` of a document or raises its
errors; `may_read` and `may_write` evaluate the rules for one operation and read nothing but
the view they are given. That an admin is exempt from rules is the concern of callers.

Rights without a view. `may_write_somewhere` returns whether a caller may write anything at all at a
place. `find_read` and `find_write` return the verdict on one operation if no rule on the way to it
reads the data or the time, as for `true`, `auth != null` and `auth.uid === $uid`. It is the verdict
that the whole evaluation has (`evaluate`), without what only other rules need: views, an overlay, a
budget.

Building. From the items of a parsed document comes a tree of rule nodes, each rule type-checked and
compiled. Only this part knows which members a rules document may have. It finds the errors, one at
most in each rule, gives them their lines and columns, and collects the warnings. After an error the
build goes on with what is not affected by it. An expression that a document repeats is compiled
once for all places where its captures mean the same.
"""

from __future__ import annotations

import re
from codecs import BOM_UTF8, BOM_UTF16_BE, BOM_UTF16_LE
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from hashlib import blake2b
from operator import attrgetter
from typing import Any, Final, NoReturn, TypeAlias

import attrs
import orjson

from treedbd.limits import MAX_TTL_S, RulesLimits
from treedbd.loop import Steps, finish, free_in_steps
from treedbd.rules.compile import EQUALITIES, compile_rule
from treedbd.rules.context import (
    AT_ONCE_PART,
    Budget,
    BudgetExceeded,
    Context,
    Dependencies,
    EvaluationError,
    KnownScope,
    MeteredView,
    QueryFacts,
    Recorder,
    Scope,
    TracedRead,
    TracedView,
)
from treedbd.rules.document import (
    ArrayItem,
    ExpressionError,
    InvalidRules,
    Item,
    ObjectItem,
    RulesWarning,
    ScalarItem,
    Source,
    TextItem,
    as_json,
    parse_document,
    parts_of,
    suggest,
)
from treedbd.rules.evaluate import (
    ALLOWED,
    READ,
    TTL,
    VALIDATE,
    WRITE,
    Evaluation,
    Lifetime,
    Rule,
    RuleNode,
    Verdict,
)
from treedbd.rules.expiry import ExpiryRules
from treedbd.rules.grammar import Binary, Literal, Member, Pattern, Type, Variable, parse_expression
from treedbd.rules.partial import compile_partial
from treedbd.rules.typecheck import TypeTable, typecheck_rule, typecheck_ttl
from treedbd.rules.volatile import MAX_HZ, Volatile, VolatileBranch, VolatilePaths
from treedbd.tree.overlay import Overlay
from treedbd.tree.path import check_key
from treedbd.tree.types import Change, InvalidPath, Json, Path, View

DEFAULT_LIMITS: Final = RulesLimits()
MAX_CHANGES_KNOWN: Final = 16
"""Changes of an edit whose verdict `find_write` looks for; more are evaluated with a deadline."""
_NO_CHARACTERS: Final = 0
"""The budget of a verdict without a view: rules that cost anything are evaluated with one."""
_EXTRA_BRACKETS: Final = 8
"""Brackets that a document may have besides its nodes; `_Builder` reports too deep nodes."""

_BYTE_ORDER_MARK: Final = (
    "The text begins with a byte order mark (U+FEFF): save it as UTF-8 without one."
)


IndexedPath: TypeAlias = tuple[str | None, ...]
"""The path of collections that have an index; None is any key."""


def fingerprint_of(text: str) -> str:
    """Return a short hash that identifies the rules with a text."""
    return blake2b(text.encode(), digest_size=8).hexdigest()


@attrs.frozen(eq=False, slots=False)
class RuleSet:
    """The rules of a project; `text` is the document as it was PUT."""

    text: str
    _root: RuleNode = attrs.field(repr=False)
    _limits: RulesLimits = attrs.field(default=DEFAULT_LIMITS, repr=False)
    warnings: tuple[RulesWarning, ...] = ()

    @cached_property
    def fingerprint(self) -> str:
        """A short hash that identifies these rules."""
        return fingerprint_of(self.text)

    @cached_property
    def allows_all_reads(self) -> bool:
        """Whether `.read` is `true` at the root, so no other rule is evaluated for a read."""
        read = self._root.read
        return read is not None and read.constant is True

    @cached_property
    def allows_all_writes(self) -> bool:
        """Whether `.write` is `true` at the root and no rule is a `.validate`."""
        root = self._root
        has_validate = root.validate is not None or root.validates_below
        return root.write is not None and root.write.constant is True and not has_validate

    @cached_property
    def expiry(self) -> ExpiryRules | None:
        """What says when nodes go; None if no rule is a `.ttl`."""
        root = self._root
        return ExpiryRules(root, self._limits.judged_characters) if root.expires_below else None

    def as_json(self) -> Steps[Json]:
        """Return the document as plain JSON, in its order and without comments, in steps."""
        # Parsed again: its items would take more memory than its rules do.
        parsed = [(yield from _parse(Source(self.text), self._limits))]
        found = yield from as_json(parsed[0])
        yield from free_in_steps(parsed, parts_of)
        return found

    def find_read(self, path: Path, auth: Json, query: QueryFacts | None = None) -> bool | None:
        """Return whether a read of `path`, or a query there, is allowed, if rules alone decide it.

        None if that depends on the data or the time, or costs much: then `may_read` decides it.
        """
        node: RuleNode | None = self._root
        depth = 0
        while node is not None:
            rule = node.read
            if rule is not None and rule.constant is not False:
                result = rule.constant or _find_result(rule, auth, path, query)
                if result is not False:
                    return result
            if depth == len(path):
                return False
            node = node.literals.get(path[depth], node.capture)
            depth += 1
        return False

    def find_write(self, changes: Sequence[Change], auth: Json) -> bool | None:
        """Return whether a write is allowed, if rules alone decide it; None if `may_write` must."""
        if len(changes) > MAX_CHANGES_KNOWN:
            return None
        free: Path | None = None
        for change in changes:
            if free is None or change.place.path[: len(free)] != free:
                verdict, free = _find_change(self._root, change, auth)
                if verdict is not True:
                    return verdict
        return True

    def may_read(
        self, path: Path, context: Context, *, explain: bool = False, record: bool = False
    ) -> Verdict:
        """Return the verdict on a read of `path`, or on a query there if the context has one.

        With `explain` it has a trace, with `record` the dependencies.
        """
        if self.allows_all_reads and not explain and not record:
            return ALLOWED
        read_paths: set[Path] = set()
        reads: dict[TracedRead, None] | None = {} if explain else None

        def make_scope() -> Scope:
            view, budget = self._reader(context)
            if record:
                view = Recorder(view, read_paths)
            if reads is not None:
                view = TracedView(view, "data", reads)
            return Scope(context, view, view, budget)

        evaluation = Evaluation(context, make_scope, reads=reads)
        allowed = evaluation.allows_read(self._root, path)
        if not record:
            return evaluation.verdict(allowed)
        dependencies = Dependencies(frozenset(read_paths), evaluation.reads_time)
        return evaluation.verdict(allowed, dependencies)

    def may_write(
        self,
        changes: Sequence[Change],
        context: Context,
        *,
        after: View | None = None,
        explain: bool = False,
    ) -> Verdict:
        """Return the verdict on a write: the changes of one edit, placeholders replaced.

        `after` is the tree with the changes, if the caller has a view of it. A write that changes
        nothing (a PATCH without members) is allowed.
        """
        if self.allows_all_writes and not explain:
            return ALLOWED
        reads: dict[TracedRead, None] | None = {} if explain else None

        def make_scope() -> Scope:
            before, budget = self._reader(context)
            changed: View = (
                Overlay(before, changes) if after is None else MeteredView(after, budget)
            )
            if reads is not None:
                before = TracedView(before, "data", reads)
                changed = TracedView(changed, "newData", reads)
            return Scope(context, before, changed, budget)

        evaluation = Evaluation(context, make_scope, reads=reads, shared=len(changes) > 1)
        return evaluation.verdict(evaluation.allows_write(self._root, changes))

    def _reader(self, context: Context) -> tuple[View, Budget]:
        """Return `context.reader`, set by now: the tree before the operation, and the budget."""
        if context.reader is None:
            characters = self._limits.judged_characters
            if context.at_once:
                characters //= AT_ONCE_PART
            budget = Budget(characters, at_once=context.at_once)
            context.reader = MeteredView(context.view, budget, context.kept), budget
        return context.reader

    def rules(self) -> Iterator[Rule]:
        """Iterate over all rules, in the order of the document."""
        found: list[Rule] = []
        pending = [self._root]
        while pending:
            node = pending.pop()
            found.extend(node.rules.values())
            pending.extend(below for _, below in node.below())
        yield from sorted(found, key=attrgetter("position"))

    def may_write_somewhere(self, path: Path, auth: Json) -> bool:
        """Return whether a caller may be allowed any write at or below `path`.

        If not, no write there is allowed to `auth`, whatever the data is and what is written; this
        is known without reading anything.
        """
        return _may_allow_write(
            self._root, KnownScope(auth, path, Budget(self._limits.judged_characters))
        )

    def indexed(self, path: Path) -> frozenset[str]:
        """Return the indexes declared for the children of `path`: child paths and `.value`."""
        node: RuleNode | None = self._root
        for key in path:
            if node is None:
                break
            node = node.child(key)
        return node.index_on if node is not None else frozenset()

    @cached_property
    def declared_indexes(self) -> frozenset[tuple[IndexedPath, str]]:
        """All indexes that the rules declare: paths, None for any key, each with a name."""
        found: set[tuple[IndexedPath, str]] = set()
        pending: list[tuple[IndexedPath, RuleNode]] = [((), self._root)]
        while pending:
            path, node = pending.pop()
            found.update((path, name) for name in node.index_on)
            pending += [((*path, key), child) for key, child in node.literals.items()]
            if node.capture is not None:
                pending.append(((*path, None), node.capture))
        return frozenset(found)

    def volatile_nodes(self) -> list[tuple[str, float]]:
        """Return where in the document the volatile nodes are, each with its events a second."""
        found: list[tuple[str, float]] = []
        pending: list[tuple[str, RuleNode]] = [("", self._root)]
        while pending:
            location, node = pending.pop()
            if node.volatile is not None:
                found.append((location, node.volatile.hz))
            elif node.volatile_below:
                pending += [(f"{location}/{name}", below) for name, below in node.below()]
        return sorted(found)

    @cached_property
    def volatile(self) -> VolatilePaths | None:
        """The nodes that are kept in memory alone, None if the rules have none."""
        branch = _find_volatile(self._root)
        return None if branch is None else VolatilePaths(branch)

    def makes_volatile(self, pattern: Sequence[str | None]) -> bool:
        """Return whether all places of a pattern, with None for any key, are in memory alone."""
        return self.volatile is not None and self.volatile.covers(pattern)


def parse_rules(text: str | bytes, limits: RulesLimits = DEFAULT_LIMITS) -> RuleSet:
    """Parse, type-check and compile a rules document; raise `InvalidRules`, the first error."""
    return finish(parse_rules_in_steps(text, limits))


def parse_rules_in_steps(text: str | bytes, limits: RulesLimits = DEFAULT_LIMITS) -> Steps[RuleSet]:
    """Return what `parse_rules` does, in steps."""
    decoded = _decode(text, limits.document_bytes)
    source = Source(decoded)
    parsed = [(yield from _parse(source, limits))]
    root, warnings = yield from _build_rules(source, parsed[0], limits)
    yield from free_in_steps(parsed, parts_of)
    return RuleSet(decoded, root, limits, warnings)


def check_rules_in_steps(
    text: str | bytes, limits: RulesLimits = DEFAULT_LIMITS
) -> Steps[tuple[RulesWarning, ...]]:
    """Return the warnings about a document, in steps; raise `InvalidRules` as `parse_rules` does.

    Its rules are freed in steps, too.
    """
    rules = yield from parse_rules_in_steps(text, limits)
    warnings, nodes = rules.warnings, [rules._root]
    del rules
    yield from free_in_steps(nodes, lambda node: (below for _, below in node.below()))
    return warnings


def _parse(source: Source, limits: RulesLimits) -> Steps[Item]:
    return parse_document(source, limits.node_depth + _EXTRA_BRACKETS)


def _decode(text: str | bytes, max_bytes: int) -> str:
    raw = text.encode("utf-8", "surrogatepass") if isinstance(text, str) else text
    if len(raw) > max_bytes:
        raise InvalidRules(1, 1, f"The rules are longer than {max_bytes} bytes.")
    if raw.startswith((BOM_UTF16_LE, BOM_UTF16_BE)):
        raise InvalidRules(1, 1, "The text is UTF-16: save it as UTF-8.")
    if raw.startswith(BOM_UTF8):
        raise InvalidRules(1, 1, _BYTE_ORDER_MARK)
    try:
        return raw.decode()
    except UnicodeDecodeError as error:
        before = Source(raw[: error.start].decode())
        raise InvalidRules(*before.position(len(before.text)), "The text is not UTF-8.") from None


MAX_RULES_FORESEEN: Final = 1000
"""Rule nodes below a place that `_may_allow_write` examines."""


def _may_allow_write(root: RuleNode, scope: KnownScope) -> bool:
    """Return whether any `.write` at, above or below the path of a request can be true.

    With more than `MAX_RULES_FORESEEN` rules to examine the answer is True.
    """
    node: RuleNode | None = root
    for key in (*scope.path, None):
        if node is None:
            return False
        if node.write is not None and _may_be_true(node.write, scope):
            return True
        if key is not None:
            node = node.literals.get(key, node.capture)
    pending = [node] if node is not None and node.writes_below else []
    left = MAX_RULES_FORESEEN
    while pending:
        for _, below in pending.pop().below():
            left -= 1
            if not left or (below.write is not None and _may_be_true(below.write, scope)):
                return True
            if below.writes_below:
                pending.append(below)
    return False


def _may_be_true(rule: Rule, scope: KnownScope) -> bool:
    if rule.may_be_true is None:
        return rule.constant is not False
    return rule.may_be_true(scope)


def _find_change(root: RuleNode, change: Change, auth: Json) -> tuple[bool | None, Path | None]:
    """Return whether the rules allow one change; None if more must be known.

    Returned, too, is the path of a node at or below which they allow every change, if there is one.
    """
    path, is_priority = change.place
    node: RuleNode | None = root
    allowed: bool | None = False
    validations: list[Rule] = []
    depth = 0
    while node is not None:
        if allowed is False and node.write is not None:
            allowed = _find_result(node.write, auth, path)
            if allowed is None:
                return None, None
        if node.validate is not None:
            validations.append(node.validate)
        elif allowed and not (validations or node.validates_below):
            return True, path[:depth]
        if depth == len(path):
            break
        node = node.literals.get(path[depth], node.capture)
        depth += 1
    if not allowed:
        return allowed, None
    may_be_absent = is_priority or change.value is None
    if validations and may_be_absent:
        return None, None  # which of them count depends on what exists afterwards
    for rule in validations:
        result = _find_result(rule, auth, path)
        if result is not True:
            return result, None
    is_unvalidated = node is None or may_be_absent or not node.validates_below
    return True if is_unvalidated or not isinstance(change.value, dict) else None, None


def _find_result(
    rule: Rule, auth: Json, path: Path, query: QueryFacts | None = None
) -> bool | None:
    """Return the result of a rule, None if more must be known, or its evaluation costs anything.

    Captures are keys of the path above the rule, so the path of the operation serves as well as
    that of the rule.
    """
    if rule.constant is not None:
        return rule.constant
    if rule.reads_data or rule.reads_time:
        return None
    try:
        return rule.test(KnownScope(auth, path, Budget(_NO_CHARACTERS), query))
    except BudgetExceeded:
        return None
    except EvaluationError:
        return False


_TOP: Final = "rules"
_INDEX_ON: Final = ".indexOn"
_VOLATILE: Final = ".volatile"

_RULE_KINDS: Final = frozenset({READ, WRITE, VALIDATE})
_DOTTED: Final = (READ, WRITE, VALIDATE, _INDEX_ON, TTL, _VOLATILE)
_FORBIDDEN = re.compile(r"[.#$/\[\]]")
_BAD_KEY: Final = 'String can\'t contain ".", "#", "$", "/", "[", or "]"'
_BAD_RULE: Final = "Invalid rule expression.  Expected 'true', 'false', or an expression string."
_ANCHORED_BAR: Final = (
    "^ and $ bind the whole pattern, not only the alternative beside them: write brackets around "
    "the alternatives, as in /^(a|b)$/."
)
_BAD_TTL: Final = "Invalid .ttl.  Expected a number of seconds, or an expression string."
_BAD_SECONDS: Final = f"The seconds of a .ttl are more than 0 and at most {MAX_TTL_S}."
_ROOT_TTL: Final = "The root of a database cannot have a .ttl."
_BAD_INDEX: Final = "Invalid indexOn expression. Must be either a string or an array of strings"


_BAD_VOLATILE: Final = 'Invalid volatile expression. Must be true, false or {"hz": <number>}'
_HZ: Final = f"hz is how many events a second a node may have: a number from 1 to {MAX_HZ}."
_VOLATILE_ROOT: Final = "The root cannot be volatile: write it at a node below."
_VOLATILE_TWICE: Final = "A node within a volatile one is volatile already: keep one of them."
_VOLATILE_TTL: Final = "What is volatile cannot have a .ttl: only what is stored expires."

_AROUND: Final = 'Put the rules into {"rules": {…}}.'
_NESTED: Final = "Write a path as nodes within each other."
_RULE_WITHOUT_NODE: Final = 'A key has an object of rules, as in {".validate": "…"}.'
_RULE_WITH_CHILDREN: Final = "A rule has no children: write them beside it."
MAX_WARNINGS: Final = 20
"""Warnings of one document that are kept; an author who mends these sees the others."""
MAX_ERRORS: Final = 50
"""Errors of one document that are looked for, for the same reason."""
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


def _build_rules(
    source: Source, document: Item, limits: RulesLimits
) -> Steps[tuple[RuleNode, tuple[RulesWarning, ...]]]:
    """Return the root of the rules in a document, and the warnings; raise `InvalidRules`."""
    if not isinstance(document, ObjectItem):
        source.fail(document.offset, "Expected '{'.", _AROUND)
    if not document.keys or document.keys[0].value != _TOP:
        offset = document.keys[0].offset if document.keys else document.end
        source.fail(offset, f"Expected '{_TOP}' property.", _AROUND)
    builder = _Builder(source, limits)
    for extra in document.keys[1:]:
        text = f"Unexpected property '{extra.value}'."
        builder.fail(extra.offset, text, f"Move it below '{_TOP}'.")
    root = yield from builder.node(document.values[0], (), ())
    if builder.errors:
        builder.raise_errors()
    return root, tuple(builder.warnings)


@attrs.define
class _Members:
    """What the members of a node say, as far as they are read."""

    rules: dict[str, Rule | None] = attrs.Factory(dict)
    index_on: frozenset[str] = _NO_INDEX
    children: dict[str, RuleNode] = attrs.Factory(dict)
    lifetime: Lifetime | None = None
    volatile: Volatile | None = None
    volatile_at: int = 0


class _Builder:
    """The build of one document; `names` are the keys and captures from the root to a node."""

    def __init__(self, source: Source, limits: RulesLimits) -> None:
        self.source = source
        self.limits = limits
        self.members = 0
        self.warnings: list[RulesWarning] = []
        self.errors: list[InvalidRules] = []
        self.compiled: dict[tuple[str, str, _Captures], _Compiled] = {}

    def fail(self, offset: int, text: str, hint: str = "") -> None:
        """Record an error; raise all of them if they are enough."""
        self.errors.append(InvalidRules(*self.source.position(offset), text, hint))
        if len(self.errors) == MAX_ERRORS:
            self.raise_errors()

    def raise_errors(self) -> NoReturn:
        """Raise the first error in the order of the text, with the others."""
        first, *others = sorted(self.errors, key=attrgetter("line", "column"))
        first.others = tuple(others)
        raise first

    def node(self, item: Item, names: Path, captures: _Captures) -> Steps[RuleNode]:
        """Return the node of an item; without what has an error."""
        if not isinstance(item, ObjectItem):
            self.fail(item.offset, "Expected '{'.")
            return RuleNode({}, _NO_INDEX, {}, None)
        found = _Members()
        yield from self.read_members(found, item, names, captures)
        children = found.children
        name = next((name for name in children if name.startswith("$")), "")
        capture = children.pop(name, None)
        node = RuleNode(
            rules={kind: rule for kind, rule in found.rules.items() if rule is not None},
            index_on=found.index_on,
            literals=children,
            capture=capture,
            capture_name=name,
            lifetime=found.lifetime,
            volatile=found.volatile,
        )
        self.check_volatile(node, found.volatile_at)
        return node

    def read_members(
        self, found: _Members, item: ObjectItem, names: Path, captures: _Captures
    ) -> Steps[None]:
        """Add what the members of an item say to `found`."""
        for key, value in item.members:
            if self.ends_step():
                yield
            name = key.value
            if name in _RULE_KINDS:
                found.rules[name] = yield from self.rule(name, value, names, captures)
            elif name == _INDEX_ON:
                found.index_on = self.index_on(value)
            elif name == TTL:
                found.lifetime = yield from self.lifetime(key, value, names, captures)
            elif name == _VOLATILE:
                found.volatile, found.volatile_at = self.volatile(value, names), value.offset
            elif self.check_child(key, value, names, found.children):
                bound = ((name, len(names)),) if name.startswith("$") else ()
                below = yield from self.node(value, (*names, name), captures + bound)
                found.children[name] = below

    def ends_step(self) -> bool:
        """Count a member; return whether a step ends with it."""
        self.members += 1
        return self.members % _MEMBERS_PER_STEP == 0

    def check_child(
        self, key: TextItem, value: Item, names: Path, siblings: Mapping[str, RuleNode]
    ) -> bool:
        """Record what is wrong with a child itself; return whether its members can be examined."""
        name = key.value
        if not isinstance(value, ObjectItem):
            hint = suggest(name, _DOTTED)
            if not hint and isinstance(value, TextItem) and not name.startswith("."):
                hint = _RULE_WITHOUT_NODE
            self.fail(value.offset, "Expected '{'.", hint)
            return False
        is_capture = name.startswith("$")
        bare = name[1:] if is_capture else name
        if _FORBIDDEN.search(bare) or name == "$":
            hint = suggest(name, _DOTTED) if name.startswith(".") else ""
            hint = hint or (_NESTED if "/" in name else "")
            self.fail(key.offset, _BAD_KEY, hint)
        else:
            try:
                check_key(bare)
            except InvalidPath as error:
                self.fail(key.offset, str(error))
        if len(names) >= self.limits.node_depth:
            text = f"Rules are nested deeper than {self.limits.node_depth} levels."
            self.fail(key.offset, text)
            return False
        if is_capture:
            self.check_capture(key, names, siblings)
        return True

    def check_capture(self, key: TextItem, names: Path, siblings: Mapping[str, RuleNode]) -> None:
        name = key.value
        other = next((sibling for sibling in siblings if sibling.startswith("$")), None)
        if other:
            text = f"Cannot have multiple default rules ('{other}' and '{name}')."
            hint = "Keep one of them: it applies to every key without rules of its own."
            self.fail(key.offset, text, hint)
        if name in names:
            text = f"The variable '{name}' is already bound above."
            self.fail(key.offset, text, "Give this one another name.")

    def rule(self, kind: str, value: Item, names: Path, captures: _Captures) -> Steps[Rule | None]:
        """Return a rule; None if it has an error, which is recorded."""
        keys = (_TOP, *names)
        if isinstance(value, ScalarItem) and isinstance(value.value, bool):
            constant = value.value
            position = self.source.position(value.offset)
            return Rule(kind, keys, position, lambda _: constant, constant=constant)
        if not isinstance(value, TextItem):
            hint = _RULE_WITH_CHILDREN if isinstance(value, ObjectItem) else ""
            self.fail(value.offset, _BAD_RULE, hint)
            return None
        compiled = yield from self.expression(kind, value, captures)
        if compiled is None:
            return None
        return Rule(
            kind=kind,
            keys=keys,
            position=self.source.position(value.offset_of(0)),
            test=compiled.test,
            reads_time=compiled.reads_time,
            constant=compiled.constant,
            reads_data=compiled.reads_data,
            may_be_true=compiled.may_be_true,
        )

    def lifetime(
        self, key: TextItem, value: Item, names: Path, captures: _Captures
    ) -> Steps[Lifetime | None]:
        """Return a `.ttl`; None if it has an error, which is recorded."""
        keys = (_TOP, *names)
        if not names:
            self.fail(key.offset, _ROOT_TTL, "Write it below the keys whose nodes are to go.")
            return None
        if isinstance(value, ScalarItem) and type(value.value) is float:
            seconds = value.value
            if not 0 < seconds <= MAX_TTL_S:
                self.fail(value.offset, _BAD_SECONDS)
                return None
            return Lifetime(keys, self.source.position(value.offset), str(seconds), seconds)
        if not isinstance(value, TextItem):
            self.fail(value.offset, _BAD_TTL)
            return None
        try:
            find = yield from _compile_ttl(value.value, captures, self.limits)
        except ExpressionError as error:
            self.fail(value.offset_of(error.offset), error.text, error.hint)
            return None
        return Lifetime(keys, self.source.position(value.offset_of(0)), value.value, find=find)

    def expression(
        self, kind: str, value: TextItem, captures: _Captures
    ) -> Steps[_Compiled | None]:
        """Compile the expression of a rule, unless it has been; None if it has an error."""
        case = (value.value, kind, captures)
        compiled = self.compiled.get(case)
        if compiled is None:
            try:
                compiled = self.compiled[case] = yield from _compile(*case, self.limits)
            except ExpressionError as error:
                self.fail(value.offset_of(error.offset), error.text, error.hint)
                return None
        for offset, text in compiled.warnings:
            self.warn(value.offset_of(offset), text)
        for offset, text in compiled.advice:
            self.warn(value.offset_of(offset), text, is_advice=True)
        return compiled

    def warn(self, offset: int, text: str, *, is_advice: bool = False) -> None:
        if len(self.warnings) < MAX_WARNINGS:
            self.warnings.append(RulesWarning(self.source.position(offset), text, is_advice))

    def volatile(self, value: Item, names: Path) -> Volatile | None:
        """Return how a node is volatile; None if it is not, or after an error."""
        if isinstance(value, ScalarItem) and isinstance(value.value, bool):
            found = Volatile() if value.value else None
        elif isinstance(value, ObjectItem) and [key.value for key in value.keys] == ["hz"]:
            found = self.rate(value.values[0])
        else:
            self.fail(value.offset, _BAD_VOLATILE)
            return None
        if found is not None and not names:
            self.fail(value.offset, _VOLATILE_ROOT)
        return found

    def check_volatile(self, node: RuleNode, offset: int) -> None:
        """Record that a node within a volatile one is volatile too, or that one has a `.ttl`."""
        if node.volatile is None:
            return
        if node.volatile_below:
            self.fail(offset, _VOLATILE_TWICE)
        if node.lifetime or node.expires_below:
            self.fail(offset, _VOLATILE_TTL)

    def rate(self, value: Item) -> Volatile | None:
        hz = value.value if isinstance(value, ScalarItem) else None
        if isinstance(hz, bool) or not isinstance(hz, int | float) or not 1 <= hz <= MAX_HZ:
            self.fail(value.offset, _BAD_VOLATILE, _HZ)
            return None
        return Volatile(hz)

    def index_on(self, value: Item) -> frozenset[str]:
        items = value.items if isinstance(value, ArrayItem) else (value,)
        for item in items:
            if not isinstance(item, TextItem):
                self.fail(value.offset, _BAD_INDEX)
                break
        return frozenset(
            "/".join(filter(None, item.value.split("/")))
            for item in items
            if isinstance(item, TextItem)
        )


def _has_volatile(node: RuleNode) -> bool:
    return node.volatile is not None or node.volatile_below


def _find_volatile(node: RuleNode) -> VolatileBranch | None:
    """Return the branch of a rule node, None if nothing at or below it is volatile."""
    if not _has_volatile(node):
        return None
    return VolatileBranch(
        literals={key: _find_volatile(child) for key, child in node.literals.items()},
        capture=None if node.capture is None else _find_volatile(node.capture),
        volatile=node.volatile,
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

    One that has a limit and reads the bounds is meant to show certain children only.
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
    # The expressions "true" and "false" are as constant as the words themselves.
    value = expression.value if isinstance(expression, Literal) else None
    constant = value if isinstance(value, bool) else None
    return _Compiled(
        test=test,
        reads_time="now" in names,
        reads_data=not names.isdisjoint(_TREES),
        may_be_true=may_be_true,
        constant=constant,
        warnings=warnings,
        advice=tuple(_find_forgotten(types)),
    )


def _compile_ttl(
    text: str, captures: _Captures, limits: RulesLimits
) -> Steps[Callable[[Scope], Any]]:
    """Compile the expression of a `.ttl`; raise `ExpressionError`."""
    bound = dict(captures)
    expression = yield from parse_expression(text, limits)
    types = yield from typecheck_ttl(expression, bound)
    find: Callable[[Scope], Any] = yield from compile_rule(expression, types, bound)
    return find


def format_explanation(verdict: Mapping[str, Any]) -> list[str]:
    """Return an explanation of a verdict as lines: the outcome, then each rule that was evaluated.

    Below a rule that is not true comes what it saw. The lines show what clients have sent, and may
    hold characters that move the cursor of a terminal.
    """
    if verdict["allowed"]:
        lines = ["allowed" + (": rules do not apply to an admin" if verdict["admin"] else "")]
    else:
        lines = [f"denied: {verdict['reason']}", format_auth(verdict["auth"])]
    return [*lines, *format_rules(verdict["rules"]), *map(format_ttl, verdict.get("ttl", ()))]


def format_ttl(shown: Mapping[str, Any]) -> str:
    """Return the line of an explanation that shows a `.ttl`, and when its node goes."""
    goes = "never" if shown["expires"] is None else f"at {shown['expires']:,} ms since 1970"
    if "error" in shown:
        goes = f"never: {shown['error']}"
    return f"  {shown['rule']} ({shown['line']}:{shown['column']}) at {shown['path']}: goes {goes}"


def format_auth(auth: Any) -> str:
    """Return the line of an explanation that shows `auth`."""
    return f"  auth is {orjson.dumps(auth).decode()}"


def format_rules(rules: Iterable[dict[str, Any]]) -> list[str]:
    """Return the rules of an explanation as lines, each with what it saw below it."""
    lines = []
    for rule in rules:
        result = f"error: {rule['error']}" if "error" in rule else str(rule["result"]).lower()
        where = f"{rule['rule']} ({rule['line']}:{rule['column']})"
        lines.append(f"  {where} at {rule['path']}: {result}")
        seen = {**rule.get("captures", {})}
        for read in rule.get("read", ()):
            shown = read["type"] if "type" in read else orjson.dumps(read["value"]).decode()
            seen[f"{read['from']} at {read['path']}"] = shown
        lines += [f"    {name} is {value}" for name, value in seen.items()]
    return lines


# At the end, since all that parses them has to be defined.
OPEN: Final = parse_rules('{"rules":{".read":true,".write":true}}')
"""Allows everything."""
DENY: Final = parse_rules('{"rules":{}}')
"""Denies everything, except to an admin, who is exempt from rules."""
