"""How much callers may do in each second: by address, by user and by project."""

from __future__ import annotations

import contextlib
import json
import pathlib
from collections.abc import Iterable
from typing import Any
from urllib.parse import quote

import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st
from twisted.internet.task import Clock
from twisted.web.server import Site

from tests.http1.peer import ParsedReply
from tests.web.tree_server import SETTINGS, WALL, TreeServer, make_verifier
from tests.websocket import upgrade_headers
from tests.websocket_frames import CONTINUATION, PING, PONG, TEXT, parse_frame, print_frame
from treedbd.config.settings import HttpSettings, ProjectSettings
from treedbd.counting import Levels
from treedbd.database.requests import ProjectSpec
from treedbd.http1.registry import ServerOptions
from treedbd.http1.server import Http1Factory
from treedbd.limits import PROJECT_RATES, Limits, RateLimits
from treedbd.loop import network_of
from treedbd.names import parse_trusted_proxies
from treedbd.rules.ruleset import OPEN
from treedbd.web.auth import jwt
from treedbd.web.auth.identity import Identity
from treedbd.web.auth.verifier import Authenticator
from treedbd.web.rates import Rates, TooManyRequests

SECRET = "s" * 32
ADDRESS, OTHER_ADDRESS = "192.0.2.1", "192.0.2.2"


def token(**claims: Any) -> str:
    return jwt.mint(SECRET.encode(), claims, now=WALL)


ADA, ALAN = token(uid="ada"), token(uid="alan")
ADMIN = token(uid="root", admin=True)
SERVICE = token()


class RatedServer(TreeServer):
    """A server of the projects `shop` and `blog` whose callers have rates."""

    def __init__(
        self,
        folder: pathlib.Path,
        limits: Limits = SETTINGS.limits,
        projects: Iterable[str] = ("shop", "blog"),
        of_shop: dict[str, int] | None = None,
        **rates: Any,
    ) -> None:
        of_all = RateLimits(**{"burst_s": 1.0, **rates})
        of_projects = {} if of_shop is None else {"shop": ProjectSettings(rates=of_shop)}
        verifier = make_verifier(SECRET)
        super().__init__(
            folder,
            OPEN,
            projects=[ProjectSpec(name) for name in projects],
            verifier=lambda _: verifier,
            options=attrs.evolve(
                SETTINGS,
                rates=of_all,
                projects=of_projects,
                limits=limits,
                http=HttpSettings(cors_origins=("*",)),
            ),
        )

    def ask(
        self,
        target: str = "/a.json",
        *,
        method: str = "GET",
        body: bytes = b"",
        address: str = ADDRESS,
        project: str = "shop",
        auth: str | None = None,
    ) -> ParsedReply:
        if auth is not None:
            target += f"?auth={auth}"
        head = f"{method} {target} HTTP/1.1\r\nHost: {project}.localhost\r\n"
        peer = self.connect(address)
        peer.send(f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body)
        self.clock.advance(0)
        (reply,) = peer.read(method.encode())
        peer.disconnect()
        return reply

    def statuses(self, count: int, **request: Any) -> list[int]:
        return [self.ask(**request).status for _ in range(count)]


def pipeline(world: RatedServer, count: int, request: bytes) -> list[int]:
    peer = world.connect()
    return [each.status for each in peer.exchange(count * request)]


# By address.


def test_an_address_may_do_a_burst_at_once_and_then_its_rate(tmp_path: pathlib.Path) -> None:
    world = RatedServer(tmp_path, requests_per_address=4)
    assert world.statuses(6) == [200] * 4 + [429] * 2
    world.clock.advance(0.5)
    assert world.statuses(3) == [200, 200, 429]
    world.clock.advance(1000)
    assert world.statuses(5) == [200] * 4 + [429]


def test_a_longer_burst_lets_callers_use_more_at_once(tmp_path: pathlib.Path) -> None:
    world = RatedServer(tmp_path, requests_per_address=4, burst_s=2.5)
    assert world.statuses(11) == [200] * 10 + [429]


