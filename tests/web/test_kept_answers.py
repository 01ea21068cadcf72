"""Kept answers: a service that keeps them answers as one that keeps nothing."""

from __future__ import annotations

import itertools
import json
import pathlib
from collections.abc import Iterator
from typing import Any

import attrs
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.database.world import Disk
from tests.examples import examples
from tests.http1.peer import ParsedReply, Peer
from tests.web.tree_server import SETTINGS, TreeServer, make_verifier
from treedbd.database import database as database_module
from treedbd.database.open_databases import SWEEP_S, UNUSED_S
from treedbd.limits import MIB
from treedbd.store.engine import DiskFull, StoreFailed
from treedbd.store.nodes import Nodes, etag_in_steps
from treedbd.store.select import SortedChildren, sort_children
from treedbd.tree.hashes import etag
from treedbd.tree.query import Order
from treedbd.tree.types import Path
from treedbd.web import reading as representation

RULES = [
    {".read": True, ".write": True},
    {".read": "auth != null", ".write": True},
    {".read": "root.child('a/b').val() != 1", ".write": True},
    {".write": True, "a": {".read": "data.child('c').exists()"}},
    {".write": True, "$key": {".read": "$key === 'a' || query.limitToFirst <= 2"}},
]
KEYS = ["a", "b", "c", "0", "1"]
PATHS = st.sampled_from(["", "a", "a/b", "a/b/c", "a/b/.priority", "b", "0", "a/1"])
VALUES = st.recursive(
    st.sampled_from([None, 1, 2, "x", True]),
    lambda children: st.dictionaries(st.sampled_from([*KEYS, ".priority"]), children, max_size=3),
    max_leaves=6,
)
QUERIES = st.sampled_from(
    [
        *([""] * 9),
        *("format=export", "shallow=true", "shallow=2", "print=pretty", "print=silent"),
        *('orderBy="b"', 'orderBy="$key"&limitToFirst=2', 'orderBy="$value"&limitToLast=1'),
        *('orderBy="$key"&limitToFirst=3', 'orderBy="$priority"', "callback=f", "timeout=3s"),
        *('orderBy="b"&startAt=1', 'orderBy="b"&limitToFirst=1', 'orderBy="b"&format=export'),
        *('orderBy="$value"&equalTo=1', 'orderBy="b"&print=pretty', 'where={"b":1}'),
    ]
)
HEADERS = st.sampled_from(
    [
        *([""] * 9),
        *("X-Firebase-ETag: true", 'If-None-Match: "x"', "If-None-Match: null_etag"),
        *("Authorization: Bearer owner", "Authorization: Bearer wrong", "X-TreeDB-Explain: true"),
    ]
)
READS = st.tuples(
    st.just("read"), st.sampled_from(["GET", "GET", "GET", "HEAD"]), PATHS, QUERIES, HEADERS
)
WRITES = st.tuples(
    st.just("write"), st.sampled_from(["PUT", "PATCH", "DELETE", "POST"]), PATHS, VALUES
)
RULE_CHANGES = st.tuples(st.just("rules"), st.sampled_from(RULES))
COMMITS = st.sampled_from([("finish",), ("finish",), ("full",), ("failed",)])
STEPS = st.lists(READS | READS | WRITES | COMMITS | RULE_CHANGES, min_size=20, max_size=40)


