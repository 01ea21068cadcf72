"""What answers `/.lp`: a script that sends a browser back to the WebSocket.

Long polling is not offered. But a browser whose WebSocket has failed once remembers that, and asks
here first the next time, for ever; the script lets it forget. It runs in a frame of the page's own
origin, which names the callback by a number. Source: `realtime-protocol.md`, section 1.
"""

from __future__ import annotations

import re
from typing import Final

from treedbd.tree.types import InvalidQuery
from treedbd.web.response import Response

_SCRIPT: Final = (
    b'try{parent.localStorage.removeItem("firebase:previous_websocket_failure")}catch(e){}'
    b'parent.window["pLPCommand%b"]("close")'
)
_NUMBER: Final = re.compile(r"[0-9]+")
_HEADERS: Final = ((b"Content-Type", b"application/javascript; charset=utf-8"),)


def answer_long_poll(callbacks: list[str]) -> Response:
    """Return the script for a request with the number of a callback; raise `InvalidQuery`."""
    if len(callbacks) != 1 or not _NUMBER.fullmatch(callbacks[0]):
        raise InvalidQuery("The number of the callback (cb) must be there once, in digits only.")
    return Response(200, _SCRIPT % callbacks[0].encode(), _HEADERS)
