"""Clients that compete for one place: each of their transactions ends after a few tries."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Final, TypeAlias

import pytest

from tests.realtime import RealtimeClient
from tests.realtime_copy import Copy, hash_of
from tests.rest import Client

ADDITIONS: Final = 40
RERUNS: Final = 25
"""After so many the SDKs give a transaction up."""

Adding: TypeAlias = Callable[[Client], Iterator[bool]]
"""Tries to add one to `count`, for ever; yields whether that was done."""


def over_a_socket(tree: Client) -> Iterator[bool]:
    with RealtimeClient(tree) as client:
        copy = Copy("count", client.listen("count"))
        seen = len(client.pushed)
        while True:
            before = copy.value
            body = {"p": "count", "d": (before or 0) + 1, "h": hash_of(before)}
            status = client.request("p", body).status
            for push in client.pushed[seen:]:
                copy.apply(push.action, push.keys, push.body["d"])
            seen = len(client.pushed)
            assert copy.value != before, "An answer without a newer value."
            assert status in {"ok", "datastale"}
            yield status == "ok"


def over_http(tree: Client) -> Iterator[bool]:
    with Client(tree.daemon, tree.host) as client:
        response = client.request("GET", "/count.json", headers={"X-TreeDB-ETag": "true"})
        value = response.json
        while True:
            condition = {"If-Match": response.headers["ETag"]}
            response = client.request("PUT", "/count.json", json.dumps((value or 0) + 1), condition)
            assert response.status in {200, 412}
            value = response.json if response.status == 200 else response.json["data"]
            yield response.status == 200


@pytest.mark.parametrize(
    "clients",
    [[over_a_socket] * 8, [over_http] * 8, [over_a_socket, over_http] * 4],
    ids=["sockets", "http", "both"],
)
def test_no_transaction_needs_many_tries(tree: Client, clients: list[Adding]) -> None:
    def add_often(adding: Adding) -> int:
        tries = adding(tree)
        most = 0
        for _ in range(ADDITIONS):
            reruns = 0
            while not next(tries):
                reruns += 1
            most = max(most, reruns)
        tries.close()  # type: ignore[attr-defined]
        return most

    with ThreadPoolExecutor(len(clients)) as pool:
        most = list(pool.map(add_often, clients))
    assert tree.get("/count.json") == ADDITIONS * len(clients)
    assert max(most) <= RERUNS, most
