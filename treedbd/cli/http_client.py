"""The blocking HTTP client of all commands, and the run of a command that sends requests.

A URL is sent byte for byte, and a token only in the Authorization header. Redirects are not
followed: a token belongs to the host that it was given for. Servers are always verified. One piece
of a body is in memory at a time. `localhost` and names below it are the loopback addresses, without
a lookup. This module loads neither Twisted nor cryptography, because commands must start fast.

A read uses the connection of the previous read from the same server. A write has a connection of
its own: if the server had closed an old one meanwhile, the client could not know whether the write
was received.
"""

from __future__ import annotations

import contextlib
import math
import pathlib
import select
import signal
import socket
import ssl
import time
from argparse import ArgumentParser, Namespace
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from http.client import HTTPConnection, HTTPException, HTTPResponse
from typing import Any, Final, NoReturn, TypeAlias

import attrs
import orjson

from treedbd.cli.exit import DONE, CommandFailed, Status
from treedbd.cli.options import (
    CLOSED,
    CONNECT_S,
    CUT_OFF,
    LOCALHOST,
    LOOPBACK,
    MAX_ERROR_BYTES,
    NO_SERVER,
    NOT_CONNECTED,
    OTHER_NAME,
    OWN_HEADERS,
    SILENCE_S,
    SILENT,
    UNKNOWN_NAME,
    NoResponse,
    Url,
    add_network_options,
    add_settings_options,
    add_timeout_option,
    choose_authorities,
    describe_error,
    describe_tls_failure,
    is_local_name,
    read_settings,
    read_token,
    read_token_file,
)

_WRONG_NAME: Final = frozenset({62, 64})
"""OpenSSL's X509_V_ERR_HOSTNAME_MISMATCH and X509_V_ERR_IP_ADDRESS_MISMATCH."""

PIECE_BYTES: Final = 65_536
OWN_CONNECTION: Final = {"Connection": "close"}
"""The header of a request after which the connection is closed."""
_WITH_LENGTH: Final = frozenset({"PUT", "POST", "PATCH"})
_LEAST_S: Final = 0.001


def open_socket(url: Url, timeout_s: float | None) -> socket.socket:
    """Connect to the server of a URL; raise `NoResponse`, or TimeoutError."""
    failures: list[OSError] = []
    for host in LOOPBACK if is_local_name(url.host) and not url.socket else (url.host,):
        try:
            if url.socket:
                return _connect_unix(url.socket, timeout_s)
            return socket.create_connection((host, url.port), timeout_s)
        except TimeoutError:
            raise
        except OSError as error:
            failures.append(error)
    raise NoResponse(_describe_connect(failures[0]).format(url.origin))


def _connect_unix(file: str, timeout_s: float | None) -> socket.socket:
    opened = socket.socket(socket.AF_UNIX)
    try:
        opened.settimeout(timeout_s)
        opened.connect(file)
    except OSError:
        opened.close()
        raise
    return opened


def _describe_connect(error: OSError) -> str:
    if isinstance(error, ConnectionRefusedError | FileNotFoundError):
        return NO_SERVER
    return UNKNOWN_NAME if isinstance(error, socket.gaierror) else NOT_CONNECTED


