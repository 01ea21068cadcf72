"""Which pages may send requests in development mode: those of this machine, and named ones.

Development mode listens on loopback only, but a browser on this machine sends requests for every
page that its user visits, and there the rules are open and the token of an admin is known. So a
request that a page of another site makes is refused. Browsers say where a request comes from in
`Origin` and `Sec-Fetch-Site` (the Fetch standard, section 3.2; Fetch Metadata), which a page cannot
set; programs that are no browsers send neither. That no other host can be taken for this one
(DNS rebinding) is checked by `addressing`.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Iterable
from typing import Final

from treedbd.web.auth.jwt import BadToken
from treedbd.web.auth.verifier import OWNER_TOKEN
from treedbd.web.headers import Headers, first
from treedbd.web.http1.interface import IHttp1Request

SENT_FOR_PAGES: Final = frozenset({b"origin", b"sec-fetch-site"})
"""Header fields of which a browser sends at least one for a page; without them there is no page."""

_AUTHORITY: Final = r"(\[[0-9a-f:.]+\]|[^:\[\]/?#@\s]+)(?::[0-9]{0,5})?"
_HOST = re.compile(_AUTHORITY, re.IGNORECASE)
_ORIGIN = re.compile(rf"[a-z][a-z0-9+.-]*://{_AUTHORITY}", re.IGNORECASE)
_REFERER = re.compile(rf"({_ORIGIN.pattern})(?:[/?#]|$)", re.IGNORECASE)
_MAX_SHOWN_CHARACTERS: Final = 100
_OWN_SITES: Final = frozenset({"same-origin", "same-site", "none"})
"""`Sec-Fetch-Site` of pages of this site, and of what the user opens without a page."""


class ForeignOrigin(Exception):
    """A request of a page that may not send any; the message says how to allow it."""

    def __init__(self, origin: str | None) -> None:
        """`origin` is None if the browser did not send it."""
        shown = f" ({origin})" if origin and len(origin) <= _MAX_SHOWN_CHARACTERS else ""
        super().__init__(
            f"A page of another site{shown} may not send requests in development mode: to allow "
            "it, name its origin in cors_origins, in a configuration with emulator = true."
        )


class OriginGuard:
    """Tells requests of pages that may send them from those of others."""

    def __init__(self, origins: Iterable[str]) -> None:
        """Allow pages of loopback and of `origins`; `*` among them names none."""
        self._named = frozenset(origins) - {"*"}

    def check(self, request: IHttp1Request) -> None:
        """Raise `ForeignOrigin` for a request of a page that may not send any."""
        headers = request.headers
        if self.is_local(headers) or _find_origin(headers) in self._named or _is_visit(request):
            return
        raise ForeignOrigin(_find_origin(headers))

    def check_token(self, headers: Headers, token: str | None) -> None:
        """Raise `BadToken` for the token of the emulator's owner from a page of another site."""
        if token == OWNER_TOKEN and not self.is_local(headers):
            raise BadToken("The token owner counts only for programs and pages of this machine.")

    def is_local(self, headers: Headers) -> bool:
        """Return whether a request is that of a program, of a page of this site or of loopback."""
        return _is_loopback(_find_origin(headers)) or not _is_of_another_site(headers)


def _find_origin(headers: Headers) -> str | None:
    """Return the origin of the page that sends a request, None if the browser does not send it.

    Scripts are loaded without `Origin`; then `Referer` shows it, which a page can only leave out.
    """
    if b"origin" in headers:
        return b", ".join(headers[b"origin"]).decode("latin-1")
    found = _REFERER.match(first(headers, b"referer") or "")
    return found[1] if found else None


def _is_of_another_site(headers: Headers) -> bool:
    """Return whether one of both headers names another site than that of the request."""
    if any(each.decode("latin-1") not in _OWN_SITES for each in headers.get(b"sec-fetch-site", ())):
        return True
    if b"origin" not in headers:
        return False
    own = _HOST.fullmatch(first(headers, b"host") or "")
    host = _host_of(_find_origin(headers))
    return host is None or own is None or host != own[1].lower()


def _is_loopback(origin: str | None) -> bool:
    host = _host_of(origin)
    if host is None:
        return False
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return host == "localhost" or host.endswith(".localhost")


def _host_of(origin: str | None) -> str | None:
    """Return the host of an origin in lower case, None for what is none, as `null` and a list."""
    found = _ORIGIN.fullmatch(origin or "")
    return found[1].lower() if found else None


def _is_visit(request: IHttp1Request) -> bool:
    """Return whether a user opens the root by a link, which shows the page no answer."""
    headers = request.headers
    return (
        request.method in (b"GET", b"HEAD")
        and not any(request.postpath)
        and b"origin" not in headers
        and first(headers, b"sec-fetch-mode") == "navigate"
        and first(headers, b"sec-fetch-dest") == "document"
    )
