"""What one connection may cost: bytes, counts and seconds of the HTTP channel.

Pure values. Those that hold to them are `framing` (sizes of a request), `deadlines` (time) and
`register` (numbers of connections).
"""

from __future__ import annotations

from typing import Any

from attrs import field, frozen, validators

KIB = 1024
MIB = 1024 * KIB

_positive: Any = validators.gt(0)


@frozen
class ChannelLimits:
    """The bounds of the channel; every one of them is greater than zero.

    Attributes:
        request_line_bytes: the request line without its line end (RFC 9112, section 3); beyond it
            414. The longest legal path takes 74 KiB when encoded.
        header_bytes: all header lines of a request together; beyond it 431. The same bound holds
            for the trailer lines of a chunked body.
        header_count: header lines of a request; beyond it 431.
        body_bytes: content of one request; beyond it 413.
        held_body_bytes: content of all requests that are still arriving or under way, of those
            bodies that did not come in one piece; beyond it 503.
        connections: open connections of one factory; further ones get 503.
        connections_per_address: open connections of one client address; further ones get 429.
        handshake_s: from the accepted connection to the end of its TLS handshake.
        head_s: from the first byte of a request to the end of its head.
        body_s: from the head to the end of the body, to which the time is added that the content
            so far takes at `body_bytes_per_s`.
        body_bytes_per_s: the least rate of a body, in bytes per second.
        idle_s: how long a connection may stay open between two requests, or before the first.
        write_stalled_s: how long a peer may read nothing of what waits for it.
        linger_s: how long a closing connection waits for a peer that neither sends nor closes;
            six times as long for one that goes on sending.

    """

    request_line_bytes: int = field(default=96 * KIB, validator=_positive)
    header_bytes: int = field(default=64 * KIB, validator=_positive)
    header_count: int = field(default=100, validator=_positive)
    body_bytes: int = field(default=16 * MIB, validator=_positive)
    held_body_bytes: int = field(default=1024 * MIB, validator=_positive)
    connections: int = field(default=20_000, validator=_positive)
    connections_per_address: int = field(default=5000, validator=_positive)
    handshake_s: float = field(default=10.0, validator=_positive)
    head_s: float = field(default=20.0, validator=_positive)
    body_s: float = field(default=30.0, validator=_positive)
    body_bytes_per_s: int = field(default=4096, validator=_positive)
    idle_s: float = field(default=75.0, validator=_positive)
    write_stalled_s: float = field(default=60.0, validator=_positive)
    linger_s: float = field(default=5.0, validator=_positive)
