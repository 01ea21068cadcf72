"""Which indexes a database has, and how far each is built: one row, beside the entries.

An index is `building` until all children of all its collections have entries; writes keep what is
there already. It is `built` from then on, and read by queries. When it is not declared any more it
is `dropping` until it has no entries. Each step of building or dropping changes this row in its own
transaction, so it goes on where it was after a crash.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any, Final, Literal, TypeAlias

import attrs
import orjson

from treedbd.store.engine import DamagedRow, ReadView, Transaction
from treedbd.store.index_keys import STATE_KEY, ChildIndex
from treedbd.store.rows import seal, unseal
from treedbd.tree.path import parse_child
from treedbd.tree.query import BY_PRIORITY, BY_VALUE, Order
from treedbd.tree.types import Json, Path
from treedbd.tree.value import compact

Stage: TypeAlias = Literal["building", "built", "dropping"]

_SPECIAL: Final = {".value": BY_VALUE, "$priority": BY_PRIORITY, ".priority": BY_PRIORITY}


@attrs.frozen
class BuildPosition:
    """How far an index is built: all before the child that follows `child` in `collection`.

    None for `child` is before the first one.
    """

    collection: Path
    child: str | None = None


@attrs.frozen
class IndexState:
    """An index and its stage; `position` while it is being built, None before its first step."""

    index: ChildIndex
    stage: Stage
    position: BuildPosition | None = None


@attrs.frozen
class IndexStates:
    """All indexes of a database."""

    states: tuple[IndexState, ...] = ()

    @property
    def kept(self) -> tuple[ChildIndex, ...]:
        """The indexes whose entries every write must keep."""
        return tuple(each.index for each in self.states if each.stage != "dropping")

    def find(self, path: Path, order: Order) -> ChildIndex | None:
        """Return an index by which the children of `path` can be read in an order, if any can."""
        for each in self.states:
            index = each.index
            if each.stage == "built" and index.order == order and index.matches(path):
                return index
        return None

    def with_state(self, state: IndexState) -> IndexStates:
        """Return the states with another one of an index, which is added if it is new."""
        others = [each for each in self.states if each.index != state.index]
        return IndexStates((*others, state))

    def without(self, index: ChildIndex) -> IndexStates:
        """Return the states without an index."""
        return IndexStates(tuple(each for each in self.states if each.index != index))


NO_INDEXES: Final = IndexStates()


def order_named(name: str) -> Order:
    """Return the order that `.indexOn` calls by a name; raise ValueError if it is none."""
    return _SPECIAL.get(name) or Order("child", parse_child(name))


def read_states(view: ReadView) -> IndexStates:
    """Return the indexes of a database at one moment; raise `DamagedRow`."""
    stored = view.get(STATE_KEY)
    return NO_INDEXES if stored is None else _decode(stored)


def write_states(transaction: Transaction, states: IndexStates) -> None:
    """Set the indexes of a database."""
    if not states.states:
        transaction.delete(STATE_KEY)
        return
    json: Any = [_to_json(each) for each in states.states]
    transaction.put(STATE_KEY, seal(STATE_KEY, compact(json)))


def _to_json(state: IndexState) -> Any:
    json: dict[str, Json] = {
        "pattern": list(state.index.pattern),
        "order": state.index.name,
        "stage": state.stage,
    }
    if state.position is not None:
        json["position"] = [*state.position.collection, state.position.child]
    return json


@lru_cache(maxsize=64)
def _decode(stored: bytes) -> IndexStates:
    try:
        json: Any = orjson.loads(unseal(STATE_KEY, stored))
        return IndexStates(tuple(_from_json(each) for each in json))
    except (orjson.JSONDecodeError, LookupError, TypeError, AttributeError):
        raise DamagedRow("The row of the indexes cannot be read.") from None


def _from_json(json: Any) -> IndexState:
    index = ChildIndex(tuple(json["pattern"]), order_named(json["order"]))
    position = None
    if "position" in json:
        *collection, child = json["position"]
        position = BuildPosition(tuple(collection), child)
    return IndexState(index, json["stage"], position)
