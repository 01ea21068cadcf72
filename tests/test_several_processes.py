"""What several processes promise together: workers of one daemon, or daemons over PostgreSQL."""

from __future__ import annotations

import json
import threading
import urllib.parse
from collections.abc import Iterator

import pytest

from tests.rest import Client
from tests.several import KINDS, Service, Several
from tests.sse import change, put

DENY = '{"rules": {".read": false, ".write": false}}'
OWNER = {"Authorization": "Bearer owner"}


@pytest.fixture(scope="module", params=KINDS)
def service(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Service]:
    with KINDS[request.param](tmp_path_factory.mktemp("service")) as running:
        yield running


@pytest.fixture
def several(service: Service) -> Iterator[Several]:
    with Several(service) as processes:
        yield processes


def test_what_one_process_acknowledges_all_show(several: Several) -> None:
    first, second = several.clients()
    for number in range(50):
        writer, reader = (first, second) if number % 2 else (second, first)
        writer.put("/a.json", number)
        assert reader.get("/a.json") == number
        assert reader.get("/.json?shallow=true") == {"a": True}


def test_a_description_counts_what_each_process_wrote(several: Several) -> None:
    clients = several.clients()
    clients[0].put("/a.json", {f"k{number:04}": {"text": "x" * 50} for number in range(2000)})
    for number in range(40):
        writer, reader = clients[number % 2], clients[number // 2 % 2]
        writer.put(f"/a/k{number * 50:04}x.json", number)
        shown = reader.get(f"/a.json?describe=true&at={number * 51 + 1}&limitToFirst=1")
        size = len(reader.request("GET", "/a.json").body)
        assert (shown["count"], shown["bytes"]) == (2001 + number, size)
        expected = {"key": f"k{number * 50:04}x", "type": "number", "value": number}
        assert shown["children"] == [expected]


def test_a_hook_that_one_process_puts_applies_to_the_next_write_of_each(several: Several) -> None:
    first, second = several.clients()
    target = "/.settings/webhooks.json"
    hook = {"name": "h", "on": "/a/$id", "events": ["written"], "url": "https://a.example.com/"}
    many = json.dumps({str(number): 1 for number in range(1001)})
    for each in (first, second):
        each.put("/b.json", 1)  # and finds no hooks
    for _ in range(3):
        for writer, other in ((first, second), (second, first)):
            assert writer.request("PUT", target, json.dumps(hook), OWNER).status == 200
            refused = other.request("PUT", "/a.json", many)  # only if it would have events
            assert (refused.status, b"events_per_write" in refused.body) == (400, True)
            listed = other.request("GET", target, None, OWNER).json["webhooks"]
            assert [each["name"] for each in listed] == ["h"]
            assert other.request("DELETE", f"{target}?name=h", None, OWNER).status == 200
            assert writer.request("PUT", "/a.json", many).status == 200
            assert other.request("DELETE", "/a.json").status == 200


def test_a_database_that_one_process_creates_exists_at_all(several: Several) -> None:
    first, second = several.clients()
    assert [each.get("/.json") for each in (first, second)] == [None, None]
    first.put("/a.json", 1)
    assert second.get("/.json") == {"a": 1}
    second.put("/b.json", 2)
    assert first.get("/.json") == {"a": 1, "b": 2}


def test_processes_that_create_a_database_together_lose_nothing(several: Several) -> None:
    for _ in range(10):
        several.use_new_tree()
        clients = several.clients()
        start = threading.Barrier(2)

        def write(client: Client, key: str, start: threading.Barrier = start) -> None:
            start.wait()
            client.put(f"/{key}.json", key)

        threads = [
            threading.Thread(target=write, args=(client, f"k{number}"))
            for number, client in enumerate(clients)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        for client in clients:
            assert client.get("/.json") == {"k0": "k0", "k1": "k1"}
            client.close()


def test_streams_of_all_processes_have_all_events_in_order(several: Several) -> None:
    clients, streams = several.clients(), several.streams("/a.json")
    for number in range(40):
        clients[number % 2].put("/a/b.json", number)
    for stream in streams:
        assert [change(stream.next_change()) for _ in range(40)] == [
            put("/b", number) for number in range(40)
        ]


def test_a_patch_is_a_patch_at_every_process(several: Several) -> None:
    clients, streams = several.clients(), several.streams("/a.json")
    for client in clients:
        assert client.request("PATCH", "/a.json", '{"b/c":1,"d":null}').status == 200
    for stream in streams:
        for _ in clients:
            assert change(stream.next_change()) == ("patch", "/", {"b/c": 1, "d": None})


@pytest.mark.parametrize("size", [100_000, 3_000_000])
def test_a_long_value_reaches_the_streams_of_all_processes(several: Several, size: int) -> None:
    clients, streams = several.clients(), several.streams("/a.json")
    value = {f"k{number:05}": "x" * 1000 for number in range(size // 1000)}
    clients[0].put("/a/b.json", value)
    for stream in streams:
        assert change(stream.next_change()) == put("/b", value)


@pytest.mark.parametrize("size", [100_000, 3_000_000])
def test_a_long_patch_is_a_patch_at_every_process(several: Several, size: int) -> None:
    clients, streams = several.clients(), several.streams("/a.json")
    for number in range(8):
        members: dict[str, object] = {
            f"k{number}{at:05}": "x" * 1000 for at in range(size // 1000)
        } | {"none": {}}
        assert clients[number % 2].request("PATCH", "/a.json", json.dumps(members)).status == 200
        for stream in streams:
            expected = members | {"none": None}
            assert change(stream.next_change()) == ("patch", "/", expected)


def test_changes_are_named_at_every_process(several: Several) -> None:
    clients, streams = several.clients(), several.streams("/a.json?describe=true")
    members = {f"k{at:03}": "x" * 1000 for at in range(100)}
    for client in clients:
        client.put("/a/b.json", members)
        for target, body in (("/a.json", {"b/c": 1, "d": None}), ("/.json", {"a/e": 1, "f": 2})):
            assert client.request("PATCH", target, json.dumps(body)).status == 200
        client.put("/.json", {"a": 1})
    for stream in streams:
        for _ in clients:
            assert [stream.next_change().json for _ in range(4)] == [
                {"path": "/b"},
                {"path": "/", "keys": ["b/c", "d"]},
                {"path": "/", "keys": ["e"]},
                {"path": "/"},
            ]


def test_queries_are_followed_at_every_process(several: Several) -> None:
    clients = several.clients()
    clients[0].put("/list.json", {"a": 1, "b": 2, "c": 3})
    query = urllib.parse.urlencode({"orderBy": '"$value"', "limitToLast": 2})
    streams = several.streams(f"/list.json?{query}")
    clients[0].put("/list/d.json", 4)
    clients[1].put("/list/d.json", None)
    for stream in streams:
        assert change(stream.next_change()) == ("patch", "/", {"b": None, "d": 4})
        assert change(stream.next_change()) == ("patch", "/", {"b": 2, "d": None})


def test_a_stream_of_what_was_never_written_follows_the_first_write(several: Several) -> None:
    streams = several.streams("/a.json")
    several.clients()[0].put("/a.json", 1)
    for stream in streams:
        assert change(stream.next_change()) == put("/", 1)


def test_a_stream_resumes_at_another_process(several: Several) -> None:
    clients = several.clients()
    clients[0].put("/a.json", 0)
    streams = several.open_streams("/a.json?resume=true")
    (last,) = {stream.next_change().id for stream in streams}
    assert last is not None
    for number in range(1, 6):
        clients[number % 2].put("/a.json", number)
    resumed = several.open_streams("/a.json?resume=true", {"Last-Event-ID": last})
    for stream in (*streams, *resumed):
        assert [change(stream.next_change()) for _ in range(5)] == [
            put("/", number) for number in range(1, 6)
        ]


def test_conditions_and_increments_are_exact_over_processes(several: Several) -> None:
    clients = several.clients()

    def increment(client: Client) -> None:
        for _ in range(40):
            client.request("PUT", "/n.json", '{".sv":{"increment":1}}')

    threads = [threading.Thread(target=increment, args=(each,)) for each in clients]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [each.get("/n.json") for each in clients] == [80, 80]
    tag = clients[0].request("GET", "/n.json", None, {"X-TreeDB-ETag": "true"}).headers["ETag"]
    statuses = [each.request("PUT", "/n.json", "0", {"If-Match": tag}).status for each in clients]
    assert statuses == [200, 412]


def test_push_keys_ascend_whichever_process_makes_them(several: Several) -> None:
    clients = several.clients()
    names = [clients[n % 2].request("POST", "/l.json", str(n)).json["name"] for n in range(100)]
    assert names == sorted(names)
    assert list(clients[0].get("/l.json").values()) == list(range(100))


def test_rules_hold_at_all_processes_when_they_are_acknowledged(several: Several) -> None:
    clients = several.clients()
    clients[0].put("/a.json", 1)
    streams = several.streams("/a.json")
    for number in range(6):
        put_rules, other = clients[number % 2], clients[1 - number % 2]
        rules = DENY if number % 2 == 0 else '{"rules": {".read": true, ".write": true}}'
        response = put_rules.request("PUT", "/.settings/rules.json", rules, OWNER)
        assert response.status == 200, response
        status = 403 if number % 2 == 0 else 200
        assert [each.request("GET", "/a.json").status for each in (other, put_rules)] == [
            status
        ] * 2
    for stream in streams:
        frame = stream.next_change()
        assert frame.event == "cancel"


def test_rules_that_are_put_at_once_are_the_same_everywhere(several: Several) -> None:
    clients = several.clients()

    def put_rules(number: int) -> None:
        text = json.dumps({"rules": {".read": True, "$k": {".validate": f"{number + 1} > 0"}}})
        clients[number].request("PUT", "/.settings/rules.json", text, OWNER)

    for _ in range(5):
        threads = [threading.Thread(target=put_rules, args=(number,)) for number in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        found = [each.request("GET", "/.settings/rules.json", None, OWNER).body for each in clients]
        assert found[0] == found[1]


def test_versions_and_trials_of_rules_are_the_same_at_all_processes(several: Several) -> None:
    clients = several.clients()
    texts = [json.dumps({"rules": {f"k{number}": {".read": True}}}) for number in range(4)]
    for number, text in enumerate(texts):
        client = clients[number % 2]
        assert client.request("PUT", "/.settings/rules.json", text, OWNER).status == 200
        listed = [
            each.request("GET", "/.settings/rules/versions.json", None, OWNER).json
            for each in clients
        ]
        assert listed[0] == listed[1]
        assert [each["version"] for each in listed[0]] == list(range(number + 1, 0, -1))
        assert [each["is_current"] for each in listed[0]] == [True] + [False] * number
        trial = json.dumps({"method": "GET", "path": f"/k{number}"})
        for each in clients:
            found = each.request("POST", "/.settings/rules/trial.json", trial, OWNER).json
            assert found["allowed"], found
    for number, text in enumerate(texts, 1):
        path = f"/.settings/rules/versions.json?version={number}"
        assert {each.request("GET", path, None, OWNER).body.decode() for each in clients} == {text}


def test_the_databases_of_all_processes_are_listed(several: Several) -> None:
    first, second = several.clients()
    label = several.host.partition(".")[0]
    named = f"/a.json?ns=eu--{label}"
    other = Client(first.daemon, "localhost")
    assert other.request("PUT", named, "1").status == 200
    first.put("/a.json", 1)
    for each in (first, second):
        listed = each.request("GET", "/.inspect/databases.json", None, OWNER).json
        assert listed == [{"name": label}, {"name": f"eu--{label}"}]
