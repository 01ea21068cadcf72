"""The memory of idle WebSockets of the real-time protocol, in plain and over TLS, and their events.

    .venv/bin/python bench/sockets.py [--sockets N] [--seconds S]

N sockets are opened, of clients that do nothing, or that listen to one path each; what each adds to
the resident memory of the daemon is printed. `aim` is the most that an idle socket should take.
At the end N sockets listen to one path that is written for some seconds.
"""

from __future__ import annotations

import argparse
import contextlib
import tempfile
from collections.abc import Iterator

from realtime import CONFIG, WebSocket, event_bytes, listen, request
from servers import serve_treedb
from streams import WARM, measure_crowd, prepare, resident_bytes, show_crowd

AIMS_KIB = {"plain": 16, "tls": 60}


@contextlib.contextmanager
def connected(base: str, count: int, *, listens: bool) -> Iterator[None]:
    """Keep sockets open within a block."""
    opened: list[WebSocket] = []
    try:
        for number in range(count):
            each = WebSocket(base)
            opened.append(each)
            if listens:
                each.send(request(1, "q", f'{{"p":"fan/k{number}","h":""}}'))
                each.receive(b'"r":1')
        yield
    finally:
        for each in opened:
            each.close()


def measure(count: int, *, secure: bool, listens: bool) -> float:
    """Return the bytes that each of `count` idle sockets adds to a daemon."""
    with (
        tempfile.TemporaryDirectory() as folder,
        serve_treedb(folder, CONFIG, secure=secure) as base,
        connected(base, min(WARM, count), listens=listens),
    ):
        before = resident_bytes(folder)
        with connected(base, count, listens=listens):
            return (resident_bytes(folder) - before) / count


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sockets", type=int, default=10_000)
    parser.add_argument("--seconds", type=float, default=5, help="of the events")
    wanted = parser.parse_args()
    count = wanted.sockets
    prepare()
    for kind, aim in AIMS_KIB.items():
        for listens in (False, True):
            each = measure(count, secure=kind == "tls", listens=listens) / 1024
            name = f"an idle socket{' with a listen' if listens else ''}, {kind}"
            print(f"{name}: {each:.1f} KiB (aim {aim})", flush=True)
    found = measure_crowd(
        count,
        wanted.seconds,
        open_one=listen,
        event_bytes=event_bytes("fan/one"),
        config=CONFIG,
    )
    show_crowd(f"{count:,} sockets that listen", found)


if __name__ == "__main__":
    main()
