"""Requests whose responses all carry their id, for a daemon with an access log.

Only then is there a line that the id is of. Other daemons send it with errors of the server alone,
so that the heads of all other responses stay the same bytes.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from treedbd.web.headers import Header
from treedbd.web.http1.request import Request
from treedbd.web.http1.request_id import REQUEST_ID, id_header

_EMPTY_LINE: Final = b"\r\n"


class IdentifiedRequest(Request):
    """A request whose response has its id."""

    def _format_head(self, status: int, headers: Iterable[Header], length: int) -> bytes:
        fields = tuple(headers)
        head = super()._format_head(status, fields, length)
        if status >= 500 and any(name == REQUEST_ID for name, _ in fields):
            return head  # as errors of the server always have it
        return b"%b%b: %b\r\n\r\n" % (head.removesuffix(_EMPTY_LINE), *id_header(self))

    def _begin(self, length: int | None) -> bytes:
        name, content = id_header(self)
        self.responseHeaders.setRawHeaders(name, [content])
        return super()._begin(length)


def identified(kind: type[Request]) -> type[Request]:
    """Return the requests of a kind whose responses have their ids."""
    bases = (IdentifiedRequest,) if kind is Request else (IdentifiedRequest, kind)
    return type(f"Identified{kind.__name__}", bases, {})
