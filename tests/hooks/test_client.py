"""One POST: to an address that may be called, within its time, and never more than once."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Sequence
from typing import Any

import pytest
from twisted.internet.defer import Deferred
from twisted.python.failure import Failure

from tests.hooks.network import ADDRESS, Network, Posted, reply
from treedbd.hooks.addresses import NAMES_AT_ONCE, Resolver
from treedbd.hooks.client import (
    KEPT_S,
    MAX_ANSWER_BYTES,
    MAX_HEAD_BYTES,
    PostAnswer,
    Poster,
    PostFailed,
    Receiver,
)
from treedbd.names import NO_TARGETS, AllowedTargets, parse_allowed_targets

HEADERS = [("X-Test", "1")]


class NamedNetwork(Network):
    """A network with names, which threads look up."""

    def __init__(self) -> None:
        super().__init__()
        self.found: queue.SimpleQueue[tuple[Any, ...]] = queue.SimpleQueue()

    def callFromThread(self, *call: Any) -> None:
        self.found.put(call)

    def finish_looking_up(self) -> None:
        """Wait for a thread, and do what it has left for the thread of the reactor."""
        call, *arguments = self.found.get(timeout=60)
        call(*arguments)


def poster_of(
    network: Network,
    url: str = f"http://{ADDRESS}/x",
    *,
    allowed: AllowedTargets = NO_TARGETS,
    look_up: Callable[[str], Sequence[str]] = lambda _: [],
) -> Poster:
    resolver = Resolver(network, allowed, look_up)
    return Poster(
        network,
        Receiver.parse(url),
        resolver,
        lambda host: None,  # type: ignore[arg-type,return-value]
        timeout_s=10.0,
    )


def end(network: Network, waiting: Deferred[PostAnswer], seconds: float = 20) -> Any:
    """Return the answer, or the text of the error; time passes until it is there."""
    found: list[Any] = []
    waiting.addBoth(found.append)
    network.run()
    for _ in range(round(seconds * 2)):
        if not found:
            network.advance(0.5)
            network.run()
    (result,) = found
    if isinstance(result, Failure):
        result.trap(PostFailed)
        return str(result.value)
    return result


def post(network: Network, poster: Poster, body: bytes = b"{}") -> Any:
    return end(network, poster.post(HEADERS, body))


def answered(answer: bytes) -> Any:
    network = Network()
    network.respond = lambda _: answer
    return post(network, poster_of(network))


def test_a_request_says_what_it_is_and_its_answer_is_bounded() -> None:
    network = Network()
    network.respond = lambda _: reply(202, "x\n" * 300, Retry_After="7")
    answer = post(network, poster_of(network, f"http://{ADDRESS}:81/a?b=c"), b'{"a":1}')
    (posted,) = network.posted
    assert (posted.head, posted.body) == ("POST /a?b=c HTTP/1.1", b'{"a":1}')
    assert posted.headers == {"Host": f"{ADDRESS}:81", "X-Test": "1", "Content-Length": "7"}
    assert (answer.status, answer.retry_after, answer.text) == (202, "7", ("x\\n" * 300)[:300])
    assert network.connected == [(ADDRESS, 81)]


def test_a_connection_is_kept_for_a_while_and_used_again() -> None:
    network = Network()
    poster = poster_of(network)
    for _ in range(3):
        assert post(network, poster).status == 200
    assert len(network.connected) == 1
    network.advance(KEPT_S)
    network.run()
    assert network.open == []
    assert post(network, poster).status == 200
    poster.close()
    assert network.open == []


@pytest.mark.parametrize(
    "answer",
    [
        reply(200, Connection="close"),
        b"HTTP/1.0 200 OK\r\nContent-Length: 0\r\n\r\n",
        reply() + b"HTTP/1.1 200 more\r\n\r\n",
    ],
)
def test_a_connection_that_is_not_whole_is_closed(answer: bytes) -> None:
    network = Network()
    network.respond = lambda _: answer
    assert post(network, poster_of(network)).status == 200
    assert network.open == []


def test_a_connection_that_was_closed_while_it_was_kept_is_replaced() -> None:
    network = Network()
    poster = poster_of(network)
    post(network, poster)
    answers: list[bytes | None] = [reply()]

    def respond(posted: Posted) -> bytes | None:
        if not answers:
            return reply(201)
        answers.pop()
        raise ConnectionResetError

    network.respond = respond
    assert post(network, poster).status == 201
    assert len(network.connected) == 2


@pytest.mark.parametrize(
    ("answer", "text"),
    [
        (b"HTTP/1.1 100 Continue\r\n\r\n" + reply(200, "ok"), "ok"),
        (b"HTTP/1.1 200 OK\nContent-Length: 2\n\nok", "ok"),
        (
            b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
            b"3;x=y\r\nabc\r\n2\r\nde\r\n0\r\n\r\n",
            "abcde",
        ),
        (reply(204), ""),
    ],
)
def test_forms_of_answers(answer: bytes, text: str) -> None:
    found = answered(answer)
    assert (found.is_success, found.text) == (True, text)


@pytest.mark.parametrize("status", [199, 300, 302, 308, 404, 500])
def test_what_is_not_2xx_is_no_success_and_no_redirect_is_followed(status: int) -> None:
    network = Network()
    network.respond = lambda _: reply(status, Location=f"http://{ADDRESS}/y")
    found = post(network, poster_of(network))
    assert found == "it did not answer within 10 s" if status < 200 else not found.is_success
    assert len(network.posted) == 1


@pytest.mark.parametrize(
    ("answer", "error"),
    [
        (b"SSH-2.0-x\r\n\r\n", "its answer is not HTTP"),
        (b"HTTP/2 200\r\n\r\n", "its answer is not HTTP"),
        (b"HTTP/1.1 200 " + b"x" * (MAX_HEAD_BYTES + 1), "the head of its answer is too long"),
    ],
)
def test_answers_that_are_not_http(answer: bytes, error: str) -> None:
    assert answered(answer) == error


def test_a_receiver_that_sends_forever_is_cut_off_and_its_status_counts() -> None:
    network = Network()
    network.respond = lambda _: b"HTTP/1.1 200 OK\r\n\r\n" + b"x" * (MAX_ANSWER_BYTES + 1)
    assert post(network, poster_of(network)).text == "x" * 200
    assert network.open == []
    assert network.seconds() == 0  # it did not wait for the end
    chunks = b"HTTP/1.1 500 No\r\nTransfer-Encoding: chunked\r\n\r\n" + b"4\r\nabcd\r\n" * 20_000
    network.respond = lambda _: chunks
    assert post(network, poster_of(network)).status == 500
    assert network.open == []


INTERIM = b"HTTP/1.1 100 Continue\r\n\r\n"


def test_interim_answers_and_the_sizes_of_chunks_count_for_the_bound_of_an_answer() -> None:
    network = Network()
    network.respond = lambda _: INTERIM * (MAX_ANSWER_BYTES // len(INTERIM) + 1)
    assert post(network, poster_of(network)) == "its answer is too long"
    chunked = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
    network.respond = lambda _: chunked + b"1;%s\r\na\r\n" % (b"x" * 900) * 75
    assert post(network, poster_of(network)).status == 200
    assert network.open == []
    assert network.seconds() == 0  # it did not wait for more
    network.respond = lambda _: INTERIM * 100 + reply(201)
    assert post(network, poster_of(network)).status == 201


def test_a_receiver_that_hangs_or_answers_slowly_is_cut_off() -> None:
    network = Network()
    network.respond = lambda _: None
    poster = poster_of(network)
    assert post(network, poster) == "it did not answer within 10 s"
    network.respond = lambda _: b"HTTP/1.1 200"
    assert post(network, poster) == "it did not answer within 10 s"
    network.respond = lambda _: b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\n"
    assert post(network, poster).status == 200
    assert network.open == []
    network.is_away = True
    assert post(network, poster) == "it refused the connection"


def test_what_is_under_way_fails_when_the_poster_is_closed() -> None:
    network = Network()
    network.respond = lambda _: None
    poster = poster_of(network)
    found: list[Any] = []
    poster.post(HEADERS, b"").addBoth(found.append)
    network.run()
    poster.close()
    assert len(found) == 1
    assert network.open == []
    network.advance(60)
    network.run()


INSIDE = [
    *("127.0.0.1", "127.1.2.3", "0.0.0.0", "10.0.0.1", "172.16.0.1", "192.168.1.1"),
    *("169.254.169.254", "100.64.0.1", "100.100.100.200", "168.63.129.16", "192.0.0.192"),
    *("224.0.0.1", "255.255.255.255", "240.0.0.1", "198.18.0.1", "203.0.113.7"),
    *("::1", "::", "fe80::1", "fc00::1", "fd00:ec2::254", "ff02::1", "fec0::1", "2001:db8::1"),
    *("::ffff:127.0.0.1", "::ffff:10.0.0.1", "::127.0.0.1", "64:ff9b::7f00:1", "64:ff9b::a00:1"),
    *("64:ff9b:1::1", "2002:7f00:1::", "2002:a00:1::1", "2001:0:1::1"),
]


@pytest.mark.parametrize("address", INSIDE)
def test_no_connection_is_made_to_an_address_inside(address: str) -> None:
    network = NamedNetwork()
    host = f"[{address}]" if ":" in address else address
    refused = "its address is not one that webhooks may call (webhooks.allow)"
    assert post(network, poster_of(network, f"http://{host}/")) == refused
    poster = poster_of(network, "http://name.example.com/", look_up=lambda _: [ADDRESS, address])
    waiting = poster.post(HEADERS, b"")
    network.finish_looking_up()
    assert end(network, waiting) == refused
    assert network.connected == []


def test_an_address_inside_that_the_operator_allows_is_called() -> None:
    network = NamedNetwork()
    allowed = parse_allowed_targets(["10.1.0.0/16", "hooks.internal"])
    assert post(network, poster_of(network, "http://10.1.2.3/", allowed=allowed)).status == 200
    poster = poster_of(
        network, "http://hooks.internal/", allowed=allowed, look_up=lambda _: ["127.0.0.1"]
    )
    waiting = poster.post(HEADERS, b"")
    network.finish_looking_up()
    assert end(network, waiting).status == 200
    assert network.connected == [("10.1.2.3", 80), ("127.0.0.1", 80)]


def test_a_name_that_changes_its_addresses_is_called_where_it_was_checked() -> None:
    network = NamedNetwork()
    answers = [["127.0.0.1"], [ADDRESS]]
    poster = poster_of(network, "http://name.example.com/", look_up=lambda _: answers.pop())
    network.respond = lambda _: reply(Connection="close")
    results = []
    for _ in range(2):
        waiting = poster.post(HEADERS, b"")
        network.finish_looking_up()
        results.append(end(network, waiting))
    assert results[0].status == 200
    assert results[1] == "its address is not one that webhooks may call (webhooks.allow)"
    assert network.connected == [(ADDRESS, 80)]  # of one look: the address that was checked
    assert network.posted[0].headers["Host"] == "name.example.com"


def test_the_addresses_of_a_name_are_tried_in_order() -> None:
    network = NamedNetwork()
    others = ["93.184.215.15", "2606:2800:21f:cb07::1"]
    poster = poster_of(network, "http://name.example.com/", look_up=lambda _: others)
    network.is_away = True
    waiting = poster.post(HEADERS, b"")
    network.finish_looking_up()
    assert end(network, waiting) == "it refused the connection"
    assert network.connected == [(each, 80) for each in others]


def test_names_that_are_not_resolved_hold_up_no_others() -> None:
    network = NamedNetwork()
    may_end = threading.Event()

    def look_up(_: str) -> Sequence[str]:
        may_end.wait(60)
        raise OSError

    resolver = Resolver(network, NO_TARGETS, look_up)
    found: list[Any] = []
    for number in range(NAMES_AT_ONCE + 1):
        for _ in range(2):  # which share a thread
            waiting = resolver.resolve(f"n{number}.example.com")
            waiting.addErrback(lambda failure: found.append(str(failure.value)))
    assert found == ["too many names are being resolved"] * 2
    may_end.set()
    for _ in range(NAMES_AT_ONCE):
        network.finish_looking_up()
    assert found[2:] == ["its name cannot be resolved"] * 2 * NAMES_AT_ONCE


@pytest.mark.parametrize(
    "url",
    [
        *("ftp://a.example.com/", "https://", "https://u:p@a.example.com/", "https://a.b/#x"),
        *("https://ä.example.com/", "https://a.example.com/ x", "https://a.example.com/\r\nX: y"),
    ],
)
def test_urls_that_cannot_be_called(url: str) -> None:
    with pytest.raises(ValueError, match="URL of a webhook"):
        Receiver.parse(url)


@pytest.mark.parametrize(
    ("header", "seconds"),
    [
        *(("", None), ("7", 7.0), ("-1", None), ("soon", None)),
        ("Tue, 14 Nov 2023 22:13:30 GMT", 10.0),
        ("Tue, 14 Nov 2023 22:13:10 GMT", 0.0),
    ],
)
def test_for_how_long_a_receiver_wants_nothing(header: str, seconds: float | None) -> None:
    assert PostAnswer(503, header).retry_after_s(1_700_000_000) == seconds