def test_however_short_a_burst_is_a_caller_may_do_one_request(tmp_path: pathlib.Path) -> None:
    world = RatedServer(tmp_path, requests_per_address=1, burst_s=0.001)
    assert world.statuses(2) == [200, 429]
    world.clock.advance(1)
    assert world.statuses(2) == [200, 429]


def test_another_address_has_a_rate_of_its_own(tmp_path: pathlib.Path) -> None:
    world = RatedServer(tmp_path, requests_per_address=1)
    assert world.statuses(2) == [200, 429]
    assert world.statuses(2, address=OTHER_ADDRESS) == [200, 429]


def test_the_first_64_bits_of_an_ipv6_address_are_one_caller(tmp_path: pathlib.Path) -> None:
    world = RatedServer(tmp_path, requests_per_address=1)
    assert world.ask(address="2001:db8:0:1::1").status == 200
    assert world.ask(address="2001:db8:0:1:ffff::2").status == 429
    assert world.ask(address="2001:db8:0:2::1").status == 200


def test_an_ipv4_address_in_ipv6_is_itself(tmp_path: pathlib.Path) -> None:
    world = RatedServer(tmp_path, requests_per_address=1)
    assert world.ask(address="::ffff:192.0.2.1").status == 200
    assert world.ask(address="192.0.2.1").status == 429
    assert world.ask(address="::ffff:192.0.2.7").status == 200


@given(st.text() | st.ip_addresses().map(str))
def test_any_text_is_an_address(address: str) -> None:
    assert network_of(network_of(address)) == network_of(address) or address.count(":") > 1


def test_a_429_says_what_was_too_much_of_whom_and_when_to_try_again(
    tmp_path: pathlib.Path,
) -> None:
    world = RatedServer(tmp_path, requests_per_address=1, burst_s=1.0)
    world.ask()
    world.clock.advance(0.25)
    refused = world.ask()
    assert json.loads(refused.body) == {
        "error": "too_many_requests",
        "message": "Too many requests from this address: at most 1 a second "
        "(requests_per_address). Try again in 1 s.",
    }
    assert refused[b"retry-after"] == b"1"
    assert b"Retry-After" in refused[b"access-control-expose-headers"]
    assert refused[b"cache-control"] == b"no-store"


def test_a_429_has_the_form_of_the_dialect(tmp_path: pathlib.Path) -> None:
    world = RatedServer(tmp_path, requests_per_address=1)
    world.ask()
    refused = world.ask("/a.json?ns=shop")
    assert refused.status == 429
    assert refused[b"retry-after"] == b"1"
    assert refused.body.startswith(b'{\n  "error" : "Too many requests from this address')


def test_requests_that_a_connection_repeats_are_counted(tmp_path: pathlib.Path) -> None:
    world = RatedServer(tmp_path, requests_per_address=4)
    request = b"GET /a.json HTTP/1.1\r\nHost: shop.localhost\r\n\r\n"
    assert pipeline(world, 6, request) == [200] * 4 + [429] * 2


@pytest.mark.parametrize("method", ["HEAD", "OPTIONS", "DELETE"])
def test_every_method_is_counted(tmp_path: pathlib.Path, method: str) -> None:
    world = RatedServer(tmp_path, requests_per_address=2)
    world.statuses(2, method=method)
    assert world.ask(method=method).status == 429


def test_what_is_not_found_or_not_allowed_is_counted_too(tmp_path: pathlib.Path) -> None:
    world = RatedServer(tmp_path, requests_per_address=2)
    assert [world.ask("/a").status, world.ask(method="TRACE").status] == [404, 405]
    assert world.ask().status == 429


def test_what_is_not_http_is_counted_and_refused_with_when_to_try_again(
    tmp_path: pathlib.Path,
) -> None:
    world = RatedServer(tmp_path, requests_per_address=1)
    replies = [world.connect().exchange(b"nonsense\r\n\r\n")[0] for _ in range(2)]
    assert [each.status for each in replies] == [400, 429]
    assert replies[1][b"retry-after"] == b"1"
    assert json.loads(replies[1].body)["error"] == "too_many_requests"
    assert world.ask().status == 429


