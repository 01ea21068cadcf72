"""Why a request is allowed or denied: the rules that ran, where, and with which result.

An administrator who sends `X-TreeDB-Explain: true` gets this in place of the answer; nothing is
read for him and nothing written. With `auth_variable_override` the rules see that `auth`.
"""

from __future__ import annotations

from typing import Final

from treedbd.rules.judge import RuleResult, Verdict
from treedbd.tree.path import format_path
from treedbd.tree.value import Json

NO_RULES: Final = Verdict(True)
"""The verdict where an administrator is all that it takes."""


def explanation(verdict: Verdict, *, is_admin: bool) -> Json:
    """Return the JSON that shows a verdict; `is_admin` callers skip the rules all the same."""
    return {
        "allowed": is_admin or verdict.allowed,
        "admin": is_admin,
        "rules": [_show(result) for result in verdict.trace],
    }


def _show(result: RuleResult) -> dict[str, Json]:
    is_error = isinstance(result.result, str)
    return {
        "rule": result.location,
        "path": format_path(result.path),
        "line": result.line,
        "column": result.column,
        "result": False if is_error else result.result,
        **({"error": result.result} if is_error else {}),
    }
