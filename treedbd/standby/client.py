"""The requests of a standby to its first: streams that are read as they come, and small questions.

Each stream has a connection of its own, which is aborted at its end; an orderly close would wait
for the peer, which may be what hangs. No redirect is followed, so a token is sent to the one
configured address only. Certificates are verified by the function that makes connections
(`web.auth.fetch.TrustStore`), which is given.

Twisted's client takes about a megabyte of memory, so it is imported at the first request.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from io import BytesIO
from typing import TYPE_CHECKING, Any, Final, Protocol, TypeAlias
from urllib.parse import urlencode

import attrs
import orjson
from twisted.internet.defer import CancelledError, Deferred, DeferredSemaphore
from twisted.internet.endpoints import HostnameEndpoint, wrapClientTLS
from twisted.internet.interfaces import (
    IOpenSSLClientConnectionCreator,
    IProtocol,
    IProtocolFactory,
    IStreamClientEndpoint,
)
from twisted.internet.protocol import Protocol as BodyProtocol
from twisted.python.failure import Failure
from twisted.python.reflect import namedAny
from twisted.web.http_headers import Headers
from twisted.web.iweb import IAgentEndpointFactory
from zope.interface import implementer

if TYPE_CHECKING:
    from twisted.web.client import URI

CONNECT_S: Final = 10.0
ANSWER_S: Final = 10.0
"""Seconds until the head of an answer must have come."""
SILENCE_S: Final = 15.0
"""A stream without a byte for so long is over: a first sends a line each second."""
BASES_AT_ONCE: Final = 2
"""Bases that are fetched at once: each takes a process of the first, and a thread here."""
OF_ITSELF: Final = "standby_of names this server itself, or a copy of its data directory"
"""Why the server at that address does not send its logs."""
MAX_ANSWER_BYTES: Final = 1024 * 1024
_HOLDS_BYTES: Final = 4096

MakeCreator: TypeAlias = Callable[[str], IOpenSSLClientConnectionCreator]
"""Returns what makes verified TLS connections to a host."""


class FirstFailed(Exception):
    """A request to the first that was not answered as it should be; the text says how."""


@attrs.frozen
class Answer:
    """A small answer: its status, and its JSON, None if it is not JSON."""

    status: int
    json: Any

    @property
    def error(self) -> str:
        """What the first says of an error."""
        found = self.json if isinstance(self.json, dict) else {}
        text = found.get("message", found.get("error"))
        return text if isinstance(text, str) else f"it answered with the status {self.status}"


class Receiver(Protocol):
    """Receives the bytes of a stream: `LineReceiver`, or `base.BaseFile`."""

    def received(self, data: bytes, stream: Stream) -> None:
        """Do something with bytes; what it raises ends the stream."""
        ...


class FirstClient:
    """Sends requests to the first, as an admin of the project that each concerns.

    Attributes:
        url: its address, without a slash at the end.
        bases: is acquired by what fetches a base.

    """

    def __init__(
        self,
        reactor: Any,
        url: str,
        make_creator: MakeCreator,
        token_of: Callable[[str], str],
        *,
        projects: Iterable[str],
    ) -> None:
        """`token_of` returns a token of an admin of one of `projects`; it raises ValueError."""
        self.url: Final = url.rstrip("/")
        self._projects = sorted(projects)
        self.bases: Final = DeferredSemaphore(BASES_AT_ONCE)
        self._reactor, self._make_creator, self._token_of = reactor, make_creator, token_of

    def tokens(self) -> dict[str, str]:
        """Return the tokens of all projects, for what concerns the whole server.

        Raises `FirstFailed`.
        """
        try:
            return {each: self._token_of(each) for each in self._projects}
        except ValueError as error:
            raise FirstFailed(reason_of(error)) from None

    async def ask(
        self,
        method: str,
        path: str,
        project: str,
        body: object = None,
        *,
        timeout_s: float = ANSWER_S,
    ) -> Answer:
        """Send a small request; raise `FirstFailed`."""
        content = bytearray()

        class Content:
            def received(self, data: bytes, stream: Stream) -> None:
                del stream
                content.extend(data)
                if len(content) > MAX_ANSWER_BYTES:
                    raise FirstFailed("its answer is too long")

        stream = await self.open(method, path, project, body, Content(), timeout_s=timeout_s)
        await stream.finished(timeout_s)
        try:
            json: Any = orjson.loads(bytes(content))
        except ValueError:
            json = None
        return Answer(stream.status, json)

    async def open(
        self,
        method: str,
        path: str,
        project: str,
        body: object,
        receiver: Receiver,
        *,
        query: dict[str, str] | None = None,
        timeout_s: float = ANSWER_S,
    ) -> Stream:
        """Begin a request whose answer is read as it comes; raise `FirstFailed`.

        The stream has to be ended with `abort`, or awaited with `finished`.
        """
        stream = Stream(self._reactor, receiver)
        requesting = Deferred.fromCoroutine(
            self._request(method, path, {"ns": project, **(query or {})}, body, stream)
        )
        try:
            response = await requesting.addTimeout(timeout_s, self._reactor)
        except CancelledError:
            stream.abort()
            raise
        except Exception as error:
            stream.abort()
            raise FirstFailed(reason_of(error)) from None
        stream.begin(response)
        return stream

    async def _request(
        self, method: str, path: str, query: dict[str, str], body: object, stream: Stream
    ) -> Any:
        # Not imported at the top, because of the memory that they take.
        agent_class: Any = namedAny("twisted.web.client.Agent")
        producer: Any = namedAny("twisted.web.client.FileBodyProducer")
        connector = _Connector(self._reactor, self._make_creator, stream)
        agent = agent_class.usingEndpointFactory(self._reactor, connector)
        headers = {
            "Authorization": [f"Bearer {self._token_of(query['ns'])}"],
            "Accept": ["application/json, */*"],
        }
        content = None
        if body is not None:
            headers["Content-Type"] = ["application/json"]
            content = producer(BytesIO(orjson.dumps(body)))
        url = f"{self.url}{path}?{urlencode(query)}"
        return await agent.request(method.encode(), url.encode("ascii"), Headers(headers), content)


class Stream(BodyProtocol):
    """An answer that is being read.

    Attributes:
        status: its status.

    """

    status = 0

    def __init__(self, reactor: Any, receiver: Receiver) -> None:
        """Give the bytes to `receiver`."""
        self._reactor, self._receiver = reactor, receiver
        self.connections: Final[list[IProtocol]] = []
        self._ended: Deferred[None] = Deferred()
        self._is_over = self._is_paused = self._is_awaited = False
        self._due: Any = None

    def begin(self, response: Any) -> None:
        """Read the body of a response."""
        self.status = response.code
        self._watch()
        response.deliverBody(self)

    async def finished(self, timeout_s: float | None = None) -> None:
        """Return at the end of the answer; raise `FirstFailed` if it was cut off."""
        self._is_awaited = True
        try:
            waiting = self._ended
            if timeout_s is not None:
                waiting.addTimeout(timeout_s, self._reactor)
            await waiting
        except FirstFailed:
            raise
        except Exception as error:
            raise FirstFailed(reason_of(error)) from None
        finally:
            self.abort()

    def pause(self) -> None:
        """Receive nothing until `resume`."""
        if not (self._is_paused or self._is_over) and self.transport is not None:
            self._is_paused = True
            self.transport.pauseProducing()  # type: ignore[attr-defined]

    def resume(self) -> None:
        """Receive again."""
        if self._is_paused and not self._is_over and self.transport is not None:
            self._is_paused = False
            self._watch()
            self.transport.resumeProducing()  # type: ignore[attr-defined]

    def fail(self, error: Exception) -> None:
        """End it with an error."""
        self._end(Failure(error))

    def abort(self) -> None:
        """Close the connection at once."""
        self._end(Failure(FirstFailed("it was ended here")))
        for protocol in self.connections:
            transport: Any = getattr(protocol, "transport", None)
            if transport is not None:
                transport.abortConnection()
        self.connections.clear()

    def dataReceived(self, data: bytes) -> None:
        """Give bytes to the receiver."""
        if self._is_over:
            return
        self._watch()
        try:
            self._receiver.received(data, self)
        except Exception as error:
            self._end(Failure(FirstFailed(reason_of(error))))

    def connectionLost(self, reason: Failure | None = None) -> None:
        """End it, with an error unless all of the answer was received."""
        response_done: Any = namedAny("twisted.web.client.ResponseDone")
        if reason is None or reason.check(response_done):
            self._end(None)
        else:
            self._end(Failure(FirstFailed(reason_of(reason.value))))

    def _watch(self) -> None:
        """End it if nothing comes for long."""
        if self._due is not None and self._due.active():
            self._due.reset(SILENCE_S)
        elif not self._is_over:
            self._due = self._reactor.callLater(SILENCE_S, self._look)

    def _look(self) -> None:
        if self._is_paused:
            self._due = None
            self._watch()
        else:
            self.fail(FirstFailed(f"nothing has come for {SILENCE_S:.0f} s"))

    def _end(self, failure: Failure | None) -> None:
        if self._is_over:
            return
        self._is_over = True
        if self._due is not None and self._due.active():
            self._due.cancel()
        if failure is None:
            self._ended.callback(None)
        else:
            self._ended.errback(failure)
            if not self._is_awaited:  # by `finished`, which raises it
                self._ended.addErrback(lambda _: None)


_REASONS: Final = {
    "VerificationError": "its certificate is for another name",
    "TimeoutError": "it does not answer",
    "ConnectionDone": "the connection was closed",
    "ConnectionLost": "the connection was lost",
}


_NO_TLS: Final = "it does not speak TLS at this port, as the https URL says"
_TLS_REASONS: Final = {"wrong version number": _NO_TLS, "http request": _NO_TLS}


def reason_of(error: BaseException | None) -> str:
    """Return why a request failed, as a clause without a full stop."""
    if isinstance(error, FirstFailed):
        return str(error)
    causes = getattr(error, "reasons", None)  # of `ResponseFailed`
    if causes:
        return reason_of(causes[0].value)
    name = type(error).__name__
    if name in _REASONS:
        return _REASONS[name]
    if name in ("CertificateRefused", "Error") and error is not None and error.args:
        return _tls_reason_of(error)
    text = str(error).strip().rstrip(".")
    if not text or "\n" in text:
        return name
    is_sentence = isinstance(error, ValueError) or name == "CannotFollow"
    return text if is_sentence else f"{text} ({name})"


def _tls_reason_of(error: BaseException) -> str:
    """Return why TLS has failed, by an error of OpenSSL."""
    problem = getattr(error, "problem", None)  # of `web.auth.fetch.CertificateRefused`
    if problem is not None:
        return f"its certificate {problem}"
    details = error.args[0]
    if not details:
        return "TLS failed"
    return _TLS_REASONS.get(details[0][-1], f"TLS failed: {details[0][-1]}")


@implementer(IAgentEndpointFactory)
class _Connector:
    """Opens connections, and records them in a stream."""

    def __init__(self, reactor: Any, make_creator: MakeCreator, stream: Stream) -> None:
        self._reactor, self._make_creator, self._stream = reactor, make_creator, stream

    def endpointForURI(self, uri: URI) -> IStreamClientEndpoint:
        endpoint: Any = HostnameEndpoint(self._reactor, uri.host, uri.port, timeout=CONNECT_S)
        if uri.scheme == b"https":
            creator = self._make_creator(uri.host.decode("ascii"))
            endpoint = wrapClientTLS(creator, endpoint, self._reactor)
        return _Recording(endpoint, self._stream)


@implementer(IStreamClientEndpoint)
class _Recording:
    def __init__(self, endpoint: IStreamClientEndpoint, stream: Stream) -> None:
        self._endpoint, self._stream = endpoint, stream

    def connect(self, protocolFactory: IProtocolFactory) -> Deferred[IProtocol]:
        factory: Any = protocolFactory
        factory.noisy = False  # else each request is logged

        def record(protocol: IProtocol) -> IProtocol:
            self._stream.connections.append(protocol)
            return protocol

        connected: Deferred[IProtocol] = self._endpoint.connect(protocolFactory)
        return connected.addCallback(record)
