"""The part of a body that has arrived, counted among those of all connections."""

from __future__ import annotations

from treedbd.limits import Limits
from treedbd.web.content import SHARES
from treedbd.web.http1.connections import Connections


class HeldBody:
    """What one connection holds of a body that is not complete, or not answered.

    One client address may have one of `SHARES` equal parts of the bound, but one whole body in any
    case, so that one client leaves room for the bodies of others.

    Attributes:
        held: how many bytes.
        address: that they are counted for; empty if that has no bound of its own.

    """

    __slots__ = ("_connections", "_limits", "_share", "address", "held")

    def __init__(self, connections: Connections, limits: Limits) -> None:
        """Count it in `connections`, within `limits`."""
        self._connections = connections
        self.held = 0
        self.address = ""
        self._limits = limits
        self._share = max(limits.held_body_bytes // SHARES, limits.write_body_bytes)

    def count(self, held: int) -> bool:
        """Count so many bytes; return whether the address, and all together, may hold them."""
        bodies, grown = self._connections.held_bodies, held - self.held
        bodies.add(grown)
        bodies.add_for(self.address, grown)
        self.held = held
        return (
            bodies.total <= self._limits.held_body_bytes
            and bodies.count_of(self.address) <= self._share
        )

    def release(self) -> None:
        """Count nothing any more."""
        self.count(0)
