"""Attacks over WebSockets: messages, listens, and what is kept for the end of a session."""

from __future__ import annotations

import contextlib
import json
import struct
import time

from attacked import Scene
from attacks import attack
from attacks_reads import load_digits, load_large
from realtime import PIECE, WebSocket, frame, request
from sessions import encode

BOUND = "x" * 300_000
LONGEST = 15_000_000


def opened(scene: Scene, query: str = "") -> WebSocket:
    """Open a socket of the attacked database."""
    each = WebSocket(scene.url, query)
    each.socket.settimeout(60)
    return each


def listen_to(number: int, bound: str, tag: int = 1) -> bytes:
    """Return a listen of a query by a bound."""
    return request(number, "q", json.dumps({"p": "/q", "q": {"i": ".key", "sn": bound}, "t": tag}))


def send(socket: WebSocket, message: bytes) -> None:
    """Send a message, in pieces if it is long."""
    if len(message) > PIECE:
        socket.send_in_pieces(message)
    else:
        socket.send(message)


def ask(socket: WebSocket, message: bytes, number: int = 1) -> bytes:
    """Send a request and receive until its answer."""
    send(socket, message)
    return answer(socket, number)


def answer(socket: WebSocket, number: int = 1) -> bytes:
    """Receive until the answer to a request; return the end of what came."""
    end, received = b'"r":%d,' % number, b""
    while end not in received:
        more = socket.socket.recv(1 << 20)
        if not more:
            raise ConnectionError("The server has closed a WebSocket.")
        received = received[-1000:] + more
    return received


@attack("sockets: long listens, ended", in_workers=True)
def ended_listens(scene: Scene) -> str:
    """Listen by a bound of 300 KB over 960 sockets, one after the other; end the listen, close."""
    for number in range(scene.many(960)):
        each = opened(scene)
        body = json.dumps({"p": "/q", "q": {"i": ".key", "sn": f"{number}{BOUND}"}, "t": 1})
        ask(each, request(1, "q", body))
        ask(each, request(2, "n", body), 2)
        each.close()
    return "gone"


@attack("sockets: long listens, closed")
def closed_listens(scene: Scene) -> str:
    """Listen by 20 bounds of 300 KB over each of 50 sockets, one after the other, and close."""
    for number in range(scene.many(50)):
        each = opened(scene)
        for tag in range(20):
            ask(each, listen_to(tag, f"{number}{tag}{BOUND}", tag), tag)
        each.close()
    return "gone"


@attack("sockets: long listens, held", in_workers=True)
def held_listens(scene: Scene) -> str:
    """Listen by 10 bounds of 300 KB over each of 96 sockets, all open at the same time."""
    held = [opened(scene) for _ in range(scene.many(96))]
    for each in held:
        for tag in range(10):
            ask(each, listen_to(tag, f"{tag}{BOUND}", tag), tag)
    time.sleep(min(1.0, scene.seconds))
    return f"{10 * len(held)} held"


@attack("sockets: long paths listened to")
def long_paths(scene: Scene) -> str:
    """Listen at 1,000 paths of 20 KB over each of 20 sockets, and leave."""
    held = [opened(scene) for _ in range(scene.many(20))]
    deep = "/".join(["x" * 700] * 29)
    for each in held:
        for number in range(scene.many(1000)):
            ask(each, request(number, "q", f'{{"p":"/{number}/{deep}","h":""}}'), number)
    return f"{len(held)} opened"


@attack("sockets: 1,000 with long heads", in_workers=True)
def long_heads(scene: Scene) -> str:
    """Open 1,000 sockets by handshakes with a query of 60 KB."""
    query = f"&p={'x' * 60_000}"
    held: list[WebSocket] = []
    with contextlib.suppress(OSError):
        for _ in range(scene.many(1000)):
            held.append(opened(scene, query))  # noqa: PERF401 -- until one is refused
    time.sleep(min(1.0, scene.seconds))
    return f"{len(held)} opened"


