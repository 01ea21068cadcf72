"""Each write reaches each listener as at most one event, in order and whole, on each engine.

`TREEDB_TEST_SEEDS` is the number of worlds of each engine, for long runs.
"""

from __future__ import annotations

import contextlib
import json
import os
import pathlib
import threading
from collections.abc import Iterator
from typing import Final

import pytest

from tests.notified_writes import (
    WATCHED,
    History,
    Load,
    Socket,
    Stream,
    entries_of,
    judge_socket,
    judge_stream,
    pairs,
)
from tests.realtime import RealtimeClient
from tests.rest import Client
from tests.served import ENGINES, Served
from tests.sse import Listener

SEEDS: Final = int(os.environ.get("TREEDB_TEST_SEEDS", "1"))
FIRST_SEED: Final = int(os.environ.get("TREEDB_TEST_FIRST_SEED", "0"))
ROUNDS: Final = ((6, 20), (2, 90), (8, 15))
"""How many writers write at once, and how many writes each sends without waiting."""
PATIENCE_S: Final = 60.0
GUARDED: Final = {
    "gate": {".read": True, ".write": True},
    "g": {".read": "root.child('gate').val() === 1", ".write": True},
}
BEFORE: Final = 40
"""Writes that are sent without waiting, before the one that takes the right to read away."""


@pytest.fixture(scope="module", params=[name for name in ENGINES if name != "memory"])
def served(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Served]:
    folder: pathlib.Path = tmp_path_factory.mktemp("served")
    with ENGINES[request.param](folder) as service:
        yield service


@pytest.mark.parametrize("seed", range(FIRST_SEED, FIRST_SEED + SEEDS))
def test_each_listener_passes_through_the_values_after_each_write(
    served: Served, seed: int
) -> None:
    with contextlib.ExitStack() as stack:
        first = stack.enter_context(Client.of_new_tree(served.daemons[0]))
        others = [Client(daemon, first.host) for daemon in served.daemons[1:]]
        clients = [first, *others]
        history = History(entries_of(clients[0]))
        streams = [Stream(client, each) for client in clients for each in WATCHED]
        sockets = [Socket(client, each) for client in clients for each in pairs(WATCHED)]
        for each in (*streams, *sockets):
            stack.enter_context(each)
        load = Load(clients, seed)
        late: list[Stream] = []
        for number, sizes in enumerate(ROUNDS):
            running = threading.Thread(target=load.run, args=sizes)
            running.start()
            client, some = clients[number % len(clients)], WATCHED[number :: len(ROUNDS)]
            late += [stack.enter_context(Stream(client, each)) for each in some]
            running.join()
            history.read()
        for socket in sockets:
            socket.finish()
        clients[0].put("/.json", {"d": {"a": {"n": 4}}, "e": "end"})
        history.read()
        for stream in (*streams, *late):
            stream.wait_for(len(history.roots) - 1, PATIENCE_S)
        notified = sum(judge_stream(each, history) for each in (*streams, *late))
        notified += sum(judge_socket(each, history) for each in sockets)
        assert notified > len(history.roots)


def test_the_log_of_a_file_is_restarted_although_it_is_watched(served: Served) -> None:
    """Notifying writes one by one needs the moment before them, which the log holds for a while."""
    daemon = served.daemons[0]
    client = Client.of_new_tree(daemon)
    with contextlib.ExitStack() as stack:
        for each in WATCHED[1:3]:
            stack.enter_context(Stream(client, each))
        for number in range(300):
            client.put(f"/d/k{number % 50}/text.json", f"{number:060000}")
        logs = [each.stat().st_size for each in daemon.data.rglob("*-wal")]
        assert logs
        assert max(logs) < 20_000_000  # of 30,000,000 that were logged


def test_what_was_written_before_a_right_was_lost_is_notified(served: Served) -> None:
    with contextlib.ExitStack() as stack:
        first = stack.enter_context(Client.of_new_tree(served.daemons[0]))
        rules = json.dumps({"rules": GUARDED})
        assert first.request("PUT", "/.settings/rules.json?auth=owner", rules).status == 200
        first.put("/gate.json", 1)
        queries = ("", '?orderBy="$key"&limitToLast=1', '?orderBy="$value"')
        clients = [first, *(Client(daemon, first.host) for daemon in served.daemons[1:])]
        streams = [
            stack.enter_context(Listener(client, f"/g.json{query}"))
            for client in clients
            for query in queries
        ]
        listening = stack.enter_context(RealtimeClient(first))
        listening.listen("g")
        listening.listen("g", {"i": ".key", "l": 1, "vf": "r"}, 1)
        listening.received.clear()
        writer = stack.enter_context(RealtimeClient(first))
        for number in range(BEFORE):
            writer.send_request("p", {"p": f"g/k{number:02}", "d": number})
        last = writer.send_request("p", {"p": "gate", "d": 0})
        for number in range(BEFORE):
            writer.send_request("p", {"p": f"g/k{number:02}", "d": "secret"})
        assert writer.await_answer(last).status == "ok"
        for stream in streams:
            stream.wait_for_end(PATIENCE_S)
            frames = [each.event for each in stream.received if each.event != "keep-alive"]
            assert frames == ["put", *frames[1:-1], "cancel"]
            assert len(frames) == 1 + BEFORE + 1
            assert "secret" not in str(stream.received)
        assert listening.succeed("g", {"p": "gate"}) == 0
        # Another worker has lost the right: a get may show more than the events before it.
        listening.read_until(lambda: [each.action for each in listening.pushed].count("c") == 2)
        assert len(listening.pushed) == 2 * BEFORE + 2
