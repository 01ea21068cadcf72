"""The records of operations, and the checks that need no search."""

from __future__ import annotations

import itertools
import math
import socket
import threading
from typing import Any

import attrs
import pytest

from tests.history import (
    UNSEEN,
    BadHistory,
    History,
    Operation,
    Outcome,
    check_gapless,
    check_push_keys,
    check_pushed,
    check_unique_writes,
)
from tests.rest import Client
from tests.workload import Caller, Plan, Unexpected, Unreachable, classify

NEVER = math.inf


def push(begin: float, end: float, value: str, key: Any = UNSEEN, client: int = 0) -> Operation:
    outcome = Outcome.UNKNOWN if end == NEVER else Outcome.OK
    return Operation(client, "push", "/log", begin, end, outcome, value, None, key)


def refused(operation: Operation) -> Operation:
    return attrs.evolve(operation, outcome=Outcome.REFUSED, result=UNSEEN)


def test_an_operation_is_unknown_until_it_ends() -> None:
    history = History()
    pending = history.begin(3, "swap", "/r", "b", "a")
    (begun,) = history
    assert (begun.outcome, begun.completed) == (Outcome.UNKNOWN, NEVER)
    ended = pending.end(Outcome.MISMATCH, "c")
    assert list(history) == [ended]
    assert ended.invoked == begun.invoked <= ended.completed < NEVER
    assert str(ended).endswith("client 3: swap /r 'a' by 'b': mismatch 'c'")


def test_an_unknown_operation_has_no_end() -> None:
    history = History()
    assert history.begin(1, "write", "/r", "a").end(Outcome.UNKNOWN).completed == NEVER
    assert str(next(iter(history))).endswith("to ? client 1: write /r 'a': unknown")


