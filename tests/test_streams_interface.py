"""Streams as the interface documents them: the events of each write, and their form."""

from __future__ import annotations

import contextlib
import itertools
import json
import pathlib
from collections.abc import Iterator
from typing import Any
from urllib.parse import urlencode

import pytest

from tests.daemon import Daemon
from tests.replica import Replica
from tests.rest import Client, check_error, configured
from tests.sse import EVENTS, EventStream, Frame, change, put

OPEN_PROJECT = """
default_project = "demo"
[projects.demo]
databases = "*"
rules_file = "open.json"
"""


def write(tree: Client, method: str, target: str, value: Any = None) -> Any:
    """Write a value and return the JSON of the response."""
    response = tree.request(method, target, None if method == "DELETE" else json.dumps(value))
    assert response.status == 200, response
    return response.json


def events_of(tree: Client, watched: str, *writes: tuple[str, str, Any]) -> list[Any]:
    """Return the events of some writes on a watched path, after the first value."""
    with EventStream(tree, watched) as stream:
        assert change(stream.next_frame())[:2] == ("put", "/")
        for method, target, value in writes:
            write(tree, method, target, value)
        end = f"the end {next(_numbers)}"
        write(tree, "PUT", watched, end)
        return list(itertools.takewhile(lambda one: one[2] != end, map(change, stream.frames())))


_numbers = itertools.count()


# The head.


def test_the_headers_of_a_stream(tree: Client) -> None:
    with EventStream(tree, "/a.json") as stream:
        assert stream.status == 200
        assert stream.headers["Content-Type"] == "text/event-stream; charset=utf-8"
        assert stream.headers.get_all("Cache-Control") == ["no-cache"]
        assert stream.headers["X-Accel-Buffering"] == "no"
        assert stream.headers["X-Content-Type-Options"] == "nosniff"
        assert stream.headers["Access-Control-Allow-Origin"] == "*"
        assert stream.headers.get_all("Connection") == ["close"]
        assert "Transfer-Encoding" not in stream.headers
        assert "Content-Length" not in stream.headers
        assert "Server" not in stream.headers
        assert "ETag" not in stream.headers


def test_a_stream_with_a_token_has_the_same_headers(tree: Client) -> None:
    with EventStream(tree, "/a.json", {"Authorization": "Bearer owner"}) as stream:
        assert stream.headers.get_all("Cache-Control") == ["no-cache"]


@pytest.mark.parametrize(
    "accept",
    [
        "text/event-stream",
        "text/event-stream;q=0.9, */*;q=0.1",
        "application/json,Text/Event-Stream",
        "text/event-stream;q=0.05",
    ],
)
def test_accept_of_event_stream_opens_a_stream(tree: Client, accept: str) -> None:
    with EventStream(tree, "/a.json", {"Accept": accept}) as stream:
        assert change(stream.next_frame()) == put("/", None)


def test_accept_may_have_several_header_lines(tree: Client) -> None:
    for first, second in (("*/*", "text/event-stream"), ("text/event-stream", "*/*")):
        with EventStream(tree, "/a.json", {"Accept": first, "accept": second}) as stream:
            assert change(stream.next_frame()) == put("/", None)


@pytest.mark.parametrize(
    "accept",
    [
        *("*/*", "application/json", "text/*"),
        *("text/event-stream;q=0", "*/*, text/event-stream; q=0.0"),
    ],
)
def test_other_values_of_accept_return_json(tree: Client, accept: str) -> None:
    response = tree.request("GET", "/a.json", headers={"Accept": accept})
    assert (response.status, response.body) == (200, b"null")


def test_head_of_a_stream_has_the_headers_and_no_body(tree: Client) -> None:
    response = tree.request("HEAD", "/a.json", headers=EVENTS)
    assert response.status == 200
    assert response.headers["Content-Type"] == "text/event-stream; charset=utf-8"
    assert response.headers["Cache-Control"] == "no-cache"
    assert tree.get("/a.json") is None


