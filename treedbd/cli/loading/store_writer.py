"""Writing parts to the file of a database whose daemon does not run.

Each part is one transaction and enters the change log as one write, so a stream that resumes later
starts again. The lock of the data directory is held meanwhile.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterable, Iterator
from itertools import groupby
from typing import Any, NamedTuple

from treedbd.cli.exit import CommandFailed
from treedbd.cli.loading.location import StoredNode
from treedbd.cli.loading.parts import Part
from treedbd.config.settings import Settings
from treedbd.store.engine import CannotOpenStore, DiskFull, StoreFailed
from treedbd.store.node_writer import NodeWriter
from treedbd.store.nodes import Nodes
from treedbd.store.shelf import WritingStore
from treedbd.tree.edit import make_remove, normalise
from treedbd.tree.types import CONTAINER, PRIORITY, Change, InvalidData, Path, Place, Value


class _Siblings(NamedTuple):
    """Children that a container gets, in normal form, and the keys of those that it loses."""

    path: Path
    children: dict[str, Value]
    absent: list[str]


class StoreWriter:
    """Writes parts below one node of an open file."""

    def __init__(self, store: WritingStore, path: Path, max_string_bytes: int) -> None:
        self._store = store
        self._path = path
        self._max_string_bytes = max_string_bytes

    def is_empty(self) -> bool:
        """Return whether nothing is at the target."""
        return self._store.read(lambda nodes: nodes.peek(self._path)) is None

    def find_leaf_above(self) -> Path | None:
        """Return the path of the single value that a write at the target would replace."""
        return self._store.read(self._leaf_above)

    def _leaf_above(self, nodes: Nodes) -> Path | None:
        for length in range(len(self._path)):
            found = nodes.peek(self._path[:length])
            if found is None:
                return None
            if found is not CONTAINER:
                return self._path[:length]
        return None

    def remove(self) -> None:
        """Remove what is at the target, durably."""
        self._remove()
        self._store.commit()

    def _remove(self) -> None:
        self._store.write(make_remove(Place(self._path)))

    def replace(self, parts: Iterable[Part]) -> None:
        """Write all parts in place of what is at the target, in one transaction.

        Raises `CommandFailed`; nothing is written then.
        """
        if not self.is_empty():
            self._remove()
        for part in parts:
            self._add(part)
        self._store.commit()

    def write(self, part: Part) -> None:
        """Write a part, durably; raise `CommandFailed` for data that the tree cannot hold."""
        self._add(part)
        self._store.commit()

    def _add(self, part: Part) -> None:
        try:
            groups = self._in_containers(part)
            if groups is None:
                self._store.write(part.edit(self._path, self._max_string_bytes))
            else:
                self._write_groups(groups)
        except InvalidData as error:
            raise CommandFailed(str(error)) from None

    def _in_containers(self, part: Part) -> list[_Siblings] | None:
        """Return the members of a part by their containers, None if not all are plain children."""
        groups = []
        for above, items in groupby(part.members.items(), lambda item: item[0][:-1]):
            members = {path[-1]: value for path, value in items if path}
            if not members or PRIORITY in members:
                return None
            path = (*self._path, *above)
            normal = normalise(members, len(path), self._max_string_bytes)
            if normal.has_placeholders:
                return None
            children: Any = normal.value or {}
            groups.append(
                _Siblings(path, children, [key for key in members if key not in children])
            )
        return groups

    def _write_groups(self, groups: list[_Siblings]) -> None:
        def work(writer: NodeWriter) -> None:
            for path, children, absent in groups:
                places = [Place((*path, key)) for key in absent]
                present = [each for each in places if writer.peek(each.path) is not None]
                writer.apply([Change(place, None) for place in present])
                if children:
                    writer.add_children(path, children)

        # The log says where something was written, and not what.
        self._store.write_rows(work, make_remove(Place(self._path)), _now(), entry_bytes=0)


@contextlib.contextmanager
def open_writer(settings: Settings, node: StoredNode) -> Iterator[StoreWriter]:
    """Open the file of a node, or create it, and close it at the end; raise `CommandFailed`."""
    try:
        store = WritingStore(node.file, settings.streams.retain_events, may_create=True)
        try:
            yield StoreWriter(store, node.path, settings.limits.string_bytes)
        finally:
            store.rollback()
            store.close()
    except (CannotOpenStore, DiskFull, StoreFailed) as error:
        raise CommandFailed(str(error)) from None


def _now() -> int:
    return int(time.time() * 1000)
