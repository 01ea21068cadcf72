"""What is remembered of heads: it makes no difference to anybody's replies, and is bounded."""

from __future__ import annotations

import gc
import json
import pathlib
import tracemalloc
from typing import Any

import attrs
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.access import token
from tests.examples import examples
from tests.web.tree_server import SETTINGS, TreeServer, make_verifier
from treedbd.caches import empty_caches
from treedbd.database.requests import ProjectSpec
from treedbd.http1.parser import KEPT_BYTES
from treedbd.http1.registry import ServerOptions
from treedbd.http1.server import Http1Factory
from treedbd.limits import KIB
from treedbd.names import parse_trusted_proxies
from treedbd.rules.ruleset import parse_rules
from treedbd.web.request import _ALL_QUESTION_BYTES

SECRET = "0123456789abcdef0123456789abcdef"
PROXY = "10.0.0.1"
ADDRESSES = (PROXY, "192.0.2.1", "192.0.2.2")
RULES: dict[str, Any] = {
    ".write": True,
    "open": {".read": True, ".indexOn": "a"},
    "users": {"$uid": {".read": "auth != null && auth.uid == $uid"}},
}
ADA, ALAN = (token("demo", SECRET, uid=uid) for uid in ("ada", "alan"))
LINES = (
    *("GET /open.json", "HEAD /open.json", "GET /open/a.json", "GET /users/ada.json"),
    *("GET /users/alan.json", f"GET /users/ada.json?auth={ADA}", "GET /open.json?print=pretty"),
    *("GET /open.json?ns=shop", "GET /open.json?shallow=true", "OPTIONS /open.json"),
    *('GET /open.json?orderBy="a"', 'GET /open.json?orderBy="b"', "GET /open.json?callback=f"),
    *("GET /open", "GET /open.json?timeout=0s", "BREW /open.json", "GET /a%2Fb.json", "GET /.json"),
    *("GET /.settings/rules.json", "GET /.health", "GET http://shop.localhost/open.json"),
    *("PUT /open.json?print=silent", "POST /open.json", "GET /%2Ehealth", "GET /open.json?auth=x"),
)
FIELDS = (
    *("", "", f"Authorization: Bearer {ADA}\r\n", f"Authorization: Bearer {ALAN}\r\n"),
    *("X-Forwarded-Host: shop.localhost\r\n", "X-HTTP-Method-Override: GET\r\n"),
    *("X-Firebase-ETag: true\r\n", 'If-None-Match: "x"\r\n', "Connection: close\r\n"),
    *("Origin: http://a.example\r\n", "X-TreeDB-Explain: true\r\n"),
)
HOSTS = ("demo.localhost", "demo.localhost", "shop.localhost", "localhost", "example.com")
SENT = st.tuples(
    st.sampled_from(ADDRESSES),
    st.sampled_from(LINES),
    st.sampled_from(HOSTS),
    st.sampled_from(FIELDS),
    st.sampled_from(["", "Content-Length: 1\r\n", "Content-Length: 2\r\n"]),
)


def serve(folder: pathlib.Path) -> TreeServer:
    """Serve two projects with the same places and other values; one peer is a trusted proxy."""
    server = TreeServer(
        folder,
        parse_rules(json.dumps({"rules": RULES})),
        projects=[ProjectSpec(name, None) for name in ("demo", "shop")],
        verifier=lambda name: make_verifier(SECRET) if name == "demo" else None,
        options=attrs.evolve(SETTINGS, trusted_proxies=parse_trusted_proxies([PROXY])),
    )
    options = ServerOptions(
        trusted_proxies=parse_trusted_proxies([PROXY]),
        held=server.resource.shared_reads.held,
    )
    server.factory = Http1Factory(server.resource, SETTINGS.limits, server.clock, options)
    for project in ("demo", "shop"):
        value = {"open": {"a": project, "b": {"a": 1}}, "users": {"ada": 1, "alan": 2}}
        for key, each in value.items():
            server.request(
                "PUT", f"/{key}.json", json.dumps(each).encode(), host=f"{project}.localhost"
            )
    return server


def reply_to(server: TreeServer, peer: Any, data: bytes) -> bytes:
    """Return the bytes of the reply to a request, which changes nothing that others read."""
    peer.transport.clear()
    peer.send(data)
    server.clock.advance(0)
    return bytes(peer.transport.value())


