"""A rule set: the rules of a project, parsed from their text and evaluated for each request.

This is the interface of the package. `parse_rules` turns a document into a `RuleSet` or raises the
first error; `may_read` and `may_write` evaluate the rules for one operation and read nothing but
the view they are given. That an admin is exempt from rules is the concern of callers.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from hashlib import blake2b
from typing import Final

import attrs

from treedbd.limits import RulesLimits
from treedbd.rules.build import build_rules
from treedbd.rules.context import DEFAULT_CHARACTERS, Context, Scope
from treedbd.rules.dependencies import Dependencies, Recorder
from treedbd.rules.document import Item, Source, as_json, parse_document
from treedbd.rules.errors import InvalidRules
from treedbd.rules.evaluate import Evaluation, RuleNode, Verdict
from treedbd.rules.overlay import Overlay
from treedbd.tree.types import Change, Json, Path
from treedbd.tree.view import View

DEFAULT_LIMITS: Final = RulesLimits()
_EXTRA_BRACKETS: Final = 8
"""Brackets that a document may have besides its nodes; `build` reports nodes that are too deep."""

_ALLOWED: Final = Verdict(True)
_DENIED: Final = Verdict(False)


@attrs.frozen(eq=False, slots=False)
class RuleSet:
    """The rules of a project; `text` is the document as it was PUT."""

    text: str
    _document: Item = attrs.field(repr=False)
    _root: RuleNode = attrs.field(repr=False)
    _max_characters: int = attrs.field(default=DEFAULT_CHARACTERS, repr=False)

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

    def as_json(self) -> Json:
        """Return the document as plain JSON, in its order and without comments."""
        return as_json(self._document)

    def may_read(
        self, path: Path, context: Context, *, explain: bool = False, record: bool = False
    ) -> Verdict:
        """Return the verdict on a read of `path`, or on a query there if the context has one.

        With `explain` it has a trace, with `record` the dependencies.
        """
        if self._allows_all_reads and not explain and not record:
            return _ALLOWED
        recorder = Recorder(context.view) if record else None
        view = recorder or context.view
        evaluation = Evaluation(
            lambda: Scope(context, view, view, self._max_characters), explain=explain
        )
        allowed = evaluation.allows_read(self._root, path)
        if not explain and recorder is None:
            return _ALLOWED if allowed else _DENIED
        dependencies = None
        if recorder is not None:
            dependencies = Dependencies(frozenset(recorder.paths), evaluation.reads_time)
        return Verdict(allowed, tuple(evaluation.trace or ()), dependencies)

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
            return _ALLOWED

        def make_scope() -> Scope:
            view = after or Overlay(context.view, changes)
            return Scope(context, context.view, view, self._max_characters)

        evaluation = Evaluation(make_scope, explain=explain, shared=len(changes) > 1)
        allowed = evaluation.allows_write(self._root, changes)
        if not explain:
            return _ALLOWED if allowed else _DENIED
        return Verdict(allowed, tuple(evaluation.trace or ()))

    def indexed(self, path: Path) -> frozenset[str]:
        """Return the indexes declared for the children of `path`: child paths and `.value`."""
        node: RuleNode | None = self._root
        for key in path:
            if node is None:
                break
            node = node.child(key)
        return node.index_on if node is not None else frozenset()


def parse_rules(text: str | bytes, limits: RulesLimits = DEFAULT_LIMITS) -> RuleSet:
    """Parse, type-check and compile a rules document; raise `InvalidRules` for the first error."""
    decoded = _decode(text, limits.document_bytes)
    source = Source(decoded)
    document = parse_document(source, limits.node_depth + _EXTRA_BRACKETS)
    return RuleSet(
        decoded, document, build_rules(source, document, limits), limits.judged_characters
    )


def _decode(text: str | bytes, max_bytes: int) -> str:
    raw = text.encode("utf-8", "surrogatepass") if isinstance(text, str) else text
    if len(raw) > max_bytes:
        raise InvalidRules(1, 1, f"The rules are longer than {max_bytes} bytes.")
    try:
        return raw.decode()
    except UnicodeDecodeError as error:
        before = Source(raw[: error.start].decode())
        raise InvalidRules(*before.position(len(before.text)), "The text is not UTF-8.") from None


OPEN: Final = parse_rules('{"rules":{".read":true,".write":true}}')
"""Allows everything."""
DENY: Final = parse_rules('{"rules":{}}')
"""Denies everything, except to an admin, who is exempt from rules."""
