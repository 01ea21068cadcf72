"""What a connection waits for, until when, and what is said where the time is over.

One deadline at a time. Those for a head and for a body are absolute: no byte that comes puts them
off, but that a body gets the time its content takes at the least rate. The others count from the
last thing that happened.
"""

from __future__ import annotations

from math import inf
from typing import Final

from twisted.internet.interfaces import IReactorTime

from treedbd.web.channel.limits import ChannelLimits
from treedbd.web.channel.refusal import BODY_TIMEOUT, HEAD_TIMEOUT, Refusal

_LINGER_TIMES: Final = 6


class Deadline:
    """The deadline of one connection; times are seconds of one clock.

    Attributes:
        refusal: what to answer where the deadline passes, None to close without a word.

    """

    def __init__(self, limits: ChannelLimits, clock: IReactorTime) -> None:
        """Set no deadline yet."""
        self.refusal: Refusal | None = None
        self._limits = limits
        self._clock = clock
        self._at = inf
        self._put_off_by = 0.0
        self._body_began = 0.0
        self._linger_ends = inf

    def await_handshake(self) -> None:
        """Wait for TLS to be set up."""
        self._at = self._clock.seconds() + self._limits.handshake_s

    def await_request(self, now: float) -> None:
        """Wait for the first byte of a request."""
        self.refusal = None
        self._put_off_by = self._limits.idle_s
        self._at = now + self._put_off_by

    def await_head(self) -> None:
        """Wait for the rest of a head; said again with every piece of it."""
        if self.refusal is not HEAD_TIMEOUT:
            self.refusal = HEAD_TIMEOUT
            self._put_off_by = 0.0
            self._at = self._clock.seconds() + self._limits.head_s

    def await_body(self, received: int) -> bool:
        """Wait for the rest of a body; said again with every piece of it, returns if it began."""
        begins = self.refusal is not BODY_TIMEOUT
        if begins:
            self.refusal = BODY_TIMEOUT
            self._put_off_by = 0.0
            self._body_began = self._clock.seconds()
        rate_s = received / self._limits.body_bytes_per_s
        self._at = self._body_began + self._limits.body_s + rate_s
        return begins

    def await_answer(self) -> None:
        """Wait for the resource, which has its own deadlines."""
        self.refusal = None
        self._put_off_by = 0.0
        self._at = inf

    def await_close(self) -> None:
        """Wait for the peer to close; said again with everything that it still sends."""
        now = self._clock.seconds()
        self.refusal = None
        self._put_off_by = self._limits.linger_s
        self._linger_ends = min(self._linger_ends, now + _LINGER_TIMES * self._put_off_by)
        self._at = min(now + self._put_off_by, self._linger_ends)

    def put_off(self, now: float) -> None:
        """Let a peer that is still reading what was sent before take its time."""
        if self._put_off_by:
            self._at = now + self._put_off_by

    def has_passed(self, now: float) -> bool:
        """Tell whether the time is over."""
        return now >= self._at
