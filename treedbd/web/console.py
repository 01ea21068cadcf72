"""The console: the files of the folder `treedbd/console`, served below `/.console/`.

The files are the same for all callers, and need no token: what its user sees is requested by the
page, over the interface, with a token. Each response forbids the page to load or to connect to
anything of another origin. Other origins may neither frame it nor read it, whatever `cors_origins`
says.

A request can only name what is in the table of files, which is made at the start. A file is read
when it is first requested, and encoded once for each content coding, in slices; both are kept. In
development mode an edited file is read again, and a new one is found: the daemon need not be
restarted while the console is developed.

Development mode serves the console everywhere. Elsewhere it is served at the ports of
`console_listen`, whose requests have the entrance `CONSOLE_ENTRANCE`, and where the program that
embeds the service has mounted it (`MOUNTED`); other ports answer as if it did not exist.
"""

from __future__ import annotations

import os
import pathlib
import stat
from collections.abc import Generator
from hashlib import sha256
from typing import TYPE_CHECKING, Final

from twisted.internet.defer import Deferred, DeferredLock, succeed

from treedbd.database.slices import Slices
from treedbd.http1.content import SMALL_BYTES, Content, WaitingBytes
from treedbd.http1.parser import Coding, Header, joined
from treedbd.http1.request import MOUNTED, IHttp1Request
from treedbd.http1.senders import Encoder
from treedbd.limits import KIB, MAX_CONSOLE_FILE_BYTES, MAX_CONSOLE_FILES
from treedbd.tree.hashes import parse_etags
from treedbd.web.origins import is_loopback_address
from treedbd.web.response import (
    MIN_BYTES,
    NO_CACHE,
    NO_SNIFF,
    NO_STORE,
    address_of,
    choose_coding,
    counted_address_of,
)

if TYPE_CHECKING:
    from treedbd.web.context import WebContext

CONSOLE_ENTRANCE: Final = "console"
"""The entrance of the ports of `console_listen`."""
FOLDER: Final = pathlib.Path(__file__).parents[1] / "console"
RESCAN_S: Final = 1.0
"""Seconds between two searches for new files in development mode."""
_ENCODED_AT_ONCE: Final = 8 * KIB
"""Bytes that are encoded in one step, which takes less than a millisecond."""
_INDEX: Final = "index.html"
_TYPES: Final = {
    ".css": b"text/css; charset=utf-8",
    ".html": b"text/html; charset=utf-8",
    ".js": b"text/javascript; charset=utf-8",
    ".json": b"application/json",
    ".png": b"image/png",
    ".svg": b"image/svg+xml",
    ".woff2": b"font/woff2",
}
"""The media types; files of other kinds are not served."""
_POLICY: Final = "; ".join(
    (
        "default-src 'none'",
        "script-src 'self'",
        "style-src 'self'",
        "img-src 'self' data:",
        "font-src 'self'",
        "connect-src 'self'",
        "base-uri 'none'",
        "form-action 'none'",
        "frame-ancestors 'none'",
        "require-trusted-types-for 'script'",
    )
)
SAFE_HEADERS: Final[tuple[Header, ...]] = (
    (b"Content-Security-Policy", _POLICY.encode()),
    NO_SNIFF,
    (b"X-Frame-Options", b"DENY"),
    (b"Referrer-Policy", b"no-referrer"),
    (b"Cross-Origin-Opener-Policy", b"same-origin"),
    (b"Cross-Origin-Resource-Policy", b"same-origin"),
    NO_CACHE,
)
"""Headers of each response."""
ERROR_HEADERS: Final = (*(each for each in SAFE_HEADERS if each is not NO_CACHE), NO_STORE)
"""Headers of each error."""
_VARIES: Final = (b"Vary", b"Accept-Encoding")


class MissingFile(LookupError):
    """A path below `/.console/` that is not one of its files."""

    def __init__(self) -> None:
        super().__init__("The console has no such file.")


class _File:
    """A file that was read: as it is, and encoded in the codings that were requested.

    Attributes:
        version: changes with the file.
        plain: the content as it is.
        encoded: the content in codings.

    """

    def __init__(
        self, source: bytes, version: tuple[int, int], media_type: bytes, waiting: WaitingBytes
    ) -> None:
        self.version = version
        self.plain = Content(waiting, source)
        self.encoded: dict[Coding, Content] = {}
        self._waiting = waiting
        # It is weak, because the bytes differ in each coding.
        self._opaque = sha256(source).hexdigest()[:32]
        tag = (b"ETag", b'W/"%b"' % self._opaque.encode())
        self.headers = ((b"Content-Type", media_type), *SAFE_HEADERS, tag, _VARIES)

    def is_known(self, request: IHttp1Request) -> bool:
        """Return whether the client has this version already."""
        listed = joined(request.headers, b"if-none-match")
        return listed is not None and parse_etags(listed).matches(self._opaque, True)

    def encode_in_steps(self, coding: Coding) -> Generator[None, None, None]:
        """Encode the content, unless that was done meanwhile."""
        if coding in self.encoded:
            return
        encoder, source = Encoder(coding, is_thorough=True), self.plain.whole()
        pieces: list[bytes] = []
        for at in range(0, len(source), _ENCODED_AT_ONCE):
            # Otherwise zstd would keep pieces, to encode many of them in one step.
            pieces += encoder.encode(source[at : at + _ENCODED_AT_ONCE]), encoder.flush()
            yield
        pieces.append(encoder.finish())
        self.encoded[coding] = Content(self._waiting, b"".join(pieces))


