"""Host names for the clients that run under Python: those of the test domain are this machine.

Imported by the scripts that play a client; it takes effect at once. Nothing of the requests
themselves is touched.
"""

from __future__ import annotations

import os
import socket
from typing import Any

DOMAIN = os.environ["PLAY_DOMAIN"]

_resolve = socket.getaddrinfo


def resolve_locally(host: Any, *arguments: Any, **options: Any) -> Any:
    """Resolve a name as the domain name system would have it; refuse any other machine's."""
    name = host.decode() if isinstance(host, bytes) else host
    if name.endswith(f".{DOMAIN}"):
        name = "127.0.0.1"
    assert name in ("127.0.0.1", "localhost"), f"The client wanted to reach {name}."
    return _resolve(name, *arguments, **options)


socket.getaddrinfo = resolve_locally
