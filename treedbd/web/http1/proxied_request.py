"""A request that a trusted proxy has sent: it looks as the client sent it to the proxy."""

from __future__ import annotations

from collections.abc import Callable

from treedbd.web.http1.forwarded import ForwardedRequest, read_forwarded
from treedbd.web.http1.parser import Http1Parser
from treedbd.web.http1.reply import RequestConnection
from treedbd.web.http1.request import Request


class ProxiedRequest(Request):
    """One request of a client, and its reply, by way of a trusted proxy.

    Its address, its scheme and its Host header are those that the proxy names, else those of the
    connection. They are read once for each head.
    """

    came_by_trusted_proxy = True

    def __init__(
        self, trusts: Callable[[str], bool], connection: RequestConnection, parser: Http1Parser
    ) -> None:
        """Represent the request that `parser` has just completed.

        `trusts` returns whether an address is a proxy whose word counts.
        """
        super().__init__(connection, parser)
        found = parser.head_memory.forwarded
        if not isinstance(found, ForwardedRequest):
            found = parser.head_memory.forwarded = read_forwarded(parser.headers, trusts)
        self.headers = found.headers
        self._is_said_secure = found.secure
        if found.client is not None:
            self.client = found.client

    def isSecure(self) -> bool:
        """Return whether the client uses TLS."""
        return super().isSecure() if self._is_said_secure is None else self._is_said_secure
