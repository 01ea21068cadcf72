"""Endpoint strings: what they say before anything opens."""

from __future__ import annotations

import contextlib
import pathlib

import pytest
from hypothesis import given
from hypothesis import strategies as st
from twisted.internet.protocol import Factory
from twisted.internet.testing import MemoryReactor
from twisted.python.reflect import namedAny

from treedbd.endpoints import CannotListen, InvalidEndpoint, open_endpoint, parse_endpoint

ROOT = pathlib.Path("/")


@pytest.mark.parametrize(
    ("text", "is_loopback"),
    [
        ("tcp:1:interface=127.0.0.1", True),
        ("tcp:1:127.0.0.2", True),
        ("tcp:1:interface=localhost", True),
        (r"tcp6:1:interface=\:\:1", True),
        (r"ssl:1:interface=\:\:1", True),
        ("unix:/run/treedb", True),
        ("tcp:1", False),
        ("tcp6:1", False),
        ("tcp:1:interface=0.0.0.0", False),
        ("ssl:1:interface=192.0.2.1", False),
        ("systemd:domain=INET:index=0", False),
    ],
)
def test_an_endpoint_knows_whether_others_can_reach_it(text: str, is_loopback: bool) -> None:
    assert parse_endpoint(text, ROOT).is_loopback is is_loopback


def test_an_endpoint_is_described_with_absolute_paths() -> None:
    folder = pathlib.Path("/a:b")
    assert parse_endpoint("unix:s", folder).described == r"unix:address=/a\:b/s"
    tls = parse_endpoint("ssl:port=1:privateKey=k:extraCertChain=/c:dhParameters=p", folder)
    assert tls.certificate is not None
    assert tls.certificate.chain == pathlib.Path("/c")
    assert tls.certificate.parameters == pathlib.Path("/a:b/p")


@pytest.mark.parametrize("text", ["", ":", "tcp", "tcp:", "tcp:1:2:3:4", "tcp:99999", "tcp:x=1"])
def test_what_is_no_endpoint_is_refused(text: str) -> None:
    with pytest.raises(InvalidEndpoint):
        parse_endpoint(text, ROOT)


@given(st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), min_size=1))
def test_any_text_is_an_endpoint_or_refused_as_one(text: str) -> None:
    with contextlib.suppress(InvalidEndpoint):
        assert parse_endpoint(text, ROOT).kind


@pytest.mark.parametrize(
    "text", ["tcp:8080:interface=127.0.0.1", r"tcp6:8080:interface=\:\:1", "unix:/run/treedb"]
)
def test_an_endpoint_opens_as_twisted_would_open_it(text: str) -> None:
    reactor = MemoryReactor()
    open_endpoint(parse_endpoint(text, ROOT), reactor, Factory(), None)
    if text.startswith("unix"):
        assert reactor.unixServers[0][0] == "/run/treedb"
    else:
        port, _, backlog, interface = reactor.tcpServers[0]
        assert (port, backlog) == (8080, 1024)
        assert interface in {"127.0.0.1", "::1"}


@pytest.mark.parametrize(
    "text",
    ["carrier-pigeon:1", "tcp:0:backlog=1:interface=256.0.0.1", "systemd:domain=INET:index=9"],
)
def test_an_endpoint_that_does_not_open_says_which(text: str) -> None:
    endpoint = parse_endpoint(text, ROOT)
    with pytest.raises(CannotListen) as caught:
        open_endpoint(endpoint, namedAny("twisted.internet.reactor"), Factory(), None)
    assert str(caught.value).startswith(f"Cannot listen on {text} (")