def test_what_is_not_http_is_not_counted_for_a_trusted_proxy(tmp_path: pathlib.Path) -> None:
    world = RatedServer(tmp_path, requests_per_address=1)
    options = ServerOptions(
        rates=world.resource.rates, trusted_proxies=parse_trusted_proxies([ADDRESS])
    )
    world.factory = Http1Factory(world.resource, SETTINGS.limits, world.clock, options)
    replies = [world.connect(ADDRESS).exchange(b"nonsense\r\n\r\n")[0] for _ in range(2)]
    assert [each.status for each in replies] == [400, 400]
    assert world.ask().status == 200


def test_too_many_connections_say_when_to_try_again(tmp_path: pathlib.Path) -> None:
    world = RatedServer(tmp_path, attrs.evolve(SETTINGS.limits, connections_per_address=1))
    held = world.connect()
    (refused,) = world.connect().read()
    assert (refused.status, refused[b"retry-after"]) == (429, b"1")
    held.disconnect()


def test_health_is_answered_to_who_is_beyond_its_rate(tmp_path: pathlib.Path) -> None:
    world = RatedServer(tmp_path, requests_per_address=1)
    assert world.statuses(3, target="/.health") == [200] * 3
    assert world.ask().status == 429


def test_writes_of_an_address_have_a_rate_beside_that_of_requests(tmp_path: pathlib.Path) -> None:
    world = RatedServer(tmp_path, writes_per_address=2)
    assert world.statuses(3, method="PUT", body=b"1") == [200, 200, 429]
    assert world.statuses(3) == [200] * 3
    assert world.statuses(1, method="PUT", body=b"1", project="blog") == [429]
    overridden = world.request(
        "POST", "/a.json", b"1", ["X-HTTP-Method-Override: PUT"], "shop.localhost"
    )
    assert overridden.status == 429
    assert b"writes_per_address" in overridden.body


# By user and by project.


def test_a_user_has_a_rate_wherever_it_comes_from(tmp_path: pathlib.Path) -> None:
    world = RatedServer(tmp_path, requests_per_uid=2)
    assert world.statuses(1, auth=ADA) + world.statuses(2, auth=ADA, address=OTHER_ADDRESS) == [
        *(200, 200, 429)
    ]
    assert world.statuses(2, auth=ALAN) == [200, 200]
    assert world.statuses(2, auth=ADA, project="blog") == [200, 200]
    refused = world.ask(auth=ADA)
    assert json.loads(refused.body)["message"].startswith("Too many requests of this user")


@pytest.mark.parametrize("auth", [None, ADMIN, SERVICE])
def test_who_has_no_uid_or_is_an_admin_has_no_rate_of_a_user(
    tmp_path: pathlib.Path, auth: str | None
) -> None:
    world = RatedServer(tmp_path, requests_per_uid=1, writes_per_uid=1)
    assert world.statuses(3, auth=auth) == [200] * 3
    assert world.statuses(3, method="PUT", body=b"1", auth=auth) == [200] * 3


def test_repeated_reads_are_counted_for_their_user_and_their_project(
    tmp_path: pathlib.Path,
) -> None:
    request = f"GET /a.json?auth={ADA} HTTP/1.1\r\nHost: shop.localhost\r\n\r\n".encode()
    assert pipeline(RatedServer(tmp_path / "a", requests_per_uid=3), 4, request) == [200] * 3 + [
        429
    ]
    world = RatedServer(tmp_path / "b", requests_per_project=3)
    assert pipeline(world, 4, request) == [200] * 3 + [429]


def test_writes_of_a_user_have_a_rate(tmp_path: pathlib.Path) -> None:
    world = RatedServer(tmp_path, writes_per_uid=1)
    assert world.statuses(2, method="PUT", body=b"1", auth=ADA) == [200, 429]
    assert world.statuses(2, auth=ADA) == [200, 200]


