"""The part of a body that has arrived, counted among those of all connections."""

from __future__ import annotations

from treedbd.limits import Limits
from treedbd.web.http1.connections import Connections


class HeldBody:
    """What one connection holds of a body that is not complete, or not answered.

    Attributes:
        held: how many bytes.

    """

    __slots__ = ("_connections", "_limits", "held")

    def __init__(self, connections: Connections, limits: Limits) -> None:
        """Count it in `connections`, within `limits`."""
        self._connections = connections
        self.held = 0
        self._limits = limits

    def count(self, held: int) -> bool:
        """Count so many bytes; return whether all connections together may hold them."""
        self._connections.held_body_bytes += held - self.held
        self.held = held
        return self._connections.held_body_bytes <= self._limits.held_body_bytes

    def release(self) -> None:
        """Count nothing any more."""
        self.count(0)
