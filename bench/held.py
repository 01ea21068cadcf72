"""What one caller can make a daemon hold, and what is left of it when the caller has gone.

    .venv/bin/python bench/held.py [--only NAME] [--share N]

Each attack runs against a daemon of its own, from one address. Printed is how many MiB the daemon
has more than before it: while the connections of the attack are open, and after they have closed.
With a share each attack is so many times smaller.
"""

from __future__ import annotations

import argparse
import contextlib
import socket
import tempfile
import time
from collections.abc import Callable, Iterator

from listeners import dial
from realtime import CONFIG, WebSocket, request
from servers import put, serve_treedb
from streams import prepare, resident_bytes

MIB = 1 << 20
HEAD_BYTES = 62_000
LINE_BYTES = 90_000
BOUND_BYTES = 300_000
CHILDREN = 20_000
SETTLE_S = 3.0
"""After this time a daemon has swept its connections."""

share = 1
Attack = Callable[[str], Iterator[None]]


def long_head(path: str, host: str, line_bytes: int = LINE_BYTES, *more: str) -> bytes:
    """Return a head near the limits: of a GET with a long query and many header bytes."""
    query = "x" * (line_bytes - len(path) - 20)
    fields = [f"X-Filler-{number}: {'f' * 740}" for number in range(HEAD_BYTES // 760)]
    lines = [f"GET {path}?filler={query} HTTP/1.1", f"Host: {host}", *more, *fields]
    return ("\r\n".join(lines) + "\r\n\r\n").encode()


def receive_some(each: socket.socket) -> None:
    """Receive the beginning of an answer."""
    each.settimeout(10)
    with contextlib.suppress(OSError):
        each.recv(65_536)


def idle_connections(base: str) -> Iterator[None]:
    """1,000 connections that have sent one long request each, and are idle."""
    yield from _connections(base, 1000, long_head("/none.json", base.partition("//")[2]))


def refused_connections(base: str) -> Iterator[None]:
    """1,000 connections whose long request is refused."""
    yield from _connections(base, 1000, long_head("/none.json", "elsewhere.example"))


def unfinished_heads(base: str) -> Iterator[None]:
    """1,000 connections that stop before the end of a long head."""
    head = long_head("/none.json", base.partition("//")[2])
    yield from _connections(base, 1000, head[:-4], answered=False)


def unfinished_bodies(base: str) -> Iterator[None]:
    """1,000 connections that stop after a long head, before the body that it announces."""
    head = long_head("/none.json", base.partition("//")[2], LINE_BYTES, "Content-Length: 9")
    yield from _connections(base, 1000, head.replace(b"GET ", b"PUT ", 1), answered=False)


def _connections(base: str, count: int, sent: bytes, *, answered: bool = True) -> Iterator[None]:
    opened = []
    for _ in range(count // share):
        each = dial(base)
        opened.append(each)
        with contextlib.suppress(OSError):
            each.sendall(sent)
        if answered:
            receive_some(each)
    yield
    for each in opened:
        each.close()


def sockets_with_heads(base: str) -> Iterator[None]:
    """1,000 WebSockets that were opened by a long head."""
    host = base.partition("//")[2]
    upgrade = (
        "Connection: Upgrade",
        "Upgrade: websocket",
        "Sec-WebSocket-Version: 13",
        "Sec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==",
    )
    yield from _connections(base, 1000, long_head("/.ws", host, LINE_BYTES, *upgrade))


def streams_with_heads(base: str) -> Iterator[None]:
    """1,000 streams that were opened by a long head."""
    host = base.partition("//")[2]
    yield from _connections(
        base, 1000, long_head("/none.json", host, LINE_BYTES, "Accept: text/event-stream")
    )


def listens_in_turn(base: str) -> Iterator[None]:
    """960 listens with a bound of 300 KB, on one WebSocket after the other."""
    last = None
    for number in range(960 // share):
        if last is not None:
            last.close()
        last = _listen(base, number)
    yield
    if last is not None:
        last.close()


def listens_at_once(base: str) -> Iterator[None]:
    """100 listens with a bound of 300 KB, each on its own WebSocket."""
    opened = [_listen(base, number) for number in range(100 // share)]
    yield
    for each in opened:
        each.close()


def _listen(base: str, number: int) -> WebSocket:
    opened = WebSocket(base)
    bound = f"{number:06}" + "b" * BOUND_BYTES
    opened.socket.settimeout(10)
    opened.send_in_pieces(
        request(
            1, "q", f'{{"p":"/none","q":{{"i":"name","sp":"{bound}"}},"t":1,"h":"{"0" * 27}="}}'
        )
    )
    with contextlib.suppress(OSError):
        opened.receive(b'"r":1')
    return opened


def streams_of_queries(base: str) -> Iterator[None]:
    """500 streams of a different query each, without a limit, that select few of many children."""
    yield from _streams(
        base, lambda n: f"orderBy=%22$key%22&startAt=%22k{CHILDREN - 1 - n % 9}x{n}%22"
    )


def streams_of_wide_queries(base: str) -> Iterator[None]:
    """300 streams of a different query each, without a limit, that select all children."""
    yield from _streams(base, lambda n: f"orderBy=%22$key%22&startAt=%22a{n}%22", 300)


def streams_with_high_limits(base: str) -> Iterator[None]:
    """300 streams of a different query each, with a limit above the number of children."""
    yield from _streams(base, lambda n: f"orderBy=%22$key%22&limitToFirst={10**6 + n}", 300)


def streams_by_value(base: str) -> Iterator[None]:
    """300 streams of a different query each, without a limit, ordered by a child."""
    yield from _streams(base, lambda n: f"orderBy=%22f{n}%22", 300)


def _streams(base: str, query: Callable[[int], str], count: int = 500) -> Iterator[None]:
    host = base.partition("//")[2]
    opened = []
    for number in range(count // share):
        each = dial(base)
        opened.append(each)
        each.sendall(
            f"GET /many.json?{query(number)} HTTP/1.1\r\nHost: {host}\r\n"
            "Accept: text/event-stream\r\n\r\n".encode()
        )
        each.settimeout(10)
        with contextlib.suppress(OSError):
            received = b""
            while b"\n\n" not in received and len(received) < 8 * MIB:
                more = each.recv(1 << 20)
                if not more:
                    break
                received = received[-2:] + more
    yield
    for each in opened:
        each.close()


ATTACKS: dict[str, Attack] = {
    each.__name__: each
    for each in (
        idle_connections,
        refused_connections,
        unfinished_heads,
        unfinished_bodies,
        sockets_with_heads,
        streams_with_heads,
        listens_in_turn,
        listens_at_once,
        streams_of_queries,
        streams_of_wide_queries,
        streams_with_high_limits,
        streams_by_value,
    )
}


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", choices=ATTACKS)
    parser.add_argument("--share", type=int, default=1)
    given = parser.parse_args()
    only = given.only
    global share  # noqa: PLW0603
    share = given.share
    prepare()
    for name, attack in ATTACKS.items():
        if only in (None, name):
            measure(name, attack)


def measure(name: str, attack: Attack) -> None:
    """Print what one attack makes a daemon hold."""
    with tempfile.TemporaryDirectory() as folder, serve_treedb(folder, CONFIG) as base:
        children = ",".join(f'"k{number}":{number}' for number in range(CHILDREN))
        put(f"{base}/many.json", f"{{{children}}}")
        with contextlib.suppress(OSError):
            for _ in _connections(base, 20, long_head("/none.json", base.partition("//")[2])):
                pass
        time.sleep(1)
        before = resident_bytes(folder)
        began = time.monotonic()
        for _ in attack(base):
            time.sleep(1)
            held = resident_bytes(folder) - before
            took = time.monotonic() - began
        time.sleep(SETTLE_S)
        left = resident_bytes(folder) - before
    print(
        f"{name:26} {held / MIB:8.1f} MiB held, {left / MIB:8.1f} MiB left ({took:.1f} s)",
        flush=True,
    )


if __name__ == "__main__":
    main()