def test_a_project_has_a_rate_whoever_uses_it(tmp_path: pathlib.Path) -> None:
    world = RatedServer(tmp_path, requests_per_project=2, writes_per_project=1)
    assert world.ask(auth=ADMIN).status == 200
    assert world.ask(address=OTHER_ADDRESS).status == 200
    refused = world.ask()
    assert refused.status == 429
    assert b"of this project: at most 2 a second (requests_per_project)" in refused.body
    assert world.statuses(2, method="PUT", body=b"1", project="blog") == [200, 429]


def test_a_project_may_have_rates_of_its_own(tmp_path: pathlib.Path) -> None:
    own = {"requests_per_project": 3, "requests_per_uid": 0}
    world = RatedServer(tmp_path, of_shop=own, requests_per_project=1, requests_per_uid=1)
    assert world.statuses(4, auth=ADA) == [200] * 3 + [429]
    assert world.statuses(2, project="blog") == [200, 429]
    assert set(own) <= set(PROJECT_RATES)


# Bytes.

BODY = json.dumps("x" * 998).encode()


def test_bytes_that_were_sent_are_made_up_for_before_the_next_request(
    tmp_path: pathlib.Path,
) -> None:
    world = RatedServer(tmp_path, bytes_per_address=1000)
    world.ask(method="PUT", target="/a.json?print=silent", body=BODY, address=OTHER_ADDRESS)
    assert world.statuses(2) == [200, 200]  # the second takes more than there is
    refused = world.ask()
    assert refused.status == 429
    assert b"Too many bytes from this address: at most 1000 a second" in refused.body
    world.clock.advance(int(refused[b"retry-after"]))
    assert world.ask().status == 200


def test_the_bytes_of_bodies_are_counted(tmp_path: pathlib.Path) -> None:
    world = RatedServer(tmp_path, bytes_per_project=1000)
    request: dict[str, Any] = {"method": "PUT", "target": "/a.json?print=silent", "body": BODY}
    assert world.statuses(3, **request) == [204, 204, 429]
    assert world.ask(project="blog").status == 200


def test_the_bytes_of_bodies_are_counted_in_the_site_of_another_program(
    tmp_path: pathlib.Path,
) -> None:
    world = RatedServer(tmp_path, bytes_per_project=1000)
    site: Any = Site(world.resource, reactor=world.clock)
    world.factory = site
    request: dict[str, Any] = {"method": "PUT", "target": "/a.json?print=silent", "body": BODY}
    assert world.statuses(3, **request) == [204, 204, 429]


def test_the_bytes_of_a_client_that_leaves_the_site_of_another_program_are_counted(
    tmp_path: pathlib.Path,
) -> None:
    world = RatedServer(tmp_path, bytes_per_address=100)
    site: Any = Site(world.resource, reactor=world.clock)
    world.factory = site
    peer = world.connect(ADDRESS)
    head = f"PUT /a.json HTTP/1.1\r\nHost: shop.localhost\r\nContent-Length: {len(BODY)}\r\n\r\n"
    peer.send(head.encode() + BODY)
    peer.disconnect()
    assert world.ask("/b.json").status == 429


def test_the_bytes_of_a_user_are_counted(tmp_path: pathlib.Path) -> None:
    world = RatedServer(tmp_path, bytes_per_uid=1000)
    world.ask(method="PUT", body=BODY)
    assert world.statuses(3, auth=ADA) == [200, 200, 429]
    assert world.statuses(3, auth=ADMIN) == [200] * 3
    assert world.statuses(3) == [200] * 3


def test_a_wait_is_as_long_as_what_was_too_much_takes(tmp_path: pathlib.Path) -> None:
    world = RatedServer(tmp_path, bytes_per_address=100)
    world.ask(method="PUT", body=BODY, address=OTHER_ADDRESS)
    world.ask()
    assert world.ask()[b"retry-after"] == b"9"  # 1000 bytes, of which 100 were there
    world.clock.advance(8.9)
    assert world.ask()[b"retry-after"] == b"1"


def test_the_events_of_streams_are_counted_while_they_are_open(tmp_path: pathlib.Path) -> None:
    world = RatedServer(tmp_path, bytes_per_address=100)
    stream = world.connect()
    stream.send(
        b"GET /a.json HTTP/1.1\r\nHost: shop.localhost\r\nAccept: text/event-stream\r\n\r\n"
    )
    world.ask(method="PUT", body=BODY, address=OTHER_ADDRESS)
    assert world.ask("/b.json").status == 200
    world.clock.advance(1)
    assert world.ask("/b.json").status == 429
    assert not stream.is_closed


