"""The header fields of a request as one plain dictionary, whichever channel read them."""

from __future__ import annotations

from typing import TypeAlias

from twisted.web.server import Request

Head: TypeAlias = dict[bytes, list[bytes]]
"""The values of each field, by its name in lower case, in the order they came."""


def head_of(request: Request) -> Head:
    """Return the header fields of a request.

    Our own channel keeps them in this form; for a stock request the form is made.
    """
    head: Head | None = getattr(request, "head", None)
    if head is None:
        head = {
            name.lower(): list(values) for name, values in request.requestHeaders.getAllRawHeaders()
        }
    return head


def first(head: Head, name: bytes) -> str | None:
    """Return the first value of a field as text, None where the field is absent."""
    values = head.get(name)
    return values[0].decode("latin-1") if values else None
