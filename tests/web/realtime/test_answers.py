"""The answers to writes of one batch: together, in their order, each after its own events."""

from __future__ import annotations

import json
import pathlib

from tests.web.test_freed_at_the_end import open_socket, send
from tests.web.tree_server import TreeServer
from tests.websocket_frames import TEXT, print_frame


def put_frame(number: int, path: str, value: object) -> bytes:
    request = {"t": "d", "d": {"r": number, "a": "p", "b": {"p": path, "d": value}}}
    return print_frame(TEXT, json.dumps(request).encode())


def test_the_answers_to_the_writes_of_a_batch_are_one_write(tmp_path: pathlib.Path) -> None:
    server = TreeServer(tmp_path)
    peers = [open_socket(server) for _ in range(2)]
    for peer in peers:
        peer.transport.clear()
        peer.transport.writes = 0
    for number in range(1, 6):
        for peer in peers:
            peer.send(put_frame(number, "/a", number))
    server.clock.advance(0)
    for peer in peers:
        received = peer.transport.value()
        places = [received.find(b'"r":%d,"b":{"s":"ok"' % number) for number in range(1, 6)]
        assert places == sorted(places)
        assert places[0] > 0
        assert peer.transport.writes <= 2  # that of the first batch, which began at once


def test_each_answer_follows_its_own_event_and_precedes_the_next(tmp_path: pathlib.Path) -> None:
    server = TreeServer(tmp_path)
    peer = open_socket(server)
    send(server, peer, 1, {"p": "a", "h": ""})
    peer.transport.clear()
    for number in range(2, 7):
        peer.send(put_frame(number, "/a", f"v{number}"))
    server.clock.advance(0)
    received = peer.transport.value()
    found = [
        place
        for number in range(2, 7)
        for place in (received.find(b'"v%d"' % number), received.find(b'"r":%d,' % number))
    ]
    assert found == sorted(found)
    assert found[0] > 0
