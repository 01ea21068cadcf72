"""What commands say of servers that are no treedb, or mean harm."""

from __future__ import annotations

import contextlib
import os
import pathlib
import socket
import threading
from collections.abc import Callable, Iterator

import pytest

from tests.command import result_of, run_command, start
from treedbd.cli.exit import CommandFailed
from treedbd.cli.http_client import HttpClient
from treedbd.cli.options import parse_url

Serve = Callable[[bytes], str]


@pytest.fixture
def serve() -> Iterator[Serve]:
    """Return what serves one response, as it is, to one connection; returns the URL."""
    listeners: list[socket.socket] = []
    threads: list[threading.Thread] = []

    def answer(listener: socket.socket, response: bytes) -> None:
        connection, _ = listener.accept()
        with connection:
            connection.recv(65_536)
            with contextlib.suppress(ConnectionError):  # it wants no more
                connection.sendall(response)

    def start(response: bytes) -> str:
        listener = socket.create_server(("127.0.0.1", 0))
        listener.settimeout(30)
        listeners.append(listener)
        threads.append(threading.Thread(target=answer, args=(listener, response)))
        threads[-1].start()
        return f"http://127.0.0.1:{listener.getsockname()[1]}/a"

    yield start
    for thread in threads:
        thread.join()
    for listener in listeners:
        listener.close()


def response_of(body: bytes, tag: bytes = b'"x"') -> bytes:
    return b"HTTP/1.1 200 OK\r\nETag: %b\r\nContent-Length: %d\r\n\r\n%b" % (tag, len(body), body)


@pytest.mark.parametrize("body", [b"hello", b"", b"[" * 20_000 + b"]" * 20_000])
def test_what_is_no_json_is_one_sentence(serve: Serve, body: bytes) -> None:
    for command in (("transaction", "URL", "."), ("top", "--once", "URL")):
        url = serve(response_of(body))
        done = run_command(*(url if each == "URL" else each for each in command))
        origin = url.removesuffix("/a")
        assert done.error == f"{origin} did not return JSON."


@pytest.mark.parametrize("body", [b"{}", b"[]", b'{"for_s":1,"databases":[1],"slowest":3}'])
def test_other_json_than_that_of_a_daemon_is_one_sentence(serve: Serve, body: bytes) -> None:
    done = run_command("top", "--once", serve(response_of(body)))
    assert done.error.endswith(" did not return what a daemon counts.")
    assert "\n" not in done.error


@pytest.mark.parametrize("words", [("log",), ("compact",), ("rules", "explain")], ids=" ".join)
@pytest.mark.parametrize("body", [b"<html>", b"[null]", b'{"a":1}', b"7"])
def test_no_answer_that_treedb_does_not_give_is_a_traceback(
    serve: Serve, words: tuple[str, ...], body: bytes
) -> None:
    done = run_command(*words, serve(response_of(body)))
    assert "Traceback" not in done.errors
    assert done.status == 1
    assert len(done.errors.splitlines()) == 1


@pytest.mark.parametrize(
    ("kind", "body"),
    [
        (b"text/html", b"<html>log in</html>"),
        (b"application/json", b""),
        (b"application/json", b'{"a":'),
    ],
)
@pytest.mark.parametrize("words", [[], ["--plain"], ["--format", "ndjson"]])
def test_what_is_not_json_is_not_exported(
    serve: Serve, tmp_path: pathlib.Path, kind: bytes, body: bytes, words: list[str]
) -> None:
    url = serve(b"HTTP/1.1 200 OK\r\nContent-Type: %b\r\n\r\n%b" % (kind, body))
    file = tmp_path / "out"
    done = run_command("export", url, str(file), "--quiet", "--retry-for", "0", *words)
    assert done.status == 1
    assert not file.exists()


@pytest.mark.parametrize("words", [("get",), ("set", "URL", "1"), ("watch",)])
@pytest.mark.parametrize("response", [b"hello\n", b"SSH-2.0-x\r\n", b"\x15\x03\x03\0\x02\x02\x0a"])
def test_what_is_not_http_is_one_sentence(
    serve: Serve, words: tuple[str, ...], response: bytes
) -> None:
    url = serve(response)
    given = [url if each == "URL" else each for each in words]
    done = run_command(*given, *([] if url in given else [url]))
    assert done.error.endswith(" closed the connection without a response.")


@pytest.mark.parametrize("size", [1, 3_000_000])
@pytest.mark.parametrize("words", ["get URL", "get URL -o /dev/stdout", "get URL -o /dev/fd/1"])
def test_a_reader_that_closes_the_output_early_is_no_error(
    serve: Serve, words: str, size: int
) -> None:
    url = serve(response_of(b'"%b"' % (b"x" * size)))
    reader, writer = os.pipe()
    os.close(reader)
    with os.fdopen(writer) as output:
        done = result_of(start(words.replace("URL", url).split(), output=output))
    assert (done.status, done.errors) == (1, "")


def test_a_printed_entity_tag_cannot_move_the_cursor(serve: Serve) -> None:
    done = run_command("get", "--etag", serve(response_of(b"1", b'"a\x1b[31mb"')))
    assert done.output == "a\N{REPLACEMENT CHARACTER}[31mb\n".encode()


@pytest.mark.parametrize("head", [b"HTTP/1.1 200 OK\r\n", b"HTTP/1.1 200 OK\r\nServer: x"])
def test_a_response_whose_head_is_cut_off_is_none(serve: Serve, head: bytes) -> None:
    done = run_command("get", serve(head))
    assert done.error.endswith(" closed the connection without a response.")


def test_no_more_than_the_bound_is_read_of_json(serve: Serve) -> None:
    client = HttpClient()
    response = client.request("GET", parse_url(serve(response_of(b"1" * 11))))
    with pytest.raises(CommandFailed, match=r"returned more than 10 bytes\."):
        response.json_text(10)
