from __future__ import annotations

import pathlib
import socket
from typing import Any

import attrs
import pytest
from twisted.internet import reactor
from twisted.internet.protocol import Factory
from twisted.logger import capturedLogs

from treedbd.config.endpoints import Endpoint
from treedbd.config.listening import NEXT_PORTS, CannotListen, CannotStart, Listening, PortInUse
from treedbd.config.settings import Settings, load_settings


class Machine:
    """A machine on which some ports are in use; nothing is really opened."""

    def __init__(self, *in_use: int) -> None:
        self.in_use = set(in_use)
        self.tried: list[int] = []

    def open(self, endpoint: Endpoint, *_: object) -> Any:
        """Open an endpoint as `Listening` does."""
        self.tried.append(endpoint.port)
        if endpoint.port in self.in_use:
            raise PortInUse(endpoint.text, "cannot be opened", "choose another port")
        return endpoint


def development(folder: pathlib.Path, **flags: object) -> Settings:
    """Return development mode's settings without TLS."""
    settings = load_settings(None, flags, folder)
    plain = tuple(each for each in settings.listen if not each.is_secure)
    return attrs.evolve(settings, listen=plain)


def test_the_next_port_that_is_free_is_taken_and_logged(tmp_path: pathlib.Path) -> None:
    machine = Machine(9000, 9001, 9002)
    listening = Listening(development(tmp_path), reactor, machine.open)
    with capturedLogs() as events:
        listening.open(Factory())
    ((endpoint, _),) = listening.ports
    assert endpoint.text == "tcp:9003:interface=127.0.0.1"
    assert "port=9003" in endpoint.twisted_string
    said = [each["log_format"].format(**each) for each in events if "port" in each]
    assert said == ["Port 9000 is in use, by another program: listening on 9003 instead."]


def test_not_every_port_is_tried(tmp_path: pathlib.Path) -> None:
    machine = Machine(*range(9000, 9200))
    with pytest.raises(CannotStart, match=r"tcp:9000:interface=127\.0\.0\.1 cannot be opened"):
        Listening(development(tmp_path), reactor, machine.open).open(Factory())
    assert machine.tried == list(range(9000, 9001 + NEXT_PORTS))


def test_an_endpoint_that_was_named_is_tried_once(tmp_path: pathlib.Path) -> None:
    machine = Machine(9000)
    settings = development(tmp_path, listen=["tcp:9000:interface=127.0.0.1"])
    with pytest.raises(CannotStart):
        Listening(settings, reactor, machine.open).open(Factory())
    assert machine.tried == [9000]


def test_only_a_port_in_use_is_replaced(tmp_path: pathlib.Path) -> None:
    def refuse(endpoint: Endpoint, *_: object) -> Any:
        raise CannotListen(endpoint.text, "cannot be opened (Permission denied)", "grant it")

    with pytest.raises(CannotStart, match="Permission denied"):
        Listening(development(tmp_path), reactor, refuse).open(Factory())


def test_a_port_in_use_is_recognised(tmp_path: pathlib.Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as used:
        flag = f"tcp:{used.getsockname()[1]}:interface=127.0.0.1"
        settings = development(tmp_path, listen=[flag])
        listening = Listening(settings, reactor)
        with pytest.raises(PortInUse):
            listening._open_here_or_next(settings.listen[0], Factory(), None)