@attack("sockets: pings", in_workers=True)
def pings(scene: Scene) -> str:
    """Send 100,000 control frames at once over each of 8 sockets, again and again."""
    ping = struct.pack(">BB4x", 0x89, 0x80 | 100) + b"p" * 100
    return flood(scene, ping * 20_000)


@attack("sockets: empty frames")
def empty_frames(scene: Scene) -> str:
    """Send keep-alive messages, of one byte, over 8 sockets as fast as may be."""
    return flood(scene, frame(b"0") * 100_000)


@attack("sockets: pongs")
def pongs(scene: Scene) -> str:
    """Send pongs without a ping over 8 sockets."""
    return flood(scene, struct.pack(">BB4x", 0x8A, 0x80) * 200_000)


@attack("sockets: small requests")
def small_requests(scene: Scene) -> str:
    """Send gets over 8 sockets as fast as may be; answers are not read."""
    return flood(scene, frame(request(1, "g", '{"p":"/leaf"}')) * 20_000)


@attack("sockets: small requests, 200 sockets", in_workers=True)
def many_requests(scene: Scene) -> str:
    """Send gets over 200 sockets, and read the answers."""
    held = [opened(scene) for _ in range(scene.many(200))]
    batch = frame(request(1, "g", '{"p":"/leaf"}')) * 63 + frame(request(2, "g", '{"p":"/leaf"}'))
    count = 0
    for _ in scene.repeatedly():
        for each in held:
            each.socket.sendall(batch)
        for each in held:
            answer(each, 2)
        count += len(held) * 64
    return f"{count:,} answered"


@attack("sockets: puts, 200 sockets")
def many_puts(scene: Scene) -> str:
    """Put over 200 sockets, 64 at once, and read the answers."""
    held = [opened(scene) for _ in range(scene.many(200))]
    put = '{"p":"/w/x","d":1}'
    batch = frame(request(1, "p", put)) * 63 + frame(request(2, "p", put))
    count = 0
    for _ in scene.repeatedly():
        for each in held:
            each.socket.sendall(batch)
        for each in held:
            answer(each, 2)
        count += len(held) * 64
    return f"{count:,} answered"


@attack("sockets: unknown actions")
def unknown_actions(scene: Scene) -> str:
    """Send requests that are refused over 8 sockets as fast as may be."""
    return flood(scene, frame(request(1, "zz", '{"p":"/leaf"}')) * 20_000)


@attack("sockets: statistics and tokens")
def statistics(scene: Scene) -> str:
    """Send statistics of 300 KB, and tokens that are none, over 8 sockets."""
    body = json.dumps({"c": {f"sdk.{number}": 1 for number in range(20_000)}})
    held = [opened(scene) for _ in range(scene.many(8))]
    count = 0
    for _ in scene.repeatedly():
        for each in held:
            ask(each, request(1, "s", body))
            ask(each, request(2, "auth", json.dumps({"cred": f"a.{'e30' * 90_000}.c"})), 2)
            count += 2
    return f"{count} answered"


def flood(scene: Scene, text: bytes) -> str:
    """Send the same over 8 sockets, without reading, until they are full or time is over."""
    held = [opened(scene) for _ in range(scene.many(8))]
    for each in held:
        each.socket.setblocking(False)
    sent, at = 0, dict.fromkeys(range(len(held)), 0)
    for _ in scene.repeatedly():
        for number, each in enumerate(held):
            with contextlib.suppress(BlockingIOError, ConnectionError):
                done = each.socket.send(text[at[number] : at[number] + (1 << 18)])
                at[number] = (at[number] + done) % len(text)
                sent += done
        time.sleep(0.001)
    return f"{sent / 1e6:.0f} MB sent"


@attack("sockets: unfinished messages", in_workers=True)
def unfinished(scene: Scene) -> str:
    """Announce 4,000 pieces over each of 40 sockets, send 900 pieces (14 MB), and not the rest."""
    piece = frame(b"x" * PIECE)
    held = []
    for _ in range(scene.many(40)):
        each = opened(scene)
        with contextlib.suppress(OSError):
            each.send(b"4000")
            for _ in range(scene.many(900)):
                each.socket.sendall(piece)
        held.append(each)
    time.sleep(min(1.0, scene.seconds))
    return f"{len(held)} opened"