def test_a_stream_over_http_1_0_ends_with_its_connection(tree: Client) -> None:
    with EventStream(tree, "/a.json", version="HTTP/1.0") as stream:
        assert stream.headers["Connection"] == "close"
        assert "Transfer-Encoding" not in stream.headers
        assert change(stream.next_frame()) == put("/", None)
        tree.put("/a.json", 1)
        assert change(stream.next_frame()) == put("/", 1)


def test_a_post_with_the_override_get_opens_a_stream(tree: Client) -> None:
    override = {"X-HTTP-Method-Override": "GET"}
    with EventStream(tree, "/a.json", override, method="POST") as stream:
        assert change(stream.next_frame()) == put("/", None)


# The frames.


def test_a_frame_has_the_documented_bytes(tree: Client) -> None:
    tree.put("/a.json", {"b": [1, 2.5, "é\n"], "a": True})
    with tree.connect() as wire:
        wire.send(
            b"GET /a.json HTTP/1.0\r\nHost: %b\r\nAccept: text/event-stream\r\n\r\n"
            % tree.host.encode()
        )
        file = wire.socket.makefile("rb")
        while file.readline() != b"\r\n":
            pass
        expected = 'event: put\ndata: {"path":"/","data":{"a":true,"b":[1,2.5,"é\\n"]}}\n\n'
        assert file.read(len(expected.encode())) == expected.encode()
        tree.request("PATCH", "/a/c/d.json", '{"x":1}')
        expected = 'event: patch\ndata: {"path":"/c/d","data":{"x":1}}\n\n'
        assert file.read(len(expected)) == expected.encode()
        file.close()


@pytest.mark.parametrize("value", [None, True, 0, "text", [1, None, 3], {"a": {"b": {}}}])
def test_the_first_event_is_the_value_as_a_get_returns_it(tree: Client, value: Any) -> None:
    tree.put("/a.json", value)
    with EventStream(tree, "/a.json") as stream:
        assert change(stream.next_frame()) == put("/", tree.get("/a.json"))


def test_keys_in_paths_of_events_are_not_escaped(tree: Client) -> None:
    assert events_of(tree, "/.json", ("PUT", "/%C3%A9%20%22%25/1.json", 1)) == [put('/é "%/1', 1)]


# The events of each write.

PATCH = {"b": {"c": 1}, "/d/e": 2, "f": {}, "g": [], "h/i": None}
SENT = {"b": {"c": 1}, "d/e": 2, "f": None, "g": None, "h/i": None}


@pytest.mark.parametrize(
    ("watched", "written", "expected"),
    [
        ("/a.json", ("PUT", "/a.json", {"x": 1}), [put("/", {"x": 1})]),
        ("/a.json", ("PUT", "/a/b/c.json", 1), [put("/b/c", 1)]),
        ("/a.json", ("PUT", "/a/b.json", [1, None, 2]), [put("/b", [1, None, 2])]),
        ("/a.json", ("PUT", "/a/b.json", {"0": 1, "1": 2}), [put("/b", [1, 2])]),
        ("/a.json", ("DELETE", "/a/b.json", None), [put("/b", None)]),
        ("/a.json", ("DELETE", "/a.json", None), [put("/", None)]),
        ("/a.json", ("PATCH", "/a.json", PATCH), [("patch", "/", SENT)]),
        ("/a.json", ("PATCH", "/a/x/y.json", PATCH), [("patch", "/x/y", SENT)]),
        ("/a.json", ("PATCH", "/a.json", None), [put("/", None)]),
        ("/a.json", ("PATCH", "/a.json", {}), []),
        ("/.json", ("PUT", "/a.json", 1), [put("/a", 1)]),
        ("/.json", ("PATCH", "/.json", {"a/b": 1, "c": 2}), [("patch", "/", {"a/b": 1, "c": 2})]),
        ("/a/b.json", ("PUT", "/a.json", {"b": {"x": 1}, "c": 2}), [put("/", {"x": 1})]),
        ("/a/b.json", ("PUT", "/.json", {"a": {"c": 2}}), [put("/", None)]),
        ("/a/b.json", ("PUT", "/a.json", "leaf"), [put("/", None)]),
        ("/a/b.json", ("DELETE", "/.json", None), [put("/", None)]),
        ("/a/b.json", ("PATCH", "/.json", {"a": {"b": 7}}), [put("/", 7)]),
        ("/a/b.json", ("PATCH", "/.json", {"a/b": 7}), [put("/", 7)]),
        ("/a/b.json", ("PATCH", "/.json", {"a/b/c": 7, "z": 1}), [("patch", "/", {"c": 7})]),
        (
            "/a/b.json",
            ("PATCH", "/a.json", {"b/c": 7, "b/d/e": 8}),
            [("patch", "/", {"c": 7, "d/e": 8})],
        ),
        ("/a/b.json", ("PATCH", "/a.json", {"c": 7}), []),
        ("/a/b.json", ("PATCH", "/.json", {"a/c": 7}), []),
        ("/a/b.json", ("PUT", "/a/c.json", 1), []),
        ("/a/b.json", ("PUT", "/z.json", 1), []),
        ("/a/b.json", ("PUT", "/a/b/c.json", 1), [put("/c", 1)]),
    ],
)
def test_a_stream_receives_the_writes_that_concern_its_path(
    tree: Client, watched: str, written: tuple[str, str, Any], expected: list[Any]
) -> None:
    tree.put("/a.json", {"b": {"x": "before"}, "c": "before"})
    assert events_of(tree, watched, written) == expected


