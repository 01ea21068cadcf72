"""Attacks by connections: many, idle, slow, pipelined, and TLS."""

from __future__ import annotations

import contextlib
import select
import socket
import time

from attacked import MIB, OPEN, Scene
from attacks import attack
from listeners import dial
from OpenSSL import SSL

GET = b"GET /leaf.json HTTP/1.1\r\nHost: localhost\r\n"
DENIED = {
    "$other": OPEN,
    "denied": {"$key": {".read": "auth != null && auth.uid == $key"}},
}


def long_head(target: str = "/leaf.json", more: bytes = b"") -> bytes:
    """Return a head of 90 headers and nearly 64 KB."""
    fields = b"".join(b"X-%02d: %b\r\n" % (number, b"y" * 700) for number in range(88))
    return b"GET %b HTTP/1.1\r\nHost: localhost\r\n%b%b\r\n" % (target.encode(), more, fields)


def hold(scene: Scene, count: int, sent: bytes, *, secure: bool = False) -> str:
    """Open connections, send the same over each, and keep those that stay open."""
    held, dropped = [], 0
    for _ in range(scene.many(count)):
        try:
            opened = dial(scene.secure_url if secure else scene.url)
            opened.settimeout(10)
            opened.sendall(sent)
            held.append(opened)
            opened.recv(65_536)
        except OSError:
            dropped += 1
    for _ in scene.repeatedly():
        time.sleep(min(0.5, scene.seconds))
    return f"{len(held)} opened, {dropped} dropped"


@attack("idle: 1,000 with long heads", in_workers=True)
def idle_long_heads(scene: Scene) -> str:
    """Send one request with a head of 64 KB over each of 1,000 connections, and keep them open."""
    return hold(scene, 1000, long_head())


@attack("idle: 1,000 with long request lines")
def idle_long_lines(scene: Scene) -> str:
    """Send a request line of 90 KB and a head of 64 KB over 1,000 connections; keep them open."""
    return hold(scene, 1000, long_head("/" + "/".join(["%C3%A9" * 120] * 31) + ".json"))


@attack("idle: 1,000 with long queries")
def idle_long_queries(scene: Scene) -> str:
    """Send a query of 90 KB over each of 1,000 connections, and keep them open."""
    bound = "x" * 45_000
    return hold(
        scene,
        1000,
        long_head(f"/q.json?orderBy=%22$key%22&startAt=%22{bound}%22&endAt=%22{bound}%22"),
    )


@attack("idle: 1,000 refused")
def idle_refused(scene: Scene) -> str:
    """Send a request that is refused, with a head of 64 KB, over 1,000 connections; keep them."""
    return hold(scene, 1000, long_head("/leaf.json?orderBy=x"))


@attack("idle: 1,000 with large answers")
def idle_answered(scene: Scene) -> str:
    """Read 64 KB over each of 1,000 connections, and keep them open."""
    scene.client().ask("PUT", "/leaf.json", "x" * 64_000)
    return hold(scene, 1000, GET + b"\r\n")


@attack("idle: 1,000 over TLS")
def idle_secure(scene: Scene) -> str:
    """Send one request with a head of 60 KB over each of 1,000 TLS connections; keep them open."""
    return hold(scene, 1000, long_head(), secure=True)


@attack("come and go: 1,000", in_workers=True)
def come_and_go(scene: Scene) -> None:
    """Open 1,000 connections one after the other, send a long head over each, and close it."""
    for _ in range(scene.many(1000)):
        with dial(scene.url) as opened:
            opened.sendall(long_head())
            opened.recv(65_536)


@attack("slow heads: 2,000")
def slow_heads(scene: Scene) -> str:
    """Begin 2,000 heads of 60 KB that do not end."""
    return hold_unanswered(scene, 2000, [long_head()[:60_000]])


@attack("slow heads: a byte at a time")
def byte_by_byte(scene: Scene) -> str:
    """Send 300 heads in pieces of one byte, all at the same time."""
    return hold_unanswered(scene, 300, [long_head()[at : at + 1] for at in range(300)])


@attack("slow bodies: 500")
def slow_bodies(scene: Scene) -> str:
    """Begin 500 bodies of 16 MB, of which 1 MB is sent."""
    head = b"PUT /w.json HTTP/1.1\r\nHost: localhost\r\nContent-Length: 16000000\r\n\r\n"
    return hold_unanswered(scene, 500, [head + b"[" + b"1," * 30_000] + [b"1," * 30_000] * 16)


@attack("slow bodies: tiny chunks")
def tiny_chunks(scene: Scene) -> str:
    """Send bodies in chunks of one byte over 20 connections."""
    head = b"PUT /w.json HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n"
    chunks = b"1\r\n \r\n" * 160_000
    return hold_unanswered(scene, 20, [head, *[chunks] * 4])


