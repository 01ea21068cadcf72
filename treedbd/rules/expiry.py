"""When nodes go: the `.ttl` rules of a project, found for paths, and evaluated.

A node whose rule node has a `.ttl` is an *instance* of it: it goes at the time that the expression
yields, or some seconds after the last write at, below or above it. Both are known when the node is
written, since an expression reads nothing but the node and the keys of its path (`typecheck`).
Nothing here writes; what the times are kept by is in `store.expiry_rows` and `database.expiry`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from functools import cached_property
from hashlib import blake2b
from typing import Any, Final, NamedTuple, TypeAlias

import orjson

from treedbd.rules.context import Budget, Context, EvaluationError, MeteredView, Scope
from treedbd.rules.evaluate import Lifetime, RuleNode
from treedbd.tree.path import format_path
from treedbd.tree.shape import Shape, all_but, hash_key
from treedbd.tree.types import Json, Path, View

LATEST_MS: Final = 253_402_300_799_999
"""The end of the year 9999 in milliseconds since 1970; what goes later never goes."""


KeysFrom: TypeAlias = Callable[[Path, "str | None"], Iterator[str]]
"""Returns the keys of the children of a path, from a key on."""


class Instance(NamedTuple):
    """A node that may go: its path, and what says when."""

    path: Path
    lifetime: Lifetime


class ExpiryRules:
    """The `.ttl` rules of one rule set, of which there is at least one."""

    def __init__(self, root: RuleNode, characters: int) -> None:
        """Find them below `root`; each evaluation may read so many `characters`."""
        self._root = root
        self._characters = characters

    @cached_property
    def patterns(self) -> dict[Lifetime, str]:
        """Each `.ttl`, with a short name of the places that it applies to.

        The names of two rule sets are equal if their places are: the captures may have other names.
        Those of expressions are others than those of seconds: only of these the last writes of all
        nodes are known.
        """
        found: dict[Lifetime, str] = {}
        pending: list[tuple[RuleNode, list[Json]]] = [(self._root, [])]
        while pending:
            node, places = pending.pop()
            if node.lifetime is not None:
                found[node.lifetime] = _digest([places, node.lifetime.seconds is not None])
            for key, below in node.literals.items():
                if below.lifetime or below.expires_below:
                    pending.append((below, [*places, key]))
            if node.capture is not None and (node.capture.lifetime or node.capture.expires_below):
                others: list[Json] = [*sorted(node.literals)]
                pending.append((node.capture, [*places, others]))
        return found

    @cached_property
    def shapes(self) -> dict[str, Shape]:
        """The names of the patterns that are in seconds, with their places.

        No path is in two of them.
        """
        found: dict[str, Shape] = {}
        pending: list[tuple[RuleNode, Shape]] = [(self._root, ())]
        while pending:
            node, shape = pending.pop()
            if node.lifetime is not None and node.lifetime.seconds is not None:
                found[self.patterns[node.lifetime]] = shape
            for key, below in node.literals.items():
                if below.lifetime or below.expires_below:
                    pending.append((below, (*shape, hash_key(key))))
            if node.capture is not None and (node.capture.lifetime or node.capture.expires_below):
                pending.append((node.capture, (*shape, all_but(node.literals))))
        return found

    @cached_property
    def fingerprint(self) -> str:
        """A short hash that identifies where nodes go, and when."""
        each: list[Json] = [
            [name, *lifetime.keys, lifetime.text] for lifetime, name in self.patterns.items()
        ]
        return _digest(sorted(each, key=repr))

    def above(self, path: Path) -> list[Instance]:
        """Return the instances at and above a path, whether they exist or not."""
        found: list[Instance] = []
        node: RuleNode | None = self._root
        depth = 0
        while node is not None:
            if node.lifetime is not None:
                found.append(Instance(path[:depth], node.lifetime))
            if depth == len(path) or not node.expires_below:
                break
            node = node.literals.get(path[depth], node.capture)
            depth += 1
        return found

    def at(self, path: Path) -> Lifetime | None:
        """Return the `.ttl` of a node, None if it has none."""
        node: RuleNode | None = self._root
        for key in path:
            if node is None or not node.expires_below:
                return None
            node = node.literals.get(key, node.capture)
        return None if node is None else node.lifetime

    def below(
        self, path: Path, view: View, keys_from: KeysFrom, start: Path = ()
    ) -> Iterator[Instance]:
        """Iterate over the instances below a path that exist, those at `path` left out.

        They come in the order of their paths, upper ones first. With `start`, the path of one that
        may be gone, those before it are left out. `keys_from` returns the keys of the children of a
        path from a key on, which need not exist; from the first one on with None.
        """
        node: RuleNode | None = self._root
        for key in path:
            if node is None:
                return
            node = node.literals.get(key, node.capture)
        if node is not None and node.expires_below:
            yield from _below(node, path, _Tree(view, keys_from), start)

    def due(self, instance: Instance, view: View, written_ms: int) -> int | None:
        """Return when an instance that exists goes, in milliseconds since 1970; None for never.

        It was written last at `written_ms`. An expression that fails, or has no number, is never.
        """
        lifetime = instance.lifetime
        if lifetime.seconds is not None:
            return _moment(written_ms + math.ceil(lifetime.seconds * 1000))
        try:
            return _moment(self.evaluate(instance, view))
        except EvaluationError:
            return None

    def evaluate(self, instance: Instance, view: View) -> Any:
        """Return the value of the expression of an instance; raise `EvaluationError`."""
        budget = Budget(self._characters)
        metered = MeteredView(view, budget)
        scope = Scope(Context(None, 0, view), metered, metered, budget)
        scope.path = instance.path
        find = instance.lifetime.find
        return None if find is None else find(scope)


def _digest(json: Json) -> str:
    return blake2b(orjson.dumps(json), digest_size=8).hexdigest()


def _moment(value: Any) -> int | None:
    """Return a time as the index keeps it, never too early; None if there is none."""
    if type(value) is not int and (type(value) is not float or not math.isfinite(value)):
        return None
    return None if value > LATEST_MS else max(0, math.ceil(value))


class _Tree(NamedTuple):
    view: View
    keys_from: KeysFrom

    def keys(self, node: RuleNode, path: Path, first: str | None) -> Iterator[str]:
        """Iterate over the keys below a path that have rules, from `first` on."""
        if node.capture is not None:
            yield from self.keys_from(path, first)
            return
        for key in sorted(node.literals):
            if (first is None or key >= first) and self.view.type_at((*path, key)) is not None:
                yield key


def _below(node: RuleNode, path: Path, tree: _Tree, start: Path) -> Iterator[Instance]:
    """Iterate over the instances below a path whose rule node is `node`."""
    depth = len(path)
    first = start[depth] if len(start) > depth and start[:depth] == path else None
    for key in tree.keys(node, path, first):
        rules = node.literals.get(key, node.capture)
        if rules is None:
            continue
        below = (*path, key)
        is_above_start = key == first and len(start) > len(below)
        if rules.lifetime is not None and not is_above_start:
            yield Instance(below, rules.lifetime)
        if rules.expires_below:
            yield from _below(rules, below, tree, start if key == first else ())


WrittenOf: TypeAlias = Callable[[Instance], "int | None"]


def show_expiry(rules: ExpiryRules, path: Path, view: View, written_of: WrittenOf) -> list[Json]:
    """Return what explanations show of the `.ttl` at and above a path: where, and when nodes go.

    `written_of` returns when an instance was written last, in milliseconds since 1970, None if that
    is not known.
    """
    return [_show(rules, each, view, written_of) for each in rules.above(path)]


def _show(rules: ExpiryRules, instance: Instance, view: View, written_of: WrittenOf) -> Json:
    lifetime = instance.lifetime
    shown: dict[str, Json] = {
        "rule": lifetime.location,
        "path": format_path(instance.path),
        "line": lifetime.position.line,
        "column": lifetime.position.column,
        "expires": None,
    }
    if view.type_at(instance.path) is None:
        return shown
    if lifetime.seconds is not None:
        written = written_of(instance)
        return shown | {"expires": None if written is None else rules.due(instance, view, written)}
    try:
        return shown | {"expires": _moment(rules.evaluate(instance, view))}
    except EvaluationError as error:
        return shown | {"error": str(error)}
