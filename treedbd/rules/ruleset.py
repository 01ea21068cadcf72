"""A rule set: the rules of a project, put in force by their text and asked for verdicts.

This is the door of the room. `parse_rules` turns a document into a `RuleSet` or says where it is
wrong; `may_read` and `may_write` judge one operation each and touch nothing but the view they are
handed. Whoever may skip the rules (an administrator) does not come here.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from hashlib import blake2b

import attrs

from treedbd.rules.dependencies import Dependencies, Recorder
from treedbd.rules.document import Item, Source, as_json, parse_document
from treedbd.rules.evaluation import Context, Scope
from treedbd.rules.judge import Trial, Verdict
from treedbd.rules.limits import JUDGED_CHARACTERS, RulesLimits
from treedbd.rules.outline import RuleNode, outline
from treedbd.rules.overlay import Overlay
from treedbd.rules.refusal import InvalidRules
from treedbd.tree.edit import Change
from treedbd.tree.path import Path
from treedbd.tree.value import Json
from treedbd.tree.view import View

DEFAULT_LIMITS = RulesLimits()
_BRACKETS_BESIDE_NODES = 8
"""More than a document has whose nodes are not too deep; `outline` tells where those are."""

_ALLOWED = Verdict(True)
_DENIED = Verdict(False)


@attrs.frozen(eq=False, slots=False)
class RuleSet:
    """Rules in force; `text` is the document as it was put."""

    text: str
    _document: Item = attrs.field(repr=False)
    _root: RuleNode = attrs.field(repr=False)
    _judged_characters: int = attrs.field(default=JUDGED_CHARACTERS, repr=False)

    @cached_property
    def fingerprint(self) -> str:
        """A name of these rules, which no others have."""
        return blake2b(self.text.encode(), digest_size=8).hexdigest()

    def as_json(self) -> Json:
        """Return the document as plain JSON: no comments, order kept."""
        return as_json(self._document)

    def may_read(
        self, path: Path, context: Context, *, explain: bool = False, record: bool = False
    ) -> Verdict:
        """Judge a read of `path`, or a query there if the context has one.

        `explain` asks for the trace, `record` for the dependencies.
        """
        view: View = context.view
        recorder = Recorder(view) if record else None
        scope = Scope(context, recorder or view, recorder or view, self._judged_characters)
        trial = Trial(scope, explain=explain)
        allowed = trial.read(self._root, path)
        if not explain and recorder is None:
            return _ALLOWED if allowed else _DENIED
        dependencies = None
        if recorder is not None:
            dependencies = Dependencies(frozenset(recorder.paths), trial.asked_time)
        return Verdict(allowed, tuple(trial.trace or ()), dependencies)

    def may_write(
        self,
        changes: Sequence[Change],
        context: Context,
        *,
        after: View | None = None,
        explain: bool = False,
    ) -> Verdict:
        """Judge a write: the changes of one edit, their placeholders replaced.

        `after` is the tree with the changes, if the caller has a view of it. A write that changes
        nothing (a PATCH without members) is allowed.
        """
        view = after or Overlay(context.view, changes)
        scope = Scope(context, context.view, view, self._judged_characters)
        trial = Trial(scope, explain=explain, shared=len(changes) > 1)
        allowed = trial.write(self._root, changes)
        if not explain:
            return _ALLOWED if allowed else _DENIED
        return Verdict(allowed, tuple(trial.trace or ()))

    def indexed(self, path: Path) -> frozenset[str]:
        """Return what the children of `path` are indexed by: child paths and `.value`."""
        node: RuleNode | None = self._root
        for key in path:
            if node is None:
                break
            node = node.child(key)
        return node.index_on if node is not None else frozenset()


def parse_rules(text: str | bytes, limits: RulesLimits = DEFAULT_LIMITS) -> RuleSet:
    """Parse, check and compile a rules document; raise `InvalidRules` for the first error."""
    decoded = _decode(text, limits.document_bytes)
    source = Source(decoded)
    document = parse_document(source, limits.node_depth + _BRACKETS_BESIDE_NODES)
    return RuleSet(decoded, document, outline(source, document, limits), limits.judged_characters)


def _decode(text: str | bytes, max_bytes: int) -> str:
    raw = text.encode("utf-8", "surrogatepass") if isinstance(text, str) else text
    if len(raw) > max_bytes:
        raise InvalidRules(1, 1, f"The rules are longer than {max_bytes} bytes.")
    try:
        return raw.decode()
    except UnicodeDecodeError as error:
        before = Source(raw[: error.start].decode())
        raise InvalidRules(*before.position(len(before.text)), "The text is not UTF-8.") from None


OPEN = parse_rules('{"rules":{".read":true,".write":true}}')
"""Allows everything."""
DENY = parse_rules('{"rules":{}}')
"""Allows nothing, but to an administrator, who is not asked."""