def test_a_push_is_a_put_of_the_new_child(tree: Client) -> None:
    with EventStream(tree, "/list.json") as stream:
        stream.next_frame()
        name = write(tree, "POST", "/list.json", {"x": 1})["name"]
        assert change(stream.next_frame()) == put(f"/{name}", {"x": 1})


def test_a_path_that_stays_empty_receives_writes_above_it(tree: Client) -> None:
    written = ("DELETE", "/a.json", None), ("PUT", "/a.json", {"c": 1}), ("PUT", "/a/c.json", 1)
    assert events_of(tree, "/a/b.json", *written) == [put("/", None), put("/", None)]


def test_a_write_of_an_equal_value_is_sent_too(tree: Client) -> None:
    written = ("PUT", "/a/b.json", 1)
    assert events_of(tree, "/a.json", written, written) == [put("/b", 1), put("/b", 1)]


def test_server_values_are_resolved(tree: Client) -> None:
    tree.put("/a/n.json", 5)
    with EventStream(tree, "/a.json") as stream:
        stream.next_frame()
        sent = {"n": {".sv": {"increment": 2}}, "at": {".sv": "timestamp"}}
        response = write(tree, "PATCH", "/a.json", sent)
        assert response["n"] == 7
        assert change(stream.next_frame()) == ("patch", "/", response)
        now = write(tree, "PUT", "/a/now.json", {".sv": "timestamp"})
        assert change(stream.next_frame()) == put("/now", now)


def test_a_put_shows_no_priority_and_that_of_a_priority_is_a_put_of_its_node(tree: Client) -> None:
    received = events_of(
        tree,
        "/a.json",
        ("PUT", "/a.json", {".priority": 1, "b": {".value": 2, ".priority": 3}}),
        ("PUT", "/a/b/.priority.json", 4),
        ("PUT", "/a/.priority.json", 5),
    )
    assert received == [put("/", {"b": 2}), put("/b", 2), put("/", {"b": 2})]


def test_a_failed_write_is_not_sent(tree: Client) -> None:
    tree.put("/a.json", 1)
    with EventStream(tree, "/.json") as stream:
        stream.next_frame()
        assert tree.request("PUT", "/a.json", "2", {"If-Match": "nonsense"}).status == 412
        assert tree.request("PUT", "/a.json", "{").status == 400
        assert tree.request("PATCH", "/a.json", '{"x":1,"x/y":2}').status == 400
        assert tree.request("PUT", "/a.json", "3", {"If-Match": "*"}).status == 200
        assert change(stream.next_frame()) == put("/a", 3)


