"""The evaluation of rules for a read or a write: which rules run, in which order, and the verdict.

Theory of operation. A read is allowed by the first `.read` that is true on the path from the root
to the target; rules below the target are never evaluated. A write is allowed likewise by `.write`;
then every `.validate` on the path must be true, and every one at a written node below the target,
except at nodes that do not exist after the write. Each change of a PATCH is evaluated as a write of
its own, against a tree that has all of them. A rule that fails to evaluate counts as not true.

`data` and `newData` are the node at the place of the rule, so the path of the scope changes with
each rule. A rule at an ancestor that several changes share is evaluated once, because everything
that it can read is the same for all of them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from time import perf_counter
from typing import Any, Final

import attrs

from treedbd.loop import paused
from treedbd.rules.context import (
    BudgetExceeded,
    Context,
    Dependencies,
    EvaluationError,
    KnownScope,
    Scope,
    SlowRules,
    TracedRead,
)
from treedbd.rules.document import TextPosition
from treedbd.rules.volatile import Volatile
from treedbd.tree.path import format_path
from treedbd.tree.types import PRIORITY, STORED, Change, Container, Json, Path, Value
from treedbd.tree.value import container_of

READ: Final = ".read"
WRITE: Final = ".write"
VALIDATE: Final = ".validate"
TTL: Final = ".ttl"
READ_WHOLE_BYTES: Final = 65_536
"""Bytes of a stored value that is read as a whole to be validated."""

_SHOWN_AT_ONCE: Final = 32
"""Results that take some hundred microseconds to be shown, with the most that each has read."""
MAX_SHOWN_CHARACTERS: Final = 100
"""Characters of a string that a rule read."""
_NOT_EVALUATED: Final = (0.0, 0)
"""Seconds and number of the evaluations of a rule, before the first."""
_TYPES_SHOWN: Final[dict[object, str]] = {
    str: "string",
    int: "number",
    float: "number",
    bool: "boolean",
    Container: "object",
}


@attrs.frozen(eq=False)
class Rule:
    """One rule, compiled.

    Attributes:
        kind: `.read`, `.write` or `.validate`.
        keys: the members of the document around the rule: `rules`, `users`, `$uid`.
        position: line and column of the rule.
        test: evaluates the rule; raises `EvaluationError`.
        reads_time: whether the rule reads `now`.
        constant: the result of a rule that is `true` or `false`, None for an expression.
        reads_data: whether the rule reads the tree before or after the operation.
        may_be_true: of a `.write` rule: returns whether it can be true for any data.

    """

    kind: str
    keys: Path
    position: TextPosition
    test: Callable[[Scope], bool]
    reads_time: bool = False
    constant: bool | None = None
    reads_data: bool = False
    may_be_true: Callable[[KnownScope], bool] | None = None

    @property
    def location(self) -> str:
        """Where the rule is in the document: `rules/users/$uid/.read`.

        It is joined when it is shown: a document may have many rules below long keys.
        """
        return "/".join((*self.keys, self.kind))


@attrs.frozen(eq=False)
class Lifetime:
    """A `.ttl`, compiled: how long the nodes of its place are kept. `expiry` evaluates it.

    Attributes:
        keys: the members of the document around it: `rules`, `rooms`, `$room`.
        position: line and column of it.
        text: what it is: the seconds, or the expression.
        seconds: how long after its last write a node goes; None for an expression.
        find: evaluates the expression; raises `EvaluationError`.

    """

    keys: Path
    position: TextPosition
    text: str
    seconds: float | None = None
    find: Callable[[Scope], Any] | None = None

    @property
    def location(self) -> str:
        """Where it is in the document: `rules/rooms/$room/.ttl`."""
        return "/".join((*self.keys, TTL))


@attrs.frozen(eq=False)
class RuleNode:
    """The rules for one node, and the rule nodes below it.

    It applies to one path of the data or, at and below a capture, to every path that matches.
    `validates_below`, `writes_below`, `expires_below` and `volatile_below` say whether there is a
    `.validate`, a `.write`, a `.ttl` or a `.volatile` anywhere below. `volatile` is how what is at
    the node is kept in memory alone, None if it is stored.
    """

    rules: Mapping[str, Rule]
    index_on: frozenset[str]
    literals: Mapping[str, RuleNode]
    capture: RuleNode | None
    capture_name: str = ""
    lifetime: Lifetime | None = None
    volatile: Volatile | None = None
    read: Rule | None = attrs.field(init=False)
    write: Rule | None = attrs.field(init=False)
    validate: Rule | None = attrs.field(init=False)
    validates_below: bool = attrs.field(init=False)
    writes_below: bool = attrs.field(init=False)
    expires_below: bool = attrs.field(init=False)
    volatile_below: bool = attrs.field(init=False)

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

    @writes_below.default
    def _find_writes_below(self) -> bool:
        return any(node.write or node.writes_below for _, node in self.below())

    @expires_below.default
    def _find_expires_below(self) -> bool:
        return any(node.lifetime or node.expires_below for _, node in self.below())

    @volatile_below.default
    def _find_volatile_below(self) -> bool:
        return any(node.volatile or node.volatile_below for _, node in self.below())

    def child(self, key: str) -> RuleNode | None:
        """Return the rule node for a child: its own if there is one, else the capture's."""
        return self.literals.get(key, self.capture)

    def below(self) -> Iterator[tuple[str, RuleNode]]:
        """Iterate over the rule nodes below with the names they have in the document."""
        yield from self.literals.items()
        if self.capture is not None:
            yield self.capture_name, self.capture


