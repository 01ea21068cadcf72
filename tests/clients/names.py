"""Host names for Python clients: those of the test domain resolve to this machine.

pytest loads this module as a plugin, and importing it replaces `socket.getaddrinfo`. The requests
themselves are not changed.
"""

from __future__ import annotations

import os
import socket
from typing import Any

DOMAIN = os.environ["PLAY_DOMAIN"]

_resolve = socket.getaddrinfo


def resolve_locally(host: Any, *arguments: Any, **options: Any) -> Any:
    """Resolve a name of the test domain to this machine; AssertionError for any other host."""
    name = host.decode() if isinstance(host, bytes) else host
    if name.endswith(f".{DOMAIN}"):
        name = "127.0.0.1"
    assert name in ("127.0.0.1", "localhost"), f"The client tried to reach {name}."
    return _resolve(name, *arguments, **options)


socket.getaddrinfo = resolve_locally
