"""`/.settings/events.json`: the events of a hook for a program that reads them."""

from __future__ import annotations

import json
import pathlib
from typing import Any

import attrs
import pytest

from tests.access import admin, secret_of, user
from tests.http1.peer import ParsedReply, Peer
from tests.web.tree_server import PATIENT, SETTINGS, TreeServer, make_verifier
from treedbd.config.settings import Settings
from treedbd.database.requests import ProjectSpec
from treedbd.names import DatabaseName
from treedbd.store.changelog import TRIM_EVERY
from treedbd.web import feed
from treedbd.web.feed import LOOK_S

PATH = "/.settings/events.json"
ADMIN = admin("demo")
WRITES = 3 * TRIM_EVERY + 100
"""After so many writes the log no longer has the first."""


class FeedServer(TreeServer):
    """A server of one project with a hook on `/orders/$id`."""

    def __init__(self, folder: pathlib.Path, options: Settings = SETTINGS) -> None:
        super().__init__(
            folder,
            projects=[ProjectSpec("demo", None)],
            verifier={"demo": make_verifier(secret_of("demo"))}.get,
            options=options,
        )
        self.catalog.open()

    def begin(self, method: str, query: str = "", body: Any = None, token: str = ADMIN) -> Peer:
        """Send a request for the resource."""
        content = b"" if body is None else json.dumps(body).encode()
        lines = (
            f"{method} {PATH}?ns=demo{query} HTTP/1.1",
            *("Host: localhost", f"Authorization: Bearer {token}"),
            *("X-TreeDB-Dialect: standard", f"Content-Length: {len(content)}", "", ""),
        )
        peer = self.connect()
        peer.send("\r\n".join(lines).encode() + content)
        self.clock.advance(0)
        self.clock.advance(0)
        return peer

    def ask(self, method: str, query: str = "", body: Any = None, **more: str) -> ParsedReply:
        """Send a request that is answered at once, and return its reply."""
        (reply,) = self.begin(method, query, body, **more).read(method.encode())
        return reply

    def json(self, method: str, query: str = "", body: Any = None) -> Any:
        reply = self.ask(method, query, body)
        assert reply.status == 200, reply
        return json.loads(reply.body)

    def error(self, method: str, query: str = "", body: Any = None) -> tuple[int, str]:
        reply = self.ask(method, query, body)
        return reply.status, json.loads(reply.body)["error"]

    def hook(self, **more: Any) -> Any:
        return self.json("PUT", body={"name": "orders", "on": "/orders/$id", **more})

    def read(self, query: str = "") -> Any:
        return self.json("GET", f"&name=orders{query}")

    def move(self, **body: Any) -> Any:
        return self.json("POST", body={"name": "orders", **body})

    def order(self, key: str, value: Any = 1) -> None:
        self.write("PUT", f"/orders/{key}", value)


def ids(batch: Any) -> list[str]:
    return [event["captures"]["id"] for entry in batch["entries"] for event in entry["events"]]


@pytest.fixture
def server(tmp_path: pathlib.Path) -> FeedServer:
    made = FeedServer(tmp_path)
    made.order("before")
    made.hook()
    return made


def test_events_are_read_from_the_hook_on_in_the_order_of_the_log(server: FeedServer) -> None:
    server.write("PATCH", "/orders", {"a": 1, "b": 2})
    server.write("PUT", "/other", 1)
    server.order("a", None)
    batch = server.read()
    assert ids(batch) == ["a", "b", "a"]
    kinds = [event["kind"] for entry in batch["entries"] for event in entry["events"]]
    assert kinds == ["created", "created", "deleted"]
    assert (batch["next"], batch["unread"]) == (batch["entries"][-1]["at"], 0)


def test_those_who_read_the_log_look_when_a_hook_has_changed(server: FeedServer) -> None:
    noted: list[DatabaseName] = []
    server.catalog.news.append(noted.append)
    server.json("PUT", body={"name": "other", "on": "/others/$id"})
    server.move(reader="x")
    server.move(end=True)
    assert server.json("DELETE", "&name=other") == {"name": "other"}
    assert noted == [DatabaseName("demo", "default")] * 4


def test_a_batch_may_be_indented(server: FeedServer) -> None:
    server.write("PATCH", "/orders", {"a": {"n": 1}, "b": 2})
    server.order("c")
    reply = server.ask("GET", "&name=orders&print=pretty")
    assert reply.body.startswith(b'{\n  "name": "orders",')
    assert json.loads(reply.body) == server.read()
    assert server.ask("GET", "&name=orders&print=silent").status == 204


def test_a_batch_has_whole_writes_up_to_a_limit(server: FeedServer) -> None:
    for key in "abc":
        server.order(key)
    first = server.read("&limit=2")
    assert (ids(first), first["unread"]) == (["a", "b"], 1)
    assert ids(server.read(f"&limit=2&after={first['next']}")) == ["c"]
    server.write("PATCH", "/orders", {"d": 1, "e": 1, "f": 1})
    assert ids(server.read(f"&limit=2&after={first['next']}")) == ["c", "d", "e", "f"]


