"""Large reads that flow: the first bytes come early, the end only if all of it came."""

from __future__ import annotations

import json
import pathlib
import zlib
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests.database.world import TurnClock
from tests.http1.peer import Peer
from tests.web.tree_server import LISTEN, TreeServer
from treedbd.config.settings import Settings
from treedbd.database import apply as etags
from treedbd.database.slices import SLICE_SECONDS, Slices
from treedbd.http1.senders import MIN_BYTES, PACE_SECONDS, FlowSender
from treedbd.limits import DEFAULT_TIMEOUT_S, Limits
from treedbd.store.engine import StoreFailed
from treedbd.store.nodes import Nodes, Serialiser, etag_in_steps
from treedbd.tree.hashes import etag
from treedbd.tree.types import Json, Path
from treedbd.web import reading as representation
from treedbd.web.reading import IN_MEMORY_BYTES
from treedbd.web.request import FIREBASE, STANDARD

RECORDS: dict[str, Json] = {f"k{at:05}": "x" * 300 for at in range(8000)}
TEXT = json.dumps(RECORDS, separators=(",", ":")).encode()
ROOM = 4096
LAG_S = 0.0005


@pytest.fixture
def server(tmp_path: pathlib.Path) -> TreeServer:
    server = TreeServer(tmp_path)
    write_records(server)
    return server


def write_records(server: TreeServer) -> None:
    server.write("PUT", "/big", RECORDS)
    server.clock.lag = LAG_S


def run(server: TreeServer, turns: int) -> None:
    for _ in range(turns):
        server.clock.advance(0)


def on_page(monkeypatch: pytest.MonkeyPatch, then: Callable[[], object]) -> None:
    """Call `then` before each page that is rendered."""
    add_page = Serialiser._add_page

    def add(serialiser: Serialiser, key: bytes, page: Any) -> Any:
        then()
        return add_page(serialiser, key, page)

    monkeypatch.setattr(Serialiser, "_add_page", add)


def read_all(server: TreeServer, peer: Peer) -> bytes:
    """Return the bytes of a client that reads all, and again whenever there is more."""
    data = b""
    idle = 0
    while idle < 10:
        piece = peer.transport.value()
        peer.transport.clear()
        data += piece
        if peer.transport.producer:
            peer.transport.producer.resumeProducing()
        server.clock.advance(0)
        idle = 0 if piece else idle + 1
    peer.transport.write(data)
    return data