def test_a_silent_write_is_sent(tree: Client) -> None:
    with EventStream(tree, "/a.json") as stream:
        stream.next_frame()
        assert tree.request("PUT", "/a.json?print=silent", "1").status == 204
        assert change(stream.next_frame()) == put("/", 1)


def test_a_stream_of_another_database_receives_nothing(shared_daemon: Daemon, tree: Client) -> None:
    with Client.of_new_tree(shared_daemon) as other, EventStream(other, "/.json") as stream:
        assert change(stream.next_frame()) == put("/", None)
        tree.put("/a.json", "here")
        other.put("/a.json", "there")
        assert change(stream.next_frame()) == put("/a", "there")


# Queries.


def window(tree: Client, **parameters: str) -> EventStream:
    return EventStream(tree, f"/list.json?{urlencode(parameters)}")


def test_a_query_begins_with_its_result_in_order(tree: Client) -> None:
    tree.put("/list.json", {"a": 3, "b": 1, "c": 2})
    with window(tree, orderBy='"$value"', limitToFirst="2") as stream:
        frame = stream.next_frame()
        assert frame is not None
        assert frame.data == '{"path":"/","data":{"b":1,"c":2}}'


def test_children_enter_and_leave_the_window_of_a_query(tree: Client) -> None:
    tree.put("/list.json", {"a": 3, "b": 1, "c": 2})
    with window(tree, orderBy='"$value"', limitToFirst="2") as stream:
        stream.next_frame()
        tree.put("/list/d.json", 0)
        assert change(stream.next_frame()) == ("patch", "/", {"c": None, "d": 0})
        write(tree, "DELETE", "/list/b.json")
        assert change(stream.next_frame()) == ("patch", "/", {"b": None, "c": 2})


def test_a_write_to_a_child_of_a_query_is_sent_as_it_was_made(tree: Client) -> None:
    tree.put("/list.json", {"a": {"n": 1, "x": {"y": 1}}, "b": {"n": 9}})
    with window(tree, orderBy='"n"', endAt="5") as stream:
        stream.next_frame()
        tree.put("/list/b/x.json", 1)
        tree.put("/list/a/x/y.json", 2)
        assert change(stream.next_frame()) == put("/a/x/y", 2)
        write(tree, "PATCH", "/list/a.json", {"z": 3})
        assert change(stream.next_frame()) == ("patch", "/a", {"z": 3})
        write(tree, "PATCH", "/list.json", {"a/n": 6, "b/n": 4})
        assert change(stream.next_frame()) == ("patch", "/", {"a": None, "b": {"n": 4, "x": 1}})


def test_a_query_by_key_selects_the_last_children(tree: Client) -> None:
    tree.put("/list.json", {f"k{number:03}": number for number in range(300)})
    with window(tree, orderBy='"$key"', limitToLast="2") as stream:
        assert change(stream.next_frame()) == put("/", {"k298": 298, "k299": 299})
        tree.put("/list/k100.json", 0)
        tree.put("/list/k300.json", 300)
        assert change(stream.next_frame()) == ("patch", "/", {"k298": None, "k300": 300})


def test_a_query_receives_a_write_above_its_list(tree: Client) -> None:
    tree.put("/list.json", {"a": 1, "b": 2})
    with window(tree, orderBy='"$key"', startAt='"b"') as stream:
        stream.next_frame()
        tree.put("/.json", {"list": {"a": 5, "b": 2, "c": 3}})
        assert change(stream.next_frame()) == put("/", {"b": 2, "c": 3})
        write(tree, "DELETE", "/.json")
        assert change(stream.next_frame()) == put("/", None)


def test_all_streams_of_one_query_receive_its_changes(tree: Client) -> None:
    tree.put("/list.json", {"a": 1, "b": 2, "c": 3})
    query = {"orderBy": '"$value"', "limitToFirst": "1"}
    with (
        window(tree, **query) as one,
        window(tree, **query) as other,
        window(tree, **query, resume="true") as third,
    ):
        streams = (one, other, third)
        for stream in streams:
            assert change(stream.next_frame()) == put("/", {"a": 1})
        for name, next_child in (("a", ("b", 2)), ("b", ("c", 3))):
            write(tree, "DELETE", f"/list/{name}.json")
            for stream in streams:
                key, value = next_child
                expected = ("patch", "/", {name: None, key: value})
                assert change(stream.next_frame()) == expected


