"""What a stream writes when it ends: stored before it begins, done however it ends, once."""

from __future__ import annotations

import json
import pathlib
from typing import Any
from urllib.parse import quote

import attrs
import pytest
from twisted.web.server import Site

from tests.access import admin, secret_of, user
from tests.web.tree_server import PATIENT, SETTINGS, StreamClient, TreeServer, make_verifier, put
from treedbd.database.requests import ProjectSpec
from treedbd.limits import MAX_DISCONNECT_BYTES, MAX_DISCONNECT_NODES
from treedbd.names import DatabaseName
from treedbd.rules.ruleset import OPEN, RuleSet, parse_rules
from treedbd.store.disconnect_rows import list_owners

OFFLINE = {"/ada": {"state": "offline"}}
RULES = parse_rules(
    json.dumps(
        {
            "rules": {
                "hidden": {".write": True},
                "users": {
                    ".read": "root.child('closed').val() == null",
                    "$uid": {".write": "auth.uid == $uid"},
                },
            }
        }
    ).encode()
)


class DisconnectServer(TreeServer):
    """A project with one database, whose streams write when they end."""

    def __init__(self, folder: pathlib.Path, rules: RuleSet = OPEN, **options: Any) -> None:
        super().__init__(
            folder,
            rules,
            projects=[ProjectSpec("demo", None)],
            verifier=lambda name: make_verifier(secret_of(name)),
            options=attrs.evolve(SETTINGS, limits=attrs.evolve(PATIENT, **options)),
        )

    def open(self, path: str, body: Any, *more: str, token: str = "") -> StreamClient:
        """Open a stream that has begun; `body` is what it writes when it ends."""
        client = self.begin(path, body, *more, token=token)
        self.clock.advance(0)
        client.read_events()
        return client

    def begin(self, path: str, body: Any, *more: str, token: str = "") -> StreamClient:
        return self.open_stream(target(path, body, *more, token=token))

    def refuse(self, path: str, body: Any, *more: str, token: str = "") -> tuple[int, str]:
        """Return the status and the code with which a stream is refused."""
        client = self.begin(path, body, *more, token=token)
        self.clock.advance(0)
        (reply,) = client.peer.read()
        assert self.kept == []
        return reply.status, json.loads(reply.body)["error"]

    def value(self, path: str) -> Any:
        self.clock.advance(0)
        return json.loads(self.request("GET", at(path, admin("demo"))).body)

    @property
    def kept(self) -> list[str]:
        """Whose writes are stored for the end of streams."""
        self.clock.advance(0)
        database = self.catalog.find(DatabaseName("demo"))
        return database.read(lambda nodes: list(list_owners(nodes.rows.stored)))


def at(path: str, token: str) -> str:
    return f"{path}.json" + (f"?auth={token}" if token else "")


def target(path: str, body: Any, *more: str, token: str = "") -> str:
    text = body if isinstance(body, str) else json.dumps(body)
    parts = [f"onDisconnect={quote(text)}", *([f"auth={token}"] if token else []), *more]
    return f"{path}.json?{'&'.join(parts)}"


@pytest.fixture
def world(tmp_path: pathlib.Path) -> DisconnectServer:
    return DisconnectServer(tmp_path)


def test_it_is_written_when_the_client_is_gone_and_not_before(world: DisconnectServer) -> None:
    client = world.open("/users", OFFLINE)
    assert world.value("/users") is None
    assert world.kept != []
    client.peer.disconnect()
    assert world.value("/users") == {"ada": {"state": "offline"}}
    assert world.kept == []


@pytest.mark.parametrize("body", [{"/a/b": 1}, {"a/b": 1}, {"a": {"b": 1}}])
def test_paths_are_relative_to_that_of_the_stream(world: DisconnectServer, body: Any) -> None:
    world.open("/x", body).peer.disconnect()
    assert world.value("/") == {"x": {"a": {"b": 1}}}


def test_several_places_are_written_as_one_patch(world: DisconnectServer) -> None:
    watcher = world.open_stream("/x.json")
    watcher.read_events()
    world.open("/x", {"a": 1, "b/c": 2}).peer.disconnect()
    world.clock.advance(0)
    (event,) = watcher.read_events()
    assert event[0] == "patch"


def test_server_values_are_those_of_the_end(world: DisconnectServer) -> None:
    world.write("PUT", "/x/n", 1)
    client = world.open("/x", {"n": {".sv": {"increment": 1}}, "at": {".sv": "timestamp"}})
    world.write("PUT", "/x/n", 10)
    client.peer.disconnect()
    found = world.value("/x")
    assert found["n"] == 11
    assert found["at"] > 1_600_000_000_000