@attack("sockets: tiny pieces")
def tiny_pieces(scene: Scene) -> str:
    """Announce 4,096 pieces of a few bytes over 100 sockets, again and again."""
    held = [opened(scene) for _ in range(scene.many(100))]
    pieces = frame(b"4096") + frame(b'{"t"') + frame(b" ") * 4094 + frame(b":1}")
    for _ in scene.repeatedly():
        for each in held:
            with contextlib.suppress(OSError):
                each.socket.sendall(pieces)
    return f"{len(held)} opened"


@attack("sockets: fragments of a frame")
def fragments(scene: Scene) -> str:
    """Send a message in 200,000 fragments of one byte over 8 sockets."""
    first = struct.pack(">BB4x", 0x01, 0x81) + b"{"
    return flood(scene, first + (struct.pack(">BB4x", 0x00, 0x81) + b" ") * 200_000)


@attack("sockets: array of digits", in_workers=True)
def array_of_digits(scene: Scene) -> str:
    """Put an array of 7 million digits, again and again."""
    return put_again(scene, b"[%b1]" % (b"1," * scene.many(LONGEST // 2)))


@attack("sockets: array of empty arrays")
def array_of_arrays(scene: Scene) -> str:
    """Put an array of 5 million empty arrays, again and again."""
    return put_again(scene, b"[%b[]]" % (b"[]," * scene.many(LONGEST // 3)))


@attack("sockets: object of digits")
def object_of_digits(scene: Scene) -> str:
    """Put an object of a million members, again and again."""
    members = (b'"k%07d":1' % number for number in range(scene.many(1_000_000)))
    return put_again(scene, b"{%b}" % b",".join(members))


@attack("sockets: array of 300 KB")
def short_arrays(scene: Scene) -> str:
    """Put an array of 150,000 digits, which is not a long message, over 20 sockets."""
    digits = "1," * scene.many(150_000) + "1"
    return request_again(scene, 20, request(1, "p", f'{{"p":"/w","d":[{digits}]}}'))


@attack("sockets: refused array of 300 KB")
def refused_arrays(scene: Scene) -> str:
    """Send statistics of 150,000 digits, which have no effect, over 20 sockets."""
    digits = "1," * scene.many(150_000) + "1"
    return request_again(scene, 20, request(1, "s", f'{{"c":[{digits}]}}'))


def request_again(scene: Scene, sockets: int, message: bytes) -> str:
    """Send one message over each of some sockets at the same time, again and again."""
    held = [opened(scene) for _ in range(scene.many(sockets))]
    count = 0
    for _ in scene.repeatedly():
        for each in held:
            send(each, message)
        for each in held:
            answer(each)
        count += len(held)
    return f"{count} answered"


def put_again(scene: Scene, value: bytes) -> str:
    """Put a value over a socket, again and again."""
    client = opened(scene)
    message = request(1, "p", '{"p":"/w","d":#}').replace(b"#", value)
    count = 0
    for _ in scene.repeatedly():
        ask(client, message)
        count += 1
    return f"{count} answered"


@attack("sockets: merge of 90,000 increments")
def increments(scene: Scene) -> str:
    """Merge 90,000 increments, again and again."""
    client = opened(scene)
    many = scene.many(90_000)
    members = encode({f"k{number}": {".sv": {"increment": 1}} for number in range(many)})
    message = request(1, "m", '{"p":"/w","d":#}').replace(b"#", members)
    for _ in scene.repeatedly():
        ask(client, message)
    return "merged"


@attack("sockets: 28 MiB, first listen", load_large, in_workers=True)
def first_listen(scene: Scene) -> str:
    """Listen to 28 MiB over 4 sockets, and end the listen, again and again."""
    held = [opened(scene) for _ in range(scene.many(4))]
    for _ in scene.repeatedly():
        for each in held:
            send(each, request(1, "q", '{"p":"/large","h":""}'))
        for each in held:
            answer(each)
            ask(each, request(2, "n", '{"p":"/large"}'), 2)
    return f"{len(held)} opened"


@attack("sockets: 28 MiB, get", load_large)
def get(scene: Scene) -> str:
    """Get 28 MiB over 4 sockets, again and again."""
    held = [opened(scene) for _ in range(scene.many(4))]
    for _ in scene.repeatedly():
        for each in held:
            send(each, request(1, "g", '{"p":"/large"}'))
        for each in held:
            answer(each)
    return f"{len(held)} opened"


@attack("sockets: 28 MiB, listen with hash", load_large)
def hash_listen(scene: Scene) -> str:
    """Listen to 28 MiB with a hash that does not fit, again and again."""
    client = opened(scene)
    for _ in scene.repeatedly():
        ask(client, request(1, "q", '{"p":"/large","h":"AAAAAAAAAAAAAAAAAAAAAAAAAAA="}'))
        ask(client, request(2, "n", '{"p":"/large"}'), 2)
    return "answered"


@attack("sockets: 28 MiB, compare and set", load_large, in_workers=True)
def compare_and_set(scene: Scene) -> str:
    """Put where 28 MiB are, on the condition of a hash that does not fit, again and again."""
    return compare_again(scene)


@attack("sockets: digits, compare and set", load_digits)
def compare_digits(scene: Scene) -> str:
    """Put where 12 million digits are, on the condition of a hash that does not fit."""
    return compare_again(scene)


def compare_again(scene: Scene) -> str:
    """Put on the condition of a hash that does not fit, again and again."""
    client, count = opened(scene), 0
    for _ in scene.repeatedly():
        put = '{"p":"/large","d":1,"h":"AAAAAAAAAAAAAAAAAAAAAAAAAAA="}'
        ask(client, request(1, "p", put))
        count += 1
    return f"{count} answered"


@attack("sockets: writes for the end", in_workers=True)
def writes_for_the_end(scene: Scene) -> str:
    """Keep 100 writes for the end over each of 200 sockets, and close all at once."""
    held = [opened(scene) for _ in range(scene.many(200))]
    for number, each in enumerate(held):
        body = '{"p":"/end/%d/%d","d":{".sv":{"increment":1}}}'
        batch = b"".join(frame(request(n, "o", body % (number, n))) for n in range(100))
        each.socket.sendall(batch)
    for each in held:
        answer(each, 99)
    for each in held:
        each.close()
    return f"{len(held)} closed"


@attack("sockets: large writes for the end")
def large_for_the_end(scene: Scene) -> str:
    """Keep 250 KB for the end over each of 200 sockets, one after the other, and close them."""
    value = "x" * 250_000
    for number in range(scene.many(200)):
        each = opened(scene)
        ask(each, request(1, "o", f'{{"p":"/end/{number}","d":"{value}"}}'))
        each.close()
    return "closed"


@attack("sockets: wide writes for the end")
def wide_for_the_end(scene: Scene) -> str:
    """Keep 2,000 members for the end over each of 100 sockets; close all at once."""
    held = [opened(scene) for _ in range(scene.many(100))]
    for number, each in enumerate(held):
        members = {f"k{n}": {".sv": "timestamp"} for n in range(1000)}
        ask(each, request(1, "o", json.dumps({"p": f"/end/{number}", "d": members})))
    for each in held:
        each.close()
    return f"{len(held)} closed"


@attack("sockets: 1,000 listens over 100", in_workers=True)
def many_listens(scene: Scene) -> str:
    """Listen at 1,000 paths over each of 100 sockets; one write touches all; then leave."""
    held = [opened(scene) for _ in range(scene.many(100))]
    many = scene.many(1000)
    batch = b"".join(frame(request(n, "q", f'{{"p":"/w/{n}","h":""}}')) for n in range(many))
    for each in held:
        each.socket.sendall(batch)
        answer(each, many - 1)
    client = scene.client()
    for number in scene.repeatedly():
        client.ask("PUT", "/w.json?print=silent", {str(n): number for n in range(many)})
    return f"{len(held) * many:,} listens"


@attack("sockets: 1,000 distinct queries")
def many_queries(scene: Scene) -> str:
    """Listen by 1,000 distinct queries without limit over a socket, of 2,000 children; write."""
    client = scene.client()
    client.ask("PUT", "/q.json?print=silent", {f"k{n}": n for n in range(scene.many(2000))})
    each = opened(scene)
    for number in range(scene.many(1000)):
        ask(each, listen_to(number, f"a{number}", number + 1), number)
    for number in scene.repeatedly():
        client.ask("PATCH", "/q.json?print=silent", {f"k{n}": number for n in range(1000)})
        with contextlib.suppress(TimeoutError):
            each.socket.settimeout(0.2)
            each.socket.recv(1 << 20)
    return "listened"


@attack("sockets: 2,000 come and go")
def come_and_go(scene: Scene) -> str:
    """Open 2,000 sockets one after the other, and close each."""
    for _ in range(scene.many(2000)):
        opened(scene).close()
    return "gone"


@attack("sockets: 1,000 listen to one path")
def one_path(scene: Scene) -> str:
    """Write 10 KB again and again where 1,000 sockets listen that read nothing."""
    held = [opened(scene) for _ in range(scene.many(1000))]
    for each in held:
        ask(each, request(1, "q", '{"p":"/hot","h":""}'))
    client = scene.client()
    for _ in scene.repeatedly():
        client.ask("PUT", "/hot.json?print=silent", "x" * 10_000)
    return f"{len(held)} opened"


@attack("sockets: auth again and again")
def auth_again(scene: Scene) -> str:
    """Sign in and out where a socket has 1,000 listens, each of which is judged again."""
    client = opened(scene)
    for number in range(scene.many(1000)):
        ask(client, request(number, "q", f'{{"p":"/w/{number}","h":""}}'), number)
    batch = (
        frame(request(1, "gauth", '{"cred":"owner"}')) + frame(request(2, "unauth", "{}"))
    ) * 50
    for _ in scene.repeatedly():
        client.socket.sendall(batch + frame(request(1001, "g", '{"p":"/leaf"}')))
        answer(client, 1001)
    return "judged"


@attack("long polling: starts")
def long_polling(scene: Scene) -> str:
    """Begin long polling, which is not offered, again and again over 50 connections."""
    clients = [scene.client() for _ in range(scene.many(50))]
    count = 0
    for number in scene.repeatedly():
        for each in clients:
            each.ask("GET", f"/.lp?start=t&ser={number}&cb={number}&v=5&x={'y' * 10_000}")
            count += 1
    return f"{count:,} answered"


@attack("at once: 2,000 sockets closed")
def closed_at_once(scene: Scene) -> str:
    """Close 2,000 sockets with a listen each at the same time."""
    held: list[WebSocket] = []
    with contextlib.suppress(OSError):
        for number in range(scene.many(2000)):
            held.append(opened(scene))
            ask(held[-1], request(1, "q", f'{{"p":"/s/{number}","h":""}}'))
    for each in held:
        each.close()
    return f"{len(held)} closed"


@attack("at once: 1,000 listens closed")
def listens_closed_at_once(scene: Scene) -> str:
    """Close 20 sockets with 1,000 listens each, one after the other."""
    many = scene.many(1000)
    batch = b"".join(frame(request(n, "q", f'{{"p":"/w/{n}","h":""}}')) for n in range(many))
    for _ in range(scene.many(20)):
        each = opened(scene)
        each.socket.sendall(batch)
        answer(each, many - 1)
        each.close()
    return "closed"


@attack("sockets: 120 long messages at once")
def long_messages(scene: Scene) -> str:
    """Send a put of 15 MB over each of 120 sockets, all at the same time, and read no answer."""
    held = [opened(scene) for _ in range(scene.many(120))]
    count = scene.many(LONGEST // PIECE)
    begin = b'{"t":"d","d":{"r":1,"a":"p","b":{"p":"/w","d":["'
    pieces = [b"%d" % (count + 2), begin, *[b"x" * PIECE] * count, b'"]}}}']
    for piece in map(frame, pieces):
        for each in held:
            with contextlib.suppress(OSError):
                each.socket.sendall(piece)
    time.sleep(min(1.0, scene.seconds))
    return f"{len(held)} opened"
