"""The interfaces between the HTTP server and the resources that it serves.

A request of this server is an ordinary request of `twisted.web` and, beyond that, an
`IHttp1Request`. A resource that is written for it is an `IHttp1Resource`; any other resource of
`twisted.web` is served too. If a resource is mounted in the `Site` of another program, the
requests of that site are adapted (`adapter`), so a handler only sees this interface.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

from twisted.internet.defer import Deferred
from twisted.internet.interfaces import IAddress, IConsumer
from twisted.web.iweb import IRequest
from twisted.web.resource import IResource
from zope.interface import Attribute

from treedbd.http1.content import Content, ContentReader
from treedbd.http1.headers import Header
from treedbd.http1.parser import CutOff

if TYPE_CHECKING:
    from treedbd.http1.connection import Connections
    from treedbd.http1.writer import DirectSend, UpgradedConnection


class IHttp1Request(IRequest, IConsumer):
    """A request as the handlers see it."""

    headers = Attribute("The header fields: from names in lower case to lists of values, in order.")
    head_memory = Attribute(
        "What the resource remembers for requests with this very head: an object with a settable "
        "attributes `question` and `identity`, None at first; a new one for each parsed head."
    )
    request_id = Attribute(
        "The id by which the log and the client mean this request: a trusted proxy's, or random."
    )
    is_oversized = Attribute("Whether the body is too large; then `content` must not be read.")
    came_by_trusted_proxy = Attribute(
        "Whether a trusted proxy has sent it: then `headers`, the client's address and the scheme "
        "are those of which the proxy says so."
    )
    sentLength = Attribute(
        "Bytes of the body that were written so far, also of what was sent past the request."
    )
    contender = Attribute(
        "What identifies the client among those that write at the same time: its connection."
    )
    trace = Attribute("The `Trace` of the request, None if it is not sampled.")
    has_own_timeout = Attribute("Set to True by a resource that closes slow readers by itself.")

    def send(status: int, headers: Iterable[Header], body: bytes) -> None:
        """Send a whole reply in one write and finish the request.

        `headers` are sent as they are; Content-Length, Date and Connection are added. A reply to
        HEAD has the length of `body` without it; 204 and 304 have neither. Does nothing if the
        request has been answered or the client is gone.
        """

    def send_content(status: int, headers: Iterable[Header], reader: ContentReader) -> None:
        """Send a whole reply with a body from `reader`, as the client reads, and finish.

        As `send`, but for a status that has a body. `reader` is closed when all of it was taken,
        when the client is gone, and for a reply to HEAD.
        """

    def start(
        status: int,
        headers: Iterable[Header],
        length: int | None = None,
        *,
        closes_connection: bool = False,
    ) -> None:
        """Set status and headers of a reply whose body is then written in pieces.

        `length` is that of the body in bytes, None if it is not known. With `closes_connection` the
        connection ends with the reply, and a body of unknown length is sent as it is written, not
        in chunks.
        """

    def upgrade(
        headers: Iterable[Header], receive: Callable[[bytes], None]
    ) -> UpgradedConnection | None:
        """Reply with 101, then leave the connection to another protocol.

        `headers` are those of the reply beside the date; `receive` is called with what the client
        sends from then on. Returns the connection, None if it cannot be had: the client is gone, or
        the server is another. `notifyFinish` fires when it has ended, one way or the other.
        """

    def abort(reason: CutOff = "failed") -> None:
        """Drop the connection, and with it what has not been sent; the log has the reason."""

    # Of the interfaces of `twisted.web`, here with types.

    clientproto = Attribute("The version of HTTP that the client speaks.")

    startedWriting = Attribute("Whether any of the reply has been written.")

    def getClientAddress() -> IAddress:
        """Return the address of the client, or of a proxy before it that is not trusted."""

    def isSecure() -> bool:
        """Return whether the client uses TLS."""

    def notifyFinish() -> Deferred[None]:
        """Return what fires at the end of the reply, or fails if the client disconnects before."""

    def write(data: bytes) -> None:
        """Write a piece of the body."""

    def write_content(content: Content) -> None:
        """Write a short piece of the body that other replies contain too."""

    def find_free_send() -> tuple[DirectSend | None, Connections | None]:
        """Return what sends content past the request, and what counts it (`sent_past_bytes`).

        None if the body is not sent as it is, if something waits to be sent, or if the connection
        has no socket of its own. What is returned must not be used any more after anything else was
        written, or after it has sent less than all.
        """

    def continue_after(rest: bytes) -> None:
        """Send the rest of content that was sent past the request."""

    def finish() -> None:
        """End the reply."""


class IHttp1Resource(IResource):
    """A resource that expects an `IHttp1Request`.

    It also receives oversized requests and must answer them with an error, whose form it chooses.
    """
