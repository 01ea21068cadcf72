"""A client in a process of its own, which can be killed: it says that it is online, and waits.

    python -m tests.presence_client PORT PATH

It prints a line when the server has what is to be written at its end.
"""

from __future__ import annotations

import sys
import threading

import attrs

from tests.realtime import RealtimeClient
from tests.rest import Wire


@attrs.frozen
class Address:
    """Where to connect to; `host` is the Host header."""

    port: int
    host: str = "localhost"

    def connect(self) -> Wire:
        """Return a new connection."""
        return Wire(f"http://127.0.0.1:{self.port}")


def come_online(client: RealtimeClient, path: str) -> None:
    """Write that a client is online, and leave for its end that it is not."""
    client.put(f"{path}/online", True)
    client.succeed("o", {"p": f"{path}/online", "d": False})
    client.succeed("om", {"p": path, "d": {"ends": {".sv": {"increment": 1}}}})


def main() -> None:
    """Come online and wait to be killed."""
    port, path = sys.argv[1:]
    client = RealtimeClient(Address(int(port)))
    come_online(client, path)
    print("online", flush=True)
    threading.Event().wait()


if __name__ == "__main__":
    main()
