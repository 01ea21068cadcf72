"""Compare-and-swap under contention: a counter loses no step and makes none twice."""

from __future__ import annotations

import threading

from tests.daemon import Daemon
from tests.rest import Client

CLIENTS = 8
STEPS = 100
TAG = {"X-Vendor-ETag": "true"}


def raise_counter(daemon: Daemon, secure: bool, seen: list[int]) -> None:
    """Raise the counter `STEPS` times, by the loop that the interface intends."""
    with Client(daemon, secure=secure) as client:
        read = client.ask("GET", "/counter.json", headers=TAG)
        while len(seen) < STEPS:
            value, tag = read.json, read.headers["ETag"]
            answer = client.ask("PUT", "/counter.json", str(value + 1), {"If-Match": tag})
            if answer.status == 200:
                assert answer.json == value + 1
                seen.append(value + 1)
                read = answer
            else:
                assert answer.status == 412, answer
                assert answer.json["data"] != value
                read = answer._replace(body=str(answer.json["data"]).encode())


def test_a_counter_raised_800_times_by_eight_clients_ends_at_800(daemon: Daemon) -> None:
    with Client(daemon) as client:
        client.put("/counter.json", 0)
        seen: list[list[int]] = [[] for _ in range(CLIENTS)]
        threads = [
            threading.Thread(target=raise_counter, args=(daemon, at % 2 == 1, mine))
            for at, mine in enumerate(seen)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert client.get("/counter.json") == CLIENTS * STEPS
        assert sorted(value for mine in seen for value in mine) == list(range(1, 801))
        daemon.kill()
    daemon.start()
    with Client(daemon) as client:
        assert client.get("/counter.json") == CLIENTS * STEPS


def test_increments_of_eight_clients_are_all_counted(daemon: Daemon) -> None:
    with Client(daemon) as client:

        def increase() -> None:
            with Client(daemon) as mine:
                for _ in range(STEPS):
                    body = '{"a/n":{".sv":{"increment":1}},"b/n":{".sv":{"increment":-1}}}'
                    assert mine.ask("PATCH", "/count.json", body).status == 200

        threads = [threading.Thread(target=increase) for _ in range(CLIENTS)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert client.get("/count.json") == {"a": {"n": 800}, "b": {"n": -800}}