@attrs.frozen
class RuleResult:
    """The result of one rule.

    Attributes:
        kind: `.read`, `.write` or `.validate`.
        path: the node that the rule was evaluated at.
        location: where the rule is in the document: `rules/users/$uid/.read`.
        line: line of the document, from 1.
        column: column of the line, from 1.
        result: whether the rule is true, or the text of the error.
        captures: the keys that its captures matched.
        reads: the nodes that it read.

    """

    kind: str
    path: Path
    location: str
    line: int
    column: int
    result: bool | str
    captures: Mapping[str, str] = attrs.field(factory=dict)
    reads: tuple[TracedRead, ...] = ()


@attrs.frozen
class Verdict:
    """Whether an operation is allowed.

    `trace` lists the rules in the order in which they ran, if an explanation was requested;
    `dependencies` is what the verdict depends on, if they were to be recorded.
    """

    allowed: bool
    trace: tuple[RuleResult, ...] = ()
    dependencies: Dependencies | None = None


ALLOWED: Final = Verdict(True)
DENIED: Final = Verdict(False)


class Evaluation:
    """The evaluation of the rules for one operation."""

    __slots__ = (
        "_check",
        "_context",
        "_make_scope",
        "_reads",
        "_results",
        "_scope",
        "_spent",
        "_trace",
        "reads_time",
    )

    def __init__(
        self,
        context: Context,
        make_scope: Callable[[], Scope],
        *,
        reads: dict[TracedRead, None] | None,
        shared: bool = False,
    ) -> None:
        """Evaluate in the scope that `make_scope` returns; rules that are constant need none.

        With `reads`, to which the views of that scope add what is read, a trace is kept; `shared`
        keeps results, for rules that several changes share. The rules are measured if the context
        says whom slow ones are reported to.
        """
        self._context: Final = context
        self._check = context.check
        self._make_scope: Final = make_scope
        self._scope: Scope | None = None
        self._reads: Final[dict[TracedRead, None]] = {} if reads is None else reads
        self._trace: list[RuleResult] | None = None if reads is None else []
        self.reads_time = False
        self._results: Final[dict[tuple[Rule, Path], bool] | None] = {} if shared else None
        is_measured = context.slow_rules is not None
        self._spent: Final[dict[Rule, tuple[float, int]] | None] = {} if is_measured else None

    def verdict(self, allowed: bool, dependencies: Dependencies | None = None) -> Verdict:
        """Return the verdict, with what was kept on the way to it."""
        if self._trace is None and dependencies is None:
            return ALLOWED if allowed else DENIED
        return Verdict(allowed, tuple(self._trace or ()), dependencies)

    def allows_read(self, node: RuleNode | None, path: Path) -> bool:
        """Return whether the rules from `node`, the root, allow reading `path`."""
        depth = 0
        try:
            while node is not None:
                rule = node.read
                if rule is not None and self._is_true(rule, path[:depth]):
                    return True
                if depth == len(path):
                    return False
                node = node.literals.get(path[depth], node.capture)
                depth += 1
        finally:
            self._report_slow()
        return False

    def allows_write(self, root: RuleNode, changes: Sequence[Change]) -> bool:
        """Return whether the rules allow each of the changes."""
        try:
            for at, change in enumerate(changes):
                if at and self._check is not None:
                    self._check()
                if not self._allows_change(root, change):
                    return False
        finally:
            self._report_slow()
        return True

    def _allows_change(self, root: RuleNode, change: Change) -> bool:
        path, is_priority = change.place
        node: RuleNode | None = root
        allowed = False
        validations: list[tuple[Rule, Path]] = []
        depth = 0
        while node is not None:
            if not allowed and node.write is not None:
                allowed = self._is_true(node.write, path[:depth])
            if node.validate is not None:
                validations.append((node.validate, path[:depth]))
            if depth == len(path):
                break
            node = node.literals.get(path[depth], node.capture)
            depth += 1
        if not allowed:
            return False
        may_be_absent = is_priority or change.value is None
        for rule, place in validations:
            if may_be_absent and self._get_scope().after.peek(place) is None:
                continue
            if not self._is_true(rule, place):
                return False
        if node is None or may_be_absent or not node.validates_below:
            return True
        if change.value is STORED:
            return self._validate_stored(node, path)
        return self._validate_below(node, path, self._get_scope().after.get(path))

    def _validate_stored(self, node: RuleNode, path: Path) -> bool:
        """Return what `_validate_below` does, for a value that may be too large to be read."""
        after = self._get_scope().after
        if after.size(path, READ_WHOLE_BYTES) <= READ_WHOLE_BYTES:
            return self._validate_below(node, path, after.get(path))
        for key in after.keys(path):
            rules, below = node.child(key), (*path, key)
            if rules is None:
                continue
            if rules.validate is not None and not self._is_true(rules.validate, below):
                return False
            if rules.validates_below and not self._validate_stored(rules, below):
                return False
        return True

    def _validate_below(self, top: RuleNode, path: Path, value: Value) -> bool:
        """Return whether every `.validate` is true at the nodes below `path`, which has `value`."""
        pending = [(top, path, value)]
        while True:
            node, path, value = pending.pop()
            for key, child, rules in _matching(node, value):
                below = (*path, key)
                if rules.validate is not None and not self._is_true(rules.validate, below):
                    return False
                if rules.validates_below:
                    pending.append((rules, below, child))
            if not pending:
                return True
            if self._check is not None:
                self._check()

    def _is_true(self, rule: Rule, path: Path) -> bool:
        """Return whether a rule is true at a node."""
        trace, results = self._trace, self._results
        if rule.constant is not None and trace is None:
            return rule.constant
        if results is not None and (rule, path) in results:
            return results[rule, path]
        if self._check is not None:
            self._check()
        scope = self._scope or self._get_scope()
        scope.path = path
        if trace is not None:
            self._reads.clear()  # of what was read between two rules
        result: bool | str
        began = perf_counter()
        try:
            result = is_true = rule.test(scope)
        except EvaluationError as error:
            result, is_true = str(error), False
            if isinstance(error, BudgetExceeded) and self._context.exceeded is not None:
                self._context.exceeded(rule.location, rule.position)
        if self._spent is not None:
            seconds, count = self._spent.get(rule, _NOT_EVALUATED)
            self._spent[rule] = seconds + perf_counter() - began, count + 1
        if rule.reads_time:
            self.reads_time = True
        if results is not None:
            results[rule, path] = is_true
        if trace is not None:
            trace.append(self._explain(rule, path, result))
        return is_true

    def _report_slow(self) -> None:
        """Report the rules if they were slow; not counted is what others do in pauses between."""
        spent, report = self._spent, self._context.slow_rules
        if not spent or report is None:
            return
        seconds = sum([seconds for seconds, _ in spent.values()])
        if seconds >= report.least_s:
            rule = max(spent, key=spent.__getitem__)
            slowest_s, count = spent[rule]
            report.report(
                SlowRules(
                    seconds=seconds,
                    location=rule.location,
                    position=rule.position,
                    slowest_s=slowest_s,
                    count=count,
                )
            )

    def _explain(self, rule: Rule, path: Path, result: bool | str) -> RuleResult:
        """Return the result of a rule that was evaluated, with what it read."""
        reads = tuple(self._reads)
        names = rule.keys[1:]
        captures = {
            name: key for name, key in zip(names, path, strict=True) if name.startswith("$")
        }
        return RuleResult(
            kind=rule.kind,
            path=path,
            location=rule.location,
            line=rule.position.line,
            column=rule.position.column,
            result=result,
            captures=captures,
            reads=reads,
        )

    def _get_scope(self) -> Scope:
        if self._scope is None:
            self._scope = self._make_scope()
        return self._scope


