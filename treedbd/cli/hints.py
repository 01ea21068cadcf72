"""Hints about a VALUE that is not JSON: a bare word, or what a shell has left of an object."""

from __future__ import annotations

import json
import re
import shlex
from typing import Final

from treedbd.cli.options import STANDARD_INPUT, is_json

_MAX_CHARACTERS: Final = 200
_WORD = re.compile(r"[^\s{}\[\]:,\"']+")


def hint_at_value(value: str | None) -> str:
    """Return a sentence on how a value of the command line is written as JSON; else nothing."""
    if value is None or value == STANDARD_INPUT or len(value) > _MAX_CHARACTERS or is_json(value):
        return ""
    if not value.isprintable():
        return ""
    if value[:1] not in {"{", "[", '"'}:
        return f" A JSON string has quotation marks: {shlex.quote(json.dumps(value))}."
    repaired = _WORD.sub(_quote_word, value)
    if '"' not in value and is_json(repaired):
        return (
            " The shell has removed the quotation marks: put single ones around the whole value, "
            f"{shlex.quote(repaired)}."
        )
    return ""


def _quote_word(found: re.Match[str]) -> str:
    return found[0] if is_json(found[0]) else json.dumps(found[0])