def test_the_first_bytes_of_a_large_read_come_before_all_is_rendered(
    server: TreeServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    sent: list[int] = []
    peer = server.connect()
    on_page(monkeypatch, lambda: sent.append(len(peer.transport.value())))
    peer.send(b"GET /big.json HTTP/1.1\r\nHost: demo.localhost\r\n\r\n")
    run(server, 1)
    assert 0 < next(filter(None, sent)) < len(TEXT) / 5
    (reply,) = peer.read()
    assert (reply.status, reply[b"transfer-encoding"]) == (200, b"chunked")
    assert reply.body == TEXT


def test_a_client_that_does_not_read_costs_a_file_and_gets_all_in_the_end(
    server: TreeServer,
) -> None:
    peer = server.get("/big.json", room=ROOM)
    files = server.resource.shared_reads.files
    run(server, 500)
    assert files.total == len(TEXT)
    assert len(peer.transport.value()) < IN_MEMORY_BYTES / 4
    server.write("PUT", "/big/k00000", "later")
    read_all(server, peer)
    (reply,) = peer.read()
    assert reply.body == TEXT
    assert files.total == 0
    assert server.get("/big/k00000.json").read()[0].body == b'"later"'


def test_a_body_flows_longer_than_the_default_time_out(server: TreeServer) -> None:
    peer = server.get("/big.json", room=ROOM)
    run(server, 500)
    server.pass_time(DEFAULT_TIMEOUT_S + 1)
    read_all(server, peer)
    assert peer.read()[0].body == TEXT


def test_a_body_is_cut_off_at_the_time_out_of_its_request(server: TreeServer) -> None:
    peer = server.get("/big.json?timeout=20s", room=ROOM)
    run(server, 50)
    assert not peer.is_dropped
    server.pass_time(20)
    assert peer.is_dropped
    assert server.resource.shared_reads.files.total == 0


def test_readers_of_the_same_share_one_rendering(server: TreeServer) -> None:
    first = server.get("/big.json", room=ROOM)
    run(server, 3)
    second = server.get("/big.json?download=all.json", room=ROOM, host="192.0.2.7")
    run(server, 500)
    assert server.resource.shared_reads.files.total == len(TEXT)
    for peer in (first, second):
        read_all(server, peer)
        assert peer.read()[0].body == TEXT


def test_an_error_in_the_middle_cuts_the_connection(
    server: TreeServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    pages: list[None] = []

    def count() -> None:
        pages.append(None)
        if len(pages) == 300:
            raise StoreFailed("The disk failed.")

    on_page(monkeypatch, count)
    peer = server.get("/big.json")
    run(server, 1)
    assert peer.is_dropped
    data = peer.transport.value()
    assert data.startswith(b"HTTP/1.1 200 ")
    assert not data.endswith(b"0\r\n\r\n")
    assert server.resource.shared_reads.files.total == 0


def test_a_client_that_leaves_in_the_middle_ends_the_work(
    server: TreeServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    pages: list[None] = []
    peer = server.connect()

    def count() -> None:
        pages.append(None)
        if len(pages) == 300:
            peer.disconnect()

    on_page(monkeypatch, count)
    peer.send(b"GET /big.json HTTP/1.1\r\nHost: demo.localhost\r\n\r\n")
    run(server, 1)
    assert len(pages) < 330
    assert server.resource.shared_reads.files.total == 0


def test_a_client_that_takes_too_little_is_cut_off(server: TreeServer) -> None:
    peer = server.get("/big.json", room=ROOM)
    run(server, 500)
    assert len(peer.transport.value()) < MIN_BYTES
    server.pass_time(PACE_SECONDS + 1)
    assert peer.is_dropped
    assert server.resource.shared_reads.files.total == 0


def test_head_has_the_length_of_a_large_body(server: TreeServer) -> None:
    peer = server.connect()
    peer.send(b"HEAD /big.json HTTP/1.1\r\nHost: demo.localhost\r\n\r\n")
    run(server, 500)
    (reply,) = peer.read(b"HEAD")
    assert (reply.status, int(reply[b"content-length"])) == (200, len(TEXT))


def test_http_1_0_ends_a_large_body_by_closing(server: TreeServer) -> None:
    peer = server.connect()
    peer.send(b"GET /big.json HTTP/1.0\r\nHost: demo.localhost\r\n\r\n")
    run(server, 500)
    head, _, body = peer.transport.value().partition(b"\r\n\r\n")
    assert b"chunked" not in head
    assert body == TEXT
    assert peer.is_closed


def test_one_address_gets_no_more_than_its_share_of_what_waits(tmp_path: pathlib.Path) -> None:
    limits = Limits(waiting_file_bytes=len(TEXT) * 3 // 2, write_stalled_s=1e4)
    server = TreeServer(
        tmp_path, options=Settings(listen=LISTEN, domains=("localhost",), limits=limits)
    )
    write_records(server)
    alone = server.get("/big.json", room=ROOM)
    run(server, 500)
    assert not alone.is_dropped
    other = server.get('/big.json?orderBy="$key"', room=ROOM)
    run(server, 500)
    (reply,) = other.read_slowly()
    assert reply.status == 429
    elsewhere = server.get("/big.json?format=export", room=ROOM, host="192.0.2.9")
    run(server, 500)
    assert elsewhere.is_dropped  # no room is left for all of it


def test_a_large_value_has_a_tag_and_flows_all_the_same(server: TreeServer) -> None:
    tag = etag(RECORDS)
    peer = server.get("/big.json", "X-TreeDB-ETag: true\r\n")
    run(server, 1)
    (reply,) = peer.read()
    assert (reply.status, reply[b"etag"], reply.body) == (200, tag.encode(), TEXT)
    assert reply[b"transfer-encoding"] == b"chunked"
    export = server.get("/big.json?format=export", 'If-None-Match: "old"\r\n')
    run(server, 1)
    assert export.read()[0][b"etag"] == tag.encode()


def test_a_client_that_has_a_large_value_gets_304_and_nothing_is_rendered(
    server: TreeServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    pages: list[None] = []
    on_page(monkeypatch, lambda: pages.append(None))
    peer = server.get("/big.json", f"If-None-Match: {etag(RECORDS)}\r\n")
    run(server, 1)
    (reply,) = peer.read()
    assert (reply.status, reply.body) == (304, b"")
    assert len(pages) < 100
    assert server.resource.shared_reads.files.total == 0


@pytest.mark.parametrize("print_", ["pretty", "silent"])
def test_the_tag_of_a_large_value_does_not_depend_on_how_it_is_shown(
    server: TreeServer, print_: str
) -> None:
    peer = server.get(f"/big.json?print={print_}", "X-TreeDB-ETag: true\r\n")
    run(server, 1)
    (reply,) = peer.read()
    assert reply[b"etag"] == etag(RECORDS).encode()
    assert json.loads(reply.body or b"null") == (RECORDS if print_ == "pretty" else None)


@pytest.mark.parametrize("dialect", ["TreeDB", "Firebase"])
def test_what_is_indented_waits_in_a_file(server: TreeServer, dialect: str) -> None:
    head = f"X-{dialect}-ETag: true\r\n"
    peer = server.get("/big.json?print=pretty", head, room=ROOM)
    run(server, 500)
    reads = server.resource.shared_reads
    indented = (FIREBASE if dialect == "Firebase" else STANDARD).pretty(RECORDS)
    assert (reads.files.total, reads.memory.total) == (len(indented), 0)
    read_all(server, peer)
    (reply,) = peer.read()
    assert (reply.body, reply[b"content-length"]) == (indented, b"%d" % len(indented))


def test_what_is_too_large_is_not_indented(
    server: TreeServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    for most, status in [(len(TEXT), 200), (len(TEXT) - 1, 413)]:
        monkeypatch.setattr(representation, "MAX_SHOWN_BYTES", most)
        peer = server.get("/big.json?print=pretty")
        run(server, 1)
        assert peer.read()[0].status == status


@pytest.fixture
def computed(monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """The paths of values whose tags were computed from their rows."""
    paths: list[Path] = []

    def compute(nodes: Nodes, path: Path) -> Iterator[str | None]:
        paths.append(path)
        return etag_in_steps(nodes, path)

    for module in (representation, etags):
        monkeypatch.setattr(module, "etag_in_steps", compute)
    return paths


def test_the_tag_of_a_large_value_is_computed_once_until_it_is_changed(
    server: TreeServer, computed: list[Path]
) -> None:
    def status_of(head: str, query: str = "") -> int:
        peer = server.get(f"/big.json{query}", f"{head}\r\n")
        run(server, 1)
        return peer.read()[0].status

    has_it = f"If-None-Match: {etag(RECORDS)}"
    assert [status_of(has_it) for _ in range(2)] == [304, 304]
    assert status_of("X-TreeDB-ETag: true", "?print=silent") == 204
    assert status_of("X-TreeDB-ETag: true", "?print=pretty") == 200
    assert computed == [("big",)]
    server.write("PUT", "/other", 1)
    assert status_of(has_it) == 304
    assert computed == [("big",)]
    server.write("PUT", "/big/k00001", 1)
    assert status_of(has_it) == 200
    assert computed == [("big",)] * 2


def test_a_412_shows_a_large_value_whose_tag_is_computed_once(
    server: TreeServer, computed: list[Path]
) -> None:
    for tag, shown in [
        ('"x"', b'{"error":"condition_failed","message":"ETag mismatch","data":'),
        *[("x", b"")] * 2,
    ]:
        peer = server.connect()
        head = f"PUT /big.json HTTP/1.1\r\nHost: demo.localhost\r\nIf-Match: {tag}\r\n"
        peer.send(f"{head}Content-Length: 1\r\n\r\n1".encode())
        run(server, 500)
        (reply,) = peer.read()
        assert (reply.status, reply[b"etag"].strip(b'"')) == (
            412,
            etag(RECORDS).strip('"').encode(),
        )
        assert reply.body == shown + TEXT + b"}" * bool(shown)
    assert computed == [("big",)]


def test_what_is_compressed_can_be_decoded_before_all_is_rendered(
    server: TreeServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    decoded: list[int] = []
    peer = server.connect()

    def decode() -> None:
        _, _, body = peer.transport.value().partition(b"\r\n\r\n")
        text = zlib.decompressobj(16 + zlib.MAX_WBITS)
        count = 0
        while body:
            size, _, body = body.partition(b"\r\n")
            count += len(text.decompress(body[: int(size, 16)]))
            body = body[int(size, 16) + 2 :]
        decoded.append(count)

    on_page(monkeypatch, decode)
    head = b"GET /big.json HTTP/1.1\r\nHost: demo.localhost\r\nAccept-Encoding: gzip\r\n\r\n"
    peer.send(head)
    run(server, 1)
    assert 0 < next(filter(None, decoded)) < len(TEXT) / 8


class CountedFlow:
    """A request, and the flow that answers it: pieces of which none is kept."""

    def __init__(self, pieces: int) -> None:
        self.left = pieces
        self.sent = 0
        self.has_failed = False
        self.is_finished = False

    @property
    def is_at_end(self) -> bool:
        return not self.left

    def read(self, size: int) -> bytes:
        self.left -= bool(self.left)
        return b"x" * size if self.left else b""

    def write(self, _: bytes) -> None:
        self.sent += 1

    def registerProducer(self, *_: object) -> None:
        pass

    def unregisterProducer(self) -> None:
        pass

    def close(self) -> None:
        pass

    def finish(self) -> None:
        self.is_finished = True


def test_however_many_clients_read_what_flows_they_share_a_slice_of_each_turn() -> None:
    clock = TurnClock(lag=SLICE_SECONDS / 10)
    slices = Slices(clock)
    flows = [CountedFlow(50) for _ in range(20)]
    for each in flows:
        both: Any = each
        FlowSender(both, both, clock, None, slices).start()
    sent = sum(each.sent for each in flows)
    assert sent <= 2 * len(flows)
    while not all(each.is_finished for each in flows):
        assert clock.take_turn()
        before, sent = sent, sum(each.sent for each in flows)
        assert 0 < sent - before <= 15