def hold_unanswered(scene: Scene, count: int, pieces: list[bytes]) -> str:
    """Send pieces over many connections, one after the other, and keep them open."""
    held = [dial(scene.url) for _ in range(scene.many(count))]
    broken = 0
    for piece in pieces:
        for each in held:
            each.settimeout(5)
            try:
                each.sendall(piece)
            except OSError:
                broken += 1
    for _ in scene.repeatedly():
        time.sleep(min(0.5, scene.seconds))
    return f"{len(held)} opened, {broken} broken"


def declare_denied(scene: Scene) -> None:
    """Deny one path."""
    scene.owner().put_rules(DENIED)


def pipeline(scene: Scene, request: bytes, connections: int = 200, each: int = 64) -> str:
    """Send requests over many connections at once, each time that all have been answered."""
    batch = request * each
    poll = select.epoll()
    opened = {
        one.fileno(): one for one in (dial(scene.url) for _ in range(scene.many(connections)))
    }
    for number, one in opened.items():
        poll.register(number, select.EPOLLIN)
        one.settimeout(60)
    answered = 0
    for _ in scene.repeatedly():
        missing = dict.fromkeys(opened, each)
        for one in opened.values():
            one.sendall(batch)
        while missing:
            for number, _ in poll.poll(60) or [(next(iter(missing)), 0)]:
                text = opened[number].recv(1 << 20)
                if not text:
                    raise ConnectionError("A connection was closed.")
                count = text.count(b"HTTP/1.1 ")  # one in two pieces is missed now and then
                answered += count
                if missing.get(number, 0) <= count + 1:
                    missing.pop(number, None)
                else:
                    missing[number] -= count
    return f"{answered:,} answered"


@attack("pipelined: GET", declare_denied, in_workers=True)
def pipeline_get(scene: Scene) -> str:
    """Send 64 small requests at once over each of 200 connections."""
    return pipeline(scene, GET + b"\r\n")


@attack("pipelined: denied", declare_denied)
def pipeline_denied(scene: Scene) -> str:
    """Send 64 requests that rules deny at once over each of 200 connections."""
    return pipeline(scene, b"GET /denied/a.json HTTP/1.1\r\nHost: localhost\r\n\r\n")


@attack("pipelined: refused")
def pipeline_refused(scene: Scene) -> str:
    """Send 64 requests with a wrong parameter at once over each of 200 connections."""
    return pipeline(scene, b"GET /a.json?orderBy=x HTTP/1.1\r\nHost: localhost\r\n\r\n")


@attack("pipelined: not found")
def pipeline_not_found(scene: Scene) -> str:
    """Send 64 requests for no place at once over each of 200 connections."""
    return pipeline(scene, b"GET /nothing HTTP/1.1\r\nHost: localhost\r\n\r\n")


@attack("pipelined: PUT", in_workers=True)
def pipeline_put(scene: Scene) -> str:
    """Send 64 writes at once over each of 200 connections."""
    head = b"PUT /w/x.json HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1\r\n\r\n1"
    return pipeline(scene, head)


@attack("pipelined: OPTIONS")
def pipeline_options(scene: Scene) -> str:
    """Send 64 preflight requests at once over each of 200 connections."""
    asks = b"Origin: https://a.example\r\nAccess-Control-Request-Method: PUT\r\n"
    return pipeline(scene, b"OPTIONS /a.json HTTP/1.1\r\nHost: localhost\r\n%b\r\n" % asks)


@attack("pipelined: invalid tokens")
def pipeline_tokens(scene: Scene) -> str:
    """Send 16 requests with an invalid token of 8 KB at once over each of 200 connections."""
    token = b"eyJhbGciOiJIUzI1NiJ9.%b.%b" % (b"e30" * 2000, b"x" * 43)
    head = b"GET /a.json HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer %b\r\n\r\n"
    return pipeline(scene, head % token, each=16)


@attack("pipelined: long heads")
def pipeline_long(scene: Scene) -> str:
    """Send 8 requests with heads of 64 KB at once over each of 200 connections."""
    return pipeline(scene, long_head(), each=8)


@attack("pipelined: front page and pages")
def pipeline_pages(scene: Scene) -> str:
    """Request pages, the description of the interface and the health, 64 over 50 connections."""
    four = b"".join(
        b"GET %b HTTP/1.1\r\nHost: localhost\r\n\r\n" % target
        for target in (b"/", b"/.openapi.json", b"/.health", b"/.docs/interface")
    )
    return pipeline(scene, four, connections=50, each=16)


@attack("one connection: 100,000 at once")
def one_connection(scene: Scene) -> str:
    """Send 100,000 requests over one connection, and do not read the answers."""
    with dial(scene.url) as opened, contextlib.suppress(OSError):
        opened.settimeout(max(0.2, scene.seconds))
        opened.sendall((GET + b"\r\n") * scene.many(100_000))
    return "sent"


@attack("TLS: handshakes at once")
def handshakes(scene: Scene) -> str:
    """Begin handshakes over 200 connections at once, again and again, and end none."""
    hello = client_hello()
    port = int(scene.secure_url.rpartition(":")[2])
    count = 0
    for _ in scene.repeatedly():
        held = []
        for _ in range(scene.many(200)):
            opened = socket.create_connection(("127.0.0.1", port))
            opened.sendall(hello)
            held.append(opened)
        count += len(held)
        for each in held:
            each.close()
    return f"{count:,} begun"