class Service:
    """A service with a disk that the test controls, and one connection to it."""

    def __init__(self, folder: pathlib.Path, kept_answer_bytes: int) -> None:
        limits = attrs.evolve(SETTINGS.limits, kept_answer_bytes=kept_answer_bytes)
        self.disk = Disk()
        numbers = itertools.count()
        verifier = make_verifier(emulator=True)
        self.server = TreeServer(
            folder,
            verifier=lambda _: verifier,
            options=attrs.evolve(SETTINGS, limits=limits),
            run_in_thread=self.disk.run,
            entropy=lambda size: next(numbers).to_bytes(size, "big"),
        )
        self.peer = self.server.connect()
        self.waiting: list[tuple[str, Peer]] = []

    @property
    def pool(self) -> Any:
        return self.server.catalog._runtime.answer_pool

    def read(self, method: str, target: str, header: str = "") -> ParsedReply:
        """Send a read on the one connection, so that its head may be one that was sent before."""
        if self.peer.transport.disconnecting:
            self.peer = self.server.connect()
        lines = [f"{method} {target} HTTP/1.1", "Host: demo.localhost", *filter(None, [header])]
        self.peer.transport.clear()
        self.peer.send("\r\n".join([*lines, "", ""]).encode())
        (reply,) = self.peer.read(method.encode())
        return reply

    def begin_write(self, method: str, path: str, value: Any) -> None:
        body = json.dumps(value) if method in ("PUT", "PATCH", "POST") else ""
        self.send(method, f"/{path}.json", body)
        self.server.clock.advance(0)

    def send(self, method: str, target: str, body: str) -> None:
        peer = self.server.connect()
        head = f"{method} {target} HTTP/1.1\r\nHost: demo.localhost\r\nAuthorization: Bearer owner"
        peer.send(f"{head}\r\nContent-Length: {len(body)}\r\n\r\n{body}".encode())
        self.waiting.append((method, peer))

    def settle(self, error: Exception | None = None) -> list[tuple[int, bytes]]:
        """Finish what waits for the disk, the first of it with an error; return the replies."""
        while self.disk.waiting:
            if error is not None and self.disk.commits_next():
                self.disk.fail(error)
                error = None
            else:
                self.disk.finish()
            self.server.clock.advance(1)
        replies = [reply for method, peer in self.waiting for reply in peer.read(method.encode())]
        self.waiting.clear()
        return [(reply.status, reply.body) for reply in replies]

    def put_rules(self, rules: object) -> list[tuple[int, bytes]]:
        self.send("PUT", "/.settings/rules.json", json.dumps({"rules": rules}))
        return self.settle()


def shown(reply: ParsedReply) -> tuple[Any, ...]:
    """Return what a client sees of a reply, without the date."""
    fields = sorted(field for field in reply.fields if field[0] != b"date")
    return reply.status, fields, reply.body


def take(service: Service, step: tuple[Any, ...]) -> Any:
    """Do one step and return what a client sees of it."""
    match step:
        case ("read", method, path, query, header):
            return shown(service.read(method, f"/{path}.json?{query}", header))
        case ("write", method, path, value):
            return service.begin_write(method, path, value)
        case ("rules", rules):
            return service.settle(), service.put_rules(rules)
        case ("full",):
            return service.settle(DiskFull())
        case ("failed",):
            return service.settle(StoreFailed("the disk failed"))
    return service.settle()


@settings(max_examples=examples(150), deadline=None)
@given(STEPS)
def test_what_is_kept_is_what_would_be_read(
    tmp_path_factory: pytest.TempPathFactory, steps: list[tuple[Any, ...]]
) -> None:
    keeping = Service(tmp_path_factory.mktemp("kept"), MIB)
    reading = Service(tmp_path_factory.mktemp("read"), 0)
    for step in [("write", "PUT", "", {"a": {"b": 1, "c": [1, 2]}}), ("finish",), *steps]:
        # Twice, so that what the first read keeps is what the second shows.
        for _ in range(2 if step[0] == "read" else 1):
            assert take(keeping, step) == take(reading, step), step


@pytest.fixture
def service(tmp_path: pathlib.Path) -> Service:
    """A service with `{"b": 1}` at `/a`."""
    service = Service(tmp_path, MIB)
    service.begin_write("PUT", "a", {"b": 1})
    assert [status for status, _ in service.settle()] == [200]
    return service


def count_hits(service: Service, *reads: tuple[str, str]) -> int:
    """Return how many of these reads, targets with a header, are answered from what is kept."""
    before = service.pool.hits
    for target, header in reads:
        service.read("GET", target, header)
    hits: int = service.pool.hits - before
    return hits