def test_the_stream_begins_only_when_it_is_stored(world: DisconnectServer) -> None:
    client = world.begin("/x", {"a": 1})
    assert client.peer.transport.value() == b""
    world.clock.advance(0)
    assert client.read_events() == [put("/", None)]


def test_of_a_client_that_is_gone_before_nothing_is_left(world: DisconnectServer) -> None:
    client = world.begin("/x", {"a": 1})
    client.peer.disconnect()
    world.clock.advance(0)
    assert world.kept == []
    assert world.value("/x") is None
    assert len(world.resource.streams) == 0


@pytest.mark.parametrize(
    "body",
    ["", "{", "1", "null", "[]", '{"a":}', '{"a":{"b":1},"a/b":2}', '{"":1,"a":2}', '{"$":1}'],
)
def test_what_is_malformed_is_refused(world: DisconnectServer, body: str) -> None:
    assert world.refuse("/x", body) == (400, "invalid_query")


def test_without_a_stream_it_is_refused(world: DisconnectServer) -> None:
    for method in ("GET", "HEAD", "PUT", "PATCH", "POST", "DELETE"):
        reply = world.request(method, target("/x", {"a": 1}), b"1")
        assert reply.status == 400
    assert world.value("/x") is None


def test_it_may_be_given_once(world: DisconnectServer) -> None:
    assert world.refuse("/x", {"a": 1}, "onDisconnect=%7B%7D") == (400, "invalid_query")


def test_more_places_than_a_connection_may_have_are_refused(tmp_path: pathlib.Path) -> None:
    world = DisconnectServer(tmp_path, disconnect_writes_per_connection=2)
    assert world.refuse("/x", {"a": 1, "b": 1, "c": 1}) == (400, "invalid_query")
    world.open("/x", {"a": 1, "b": 1}).peer.disconnect()
    assert world.value("/x") == {"a": 1, "b": 1}


def test_what_is_too_long_is_refused(tmp_path: pathlib.Path) -> None:
    world = DisconnectServer(tmp_path, request_line_bytes=1024 * 1024)
    for body in ({"a": "x" * MAX_DISCONNECT_BYTES}, {"a": [1] * MAX_DISCONNECT_NODES}):
        assert world.refuse("/x", body) == (413, "payload_too_large")
    world.open("/x", {"a": [1] * (MAX_DISCONNECT_NODES - 1)}).peer.disconnect()
    assert world.value("/x/a") == [1] * (MAX_DISCONNECT_NODES - 1)


def test_a_write_that_is_denied_refuses_the_stream_and_leaves_nothing(
    tmp_path: pathlib.Path,
) -> None:
    world = DisconnectServer(tmp_path, RULES)
    ada = user("demo", "ada")
    assert world.refuse("/users", {"bob": 1}, token=ada) == (403, "permission_denied")
    assert world.refuse("/users", {"ada": 1}) == (403, "permission_denied")
    assert world.refuse("/users", {"ada": 1}, token="a.b.c") == (401, "auth_required")
    world.open("/users", {"ada": 1}, token=ada).peer.disconnect()
    assert world.value("/users") == {"ada": 1}


def test_a_read_that_is_denied_refuses_the_stream_and_leaves_nothing(
    tmp_path: pathlib.Path,
) -> None:
    world = DisconnectServer(tmp_path, RULES)
    assert world.refuse("/hidden", {"a": 1}) == (403, "permission_denied")


def test_a_stream_that_is_one_too_many_leaves_nothing(tmp_path: pathlib.Path) -> None:
    world = DisconnectServer(tmp_path, streams_per_database=1)
    world.open_stream("/y.json")
    assert world.refuse("/x", {"a": 1}) == (429, "too_many_requests")


def test_a_stream_that_becomes_one_too_many_while_it_is_stored_leaves_nothing(
    tmp_path: pathlib.Path,
) -> None:
    world = DisconnectServer(tmp_path, streams_per_database=1)
    client = world.begin("/x", {"a": 1})
    world.open_stream("/y.json")
    world.clock.advance(0)
    (reply,) = client.peer.read()
    assert reply.status == 429
    assert world.kept == []
    assert world.value("/x") is None


def test_a_stream_that_loses_its_right_to_read_writes(tmp_path: pathlib.Path) -> None:
    world = DisconnectServer(tmp_path, RULES)
    ada = user("demo", "ada")
    client = world.open("/users", {"ada": "offline"}, token=ada)
    world.request("PUT", at("/closed", admin("demo")), b"1")
    world.clock.advance(0)
    assert client.read_events()[-1][0] == "cancel"
    assert world.value("/users") == {"ada": "offline"}


