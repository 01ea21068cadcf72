"""How routes are declared, what the dispatch knows of one, and those that are not of the tree."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Coroutine, Iterable, Mapping, Sequence
from functools import partial
from typing import Any, Final, NamedTuple, TypeAlias, TypeVar

from klein import Klein

from treedbd.http1.interface import IHttp1Request
from treedbd.web.methods import AllowedMethods, check_method
from treedbd.web.openapi.document import DeclaredRoute
from treedbd.web.options import WebOptions
from treedbd.web.request import RequestParser
from treedbd.web.response import Response, ResponseWriter

Answer: TypeAlias = Callable[[IHttp1Request], Coroutine[Any, Any, None]]
_Handler = TypeVar("_Handler", bound=Callable[..., Any])

ALL_METHODS: Final = ("GET", "HEAD", "PUT", "POST", "PATCH", "DELETE", "OPTIONS")
READ_METHODS: Final = ("GET", "HEAD", "OPTIONS")
PAGES: Final = frozenset({"root", "icon", "document", "document_file"})
"""The routes that are for browsers."""
REALTIME: Final = frozenset({"socket", "long_poll"})
"""The routes of the real-time protocol."""
UNDECLARED: Final = REALTIME | {"document_file"}
"""The routes that are in no description of the interface."""

_SUFFIX: Final = b".json"


class Route(NamedTuple):
    """One entry of the dispatch table."""

    answer: Answer
    allowed: AllowedMethods


def route_each(
    app: Klein, paths: Iterable[str], methods: Sequence[str]
) -> Callable[[_Handler], _Handler]:
    """Declare one handler for each of several paths."""

    def declare(handler: _Handler) -> _Handler:
        for path in paths:
            app.route(path, methods=methods)(handler)
        return handler

    return declare


def make_routes(
    resource: object, app: Klein, other: Callable[..., Coroutine[Any, Any, None]]
) -> dict[str, Route]:
    """Return the routes of `app` by their endpoints.

    A route is answered by the method of `resource` that has the name of its endpoint, or else by
    `other`, which is told the endpoint.
    """
    return {
        rule.endpoint: Route(
            getattr(resource, rule.endpoint, partial(other, endpoint=rule.endpoint)),
            AllowedMethods.of(rule.methods),
        )
        for rule in app.url_map.iter_rules()
    }


def split_segments(path: Iterable[bytes]) -> tuple[bytes, ...]:
    """Return the segments of a decoded path; `a/.json` names `a.json`."""
    segments = [segment for segment in path if segment]
    if segments[-1:] == [_SUFFIX] and len(segments) > 1:
        segments[-2:] = [segments[-2] + _SUFFIX]
    return tuple(segments)


def reserved_routes(app: Klein) -> dict[tuple[bytes, ...], str]:
    """Return the endpoints of the routes without variables, by the segments of their paths."""
    return {
        split_segments(rule.rule.encode().split(b"/")): rule.endpoint
        for rule in app.url_map.iter_rules()
        if not rule.arguments
    }


def reserved_answers(
    routes: Mapping[str, Route],
    reserved: Mapping[tuple[bytes, ...], str],
    without: frozenset[str],
) -> dict[tuple[bytes, ...], Answer]:
    """Return what answers each reserved path.

    The paths of the endpoints that the service is `without` are as all others of the tree.
    """
    return {
        segments: routes[endpoint].answer
        for segments, endpoint in reserved.items()
        if endpoint not in without
    }


def declared_routes(app: Klein, without: frozenset[str]) -> list[DeclaredRoute]:
    """Return the routes of `app` as they are declared, but those `without` which the service is.

    Those of the real-time protocol are never among them: it has another kind of requests. Nor are
    the files beside the pages of the documentation, which no client needs.
    """
    return [
        DeclaredRoute(rule.rule, rule.endpoint, frozenset(rule.methods or ()))
        for rule in app.url_map.iter_rules()
        if rule.endpoint not in without | UNDECLARED
    ]


def missing_endpoints(options: WebOptions) -> frozenset[str]:
    """Return the endpoints that a service with these options is without."""
    pages = frozenset() if options.has_page else PAGES
    return pages if options.has_realtime else pages | REALTIME


class ApartFromTree:
    """Answers requests for what belongs to no database: health, pages for browsers."""

    def __init__(
        self,
        parser: RequestParser,
        writer: ResponseWriter,
        refuse: Callable[[IHttp1Request, Exception], None],
    ) -> None:
        self._parser = parser
        self._writer = writer
        self._refuse = refuse

    async def answer(
        self,
        request: IHttp1Request,
        route: Route,
        handler: Callable[[IHttp1Request], Awaitable[Response]],
        *,
        is_health: bool = False,
    ) -> None:
        """Answer a request for one route by a handler; health at any host, never stored."""
        allowed = route.allowed
        try:
            if not is_health:
                self._parser.check_host(request)
            if request.method == b"OPTIONS":
                response = self._writer.preflight(request, allowed.header)
            else:
                check_method(request.method, allowed)
                response = await handler(request)
            self._writer.send(request, response, no_store=is_health)
        except Exception as error:
            self._refuse(request, error)
