"""Large bodies wait to be parsed, as bytes; small ones never wait for them."""

from __future__ import annotations

import json
import pathlib
from typing import Any

import attrs
import pytest
from twisted.internet.defer import CancelledError, Deferred
from twisted.internet.error import ConnectionLost
from twisted.python.failure import Failure

from tests.database.world import TurnClock
from tests.http1.peer import Peer, parse_replies
from tests.web.tree_server import SETTINGS, TreeServer
from treedbd.database.requests import Unavailable
from treedbd.database.slices import SLICE_SECONDS, Slices
from treedbd.limits import Limits
from treedbd.rules.ruleset import DENY, parse_rules
from treedbd.web import write
from treedbd.web.write import (
    FREE_BYTES,
    LARGE_BODY_BYTES,
    LARGE_BODY_NODES,
    LARGE_BYTES,
    NODE_BYTES,
    Admission,
    BodyGate,
)

RECORDS = LARGE_BYTES // NODE_BYTES
LARGE = {f"k{at:06}": at for at in range(RECORDS)}
SMALL = {"text": "x" * FREE_BYTES}


class GatedServer(TreeServer):
    """A server that parses one large body at a time.

    `parsed` are the lengths of the parsed bodies, `answered` the number of responses before each.
    """

    def __init__(self, folder: pathlib.Path, monkeypatch: pytest.MonkeyPatch, **more: Any) -> None:
        options = attrs.evolve(SETTINGS, limits=Limits(parsed_bytes=LARGE_BYTES))
        super().__init__(folder, options=options, **more)
        self.parsed: list[int] = []
        self.answered: list[int] = []
        self.peers: list[Peer] = []
        parse = write.parse_body

        def record(body: bytes, limits: Limits) -> Any:
            self.parsed.append(len(body))
            self.answered.append(sum(len(statuses(peer)) for peer in self.peers))
            return parse(body, limits)

        monkeypatch.setattr(write, "parse_body", record)
        monkeypatch.setattr(write, "LARGE_BODY_NODES", 2 * RECORDS)
        monkeypatch.setattr(write, "LARGE_BODY_BYTES", LARGE_BYTES)

    def put(self, path: str, value: Any, query: str = "") -> Peer:
        body = json.dumps(value, separators=(",", ":")).encode()
        head = f"PUT {path}.json{query} HTTP/1.1\r\nHost: demo.localhost\r\n"
        peer = self.connect()
        self.peers.append(peer)
        peer.send(f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body)
        return peer

    def run(self) -> None:
        """Run all that is scheduled for now, and what that schedules."""
        self.clock.advance(0)


def statuses(peer: Peer) -> list[int]:
    return [reply.status for reply in parse_replies(peer.transport.value(), b"PUT")]