def _matching(node: RuleNode, value: Value) -> list[tuple[str, Value, RuleNode]]:
    """Return the children of a value that have rules: key, child, rule node."""
    children = container_of(value)
    if children is None:
        return []
    literals, capture = node.literals, node.capture
    if capture is None:
        return [(key, children[key], rules) for key, rules in literals.items() if key in children]
    return [
        (key, child, literals.get(key, capture))
        for key, child in children.items()
        if key != PRIORITY
    ]


def explanation(
    verdict: Verdict,
    *,
    is_admin: bool,
    auth: Json = None,
    shows_all: bool = False,
    refusal: str | None = None,
) -> dict[str, Json]:
    """Return the JSON of a verdict: the rules that ran, where, and with which result.

    An admin who sends `X-TreeDB-Explain: true` receives this instead of the data; nothing is
    written, and with `auth_variable_override` the rules see that `auth`. Of a rule that is not true
    it also shows what the rule saw: the keys that its captures matched, and the nodes that it read.

    An admin is allowed whatever the rules say. `auth` is what the rules have seen; it is shown,
    with a sentence that says why, if they deny. With `shows_all` what rules have seen that are true
    is shown, too. A `refusal` says why the request is denied whatever the rules say.
    """
    allowed = refusal is None and (is_admin or verdict.allowed)
    shown: dict[str, Json] = {"allowed": allowed, "admin": is_admin}
    if not allowed:
        shown |= {"reason": refusal or _denial_reason(verdict), "auth": auth}
    rules: list[Json] = [
        _show_rule(result, shows_all) for result in paused(verdict.trace, _SHOWN_AT_ONCE)
    ]
    return {**shown, "rules": rules}