# Errors.


@pytest.mark.parametrize(
    ("target", "code"),
    [
        ("/a.json?shallow=true", "invalid_query"),
        ("/a.json?print=pretty", "invalid_query"),
        ("/a.json?print=silent", "invalid_query"),
        ("/a.json?callback=f", "invalid_query"),
        ("/a.json?download=f", "invalid_query"),
        ("/a.json?resume=maybe", "invalid_query"),
        ("/a.json?describe=maybe", "invalid_query"),
        ("/a.json?describe=true&resume=true", "invalid_query"),
        ("/a.json?describe=true&orderBy=%22$key%22", "invalid_query"),
        ("/a.json?limitToFirst=1", "invalid_query"),
        ("/a.json?orderBy=a", "invalid_query"),
        ("/a.json?timeout=0s", "invalid_query"),
        ("/a$.json", "invalid_path"),
    ],
)
def test_parameters_that_exclude_a_stream_are_refused_in_json(
    tree: Client, target: str, code: str
) -> None:
    headers = {**dict(EVENTS), "Sec-Fetch-Site": "none"}
    check_error(tree.request("GET", target, headers=headers), 400, code)


def test_a_stream_of_an_unknown_path_or_database_is_404(
    shared_daemon: Daemon, tree: Client
) -> None:
    check_error(tree.request("GET", "/a", headers=EVENTS), 404, "not_found")
    with Client(shared_daemon, "a.b.localhost") as unknown:
        check_error(unknown.request("GET", "/a.json", headers=EVENTS), 404, "not_found")


def test_a_stream_with_an_invalid_token_is_401(tree: Client) -> None:
    check_error(tree.request("GET", "/a.json?auth=x", headers=EVENTS), 401, "auth_required")


def test_a_stream_has_no_time_out(tmp_path: pathlib.Path) -> None:
    with configured(tmp_path, OPEN_PROJECT + "[streams]\nkeep_alive_s = 0.05\n") as daemon:
        with Client(daemon) as client, EventStream(client, "/a.json?timeout=100ms") as stream:
            received = [stream.next_frame() for _ in range(6)]
        assert received[1:] == [Frame("keep-alive", "null")] * 5


# Resuming.


def resumed(tree: Client, last: str | None, target: str = "/a.json?resume=true") -> EventStream:
    return EventStream(tree, target, {} if last is None else {"Last-Event-ID": last})


def test_events_have_ids_only_if_requested(tree: Client) -> None:
    for target in ("/a.json", "/a.json?resume=false"):
        with EventStream(tree, target) as stream:
            tree.put("/a.json", 1)
            for _ in range(2):
                frame = stream.next_frame()
                assert frame is not None
                assert frame.id is None


def test_every_event_of_a_resumable_stream_has_an_id_of_its_own(tree: Client) -> None:
    with resumed(tree, None) as stream:
        frames = [stream.next_change()]
        tree.put("/a.json", {"b": 1})
        write(tree, "PATCH", "/.json", {"a/b": 2, "a/c": 3, "a/d": 4})
        frames += [stream.next_change() for _ in range(2)]
    assert len({frame.id for frame in frames}) == 3
    assert None not in {frame.id for frame in frames}


