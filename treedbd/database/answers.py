"""Rendered answers of one database, kept in memory until a write changes them.

Theory of operation. The answers of a database are in a tree of places, by the form of the read. A
commit may change all answers at, above and below its places, so these are dropped in the turn in
which the commit is known to be durable, before its writers are answered and before any read sees
the new state (`Database`). So an answer in the tree is what a read of the present state would
render, and no answer is older than an acknowledged write. Rules are not part of it: they are
evaluated for each request, on the same state.

What many answers are made from is kept in the same way (`keep_content`): the children of a small
collection in the order of a query, and outlines (`store.outline`). An outline is not dropped by a
write below its place, but notes which child has changed.

Detaching them takes a few steps for each place that was written, however many answers are below it.
They are removed from memory in slices afterwards; until then they still count towards the
`AnswerPool`, which bounds the answers of all databases together.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from sys import getsizeof
from typing import Any, Final

from treedbd.database.slices import Slices, Steps
from treedbd.tree.event import Commit
from treedbd.tree.types import PRIORITY, ROOT, Path, Place

ANSWER_BYTES: Final = 350
"""What an answer takes in memory beside its texts, and a place in the tree beside its key."""
_MAX_CHANGES: Final = 256
"""If a commit has more changes, all answers below its path are dropped."""
_AT_ONCE: Final = 32
"""Answers and places that are removed from memory between two looks at the clock."""
_SHARE: Final = 8
"""An answer of more than one of this many parts of the pool is not kept."""
OUTLINE: Final = "outline"
"""The form of an outline, which stays when something below its place changes, and notes that."""


class Answer:
    """What a read showed.

    Attributes:
        body: the JSON.
        size: the bytes that it takes.
        tag: its entity tag, set when it was computed first.
        content: what shares `body` between readers, set when it was made first; or what was kept by
            `keep_content`, whose `body` is empty.

    """

    __slots__ = ("_form", "_forms", "_node", "_pool", "body", "content", "size", "tag")

    def __init__(self, pool: AnswerPool, node: _Branch, form: str, body: bytes, size: int) -> None:
        self.body: Final = body
        self.size: Final = size + getsizeof(form) + ANSWER_BYTES
        self.tag: str | None = None
        self.content: Any = None
        self._pool = pool
        self._node = node
        self._form = form
        self._forms = node.forms  # which the node may replace by an empty one

    def move(self, forms: dict[str, Answer]) -> None:
        """Be among other answers of the same place."""
        forms[self._form] = self
        self._forms = forms

    def drop(self) -> None:
        """Leave the tree, and the places that are empty then."""
        del self._forms[self._form]
        self._pool.remove(self)
        self._node.prune(self._pool)


class _Branch:
    """A place in the tree of answers; `parent` is None for the root, and for one that has left."""

    __slots__ = ("children", "forms", "key", "parent", "size")

    def __init__(self, parent: _Branch | None, key: str) -> None:
        self.parent = parent
        self.key = key
        self.size: Final = getsizeof(key) + ANSWER_BYTES
        self.forms: dict[str, Answer] = {}
        self.children: dict[str, _Branch] = {}

    def detach_above(self, key: str, sequence: int) -> _Branch:
        """Return what was here as a place of its own; an outline stays, and notes a change.

        The write with the number `sequence` has changed the child `key`, or what is below it.
        """
        outline = self.forms.pop(OUTLINE)
        taken = self.detach(with_children=False)
        outline.move(self.forms)
        outline.content.note(key, sequence)
        return taken

    def leave(self, pool: AnswerPool) -> None:
        """Stop counting the memory of this place."""
        if self.parent is not None:
            self.parent = None
            pool.size -= self.size

    def prune(self, pool: AnswerPool) -> None:
        """Leave the tree if nothing is here or below, with the places above that are empty then."""
        node = self
        while node.parent is not None and not node.forms and not node.children:
            parent = node.parent
            if parent.children.get(node.key) is node:
                del parent.children[node.key]
            node.leave(pool)
            node = parent

    def detach(self, *, with_children: bool) -> _Branch:
        """Return what was here, and with `with_children` below, as a place of its own."""
        taken = _Branch(None, "")
        taken.forms, self.forms = self.forms, taken.forms
        if with_children:
            taken.children, self.children = self.children, taken.children
        return taken


class Answers:
    """The answers of one database.

    Attributes:
        is_active: whether answers are kept: those of a database that is dropped with its last
            request would never be used.

    """

    def __init__(self, pool: AnswerPool, slices: Slices) -> None:
        """Keep what `pool` has room for, as long as `is_active`."""
        self.is_active = False
        self._pool = pool
        self._slices = slices
        self._root = _Branch(None, "")

    def __bool__(self) -> bool:
        """Return whether any are kept."""
        return bool(self._root.forms or self._root.children)

    @property
    def keeps(self) -> bool:
        """Whether anything can be kept."""
        return self.is_active and self._pool.largest > 0

    def find(self, place: Place, form: str) -> Answer | None:
        """Return the answer to a read of a place in a form, None if it is not kept."""
        answer = self._find(place.path, PRIORITY + form if place.is_priority else form)
        if answer is not None:
            self._pool.hits += 1
        return answer

    def find_content(self, path: Path, form: str) -> Any:
        """Return what `keep_content` has kept, None if it is not kept."""
        answer = self._find(path, form)
        return None if answer is None else answer.content

    def keep(self, place: Place, form: str, body: bytes) -> Answer | None:
        """Keep the answer to a read that did not find one; return it, None if it is not kept.

        `body` is what the present state shows.
        """
        self._pool.misses += 1
        form = PRIORITY + form if place.is_priority else form
        return self._keep(place.path, form, body, len(body))

    def keep_content(self, path: Path, form: str, content: object, size: int) -> None:
        """Keep what answers to reads of a path are made from; it takes `size` bytes.

        What was kept in its place is dropped.
        """
        before = self._find(path, form)
        if before is not None:
            before.drop()
        answer = self._keep(path, form, b"", size)
        if answer is not None:
            answer.content = content

    def _find(self, path: Path, form: str) -> Answer | None:
        node = self._root
        for key in path:
            below = node.children.get(key)
            if below is None:
                return None
            node = below
        answer = node.forms.get(form)
        if answer is not None:
            self._pool.use(answer)
        return answer

    def _keep(self, path: Path, form: str, body: bytes, size: int) -> Answer | None:
        pool = self._pool
        if size > pool.largest or not self.keeps:
            return None
        node = self._root
        for key in path:
            child = node.children.get(key)
            if child is None:
                child = node.children[key] = _Branch(node, key)
                pool.size += child.size
            node = child
        answer = node.forms.get(form)
        if answer is None:
            answer = node.forms[form] = Answer(pool, node, form, body, size=size)
            pool.add(answer)
        return answer

    def drop_changed(self, commits: Sequence[Commit]) -> None:
        """Drop all answers that commits may have changed."""
        for commit in commits:
            if not (self._root.forms or self._root.children):
                return
            sequence = commit.position.sequence
            if len(commit.changes) > _MAX_CHANGES:
                self._drop_at(commit.path, sequence)
            else:
                for change in commit.changes:
                    self._drop_at(change.path, sequence)

    def drop(self, path: Path, sequence: int) -> None:
        """Drop all answers that a change of a path concerns; the state after it has a number."""
        self._drop_at(path, sequence)

    def clear(self) -> None:
        """Drop all answers."""
        self._drop_at(ROOT, 0)

    def _drop_at(self, path: Path, sequence: int) -> None:
        """Drop the answers at a path, above and below it, which the write `sequence` changed."""
        node = self._root
        detached: list[_Branch] = []
        for key in path:
            if node.forms:
                if OUTLINE in node.forms:
                    detached.append(node.detach_above(key, sequence))
                else:
                    detached.append(node.detach(with_children=False))
            below = node.children.get(key)
            if below is None:
                break
            node = below
        else:
            detached.append(node.detach(with_children=True))
        node.prune(self._pool)
        if detached:
            self._slices.start(self._forget(detached))

    def _forget(self, detached: list[_Branch]) -> Steps:
        """Remove detached answers from memory."""
        pool = self._pool
        count = 0
        while detached:
            node = detached[-1]
            if node.forms:
                pool.remove(node.forms.popitem()[1])
            elif node.children:
                detached.append(node.children.popitem()[1])
            else:
                detached.pop().leave(pool)
            count += 1
            if count % _AT_ONCE == 0:
                yield


class AnswerPool:
    """Bounds the memory that the kept answers of all databases take together.

    What was used longest ago is dropped first, and before that what a write changes (`Answers`).

    Attributes:
        size: the bytes that they take, as they are estimated.
        largest: bytes of the largest answer that is kept.
        hits, misses: how many reads found an answer, and how many might have but did not.

    """

    def __init__(self, limit: int) -> None:
        """Keep about `limit` bytes; 0 keeps nothing."""
        self.size = 0
        self.largest: Final = limit // _SHARE
        self.hits = 0
        self.misses = 0
        self._limit = limit
        self._by_use: OrderedDict[Answer, None] = OrderedDict()

    @property
    def count(self) -> int:
        """How many answers are kept."""
        return len(self._by_use)

    def use(self, answer: Answer) -> None:
        """Record that an answer is used."""
        self._by_use.move_to_end(answer)

    def add(self, answer: Answer) -> None:
        """Count an answer; drop what was used longest ago to make room for it."""
        self._by_use[answer] = None
        self.size += answer.size
        while self.size > self._limit and self._by_use:
            next(iter(self._by_use)).drop()

    def remove(self, answer: Answer) -> None:
        """Stop counting an answer."""
        del self._by_use[answer]
        self.size -= answer.size
