"""Bodies that are written piece by piece have the effect and the responses of others."""

from __future__ import annotations

import functools
import gzip
import io
import json
import pathlib
from collections.abc import Iterator
from typing import Any

import attrs
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from twisted.internet.defer import Deferred

from tests.access import admin, at, secret_of
from tests.database.world import TurnClock
from tests.examples import examples
from tests.http1.peer import ParsedReply
from tests.web.tree_server import SETTINGS, StreamClient, TreeServer, make_verifier
from treedbd.database import apply as large_writes
from treedbd.database import watchers as large_events
from treedbd.database.requests import DeadlinePassed
from treedbd.database.slices import SLICE_SECONDS, Slices, Steps
from treedbd.limits import Limits
from treedbd.rules.ruleset import parse_rules
from treedbd.tree.fragments import Splitter
from treedbd.web import write
from treedbd.web import write as large_bodies
from treedbd.web.reading import SharedReads
from treedbd.web.write import DECODED_AT_ONCE_BYTES, LARGE_BODY_BYTES, LARGE_BODY_NODES, SentBody

RECORDS = {f"r{at:03}": {"name": f"n{at}", "list": [at, None, True]} for at in range(40)}
VALIDATED = parse_rules(
    json.dumps(
        {
            "rules": {
                ".read": True,
                "free": {".write": True},
                "checked": {
                    ".write": "newData.child('r001').exists() && data.child('old').val() == 1",
                    "$key": {".validate": "newData.isNumber() || newData.hasChildren(['name'])"},
                },
                "hidden": {".read": False, ".write": True},
            }
        }
    )
)
LEAVES = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-99, 99),
    st.text(max_size=4),
    st.just({".sv": "timestamp"}),
    st.just({".sv": {"increment": 2}}),
)
VALUES = st.recursive(
    LEAVES,
    lambda inner: st.one_of(
        st.lists(inner, max_size=4),
        st.dictionaries(
            st.sampled_from(["a", "b", "1", "2", ".priority", "k" * 30]), inner, max_size=4
        ),
    ),
    max_leaves=15,
)
REQUESTS = st.one_of(
    st.tuples(st.just("PUT"), st.sampled_from(["", "/a", "/a/b", "/c/1"]), VALUES),
    st.tuples(
        st.just("PATCH"),
        st.sampled_from(["", "/a"]),
        st.dictionaries(st.sampled_from(["a", "b/c", "b", "1", "x/.priority"]), VALUES),
    ),
)


@pytest.fixture
def pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    """Write every body piece by piece, in small pieces and fragments."""
    monkeypatch.setattr(write, "FREE_BYTES", -1)
    monkeypatch.setattr(large_bodies, "LARGE_BODY_BYTES", -1)
    monkeypatch.setattr(large_bodies, "PIECE_BYTES", 50)
    monkeypatch.setattr(large_writes, "Splitter", functools.partial(Splitter, 60))


def send(server: TreeServer, method: str, target: str, value: Any, *headers: str) -> Any:
    """Return the status, the JSON and the tag of the response to a write."""
    body = value if isinstance(value, bytes) else json.dumps(value).encode()
    reply = server.request(method, target, body, headers)
    return reply.status, json.loads(reply.body or b"null"), tags_of(reply)


def tags_of(reply: ParsedReply) -> list[str]:
    return [value.decode() for name, value in reply.fields if name == b"etag"]


@pytest.mark.parametrize(
    ("body", "headers"),
    [
        (b'"%b"' % (b"x" * LARGE_BODY_BYTES), ()),
        (b"[%b1]" % (b"1, " * LARGE_BODY_NODES), ()),
        (gzip.compress(b"[%b1]" % (b" " * DECODED_AT_ONCE_BYTES)), ("Content-Encoding: gzip",)),
    ],
)
def test_a_write_whose_body_is_large_is_not_explained(
    tmp_path: pathlib.Path, body: bytes, headers: tuple[str, ...]
) -> None:
    verifier = make_verifier(secret_of("demo"))
    server = TreeServer(tmp_path, VALIDATED, verifier=lambda _: verifier)
    for place in ("/free.json", "/free/.priority.json"):
        target = at(place, admin("demo"))
        headers = ("X-TreeDB-Explain: true", *headers)
        status, error, _ = send(server, "PUT", target, body, *headers)
        assert (status, error["error"]) == (413, "payload_too_large")
        assert "explained" in error["message"]
        status, shown, _ = send(server, "PUT", target, b"1", "X-TreeDB-Explain: true")
        assert (status, shown["allowed"]) == (200, True)


