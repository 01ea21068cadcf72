"""A connection that was upgraded to another protocol (RFC 9110, section 7.8).

The request that asked for the upgrade stays under way as long as the connection lives: its client
is counted, logged and found dead as that of any request is. What the client sends from then on goes
to the receiver of the other protocol, and what that writes goes out as it is.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from treedbd.web.content import Content
from treedbd.web.http1.direct_send import DirectSend
from treedbd.web.http1.tally import Tally
from treedbd.web.http1.writer import ConnectionWriter


class UpgradedRequest(Protocol):
    """The request that asked for the upgrade."""

    sentLength: int

    def end_upgraded(self) -> None:
        """End the connection after what was written."""

    def abort(self) -> None:
        """Drop the connection."""


class UpgradedConnection:
    """What the other protocol does with its connection.

    Attributes:
        unread: what the client has sent already after its request.

    """

    __slots__ = ("_request", "_sent_past", "_set_reading", "_writer", "unread")

    def __init__(
        self,
        request: UpgradedRequest,
        writer: ConnectionWriter,
        sent_past: Tally,
        set_reading: Callable[[bool], None],
        unread: bytes,
    ) -> None:
        """Write by `writer`; `set_reading` pauses and resumes what the client sends."""
        self._request = request
        self._writer = writer
        self._sent_past = sent_past
        self._set_reading = set_reading
        self.unread = unread

    @property
    def sentLength(self) -> int:
        """Bytes that were written so far, also of what was sent past the writer."""
        return self._request.sentLength

    @sentLength.setter
    def sentLength(self, count: int) -> None:
        self._request.sentLength = count

    def write(self, data: bytes) -> None:
        """Write bytes as they are."""
        self._request.sentLength += len(data)
        self._writer.write(data)

    def write_content(self, content: Content) -> None:
        """Write what other connections are sent too."""
        self.write(content.whole())

    def find_free_send(self) -> tuple[DirectSend | None, Tally | None]:
        """Return what sends past the writer, and what counts it (`IHttp1Request`)."""
        return self._writer.find_free_send(), self._sent_past

    def continue_after(self, rest: bytes) -> None:
        """Send the rest of what was sent past the writer."""
        if rest:
            self._writer.write(rest)

    def pause_reading(self) -> None:
        """Receive nothing until `resume_reading`."""
        self._set_reading(False)

    def resume_reading(self) -> None:
        """Receive again."""
        self._set_reading(True)

    def finish(self) -> None:
        """End the connection after what was written."""
        self._request.end_upgraded()

    def abort(self) -> None:
        """Drop the connection, and with it what has not been sent."""
        self._request.abort()
