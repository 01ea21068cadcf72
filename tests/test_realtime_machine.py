"""Many clients that write and listen at random: nothing is lost, doubled or out of order.

`TREEDB_TEST_SEEDS` is the number of worlds, for long runs.
"""

from __future__ import annotations

import os
from typing import Final

import pytest

from tests.realtime import RealtimeClient
from tests.realtime_copy import Copy
from tests.realtime_world import RealtimeWorld
from tests.rest import Client

SEEDS: Final = int(os.environ.get("TREEDB_TEST_SEEDS", "6"))
FIRST_SEED: Final = int(os.environ.get("TREEDB_TEST_FIRST_SEED", "0"))
ROUNDS: Final = 12
STEPS: Final = 25


@pytest.mark.parametrize("seed", range(FIRST_SEED, FIRST_SEED + SEEDS))
def test_copies_equal_what_is_stored_and_every_client_sees_one_order(
    tree: Client, seed: int
) -> None:
    with RealtimeWorld(tree, seed) as world:
        for _ in range(ROUNDS):
            for _ in range(STEPS):
                world.step()
            world.settle()
        assert world.applied == len(world.writes)


def test_listens_of_one_client_see_the_writes_in_one_order(tree: Client) -> None:
    """A client applies what comes for one path to all that it holds above and below it, too."""
    with RealtimeClient(tree) as client, RealtimeClient(tree) as writer:
        for path in ("a", "a/b", "a/b/c"):
            client.listen(path)
        copy = Copy("a", None)
        client.received.clear()
        numbers = []
        for at in range(60):
            body = [
                {"p": "a", "d": {".value": at, ".priority": at + 1}},
                {"p": "a/b/c", "d": at},
                {"p": "a/b", "d": {"c": {"d": at}}},
            ][at % 3]
            numbers.append(writer.send_request("p", body))
        assert {writer.await_answer(number).status for number in numbers} == {"ok"}
        client.put("end", 1)
        for push in client.pushed:
            copy.apply(push.action, push.keys, push.body["d"])
        assert copy.equals(tree.get("/a.json?format=export"))
        assert copy.value[".priority"] == 58