def client_hello(version: int = SSL.TLS1_3_VERSION) -> bytes:
    """Return the first message of a client."""
    context = SSL.Context(SSL.TLS_CLIENT_METHOD)
    context.set_max_proto_version(version)
    connection = SSL.Connection(context, None)
    connection.set_connect_state()
    with contextlib.suppress(SSL.WantReadError):
        connection.do_handshake()
    return connection.bio_read(65_536)


@attack("TLS: renegotiations")
def renegotiations(scene: Scene) -> str:
    """Request renegotiation in TLS 1.2, again and again."""
    port = int(scene.secure_url.rpartition(":")[2])
    context = SSL.Context(SSL.TLS_CLIENT_METHOD)
    context.set_max_proto_version(SSL.TLS1_2_VERSION)
    done = refused = 0
    for _ in scene.repeatedly():
        with socket.create_connection(("127.0.0.1", port)) as opened:
            secured = SSL.Connection(context, opened)
            secured.set_connect_state()
            secured.do_handshake()
            try:
                for _ in range(50):
                    secured.renegotiate()
                    secured.do_handshake()
                    secured.send(GET + b"\r\n")
                    secured.recv(4096)
                    done += 1
            except SSL.Error:
                refused += 1
    return f"{done} done, {refused} refused"


@attack("TLS: tiny records")
def tiny_records(scene: Scene) -> str:
    """Send a body of one byte in each record, over 10 connections."""
    head = b"PUT /w.json HTTP/1.1\r\nHost: localhost\r\nContent-Length: 200000\r\n\r\n"
    for _ in scene.repeatedly():
        for _ in range(scene.many(10)):
            with dial(scene.secure_url) as opened, contextlib.suppress(OSError):
                opened.sendall(head)
                for _ in range(scene.many(5000)):
                    opened.sendall(b" ")
    return "sent"


@attack("TLS: 1,000 come and go")
def secure_come_and_go(scene: Scene) -> None:
    """Open 1,000 TLS connections one after the other, send a request over each, and close it."""
    for _ in range(scene.many(1000)):
        with dial(scene.secure_url) as opened:
            opened.sendall(GET + b"\r\n")
            opened.recv(65_536)


@attack("large bodies held: 100")
def bodies_held(scene: Scene) -> str:
    """Send all of 15 MB but the last byte over each of 100 connections."""
    size = 15 * MIB
    head = b"PUT /w.json HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n" % (size + 1)
    part = b" " * (size // 16)
    return hold_unanswered(scene, 100, [head, *[part] * (16 if scene.scale >= 1 else 1)])


def open_plain(scene: Scene, count: int, *, secure: bool = False) -> list[socket.socket]:
    """Open as many connections as are allowed."""
    held: list[socket.socket] = []
    with contextlib.suppress(OSError):
        for _ in range(scene.many(count)):
            held.append(dial(scene.secure_url if secure else scene.url))
            held[-1].settimeout(60)
    return held


@attack("at once: 4,000 requests", in_workers=True)
def requests_at_once(scene: Scene) -> str:
    """Send one small request over each of 4,000 connections at the same time, again and again."""
    return send_again(scene, open_plain(scene, 4000), GET + b"\r\n")


@attack("at once: 4,000 writes")
def writes_at_once(scene: Scene) -> str:
    """Send one small write over each of 4,000 connections at the same time, again and again."""
    put = b"PUT /w/x.json HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1\r\n\r\n1"
    return send_again(scene, open_plain(scene, 4000), put)


def send_again(scene: Scene, held: list[socket.socket], request: bytes) -> str:
    """Send one request over each connection at the same time, again and again."""
    for _ in scene.repeatedly():
        for each in held:
            each.sendall(request)
        for each in held:
            each.recv(65_536)
    return f"{len(held)} opened"


@attack("at once: 4,000 closed")
def closed_at_once(scene: Scene) -> str:
    """Close 4,000 connections at the same time."""
    held = open_plain(scene, 4000)
    for each in held:
        each.close()
    return f"{len(held)} closed"


@attack("at once: 1,000 TLS requests")
def secure_at_once(scene: Scene) -> str:
    """Send one small request over each of 1,000 TLS connections at the same time; close them."""
    held = open_plain(scene, 1000, secure=True)
    send_again(scene, held, GET + b"\r\n")
    for each in held:
        each.close()
    return f"{len(held)} opened"


@attack("at once: 4,000 connects")
def connects_at_once(scene: Scene) -> str:
    """Begin 4,000 connections without waiting for any, and close them, again and again."""
    address = scene.url.rpartition(":")
    count = 0
    for _ in scene.repeatedly():
        held = []
        for _ in range(scene.many(4000)):
            each = socket.socket()
            each.setblocking(False)
            each.connect_ex(("127.0.0.1", int(address[2])))
            held.append(each)
        count += len(held)
        for each in held:
            each.close()
    return f"{count:,} begun"