def test_operations_of_many_threads_are_recorded_in_the_order_of_their_begin() -> None:
    history = History()

    def work(client: int) -> None:
        for number in range(200):
            kind: Any = "push" if number % 4 == 0 else "read"
            history.begin(client, kind, f"/{number % 3}").end(Outcome.OK, number)

    threads = [threading.Thread(target=work, args=(client,)) for client in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    times = [operation.invoked for operation in history]
    assert times == sorted(times)
    assert history.counts() == {("read", Outcome.OK): 1200, ("push", Outcome.OK): 400}
    assert sum(map(len, history.registers().values())) == 1200
    assert sum(map(len, history.pushes().values())) == 400
    for client in range(8):
        own = [each.result for each in history if each.client == client]
        assert own == list(range(200))


def test_a_value_that_is_set_twice_is_found() -> None:
    one = Operation(0, "write", "/r", 0, 1, Outcome.OK, "a")
    other = Operation(1, "swap", "/r", 0, 1, Outcome.MISMATCH, "a", "x")
    check_unique_writes(History([one, attrs.evolve(other, argument="b")]))
    check_unique_writes(History([one, attrs.evolve(other, register="/s")]))
    with pytest.raises(BadHistory, match="/r was set to 'a' more than once"):
        check_unique_writes(History([one, other]))


@pytest.mark.parametrize("sequences", [[], [7], [3, 4, 5]])
def test_numbers_without_a_gap_are_right(sequences: list[int]) -> None:
    check_gapless(sequences)
    with pytest.raises(BadHistory):
        check_gapless([*sequences, 9, 11])


@pytest.mark.parametrize("sequences", [[1, 3], [1, 1], [2, 1]])
def test_a_gap_in_numbers_is_found(sequences: list[int]) -> None:
    with pytest.raises(BadHistory, match=f"After number {sequences[0]} came {sequences[1]}"):
        check_gapless(sequences)


def test_keys_of_pushes_at_the_same_time_may_have_any_order() -> None:
    check_push_keys(History([push(0, 5, "a", "-2"), push(1, 4, "b", "-1"), push(2, 9, "c", "-0")]))


def test_the_key_of_a_later_push_has_to_be_greater() -> None:
    first, later = push(0, 5, "a", "-2"), push(6, 7, "b", "-1", client=1)
    with pytest.raises(BadHistory, match="no greater key"):
        check_push_keys(History([first, push(1, 2, "x", "-0"), later]))
    check_push_keys(History([first, push(1, 2, "x", "-0"), later]), across_clients=False)
    with pytest.raises(BadHistory, match="no greater key"):
        check_push_keys(History([first, attrs.evolve(later, client=0)]), across_clients=False)
    with pytest.raises(BadHistory, match="no greater key"):
        check_push_keys(History([first, attrs.evolve(later, result="-2")]))


def test_pushes_are_there_once_and_unknown_ones_at_most_once() -> None:
    history = History([push(0, 1, "a", "-1"), push(2, NEVER, "b"), push(2, NEVER, "c")])
    check_pushed(history, {"/log": {"-1": "a"}})
    check_pushed(history, {"/log": {"-1": "a", "-2": "b", "-3": "c"}})


@pytest.mark.parametrize(
    ("found", "problem"),
    [
        ({}, "not there at the end"),
        ({"-1": "b"}, "not there at the end"),
        ({"-2": "a"}, "not there at the end"),
        ({"-1": "a", "-2": "a"}, "nobody pushed"),
        ({"-1": "a", "-2": "b", "-3": "b"}, "nobody pushed"),
        ({"-1": "a", "-2": "refused"}, "nobody pushed"),
    ],
)
def test_pushes_that_are_missing_or_doubled_are_found(found: dict[str, str], problem: str) -> None:
    pushes = [push(0, 1, "a", "-1"), push(2, NEVER, "b"), refused(push(3, 4, "refused"))]
    with pytest.raises(BadHistory, match=problem):
        check_pushed(History(pushes), {"/log": found})


@pytest.mark.parametrize(
    ("status", "code", "outcome"),
    [
        (200, None, Outcome.OK),
        (412, "condition_failed", Outcome.MISMATCH),
        (429, "too_many_requests", Outcome.REFUSED),
        (503, "unavailable", Outcome.REFUSED),
        (504, "timeout", Outcome.REFUSED),
        (504, "in_doubt", Outcome.UNKNOWN),
    ],
)
def test_a_response_says_the_outcome(status: int, code: str | None, outcome: Outcome) -> None:
    assert classify(status, {"error": code}) is outcome


@pytest.mark.parametrize("status", [204, 400, 403, 404, 500])
def test_another_response_is_unexpected(status: int) -> None:
    with pytest.raises(Unexpected, match=str(status)):
        classify(status, {"error": "internal_error"})


def test_a_caller_records_what_it_sees(tree: Client) -> None:
    history = History()
    caller = Caller(0, [tree.daemon.http], Plan(), history)
    root = f"/{tree.host.partition('.')[0]}"
    written = caller.call("write", f"{root}/r", "a")
    tag = {"X-TreeDB-ETag": "true"}
    assert caller.call("read", f"{root}/r", headers=tag).result == "a"
    condition = {"If-Match": str(caller.tag)}
    swapped = caller.call("swap", f"{root}/r", "b", "a", condition)
    failed = caller.call("swap", f"{root}/r", "c", "a", condition)
    sums = [caller.call("add", f"{root}/c", 2).result for _ in range(2)]
    keys = [caller.call("push", f"{root}/log", value).result for value in "xy"]
    caller.close()
    assert [written.outcome, swapped.outcome] == [Outcome.OK, Outcome.OK]
    assert (failed.outcome, failed.result) == (Outcome.MISMATCH, "b")
    assert sums == [2, 4]
    assert tree.daemon.request("GET", f"{root}/log.json").json == dict(zip(keys, "xy", strict=True))
    assert len(list(history)) == 8
    assert all(a.completed <= b.invoked for a, b in itertools.pairwise(history))


def test_a_caller_without_a_connection_records_nothing() -> None:
    history = History()
    caller = Caller(0, ["http://127.0.0.1:1"], Plan(), history)
    with pytest.raises(Unreachable):
        caller.call("write", "/r", "a")
    assert list(history) == []


def test_an_operation_without_a_response_is_unknown() -> None:
    history = History()
    with socket.create_server(("127.0.0.1", 0)) as server:
        url = f"http://127.0.0.1:{server.getsockname()[1]}"

        def accept_and_cut() -> None:
            connection, _ = server.accept()
            with connection:
                connection.recv(65_536)

        thread = threading.Thread(target=accept_and_cut)
        thread.start()
        caller = Caller(0, [url], Plan(), history)
        assert caller.call("write", "/r", "a").outcome is Outcome.UNKNOWN
        thread.join()
    caller.close()
