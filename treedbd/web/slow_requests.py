"""Where the time of a slow request went, as far as that is known, and what helps."""

from __future__ import annotations

from typing import Final

from treedbd.http1.request import Request
from treedbd.web.request import READING, Question

_SMALLER_READ: Final = "Read less at once: a deeper path, shallow=true, or limitToFirst."
_INDEX: Final = (
    'A query is fast with an ".indexOn" in the rules for what it orders by, and a limit; see the '
    "log for queries without one."
)
_WHERE: Final = "where= looks through all children of its path: query by an index instead."
_SMALLER_WRITE: Final = (
    "Writes to a database are applied one after the other, and wait for the disk: look for large "
    "writes, rules that read much, or a slow disk at this time."
)
_SLOW_READER: Final = "The client reads slowly, or reads much: let it read less at once."
_GONE: Final = "The client did not wait for it."


def describe_slow(request: Request, seconds: float) -> str:
    """Return where the `seconds` of a request went, and a sentence with the remedy."""
    until_reply = _until_reply(request)
    if until_reply is None:
        return f"all of it before the response began. {_remedy(request)}"
    sending = max(0.0, seconds - until_reply)
    where = f"{until_reply:.1f} s before the response began and {sending:.1f} s to send it"
    if sending > until_reply:
        return f"{where}. {_SLOW_READER}"
    return f"{where}. {_remedy(request)}"


def _until_reply(request: Request) -> float | None:
    """Return the seconds until the response began; None if it did not, or was sent at once."""
    began: float | None = request.reply_began
    return None if began is None else began - request.began


def _remedy(request: Request) -> str:
    question = request.head_memory.question
    if not isinstance(question, Question):
        return "Look for a busy machine at this time." if request.startedWriting else _GONE
    if question.wanted.method not in READING:
        return _SMALLER_WRITE
    parameters = question.wanted.parameters
    if "where" in parameters:
        return _WHERE
    return _INDEX if "orderBy" in parameters else _SMALLER_READ