def test_what_is_done_is_not_read_again(server: FeedServer) -> None:
    server.order("a")
    server.order("b")
    at = server.read("&limit=1")["next"]
    assert server.move(done=at)["at"] == at
    assert ids(server.read()) == ["b"]


def test_a_place_never_moves_back(server: FeedServer) -> None:
    server.order("a")
    first = server.read("&limit=1")["next"]
    server.order("b")
    last = server.read()["next"]
    server.move(done=last)
    assert server.move(done=first)["at"] == last


def test_events_that_are_not_done_are_kept(server: FeedServer) -> None:
    server.order("kept")
    for number in range(WRITES):
        server.write("PUT", "/n", number)
    assert ids(server.read()) == ["kept"]


def test_the_cursor_counts_what_is_left(server: FeedServer) -> None:
    server.order("a")
    server.order("b", "x" * 1000)
    listed = server.request("GET", "/.settings/cursors.json?ns=demo", b"", [BEARER], "localhost")
    (before,) = json.loads(listed.body)["cursors"]
    server.move(done=server.read()["next"])
    listed = server.request("GET", "/.settings/cursors.json?ns=demo", b"", [BEARER], "localhost")
    (after,) = json.loads(listed.body)["cursors"]
    assert (before["name"], before["entries"]) == ("hook-orders", 2)
    assert before["bytes"] > 1000
    assert (after["entries"], after["bytes"]) == (0, 0)


BEARER = f"Authorization: Bearer {ADMIN}"


def test_a_request_waits_for_an_event(server: FeedServer) -> None:
    waiting = server.begin("GET", "&name=orders&wait=10")
    server.clock.advance(1)
    server.write("PUT", "/other", 1)
    server.clock.advance(1)
    assert waiting.read(b"GET") == []
    server.order("a")
    server.clock.advance(feed.NEWS_S)
    server.clock.advance(0)
    (reply,) = waiting.read(b"GET")
    assert ids(json.loads(reply.body)) == ["a"]
    assert len(server.resource.streams) == 0


def test_a_request_that_has_waited_long_enough_says_up_to_where(server: FeedServer) -> None:
    waiting = server.begin("GET", "&name=orders&wait=3")
    server.write("PUT", "/other", 1)
    server.clock.advance(LOOK_S)
    server.clock.advance(1)
    server.clock.advance(0)
    (reply,) = waiting.read(b"GET")
    batch = json.loads(reply.body)
    assert (batch["entries"], batch["unread"]) == ([], 0)
    assert server.move(done=batch["next"])["at"] == batch["next"]


@pytest.mark.parametrize("how", ["server stops", "client leaves", "another request"])
def test_a_request_ends_its_waiting(server: FeedServer, how: str) -> None:
    waiting = server.begin("GET", "&name=orders&wait=30")
    if how == "server stops":
        server.resource.streams.end()
    elif how == "client leaves":
        waiting.disconnect()
    else:
        server.read("&wait=0")
        server.begin("GET", "&name=orders&wait=30").disconnect()
    server.clock.advance(0)
    server.clock.advance(0)
    assert len(server.resource.streams) == 0
    assert len(waiting.read(b"GET")) == (how != "client leaves")


def test_the_newest_program_reads(server: FeedServer) -> None:
    server.order("a")
    server.move(reader="old")
    at = server.read("&reader=old")["next"]
    server.move(done=at, reader="old")
    waiting = server.begin("GET", "&name=orders&reader=old&wait=30")
    assert server.move(reader="new")["reader"] == "new"
    (reply,) = waiting.read(b"GET")
    assert (reply.status, json.loads(reply.body)["error"]) == (409, "reader_replaced")
    assert server.error("GET", "&name=orders&reader=old") == (409, "reader_replaced")
    server.order("b")
    last = server.read("&reader=new")["next"]
    refused = server.error("POST", body={"name": "orders", "done": last, "reader": "old"})
    assert refused == (409, "reader_replaced")
    assert server.move(done=last, reader="new")["at"] == last


def test_another_program_cannot_say_what_is_done_or_begin_at_the_end(server: FeedServer) -> None:
    server.order("a")
    for reader in ("first", "second"):  # of none yet, and of another
        for body in ({"end": True}, {"done": server.read()["next"]}):
            refused = server.error("POST", body={"name": "orders", "reader": reader, **body})
            assert refused == (409, "reader_replaced")
        server.move(reader="first")
    assert ids(server.read("&reader=first")) == ["a"]
    assert server.move(reader="first", end=True)["reader"] == "first"
    assert server.read("&reader=first")["entries"] == []
    server.order("b")
    assert server.move(end=True)["reader"] == "first"
    assert server.read("&reader=first")["entries"] == []


def test_a_hook_is_made_once(server: FeedServer) -> None:
    server.order("a")
    again = server.hook(events=["deleted", "created", "updated"])
    assert (again["created"], again["events"]) == (False, ["written"])
    assert ids(server.read()) == ["a"]
    other = {"name": "orders", "on": "/orders/$id", "events": ["created"]}
    assert server.error("PUT", body=other) == (409, "conflict")
    assert server.json("PUT", body={**other, "replace": True})["events"] == ["created"]
    server.order("a", 2)
    server.order("b", 1)
    assert ids(server.read()) == ["a", "b"]


