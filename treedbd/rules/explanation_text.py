"""How a request was judged, as lines of text.

They show what clients have sent, and may hold characters that move the cursor of a terminal.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import orjson


def format_explanation(verdict: Mapping[str, Any]) -> list[str]:
    """Return an explanation as lines: the outcome, then each rule that was evaluated.

    Below a rule that is not true stands what it saw.
    """
    if verdict["allowed"]:
        lines = ["allowed" + (": rules do not apply to an admin" if verdict["admin"] else "")]
    else:
        lines = [f"denied: {verdict['reason']}", format_auth(verdict["auth"])]
    return [*lines, *format_rules(verdict["rules"])]


def format_auth(auth: Any) -> str:
    """Return the line of an explanation that shows `auth`."""
    return f"  auth is {orjson.dumps(auth).decode()}"


def format_rules(rules: Iterable[dict[str, Any]]) -> list[str]:
    """Return the rules of an explanation as lines, each with what it saw below it."""
    lines = []
    for rule in rules:
        result = f"error: {rule['error']}" if "error" in rule else str(rule["result"]).lower()
        where = f"{rule['rule']} ({rule['line']}:{rule['column']})"
        lines.append(f"  {where} at {rule['path']}: {result}")
        seen = {**rule.get("captures", {})}
        for read in rule.get("read", ()):
            shown = read["type"] if "type" in read else orjson.dumps(read["value"]).decode()
            seen[f"{read['from']} at {read['path']}"] = shown
        lines += [f"    {name} is {value}" for name, value in seen.items()]
    return lines
