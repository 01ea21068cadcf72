"""Endpoint strings: what is parsed of them, and what the errors say when one does not open."""

from __future__ import annotations

import contextlib
import errno
import pathlib
from typing import Any

import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st
from twisted.internet.error import CannotListenError
from twisted.internet.interfaces import IListeningPort
from twisted.internet.protocol import Factory
from twisted.internet.testing import MemoryReactor
from twisted.python.reflect import namedAny

from tests.rights import someone_else
from treedbd.config.endpoints import InvalidEndpoint, parse_endpoint
from treedbd.config.listening import CannotListen, open_endpoint

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
        ("haproxy:tcp:1:interface=127.0.0.1", True),
        ("haproxy:ssl:1", False),
    ],
)
def test_an_endpoint_is_loopback_if_others_cannot_connect(text: str, is_loopback: bool) -> None:
    assert parse_endpoint(text, ROOT).is_loopback is is_loopback


def test_an_endpoint_is_described_with_absolute_paths() -> None:
    folder = pathlib.Path("/a:b")
    assert parse_endpoint("unix:s", folder).twisted_string == r"unix:mode=660:address=/a\:b/s"
    tls = parse_endpoint("ssl:port=1:privateKey=k:extraCertChain=/c:dhParameters=p", folder)
    assert tls.certificate is not None
    assert tls.certificate.chain == pathlib.Path("/c")
    assert tls.certificate.parameters == pathlib.Path("/a:b/p")


def test_a_passed_socket_is_named_and_may_have_a_certificate() -> None:
    plain = parse_endpoint("systemd:web", ROOT)
    assert (plain.is_passed, plain.is_secure) == (True, False)
    assert plain.twisted_string == "systemd:domain=INET:name=web"
    assert parse_endpoint("systemd:domain=INET6:name=web", ROOT).twisted_string == (
        plain.twisted_string
    )
    assert parse_endpoint("systemd:index=2", ROOT).twisted_string == "systemd:domain=INET:index=2"
    secure = parse_endpoint("systemd:web:privateKey=k:certKey=c", pathlib.Path("/etc/treedb"))
    assert secure.is_secure
    assert secure.certificate is not None
    assert secure.certificate.key == pathlib.Path("/etc/treedb/k")


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("systemd:", "needs the name of a socket"),
        ("systemd:domain=INET", "needs the name of a socket"),
        ("systemd:web:index=0", "or its index, not both"),
        ("systemd:index=x", "the index of systemd is a number"),
        ("systemd:index=-1", "the index of systemd is a number"),
        ("systemd:web:domain=IPX", "one of INET, INET6, UNIX"),
        ("systemd:web:certKey=c", "needs its privateKey"),
        ("systemd:web:port=1", "is not a parameter of systemd"),
        ("haproxy:haproxy:tcp:1", "haproxy twice"),
        ("haproxy:pigeon:1", "unknown kind"),
        ("haproxy:tcp:99999", "the port of tcp"),
        ("haproxy", "is not an endpoint"),
        ("haproxy:", "is not an endpoint"),
    ],
)
def test_the_error_of_a_passed_or_proxied_endpoint_says_what_is_wrong(
    text: str, problem: str
) -> None:
    with pytest.raises(InvalidEndpoint, match=problem):
        parse_endpoint(text, ROOT)


def test_an_endpoint_behind_a_proxy_is_the_endpoint_within() -> None:
    folder = pathlib.Path("/etc/treedb")
    inner = "ssl:8443:privateKey=k:interface=127.0.0.1"
    proxied = parse_endpoint(f"haproxy:{inner}", folder)
    assert proxied.is_proxied
    assert proxied.text == f"haproxy:{inner}"
    within = parse_endpoint(inner, folder)
    assert attrs.evolve(proxied, text=inner, is_proxied=False) == within
    assert not within.is_proxied


@pytest.mark.parametrize("text", ["", ":", "tcp", "tcp:", "tcp:1:2:3:4", "tcp:99999", "tcp:x=1"])
def test_text_that_is_not_an_endpoint_is_refused(text: str) -> None:
    with pytest.raises(InvalidEndpoint):
        parse_endpoint(text, ROOT)


@given(st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), min_size=1))
def test_any_text_is_an_endpoint_or_refused(text: str) -> None:
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
        assert reactor.unixServers[0][3] == 0o660
    else:
        port, _, backlog, interface = reactor.tcpServers[0]
        assert (port, backlog) == (8080, 1024)
        assert interface in {"127.0.0.1", "::1"}


@pytest.mark.parametrize("text", ["carrier-pigeon:1", "stdio:", "tls:8443", "http:80"])
def test_the_error_of_an_unknown_kind_of_endpoint_names_the_known_ones(
    text: str,
) -> None:
    with pytest.raises(InvalidEndpoint, match="kinds are tcp, tcp6, ssl, unix, systemd, haproxy"):
        parse_endpoint(text, ROOT)


@pytest.mark.parametrize("text", ["ssl:1:k:c:TLSv1_METHOD", "ssl:1:k:c:sslmethod=SSLv23_METHOD"])
def test_a_parameter_without_effect_is_refused(text: str) -> None:
    with pytest.raises(InvalidEndpoint, match="has no effect"):
        parse_endpoint(text, ROOT)


def open_error(text: str) -> str:
    """Return the sentence of the error with which an endpoint does not open."""
    with pytest.raises(CannotListen) as caught:
        open_endpoint(
            parse_endpoint(text, ROOT), namedAny("twisted.internet.reactor"), Factory(), None
        )
    sentence = str(caught.value)
    assert sentence.startswith(f"{text} cannot be opened (")
    assert sentence.endswith(".")
    return sentence


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("tcp:0:backlog=1:interface=256.0.0.1", ""),
        ("tcp:0:interface=192.0.2.1", "assign requested address): use an address of this"),
        ("systemd:domain=INET:index=9", "has passed no such socket): start the socket unit"),
        ("systemd:web", "has passed no such socket): start the socket unit"),
        ("unix:/nowhere/socket", "No such file or directory"),
    ],
)
def test_the_error_of_an_endpoint_names_it_and_says_what_to_do(text: str, problem: str) -> None:
    assert problem in open_error(text)


class DenyingReactor(MemoryReactor):
    """A reactor whose user may not listen on ports below 1024."""

    def listenTCP(
        self, port: int, factory: Any, backlog: int = 50, interface: str = ""
    ) -> IListeningPort:
        """Raise the error that the kernel's refusal causes."""
        denied = PermissionError(errno.EACCES, "Permission denied")
        raise CannotListenError(interface, port, denied)


def test_the_error_of_a_forbidden_endpoint_names_the_capability(
    tmp_path: pathlib.Path,
) -> None:
    with pytest.raises(CannotListen, match="below 1024 needs the capability CAP_NET_BIND_SERVICE"):
        open_endpoint(parse_endpoint("tcp:443", ROOT), DenyingReactor(), Factory(), None)
    (tmp_path / "locked").mkdir(mode=0o500)
    with someone_else(tmp_path):
        assert "write to its directory" in open_error(f"unix:{tmp_path}/locked/socket")
