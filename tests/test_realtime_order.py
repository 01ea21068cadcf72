"""The order within a socket: requests take effect in the order in which they were sent."""

from __future__ import annotations

import json
import random
import threading
from typing import Any, Final

import pytest

from tests.realtime import Answer, Push, RealtimeClient
from tests.rest import Client

QUERY: Final = {"i": ".key", "l": 3, "vf": "r"}
LARGE: Final = "x" * 3_000_000


def numbers_of(client: RealtimeClient) -> list[int]:
    """Return the numbers of the answers, in the order in which they came."""
    return [each[0] for each in client.received if not isinstance(each, Push)]


def answers_of(client: RealtimeClient) -> dict[int, Answer]:
    return {each[0]: each[1] for each in client.received if not isinstance(each, Push)}


def put(client: RealtimeClient, path: str, value: Any) -> int:
    return client.send_request("p", {"p": path, "d": value})


@pytest.mark.parametrize("action", ["g", "q"])
@pytest.mark.parametrize("query", [None, QUERY])
def test_what_is_read_behind_writes_shows_them_and_is_answered_after_them(
    tree: Client, action: str, query: Any
) -> None:
    with RealtimeClient(tree) as client:
        writes = [put(client, f"list/k{at}", at) for at in range(10)]
        body = {"p": "list", "h": ""} | ({} if query is None else {"q": query, "t": 1})
        read = client.send_request(action, body)
        client.await_answer(read)
        assert numbers_of(client) == [*writes, read]
        expected = {f"k{at}": at for at in range(10)[-3 if query else 0 :]}
        if action == "g":
            assert answers_of(client)[read].data == expected
        else:
            (first,) = client.pushed
            assert first.body["d"] == expected


def test_a_mix_of_requests_is_answered_in_its_order_and_shows_what_was_before(
    tree: Client,
) -> None:
    choice = random.Random(3)
    with RealtimeClient(tree) as client:
        sent: list[tuple[int, int | None]] = []
        value = 0
        client.put("value", 0)
        client.received.clear()
        for _ in range(300):
            if choice.random() < 0.7:
                value += 1
                action = choice.choice(["p", "m"])
                body = (
                    {"p": "value", "d": value}
                    if action == "p"
                    else {"p": "", "d": {"value": value}}
                )
                sent.append((client.send_request(action, body), None))
            else:
                sent.append((client.send_request("g", {"p": "value"}), value))
        client.await_answer(sent[-1][0])
        assert numbers_of(client) == [number for number, _ in sent]
        answers = answers_of(client)
        assert all(
            answers[number].data == expected for number, expected in sent if expected is not None
        )


def test_a_write_behind_a_get_is_not_shown_by_it(tree: Client) -> None:
    """The second get waits until the first has been sent, and the put waits for both."""
    with RealtimeClient(tree) as client:
        client.put("large", LARGE)
        client.put("value", 1)
        client.received.clear()
        client.send_request("g", {"p": "large"})
        read = client.send_request("g", {"p": "value"})
        write = put(client, "value", 2)
        client.await_answer(write)
        assert answers_of(client)[read].data == 1
        assert numbers_of(client)[-2:] == [read, write]


def test_a_listen_that_ends_after_a_write_was_notified_of_it(tree: Client) -> None:
    with RealtimeClient(tree) as client:
        client.listen("a")
        client.received.clear()
        for at in range(20):
            put(client, "a", at)
        end = client.send_request("n", {"p": "a"})
        last = put(client, "a", "unheard")
        client.await_answer(last)
        assert [push.body["d"] for push in client.pushed] == list(range(20))
        assert numbers_of(client)[-2:] == [end, last]


