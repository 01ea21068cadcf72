"""A rule set: the rules of a project, parsed from their text and evaluated for each request.

This is the interface of the package. `parse_rules` turns a document into a `RuleSet` or raises the
first error; `may_read` and `may_write` evaluate the rules for one operation and read nothing but
the view they are given. That an admin is exempt from rules is the concern of callers.
"""

from __future__ import annotations

from codecs import BOM_UTF8, BOM_UTF16_BE, BOM_UTF16_LE
from collections.abc import Callable, Iterator, Sequence
from functools import cached_property
from hashlib import blake2b
from operator import attrgetter
from typing import Final, TypeAlias

import attrs

from treedbd.limits import RulesLimits
from treedbd.loop import Steps, finish
from treedbd.rules.budget import AT_ONCE_PART, Budget
from treedbd.rules.build import build_rules
from treedbd.rules.context import Context, KnownScope, QueryFacts, Scope
from treedbd.rules.dependencies import Dependencies, Recorder
from treedbd.rules.document import InvalidRules, Item, RulesWarning, Source, as_json, parse_document
from treedbd.rules.evaluate import ALLOWED, Evaluation, Rule, RuleNode, Verdict
from treedbd.rules.metered import MeteredView
from treedbd.rules.rights import find_read, find_write, may_allow_write
from treedbd.rules.traced import TracedRead, TracedView
from treedbd.tree.overlay import Overlay
from treedbd.tree.types import Change, Json, Path, View

DEFAULT_LIMITS: Final = RulesLimits()
MAX_CHANGES_KNOWN: Final = 16
"""Changes of an edit whose verdict `find_write` looks for; more are evaluated with a deadline."""
_NO_CHARACTERS: Final = 0
"""The budget of a verdict without a view: rules that cost anything are evaluated with one."""
_EXTRA_BRACKETS: Final = 8
"""Brackets that a document may have besides its nodes; `build` reports nodes that are too deep."""

_BYTE_ORDER_MARK: Final = (
    "The text begins with a byte order mark (U+FEFF): save it as UTF-8 without one."
)


IndexedPath: TypeAlias = tuple[str | None, ...]
"""The path of collections that have an index; None stands for any key."""


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
        return blake2b(self.text.encode(), digest_size=8).hexdigest()

    @cached_property
    def _allows_all_reads(self) -> bool:
        """Whether `.read` is `true` at the root, so no other rule is evaluated for a read."""
        read = self._root.read
        return read is not None and read.constant is True

    @cached_property
    def _allows_all_writes(self) -> bool:
        """Whether `.write` is `true` at the root and there is no `.validate`."""
        root = self._root
        has_validate = root.validate is not None or root.validates_below
        return root.write is not None and root.write.constant is True and not has_validate

    def as_json(self) -> Steps[Json]:
        """Return the document as plain JSON, in its order and without comments, in steps."""
        # Parsed again: its items would take more memory than its rules do.
        document = yield from _parse(Source(self.text), self._limits)
        return (yield from as_json(document))

    def find_read(self, path: Path, auth: Json, query: QueryFacts | None = None) -> bool | None:
        """Return whether a read of `path`, or a query there, is allowed, if rules alone tell it.

        None if that depends on the data or the time, or costs much: then `may_read` tells it.
        """
        if self._allows_all_reads:
            return True
        return find_read(self._root, KnownScope(auth, path, Budget(_NO_CHARACTERS), query))

    def find_write(self, changes: Sequence[Change], auth: Json) -> bool | None:
        """Return whether a write is allowed, if rules alone tell it; None if `may_write` must."""
        if self._allows_all_writes:
            return True
        if len(changes) > MAX_CHANGES_KNOWN:
            return None
        return find_write(self._root, changes, KnownScope(auth, (), Budget(_NO_CHARACTERS)))

    def may_read(
        self, path: Path, context: Context, *, explain: bool = False, record: bool = False
    ) -> Verdict:
        """Return the verdict on a read of `path`, or on a query there if the context has one.

        With `explain` it has a trace, with `record` the dependencies.
        """
        if self._allows_all_reads and not explain and not record:
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

        evaluation = _make_evaluation(context, make_scope, reads)
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
        if self._allows_all_writes and not explain:
            return ALLOWED
        reads: dict[TracedRead, None] | None = {} if explain else None

        def make_scope() -> Scope:
            before, budget = self._reader(context)
            changed = Overlay(before, changes) if after is None else MeteredView(after, budget)
            if reads is None:
                return Scope(context, before, changed, budget)
            traced = TracedView(before, "data", reads), TracedView(changed, "newData", reads)
            return Scope(context, *traced, budget)

        evaluation = _make_evaluation(context, make_scope, reads, shared=len(changes) > 1)
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
        return may_allow_write(
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


def _make_evaluation(
    context: Context,
    make_scope: Callable[[], Scope],
    reads: dict[TracedRead, None] | None,
    *,
    shared: bool = False,
) -> Evaluation:
    make = context.make_evaluation or Evaluation
    evaluation: Evaluation = make(context, make_scope, reads=reads, shared=shared)
    return evaluation


def parse_rules(text: str | bytes, limits: RulesLimits = DEFAULT_LIMITS) -> RuleSet:
    """Parse, type-check and compile a rules document; raise `InvalidRules` for the first error."""
    return finish(parse_rules_in_steps(text, limits))


def parse_rules_in_steps(text: str | bytes, limits: RulesLimits = DEFAULT_LIMITS) -> Steps[RuleSet]:
    """Do as `parse_rules`, in steps."""
    decoded = _decode(text, limits.document_bytes)
    source = Source(decoded)
    document = yield from _parse(source, limits)
    root, warnings = yield from build_rules(source, document, limits)
    return RuleSet(decoded, root, limits, warnings)


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


OPEN: Final = parse_rules('{"rules":{".read":true,".write":true}}')
"""Allows everything."""
DENY: Final = parse_rules('{"rules":{}}')
"""Denies everything, except to an admin, who is exempt from rules."""
