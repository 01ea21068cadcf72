"""The health of the service, `/.health`: a word for everyone, reasons for admins.

It answers at any host and whatever else the request says. `?live` asks whether the process answers;
`?ready` whether it would serve a write: to the database that the request addresses, to every one if
it addresses none. `?database` asks which database the request addresses: admins of its project may
know, and everyone in development mode. Without any, everything must be as it should be.
"""

from __future__ import annotations

import json
from typing import Final

import attrs

from treedbd.database.catalog import Catalog
from treedbd.database.requests import SHUTTING_DOWN, DeadlinePassed, Unavailable
from treedbd.database.runtime import Problem
from treedbd.http1.interface import IHttp1Request
from treedbd.limits import DEFAULT_TIMEOUT_S
from treedbd.loop import Turns
from treedbd.names import DatabaseName
from treedbd.rules.ruleset import OPEN
from treedbd.tree.types import InvalidPath, InvalidQuery
from treedbd.web.auth.authenticator import Authenticator
from treedbd.web.auth.host_login import IdentifyFailed
from treedbd.web.auth.identity import AuthRequired, Identity, NotAdmin
from treedbd.web.auth.jwt import BadToken
from treedbd.web.auth.providers import ProviderUnavailable
from treedbd.web.context import Users
from treedbd.web.origins import ForeignOrigin
from treedbd.web.request import RequestParser, find_token
from treedbd.web.response import JSON_TYPE, Response

OK: Final = Response(200, b'{"status":"ok"}', (JSON_TYPE,))

_NO_ADMIN: Final = (
    *(BadToken, AuthRequired, NotAdmin, ProviderUnavailable, DeadlinePassed),
    *(IdentifyFailed, ForeignOrigin),
)


@attrs.frozen
class _Caller:
    """What a request to `/.health` addresses, None for nothing, and the token it carries.

    `identity` is who sends it, if the program that embeds the service says so.
    """

    name: DatabaseName | None
    token: str | None
    identity: Identity | None = None


class Health:
    """Answers how the databases of a catalog are.

    Attributes:
        turns: the turns of the process; None if nobody counts them.
        is_ending: whether the server is stopping.

    """

    def __init__(
        self,
        catalog: Catalog,
        authenticator: Authenticator,
        parser: RequestParser,
        users: Users | None = None,
    ) -> None:
        """Tell reasons and turns to the callers that `authenticator` identifies as admins.

        `users` says who is logged in; None if only tokens say who sends a request.
        """
        self._users = users
        self._catalog = catalog
        self._authenticator = authenticator
        self._parser = parser
        self.turns: Turns | None = None
        self.is_ending = False

    async def check(self, request: IHttp1Request) -> Response:
        """Return the response to a GET; raise `Unavailable` if anything asked for is wrong."""
        questions = {part.partition(b"=")[0] for part in request.uri.partition(b"?")[2].split(b"&")}
        if b"live" in questions:
            return OK
        if self.is_ending:
            raise Unavailable(SHUTTING_DOWN)
        caller = attrs.evolve(self._parse(request), identity=await self._find_user(request))
        if b"database" in questions:
            return await self._name_database(caller)
        problems = await self._catalog.find_problems()
        if b"ready" in questions:
            problems = [each for each in problems if _prevents_write(each, caller.name)]
        if not problems:
            return await self._show_turns(caller)
        raise Unavailable(await self._describe(problems, caller))

    def _parse(self, request: IHttp1Request) -> _Caller:
        """Return the caller; nothing in a request is an error here."""
        try:
            location = self._parser.locate(request)
            return _Caller(location.name, find_token(request.headers, location.parameters))
        except (InvalidPath, InvalidQuery, LookupError):
            return _Caller(None, None)

    async def _name_database(self, caller: _Caller) -> Response:
        """Return the label of the database that a request addresses, if its caller may know it."""
        name = caller.name
        is_open = name is not None and self._catalog.rules(name.project).current is OPEN
        if name is None or not (is_open or await self._is_admin(name.project, caller)):
            return OK
        body = json.dumps({"status": "ok", "database": name.label}, separators=(",", ":"))
        return Response(200, body.encode(), (JSON_TYPE,))

    async def _describe(self, problems: list[Problem], caller: _Caller) -> str:
        """Return what a caller may know: the problems of the project that he is an admin of."""
        shown = []
        if caller.name is not None and await self._is_admin(caller.name.project, caller):
            shown = [str(each) for each in problems if each.project == caller.name.project]
        return " ".join(shown) or "Not everything can be served at present."

    async def _show_turns(self, caller: _Caller) -> Response:
        """Return that all is well, to an admin with how long the turns of the process last."""
        is_unknown = caller.token is None and caller.identity is None
        if self.turns is None or caller.name is None or is_unknown:
            return OK
        if not await self._is_admin(caller.name.project, caller):
            return OK
        turns = self.turns.summarise()
        shown = {
            "count": turns.count,
            "p50_ms": _in_ms(turns.p50_s),
            "p99_ms": _in_ms(turns.p99_s),
            "longest_ms": _in_ms(turns.longest_s),
        }
        body = json.dumps({"status": "ok", "turns": shown}, separators=(",", ":"))
        return Response(200, body.encode(), (JSON_TYPE,))

    async def _find_user(self, request: IHttp1Request) -> Identity | None:
        """Return who is logged in; nobody, if that cannot be said."""
        try:
            return (
                None if self._users is None else await self._users.find(request, DEFAULT_TIMEOUT_S)
            )
        except _NO_ADMIN:
            return None

    async def _is_admin(self, project: str, caller: _Caller) -> bool:
        try:
            identity = await self._authenticator.identify(
                project, caller.token, None, DEFAULT_TIMEOUT_S, caller.identity
            )
        except _NO_ADMIN:
            return False
        return identity.is_admin


def _in_ms(seconds: float) -> float:
    return round(seconds * 1000, 3)


def _prevents_write(problem: Problem, name: DatabaseName | None) -> bool:
    if not problem.refuses_writes:
        return False
    return name is None or (problem.project, problem.database) in (
        (name.project, name.database),
        (name.project, None),
    )
