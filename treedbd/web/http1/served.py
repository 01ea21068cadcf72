"""What a factory serves, and what goes with it: who counts, bounds and logs requests, and more."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from math import inf
from typing import Any, Final, Protocol, TypeAlias

from attrs import frozen
from twisted.logger import Logger
from twisted.web.resource import IResource
from twisted.web.server import Site

from treedbd.held_bytes import HeldBytes
from treedbd.http1.headers import Header
from treedbd.http1.parser import ErrorReply, HeadMemory
from treedbd.http1.request import Request, identified
from treedbd.loop import Counting
from treedbd.names import NO_PROXIES, TrustedProxies
from treedbd.web.http1.proxied_request import proxied_request

_log: Final = Logger()

AnsweredRequest: TypeAlias = tuple[HeadMemory, bytes, int, float, int, int]
"""What its head asked, its method, the status of the reply, how many seconds it took, and the bytes
of the bodies: those sent and those received."""

AdaptRequests: TypeAlias = Callable[[type[Request]], type[Request]]
"""Returns the class of requests to be made in place of another one."""


class CountsRequests(Protocol):
    """What counts the answered requests.

    Attributes:
        answered: those that were not counted yet, which every connection adds to.

    """

    @property
    def answered(self) -> deque[AnsweredRequest]:
        """Those that were not counted yet."""

    def count(self) -> None:
        """Count them; called once a second while there are connections."""


class CountsCallers(Protocol):
    """What counts how much callers do (`web.rates`).

    Attributes:
        counts_bytes: whether it has to know of bytes.

    """

    @property
    def counts_bytes(self) -> bool:
        """Whether it has to know of bytes."""

    def refuse_malformed(self, address: str) -> ErrorReply | None:
        """Count what was no request; return what is sent if there were too many."""

    def note_answered(self, request: Any) -> None:
        """Count the bytes of an answered request."""

    def note_sent(self, request: Any, sent: int) -> None:
        """Count the bytes of a request of whose response so many were sent."""


@frozen
class RequestLogging:
    """What is called for requests, so that it can log them.

    `answered` is called with each answered request that took at least `least_s` seconds, `lost`
    with each whose client went before it was answered; they must show no more of its target than
    `shown_path`. If it `sends_ids`, each response has the id of its request.
    """

    answered: Callable[[Request], None]
    lost: Callable[[Request], None] | None = None
    least_s: float = 0.0
    sends_ids: bool = False


NO_LOGGING: Final = RequestLogging(lambda _: None, least_s=inf)


@frozen
class ServerOptions:
    """What a server does beside answering requests.

    It `logs` requests. `refusal_headers` are in what it refuses by itself, `secure_headers` in each
    reply to a request over TLS and in no other. `counts` are the connections of all processes that
    serve the same clients, None if there is one process. `activity` counts what clients request,
    and `rates` bound it. What `trusted_proxies` say of their clients counts. `adapt_requests`
    returns the class of requests to be made. What connections hold is charged to `held`; None for a
    server that counts it by itself.
    """

    logs: RequestLogging = NO_LOGGING
    refusal_headers: tuple[Header, ...] = ()
    secure_headers: tuple[Header, ...] = ()
    counts: Counting | None = None
    activity: CountsRequests | None = None
    rates: CountsCallers | None = None
    trusted_proxies: TrustedProxies = NO_PROXIES
    adapt_requests: AdaptRequests | None = None
    held: HeldBytes | None = None

    @property
    def note_bytes(self) -> Callable[[Request], None] | None:
        """What counts the bytes of an answered request; None if nothing has to."""
        if self.rates is None or not self.rates.counts_bytes:
            return None
        return self.rates.note_answered

    def request_classes(self) -> tuple[type[Request], type[Request]]:
        """Return the classes of the requests of clients, and of those by a trusted proxy."""
        own: type[Request] = Request
        proxied: type[Request] = proxied_request(self.trusted_proxies.trusts)
        adaptations: list[AdaptRequests] = [identified] if self.logs.sends_ids else []
        if self.adapt_requests is not None:
            adaptations.append(self.adapt_requests)
        for adapt in adaptations:
            own, proxied = adapt(own), adapt(proxied)
        return own, proxied


DEFAULT_OPTIONS: Final = ServerOptions()


@frozen
class ServedResource:
    """What answers the requests.

    A resource that `takes_oversized` (an `IHttp1Resource`) also gets requests whose body was too
    large to be received.
    """

    resource: IResource
    is_leaf: bool
    takes_oversized: bool
    site: Site
    options: ServerOptions


def log_request(log: Callable[[Request], None], request: Request) -> None:
    """Log a request; what goes wrong is logged, too, and concerns nobody else."""
    try:
        log(request)
    except Exception:
        _log.failure("A request could not be logged.")
