"""Explanations of verdicts: the rules that ran, where, and with which result, as JSON."""

from __future__ import annotations

from typing import Any, Final

from treedbd.rules.context import TracedRead
from treedbd.rules.evaluate import VALIDATE, RuleResult, Verdict
from treedbd.tree.path import format_path
from treedbd.tree.types import Container, Json

MAX_SHOWN_CHARACTERS: Final = 100
"""Characters of a string that a rule read."""
_TYPES_SHOWN: Final[dict[object, str]] = {
    str: "string",
    int: "number",
    float: "number",
    bool: "boolean",
    Container: "object",
}


def explanation(
    verdict: Verdict, *, is_admin: bool, auth: Json = None, shows_all: bool = False
) -> dict[str, Json]:
    """Return the JSON of a verdict: the rules that ran, where, and with which result.

    An admin who sends `X-TreeDB-Explain: true` receives this instead of the data; nothing is
    written, and with `auth_variable_override` the rules see that `auth`. Of a rule that is not true
    it also shows what the rule saw: the keys that its captures matched, and the nodes that it read.

    An admin is allowed whatever the rules say. `auth` is what the rules have seen; it is shown,
    with a sentence that says why, if they deny. With `shows_all` what rules have seen that are true
    is shown, too.
    """
    allowed = is_admin or verdict.allowed
    shown: dict[str, Json] = {"allowed": allowed, "admin": is_admin}
    if not allowed:
        shown |= {"reason": _denial_reason(verdict), "auth": auth}
    return {**shown, "rules": [_show_rule(result, shows_all) for result in verdict.trace]}


def _denial_reason(verdict: Verdict) -> str:
    last = verdict.trace[-1] if verdict.trace else None
    if last is None or last.result is True:  # of a PATCH, for the member after it
        return "There is no rule on the path, and what no rule allows is denied."
    if last.kind == VALIDATE:
        return f"The rule {last.location} is not true."
    return f"No {last.kind} rule on the path is true."


def _show_rule(result: RuleResult, shows_all: bool) -> Json:
    shown: dict[str, Json] = {
        "rule": result.location,
        "path": format_path(result.path),
        "line": result.line,
        "column": result.column,
    }
    if isinstance(result.result, str):
        shown |= {"result": False, "error": result.result}
    else:
        shown["result"] = result.result
    if result.result is True and not shows_all:
        return shown
    if result.captures:
        shown["captures"] = {**result.captures}
    if result.reads:
        shown["read"] = [_show_read(read) for read in result.reads]
    return shown


def _show_read(read: TracedRead) -> Json:
    shown: dict[str, Json] = {"from": read.tree, "path": format_path(read.path)}
    found: Any = read.found
    if isinstance(found, type):
        return {**shown, "type": _TYPES_SHOWN[found]}
    if isinstance(found, str) and len(found) > MAX_SHOWN_CHARACTERS:
        found = f"{found[:MAX_SHOWN_CHARACTERS]}…"
    return {**shown, "value": found}
