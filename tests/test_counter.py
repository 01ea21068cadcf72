"""Counters under contention: no increment is lost or counted twice."""

from __future__ import annotations

import threading

from tests.daemon import Daemon
from tests.rest import Client

CLIENTS = 8
STEPS = 100
TAG = {"X-Vendor-ETag": "true"}


def increment_counter(daemon: Daemon, secure: bool, written: list[int]) -> None:
    """Increment the counter `STEPS` times, by the loop that the interface is made for."""
    with Client(daemon, secure=secure) as client:
        read = client.request("GET", "/counter.json", headers=TAG)
        while len(written) < STEPS:
            value, tag = read.json, read.headers["ETag"]
            response = client.request("PUT", "/counter.json", str(value + 1), {"If-Match": tag})
            if response.status == 200:
                assert response.json == value + 1
                written.append(value + 1)
                read = response
            else:
                assert response.status == 412, response
                assert response.json["data"] != value
                read = response._replace(body=str(response.json["data"]).encode())


def test_a_counter_incremented_800_times_by_eight_clients_is_800(daemon: Daemon) -> None:
    with Client(daemon) as client:
        client.put("/counter.json", 0)
        written: list[list[int]] = [[] for _ in range(CLIENTS)]
        threads = [
            threading.Thread(target=increment_counter, args=(daemon, at % 2 == 1, own))
            for at, own in enumerate(written)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert client.get("/counter.json") == CLIENTS * STEPS
        assert sorted(value for own in written for value in own) == list(range(1, 801))
        daemon.kill()
    daemon.start()
    with Client(daemon) as client:
        assert client.get("/counter.json") == CLIENTS * STEPS


def test_increments_of_eight_clients_are_all_counted(daemon: Daemon) -> None:
    with Client(daemon) as client:

        def increase() -> None:
            with Client(daemon) as own:
                for _ in range(STEPS):
                    body = '{"a/n":{".sv":{"increment":1}},"b/n":{".sv":{"increment":-1}}}'
                    assert own.request("PATCH", "/count.json", body).status == 200

        threads = [threading.Thread(target=increase) for _ in range(CLIENTS)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert client.get("/count.json") == {"a": {"n": 800}, "b": {"n": -800}}
