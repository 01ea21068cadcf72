from __future__ import annotations

import pytest

from treedbd.names import InvalidProxy, TrustedProxies, parse_trusted_proxies


@pytest.mark.parametrize(
    ("entries", "address", "expected"),
    [
        (["10.0.0.0/8"], "10.1.2.3", True),
        (["10.0.0.0/8"], "11.1.2.3", False),
        (["127.0.0.1"], "127.0.0.1", True),
        (["127.0.0.1"], "127.0.0.2", False),
        (["127.0.0.1"], "::ffff:127.0.0.1", True),
        (["::1"], "::1", True),
        (["::1"], "127.0.0.1", False),
        (["fe80::/10"], "fe80::1%eth0", True),
        (["unix"], "", True),
        (["unix"], "127.0.0.1", False),
        (["0.0.0.0/0", "::/0"], "", False),
        (["0.0.0.0/0"], "unix", False),
        (["10.0.0.1", "unix", "2001:db8::/32"], "2001:db8::5", True),
        ([], "127.0.0.1", False),
    ],
)
def test_a_peer_is_trusted_by_its_address(entries: list[str], address: str, expected: bool) -> None:
    assert parse_trusted_proxies(entries).trusts(address) is expected


@pytest.mark.parametrize("entry", ["", "proxy.example.com", "10.0.0.0/33", "Unix", "10.0.0.1:80"])
def test_what_is_no_address_is_refused_by_name(entry: str) -> None:
    with pytest.raises(InvalidProxy, match=f'^"{entry}" is neither an address'):
        parse_trusted_proxies(["127.0.0.1", entry])


def test_an_address_with_the_prefix_of_a_network_is_refused_with_the_network() -> None:
    with pytest.raises(InvalidProxy, match=r"the network is 10\.0\.0\.0/8"):
        parse_trusted_proxies(["10.1.2.3/8"])


def test_an_empty_list_is_false_and_equal_to_none() -> None:
    assert not parse_trusted_proxies([])
    assert parse_trusted_proxies(["unix"])
    assert parse_trusted_proxies([]) == TrustedProxies()