def form(line: str, host: str, fields: str, length: str) -> bytes:
    """Return a request; one that writes leaves the value as it is, or is refused."""
    body = "" if not length else "1" * int(length.split(":")[1])
    if line.startswith("PUT"):
        line = line.replace("/open.json", "/written.json")
    elif line.startswith("POST"):
        body = "x" * len(body)  # not JSON: it is refused
    return f"{line} HTTP/1.1\r\nHost: {host}\r\n{fields}{length}\r\n{body}".encode()


@given(sent=st.lists(SENT, min_size=3, max_size=25))
@settings(max_examples=examples(60), deadline=None, suppress_health_check=list(HealthCheck))
def test_what_others_have_requested_changes_no_reply(
    tmp_path_factory: pytest.TempPathFactory, sent: list[tuple[str, str, str, str, str]]
) -> None:
    server = serve(tmp_path_factory.mktemp("data"))
    peers: dict[str, Any] = {}
    for address, *parts in sent * 2:
        data = form(*parts)
        if address not in peers or peers[address].is_closed:
            peers[address] = server.connect(address)
        shared = reply_to(server, peers[address], data)
        again = reply_to(server, server.connect(address), data)
        empty_caches()
        alone = reply_to(server, server.connect(address), data)
        assert shared == again == alone


@pytest.mark.parametrize("first", [PROXY, "192.0.2.1"])
def test_the_same_head_of_a_proxy_and_of_a_client_addresses_two_databases(
    tmp_path: pathlib.Path, first: str
) -> None:
    server = serve(tmp_path)
    for address in [first, PROXY, "192.0.2.1"] * 2:
        reply = server.request(
            "GET", "/open/a.json", headers=["X-Forwarded-Host: shop.localhost"], address=address
        )
        assert reply.body == (b'"shop"' if address == PROXY else b'"demo"')


def test_a_token_opens_what_it_may_to_its_sender_only(tmp_path: pathlib.Path) -> None:
    server = serve(tmp_path)
    statuses = [
        server.request("GET", "/users/ada.json", headers=fields).status
        for fields in ([], [f"Authorization: Bearer {ADA}"], [f"Authorization: Bearer {ALAN}"]) * 3
    ]
    assert statuses == [403, 200, 401] * 3  # a token makes the request one of Firebase's dialect


def test_what_is_remembered_of_many_targets_is_bounded(tmp_path: pathlib.Path) -> None:
    server = serve(tmp_path)
    questions = server.resource._parser._questions
    peers = [server.connect(), server.connect()]
    for number in range(12_000):
        for peer in peers:
            peer.send(f"GET /open/{number}.json HTTP/1.1\r\nHost: demo.localhost\r\n\r\n".encode())
            peer.transport.clear()
        assert questions.size <= _ALL_QUESTION_BYTES
    assert 100 < len(questions) < 12_000
    long = "x" * 3000
    before = len(questions)
    for peer in peers:
        peer.send(f"GET /open/{long}.json HTTP/1.1\r\nHost: demo.localhost\r\n\r\n".encode())
    assert len(questions) == before


@pytest.mark.parametrize(
    ("target", "fields"),
    [
        ("/open/{number:06}.json", ""),
        ("/open/{number:06}/" + "/".join(["{number:04}"] * 29) + ".json", ""),
        ("/open/{number:0700}\U0001f600.json", ""),
        ('/open.json?orderBy="a"&equalTo="{number:01000}"', ""),
        ('/open.json?orderBy="a"&equalTo="{number:01000}\U0001f600"', ""),
        ('/open.json?orderBy="a"&startAt=1&endAt=2&limitToFirst=1{number:04}', ""),
        ('/open.json?where={{"a":{{"in":[' + "1{number:04},", ""),
        ('/open.json?where={{"b{number}":1,"c{number}":2,"d{number}":3,"e{number}":4}}', ""),
        ("/open/{number}.json", "If-None-Match: "),
        ('/open.json?auth_variable_override={{"{number}":[' + "[]," * 500 + "0]}}", ""),
    ],
)
def test_questions_take_no_more_memory_than_is_counted(
    tmp_path: pathlib.Path, target: str, fields: str
) -> None:
    server = serve(tmp_path)
    questions = server.resource._parser._questions
    peer = server.connect()

    def send(number: int) -> None:
        line = target.format(number=number)
        if "where" in line and line.endswith(","):
            line += ",".join(str(10_000 + number + each) for each in range(250)) + "]}}"
        tags = ",".join(f'"{number}-{each}"' for each in range(150))
        header = f"{fields}{tags}\r\n" if fields else ""
        head = f"GET {line} HTTP/1.1\r\nHost: demo.localhost\r\n{header}\r\n"
        peer.send(head.encode())
        peer.transport.clear()

    send(0)
    empty_caches()
    tracemalloc.start()
    for number in [*range(60), *range(60)]:  # a target is remembered at its second use
        send(number)
    size, count = questions.size, len(questions)
    gc.collect()
    before, _ = tracemalloc.get_traced_memory()
    questions.cache_clear()
    gc.collect()
    after, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert count > 50  # but for those whose hashes displace each other
    assert before - after < 1.1 * size