@pytest.mark.parametrize(
    ("body", "part"), [(b'{"v":1,"b":2}', "part"), (b'{"v":1}', "part"), (b'{"b":2}', None)]
)
def test_an_explanation_says_which_part_is_volatile(
    tmp_path: pathlib.Path, body: bytes, part: str | None
) -> None:
    verifier = make_verifier(secret_of("demo"))
    rules = parse_rules('{"rules": {"a": {".write": true, "v": {".volatile": true}}}}')
    server = TreeServer(tmp_path, rules, verifier=lambda _: verifier)
    target, asked = at("/a.json", admin("demo")), "X-TreeDB-Explain: true"
    assert send(server, "PUT", target, body, asked)[1].get("volatile") == part
    shown = send(server, "PUT", at("/a/v.json", admin("demo")), b"1", asked)[1]
    assert shown["volatile"] == "all"


def events_of(stream: StreamClient) -> list[tuple[str, Any]]:
    """Return the events that a stream has received since the last call."""
    return [(kind, json.loads(data)) for kind, data in stream.read_events()]


def ordinary(folder: pathlib.Path) -> TreeServer:
    return TreeServer(folder / "ordinary")


@settings(
    max_examples=examples(60),
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(st.lists(REQUESTS, min_size=1, max_size=6))
def test_writes_have_the_same_effect_and_echo(
    tmp_path: pathlib.Path, requests: list[tuple[str, str, Any]]
) -> None:
    one = ordinary(tmp_path)
    expected = [send(one, method, f"{path or '/'}.json", value) for method, path, value in requests]
    tree = one.request("GET", "/.json?format=export").body
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(write, "FREE_BYTES", -1)
        patched.setattr(large_bodies, "LARGE_BODY_BYTES", -1)
        patched.setattr(large_writes, "Splitter", functools.partial(Splitter, 60))
        other = TreeServer(tmp_path / "large")
        found = [
            send(other, method, f"{path or '/'}.json", value) for method, path, value in requests
        ]
    assert other.request("GET", "/.json?format=export").body == tree
    for (method, _, _), one_reply, other_reply in zip(requests, expected, found, strict=True):
        assert other_reply[0] == one_reply[0]
        if one_reply[0] == 200 and (method == "PUT" or ".sv" not in json.dumps(other_reply[1])):
            assert other_reply[1] == one_reply[1]


@pytest.mark.usefixtures("pieces")
class TestLargeWrites:
    """Requests whose bodies are written piece by piece."""

    def test_a_put_is_answered_with_what_is_stored(self, tmp_path: pathlib.Path) -> None:
        server = TreeServer(tmp_path)
        status, echo, _ = send(server, "PUT", "/x.json", RECORDS)
        assert (status, echo) == (200, RECORDS)
        assert json.loads(server.request("GET", "/x.json").body) == RECORDS

    def test_a_patch_is_answered_with_what_was_sent(self, tmp_path: pathlib.Path) -> None:
        server = TreeServer(tmp_path)
        server.write("PUT", "/x", {"old": 1, "r001": "replaced"})
        assert send(server, "PATCH", "/x.json", RECORDS)[:2] == (200, RECORDS)
        assert json.loads(server.request("GET", "/x.json").body) == {"old": 1, **RECORDS}

    @pytest.mark.parametrize(
        "last", ["7", '"%s"' % ("y" * 40_000), "{}", '{".sv":{"increment":2}}']
    )
    def test_of_a_repeated_member_of_a_patch_the_last_one_is_shown(
        self, tmp_path: pathlib.Path, last: str
    ) -> None:
        """Each of the repeated members has come in another fragment."""
        server = TreeServer(tmp_path)
        server.write("PUT", "/x", {"old": 1})
        stream = server.open_stream("/x.json")
        others = ",".join(f'"k{at}":{{"t":"{at}"}}' for at in range(40))
        body = '{"a/b":1,"c":2,%s,"c":"%s",%s,"/d":1,"a/b":%s}' % (  # noqa: UP031 - braces
            *(others, "z" * 40_000, others.replace("k", "l")),
            last,
        )
        reply = server.request("PATCH", "/x.json", body.encode(), ())
        assert reply.status == 200
        names = [name for name, _ in json.loads(reply.body, object_pairs_hook=list)]
        expected = {"a/b", "c", "/d", *(f"{name}{at}" for name in "kl" for at in range(40))}
        assert sorted(names) == sorted(expected)
        stored = json.loads(server.request("GET", "/x/a/b.json").body)
        assert (json.loads(reply.body)["a/b"] or None) == stored
        events = [data for kind, data in stream.read_events() if kind == "patch"]
        shown = [name for name, _ in json.loads(events[0], object_pairs_hook=list)[1][1]]
        assert sorted(shown) == sorted(name.lstrip("/") for name in expected)

    def test_what_a_patch_has_sent_is_read_in_steps_for_its_answer(
        self, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        server = TreeServer(tmp_path)
        steps: list[None] = []
        readings: list[list[int]] = []
        run, pieces = Slices._run, SentBody.pieces

        def counted(work: Steps) -> Steps:
            for awaited in work:
                steps.append(None)
                yield awaited

        def noted(body: SentBody) -> Iterator[bytes]:
            readings.append([])
            for piece in pieces(body):
                readings[-1].append(len(steps))
                yield piece

        monkeypatch.setattr(Slices, "_run", lambda self, work, end: run(self, counted(work), end))
        monkeypatch.setattr(SentBody, "pieces", noted)
        monkeypatch.setattr(large_writes, "EVENT_BYTES", 10)  # it is not kept
        assert send(server, "PATCH", "/x.json", RECORDS)[:2] == (200, RECORDS)
        answered = readings[-1]
        assert len(answered) > 10
        assert len(set(answered)) == len(answered)

    def test_a_post_is_answered_with_the_name(self, tmp_path: pathlib.Path) -> None:
        server = TreeServer(tmp_path)
        status, named, _ = send(server, "POST", "/x.json", RECORDS)
        assert status == 200
        assert json.loads(server.request("GET", f"/x/{named['name']}.json").body) == RECORDS

    def test_a_silent_write_has_no_body(self, tmp_path: pathlib.Path) -> None:
        server = TreeServer(tmp_path)
        assert send(server, "PUT", "/x.json?print=silent", RECORDS)[:2] == (204, None)

    def test_a_tag_is_that_of_the_new_value(self, tmp_path: pathlib.Path) -> None:
        server = TreeServer(tmp_path)
        _, _, tag = send(server, "PUT", "/x.json", RECORDS, "X-Firebase-ETag: true")
        reply = server.request("GET", "/x.json", headers=["X-Firebase-ETag: true"])
        assert tag == tags_of(reply) != []

    def test_a_condition_is_about_the_value_before(self, tmp_path: pathlib.Path) -> None:
        server = TreeServer(tmp_path)
        _, _, (tag,) = send(server, "PUT", "/x.json", {"a": 1}, "X-Firebase-ETag: true")
        assert send(server, "PUT", "/x.json", RECORDS, 'If-Match: "other"')[0] == 412
        assert json.loads(server.request("GET", "/x.json").body) == {"a": 1}
        assert send(server, "PUT", "/x.json", RECORDS, f"If-Match: {tag}")[0] == 200

    @pytest.mark.parametrize(
        "body",
        [
            b'{"a":[1,2,3' + b",4" * 50,
            b'{"a":1,"b$":2,' + b'"c":[' + b"1," * 50 + b"1]}",
            b'{"list":[' + b"1," * 50 + b"],}",
            b'{"x":{".value":1,"a":2,"b":"' + b"x" * 80 + b'"}}',
            b"",
            b"\xff" * 100,
        ],
    )
    def test_a_body_that_is_not_legal_changes_nothing(
        self, tmp_path: pathlib.Path, body: bytes
    ) -> None:
        server = TreeServer(tmp_path)
        server.write("PUT", "/x", {"old": 1})
        status, error, _ = send(server, "PUT", "/x.json", body)
        assert status == 400
        assert set(error) >= {"error"}
        assert json.loads(server.request("GET", "/x.json").body) == {"old": 1}

    def test_members_of_a_patch_must_not_overlap(self, tmp_path: pathlib.Path) -> None:
        server = TreeServer(tmp_path)
        body = {"a": {"x": 1}, **{f"k{at}": at for at in range(30)}, "a/x": 2}
        status, error, _ = send(server, "PATCH", "/x.json", body)
        assert status == 400
        assert "x/a and x/a/x" in json.dumps(error)
        status, error, _ = send(server, "PATCH", "/x.json", {"a": 1, "/a": 2, **RECORDS})
        assert status == 400

    def test_more_nodes_than_the_limit_are_refused(self, tmp_path: pathlib.Path) -> None:
        options = attrs.evolve(SETTINGS, limits=attrs.evolve(SETTINGS.limits, write_nodes=50))
        server = TreeServer(tmp_path, options=options)
        for method in ("PUT", "PATCH"):
            status, error, _ = send(server, method, "/x.json", RECORDS)
            assert status == 400
            assert "write_nodes" in json.dumps(error)

    def test_compressed_bodies_are_decoded_piece_by_piece(self, tmp_path: pathlib.Path) -> None:
        server = TreeServer(tmp_path)
        text = json.dumps({**RECORDS, "more": "x" * 100_000}).encode()
        packed = gzip.compress(text)
        coding = "Content-Encoding: gzip"
        assert send(server, "PUT", "/x.json?print=silent", packed, coding)[0] == 204
        assert json.loads(server.request("GET", "/x.json").body) == json.loads(text)
        assert send(server, "PUT", "/x.json", packed[:-9], coding)[0] == 400
        assert send(server, "PUT", "/x.json", packed + b"more", coding)[0] == 400

    def test_a_compressed_body_beyond_the_limit_is_413(self, tmp_path: pathlib.Path) -> None:
        limits = attrs.evolve(SETTINGS.limits, write_body_bytes=100_000)
        server = TreeServer(tmp_path, options=attrs.evolve(SETTINGS, limits=limits))
        packed = gzip.compress(json.dumps("x" * 200_000).encode())
        assert send(server, "PUT", "/x.json", packed, "Content-Encoding: gzip")[0] == 413

    def test_rules_see_the_data_before_and_the_new_data(self, tmp_path: pathlib.Path) -> None:
        server = TreeServer(tmp_path, VALIDATED)
        assert send(server, "PUT", "/checked.json", RECORDS)[0] == 403
        with pytest.MonkeyPatch.context() as patched:
            patched.setattr("treedbd.rules.evaluate.READ_WHOLE_BYTES", 100)
            assert send(server, "PUT", "/free/a.json", RECORDS)[0] == 200
            assert send(server, "PUT", "/checked.json", RECORDS)[0] == 403
        assert json.loads(server.request("GET", "/checked.json").body) is None

    @pytest.mark.parametrize("whole_bytes", [65_536, 100])
    def test_every_new_record_is_validated(
        self, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch, whole_bytes: int
    ) -> None:
        monkeypatch.setattr("treedbd.rules.evaluate.READ_WHOLE_BYTES", whole_bytes)
        rules = parse_rules(
            '{"rules":{".read":true,".write":true,"c":{"$k":{"name":{".validate":'
            '"newData.isString()"}}}}}'
        )
        server = TreeServer(tmp_path, rules)
        assert send(server, "PUT", "/c.json", RECORDS)[0] == 200
        spoiled = {**RECORDS, "r039": {"name": 5}}
        assert send(server, "PUT", "/c.json", spoiled)[0] == 403
        assert json.loads(server.request("GET", "/c.json").body) == RECORDS

    def test_a_caller_who_may_not_read_is_shown_its_own_body(self, tmp_path: pathlib.Path) -> None:
        rules = parse_rules('{"rules":{".write":true}}')
        server = TreeServer(tmp_path, rules)
        body = {"n": {".sv": {"increment": 1}}, **RECORDS}
        assert send(server, "PUT", "/x.json", body)[:2] == (200, body)
        assert send(server, "PATCH", "/x.json", body)[:2] == (200, body)

    def test_increments_add_to_what_was_there_before(self, tmp_path: pathlib.Path) -> None:
        server = TreeServer(tmp_path)
        server.write("PUT", "/x", {"n": 40, **RECORDS})
        body = {**RECORDS, "n": {".sv": {"increment": 2}}}
        status, echo, _ = send(server, "PUT", "/x.json", body)
        assert (status, echo["n"]) == (200, 42)

    def test_streams_see_a_put_where_it_was(self, tmp_path: pathlib.Path) -> None:
        server = TreeServer(tmp_path)
        above, at = server.open_stream("/.json"), server.open_stream("/x.json")
        below, beside = server.open_stream("/x/r001/name.json"), server.open_stream("/y.json")
        for stream in (above, at, below, beside):
            events_of(stream)
        small = dict(list(RECORDS.items())[:3])
        send(server, "PUT", "/x.json", small)
        assert events_of(above) == [("put", {"path": "/x", "data": small})]
        assert events_of(at) == [("put", {"path": "/", "data": small})]
        assert events_of(below) == [("put", {"path": "/", "data": "n1"})]
        assert events_of(beside) == []

    def test_streams_see_a_patch_as_it_was_sent(self, tmp_path: pathlib.Path) -> None:
        server = TreeServer(tmp_path)
        above, below = server.open_stream("/.json"), server.open_stream("/x/b/c.json")
        events_of(above), events_of(below)
        body = {"a": 1, "b/c": {"d": [1, 2]}, "e": None}
        send(server, "PATCH", "/x.json", body)
        ((kind, event),) = events_of(above)
        assert (kind, event["data"]) in [
            ("patch", body),
            ("put", {"x": {"a": 1, "b": {"c": {"d": [1, 2]}}}}),
        ]
        assert events_of(below) == [("put", {"path": "/", "data": {"d": [1, 2]}})]

    def test_a_patch_shows_its_members_as_a_small_one_does(self, tmp_path: pathlib.Path) -> None:
        server = TreeServer(tmp_path)
        stream = server.open_stream("/x.json")
        events_of(stream)
        send(server, "PATCH", "/x.json", {"/a/b": 1, "c": {}, "d": [], "e": {"f": {}}})
        ((kind, event),) = events_of(stream)
        assert (kind, event["data"]) == ("patch", {"a/b": 1, "c": None, "d": None, "e": {"f": {}}})

    def test_a_value_too_long_for_an_event_is_read_again(
        self, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(large_writes, "EVENT_BYTES", 100)
        monkeypatch.setattr(large_events, "EVENT_BYTES", 100)
        server = TreeServer(tmp_path)
        server.write("PUT", "/y", 1)
        above = server.open_stream("/.json")
        events_of(above)
        send(server, "PUT", "/x.json", RECORDS)
        assert events_of(above) == [("put", {"path": "/", "data": {"x": RECORDS, "y": 1}})]

    def test_the_window_of_a_query_follows(self, tmp_path: pathlib.Path) -> None:
        server = TreeServer(tmp_path)
        stream = server.open_stream('/x.json?orderBy="$key"&limitToLast=2')
        events_of(stream)
        send(server, "PUT", "/x.json", RECORDS)
        shown = {key: RECORDS[key] for key in ("r038", "r039")}
        assert events_of(stream) == [("put", {"path": "/", "data": shown})]


def test_limits_of_a_large_body_are_those_of_the_settings() -> None:
    limits = Limits()
    assert limits.write_nodes >= limits.write_body_bytes


def test_however_many_compressed_bodies_there_are_they_are_decoded_in_one_slice_of_a_turn(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    clock, decoded = TurnClock(SLICE_SECONDS / 8), list[int]()

    def decode_pieces(*_: object) -> Iterator[bytes]:
        for number in range(20):
            decoded.append(number)
            yield b"x"

    monkeypatch.setattr(large_bodies, "decode_pieces", decode_pieces)
    bodies = large_bodies.LargeBodies(SharedReads(Limits(), clock), clock)
    body = large_bodies.SentBody(io.BytesIO(b"packed"), 6, "gzip")
    for _ in range(10):
        Deferred.fromCoroutine(bodies.check_size(body, 1000, 10.0**9))
        Deferred.fromCoroutine(bodies.read(body, 1000, 10.0**9))
    in_turns = []
    while len(decoded) < 20 * 20:
        before = len(decoded)
        clock.take_turn()
        in_turns.append(len(decoded) - before)
    assert max(in_turns) <= 8


def test_a_compressed_body_that_is_late_is_decoded_no_further() -> None:
    clock = TurnClock(1.0)
    bodies = large_bodies.LargeBodies(SharedReads(Limits(), clock), clock)
    packed = gzip.compress(b"1" * 10_000_000)
    body = large_bodies.SentBody(io.BytesIO(packed), len(packed), "gzip")
    checked = Deferred.fromCoroutine(bodies.check_size(body, 10**8, clock.seconds() + 10))
    turns = 1
    while clock.take_turn():
        turns += 1
    checked.addErrback(lambda failure: failure.trap(DeadlinePassed))
    assert checked.result is DeadlinePassed
    assert turns < 15


@pytest.mark.parametrize(
    "value", [b"[%b1]" % (b"1," * 200_000), b'{"a":[%b1]}' % (b"1," * 200_000)]
)
@pytest.mark.parametrize("is_packed", [False, True])
def test_what_is_long_and_no_priority_is_refused_without_being_parsed(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch, value: bytes, *, is_packed: bool
) -> None:
    server = ordinary(tmp_path)
    monkeypatch.setattr(write, "parse_body", None)
    body = gzip.compress(value) if is_packed else value
    coding = ["Content-Encoding: gzip"] if is_packed else []
    status, refusal, _ = send(server, "PUT", "/a/.priority.json", body, *coding)
    assert status == 400
    assert "A priority must be a number or a string." in refusal.values()


@pytest.mark.parametrize("method", ["PUT", "PATCH"])
@pytest.mark.parametrize("is_packed", [False, True])
def test_what_is_not_json_is_found_at_its_place_in_the_body(
    tmp_path: pathlib.Path, method: str, *, is_packed: bool
) -> None:
    server = ordinary(tmp_path)
    records = {f"k{at}": {"age": at, "bio": "é" * 50} for at in range(5000)}
    text = json.dumps({"all": records}, ensure_ascii=False, indent=1)
    text = text.replace('"age": 4900,', '"age" 4900,')
    with pytest.raises(json.JSONDecodeError) as fault:
        json.loads(text)
    place = f"line {fault.value.lineno} column {fault.value.colno} (char {fault.value.pos})."
    body = gzip.compress(text.encode()) if is_packed else text.encode()
    coding = ["Content-Encoding: gzip"] if is_packed else []
    status, refusal, _ = send(server, method, "/a.json", body, *coding)
    assert status == 400
    assert refusal["message"].startswith("Not valid JSON: ")
    assert refusal["message"].endswith(place)
    assert json.loads(server.request("GET", "/a.json").body) is None


def test_a_long_priority_is_written_packed_or_not(tmp_path: pathlib.Path) -> None:
    server = ordinary(tmp_path)
    send(server, "PUT", "/a.json", 1)
    text = "[{" * 200_000
    for body, coding in (
        (json.dumps(text).encode(), []),
        (gzip.compress(json.dumps(text + "x").encode()), ["Content-Encoding: gzip"]),
    ):
        assert send(server, "PUT", "/a/.priority.json", body, *coding)[0] == 200
    assert json.loads(server.request("GET", "/a/.priority.json").body) == text + "x"


def test_what_is_below_long_keys_is_refused_beyond_a_bound_and_nothing_of_it_is_written(
    tmp_path: pathlib.Path,
) -> None:
    server = TreeServer(tmp_path)
    key = "k" * 480
    many = {f"c{number:05}": "x" * 50 for number in range(12_000)}
    for method, path, body in (
        ("PUT", f"/{key}.json", many),
        ("PUT", "/.json", {"a": {key: many}}),
        ("PATCH", f"/{key}.json", many),
        ("PATCH", "/.json", {f"{key}/{name}": text for name, text in many.items()}),
    ):
        reply = server.request(method, path, json.dumps(body).encode())
        assert reply.status == 400
        assert "use shorter keys" in json.loads(reply.body)["message"]
        assert server.request("GET", "/.json").body == b"null"
    few = dict(list(many.items())[:10_000])
    while few:  # such bodies are short, and what they are added to is not
        part = json.dumps(dict([few.popitem() for _ in range(min(1000, len(few)))])).encode()
        assert server.request("PATCH", f"/{key}.json", part).status == 200
    assert server.request("PUT", f"/{key}/c.json", b"1").status == 400
    assert server.request("PATCH", f"/{key}.json", b'{"c":1}').status == 400
    assert server.request("POST", f"/{key}.json", b"1").status == 400
    assert server.request("DELETE", f"/{key}/c00001.json").status == 200
    assert server.request("PUT", f"/{key}.json", b"1").status == 200
