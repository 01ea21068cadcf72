"""Callers who disconnect before the application has said who they are, and cancelled answers."""

from __future__ import annotations

import asyncio
import pathlib
import socket
import struct
from typing import Any

import pytest
import pytest_twisted
from twisted.internet import reactor
from twisted.internet.defer import CancelledError, Deferred
from twisted.logger import capturedLogs, eventAsText
from twisted.web.server import Site

from tests.embedding.embedded import running, settings_in
from tests.test_identify import ask, port_of
from treedbd.names import DatabaseName

listens: Any = reactor

READ = b"GET /users/ada.json HTTP/1.1\r\nHost: localhost\r\n\r\n"
STREAM = b"GET /users/ada.json HTTP/1.1\r\nHost: localhost\r\nAccept: text/event-stream\r\n\r\n"
WRITE = b"PUT /users/ada/age.json HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1\r\n\r\n1"
HEALTH = b"GET /.health HTTP/1.1\r\nHost: localhost\r\n\r\n"


def reset(connection: socket.socket) -> None:
    """Close a connection so that the server learns of it at once."""
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    connection.close()


@pytest.mark.parametrize("is_mounted", [False, True])
@pytest.mark.parametrize("head", [READ, STREAM, WRITE, HEALTH])
@pytest_twisted.ensureDeferred
async def test_a_caller_who_is_gone_is_asked_about_no_longer_and_leaves_nothing(
    tmp_path: pathlib.Path, head: bytes, is_mounted: bool
) -> None:
    asked: Deferred[None] = Deferred()
    cancelled: Deferred[None] = Deferred()

    def identify(_: Any) -> Any:
        asked.callback(None)
        return Deferred(lambda _: cancelled.callback(None))

    listen = [] if is_mounted else ["tcp:0:interface=127.0.0.1"]
    async with running(settings_in(tmp_path, listen=listen), identify=identify) as service:
        await service.database("app").put("users", {"ada": {"age": 36}})
        site = listens.listenTCP(0, Site(service.resource()), interface="127.0.0.1")
        port = site.getHost().port if is_mounted else port_of(service)
        connection = socket.create_connection(("127.0.0.1", port))
        connection.sendall(head)
        await asked
        with capturedLogs() as logged:
            reset(connection)
            await cancelled
        assert len(service.resource().streams) == 0
        assert await service.database("app").get("users/ada") == {"age": 36}
        assert [eventAsText(each) for each in logged if "log_failure" in each] == []
        await site.stopListening()


@pytest_twisted.ensureDeferred
async def test_a_stream_of_a_caller_who_is_gone_does_not_begin(tmp_path: pathlib.Path) -> None:
    asked: Deferred[Deferred[Any]] = Deferred()
    gone: Deferred[None] = Deferred()

    def identify(request: Any) -> Any:
        request.notifyFinish().addErrback(lambda _: gone.callback(None))
        deaf: Deferred[Any] = Deferred(lambda each: each.callback({"uid": "ada"}))
        asked.callback(deaf)
        return deaf

    async with running(settings_in(tmp_path), identify=identify) as service:
        site = listens.listenTCP(0, Site(service.resource()), interface="127.0.0.1")
        connection = socket.create_connection(("127.0.0.1", site.getHost().port))
        connection.sendall(STREAM)
        await asked
        reset(connection)
        await gone
        watched = service.resource().find(DatabaseName("app"))
        assert len(service.resource().streams) == 0
        assert watched.requests == 0
        await site.stopListening()


def cancelled_deferred(_: Any) -> Any:
    waiting: Deferred[Any] = Deferred()
    waiting.cancel()
    return waiting


async def cancelled_task(_: Any) -> Any:
    raise asyncio.CancelledError


def cancelled_at_once(_: Any) -> Any:
    raise CancelledError


@pytest.mark.parametrize(
    "identify",
    [cancelled_deferred, cancelled_task, cancelled_at_once],
    ids=lambda each: each.__name__,
)
@pytest_twisted.ensureDeferred
async def test_a_cancelled_answer_is_an_error_of_the_application(
    tmp_path: pathlib.Path, identify: Any
) -> None:
    with capturedLogs() as logged:
        answers = await ask(tmp_path, identify, ("GET", "/users/ada.json", {}))
    assert answers[0][0] == 500
    assert answers[0][1]["error"] == "internal_error"
    texts = [eventAsText(each, False, False, False) for each in logged]
    assert [text for text in texts if text.startswith("identify raised CancelledError at ")]
    assert not [each for each in logged if "log_failure" in each]


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({}, 403),
        ({"Referer": "http://evil.example/page"}, 403),
        ({"Sec-Fetch-Site": "same-site"}, 403),
        ({"Sec-Fetch-Site": "same-site", "Referer": "http://sister.example/"}, 403),
        ({"Sec-Fetch-Site": "same-origin"}, 200),
        ({"Sec-Fetch-Site": "none"}, 200),
        ({"Referer": "http://127.0.0.1:8000/page"}, 200),
    ],
)
@pytest_twisted.ensureDeferred
async def test_a_script_with_the_data_of_a_user_is_for_pages_of_this_site(
    tmp_path: pathlib.Path, headers: dict[str, str], status: int
) -> None:
    def identify(_: Any) -> Any:
        return {"uid": "ada"}

    path = "/users/ada.json?callback=show"
    script, plain = await ask(
        tmp_path,
        identify,
        ("GET", path, headers),
        ("GET", "/users/ada.json", headers),
        parse=bytes.decode,
    )
    assert (script[0], plain[0]) == (status, 200)
    assert ("show(" in script[1]) == (status == 200)