def test_a_read_that_is_repeated_is_answered_from_what_is_kept(service: Service) -> None:
    assert count_hits(service, ("/a.json", "")) == 0
    assert count_hits(service, ("/a.json", ""), ("/a.json", "")) == 2
    assert service.pool.misses == 1


def test_another_connection_finds_what_is_kept(service: Service) -> None:
    service.read("GET", "/a.json")
    service.peer = service.server.connect()
    assert count_hits(service, ("/a.json?download=a", "X-Firebase-ETag: true")) == 1


def test_what_is_indented_is_kept_for_each_dialect(service: Service) -> None:
    for header in ("", "X-Firebase-ETag: true"):
        assert count_hits(service, ("/a.json?print=pretty", header)) == 0
        assert count_hits(service, ("/a.json?print=pretty", header)) == 1


@pytest.mark.parametrize(
    "target",
    ["/a.json?orderBy=%22%24key%22", "/a.json?shallow=true", "/.json?format=export", "/none.json"],
)
def test_queries_shallow_forms_and_nothing_are_kept_too(service: Service, target: str) -> None:
    assert count_hits(service, (target, "")) == 0
    assert count_hits(service, (target, "")) == 1


def test_a_read_does_not_find_what_was_kept_in_another_form(service: Service) -> None:
    service.read("GET", "/a.json")
    assert count_hits(service, ("/a.json?shallow=true", ""), ("/a/.priority.json", "")) == 0


def test_until_a_write_is_durable_reads_find_what_was_before_it(service: Service) -> None:
    service.read("GET", "/a.json")
    service.begin_write("PUT", "a/b", 2)
    assert count_hits(service, ("/a.json", "")) == 1
    assert service.read("GET", "/a.json").body == b'{"b":1}'
    assert service.settle() == [(200, b"2")]
    assert count_hits(service, ("/a.json", "")) == 0
    assert service.read("GET", "/a.json").body == b'{"b":2}'


def test_what_is_kept_falls_before_the_writer_is_answered(service: Service) -> None:
    service.read("GET", "/a.json")
    service.begin_write("DELETE", "a", None)
    (_, writer) = service.waiting[0]
    seen: list[bytes] = []
    write = writer.transport.write

    def read_and_write(data: bytes) -> None:
        seen.append(service.read("GET", "/a.json").body)
        write(data)

    writer.transport.write = read_and_write  # type: ignore[method-assign]
    service.settle()
    assert seen == [b"null"]


def test_a_write_that_fails_drops_nothing(service: Service) -> None:
    service.read("GET", "/a.json")
    service.begin_write("PUT", "a/b", 2)
    assert [status for status, _ in service.settle(DiskFull())] == [503]
    assert count_hits(service, ("/a.json", "")) == 1
    assert service.read("GET", "/a.json").body == b'{"b":1}'


def test_rules_are_evaluated_for_what_is_kept(service: Service) -> None:
    assert service.read("GET", "/a.json").status == 200
    service.put_rules({".write": True})
    assert service.read("GET", "/a.json").status == 403
    assert service.read("GET", "/a.json", "Authorization: Bearer owner").status == 200
    service.put_rules({".read": "root.child('a/b').val() === 1", ".write": True})
    assert [service.read("GET", "/a.json").status for _ in range(2)] == [200, 200]
    service.begin_write("PUT", "a/b", 2)
    service.settle()
    assert [service.read("GET", "/a.json").status for _ in range(2)] == [403, 403]


def test_a_tag_is_computed_once(service: Service, monkeypatch: pytest.MonkeyPatch) -> None:
    computed: list[Any] = []

    def count(nodes: Nodes, path: Path) -> Iterator[str | None]:
        computed.append(path)
        return etag_in_steps(nodes, path)

    monkeypatch.setattr(representation, "etag_in_steps", count)
    names = ("TreeDB", "Firebase", "TreeDB")
    tags = [service.read("GET", "/a.json", f"X-{name}-ETag: true")[b"etag"] for name in names]
    tag = etag({"b": 1}).encode()
    assert tags == [tag, tag.strip(b'"'), tag]  # each in its dialect
    assert computed == [("a",)]