def test_a_resumed_stream_begins_with_the_missed_events_instead_of_the_value(tree: Client) -> None:
    with resumed(tree, None) as stream:
        first = stream.next_change()
        tree.put("/a/b.json", 1)
        second = stream.next_change()
    tree.put("/a/c.json", 2)
    tree.put("/elsewhere.json", 2)
    write(tree, "PATCH", "/a.json", {"d": 3, "e": {"f": 4}})
    missed = [put("/c", 2), ("patch", "/", {"d": 3, "e": {"f": 4}})]
    with resumed(tree, second.id) as stream:
        assert [change(stream.next_frame()) for _ in range(2)] == missed
        tree.put("/a/g.json", 5)
        last = stream.next_change()
        assert change(last) == put("/g", 5)
    with resumed(tree, first.id) as stream:
        expected = [put("/b", 1), *missed, put("/g", 5)]
        assert [change(stream.next_frame()) for _ in range(4)] == expected
    with resumed(tree, last.id) as stream:
        tree.put("/a.json", "nothing was missed")
        assert change(stream.next_frame()) == put("/", "nothing was missed")


def test_a_write_above_a_stream_is_missed_as_one_event(tree: Client) -> None:
    tree.put("/a.json", {"b": 1})
    with resumed(tree, None) as stream:
        first = stream.next_change()
    write(tree, "PATCH", "/.json", {"a/b": 2, "a/c": 3, "a/d": 4})
    tree.put("/a/e.json", 5)
    with resumed(tree, first.id) as stream:
        expected = [("patch", "/", {"b": 2, "c": 3, "d": 4}), put("/e", 5)]
        frames = [stream.next_change() for _ in expected]
    assert [change(frame) for frame in frames] == expected
    with resumed(tree, frames[0].id) as stream:
        assert change(stream.next_frame()) == expected[1]


@pytest.mark.parametrize(
    "last",
    [
        "",
        "x",
        "-1",
        "+1",
        "1.5",
        "0x10",
        "٣",
        "1-",
        "1-00",
        "999999999",
        "9" * 30,
        "1-0123456789abcdef",
        "1-0123456789abcdef-1",
        "999999999-0123456789abcdef",
        "a" * 5000,
    ],
)
def test_a_stream_resumed_with_an_unknown_id_begins_with_the_value(tree: Client, last: str) -> None:
    tree.put("/a.json", 1)
    tree.put("/a.json", 2)
    with EventStream(
        tree, "/a.json?resume=true", {"Last-Event-ID": last.encode().decode("latin-1")}
    ) as stream:
        frame = stream.next_change()
        assert change(frame) == put("/", 2)
        assert frame.id is not None


def test_an_id_is_ignored_without_resume(tree: Client) -> None:
    with resumed(tree, None) as stream:
        last = stream.next_change().id
    tree.put("/a/b.json", 1)
    with resumed(tree, last, "/a.json") as stream:
        assert change(stream.next_frame()) == put("/", {"b": 1})


def test_an_id_of_another_database_is_unknown(shared_daemon: Daemon, tree: Client) -> None:
    for number in range(3):
        tree.put("/a.json", number)
    with resumed(tree, None) as stream:
        last = stream.next_change().id
    with Client.of_new_tree(shared_daemon) as other:
        for number in range(5):
            other.put("/a.json", number)
        with resumed(other, last) as stream:
            assert change(stream.next_frame()) == put("/", 4)


def test_a_resumed_query_begins_with_the_value(tree: Client) -> None:
    tree.put("/list.json", {"a": 1, "b": 2})
    target = "/list.json?orderBy=%22$key%22&limitToFirst=1&resume=true"
    with resumed(tree, None, target) as stream:
        last = stream.next_change().id
        assert last is not None
    tree.put("/list/b.json", 3)
    with resumed(tree, last, target) as stream:
        assert change(stream.next_frame()) == put("/", {"a": 1})


def test_a_stream_that_missed_a_write_too_large_for_the_log_begins_with_the_value(
    tree: Client,
) -> None:
    with resumed(tree, None) as stream:
        last = stream.next_change().id
    tree.put("/a/large.json", "x" * 100_000)
    tree.put("/a/small.json", 1)
    with resumed(tree, last) as stream:
        assert change(stream.next_frame()) == put("/", {"large": "x" * 100_000, "small": 1})


def restart_crashed(daemon: Daemon) -> None:
    daemon.kill()
    daemon.start()


