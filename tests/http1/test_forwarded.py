"""What trusted proxies say of a request, for every form of what they and their clients send."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from treedbd.http1.proxies import ForwardedRequest, parse_node, read_forwarded
from treedbd.limits import Limits
from treedbd.names import parse_trusted_proxies

TRUSTED = parse_trusted_proxies(["10.0.0.0/8", "2001:db8:aaaa::/48"])


def read(**fields: str | list[str]) -> ForwardedRequest:
    """Read headers; `x_for` is X-Forwarded-For, `forwarded` Forwarded."""
    headers = {b"host": [b"db.example.com"]}
    for key, value in fields.items():
        name = key.replace("x_", "x-forwarded-").encode()
        values = [value] if isinstance(value, str) else value
        headers[name] = [each.encode("latin-1") for each in values]
    return read_forwarded(headers, TRUSTED.trusts)


def client_of(**fields: str | list[str]) -> str | None:
    client = read(**fields).client
    return None if client is None else client.host


def host_of(**fields: str | list[str]) -> bytes:
    (host,) = read(**fields).headers[b"host"]
    return host


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ("192.0.2.1", "192.0.2.1"),
        ("192.0.2.1, 10.0.0.1", "192.0.2.1"),
        ("192.0.2.1,10.0.0.1,10.0.0.2", "192.0.2.1"),
        ("6.6.6.6, 192.0.2.1", "192.0.2.1"),
        ("6.6.6.6, 192.0.2.1, 10.0.0.1", "192.0.2.1"),
        ("10.0.0.9, 192.0.2.1", "192.0.2.1"),
        ("10.0.0.9, 10.0.0.1", "10.0.0.9"),
        ("192.0.2.1:4711", "192.0.2.1"),
        ("2001:DB8::1", "2001:db8::1"),
        ("[2001:db8::1]", "2001:db8::1"),
        ("[2001:db8::1]:4711", "2001:db8::1"),
        ("192.0.2.1, 2001:db8:aaaa::1", "192.0.2.1"),
        ("::ffff:192.0.2.1", "192.0.2.1"),
        ("192.0.2.1, ::ffff:10.0.0.1", "192.0.2.1"),
        ("unknown", "unknown"),
        ("192.0.2.1, unknown", "unknown"),
        # What the client itself has sent changes nothing, however malformed.
        ('"<garbage>", , %%, 192.0.2.1', "192.0.2.1"),
        # What a trusted hop says badly is the word of that hop no more: the hop is the client.
        ("192.0.2.1, garbage, 10.0.0.1", "10.0.0.1"),
        ("192.0.2.1, , 10.0.0.1", "10.0.0.1"),
        ("192.0.2.1, garbage", None),
        ("192.0.2.1.5", None),
        ("999.0.2.1", None),
        ("fe80::1%eth0", None),
        ("192.0.2.1:99999999", None),
        ("localhost", None),
        ("", None),
    ],
)
def test_the_client_is_the_first_from_the_right_that_is_no_trusted_proxy(
    value: str, expected: str | None
) -> None:
    assert client_of(x_for=value) == expected


def test_several_fields_are_one_list() -> None:
    assert client_of(x_for=["6.6.6.6", "192.0.2.1, 10.0.0.1", "10.0.0.2"]) == "192.0.2.1"
    assert client_of(forwarded=["for=6.6.6.6", "for=192.0.2.1, for=10.0.0.1"]) == "192.0.2.1"


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ("for=192.0.2.1", "192.0.2.1"),
        ("For=192.0.2.1;proto=https;by=203.0.113.43", "192.0.2.1"),
        ('for="192.0.2.1:4711"', "192.0.2.1"),
        ('for="[2001:db8:cafe::17]:4711"', "2001:db8:cafe::17"),
        ('for="[2001:db8:cafe::17]"', "2001:db8:cafe::17"),
        ("for=_hidden", "_hidden"),
        ('for="_hidden:_port"', "_hidden"),
        ("for=unknown", "unknown"),
        ("for=6.6.6.6, for=192.0.2.1, for=10.0.0.1", "192.0.2.1"),
        ("for=6.6.6.6,, for=192.0.2.1 ,", "192.0.2.1"),
        ('for=192.0.2.1;ext="a, for=6.6.6.6"', "192.0.2.1"),
        (r'for=192.0.2.1;ext="a\", for=6.6.6.6;b="', "192.0.2.1"),
        (r'for="1\92.0.2.1"', "192.0.2.1"),
        # A client's malformed part before what the proxy appends.
        ('for="6.6.6.6, for=192.0.2.1', "192.0.2.1"),
        ('for="6.6.6.6, for="[2001:db8::1]";proto="https"', "2001:db8::1"),
        ('"\\, for=192.0.2.1;host="a"', "192.0.2.1"),
        (";;;=, for=192.0.2.1", "192.0.2.1"),
        # Malformed by the proxy itself.
        ("for=192.0.2.1;for=192.0.2.2", None),
        ("192.0.2.1", None),
        ('for="192.0.2.1', None),
        ("for=2001:db8::1", None),
        ("proto=https", None),
        ("for=192.0.2.1, proto=https, for=10.0.0.1", "10.0.0.1"),
    ],
)
def test_forwarded_is_read_as_rfc_7239_writes_it(value: str, expected: str | None) -> None:
    assert client_of(forwarded=value) == expected


def test_the_port_of_the_client_is_read() -> None:
    client = parse_node("[2001:db8::1]:4711")
    assert client is not None
    assert client.port == 4711


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({"x_proto": "https"}, True),
        ({"x_proto": "HTTP"}, False),
        ({"x_proto": "gopher"}, None),
        ({"x_proto": ""}, None),
        ({}, None),
        ({"forwarded": "proto=https"}, True),
        ({"forwarded": "for=192.0.2.1;proto=http"}, False),
        # The outermost trusted proxy knows how the client connected; the client may say anything.
        ({"x_for": "192.0.2.1, 10.0.0.1", "x_proto": "https, http"}, True),
        ({"x_for": "192.0.2.1", "x_proto": "https, http"}, False),
        ({"x_for": "192.0.2.1, 10.0.0.1", "x_proto": "https"}, True),
        ({"forwarded": "for=192.0.2.1;proto=https, for=10.0.0.1;proto=http"}, True),
        ({"forwarded": "for=6.6.6.6;proto=https, for=192.0.2.1;proto=http"}, False),
        ({"forwarded": "for=6.6.6.6;proto=https, for=192.0.2.1"}, None),
    ],
)
def test_the_scheme_is_that_by_which_the_client_reached_the_outermost_proxy(
    fields: dict[str, str], expected: bool | None
) -> None:
    assert read(**fields).secure is expected


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({}, b"db.example.com"),
        ({"x_host": "shop.example.com"}, b"shop.example.com"),
        ({"x_host": "shop.example.com:8443"}, b"shop.example.com:8443"),
        ({"x_host": "[::1]:80"}, b"[::1]:80"),
        ({"x_host": "a.example.com, shop.example.com"}, b"shop.example.com"),
        ({"x_host": "a b"}, b"db.example.com"),
        ({"x_host": "a/../b"}, b"db.example.com"),
        ({"x_host": "e\u00e4.example.com"}, b"db.example.com"),
        ({"x_host": "x" * 5000}, b"db.example.com"),
        ({"forwarded": 'host="shop.example.com:8443"'}, b"shop.example.com:8443"),
        ({"x_port": "8443"}, b"db.example.com:8443"),
        ({"x_port": "443", "x_proto": "https"}, b"db.example.com"),
        ({"x_port": "80", "x_proto": "https"}, b"db.example.com:80"),
        ({"x_port": "http"}, b"db.example.com"),
        ({"x_port": "8443", "x_host": "shop.example.com"}, b"shop.example.com:8443"),
        ({"x_port": "8443", "x_host": "shop.example.com:1"}, b"shop.example.com:1"),
    ],
)
def test_the_host_is_that_which_the_client_has_sent(
    fields: dict[str, str], expected: bytes
) -> None:
    assert host_of(**fields) == expected


def test_several_hosts_stay_an_error_whatever_is_forwarded() -> None:
    headers = {b"host": [b"a", b"b"], b"x-forwarded-host": [b"c"]}
    assert read_forwarded(headers, TRUSTED.trusts).headers[b"host"] == [b"a", b"b"]


def test_a_request_without_a_host_has_the_forwarded_one() -> None:
    found = read_forwarded({b"x-forwarded-host": [b"c"]}, TRUSTED.trusts)
    assert found.headers[b"host"] == [b"c"]


def test_families_of_headers_that_disagree_do_not_count() -> None:
    said = read(
        forwarded="for=6.6.6.6;proto=http;host=a.example.com",
        x_for="192.0.2.1",
        x_proto="https",
        x_host="b.example.com",
    )
    assert said.client is None
    assert said.secure is None
    assert said.headers[b"host"] == [b"db.example.com"]


def test_families_of_headers_that_agree_or_complete_each_other_count() -> None:
    said = read(
        forwarded='for="192.0.2.1:5";host=shop.example.com', x_for="192.0.2.1", x_proto="https"
    )
    assert said.client is not None
    assert said.client.host == "192.0.2.1"
    assert said.secure is True
    assert said.headers[b"host"] == [b"shop.example.com"]


_PIECES = [
    "for=",
    "10.0.0.1",
    "192.0.2.1",
    '"',
    "\\",
    ",",
    ";",
    " ",
    "=",
    "[::1]",
    "proto=https",
    "x",
]


@given(st.lists(st.sampled_from(_PIECES), max_size=12).map("".join), st.booleans())
def test_nothing_that_a_client_sends_before_it_changes_what_the_proxy_appends(
    garbage: str, is_quoted: bool
) -> None:
    own = 'for="192.0.2.9:1";proto="https"' if is_quoted else "for=192.0.2.9;proto=https"
    said = read(forwarded=f"{garbage}, {own}")
    assert said.client is not None
    assert said.client.host == "192.0.2.9"
    assert said.secure is True
    assert client_of(x_for=f"{garbage}, 192.0.2.9") == "192.0.2.9"


@pytest.mark.parametrize("unit", [",", " ,", ";", " ", "; ", '"', 'a="', "a=b,", '\\"', 'a="\\",'])
def test_the_longest_malformed_header_says_nothing(unit: str) -> None:
    # If this took more than linear time, it would take minutes.
    count = int(Limits().header_bytes) // len(unit)
    said = read(forwarded=[unit * count], x_for=[unit * count])
    assert said.client is None
    assert said.secure is None
