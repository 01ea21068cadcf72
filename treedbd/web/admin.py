"""The reserved places of administrators, as Klein routes: rules, and the list of databases."""

from __future__ import annotations

from typing import Any

from klein import Klein
from twisted.internet.defer import Deferred
from twisted.web.server import Request

from treedbd.database.catalog import Catalog
from treedbd.rules.ruleset import parse_rules
from treedbd.tree import printing
from treedbd.web.answer import MethodNotAllowed, Reply
from treedbd.web.ask import READING, Ask, Reader
from treedbd.web.gate import Gate
from treedbd.web.identity import require_admin
from treedbd.web.parameters import parse_choice
from treedbd.web.send import Sender

_DONE = Reply(200, b'{"status":"ok"}')


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
            return self._preflight(request)
        ask = await self._ask(request, b"PUT", "Access to the rules")
        rulebook = self._catalog.rulebook(ask.name.project)
        if ask.method == b"PUT":
            body = request.content.read() if request.content is not None else b""
            if parse_choice(ask.parameters, "dryRun", "true", "false") == "true":
                parse_rules(body)
            else:
                await rulebook.put(body)
            return self._sender.prepare(request, _DONE)
        rules = rulebook.rules
        is_strict = parse_choice(ask.parameters, "format", "strict") is not None
        text = printing.compact(rules.as_json()) if is_strict else rules.text.encode()
        return self._sender.prepare(request, Reply(200, text))

    async def _databases(self, request: Request) -> bytes:
        if request.method == b"OPTIONS":
            return self._preflight(request)
        ask = await self._ask(request, None, "Access to the list of databases")
        names = self._catalog.names(ask.name.project)
        body = printing.compact([{"name": name.label} for name in names])
        return self._sender.prepare(request, Reply(200, body))

    async def _ask(self, request: Request, writing: bytes | None, what: str) -> Ask:
        """Return what an admin asks; raises every refusal."""
        ask = self._reader.read(request, is_reserved=True)
        if ask.method not in READING and ask.method != writing:
            raise MethodNotAllowed(f"{what} cannot be asked with {ask.method.decode()}.")
        found: Any = self._gate.identify(ask.name.project, ask.token, None)
        identity = await found if isinstance(found, Deferred) else found
        require_admin(identity, what)
        return ask

    def _preflight(self, request: Request) -> bytes:
        self._reader.check_host(request)
        return self._sender.prepare(request, self._sender.preflight(request))
