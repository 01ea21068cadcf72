"""Requests that are judged without a daemon are judged as a database judges them."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from twisted.internet.defer import Deferred
from twisted.internet.task import Clock
from twisted.python.failure import Failure

from tests.database.world import make_active_rules, make_database, run_at_once
from tests.examples import examples
from tests.rules.evaluating import NOW, rules
from treedbd.database.database import Database
from treedbd.database.requests import Caller, Outcome, PermissionDenied, Write
from treedbd.database.rights import ReadRequest, RulesTrial
from treedbd.database.runtime import Runtime
from treedbd.rules.context import QueryFacts
from treedbd.rules.ruleset import RuleSet
from treedbd.store.memory import MemoryEngine
from treedbd.tree.edit import Edit, make_patch, make_put, make_remove
from treedbd.tree.types import InvalidData, Json, Path, Place

ADMIN = Caller(None, is_admin=True)
TEXTS = [
    *("true", "false", "auth != null", "auth.uid == 'ada'", "data.exists()", "now > 0"),
    "root.child('a').val() == 1",
    "query.limitToFirst <= 5",
    "data.val() + 1 > 0",
]
WRITE_TEXTS = [
    *TEXTS,
    "newData.exists()",
    "newData.val() == now",
    "newData.isNumber() && newData.val() > data.val()",
    "newData.hasChildren(['a'])",
]
LEAVES = st.sampled_from([1, 2, "x", True, None])
PATHS = st.lists(st.sampled_from("ab"), max_size=3).map(tuple)
VALUES = st.recursive(LEAVES, lambda below: st.dictionaries(st.sampled_from("abc"), below))
SENT = st.recursive(
    LEAVES | st.sampled_from([{".sv": "timestamp"}, {".sv": {"increment": 1}}]),
    lambda below: st.dictionaries(st.sampled_from("abc"), below),
)
CALLERS = st.sampled_from([Caller(None), Caller({"uid": "ada"}), Caller({}), ADMIN])
QUERIES = st.sampled_from([None, QueryFacts(limit_to_first=5), QueryFacts(limit_to_first=6)])


def nodes(depth: int) -> st.SearchStrategy[dict[str, Any]]:
    rule = {
        ".read": st.sampled_from(TEXTS),
        ".write": st.sampled_from(WRITE_TEXTS),
        ".validate": st.sampled_from(WRITE_TEXTS),
    }
    below = {} if not depth else {"a": nodes(depth - 1), f"$key{depth}": nodes(depth - 1)}
    return st.fixed_dictionaries({}, optional={**rule, **below})


def edit_of(method: str, path: Path, value: Json) -> Edit:
    if method == "patch":
        return make_patch(path, value)
    return make_remove(Place(path)) if method == "delete" else make_put(Place(path), value)


class Live:
    """A database with some data, as a daemon has it."""

    def __init__(self, rule_set: RuleSet, data: Json) -> None:
        self.clock = Clock()
        self.database: Database = make_database(
            MemoryEngine(),
            Runtime(self.clock, bytes, run_at_once),
            make_active_rules(run_at_once, rule_set),
        )
        assert self.write(make_put(Place(()), data), ADMIN)

    def read(self, path: Path, caller: Caller, query: QueryFacts | None) -> bool:
        try:
            self.database.check_read(ReadRequest(caller, path, query, lambda: NOW))
        except PermissionDenied:
            return False
        return True

    def write(self, edit: Edit, caller: Caller) -> bool:
        results: list[Outcome | Failure] = []
        done: Deferred[Outcome] = self.database.write(Write(edit, NOW, caller))
        done.addBoth(results.append)
        self.clock.advance(0)
        (result,) = results
        if isinstance(result, Failure):
            result.trap(PermissionDenied)
            return False
        return True


@settings(max_examples=examples(200))
@given(nodes(2), VALUES, PATHS, CALLERS, QUERIES)
def test_a_read_is_judged_as_by_a_database(
    document: Any, data: Json, path: Path, caller: Caller, query: QueryFacts | None
) -> None:
    rule_set = rules(document)
    verdict = RulesTrial(rule_set, data, NOW).judge_read(path, caller, NOW, query)
    assert verdict.allowed is Live(rule_set, data).read(path, caller, query)
    assert caller.is_admin or verdict.explained.allowed is verdict.allowed


@settings(max_examples=examples(300))
@given(nodes(2), VALUES, st.sampled_from(["put", "patch", "delete"]), PATHS, SENT, CALLERS)
def test_a_write_is_judged_as_by_a_database(
    document: Any, data: Json, method: str, path: Path, value: Json, caller: Caller
) -> None:
    try:
        edit = edit_of(method, path, value)
    except InvalidData:
        edit = make_remove(Place(path))
    rule_set = rules(document)
    trial = RulesTrial(rule_set, data, NOW)
    verdict = trial.judge_write(edit, caller, NOW)
    assert verdict.allowed is Live(rule_set, data).write(edit, caller)
    assert caller.is_admin or verdict.explained.allowed is verdict.allowed
    assert trial.judge_write(edit, caller, NOW) == verdict  # nothing was written


def test_a_write_that_cannot_be_done_has_no_verdict() -> None:
    trial = RulesTrial(rules({".write": True}), 1e308, NOW)
    edit = make_put(Place(()), {".sv": {"increment": 1.7e308}})
    with pytest.raises(InvalidData):
        trial.judge_write(edit, ADMIN, NOW)
