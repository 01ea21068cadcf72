"""A request that a trusted proxy has sent: it looks as the client sent it to the proxy."""

from __future__ import annotations

from collections.abc import Callable

from treedbd.http1.parser import Http1Parser
from treedbd.http1.request import Request, RequestConnection
from treedbd.web.http1.forwarded import ForwardedRequest, read_forwarded


class ProxiedRequest(Request):
    """One request of a client, and its reply, by way of a trusted proxy.

    Its address, its scheme and its Host header are those that the proxy names, else those of the
    connection. They are read once for each head.

    Attributes:
        trusts: returns whether an address is that of a proxy whose word counts.

    """

    came_by_trusted_proxy = True
    trusts: Callable[[str], bool]

    def __init__(self, connection: RequestConnection, parser: Http1Parser) -> None:
        """Represent the request that `parser` has just completed."""
        super().__init__(connection, parser)
        found = parser.head_memory.forwarded
        if not isinstance(found, ForwardedRequest):
            found = parser.head_memory.forwarded = read_forwarded(parser.headers, self.trusts)
        self.headers = found.headers
        self._is_said_secure = found.secure
        if found.client is not None:
            self.client = found.client

    def isSecure(self) -> bool:
        """Return whether the client uses TLS."""
        return super().isSecure() if self._is_said_secure is None else self._is_said_secure


def proxied_request(trusts: Callable[[str], bool]) -> type[ProxiedRequest]:
    """Return the class of the requests from proxies; `trusts` says which addresses are theirs."""
    return type(ProxiedRequest.__name__, (ProxiedRequest,), {"trusts": staticmethod(trusts)})
