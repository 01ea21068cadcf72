"""Attacks by streams: many, wide, with long queries, and left."""

from __future__ import annotations

import contextlib
import json
import select
import socket
import time
from urllib.parse import quote, urlsplit

from attacked import Client, Scene
from attacks import attack, statuses
from attacks_reads import load_large, load_small
from listeners import dial
from sessions import encode


def opened(scene: Scene, target: str, *, headers: str = "", reads: bool = True) -> socket.socket:
    """Open a stream and receive the first bytes."""
    stream = dial(scene.url)
    stream.settimeout(60)
    host = urlsplit(scene.url).netloc
    head = f"GET {target} HTTP/1.1\r\nHost: {host}\r\nAccept: text/event-stream\r\n{headers}\r\n"
    stream.sendall(head.encode())
    if b" 200 " not in stream.recv(65_536 if reads else 20)[:20]:
        raise ConnectionError("A stream was refused.")
    return stream


def open_many(scene: Scene, targets: list[str], headers: str = "") -> list[socket.socket]:
    """Open as many streams as are allowed, at most one for each target."""
    held: list[socket.socket] = []
    with contextlib.suppress(OSError):
        for target in targets:
            held.append(opened(scene, target, headers=headers))  # noqa: PERF401 -- until one fails
    return held


def begin_log(scene: Scene) -> tuple[Client, socket.socket]:
    """Return who has written a value, and a stream of it that can be resumed."""
    client = scene.client()
    client.ask("PUT", "/log.json?print=silent", 1)
    return client, opened(scene, "/log.json?resume=true", reads=False)


def first_id(stream: socket.socket) -> str:
    """Return the first position that a stream says."""
    return stream.recv(65_536).partition(b"id: ")[2].partition(b"\n")[0].decode()


def read_all(held: list[socket.socket], seconds: float) -> int:
    """Receive what comes over streams for some seconds; return the bytes."""
    poll, received = select.epoll(), 0
    by_number = {each.fileno(): each for each in held}
    for number in by_number:
        poll.register(number, select.EPOLLIN)
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        for number, _ in poll.poll(0.1):
            more = len(by_number[number].recv(1 << 20))
            received += more
            if not more:
                poll.unregister(number)
    return received


def load_20_000(scene: Scene) -> None:
    """Load 20,000 children."""
    load_small(20_000, scene)


def load_2_000(scene: Scene) -> None:
    """Load 2,000 children."""
    load_small(2000, scene)


@attack("streams: 300 unlimited queries", load_20_000, in_workers=True)
def unlimited_queries(scene: Scene) -> str:
    """Open 300 streams of distinct queries that select all of 20,000 children, then leave."""
    targets = [f"/many.json?orderBy=%22n%22&startAt=-{number}" for number in range(scene.many(300))]
    held = open_many(scene, targets)
    return f"{len(held)} opened, {read_all(held, scene.seconds) / 1e6:.0f} MB"


@attack("streams: 1,000 unlimited queries", load_2_000)
def more_queries(scene: Scene) -> str:
    """Open 1,000 streams of distinct queries over 2,000 children; write; then leave."""
    count = scene.many(1000)
    held = open_many(
        scene, [f"/many.json?orderBy=%22$key%22&endAt=%22x{n}%22" for n in range(count)]
    )
    client = scene.client()
    for number in range(scene.many(100)):
        client.ask("PATCH", "/many.json?print=silent", {f"k{n:07}/n": number for n in range(10)})
    return f"{len(held)} opened, {read_all(held, scene.seconds) / 1e6:.0f} MB"


@attack("streams: moves in 500 windows", load_20_000)
def moves(scene: Scene) -> str:
    """Listen to the first 100 by 500 queries, while one PATCH moves 1,000 children in all."""
    count = scene.many(500)
    targets = [f"/many.json?orderBy=%22n%22&limitToFirst=100&startAt=-{n}" for n in range(count)]
    held = open_many(scene, targets)
    client, received = scene.client(), 0
    for number in scene.repeatedly():
        body = {f"k{n:07}/n": (n * 31 + number) % 5000 for n in range(scene.many(1000))}
        client.ask("PATCH", "/many.json?print=silent", body)
        received += read_all(held, 0.3)
    return f"{len(held)} opened, {received / 1e6:.0f} MB"