def _denial_reason(verdict: Verdict) -> str:
    last = verdict.trace[-1] if verdict.trace else None
    if last is None or last.result is True:  # of a PATCH, for the member after it
        return "There is no rule on the path, and what no rule allows is denied."
    if last.kind == VALIDATE:
        return f"The rule {last.location} is not true."
    return f"No {last.kind} rule on the path is true."


def _show_rule(result: RuleResult, shows_all: bool) -> Json:
    shown: dict[str, Json] = {
        "rule": result.location,
        "path": format_path(result.path),
        "line": result.line,
        "column": result.column,
    }
    if isinstance(result.result, str):
        shown |= {"result": False, "error": result.result}
    else:
        shown["result"] = result.result
    if result.result is True and not shows_all:
        return shown
    if result.captures:
        shown["captures"] = {**result.captures}
    if result.reads:
        shown["read"] = [_show_read(read) for read in result.reads]
    return shown


def _show_read(read: TracedRead) -> Json:
    shown: dict[str, Json] = {"from": read.tree, "path": format_path(read.path)}
    found: Any = read.found
    if isinstance(found, type):
        return {**shown, "type": _TYPES_SHOWN[found]}
    if isinstance(found, str) and len(found) > MAX_SHOWN_CHARACTERS:
        found = f"{found[:MAX_SHOWN_CHARACTERS]}…"
    return {**shown, "value": found}
