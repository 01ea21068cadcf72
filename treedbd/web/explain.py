"""Why a request is allowed or denied: the rules that ran, where, and with which result.

An admin who sends `X-TreeDB-Explain: true` receives this instead of the data; nothing is
written. With `auth_variable_override` the rules see that `auth`.
"""

from __future__ import annotations

from typing import Final

from treedbd.rules.evaluate import RuleResult, Verdict
from treedbd.tree.path import format_path
from treedbd.tree.types import Json

NO_RULES: Final = Verdict(True)
"""The verdict on a resource that only admins may use."""


def explanation(verdict: Verdict, *, is_admin: bool) -> Json:
    """Return the JSON of a verdict; an admin is allowed whatever the rules say."""
    return {
        "allowed": is_admin or verdict.allowed,
        "admin": is_admin,
        "rules": [_show(result) for result in verdict.trace],
    }


def _show(result: RuleResult) -> Json:
    shown: dict[str, Json] = {
        "rule": result.location,
        "path": format_path(result.path),
        "line": result.line,
        "column": result.column,
    }
    if isinstance(result.result, str):
        return {**shown, "result": False, "error": result.result}
    return {**shown, "result": result.result}