@attack("streams: where in 200 windows", load_20_000)
def where_windows(scene: Scene) -> str:
    """Listen by 200 distinct `where` of 1,000 values, while a PATCH changes 1,000 children."""
    targets = []
    for number in range(scene.many(200)):
        listed = list(range(number, number + 1000))
        targets.append(f"/many.json?where={quote(json.dumps({'n': {'in': listed}}))}")
    held = open_many(scene, targets)
    client = scene.client()
    for number in scene.repeatedly():
        body = {f"k{n:07}/n": (n * 31 + number) % 5000 for n in range(scene.many(1000))}
        client.ask("PATCH", "/many.json?print=silent", body)
        read_all(held, 0.3)
    return f"{len(held)} opened"


@attack("streams: large PATCH in 30 windows", load_20_000)
def large_patch(scene: Scene) -> str:
    """Listen by 30 queries without an index, while a PATCH sets 20,000 deep members at once."""
    targets = [
        f"/many.json?orderBy=%22a/b/c%22&limitToLast={100 + number}"
        for number in range(scene.many(30))
    ]
    held = open_many(scene, targets)
    client, found = scene.client(), []
    keys = [f"k{n:07}" for n in range(scene.many(20_000))]
    for number in scene.repeatedly():
        ranks = [(at * 31 + number) % 5000 for at in range(len(keys))]
        members = {key: {"a": {"b": {"c": rank}}} for key, rank in zip(keys, ranks, strict=True)}
        places = {f"{key}/a/b/c": rank + 1 for key, rank in zip(keys, ranks, strict=True)}
        for body in (members, places):
            found.append(client.ask("PATCH", "/many.json?print=silent", body)[0])
            read_all(held, 0.3)
    return f"{len(held)} opened, {statuses(found)}"


@attack("streams: 1,000 of one path", in_workers=True)
def one_path(scene: Scene) -> str:
    """Write 10 KB again and again where 1,000 streams listen."""
    held = open_many(scene, ["/hot.json"] * scene.many(1000))
    client, received = scene.client(), 0
    for _ in scene.repeatedly():
        client.ask("PUT", "/hot.json?print=silent", "x" * 10_000)
        received += read_all(held, 0.2)
    return f"{len(held)} opened, {received / 1e6:.0f} MB"


@attack("streams: 1,000 stalled", in_workers=True)
def stalled(scene: Scene) -> str:
    """Write 100 KB again and again where 1,000 streams listen that read nothing."""
    held = open_many(scene, ["/hot.json"] * scene.many(1000))
    client = scene.client()
    for _ in scene.repeatedly():
        client.ask("PUT", "/hot.json?print=silent", "x" * 100_000)
    return f"{len(held)} opened"


@attack("streams: stalled, distinct paths")
def stalled_distinct(scene: Scene) -> str:
    """Write a megabyte in one PATCH where 500 streams of distinct parts read nothing."""
    count = scene.many(500)
    held = open_many(scene, [f"/hot/{number}.json" for number in range(count)])
    client = scene.client()
    for _ in scene.repeatedly():
        client.ask("PATCH", "/hot.json?print=silent", {str(n): "x" * 20_000 for n in range(count)})
    return f"{len(held)} opened"


@attack("streams: 20 of 28 MiB", load_large)
def large_streams(scene: Scene) -> str:
    """Open 20 streams of a value of 28 MiB, which read slowly."""
    held = [opened(scene, "/large.json") for _ in range(scene.many(20))]
    return f"{len(held)} opened, {read_all(held[:5], scene.seconds) / 1e6:.0f} MB"


@attack("streams: 50 MB replaced", load_large)
def large_events(scene: Scene) -> str:
    """Replace 16 MB again and again where 20 streams listen above, at and below."""
    targets = ["/.json", "/large.json", "/large/x.json", "/large/x/1.json"]
    scene.client().ask("DELETE", "/large.json?print=silent")
    held = [opened(scene, targets[number % 4]) for number in range(scene.many(20))]
    client = scene.client()
    body = encode({"x": [{"n": number} for number in range(scene.many(1_000_000))]})
    for _ in scene.repeatedly():
        client.ask("PUT", "/large.json?print=silent&timeout=30s", body)
        read_all(held, min(1.0, scene.seconds))
    return f"{len(held)} opened"