def test_the_events_of_a_stream_are_counted_when_its_client_leaves(tmp_path: pathlib.Path) -> None:
    world = RatedServer(tmp_path, bytes_per_address=100)
    world.ask(method="PUT", body=BODY, address=OTHER_ADDRESS)
    stream = world.connect()
    stream.send(
        b"GET /a.json HTTP/1.1\r\nHost: shop.localhost\r\nAccept: text/event-stream\r\n\r\n"
    )
    stream.disconnect()
    assert world.ask("/b.json").status == 429


# Streams.


def open_stream(
    world: RatedServer, auth: str, address: str = ADDRESS, project: str = "shop"
) -> Any:
    peer = world.connect(address)
    head = f"GET /a.json?auth={auth} HTTP/1.1\r\nHost: {project}.localhost\r\n"
    peer.send(f"{head}Accept: text/event-stream\r\n\r\n".encode())
    return peer


def test_a_user_may_have_so_many_streams(tmp_path: pathlib.Path) -> None:
    world = RatedServer(tmp_path, attrs.evolve(SETTINGS.limits, streams_per_uid=1))
    first = open_stream(world, ADA)
    refused = open_stream(world, ADA, OTHER_ADDRESS)
    assert (first.status, refused.status) == (200, 429)
    assert b"There are too many streams of this user." in refused.transport.value()
    assert b"Retry-After: 1" in refused.transport.value()
    assert [open_stream(world, auth).status for auth in (ALAN, ADMIN, ADMIN)] == [200] * 3
    assert open_stream(world, ADA, project="blog").status == 200
    first.disconnect()
    assert open_stream(world, ADA).status == 200


def test_a_project_may_have_so_many_streams(tmp_path: pathlib.Path) -> None:
    world = RatedServer(tmp_path, attrs.evolve(SETTINGS.limits, streams_per_project=2))
    opened = [open_stream(world, auth) for auth in (ADA, ADMIN, ALAN)]
    assert [each.status for each in opened] == [200, 200, 429]
    assert b"There are too many streams of this project." in opened[2].transport.value()
    assert open_stream(world, ADA, project="blog").status == 200


# WebSockets.


class Socket:
    """A client of the real-time protocol, from an address."""

    def __init__(self, world: RatedServer, address: str = ADDRESS) -> None:
        self.world = world
        self.peer = world.connect(address)
        lines = [f"{name}: {text}" for name, text in upgrade_headers().items()]
        head = "\r\n".join(["GET /.ws?v=5 HTTP/1.1", "Host: shop.localhost", *lines, "", ""])
        self.peer.send(head.encode())
        data = self.peer.transport.value()
        assert data.startswith(b"HTTP/1.1 101 ")
        self._data = bytearray(data.partition(b"\r\n\r\n")[2])
        self.read()

    def read(self) -> list[tuple[int, bytes]]:
        """Return the frames that have come since the last call."""
        self.world.clock.advance(0)
        taken = self.peer.transport.value()
        self.peer.transport.clear()
        self._data += b"" if taken.startswith(b"HTTP") else taken
        frames = []
        while (frame := parse_frame(self._data)) is not None:
            frames.append((frame.opcode, frame.payload))
        return frames

    def send(self, *frames: bytes) -> list[tuple[int, bytes]]:
        """Send frames, and return those that have come."""
        self.peer.send(b"".join(frames))
        return self.read()

    def get(self) -> str:
        """Read the value; return the word of the answer."""
        request: dict[str, Any] = {"t": "d", "d": {"r": 1, "a": "g", "b": {"p": "/b"}}}
        ((_, answer),) = self.send(print_frame(TEXT, json.dumps(request).encode()))
        word: str = json.loads(answer)["d"]["b"]["s"]
        return word


CONTROL_PING = print_frame(TEXT, b'{"t":"c","d":{"t":"p","d":{}}}')


