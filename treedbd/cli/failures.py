"""The sentences of requests that fail, the same for every client that this package has."""

from __future__ import annotations

from typing import Final

import orjson

from treedbd.cli.exit import CommandFailed
from treedbd.cli.url import Url

CONNECT_S: Final = 30.0
"""How long a connection may take to open."""
LOOPBACK: Final = ("127.0.0.1", "::1")
"""The addresses of the names of this machine, in the order in which they are tried."""
MAX_ERROR_BYTES: Final = 65_536
"""How much of an error is read."""

OWN_HEADERS: Final = {"User-Agent": "treedb", "X-TreeDB-Dialect": "standard"}
"""Headers of each request: errors have a code and a reason, with a token too."""
NO_SERVER: Final = "No server listens at {}."
UNKNOWN_NAME: Final = "The host name in {} is not known."
SILENT: Final = "{} does not respond."
NOT_CONNECTED: Final = "The connection to {} failed."
CLOSED: Final = "{} closed the connection without a response."
CUT_OFF: Final = "The response of {} was cut off."
OTHER_NAME: Final = "The certificate of {} is for another name: give a URL with that name."
_WANTS_ADMIN: Final = "requires an admin's token."
_HINT: Final = " Put one into the variable TREEDB_TOKEN; in development mode owner is one."


class NoResponse(CommandFailed):
    """The server cannot be reached or did not respond; a later request may succeed."""


def describe_error(status: int, body: bytes, url: Url) -> str:
    """Return the sentence of an error, of either dialect or of another server."""
    try:
        error = orjson.loads(body)
    except ValueError:
        error = None
    if isinstance(error, dict) and isinstance(error.get("error"), str):
        if isinstance(error.get("message"), str):
            message = error["message"].strip()
            hint = _HINT if message.endswith(_WANTS_ADMIN) else ""
            return f"{status} {error['error']}: {message}{hint}"
        return f"{status}: {error['error'].strip()}"
    return f"{url.origin} returned the status {status}."


def describe_tls_failure(reason: str, origin: str) -> CommandFailed:
    """Return the exception for a failed handshake; `reason` is what OpenSSL says."""
    if "certificate verify failed" in reason:
        return CommandFailed(
            f"The certificate of {origin} is not signed by a trusted authority, or has expired: "
            "name its authority by --cacert."
        )
    if "wrong version number" in reason or "record layer failure" in reason:
        return CommandFailed(f"{origin} does not speak TLS.")
    return NoResponse(f"The TLS connection to {origin} failed.")
