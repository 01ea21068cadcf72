"""Queries in tests."""

from __future__ import annotations

from treedbd.tree.query import Query, parse_query


def query(**parameters: str) -> Query:
    """Return the query in parameters that have one."""
    parsed = parse_query(parameters)
    assert parsed is not None
    return parsed