@pytest.mark.parametrize(
    "frames",
    [
        print_frame(PING) * 8,
        print_frame(PONG) * 8,
        CONTROL_PING * 8,
        print_frame(TEXT, b'{"t":"c","d":{}}') * 8,
        print_frame(TEXT, b"0") * 8,
        (print_frame(TEXT, b"", is_final=False) + print_frame(CONTINUATION, b"0")) * 4,
    ],
    ids=["ping", "pong", "control ping", "control", "keep-alive", "fragment"],
)
@pytest.mark.parametrize("setting", ["requests_per_address", "requests_per_project"])
def test_what_a_socket_sends_beside_requests_is_counted(
    tmp_path: pathlib.Path, frames: bytes, setting: str
) -> None:
    rates: dict[str, Any] = {setting: 10}
    world = RatedServer(tmp_path, **rates)
    socket = Socket(world)
    assert socket.get() == "ok"
    socket.send(frames)
    assert socket.get() == "unavailable"
    assert not socket.peer.is_closed


def test_a_socket_beyond_its_rate_is_read_later_and_loses_nothing(tmp_path: pathlib.Path) -> None:
    world = RatedServer(tmp_path, requests_per_address=10)
    socket = Socket(world)
    count = 2_000
    pongs = len(socket.send(CONTROL_PING * count))
    assert pongs < 200  # what is parsed in one step, with what there was
    turns = 0
    while pongs < count:
        assert socket.peer.transport.producerState == "paused"
        world.clock.advance(1)
        came = len(socket.read())
        assert came < 200
        pongs += came
        turns += 1
    assert turns >= 10
    world.clock.advance(5)
    assert socket.get() == "ok"
    assert not socket.peer.is_closed


def test_what_comes_one_by_one_is_read_later_too(tmp_path: pathlib.Path) -> None:
    world = RatedServer(tmp_path, requests_per_address=10)
    socket = Socket(world)
    pongs = sum(len(socket.send(CONTROL_PING)) for _ in range(30))
    assert pongs == 10
    world.clock.advance(10)
    assert len(socket.read()) == 20
    world.clock.advance(1.5)
    assert socket.get() == "ok"


def test_a_client_that_is_read_later_is_not_taken_for_gone(tmp_path: pathlib.Path) -> None:
    world = RatedServer(tmp_path, requests_per_address=1)
    socket = Socket(world)
    for _ in range(200):
        socket.send(CONTROL_PING * 3)
        world.clock.advance(1)
    assert not socket.peer.is_closed


def test_a_message_that_is_too_long_is_counted(tmp_path: pathlib.Path) -> None:
    limits = attrs.evolve(SETTINGS.limits, write_body_bytes=100, string_bytes=100)
    world = RatedServer(tmp_path, limits, requests_per_address=3)
    socket = Socket(world)
    request: dict[str, Any] = {"t": "d", "d": {"r": 7, "a": "q", "b": {"p": "x" * 1000}}}
    frame = print_frame(TEXT, json.dumps(request, separators=(",", ":")).encode())
    words = [json.loads(socket.send(frame)[0][1])["d"]["b"]["s"] for _ in range(3)]
    assert words == ["too_big", "too_big", "unavailable"]


def test_the_bytes_that_a_socket_sends_are_counted(tmp_path: pathlib.Path) -> None:
    world = RatedServer(tmp_path, bytes_per_address=10_000)
    socket = Socket(world)
    request: dict[str, Any] = {"t": "d", "d": {"r": 1, "a": "s", "b": {"c": "x" * 20_000}}}
    socket.send(print_frame(TEXT, json.dumps(request).encode()))
    world.clock.advance(0.5)
    assert world.ask("/b.json").status == 200  # it is counted from time to time
    world.clock.advance(0.5)
    assert world.ask("/b.json").status == 429
    assert world.ask("/b.json", address=OTHER_ADDRESS).status == 200


