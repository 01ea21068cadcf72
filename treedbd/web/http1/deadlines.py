"""The deadline of a connection for its client, and the reply when it passes.

There is one deadline at a time. Those for a head and for a body are absolute: no byte that arrives
extends them, except that a body gets the time that its content takes at the least rate. That for
the end of a closing connection counts from the last thing that happened. The connection itself
counts how long it is idle, since that changes with every request.
"""

from __future__ import annotations

from math import inf
from typing import Final

from twisted.internet.interfaces import IReactorTime

from treedbd.http1.parser import BODY_TIMEOUT, HEAD_TIMEOUT, ErrorReply
from treedbd.limits import Limits

_LINGER_TIMES: Final = 6


class Deadline:
    """The deadline of one connection; times are seconds of one clock.

    Attributes:
        is_set: whether there is a deadline.
        error: what to reply when the deadline passes, None to close without a reply.

    """

    def __init__(self, limits: Limits, clock: IReactorTime) -> None:
        """Set no deadline yet."""
        self.is_set = False
        self.error: ErrorReply | None = None
        self._limits = limits
        self._clock = clock
        self._at = inf
        self._body_began = 0.0
        self._linger_ends = inf

    def clear(self) -> None:
        """Remove the deadline."""
        self.is_set = False
        self.error = None

    def set_for_handshake(self) -> None:
        """Set the deadline of the TLS handshake."""
        self._set(self._clock.seconds() + self._limits.handshake_s, None)

    def set_for_head(self) -> None:
        """Set the deadline of a head; called for every piece of it."""
        if self.error is not HEAD_TIMEOUT:
            self._set(self._clock.seconds() + self._limits.head_s, HEAD_TIMEOUT)

    def set_for_body(self, received: int) -> bool:
        """Wait for the rest of a body; called for every piece; return whether it is the first."""
        is_first = self.error is not BODY_TIMEOUT
        if is_first:
            self._body_began = self._clock.seconds()
        rate_s = received / self._limits.body_bytes_per_s
        self._set(self._body_began + self._limits.body_s + rate_s, BODY_TIMEOUT)
        return is_first

    def set_for_close(self) -> None:
        """Set the deadline for the client to close; called for everything that it still sends."""
        now, linger_s = self._clock.seconds(), self._limits.linger_s
        self._linger_ends = min(self._linger_ends, now + _LINGER_TIMES * linger_s)
        self._set(min(now + linger_s, self._linger_ends), None)

    def extend_for_close(self, now: float) -> None:
        """Give a client time that is still reading what was sent before the close."""
        self._at = now + self._limits.linger_s

    def has_passed(self, now: float) -> bool:
        """Return whether there is a deadline and it is over."""
        return self.is_set and now >= self._at

    def _set(self, at: float, error: ErrorReply | None) -> None:
        self.is_set = True
        self.error = error
        self._at = at