def test_a_stream_that_ends_because_of_its_token_writes_all_the_same(
    world: DisconnectServer,
) -> None:
    client = world.open("/x", {"a": 1}, token=user("demo", "ada"))
    world.resource.streams.recheck(lambda *_: False)
    assert client.read_events()[-1][0] == "auth_revoked"
    assert world.value("/x") == {"a": 1}


def test_a_stream_whose_reader_stalls_writes_when_it_is_dropped(world: DisconnectServer) -> None:
    client = world.open("/x", {"a": 1})
    client.producer.pauseProducing()
    world.pass_time(59)
    assert world.value("/x") is None
    world.pass_time(1)
    assert client.peer.is_dropped
    assert world.value("/x") == {"a": 1}


def test_a_stream_that_is_ended_writes_though_its_reader_has_paused(
    world: DisconnectServer,
) -> None:
    client = world.open("/x", {"a": 1})
    client.producer.pauseProducing()
    world.write("PUT", "/x/b", "x" * 3000)
    world.resource.streams.end()
    assert world.value("/x")["a"] == 1


def test_it_is_judged_again_when_it_is_written(tmp_path: pathlib.Path) -> None:
    world = DisconnectServer(tmp_path, RULES)
    client = world.open("/users", {"ada": 1}, token=user("demo", "ada"))
    world.catalog.rules("demo").manage_by_file(parse_rules(b'{"rules": {".read": true}}'))
    world.clock.advance(0)
    client.peer.disconnect()
    assert world.kept == []
    assert world.value("/users") is None


def test_a_stop_waits_until_all_is_written(world: DisconnectServer) -> None:
    world.open("/x", {"a": 1})
    world.resource.streams.end()
    written = world.resource.streams.written()
    assert not written.called
    world.clock.advance(0)
    assert written.called
    assert world.resource.streams.written().called
    assert world.value("/x") == {"a": 1}


def test_a_resumed_stream_writes_though_nothing_was_missed(world: DisconnectServer) -> None:
    first = world.open("/x", {"a": 0}, "resume=true")
    world.write("PUT", "/x/b", 1)
    first.read_events()
    last = first.ids[-1]
    second = world.open_stream(target("/x", {"a": 1}, "resume=true"), f"Last-Event-ID: {last}\r\n")
    world.clock.advance(0)
    second.peer.disconnect()
    assert world.value("/x") == {"a": 1, "b": 1}


def test_a_query_may_write_at_its_end(world: DisconnectServer) -> None:
    client = world.open("/x", {"a": 1}, "orderBy=%22$key%22", "limitToFirst=1")
    client.peer.disconnect()
    assert world.value("/x") == {"a": 1}


def test_a_head_is_judged_and_keeps_nothing(tmp_path: pathlib.Path) -> None:
    world = DisconnectServer(tmp_path, RULES, disconnect_writes_per_connection=1)
    events = ("Accept: text/event-stream",)
    ada = user("demo", "ada")
    for body, token, status in (
        ({"ada": 1}, ada, 200),
        ({"bob": 1}, ada, 403),
        ({"ada/a": 1, "ada/b": 2}, ada, 400),
    ):
        assert world.request("HEAD", target("/users", body, token=token), b"", events).status == (
            status
        )
    assert world.kept == []
    assert world.value("/users") is None


def test_an_empty_object_writes_nothing(world: DisconnectServer) -> None:
    client = world.open("/x", {})
    assert world.kept == []
    client.peer.disconnect()
    assert world.value("/x") is None


def test_it_works_in_the_site_of_another_program(world: DisconnectServer) -> None:
    world.factory = site = Site(world.resource, reactor=world.clock)  # type: ignore[assignment]
    assert isinstance(site, Site)
    client = world.open("/x", {"a": 1})
    assert world.kept != []
    client.peer.disconnect()
    world.clock.advance(0)
    assert world.kept == []


def test_a_stream_on_a_large_value_that_cannot_begin_leaves_nothing(
    world: DisconnectServer,
) -> None:
    world.write("PUT", "/x", {f"k{number}": "x" * 1000 for number in range(5000)})
    world.clock.lag = 0.001
    client = world.begin("/x", {"a": 1})
    world.clock.advance(0)
    client.peer.disconnect()
    world.clock.lag = 0.0
    world.clock.pump([0.01] * 10)
    assert world.kept == []


def test_a_stream_of_a_query_that_is_refused_holds_nothing(world: DisconnectServer) -> None:
    held = world.resource.shared_reads.held
    before = held.total
    query = quote('"' + "x" * 700 + '"')
    more = ("orderBy=%22$key%22", f"startAt={query}")
    assert world.refuse("/x", "no JSON", *more) == (400, "invalid_query")
    assert held.total == before