def test_the_pieces_of_a_long_message_count_as_one(tmp_path: pathlib.Path) -> None:
    world = RatedServer(tmp_path, requests_per_address=4)
    socket = Socket(world)
    request: dict[str, Any] = {
        "t": "d",
        "d": {"r": 1, "a": "p", "b": {"p": "/a", "d": "x" * 100_000}},
    }
    text = json.dumps(request, separators=(",", ":")).encode()
    pieces = [text[at : at + 16_384] for at in range(0, len(text), 16_384)]
    ((_, answer),) = socket.send(
        print_frame(TEXT, b"%d" % len(pieces)), *(print_frame(TEXT, each) for each in pieces)
    )
    assert json.loads(answer)["d"]["b"]["s"] == "ok"
    assert socket.get() == "ok"
    assert socket.get() == "unavailable"


def test_tiny_pieces_of_a_message_are_counted(tmp_path: pathlib.Path) -> None:
    world = RatedServer(tmp_path, requests_per_address=10)
    socket = Socket(world)
    socket.send(print_frame(TEXT, b"1000"), *[print_frame(TEXT, b"x")] * 20)
    assert world.ask().status == 429


def test_long_polling_is_counted_for_its_project(tmp_path: pathlib.Path) -> None:
    world = RatedServer(tmp_path, requests_per_project=2)
    assert world.statuses(3, target="/.lp?start=t&cb=1") == [200, 200, 429]
    assert world.ask(target="/.lp?start=t&cb=1", project="blog").status == 200


def test_what_is_left_for_the_end_of_a_stream_counts_as_a_write(tmp_path: pathlib.Path) -> None:
    world = RatedServer(tmp_path, writes_per_address=2, writes_per_project=3)
    end = quote('{"x":1}')

    def open_one(address: str) -> int:
        peer = world.connect(address)
        target = f"/a.json?onDisconnect={end}"
        head = f"GET {target} HTTP/1.1\r\nHost: shop.localhost\r\nAccept: text/event-stream"
        peer.send(head.encode() + b"\r\n\r\n")
        world.clock.advance(0)
        status = peer.status
        peer.disconnect()
        return status

    assert [open_one(ADDRESS) for _ in range(3)] == [200, 200, 429]
    assert [open_one(OTHER_ADDRESS) for _ in range(2)] == [200, 429]
    assert world.ask().status == 200


# The whole.


def test_without_a_limit_nothing_is_counted(tmp_path: pathlib.Path) -> None:
    assert RatedServer(tmp_path).resource.rates is None


class _NoTokens(Authenticator):
    """Knows nobody."""

    def __init__(self) -> None:
        super().__init__(lambda _: None, Clock(), lambda: WALL)


@given(
    rate=st.integers(1, 50),
    burst_s=st.sampled_from([0.5, 1.0, 4.0]),
    pauses=st.lists(st.floats(0, 2), max_size=60),
)
def test_no_caller_gets_more_than_a_burst_and_its_rate(
    rate: int, burst_s: float, pauses: list[float]
) -> None:
    clock = Clock()
    limits = RateLimits(burst_s=burst_s, requests_per_uid=rate)
    rates = Rates(limits, {}, _NoTokens(), clock.seconds)
    ada = Identity(False, {"uid": "ada"})
    allowed = 0
    for pause in pauses:
        clock.advance(pause)
        with contextlib.suppress(TooManyRequests):
            rates.take_user("shop", ada, is_write=False)
            allowed += 1
    most = max(burst_s, 1 / rate) * rate + clock.seconds() * rate
    assert allowed <= most + 1e-6


def test_however_many_callers_come_memory_is_bounded_and_those_who_go_on_are_refused() -> None:
    levels = Levels(kept=100)
    clock = Clock()
    rates = Rates(RateLimits(requests_per_uid=1), {}, _NoTokens(), clock.seconds, levels)
    busy = Identity(False, {"uid": "busy"})
    for _ in range(10):
        rates.take_user("shop", busy, is_write=False)
    for number in range(10_000):
        rates.take_user("shop", Identity(False, {"uid": str(number)}), is_write=False)
        if number % 50 == 0:
            with pytest.raises(TooManyRequests):
                rates.take_user("shop", busy, is_write=False)
    assert len(levels) <= 201