@pytest.mark.parametrize("restart", [Daemon.restart, restart_crashed])
def test_a_stream_is_resumed_after_a_restart(tmp_path: pathlib.Path, restart: Any) -> None:
    with Daemon(tmp_path) as daemon:
        with Client(daemon) as client, resumed(client, None) as stream:
            client.put("/a.json", {"b": 1})
            stream.next_change()
            last = stream.next_change().id
            client.put("/a/c.json", 2)
        restart(daemon)
        with Client(daemon) as client:
            client.put("/a/d.json", 3)
            with resumed(client, last) as stream:
                received = [change(stream.next_frame()) for _ in range(2)]
                assert received == [put("/c", 2), put("/d", 3)]


def test_an_id_of_a_lost_database_is_unknown(tmp_path: pathlib.Path) -> None:
    with Daemon(tmp_path, arguments=["--engine", "memory"]) as daemon:
        with Client(daemon) as client, resumed(client, None) as stream:
            client.put("/a.json", "before")
            stream.next_change()
            last = stream.next_change().id
        daemon.restart()
        with Client(daemon) as client:
            for number in range(3):
                client.put("/a.json", number)
            with resumed(client, last) as stream:
                assert change(stream.next_frame()) == put("/", 2)


# Changes without values.


def changes_of(stream: EventStream, count: int) -> list[Any]:
    """Return the data of the next events of a stream, which are `changed`."""
    frames = [stream.next_change() for _ in range(count)]
    assert {frame.event for frame in frames} == {"changed"}
    return [frame.json for frame in frames]


def test_a_stream_of_changes_names_what_was_written_and_a_reader_follows_it(tree: Client) -> None:
    write(tree, "PUT", "/a.json", {"b": {"c": 1}, "e": "x" * 10_000})
    with EventStream(tree, "/a.json?describe=true") as stream:
        assert stream.headers["Content-Type"] == "text/event-stream; charset=utf-8"
        assert changes_of(stream, 1) == [{"path": "/"}]
        replica = Replica()
        replica.apply("put", "/", tree.get("/a.json"))
        write(tree, "PUT", "/a/b/c.json", {"d": 2})
        write(tree, "PATCH", "/a.json", {"b/f": [1, 2], "e": None})
        write(tree, "PATCH", "/.json", {"a/g": 3, "z": 1})
        key = write(tree, "POST", "/a/list.json", "item")["name"]
        write(tree, "PUT", "/z.json", 2)
        write(tree, "DELETE", "/a/b.json")
        named = changes_of(stream, 5)
        assert named == [
            {"path": "/b/c"},
            {"path": "/", "keys": ["b/f", "e"]},
            {"path": "/", "keys": ["g"]},
            {"path": f"/list/{key}"},
            {"path": "/b"},
        ]
        for each in named:
            for below in each.get("keys", [""]):
                place = f"{each['path']}/{below}"
                replica.apply("put", place, tree.get(f"/a{place.rstrip('/')}.json"))
        assert replica.equals(tree.get("/a.json"))
        write(tree, "PUT", "/.json", None)
        assert changes_of(stream, 1) == [{"path": "/"}]


def test_a_write_too_large_for_memory_is_one_short_event(tree: Client) -> None:
    with EventStream(tree, "/a/b.json?describe=true") as stream:
        assert changes_of(stream, 1) == [{"path": "/"}]
        write(tree, "PUT", "/a.json", {"b": {f"k{n:04}": "x" * 100 for n in range(4000)}})
        write(tree, "PATCH", "/a/b.json", {f"k{n:04}": n for n in range(3000)})
        write(tree, "PUT", "/a/b/c.json", 1)
        assert changes_of(stream, 3) == [{"path": "/"}, {"path": "/"}, {"path": "/c"}]


# Settings.


def test_keep_alives_are_sent_while_nothing_is_written(tmp_path: pathlib.Path) -> None:
    settings = "[streams]\nkeep_alive_s = 0.2\n"
    with configured(tmp_path, OPEN_PROJECT + settings) as daemon, Client(daemon) as client:
        queries = ("", "?resume=true", "?orderBy=%22$key%22", "?describe=true")
        for target in (f"/a.json{query}" for query in queries):
            with EventStream(client, target) as stream:
                assert stream.next_change().path == "/"
                for _ in range(3):
                    assert stream.next_frame() == Frame("keep-alive", "null")


