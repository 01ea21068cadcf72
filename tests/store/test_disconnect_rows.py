"""Writes that are kept for the end of a session are rows that no read of the tree finds."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from treedbd.loop import in_steps
from treedbd.names import Origin
from treedbd.store import disconnect_rows
from treedbd.store.disconnect_rows import (
    DisconnectEntry,
    add_entry,
    cancel_entries,
    list_owners,
    list_rows,
)
from treedbd.store.engine import DamagedRow, Transaction
from treedbd.store.indexes import DISCONNECT_FIRST
from treedbd.store.memory import MemoryEngine
from treedbd.store.nodes import Nodes
from treedbd.store.rows import is_page, seal
from treedbd.store.verify import verify, verify_indexes
from treedbd.tree.edit import Edit, make_patch, make_put
from treedbd.tree.types import Json, Place

OWNER, SESSION = "aa", "0f"


class Rows:
    """The rows of one session."""

    def __init__(self) -> None:
        self.transaction: Transaction = MemoryEngine().begin()
        self.counted: list[tuple[int, int]] = []

    def add(self, edit: Edit, session: str = SESSION, owner: str = OWNER) -> bool:
        entry = DisconnectEntry({"uid": "ada"}, False, edit)
        return add_entry(self.transaction, owner, session, entry, self._count)

    def _count(self, entries: Sequence[DisconnectEntry]) -> None:
        places = sum(len(each.edit.changes) for each in entries)
        self.counted.append((places, sum(each.size for each in entries)))

    def put(self, path: str, value: Json, *, is_priority: bool = False) -> None:
        self.add(make_put(Place(tuple(path.split("/")), is_priority), value))

    def patch(self, path: str, body: Json) -> None:
        self.add(make_patch(tuple(path.split("/")), body))

    def cancel(self, path: str) -> bool:
        place = Place(tuple(path.split("/")) if path else ())
        return cancel_entries(self.transaction, OWNER, SESSION, place)

    @property
    def kept(self) -> list[tuple[str, Json]]:
        """Where and what is kept, in order."""
        entries = [row.entry() for row in list_rows(self.transaction, OWNER, SESSION)]
        return [("/".join(each.edit.place.path), each.edit.sent) for each in entries]


def test_what_was_set_is_read_back_with_its_identity_and_server_values() -> None:
    rows = Rows()
    edit = make_put(Place(("a",)), {"at": {".sv": "timestamp"}, "n": {".sv": {"increment": 1}}})
    rows.add(edit)
    (row,) = list_rows(rows.transaction, OWNER, SESSION)
    assert row.entry() == DisconnectEntry({"uid": "ada"}, False, edit)


def test_what_is_audited_is_read_back_with_its_origin() -> None:
    transaction = MemoryEngine().begin()
    edit, origin = make_put(Place(("a",)), 1), Origin("203.0.113.7", "t1", "socket")
    entry = DisconnectEntry(None, True, edit, origin)
    assert add_entry(transaction, OWNER, SESSION, entry, lambda _: None)
    (row,) = list_rows(transaction, OWNER, SESSION)
    assert row.entry() == entry


def test_the_order_is_that_of_setting_beyond_any_number_of_digits() -> None:
    rows = Rows()
    for number in range(300):
        rows.put(f"k{number}", number)
    assert [sent for _, sent in rows.kept] == list(range(300))


def test_a_put_replaces_what_was_set_at_and_below_its_place_only() -> None:
    rows = Rows()
    rows.put("a", 1)
    rows.put("a/b", 2)
    rows.put("ab", 3)
    rows.patch("c", {"d": 4, "e": 5})
    rows.put("a/b", 6)
    rows.put("c/d", 7)
    assert rows.kept == [("a", 1), ("ab", 3), ("c", {"e": 5}), ("a/b", 6), ("c/d", 7)]
    rows.put("a", 8)
    assert rows.kept == [("ab", 3), ("c", {"e": 5}), ("c/d", 7), ("a", 8)]


def test_a_priority_replaces_only_itself_and_is_replaced_by_its_node() -> None:
    rows = Rows()
    rows.put("a", 1)
    rows.put("a", 2, is_priority=True)
    assert len(rows.kept) == 2
    rows.put("a", 3, is_priority=True)
    assert [sent for _, sent in rows.kept] == [1, 3]
    rows.put("a", 4)
    assert [sent for _, sent in rows.kept] == [4]


def test_cancelling_removes_what_is_at_or_below_a_path_and_leaves_other_members() -> None:
    rows = Rows()
    rows.put("a", {"b": 1})
    rows.patch("c", {"d/x": 1, "e": 3})
    assert not rows.cancel("a/b")
    assert rows.cancel("c/d")
    assert rows.kept == [("a", {"b": 1}), ("c", {"e": 3})]
    assert rows.cancel("")
    assert rows.kept == []


def test_places_and_bytes_are_counted_before_anything_is_stored() -> None:
    rows = Rows()
    rows.put("a", "x" * 10)
    rows.patch("b", {"c": 1, "d": 2})
    assert [places for places, _ in rows.counted] == [1, 3]
    assert rows.counted[1][1] > rows.counted[0][1] > 10


def test_an_empty_patch_is_not_stored() -> None:
    rows = Rows()
    assert not rows.add(make_patch((), {}))
    assert rows.kept == []


def test_sessions_and_owners_are_found_apart_though_their_names_begin_alike() -> None:
    rows = Rows()
    for owner, session in [("a", "1"), ("a", "11"), ("ab", "1"), ("b", "2")]:
        rows.add(make_put(Place((owner + session,)), 1), session, owner)
    assert list(list_owners(rows.transaction)) == ["a", "ab", "b"]
    assert len(list_rows(rows.transaction, "a", "1")) == 1
    assert len(list_rows(rows.transaction, "a")) == 2


def test_a_name_with_a_slash_is_refused() -> None:
    with pytest.raises(ValueError, match="letters and digits"):
        list_rows(Rows().transaction, "a/b")


def test_the_rows_are_no_data_and_no_pages_and_are_verified() -> None:
    rows = Rows()
    for number in range(20):
        rows.put(f"k{number}", number)
    keys = [row.key for row in list_rows(rows.transaction, OWNER)]
    assert not any(map(is_page, keys))
    assert Nodes(rows.transaction).get(()) is None
    assert verify(rows.transaction) == []
    assert list(verify_indexes(rows.transaction)) == []


@pytest.mark.parametrize("content", [b"[]", b"{", b'{"auth":null}', b""])
def test_an_entry_that_cannot_be_read_is_reported(content: bytes) -> None:
    rows = Rows()
    rows.put("a", 1)
    (row,) = list_rows(rows.transaction, OWNER, SESSION)
    rows.transaction.put(row.key, seal(row.key, content))
    assert list(verify_indexes(rows.transaction)) == [
        "A write that was kept for a session cannot be read."
    ]
    with pytest.raises(DamagedRow):
        rows.cancel("a")


def test_a_row_beside_them_still_belongs_to_nothing() -> None:
    rows = Rows()
    rows.transaction.put(DISCONNECT_FIRST[:1] + b"e", b"")
    assert list(verify_indexes(rows.transaction)) == ["There are rows that belong to nothing."]


def test_many_entries_are_listed_in_steps() -> None:
    rows = Rows()
    for number in range(5):
        for session in ("a", "b"):
            rows.add(make_put(Place((f"k{number}",)), number), session)
    expected = list_rows(rows.transaction, OWNER)
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(disconnect_rows, "LISTED_AT_ONCE", 2)
        steps = in_steps(lambda: list_rows(rows.transaction, OWNER))
        assert len(list(steps)) == 5
        assert list_rows(rows.transaction, OWNER) == expected
    assert len(expected) == 10
