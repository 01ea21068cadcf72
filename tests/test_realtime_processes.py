"""The real-time protocol where several processes serve one database: workers, and a cluster."""

from __future__ import annotations

import contextlib
import pathlib
from collections.abc import Iterator
from typing import Any

import pytest

from tests.daemon import Daemon
from tests.realtime import RealtimeClient
from tests.realtime_copy import hash_of
from tests.realtime_world import RealtimeWorld
from tests.rest import Client, configured
from tests.several import KINDS, Service, Several
from tests.system import wait_until
from tests.websocket import Refused
from tests.workers_of import kill, one_of_each, worker_of

ROUNDS = 4
STEPS = 15


@pytest.fixture(scope="module", params=KINDS)
def service(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Service]:
    with KINDS[request.param](tmp_path_factory.mktemp(request.param)) as running:
        yield running


@pytest.fixture
def several(service: Service) -> Iterator[Several]:
    with Several(service) as processes:
        yield processes


def seen_by(client: RealtimeClient, count: int) -> list[Any]:
    """Return the changes that a client has seen, when they are as many as that."""
    client.read_until(lambda: len(client.pushed) >= count)
    return [push.change for push in client.pushed]


def test_a_write_at_one_process_reaches_listens_at_each(several: Several) -> None:
    clients = several.sockets()
    for client in clients:
        client.listen("a")
        client.received.clear()
    for at, writer in enumerate(clients):
        writer.put("a/n", at)
        writer.succeed("m", {"p": "a", "d": {"m": at, "x/y": at}})
    seen = [seen_by(client, 2 * len(clients)) for client in clients]
    assert all(each == seen[0] for each in seen)


def test_a_write_that_was_answered_is_read_at_every_process(several: Several) -> None:
    clients = several.sockets()
    for at in range(30):
        clients[at % len(clients)].put("a", at)
        assert [client.get("a") for client in clients] == [at] * len(clients)
        assert clients[0].listen("a") == at


def test_of_transactions_at_several_processes_one_wins(several: Several) -> None:
    clients = several.sockets()
    for at in range(20):
        held = hash_of(clients[0].get("a"))
        body = {"p": "a", "h": held}
        numbers = [
            client.send_request("p", body | {"d": f"{at} {which}"})
            for which, client in enumerate(clients)
        ]
        answers = [
            client.await_answer(number).status
            for client, number in zip(clients, numbers, strict=True)
        ]
        assert answers.count("ok") == 1
        assert set(answers) == {"ok", "datastale"}


def test_a_session_ends_whichever_process_its_client_comes_back_to(several: Several) -> None:
    for _ in range(4):
        for former in several.sockets():
            former.put("online", True)
            former.succeed("o", {"p": "online", "d": False})
            clients = several.sockets(f"/.ws?v=5&ls={former.session}")
            assert [client.get("online") for client in clients] == [False] * len(clients)
            clients[0].put("online", True)
            former.reset()
            clients[-1].put("barrier", 1)
            assert [client.get("online") for client in clients] == [True] * len(clients)


def test_copies_are_right_whatever_process_writes(several: Several) -> None:
    with RealtimeWorld(several.clients()[0], 7) as world:
        for _ in range(ROUNDS):
            for _ in range(STEPS):
                world.step()
            world.settle()
        assert world.applied == len(world.writes)


# Workers.


def test_sockets_of_an_address_are_counted_over_all_workers(tmp_path: pathlib.Path) -> None:
    config = (
        'default_project = "shop"\nworkers = 2\n[limits]\nsockets_per_address = 4\n'
        '[projects.shop]\nrules_file = "open.json"\n'
    )
    with configured(tmp_path, config) as daemon, contextlib.ExitStack() as stack:
        tree = Client(daemon)
        for _ in range(4):
            stack.enter_context(RealtimeClient(tree)).put("a", 1)
        for _ in range(6):
            with pytest.raises(Refused) as refused:
                RealtimeClient(tree)
            assert refused.value.status == 503


def test_what_the_clients_of_a_killed_worker_have_left_is_written_soon(
    tmp_path: pathlib.Path,
) -> None:
    with Daemon(tmp_path, arguments=["--workers", "2"]) as daemon:
        tree = Client(daemon, "demo.localhost")

        def make() -> RealtimeClient:
            return RealtimeClient(tree)

        clients = one_of_each(daemon, make, lambda client: client.wire.socket)
        for at, client in enumerate(clients):
            client.put(f"online/{at}", True)
            client.succeed("o", {"p": f"online/{at}", "d": False})
        kill(worker_of(daemon, clients[0].wire.socket))
        wait_until(lambda: tree.get("/online.json") == [False, True])
        clients[1].leave()
        wait_until(lambda: tree.get("/online.json") != [False, True])
        assert tree.get("/online.json") == [False, False]
