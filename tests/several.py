"""Services of several processes: which clients and streams reach each of them."""

from __future__ import annotations

import contextlib
import pathlib
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from typing import Final, TypeAlias, TypeVar

from tests.closing import Closing
from tests.daemon import Daemon
from tests.realtime import RealtimeClient
from tests.rest import Client, Headers, Wire
from tests.served import Cluster, Served, make_workers
from tests.sse import EventStream
from tests.websocket import TARGET
from tests.workers_of import one_of_each

C = TypeVar("C", bound=Closing)

Service: TypeAlias = Served
"""Daemons that serve the same databases; a single one has two workers."""


class Several(Closing):
    """The processes of a service, and a tree of a test that all of them serve.

    Attributes:
        host: the Host header that names the tree.

    """

    def __init__(self, service: Service) -> None:
        """Use a tree that nobody else uses."""
        self._daemons: Final = service.daemons
        self._open = contextlib.ExitStack()
        self.use_new_tree()

    def use_new_tree(self) -> None:
        """Use another tree from now on."""
        self.host = Client.of_new_tree(self._daemons[0]).host

    def clients(self) -> list[Client]:
        """Return clients of the tree, one for each process."""

        def make(daemon: Daemon) -> Client:
            client = Client(daemon, self.host)
            client.request("GET", "/.health")
            return client

        return self._one_of_each(make, lambda client: client.wire)

    def open_streams(self, target: str, headers: Headers = ()) -> list[EventStream]:
        """Return streams of a target, one at each process."""

        def make(daemon: Daemon) -> EventStream:
            return EventStream(Client(daemon, self.host), target, headers)

        return self._one_of_each(make, lambda stream: stream.wire)

    def streams(self, target: str) -> list[EventStream]:
        """Return streams of a target, one at each process, after their first value."""
        streams = self.open_streams(target)
        for stream in streams:
            stream.next_change()
        return streams

    def sockets(self, target: str = TARGET) -> list[RealtimeClient]:
        """Return clients of the real-time protocol, one at each process."""

        def make(daemon: Daemon) -> RealtimeClient:
            return RealtimeClient(Client(daemon, self.host), target)

        return self._one_of_each(make, lambda client: client.wire)

    def close(self) -> None:
        """Close all clients and streams."""
        self._open.close()

    def _one_of_each(self, make: Callable[[Daemon], C], wire_of: Callable[[C], Wire]) -> list[C]:
        if len(self._daemons) == 1:
            (daemon,) = self._daemons
            made = one_of_each(daemon, lambda: make(daemon), lambda each: wire_of(each).socket)
        else:
            made = [make(daemon) for daemon in self._daemons]
        for each in made:
            self._open.enter_context(each)
        return made


KINDS: Final[Mapping[str, Callable[[pathlib.Path], AbstractContextManager[Service]]]] = {
    "workers": make_workers,
    "postgresql": Cluster,
}