@pytest.fixture
def server(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> GatedServer:
    return GatedServer(tmp_path, monkeypatch)


def test_one_large_body_is_parsed_at_a_time_in_the_order_of_their_coming(
    server: GatedServer,
) -> None:
    bodies = [{**LARGE, "extra": "x" * at} for at in range(4)]
    peers = [server.put(f"/r{at}", body) for at, body in enumerate(bodies)]
    assert len(server.parsed) == 1
    server.run()
    assert [statuses(peer) for peer in peers] == [[200]] * 4
    assert server.parsed == sorted(server.parsed)
    assert server.answered == [0, 1, 2, 3]


def test_small_bodies_do_not_wait_for_large_ones(server: GatedServer) -> None:
    first, second = server.put("/a", LARGE), server.put("/b", LARGE)
    small, tiny = server.put("/c", SMALL), server.put("/d", 1)
    assert len(server.parsed) == 3
    server.run()
    assert server.answered[-1] >= 2
    assert [statuses(peer) for peer in (first, second, small, tiny)] == [[200]] * 4


def test_small_bodies_are_bounded_too(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = GatedServer(tmp_path, monkeypatch)
    text = {"text": "x" * (LARGE_BYTES // 2)}
    peers = [server.put(f"/s{at}", text) for at in range(3)]
    assert len(server.parsed) == 1
    server.run()
    assert [statuses(peer) for peer in peers] == [[200]] * 3


def test_a_body_that_waits_beyond_its_deadline_is_504_and_never_parsed(server: GatedServer) -> None:
    first = server.put("/a", LARGE)
    late = server.put("/b", LARGE, "?timeout=5ms")
    last = server.put("/c", LARGE)
    server.clock.advance(0.006)
    assert statuses(late) == [504]
    server.run()
    assert statuses(first) == statuses(last) == [200]
    assert len(server.parsed) == 2


def test_a_deadline_that_passes_between_parsing_and_writing_applies_nothing(
    server: GatedServer,
) -> None:
    late = server.put("/b", LARGE, "?timeout=5ms")
    assert len(server.parsed) == 1
    server.clock.advance(0.006)
    server.run()
    assert statuses(late) == [504]
    after = server.put("/c", LARGE)
    server.run()
    assert statuses(after) == [200]


def test_a_client_that_disconnects_gives_up_its_turn(server: GatedServer) -> None:
    first, gone, last = (server.put(f"/{name}", LARGE) for name in "abc")
    gone.connection.connectionLost(Failure(ConnectionLost()))
    server.run()
    assert statuses(first) == statuses(last) == [200]
    assert len(server.parsed) == 2


def test_a_body_that_is_refused_ends_its_turn(server: GatedServer) -> None:
    bad = server.put("/a", {**LARGE, "bad.key": 1})
    good = server.put("/b", LARGE)
    server.run()
    assert statuses(bad) == [400]
    assert statuses(good) == [200]


def test_the_bodies_that_wait_are_refused_at_the_end_of_the_server(server: GatedServer) -> None:
    first, second = server.put("/a", LARGE), server.put("/b", LARGE)
    server.resource.refuse_writes()
    third = server.put("/c", SMALL)
    assert statuses(third) == [503]
    server.run()
    assert statuses(second) == [503]
    assert statuses(first) == [200]
    assert len(server.parsed) == 1


def test_a_body_larger_than_the_bound_is_parsed_alone(server: GatedServer) -> None:
    larger: dict[str, Any] = {f"k{at:06}": at for at in range(LARGE_BODY_NODES - 10)}
    larger["text"] = "x" * (LARGE_BODY_BYTES // 2)
    peers = [server.put(f"/r{at}", larger) for at in range(2)]
    assert len(server.parsed) == 1
    server.run()
    assert [statuses(peer) for peer in peers] == [[200]] * 2


@pytest.mark.parametrize("method", ["PUT", "POST", "PATCH"])
@pytest.mark.parametrize(
    ("body", "parsed"),
    [(b"{" * 50, 1), (b"", 1), (b"{" * 5000, 0), (b'{"a":"' + b"x" * 20_000 + b'"}', 0)],
)
def test_a_caller_who_may_write_nothing_is_told_so_and_nothing_long_is_parsed(
    tmp_path: pathlib.Path,
    monkeypatch: pytest.MonkeyPatch,
    method: str,
    body: bytes,
    parsed: int,
) -> None:
    rules = parse_rules('{"rules": {"$x": {".write": "newData.exists() && auth.uid == $x"}}}')
    server = GatedServer(tmp_path, monkeypatch, rules=rules)
    peer = server.connect()
    head = f"{method} /a.json HTTP/1.1\r\nHost: demo.localhost\r\nContent-Length: {len(body)}\r\n"
    peer.send(head.encode() + b"\r\n" + body)
    assert statuses(peer) == [403]
    assert len(server.parsed) == parsed


@pytest.mark.parametrize(("query", "status"), [("", 403), ("?ns=demo", 401)])
def test_the_refusal_is_that_of_the_dialect(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch, query: str, status: int
) -> None:
    server = GatedServer(tmp_path, monkeypatch, rules=DENY)
    assert statuses(server.put("/a", LARGE, query)) == [status]


class Waiting:
    """Bodies that wait for the end of another one, which has all the room.

    `ended` are those whose waiting is over, with what refused them.
    """

    def __init__(self, count: int) -> None:
        self.clock = TurnClock()
        self.gate = BodyGate(LARGE_BYTES, self.clock, Slices(self.clock))
        self.ended: list[tuple[int, type[BaseException] | None]] = []
        self.first = Admission(LARGE_BYTES, 0)
        self.enter(self.first)
        for number in range(count):
            self.enter(Admission(1, 0)).addCallbacks(
                self._note, self._note, (number,), {}, (number,)
            )
        self.clock.lag = SLICE_SECONDS / 10

    def _note(self, result: Failure | None, number: int) -> None:
        self.ended.append((number, None if result is None else result.type))

    def enter(self, admission: Admission) -> Deferred[None]:
        request: Any = WaitingRequest()
        return Deferred.fromCoroutine(self.gate.enter(request, admission, 1e9))

    def end_in_turns(self, count: int) -> list[int]:
        """Return how many go on in each turn until so many have."""
        counts: list[int] = []
        while len(self.ended) < count:
            before = len(self.ended)
            assert self.clock.take_turn()
            counts.append(len(self.ended) - before)
        return counts


class WaitingRequest:
    """What the gate knows of a request."""

    def notifyFinish(self) -> Deferred[None]:
        return Deferred()


@pytest.mark.parametrize("refusal", [None, Unavailable])
def test_many_bodies_that_may_go_on_together_do_so_in_slices_in_order(
    refusal: type[Unavailable] | None,
) -> None:
    waiting = Waiting(60)
    if refusal is None:
        waiting.gate.leave(waiting.first)
    else:
        waiting.gate.refuse("The server is shutting down.")
    assert waiting.ended == []
    assert max(waiting.end_in_turns(60)) <= 15
    assert waiting.ended == [(number, refusal) for number in range(60)]


def test_a_body_that_is_withdrawn_while_others_go_on_is_passed_over() -> None:
    waiting = Waiting(20)
    request: Any = WaitingRequest()
    gone: Deferred[None] = Deferred()
    request.notifyFinish = lambda: gone
    last = Deferred.fromCoroutine(waiting.gate.enter(request, Admission(1, 0), 1e9))
    waiting.gate.leave(waiting.first)
    waiting.clock.take_turn()
    gone.errback(ConnectionLost())
    waiting.end_in_turns(20)
    assert last.called
    assert isinstance(last.result, Failure)
    assert last.result.check(CancelledError)
    last.addErrback(lambda _: None)
    waiting.clock.lag = 0
    assert waiting.enter(Admission(1, 0)).called


def test_the_estimate_counts_members_items_and_bytes() -> None:
    assert Admission.of(b'{"a":[1,2,3]}').size == 13 + 4 * NODE_BYTES
    assert Admission.of(b'"text"').size == 6
