"""Listens to a stream as libraries for the ESP32 do: line by line, off the socket.

    python listen.py HOST PORT TARGET CHANGES KEEP_ALIVES [AUTHORITY]

It knows no chunks, and waits at most five seconds for the next line. It prints each event on one
line, until it has received so many changes, and then so many keep-alives. With the file of an
authority, in the form DER, it opens its connection with TLS. It runs under MicroPython and under
CPython.
"""

import socket
import sys

PATIENCE_S = 5
IS_BOARD = sys.implementation.name == "micropython"
tls = __import__("tls" if IS_BOARD else "ssl")


def connect(host: str, port: str, authority: str) -> socket.SocketIO:
    """Return a connection as a file; `authority` is empty without TLS."""
    connection = socket.socket()
    connection.settimeout(PATIENCE_S)
    connection.connect(socket.getaddrinfo(host, int(port), socket.AF_INET)[0][-1])
    if not authority:
        return connection.makefile("rwb", 0)
    context = tls.SSLContext(tls.PROTOCOL_TLS_CLIENT)
    context.verify_mode = tls.CERT_REQUIRED
    with open(authority, "rb") as file:
        trusted = file.read()
    if IS_BOARD:
        context.load_verify_locations(trusted)
    else:
        context.load_verify_locations(cadata=trusted)
    secure = context.wrap_socket(connection, server_hostname=host)
    lines: socket.SocketIO = secure if IS_BOARD else secure.makefile("rwb", 0)
    return lines


def listen(host: str, port: str, target: str, *others: str) -> None:
    changes, keep_alives = int(others[0]), int(others[1])
    authority = others[2] if len(others) > 2 else ""
    lines = connect(host, port, authority)
    head = "GET {} HTTP/1.1\r\nHost: {}:{}\r\nAccept: text/event-stream\r\n\r\n"
    lines.write(head.format(target, host, port).encode())
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


listen(*sys.argv[1:])
