"""The part of a body, or of a message, that has arrived, counted among those of all connections."""

from __future__ import annotations

from treedbd.held_bytes import HeldBytes
from treedbd.limits import Limits
from treedbd.web.content import SHARES


class HeldBody:
    """What one connection holds of a body that is not complete, or not answered.

    One client address may have one of `SHARES` equal parts of the bound, but one whole body in any
    case, so that one client leaves room for the bodies of others.

    Attributes:
        held: how many bytes.
        address: that they are counted for; empty if that has no bound of its own.

    """

    __slots__ = ("_bodies", "_limits", "_share", "address", "held")

    def __init__(self, held: HeldBytes, limits: Limits, address: str = "") -> None:
        """Count it among the bodies of `held`, within `limits`."""
        self._bodies = held.bodies
        self.held = 0
        self.address = address
        self._limits = limits
        self._share = max(limits.held_body_bytes // SHARES, limits.write_body_bytes)

    def count(self, held: int) -> bool:
        """Count so many bytes; return whether the address, and all together, may hold them."""
        bodies, grown = self._bodies, held - self.held
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