def test_a_hook_that_is_removed_has_no_events(server: FeedServer) -> None:
    waiting = server.begin("GET", "&name=orders&wait=30")
    assert server.json("DELETE", "&name=orders") == {"name": "orders"}
    server.clock.advance(0)
    (reply,) = waiting.read(b"GET")
    assert reply.status == 404
    assert server.error("GET", "&name=orders") == (404, "not_found")
    assert server.error("DELETE", "&name=orders") == (404, "not_found")
    assert server.error("POST", body={"name": "orders", "reader": "a"}) == (404, "not_found")


def test_a_place_is_lost_with_its_cursor(server: FeedServer) -> None:
    server.order("a")
    removed = server.request(
        "DELETE", "/.settings/cursors.json?ns=demo&cursor=hook-orders", b"", [BEARER], "localhost"
    )
    assert removed.status == 200
    assert server.error("GET", "&name=orders") == (410, "place_lost")
    assert server.error("POST", body={"name": "orders", "reader": "a"}) == (410, "place_lost")
    assert server.move(end=True)["reader"] is None
    assert server.move(reader="a")["reader"] == "a"
    server.order("b")
    assert ids(server.read()) == ["b"]


@pytest.mark.parametrize("after", ["2-0000000000000000", "99", "1-0000000000000000"])
def test_a_position_of_another_history_is_lost(server: FeedServer, after: str) -> None:
    server.order("a")
    assert server.error("GET", f"&name=orders&after={after}") == (410, "place_lost")
    if not after.startswith("1-"):  # what is before the place does not move it
        refused = server.error("POST", body={"name": "orders", "done": after})
        assert refused == (410, "place_lost")


@pytest.mark.parametrize(
    ("query", "why"),
    [
        ("", "name"),
        ("&name=Orders", "name"),
        ("&name=orders&limit=0", "limit"),
        ("&name=orders&limit=1001", "limit"),
        ("&name=orders&wait=61", "wait"),
        ("&name=orders&wait=x", "wait"),
        ("&name=orders&after=x", "after"),
        ("&name=orders&reader=a%20b", "reader"),
        ("&name=orders&name=b", "twice"),
    ],
)
def test_a_bad_question_is_refused(server: FeedServer, query: str, why: str) -> None:
    reply = server.ask("GET", query)
    assert reply.status == 400
    assert why in json.loads(reply.body)["message"]


@pytest.mark.parametrize(
    ("method", "body"),
    [
        ("PUT", {"name": "a"}),
        ("PUT", {"name": "a", "on": "/a//$b/$b"}),
        ("PUT", {"name": "a", "on": 1}),
        ("PUT", {"name": "A", "on": "/a"}),
        ("PUT", {"name": "a", "on": "/a", "events": []}),
        ("PUT", {"name": "a", "on": "/a", "events": ["created", "created"]}),
        ("PUT", {"name": "a", "on": "/a", "events": {}}),
        ("PUT", {"name": "a", "on": "/a", "replace": 1}),
        ("PUT", []),
        ("PUT", {"name": "a", "on": "/a", "event": ["created"]}),
        ("POST", {"name": "orders", "don": "1"}),
        ("POST", {"name": "orders"}),
        ("POST", {"name": "orders", "done": "x"}),
        ("POST", {"name": "orders", "done": 1}),
        ("POST", {"name": "orders", "reader": ""}),
        ("POST", {"name": "orders", "done": "1", "end": True}),
        ("POST", {"name": "orders", "end": "yes"}),
    ],
)
def test_a_bad_body_is_refused(server: FeedServer, method: str, body: Any) -> None:
    assert server.ask(method, "", body).status == 400


def test_a_long_body_is_refused(server: FeedServer) -> None:
    body = {"name": "a", "on": "/a", "on ": "x" * feed.MAX_BODY_BYTES}
    assert server.error("PUT", body=body) == (413, "payload_too_large")


@pytest.mark.parametrize("method", ["PUT", "POST", "DELETE"])
def test_nothing_is_changed_that_ignores_a_condition(server: FeedServer, method: str) -> None:
    body = {"name": "orders", "on": "/a", "end": True}
    reply = server.ask(method, "&name=orders&dryRun=true", body)
    assert json.loads(reply.body)["message"] == "dryRun is not possible here."


def test_only_admins_read_events(server: FeedServer) -> None:
    for method in ("GET", "PUT", "POST", "DELETE"):
        assert server.ask(method, "&name=orders", token=user("demo", "ada")).status == 403


def test_requests_that_wait_are_admitted_as_streams_are(tmp_path: pathlib.Path) -> None:
    server = FeedServer(tmp_path, attrs.evolve(SETTINGS, limits=attrs.evolve(PATIENT, streams=1)))
    server.order("before")
    server.hook()
    server.open_stream("/other.json")
    assert server.error("GET", "&name=orders&wait=1") == (503, "unavailable")
    assert server.read()["entries"] == []
