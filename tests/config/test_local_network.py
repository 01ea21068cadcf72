from __future__ import annotations

import ipaddress
import socket
from typing import Any, NamedTuple

import ifaddr
import pytest

from treedbd.config.endpoints import LocalNetwork, find_addresses, find_local_network, names_of


class FoundAddress(NamedTuple):
    """An address as ifaddr finds it."""

    ip: Any


class FoundAdapter(NamedTuple):
    """An interface as ifaddr finds it."""

    ips: list[FoundAddress]


@pytest.mark.parametrize(
    ("host_name", "names"),
    [
        ("box", ("box", "box.local")),
        ("Box.", ("box", "box.local")),
        ("box.local", ("box.local", "box")),
        ("box.example.com", ("box.example.com", "box", "box.local")),
        ("localhost", ()),
        ("localhost.localdomain", ()),
        ("my_box", ()),
        ("bö", ()),
        ("", ()),
    ],
)
def test_the_names_of_a_machine(host_name: str, names: tuple[str, ...]) -> None:
    assert names_of(host_name) == names


def test_addresses_that_no_other_machine_reaches_are_left_out(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    ips = ["127.0.0.1", "192.168.7.5", ("::1", 0, 0), ("fe80::1", 0, 2), ("fd00::5", 0, 0)]
    adapters = [FoundAdapter([FoundAddress(ip) for ip in ips]), FoundAdapter([])]
    monkeypatch.setattr(ifaddr, "get_adapters", lambda: adapters)
    assert find_addresses() == ("192.168.7.5", "fd00::5")


def test_the_address_of_the_default_route_is_the_first(monkeypatch: pytest.MonkeyPatch) -> None:
    class Routed(socket.socket):
        def getsockname(self) -> Any:
            return ("10.0.0.9", 1) if self.family == socket.AF_INET else ("::1", 1)

    adapters = [FoundAdapter([FoundAddress("172.17.0.1"), FoundAddress("10.0.0.9")])]
    monkeypatch.setattr(ifaddr, "get_adapters", lambda: adapters)
    monkeypatch.setattr(socket, "socket", Routed)
    monkeypatch.setattr(Routed, "connect", lambda *_: None)
    assert find_addresses() == ("10.0.0.9", "172.17.0.1")


def test_a_system_that_tells_no_addresses_is_one_without(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse() -> None:
        raise PermissionError

    monkeypatch.setattr(ifaddr, "get_adapters", refuse)
    assert find_addresses() == ()


def test_this_machine_is_found_with_another_token_each_time() -> None:
    found, again = find_local_network(), find_local_network()
    assert found.admin_token != again.admin_token
    assert len(bytes.fromhex(found.admin_token)) * 8 >= 128
    assert (found.names, found.addresses) == (again.names, again.addresses)
    assert not [each for each in found.addresses if ipaddress.ip_address(each).is_loopback]


def test_the_token_is_not_shown_by_accident() -> None:
    network = LocalNetwork("hush", ("box",), ("10.0.0.9",))
    assert "hush" not in repr(network)
    assert network.hosts == ("box", "10.0.0.9", "*.local")
