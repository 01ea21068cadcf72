"""Writes content that many replies contain, such as an event to all its streams, one after another.

Theory of operation. A reply that ends with its connection is sent as it is written. As long as its
client keeps up, nothing waits in the connection between two writes. Then content goes to the socket
directly. That touches none of the objects between, which are the request, its connection and the
transport: those of a thousand streams do not fit into the caches of a processor, and reading them
took longer than the work.

Whatever else is written to the reply goes through this writer and ends that state, and so does a
socket that did not take all. The next content is then written the usual way, and after it the
state is looked up again.
"""

from __future__ import annotations

from treedbd.http1.interface import IHttp1Request
from treedbd.web.content import Content
from treedbd.web.http1.direct_send import DirectSend
from treedbd.web.http1.tally import Tally
from treedbd.web.http1.upgraded import UpgradedConnection


class ContentWriter:
    """Writes the body of one reply; nothing else may write to it."""

    __slots__ = ("_request", "_send", "_tally")

    def __init__(self, request: IHttp1Request | UpgradedConnection) -> None:
        """Write to `request`, or to a connection that was upgraded."""
        self._request = request
        self._send: DirectSend | None = None
        self._tally: Tally | None = None

    def write(self, data: bytes) -> None:
        """Write a piece of the body."""
        self.settle()
        self._request.write(data)

    def write_content(self, content: Content) -> None:
        """Write a short piece of the body that other replies contain too."""
        send, tally = self._send, self._tally
        if send is None or tally is None:
            self._request.write_content(content)
            self._send, self._tally = self._request.find_free_send()
            return
        data = content.whole()
        try:
            sent = send(data)
        except OSError:  # full, or not connected: the transport finds out which
            sent = 0
        tally.bytes += sent
        self._request.sentLength += content.size
        if sent < content.size:
            self.settle(data[sent:])

    def settle(self, rest: bytes = b"") -> None:
        """Let the request write again, and first the rest of content.

        Must be called before anything else is done with the request.
        """
        if self._send is not None:
            self._send = None
            self._request.continue_after(rest)