@attack("streams: 2,000 come and go")
def come_and_go(scene: Scene) -> str:
    """Open 2,000 streams of distinct long queries one after the other, and close each."""
    bound = "x" * 20_000
    for number in range(scene.many(2000)):
        opened(scene, f"/q.json?orderBy=%22$key%22&startAt=%22{number}{bound}%22").close()
    return "gone"


@attack("streams: long queries held")
def long_queries(scene: Scene) -> str:
    """Open 1,000 streams whose queries have bounds of 40 KB, and leave them all at once."""
    bound = "x" * 40_000
    count = scene.many(1000)
    held = open_many(
        scene, [f"/q.json?orderBy=%22$key%22&startAt=%22{n}{bound}%22" for n in range(count)]
    )
    return f"{len(held)} opened"


@attack("streams: writes at the end")
def writes_at_the_end(scene: Scene) -> str:
    """Leave 300 streams at once that each have 100 places to be written then."""
    count = scene.many(300)
    for _ in range(3):
        targets = []
        for number in range(count):
            members = json.dumps({f"p{n}": {".sv": {"increment": 1}} for n in range(100)})
            targets.append(f"/end/{number % 50}.json?onDisconnect={quote(members)}")
        held = open_many(scene, targets)
        for each in held:
            each.close()
    return f"{len(held)} opened"


@attack("streams: resumed, 1,000 writes")
def resumed(scene: Scene) -> str:
    """Resume 100 streams from long ago, again and again."""
    client, stream = begin_log(scene)
    first = first_id(stream)
    for number in range(scene.many(900)):
        client.ask("PUT", f"/log/{number % 10}.json?print=silent", "x" * 15_000)
    received, targets = 0, ["/log.json?resume=true"] * scene.many(100)
    for _ in scene.repeatedly():
        held = open_many(scene, targets, f"Last-Event-ID: {first}\r\n")
        received += read_all(held, 0.5)
        for each in held:
            each.close()
    return f"{received / 1e6:.0f} MB, from {first}"


@attack("at once: 3,500 streams closed", in_workers=True)
def closed_at_once(scene: Scene) -> str:
    """Close 3,500 streams of distinct paths at the same time."""
    held = open_many(scene, [f"/s/{number}.json" for number in range(scene.many(3500))])
    for each in held:
        each.close()
    return f"{len(held)} closed"


@attack("at once: 1,000 queries closed")
def queries_closed_at_once(scene: Scene) -> str:
    """Close 1,000 streams of distinct queries at the same time."""
    targets = [f"/q.json?orderBy=%22$key%22&endAt=%22x{n}%22" for n in range(scene.many(1000))]
    held = open_many(scene, targets)
    for each in held:
        each.close()
    return f"{len(held)} closed"


@attack("streams: resumed, from 500 positions")
def resumed_apart(scene: Scene) -> str:
    """Resume 500 streams, each from a position of its own, and read nothing that they missed."""
    client, stream = begin_log(scene)
    stream.setblocking(False)
    received = b""
    for number in range(scene.many(900)):
        client.ask("PUT", f"/log/{number % 10}.json?print=silent", "x" * 15_000)
        with contextlib.suppress(BlockingIOError):
            received += stream.recv(1 << 20)
    ids = [line[4:].decode() for line in received.split(b"\n") if line.startswith(b"id: ")]
    held = []
    for each in ids[: scene.many(500)]:
        headers = f"Last-Event-ID: {each}\r\n"
        held.append(opened(scene, "/log.json?resume=true", headers=headers, reads=False))
    time.sleep(min(2.0, scene.seconds))
    return f"{len(held)} opened"


@attack("streams: resumed, wide patches")
def resumed_wide(scene: Scene) -> str:
    """Resume 20 streams of a leaf after 240 PATCHes of 5,000 places elsewhere, again and again."""
    client, stream = begin_log(scene)
    first = first_id(stream)
    for number in range(scene.many(240)):
        members = {f"{number % 256:02x}{key:03x}": 1 for key in range(scene.many(5000))}
        client.ask("PATCH", "/wide.json?print=silent", members)
    received, targets = 0, ["/log.json?resume=true"] * scene.many(20)
    for _ in scene.repeatedly():
        held = open_many(scene, targets, f"Last-Event-ID: {first}\r\n")
        received += read_all(held, 1.0)
        for each in held:
            each.close()
    return f"{received / 1e3:.0f} KB, from {first}"
