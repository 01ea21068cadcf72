"""Query strings: parsed, turned into what is read, and answered from a small collection."""

from __future__ import annotations

from itertools import islice
from typing import Final

from tests.fuzz.expecting import outcome
from treedbd.store.memory import MemoryEngine
from treedbd.store.node_writer import NodeWriter
from treedbd.store.nodes import Nodes
from treedbd.store.select import iterate_selected
from treedbd.tree.edit import make_put
from treedbd.tree.query import Query
from treedbd.tree.types import InvalidPath, InvalidQuery, Json, Place
from treedbd.web.request import (
    check_stream,
    parse_leniently,
    parse_parameters,
    parse_read_options,
    parse_timeout,
)

TOKENS: Final = (
    *(b"&", b"=", b"%22", b"%", b"+", b";", b"orderBy=", b'orderBy="$key"', b'orderBy="$value"'),
    *(b'orderBy="$priority"', b'orderBy="a"', b'orderBy="a/b"', b"limitToFirst=", b"limitToLast=2"),
    *(b"startAt=", b"endAt=", b"equalTo=", b"startAfter=", b"endBefore=", b"shallow=true", b"v=2"),
    *(b"print=pretty", b"timeout=1s", b"callback=a.b", b"download=x", b"format=export", b"null"),
    *(b'where={"a":1}', b'{"a":{">=":1,"in":[1,"b"]}}', b'"startsWith"', b'"exists":true', b","),
    *(b'"[MIN_NAME]"', b'"[MAX_NAME]"', b"%C3%28", b"ns=", b"auth=x", b"1e400", b"-0", b"%00"),
)
ROWS: Final[dict[str, Json]] = {
    "1": 1,
    "02": {"a": 1, "b": {"c": "x"}},
    "-3": True,
    "é": {"a": "text", ".priority": 2},
    "k": None,
    "list": [1, 2],
    "z": {"a": {"b": False}, "long": "x" * 5000},
}


def _collection() -> Nodes:
    writer = NodeWriter(MemoryEngine().begin())
    writer.apply(make_put(Place(("c",)), ROWS).changes)
    return writer


_NODES: Final = _collection()
_KEYS: Final = frozenset(_NODES.keys(("c",)))


def check(data: bytes) -> None:
    """Answer the query in the bytes."""
    parameters = outcome(lambda: parse_parameters(data), InvalidQuery)
    lenient = parse_leniently(data)
    if isinstance(parameters, InvalidQuery):
        return
    assert lenient == parameters
    outcome(lambda: parse_timeout(parameters.get("timeout")), InvalidQuery)
    for place in (Place(("c",)), Place(("c",), is_priority=True)):
        outcome(lambda: check_stream(parameters, place), InvalidQuery, InvalidPath)  # noqa: B023
    options = outcome(lambda: parse_read_options(parameters, 3), InvalidQuery)
    if isinstance(options, InvalidQuery):
        return
    assert options.form
    assert options.facts is None or options.query is not None or options.shallow is not None
    if options.query is not None:
        _check_query(options.query)


def _check_query(query: Query) -> None:
    """Check that a query finds children that are there, no more than it may, and each once."""
    selected = outcome(lambda: list(iterate_selected(_NODES, ("c",), query)), InvalidQuery)
    if isinstance(selected, InvalidQuery):  # it looks through too many
        assert query.where is not None
        return
    keys = [child.key for child in selected if child is not None]
    assert len(set(keys)) == len(keys)
    assert _KEYS.issuperset(keys)
    limit = query.limit_to_first or query.limit_to_last
    assert limit is None or len(keys) <= limit
    again = [each.key for each in islice(iterate_selected(_NODES, ("c",), query), 999) if each]
    assert again == keys
