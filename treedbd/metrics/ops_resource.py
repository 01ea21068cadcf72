"""What the endpoints of `ops_listen` serve: `/.metrics` and `/.health`, and nothing else.

They are for those who run the service: no token is needed, every name and reason is shown, and no
page of a browser may read them, since no header of CORS allows it. A page whose name was made to
point at this machine (DNS rebinding) needs no such header: to clients on this machine the names of
others are refused.
"""

from __future__ import annotations

import socket
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, Final, TypeAlias

import attrs
import orjson
from twisted.internet.defer import Deferred
from twisted.logger import Logger
from twisted.python.failure import Failure
from twisted.web.resource import Resource
from twisted.web.server import NOT_DONE_YET
from zope.interface import implementer

from treedbd import __version__
from treedbd.config.endpoints import names_of
from treedbd.database.requests import SHUTTING_DOWN
from treedbd.database.runtime import Problem
from treedbd.http1.headers import Header, first
from treedbd.http1.interface import IHttp1Request, IHttp1Resource
from treedbd.http1.parser import ERROR_HEADERS, ErrorReply, format_body
from treedbd.loop import Turns
from treedbd.tree.types import InvalidPath
from treedbd.web.addressing import Addressing, Misdirected
from treedbd.web.origins import is_loopback_address
from treedbd.web.response import address_of

METHODS: Final = (b"GET", b"HEAD")
MAX_PROBLEMS: Final = 1000
"""Problems that are listed."""

_NOT_FOUND: Final = ErrorReply(
    404, "not_found", "There is nothing here but /.metrics and /.health."
)
_BAD_METHOD: Final = ErrorReply(405, "method_not_allowed", "The methods are GET and HEAD.")
_MISDIRECTED: Final = ErrorReply(
    421, "misdirected", "On this machine operators are served at localhost and at IP addresses."
)
_TOO_LARGE: Final = ErrorReply(413, "payload_too_large", "The request body is too large.")
_FAILED: Final = ErrorReply(
    500, "internal_error", "An internal error occurred; it has been logged."
)
_HEADERS: Final = tuple(each for each in ERROR_HEADERS if each[0] != b"Content-Type")
_JSON: Final = b"application/json; charset=utf-8"

Scrape: TypeAlias = Callable[[str], Awaitable[tuple[bytes, str]]]
"""Returns the metrics in the format that a header `Accept` prefers, and its media type."""


@attrs.frozen
class HealthReport:
    """How the service is: what is wrong, and how long turns last."""

    problems: list[Problem]
    turns: Turns | None

    def to_json(self) -> dict[str, Any]:
        """Return it as JSON; with problems it is an error as all are."""
        report: dict[str, Any] = {"status": "ok", "version": __version__}
        if self.problems:
            count = len(self.problems)
            what = "1 thing is" if count == 1 else f"{count} things are"
            report = {
                "error": "unavailable",
                "message": f"{what} not as it should be.",
                **report,
                "status": "unavailable",
            }
        report["problems"] = [attrs.asdict(each) for each in self.problems[:MAX_PROBLEMS]]
        if self.turns is not None:
            turns = self.turns.summarise()
            report["turns"] = {
                "count": turns.count,
                "p50_ms": round(turns.p50_s * 1000, 3),
                "p99_ms": round(turns.p99_s * 1000, 3),
                "longest_ms": round(turns.longest_s * 1000, 3),
            }
        return report


@implementer(IHttp1Resource)
class OpsResource(Resource):
    """The two pages.

    Attributes:
        is_ending: whether the service is stopping, so that it is not ready.
        turns: the turns of the event loop; None if they are not counted.

    """

    isLeaf = True
    _log = Logger()

    def __init__(
        self, scrape: Scrape, find_problems: Callable[[], Deferred[list[Problem]]]
    ) -> None:
        """Serve what these two return."""
        Resource.__init__(self)
        self.is_ending = False
        self.turns: Turns | None = None
        self._scrape = scrape
        self._find_problems = find_problems
        own_hosts = ("*.localhost", *names_of(socket.gethostname()))
        self._addressing: Final = Addressing((), "", own_hosts=own_hosts)
        self._pages: Final[dict[bytes, Callable[[IHttp1Request], Coroutine[Any, Any, None]]]] = {
            b"/.metrics": self._answer_metrics,
            b"/.health": self._answer_health,
        }

    def render(self, request: Any) -> int:
        """Answer a request, now or later."""
        page = self._pages.get(request.path)
        if page is None:
            _refuse(request, _NOT_FOUND)
        elif request.is_oversized:
            _refuse(request, _TOO_LARGE)
        elif request.method not in METHODS:
            _refuse(request, _BAD_METHOD, (b"Allow", b"GET, HEAD"))
        else:
            Deferred.fromCoroutine(page(request)).addErrback(self._fail, request)
        return NOT_DONE_YET

    def _fail(self, failure: Failure, request: IHttp1Request) -> None:
        self._log.failure("A request of an operator failed.", failure)
        _refuse(request, _FAILED)

    def _is_of_another_site(self, request: IHttp1Request) -> bool:
        """Return whether a client on this machine uses a name that is not one of this machine."""
        address = address_of(request)
        if not address or not is_loopback_address(address):
            return False
        try:
            self._addressing.check_host(request.headers.get(b"host", ()), None)
        except Misdirected:
            return True
        except InvalidPath:  # none, as of programs with HTTP/1.0
            return False
        return False

    async def _answer_metrics(self, request: IHttp1Request) -> None:
        if self._is_of_another_site(request):
            _refuse(request, _MISDIRECTED)
            return
        body, media_type = await self._scrape(first(request.headers, b"accept") or "")
        _send(request, 200, media_type.encode(), body)

    async def _answer_health(self, request: IHttp1Request) -> None:
        asked = {part.partition(b"=")[0] for part in request.uri.partition(b"?")[2].split(b"&")}
        if b"live" in asked:
            _send_json(request, 200, {"status": "ok"})
            return
        if self._is_of_another_site(request):
            _refuse(request, _MISDIRECTED)
            return
        if self.is_ending:
            _refuse(request, ErrorReply(503, "unavailable", SHUTTING_DOWN))
            return
        problems = await self._find_problems()
        if b"ready" in asked:
            problems = [each for each in problems if each.refuses_writes]
        report = HealthReport(problems, self.turns).to_json()
        _send_json(request, 503 if problems else 200, report)


def _send_json(request: IHttp1Request, status: int, report: dict[str, Any]) -> None:
    _send(request, status, _JSON, orjson.dumps(report))


def _send(
    request: IHttp1Request, status: int, media_type: bytes, body: bytes, *headers: Header
) -> None:
    request.send(status, ((b"Content-Type", media_type), *_HEADERS, *headers), body)


def _refuse(request: IHttp1Request, error: ErrorReply, *headers: Header) -> None:
    _send(request, error.status, _JSON, format_body(error), *headers)
