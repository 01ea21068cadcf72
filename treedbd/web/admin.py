"""The resources of admins: the rules of a project, and the list of its databases."""

from __future__ import annotations

from treedbd.database.catalog import Catalog
from treedbd.database.database import Database
from treedbd.web.auth.authenticator import Authenticator
from treedbd.web.auth.identity import require_admin
from treedbd.web.explain import NO_RULES, explanation
from treedbd.web.http1.interface import IHttp1Request
from treedbd.web.parameters import parse_choice
from treedbd.web.representation import json_response, text_response
from treedbd.web.request import DataRequest
from treedbd.web.response import Response
from treedbd.web.write import read_body


class AdminHandlers:
    """Handles what only an admin of a project may read and set."""

    def __init__(self, authenticator: Authenticator, catalog: Catalog) -> None:
        """Serve `catalog` to the callers that `authenticator` identifies as admins."""
        self._authenticator = authenticator
        self._catalog = catalog

    async def rules(
        self, request: IHttp1Request, wanted: DataRequest, database: Database
    ) -> Response:
        """Read, check or replace the rules of a project."""
        is_dry_run = parse_choice(wanted.parameters, "dryRun", "true", "false") == "true"
        is_strict = parse_choice(wanted.parameters, "format", "strict") is not None
        await self._require_admin(wanted, database, "Access to the rules")
        rules = database.rules
        if wanted.wants_explanation:
            return _explain(wanted)
        if wanted.method == b"PUT":
            body = read_body(request)
            if is_dry_run:
                rules.parse(body)
            else:
                await rules.put(body)
            return json_response(wanted, {"status": "ok"})
        if is_strict:
            return json_response(wanted, rules.current.as_json())
        return text_response(wanted, rules.current.text.encode())

    async def databases(
        self, _: IHttp1Request, wanted: DataRequest, database: Database
    ) -> Response:
        """List the databases of a project."""
        await self._require_admin(wanted, database, "Access to the list of databases")
        if wanted.wants_explanation:
            return _explain(wanted)
        names = self._catalog.names(database.project)
        return json_response(wanted, [{"name": each.label} for each in names])

    async def _require_admin(self, wanted: DataRequest, database: Database, what: str) -> None:
        """Raise unless the caller is an admin of the project."""
        identity = await self._authenticator.identify(
            database.name.project, wanted.token, None, wanted.timeout_s
        )
        require_admin(identity, what)


def _explain(wanted: DataRequest) -> Response:
    """Return the explanation of a request that no rule decides."""
    return json_response(wanted, explanation(NO_RULES, is_admin=True))
