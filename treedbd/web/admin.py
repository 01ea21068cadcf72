"""The reserved places of administrators, as Klein routes: rules, and the list of databases."""

from __future__ import annotations

from typing import Any, Final

from klein import Klein
from twisted.internet.defer import Deferred
from twisted.web.server import Request

from treedbd.database.catalog import Catalog
from treedbd.web.answer import Reply
from treedbd.web.ask import Ask, Reader
from treedbd.web.explain import NO_RULES, explanation
from treedbd.web.identity.gate import Gate
from treedbd.web.identity.identity import require_admin
from treedbd.web.parameters import parse_choice
from treedbd.web.send import Sender
from treedbd.web.shape import json_reply, text_reply

RULES_METHODS: Final = b"GET, HEAD, PUT, OPTIONS"
DATABASES_METHODS: Final = b"GET, HEAD, OPTIONS"


class AdminRoutes:
    """What only an administrator of a project may read and set."""

    def __init__(self, reader: Reader, gate: Gate, catalog: Catalog, sender: Sender) -> None:
        """Answer from `catalog` those whom `gate` knows for admins."""
        self._reader = reader
        self._gate = gate
        self._catalog = catalog
        self._sender = sender

    def add_to(self, app: Klein) -> None:
        """Add the routes to an application."""
        app.route("/.settings/rules.json")(self._rules)
        app.route("/.inspect/databases.json")(self._databases)

    async def _rules(self, request: Request) -> bytes:
        if request.method == b"OPTIONS":
            return self._preflight(request, RULES_METHODS)
        ask = self._reader.read(request, RULES_METHODS)
        is_dry = parse_choice(ask.parameters, "dryRun", "true", "false") == "true"
        is_strict = parse_choice(ask.parameters, "format", "strict") is not None
        await self._admit(ask, "Access to the rules")
        rulebook = self._catalog.rulebook(ask.name.project)
        if ask.wants_explanation:
            reply = _explain(ask)
        elif ask.method == b"PUT":
            body = request.content.read() if request.content is not None else b""
            if is_dry:
                rulebook.parse(body)
            else:
                await rulebook.put(body)
            reply = json_reply(ask, {"status": "ok"})
        elif is_strict:
            reply = json_reply(ask, rulebook.rules.as_json())
        else:
            reply = text_reply(ask, rulebook.rules.text.encode())
        return self._sender.prepare(request, reply)

    async def _databases(self, request: Request) -> bytes:
        if request.method == b"OPTIONS":
            return self._preflight(request, DATABASES_METHODS)
        ask = self._reader.read(request, DATABASES_METHODS)
        await self._admit(ask, "Access to the list of databases")
        if ask.wants_explanation:
            return self._sender.prepare(request, _explain(ask))
        names = self._catalog.names(ask.name.project)
        reply = json_reply(ask, [{"name": name.label} for name in names])
        return self._sender.prepare(request, reply)

    async def _admit(self, ask: Ask, what: str) -> None:
        """Raise whatever keeps who asks from being an admin."""
        found: Any = self._gate.identify(ask.name.project, ask.token, None)
        identity = await found if isinstance(found, Deferred) else found
        require_admin(identity, what)

    def _preflight(self, request: Request, allowed: bytes) -> bytes:
        self._reader.check_host(request)
        return self._sender.prepare(request, self._sender.preflight(request, allowed))


def _explain(ask: Ask) -> Reply:
    """Return what an admin is told in place of an answer: no rule bears on these places."""
    return json_reply(ask, explanation(NO_RULES, is_admin=True))
