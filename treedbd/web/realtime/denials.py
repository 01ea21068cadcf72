"""Why the rules deny: the text that clients of the real-time protocol print for developers."""

from __future__ import annotations

from treedbd.database.database import Database
from treedbd.database.requests import Write
from treedbd.database.rights import ReadRequest
from treedbd.rules.context import Context
from treedbd.rules.evaluate import Verdict
from treedbd.rules.ruleset import format_explanation
from treedbd.store.nodes import Nodes
from treedbd.tree.types import Json
from treedbd.web.reading import explanation


def explain_read(database: Database, read: ReadRequest) -> str:
    """Return why a read is denied, or is not any more."""

    def evaluate(nodes: Nodes) -> Verdict:
        context = Context(read.caller.auth, read.now(), nodes, read.query, at_once=True)
        return database.rules.current.may_read(read.path, context, explain=True)

    return _text(database.read(evaluate), read.caller.auth)


def explain_write(database: Database, write: Write) -> str:
    """Return why a write is denied, or is not any more."""
    return _text(database.explain_write(write), write.caller.auth)


def _text(verdict: Verdict, auth: Json) -> str:
    return "\n".join(format_explanation(explanation(verdict, is_admin=False, auth=auth)))