def numbered_head(number: int, target: str, fields: str = "") -> bytes:
    """Return the head of a GET; `{number}` in its parts is replaced."""
    head = f"GET {target} HTTP/1.1\r\nHost: demo.localhost\r\n{fields}\r\n"
    return head.replace("{number}", f"{number:04}").encode()


@pytest.mark.parametrize(
    ("target", "fields"),
    [
        (
            '/open.json?where={"a":{"in":['
            + ",".join(f"1{n}{{number}}" for n in range(230))
            + "]}}",
            "",
        ),
        ("/open.json?where={" + ",".join(f'"{n}{{number}}":1' for n in range(16)) + "}", ""),
        ('/open.json?orderBy="a"&equalTo="{number}' + "x" * 1500 + '\U0001f600"', ""),
        (
            "/open/{number}.json",
            "If-None-Match: " + ",".join(f'"{n}{{number}}"' for n in range(190)) + "\r\n",
        ),
        ('/open.json?auth_variable_override={"{number}":[' + "[]," * 600 + "0]}", ""),
        ("/open/{number}.json", "".join(f"X-{n}: {{number}}\r\n" for n in range(90))),
        ("/open" + "/a{number}" * 30 + "/" + "x" * 700 + "\U0001f600" * 10 + ".json", ""),
    ],
    ids=["numbers", "conditions", "emoji", "tags", "override", "fields", "path"],
)
def test_an_idle_connection_keeps_little_of_its_last_request(
    tmp_path: pathlib.Path, target: str, fields: str
) -> None:
    server = serve(tmp_path)
    heads = [numbered_head(number, target, fields) for number in range(100)]
    assert all(len(head) <= 2 * KIB for head in heads)
    first = server.connect()
    for head in heads:  # so that answers are kept already
        first.send(head)
        first.transport.clear()
    peers = [server.connect() for _ in heads]
    for peer in peers:
        peer.send(numbered_head(0, "/open/a.json"))
        peer.transport.clear()
    empty_caches()
    gc.collect()
    tracemalloc.start()
    for peer, head in zip(peers, heads, strict=True):
        for _ in range(2):
            peer.send(head)
            peer.transport.clear()
    empty_caches()
    gc.collect()
    before, _ = tracemalloc.get_traced_memory()
    for peer in peers:
        peer.connection._parser.close()
    gc.collect()
    after, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert before - after < len(peers) * KEPT_BYTES


@pytest.mark.parametrize(
    ("target", "fields"),
    [
        ("/open.json", ""),
        ("/users/ada.json", f"Authorization: Bearer {ADA}\r\n"),
        ('/open.json?orderBy="a"&startAt="b"&limitToFirst=10', ""),
        ('/open.json?where={"a":{"gt":{number}}}', ""),
        ("/open.json", 'If-None-Match: "0123456789abcdef"\r\n'),
        ("/open.json", "".join(f"Sec-Ch-Ua-{n}: {'x' * 50}\r\n" for n in range(18))),
    ],
)
def test_a_small_request_is_known_when_it_is_repeated(
    tmp_path: pathlib.Path, target: str, fields: str
) -> None:
    peer = serve(tmp_path).connect()
    head = numbered_head(1, target, fields)
    for _ in range(2):
        peer.send(head)
    memory = peer.connection._parser.head_memory
    assert memory.question is not None
    peer.send(head)
    assert peer.connection._parser.head_memory is memory


def test_targets_that_come_once_displace_none_that_come_again(tmp_path: pathlib.Path) -> None:
    server = serve(tmp_path)
    questions = server.resource._parser._questions
    peers = [server.connect(), server.connect()]
    for peer in peers:
        peer.send(b"GET /open/a.json HTTP/1.1\r\nHost: demo.localhost\r\n\r\n")
    before = len(questions)
    for number in range(500):
        peers[0].send(f"GET /open/{number}.json HTTP/1.1\r\nHost: demo.localhost\r\n\r\n".encode())
    assert len(questions) == before
    empty_caches()
    peers[1].send(b"GET /open/a.json HTTP/1.1\r\nHost: demo.localhost\r\nX: y\r\n\r\n")
    assert len(questions) == 1  # what it has in common with others
