from __future__ import annotations

import re
from typing import Any

import pytest

from tests.http1.peer import ScriptedResource, Server
from tests.http1.test_reply import RecordedLog, raise_error
from treedbd.http1.adapter import AdaptedRequest
from treedbd.http1.registry import RequestLogging
from treedbd.http1.request import IHttp1Request, choose_request_id, is_trusted_peer
from treedbd.operating.log import FIELDS

RANDOM = re.compile(r"[0-9a-f]{16}")
GET = b"GET /a.json HTTP/1.1\r\nHost: x\r\nX-Request-Id: theirs\r\n\r\n"


def ids_of(server: Server, *requests: bytes) -> list[bytes | None]:
    replies = server.connect().exchange(*requests)
    return [dict(reply.fields).get(b"x-request-id") for reply in replies]


@pytest.mark.parametrize("given", [b"a", b"A-Z_0.9", b"x" * 128])
def test_a_trusted_proxy_gives_the_id(given: bytes) -> None:
    assert choose_request_id({b"x-request-id": [given]}, is_trusted=True) == given.decode()


@pytest.mark.parametrize(
    "given", [[b""], [b"a b"], [b"x" * 129], [b"a\n"], [b"\xff"], [b'"'], [b"a", b"a"]]
)
def test_an_invalid_id_of_a_trusted_proxy_does_not_count(given: list[bytes]) -> None:
    assert RANDOM.fullmatch(choose_request_id({b"x-request-id": given}, is_trusted=True))


def test_an_id_of_anybody_else_does_not_count() -> None:
    assert RANDOM.fullmatch(choose_request_id({b"x-request-id": [b"a"]}, is_trusted=False))
    assert not is_trusted_peer(object())


def test_ids_differ() -> None:
    ids = {choose_request_id({}, is_trusted=False) for _ in range(1000)}
    assert len(ids) == 1000


def test_a_request_keeps_its_id_and_the_next_one_has_another() -> None:
    seen: list[tuple[str, str]] = []

    def answer(request: Any) -> bytes:
        assert IHttp1Request.providedBy(request)
        seen.append((request.request_id, request.request_id))
        return b"x"

    Server(ScriptedResource(answer)).connect().exchange(GET + GET + GET)
    assert all(one == two and RANDOM.fullmatch(one) for one, two in seen)
    assert len(set(seen)) == 3


def test_a_request_of_another_program_s_site_has_an_id_too() -> None:
    seen: list[str] = []

    def answer(request: Any) -> bytes:
        adapted = AdaptedRequest(request, 10)
        seen.extend([adapted.request_id, adapted.request_id])
        return b"x"

    Server(ScriptedResource(answer)).connect().send(GET)
    assert RANDOM.fullmatch(seen[0])
    assert seen[0] == seen[1]


def send_whole(request: Any) -> None:
    request.send(200, ((b"A", b"b"),), b"body")


def send_in_pieces(request: Any) -> None:
    request.start(200, ((b"A", b"b"),))
    request.write(b"body")
    request.finish()


@pytest.mark.parametrize("send", [send_whole, send_in_pieces])
def test_every_response_has_the_id_if_requests_are_logged(send: Any) -> None:
    ids: list[bytes] = []
    logging = RequestLogging(
        lambda request: ids.append(request.request_id.encode()), sends_ids=True
    )
    server = Server(ScriptedResource(send), log_access=logging)
    assert ids_of(server, GET + GET) == ids
    assert len(set(ids)) == 2
    assert ids_of(Server(ScriptedResource(send)), GET) == [None]


@pytest.mark.parametrize("sends_ids", [True, False])
def test_an_internal_error_always_has_the_id_under_which_it_is_logged(sends_ids: bool) -> None:
    logging = RequestLogging(lambda _: None, sends_ids=sends_ids)
    with RecordedLog() as log:
        server = Server(ScriptedResource(raise_error), log_access=logging)
        (shown,) = ids_of(server, GET)
    (failed,) = [event for event in log.events if "log_failure" in event]
    assert shown is not None
    assert failed[FIELDS] == {"request_id": shown.decode()}