@contextlib.contextmanager
def limited(folder: pathlib.Path, limit: str) -> Iterator[Client]:
    """Start a daemon with a limit; return its client."""
    config = f"{OPEN_PROJECT}[limits]\n{limit}\n"
    with configured(folder, config) as daemon, Client(daemon) as client:
        yield client


def test_streams_are_limited_for_each_address(tmp_path: pathlib.Path) -> None:
    with (
        limited(tmp_path, "streams_per_address = 2") as client,
        EventStream(client, "/a.json"),
        EventStream(client, "/b.json") as other,
    ):
        refused = client.request("GET", "/c.json", headers=EVENTS)
        check_error(refused, 429, "too_many_requests")
        assert client.get("/c.json") is None
        other.close()
        with open_when_possible(client, "/c.json") as stream:
            assert change(stream.next_frame()) == put("/", None)


def test_streams_are_limited_for_each_database(tmp_path: pathlib.Path) -> None:
    with (
        limited(tmp_path, "streams_per_database = 1") as client,
        EventStream(client, "/a.json"),
    ):
        refused = client.request("GET", "/b.json", headers=EVENTS)
        check_error(refused, 429, "too_many_requests")
        assert client.request("HEAD", "/b.json", headers=EVENTS).status == 429
        with EventStream(client, "/b.json?ns=other--demo") as stream:
            assert stream.status == 200


def test_streams_are_limited_in_total(tmp_path: pathlib.Path) -> None:
    with limited(tmp_path, "streams = 1") as client:
        for _ in range(3):
            assert client.request("HEAD", "/a.json", headers=EVENTS).status == 200
        with EventStream(client, "/a.json"):
            refused = client.request("GET", "/b.json?ns=other--demo", headers=EVENTS)
            assert refused.status == 503
            client.put("/a.json", 1)


def open_when_possible(client: Client, target: str) -> EventStream:
    """Open a stream as soon as the daemon has noticed that another one is closed."""
    while True:
        stream = EventStream(client, target)
        if stream.status == 200:
            return stream
        stream.close()


def test_pages_of_configured_origins_may_open_streams(tmp_path: pathlib.Path) -> None:
    config = OPEN_PROJECT + '[http]\ncors_origins = ["https://one.example"]\n'
    with configured(tmp_path, config) as daemon, Client(daemon) as client:
        with EventStream(client, "/a.json", {"Origin": "https://one.example"}) as stream:
            assert stream.headers["Access-Control-Allow-Origin"] == "https://one.example"
            assert stream.headers["Vary"] == "Origin"
        with EventStream(client, "/a.json", {"Origin": "https://two.example"}) as stream:
            assert "Access-Control-Allow-Origin" not in stream.headers


# The end.


@pytest.mark.parametrize("secure", [False, True])
def test_streams_end_regularly_when_the_daemon_stops(tmp_path: pathlib.Path, secure: bool) -> None:
    with Daemon(tmp_path) as daemon, Client(daemon, secure=secure) as client:
        targets = ["/a.json", "/.json", "/a.json?orderBy=%22$key%22", "/a.json?resume=true"]
        streams = [EventStream(client, target) for target in targets]
        for stream in streams:
            stream.next_change()
        client.put("/a.json", {"b": 1})
        assert daemon.stop() == 0
        for stream in streams:
            received = [frame for frame in stream.frames() if frame.event != "keep-alive"]
            assert len(received) == 1
            stream.close()
        assert "Traceback" not in daemon.log


def test_a_stream_whose_client_disconnected_is_removed(shared_daemon: Daemon, tree: Client) -> None:
    for _ in range(20):
        with EventStream(tree, "/a.json") as stream:
            stream.next_frame()
    tree.put("/a.json", 1)
    assert "Traceback" not in shared_daemon.log