def test_a_get_never_shows_less_than_the_events_before_it(tree: Client) -> None:
    """No matter who has written: here another client, all the time."""
    with RealtimeClient(tree) as reader, RealtimeClient(tree) as writer:
        reader.listen("n")
        reader.listen("", {"i": ".key", "l": 2, "vf": "l"}, 5)
        is_over = threading.Event()

        def write() -> None:
            for at in range(400):
                number = put(writer, "n", at)
                if at % 20 == 0:
                    writer.await_answer(number)
            writer.await_answer(number)
            is_over.set()

        thread = threading.Thread(target=write, daemon=True)
        thread.start()
        while not is_over.is_set():
            reader.get("n")
        thread.join()
        reader.get("n")
        seen = -1
        for each in reader.received:
            if isinstance(each, Push):
                seen = max(seen, _number_in(each.body["d"]))
            elif each[1].data is not None and not isinstance(each[1].data, dict):
                assert each[1].data >= seen
                seen = each[1].data
        assert seen == 399


def _number_in(data: Any) -> int:
    found = data.get("n", -1) if isinstance(data, dict) else data
    return -1 if found is None else int(found)


def test_listens_of_one_client_see_plain_values_and_queries_in_one_order(tree: Client) -> None:
    """Events of a later write never come before those of an earlier one, query or not."""
    with RealtimeClient(tree) as client, RealtimeClient(tree) as writer:
        client.listen("list/a")
        client.listen("list", {"i": ".key", "l": 1, "vf": "r"}, 1)
        client.listen("list", {"i": ".value", "sp": 0}, 2)
        client.received.clear()
        for at in range(1, 101):
            put(writer, "list/a" if at % 2 else f"list/k{at:03}", at)
        writer.put("end", 1)
        client.put("mine", 1)
        seen = [_greatest(push) for push in client.pushed]
        assert seen == sorted(seen)
        assert set(seen) == set(range(1, 101))
        tags = [push.body.get("t") for push in client.pushed if _greatest(push) == 1]
        assert sorted(tags, key=str) == [1, 2, None]  # each listen was notified of it once


def _greatest(push: Push) -> int:
    data = push.body["d"]
    numbers = [data] if isinstance(data, int) else [item for item in data.values() if item]
    return int(max(numbers))


CLAIMED: Final = {"i": "by", "sp": "ada", "sin": True, "ep": "ada", "ein": True}


@pytest.mark.parametrize("query", [None, CLAIMED, QUERY])
def test_each_write_is_answered_between_its_event_and_that_of_the_next(
    tree: Client, query: Any
) -> None:
    with RealtimeClient(tree) as client, RealtimeClient(tree) as other:
        for listening in (client, other):
            listening.listen("list", *(() if query is None else (query, 1)))
        client.received.clear()
        bodies = [{"by": "ada", "at": 0}, {"by": "alan", "at": 1}, {"by": "ada", "at": 2}]
        writes = [put(client, "list/x", bodies[at % 3]) for at in range(60)]
        assert client.await_answer(writes[-1]).status == "ok"
        shown: Any = None
        for each in client.received:
            if isinstance(each, Push):
                assert each.body["p"] == "list/x"
                shown = each.body["d"]
                continue
            written = bodies[(each[0] - writes[0]) % 3]
            is_shown = query is not CLAIMED or written["by"] == "ada"
            assert shown == (written if is_shown else None)
        assert numbers_of(client) == writes
        other.put("end", 1)
        pushed = [each.body["d"] for each in other.pushed if each.body["p"] == "list/x"]
        assert pushed == [each.body["d"] for each in client.pushed]


def test_nobody_waits_for_the_order_of_another(tree: Client) -> None:
    """A client whose get waits for its writes delays no other client."""
    with RealtimeClient(tree) as busy, RealtimeClient(tree) as other:
        busy.put("large", LARGE)
        busy.send_request("g", {"p": "large"})  # its answer is not read
        for at in range(50):
            put(busy, f"busy/{at}", at)
        for at in range(50):
            other.put("quick", at)
            assert other.get("quick") == at
        assert json.loads(json.dumps(busy.get("busy/49"))) == 49