def test_readers_of_a_large_answer_share_its_bytes(service: Service) -> None:
    service.begin_write("PUT", "large", ["x" * 1000] * 100)
    service.settle()
    service.read("GET", "/large.json")
    readers = [
        service.server.get("/large.json", host=f"192.0.2.{number}", room=10) for number in range(5)
    ]
    waiting = service.server.resource.shared_reads.memory
    assert 100_000 < waiting.total < 110_000
    for reader in readers:
        reader.disconnect()
    assert waiting.total == 0


def test_a_closed_database_keeps_no_answers(tmp_path: pathlib.Path) -> None:
    server = TreeServer(tmp_path, engine="sqlite")
    server.catalog.open()
    server.request("PUT", "/a.json", b"1")
    assert server.request("GET", "/a.json").body == b"1"
    pool = server.catalog._runtime.answer_pool
    assert pool.count == 1
    server.clock.pump([SWEEP_S] * int(UNUSED_S / SWEEP_S + 2))
    assert (pool.count, pool.size) == (0, 0)
    assert server.request("GET", "/a.json").body == b"1"


def test_reads_of_databases_without_data_keep_nothing(service: Service) -> None:
    before = service.pool.size
    for number in range(10):
        peer = service.server.connect()
        peer.send(f"GET /a.json HTTP/1.1\r\nHost: other{number}.localhost\r\n\r\n".encode())
        assert peer.read()[0].body == b"null"
    assert service.pool.size == before


@pytest.fixture
def sorted_paths(monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """The paths whose children were sorted."""
    paths: list[Path] = []

    def sort(nodes: Nodes, path: Path, order: Order, *, is_export: bool) -> SortedChildren:
        paths.append(path)
        return sort_children(nodes, path, order, is_export=is_export)

    monkeypatch.setattr(database_module, "sort_children", sort)
    return paths


def keys_from(service: Service, path: str, least: int) -> list[str]:
    target = f'/{path}.json?orderBy="v"&startAt={least}&limitToFirst=2'
    return list(json.loads(service.read("GET", target).body) or ())


def test_the_children_of_a_small_collection_are_sorted_once_until_one_changes(
    service: Service, sorted_paths: list[Path]
) -> None:
    children = {f"k{at}": {"v": at % 10, "text": "x" * 60} for at in range(100)}
    service.begin_write("PUT", "list", children)
    service.begin_write("PUT", "long", dict.fromkeys(children, "x" * 1000))
    service.settle()
    assert keys_from(service, "list", 2) == ["k12", "k2"]
    assert sorted_paths == []
    assert keys_from(service, "list", 3) == ["k13", "k23"]
    assert service.pool.size > len(json.dumps(children))  # they count towards the pool
    assert keys_from(service, "list", 4) == ["k14", "k24"]
    assert sorted_paths == [("list",)]
    service.begin_write("PUT", "list/k14/v", 5)
    service.settle()
    assert keys_from(service, "list", 4) == ["k24", "k34"]
    assert keys_from(service, "list", 5) == ["k14", "k15"]
    assert sorted_paths == [("list",)] * 2
    for least in (3, 4, 5):  # that it is not small is kept as well
        assert keys_from(service, "long", least) == []
    assert sorted_paths == [("list",), ("list",), ("long",)]


def test_a_small_collection_that_is_written_between_two_queries_is_never_sorted(
    service: Service, sorted_paths: list[Path]
) -> None:
    service.begin_write("PUT", "list", {f"k{at}": {"v": at % 10} for at in range(100)})
    for at in range(10):
        service.begin_write("PUT", f"list/k{at}/v", 10)
        service.settle()
        assert keys_from(service, "list", 10) == (["k0"] if at == 0 else ["k0", "k1"])
    assert sorted_paths == []
