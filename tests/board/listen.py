"""Listens to a stream as libraries for the ESP32 do: line by line, off the socket.

    python listen.py HOST PORT TARGET CHANGES KEEP_ALIVES

It knows no chunks, and waits at most five seconds for the next line. It prints each event on one
line, until it has received so many changes, and then so many keep-alives. It runs under MicroPython
and under CPython.
"""

import socket
import sys

PATIENCE_S = 5


def listen(host: str, port: str, target: str, changes: int, keep_alives: int) -> None:
    connection = socket.socket()
    connection.settimeout(PATIENCE_S)
    connection.connect(socket.getaddrinfo(host, int(port))[0][-1])
    lines = connection.makefile("rb", 0)
    head = "GET {} HTTP/1.1\r\nHost: {}:{}\r\nAccept: text/event-stream\r\n\r\n"
    connection.send(head.format(target, host, port).encode())
    status = lines.readline()
    if not status.startswith(b"HTTP/1.1 200 "):
        raise ValueError(status)
    while lines.readline() != b"\r\n":
        pass
    while changes or keep_alives:
        kind = take(lines.readline(), b"event: ")
        data = take(lines.readline(), b"data: ")
        take(lines.readline(), b"")
        if kind != "keep-alive":
            changes -= 1
        elif not changes:
            keep_alives -= 1
        print(kind, data)


def take(line: bytes, start: bytes) -> str:
    """Return the rest of a line that has to begin, and to end, in one way."""
    if not line.startswith(start) or not line.endswith(b"\n") or (not start and line != b"\n"):
        raise ValueError(line)
    return line[len(start) : -1].decode()


listen(sys.argv[1], sys.argv[2], sys.argv[3], int(sys.argv[4]), int(sys.argv[5]))