def make_context(authorities: Sequence[pathlib.Path]) -> ssl.SSLContext:
    """Return the TLS context that verifies servers by the certificates in files.

    Without files, those of the system are used. Raises `CommandFailed`.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.hostname_checks_common_name = False
    if not authorities:
        context.load_default_certs()
    for file in authorities:
        try:
            context.load_verify_locations(cafile=file)
        except ssl.SSLError:
            raise CommandFailed(f"{file} holds no certificate in PEM.") from None
        except OSError as error:
            raise CommandFailed(f"{file} cannot be read ({error.strerror}).") from None
    return context


def secure(opened: socket.socket, url: Url, context: ssl.SSLContext) -> ssl.SSLSocket:
    """Begin TLS on a connection and verify the server.

    Raises `CommandFailed`, `NoResponse` if the server closes the connection, or TimeoutError.
    """
    is_here = is_local_name(url.host)
    # A name below `localhost` always means this machine, so a certificate for `localhost` is
    # enough: no client accepts a wildcard directly under a top-level name.
    context.check_hostname = not is_here
    try:
        wrapped = context.wrap_socket(opened, server_hostname=url.host)
        if is_here:
            _require_local_name(wrapped, url)
    except ssl.SSLCertVerificationError as error:
        if error.verify_code in _WRONG_NAME:
            raise CommandFailed(OTHER_NAME.format(url.origin)) from None
        raise describe_tls_failure("certificate verify failed", url.origin) from None
    except TimeoutError:
        raise
    except ssl.SSLError as error:
        raise describe_tls_failure(str(error), url.origin) from None
    except OSError:
        raise NoResponse(CLOSED.format(url.origin)) from None
    return wrapped


def _require_local_name(wrapped: ssl.SSLSocket, url: Url) -> None:
    """Raise `CommandFailed` unless the certificate is for the host of the URL or for `localhost`.

    A wildcard matches one label, and is not directly under a top-level name (RFC 9525).
    """
    host = url.host.lower().removesuffix(".")
    rest = host.partition(".")[2]
    accepted = {host, LOCALHOST, *([f"*.{rest}"] if "." in rest else [])}
    certificate = wrapped.getpeercert() or {}
    names: Iterable[tuple[str, str]] = certificate.get("subjectAltName", ())  # type: ignore[assignment]
    if not any(kind == "DNS" and name.lower() in accepted for kind, name in names):
        wrapped.close()
        raise CommandFailed(OTHER_NAME.format(url.origin))


@attrs.frozen
class Body:
    """The body of a request, in pieces; `length` is None if it is not known."""

    pieces: Iterable[bytes]
    length: int | None = None


class HttpClient:
    """Sends requests as one caller, and waits for each response."""

    def __init__(
        self,
        authorities: Sequence[pathlib.Path] = (),
        token: str | None = None,
        timeout_s: float | None = None,
        silence_s: float | None = None,
    ) -> None:
        """Verify servers by the certificates in files, or by the system's if there are none.

        Each request sends `token`. It fails unless its response has been read after `timeout_s`,
        and as soon as nothing has been received for `silence_s`, unless these are None. Raises
        `CommandFailed` for a file that holds no certificates.
        """
        self._context = make_context(authorities) if authorities else None
        self._token = token
        self._timeout_s = timeout_s
        self._silence_s = silence_s
        self._idle: _HostConnection | None = None

    def within(self, timeout_s: float | None = None, silence_s: float | None = None) -> HttpClient:
        """Return a client of the same caller whose requests have other limits of time."""
        client = HttpClient((), self._token, timeout_s, silence_s)
        client._context = self._context
        return client

    def send(
        self,
        method: str,
        url: Url,
        headers: Mapping[str, str] | None = None,
        body: Body | None = None,
    ) -> UnreadResponse:
        """Send a request and return the response, whatever its status is.

        Raises `NoResponse`, or `CommandFailed` for a server that cannot be verified.
        """
        head = {"Host": url.authority, **OWN_HEADERS, **(headers or {})}
        if self._token is not None:
            head["Authorization"] = f"Bearer {self._token}"
        head |= _framing(method, body)
        idle = self._take_idle(url) if body is None and method in {"GET", "HEAD"} else None
        end = None if self._timeout_s is None else time.monotonic() + self._timeout_s
        if idle is not None:
            idle.end = end
            with contextlib.suppress(OSError, HTTPException):  # the server has closed it
                return UnreadResponse(self, url, idle, _exchange(idle, method, url, head, None))
            idle.close()
        connection = self._connect(url, end)
        try:
            return UnreadResponse(
                self, url, connection, _exchange(connection, method, url, head, body)
            )
        except TimeoutError:
            connection.close()
            self.fail_late(url)
        except (OSError, HTTPException):
            connection.close()
            raise NoResponse(CLOSED.format(url.origin)) from None

    def request(
        self,
        method: str,
        url: Url,
        headers: Mapping[str, str] | None = None,
        body: Body | None = None,
    ) -> UnreadResponse:
        """Send a request; raise `CommandFailed` also for a status other than 2xx."""
        response = self.send(method, url, headers, body)
        if not response.is_success:
            raise CommandFailed(response.read_error())
        return response

    def keep(self, connection: _HostConnection) -> None:
        """Keep a connection whose response has been read, for the next request."""
        if self._idle is not None:
            self._idle.close()
        self._idle = connection

    def fail_late(self, url: Url, most: float = math.inf) -> NoReturn:
        """Raise `NoResponse` for a step that has timed out; `most` is the limit of the step."""
        if self._timeout_s is not None:
            raise NoResponse(f"{url.origin} was not done within {self._timeout_s:g} seconds.")
        if self._silence_s is not None and self._silence_s <= most:
            raise NoResponse(f"{url.origin} was silent for {self._silence_s:g} s.")
        raise NoResponse(SILENT.format(url.origin))

    def _take_idle(self, url: Url) -> _HostConnection | None:
        idle, self._idle = self._idle, None
        if idle is not None and idle.origin != url.origin:
            idle.close()
            return None
        return idle

    def _connect(self, url: Url, end: float | None) -> _HostConnection:
        connection = _HostConnection(url, end, self._silence_s)
        try:
            opened = open_socket(url, connection.remaining(CONNECT_S))
            if url.is_secure:
                self._context = self._context or make_context(())
                opened = secure(opened, url, self._context)
        except TimeoutError:
            self.fail_late(url, CONNECT_S)
        connection.sock = opened
        return connection


DROPPED: Final = "The rules call some of this volatile: it was left out, as large bodies set none."


class UnreadResponse:
    """A response whose body has not been read yet.

    Attributes:
        status: its status.

    """

    def __init__(
        self, client: HttpClient, url: Url, connection: _HostConnection, response: HTTPResponse
    ) -> None:
        self.status: Final = response.status
        self._client = client
        self._url = url
        self._connection = connection
        self._response = response

    @property
    def is_success(self) -> bool:
        """Whether its status is 2xx."""
        return 200 <= self.status < 300

    @property
    def has_dropped(self) -> bool:
        """Whether the server has left out values that its rules call volatile."""
        return self.header("X-TreeDB-Volatile") == "dropped"

    def header(self, name: str) -> str | None:
        """Return the value of a header, None if there is none."""
        return self._response.getheader(name)

    def pieces(self) -> Iterator[bytes]:
        """Read the body piece by piece; raise `NoResponse` if it is cut off.

        The connection is closed unless all of the body is read.
        """
        left = self._response.length
        is_whole = False
        try:
            while left != 0:
                piece = self._read(PIECE_BYTES if left is None else min(PIECE_BYTES, left))
                if not piece:
                    break
                left = None if left is None else left - len(piece)
                yield piece
            if left:
                raise NoResponse(CUT_OFF.format(self._url.origin))
            is_whole = True
        finally:
            (self._end if is_whole else self.close)()

    def _read(self, most: int) -> bytes:
        self._connection.set_timeout()
        try:
            return self._response.read1(most)
        except TimeoutError:
            self._client.fail_late(self._url)
        except (OSError, HTTPException):
            raise NoResponse(CUT_OFF.format(self._url.origin)) from None

    def content(self) -> bytes:
        """Return the whole body, which must be small."""
        return b"".join(self.pieces())

    def read_error(self) -> str:
        """Return the sentence of a response that is an error, and close the connection."""
        body: bytes | None = None
        with contextlib.suppress(NoResponse):  # the status is known, if not the reason
            body = self.content_up_to(MAX_ERROR_BYTES)
        return describe_error(self.status, body or b"", self._url)

    def content_up_to(self, most: int) -> bytes | None:
        """Return the whole body, or None if it has more bytes; the connection is closed then."""
        body = bytearray()
        for piece in self.pieces():
            body += piece
            if len(body) > most:
                self.close()
                return None
        return bytes(body)

    def json_text(self, most: int) -> tuple[bytes, Any]:
        """Return the whole body, of at most so many bytes, and the JSON in it.

        Raises `CommandFailed`, also if the text is not JSON.
        """
        text = self.content_up_to(most)
        if text is None:
            raise CommandFailed(f"{self._url.origin} returned more than {most:,} bytes.")
        return text, parse_json(text, self._url)

    def close(self) -> None:
        """Close the connection; the rest of the body is lost."""
        self._response.close()
        self._connection.close()

    def _end(self) -> None:
        self._response.close()
        if self._response.will_close:
            self._connection.close()
        else:
            self._client.keep(self._connection)


def parse_json(content: bytes, url: Url) -> Any:
    """Return the JSON in the body of a response; raise `CommandFailed` if it is not JSON."""
    try:
        return orjson.loads(content)
    except ValueError:
        raise CommandFailed(f"{url.origin} did not return JSON.") from None


@contextlib.contextmanager
def reading_answer(url: Url) -> Iterator[None]:
    """Raise `CommandFailed` if the JSON that is used within is not what treedb returns."""
    try:
        yield
    except (LookupError, TypeError, ValueError, AttributeError):
        raise CommandFailed(f"{url.origin} did not return what treedb does.") from None


class _HeadLines:
    """The lines of the head of a response, each of which must be whole."""

    def __init__(self, file: Any) -> None:
        self._file = file

    def readline(self, most: int = -1) -> bytes:
        line: bytes = self._file.readline(most)
        if not line.endswith(b"\n"):
            raise ConnectionResetError
        return line

    def close(self) -> None:
        self._file.close()


class _Response(HTTPResponse):
    """A response whose head is whole: `http.client` accepts one that is cut off."""

    def begin(self) -> None:
        file: Any = self.fp
        lines: Any = _HeadLines(file)
        self.fp = lines
        try:
            super().begin()
        finally:
            if self.fp is lines:  # else it was not HTTP, and is closed
                self.fp = file


class _HostConnection(HTTPConnection):
    """A connection to the server of a URL.

    `end` is when the response must have been read, `silence_s` the limit of one operation.
    """

    response_class = _Response

    def __init__(self, url: Url, end: float | None, silence_s: float | None) -> None:
        super().__init__(LOCALHOST)  # the socket is opened by us, and so is the header `Host`
        self.origin = url.origin
        self.auto_open = 0
        self.end = end
        self._silence_s = math.inf if silence_s is None else silence_s

    def remaining(self, most: float = math.inf) -> float | None:
        """Return the limit of the next operation, `most` or less; None without a limit."""
        left = math.inf if self.end is None else max(_LEAST_S, self.end - time.monotonic())
        shortest = min(left, most, self._silence_s)
        return None if shortest == math.inf else shortest

    def set_timeout(self) -> None:
        """Set the time-out of the next operation of the socket."""
        if self.sock is not None:  # None once the last response has been received whole
            self.sock.settimeout(self.remaining())


def _framing(method: str, body: Body | None) -> dict[str, str]:
    """Return the header that says where the body of a request ends."""
    if body is None:
        return {"Content-Length": "0"} if method in _WITH_LENGTH else {}
    if body.length is None:
        return {"Transfer-Encoding": "chunked"}
    return {"Content-Length": str(body.length)}


def _exchange(
    connection: _HostConnection, method: str, url: Url, head: Mapping[str, str], body: Body | None
) -> HTTPResponse:
    """Send a request and read the head of its response, which may come before the body is sent."""
    connection.set_timeout()
    connection.putrequest(method, url.target, skip_host=True, skip_accept_encoding=True)
    for name, value in head.items():
        connection.putheader(name, value)
    connection.endheaders()
    if body is not None:
        with contextlib.suppress(BrokenPipeError, ConnectionResetError, ssl.SSLEOFError):
            _send_body(connection, body)
    connection.set_timeout()
    return connection.getresponse()


def _send_body(connection: _HostConnection, body: Body) -> None:
    for piece in body.pieces:
        connection.set_timeout()
        if _has_answered(connection):
            return
        if not piece:  # as a chunk it would be the end
            continue
        if body.length is None:
            connection.send(b"%x\r\n%b\r\n" % (len(piece), piece))
        else:
            connection.send(piece)
    if body.length is None:
        connection.send(b"0\r\n\r\n")


def _has_answered(connection: _HostConnection) -> bool:
    """Return whether a response arrives before the body is sent, which is always an error.

    False over TLS, where the server also sends tickets: the end of the connection ends the body.
    """
    if isinstance(connection.sock, ssl.SSLSocket):
        return False
    return bool(select.select([connection.sock], [], [], 0)[0])


SimpleWork: TypeAlias = Callable[[HttpClient, Namespace], None]
"""The work of a command, given a client and the command line."""


def add_online_options(
    parser: ArgumentParser, request: SimpleWork, *, has_timeout: bool = False
) -> None:
    """Add the options of a command that does `request` with a daemon, and run it.

    Unless it has a time-out, it fails if the server sends nothing for `SILENCE_S`.
    """
    if has_timeout:
        add_timeout_option(parser)
    add_network_options(parser)
    add_settings_options(parser)
    parser.set_defaults(run=run_once, request=request, silence_s=SILENCE_S)


def run_once(arguments: Namespace) -> Status:
    """Do `arguments.request` with the daemon of `arguments.url`; raise `CommandFailed`.

    Ctrl-C ends it at once, as it does any program.
    """
    work: SimpleWork = arguments.request
    client = make_http_client(arguments)
    if getattr(arguments, "output", None) is None:  # else an unfinished file has to be removed
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    work(client, arguments)
    return DONE


def make_http_client(arguments: Namespace) -> HttpClient:
    """Return the client that a command line describes; raise `CommandFailed`."""
    return _make_client(arguments, arguments.url, read_token(arguments))


def make_source_client(arguments: Namespace, default: str | None = None) -> HttpClient:
    """Return the client of `arguments.source`, by its own token or `default`."""
    file: pathlib.Path | None = arguments.source_token_file
    token = default if file is None else read_token_file(file)
    return _make_client(arguments, arguments.source, token)


def _make_client(arguments: Namespace, url: Url, token: str | None) -> HttpClient:
    authorities = choose_authorities(arguments, url, read_settings(arguments))
    timeout = getattr(arguments, "timeout", None)
    if timeout is not None:
        return HttpClient(authorities, token, timeout.client_s)
    return HttpClient(authorities, token, silence_s=getattr(arguments, "silence_s", None))