class Console:
    """Serves the files of the console."""

    def __init__(self, context: WebContext, folder: pathlib.Path = FOLDER) -> None:
        """Make the table of the files of `folder`; nothing is read yet."""
        settings = context.settings
        self._is_everywhere = self._may_change = settings.development
        self._entrances = {CONSOLE_ENTRANCE}
        self._compresses = settings.http.compression
        self._waiting = context.reads.memory
        self._clock = context.clock
        self._slices = Slices(context.clock)
        self._encoding = DeferredLock()
        self._folder = folder
        self._places = find_files(folder)
        self._found_at = context.clock.seconds()
        self._kept: dict[str, _File] = {}

    def is_served(self, request: IHttp1Request) -> bool:
        """Return whether there is a console where a request came in."""
        return self._is_everywhere or request.entrance in self._entrances

    def mount(self) -> None:
        """Serve the console in the site of the program that embeds the service, too."""
        self._entrances.add(MOUNTED)

    async def answer(self, request: IHttp1Request) -> None:
        """Answer a GET or a HEAD; raise `MissingFile` or `WaitingBytesRefused`."""
        if len(request.postpath) == 1:
            # The links in the page are relative to this folder.
            request.send(308, ((b"Location", b".console/"), *SAFE_HEADERS), b"")
            return
        name = b"/".join(request.postpath[1:]).decode("utf-8", "replace")
        file = self._find(name or _INDEX)
        if file.is_known(request):
            request.send(304, file.headers[1:], b"")
            return
        coding, content = await self._choose(request, file)
        headers = file.headers
        if coding is not None:
            headers = (*headers, (b"Content-Encoding", coding.encode()))
        if content.size <= SMALL_BYTES:
            request.send(200, headers, content.whole())
        else:
            request.send_content(200, headers, content.open(counted_address_of(request)))

    def _find(self, name: str) -> _File:
        """Return a file as it is now; raise `MissingFile`."""
        kept = self._kept.get(name)
        if kept is not None and not self._may_change:
            return kept
        place = self._place_of(name)
        try:
            status = os.stat(place)
            if not stat.S_ISREG(status.st_mode):
                raise MissingFile
            version = (status.st_mtime_ns, status.st_size)
            if kept is not None and kept.version == version:
                return kept
            with place.open("rb") as opened:
                source = opened.read(MAX_CONSOLE_FILE_BYTES + 1)
        except OSError:
            self._kept.pop(name, None)
            raise MissingFile from None
        if len(source) > MAX_CONSOLE_FILE_BYTES:
            raise MissingFile
        made = _File(source, version, _TYPES[place.suffix], self._waiting)
        self._kept[name] = made
        return made

    def _place_of(self, name: str) -> pathlib.Path:
        """Return the place of a file; in development mode it may be new."""
        is_late = self._clock.seconds() >= self._found_at + RESCAN_S
        if name not in self._places and self._may_change and is_late:
            self._places = find_files(self._folder)
            self._found_at = self._clock.seconds()
        if name not in self._places:
            raise MissingFile
        return self._places[name]

    async def _choose(self, request: IHttp1Request, file: _File) -> tuple[Coding | None, Content]:
        """Return the content to send, and its coding.

        A client of this machine does not wait until the content is encoded.
        """
        may_encode = self._compresses and file.plain.size > MIN_BYTES
        coding = choose_coding(request.headers) if may_encode else None
        if coding is None:
            return None, file.plain
        if coding not in file.encoded:
            encoding = self._encoding.run(self._encode, file, coding)
            if not is_loopback_address(address_of(request)):
                await encoding
        if coding not in file.encoded:
            return None, file.plain
        return coding, file.encoded[coding]

    def _encode(self, file: _File, coding: Coding) -> Deferred[None]:
        if coding in file.encoded:
            return succeed(None)
        return self._slices.run(file.encode_in_steps(coding))


def find_files(folder: pathlib.Path) -> dict[str, pathlib.Path]:
    """Return the places of the files that may be served, by their names relative to a folder."""
    found: dict[str, pathlib.Path] = {}
    for parent, folders, names in os.walk(folder):
        folders[:] = [each for each in folders if not each.startswith(".")]
        for name in names:
            place = pathlib.Path(parent, name)
            is_wanted = place.suffix in _TYPES and not name.startswith(".")
            if is_wanted and len(found) < MAX_CONSOLE_FILES:
                found[place.relative_to(folder).as_posix()] = place
    return found
