"""Origins: which pages of browsers may send requests, where not every page may.

Development mode listens on loopback only, its rules are open and an admin's token is known. But a
browser on this machine sends requests for every page that its user visits. So a request is refused
if a page of another site makes it. Browsers name the page in `Origin` and `Sec-Fetch-Site` (the
Fetch standard, section 3.2; Fetch Metadata), which a page cannot set; programs that are not
browsers send neither. Old browsers send neither for scripts and forms, which any page can load and
submit: such a request must name its page. `web.request` (`Addressing`) checks that no other host
resolves to this one (DNS rebinding).

The same holds for users who are logged in to the application that embeds the service: their
browsers send cookies with the requests of any page, so a page of another site must neither read nor
write as they may. Pages of loopback have no privilege then.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Iterable
from typing import TYPE_CHECKING, Final, Literal

from treedbd.http1.parser import Headers, first
from treedbd.http1.request import IHttp1Request
from treedbd.names import without_mapping
from treedbd.web.auth.jwt import BadToken
from treedbd.web.auth.verifier import OWNER_TOKEN

if TYPE_CHECKING:
    from treedbd.config.settings import Settings

SENT_FOR_PAGES: Final = frozenset({b"origin", b"sec-fetch-site"})
"""A browser sends at least one of these for a page; only an old one sends a form without any."""

CONSOLE: Final = b".console"
"""The first segment of the paths of the console."""
CONSOLE_PATH: Final = b"/" + CONSOLE + b"/"
"""What the paths of its files begin with."""
_AUTHORITY: Final = r"(\[[0-9a-f:.]+\]|[^:\[\]/?#@\s]+)(?::[0-9]{0,5})?"
_HOST = re.compile(_AUTHORITY, re.IGNORECASE)
_ORIGIN = re.compile(rf"[a-z][a-z0-9+.-]*://{_AUTHORITY}", re.IGNORECASE)
_REFERER = re.compile(rf"({_ORIGIN.pattern})(?:[/?#]|$)", re.IGNORECASE)
_MAX_SHOWN_CHARACTERS: Final = 100
_OWN_SITES: Final = frozenset({"same-origin", "same-site", "none"})
"""`Sec-Fetch-Site` of pages of this site, and of what the user opens without a page."""


class ForeignOrigin(Exception):
    """A request of a page that may not send requests; the message says how to allow it."""

    def __init__(self, origin: str | None, *, is_for_users: bool) -> None:
        """`origin` is None if the browser did not send it.

        The request was for a user who is logged in, or for development mode.
        """
        shown = f" ({origin})" if origin and len(origin) <= _MAX_SHOWN_CHARACTERS else ""
        purpose = "for a user who is logged in" if is_for_users else "in development mode"
        remedy = "name its origin in cors_origins"
        if not is_for_users:
            url = origin if shown and _ORIGIN.fullmatch(origin or "") else "URL"
            remedy = f"start treedb with --origin {url}, or {remedy} of a configuration"
        super().__init__(
            f"A page of another site{shown} may not send requests {purpose}: to allow it, {remedy}."
        )


class UnnamedPage(Exception):
    """A request for a script, or from a form, that does not name its page."""

    def __init__(self, kind: Literal["script", "form"]) -> None:
        """Say what such a request needs."""
        unlike = "callback" if kind == "script" else "Accept: text/html"
        super().__init__(
            f"In development mode a {kind} is only for pages of this machine, and this request "
            f"names no page: send Sec-Fetch-Site: none with a program, or leave out {unlike}."
        )


class OriginGuard:
    """Refuses the requests of pages that may not send requests."""

    def __init__(
        self,
        origins: Iterable[str],
        own_hosts: Iterable[str] = (),
        admin_token: str = OWNER_TOKEN,
        *,
        is_for_users: bool = False,
    ) -> None:
        """Allow pages of this site, of `own_hosts` and of `origins`, where `*` allows none.

        `admin_token` counts for pages of this machine only. Pages of loopback are allowed too,
        unless the guard `is_for_users` who are logged in.
        """
        self._named = frozenset(origins) - {"*"}
        self._own_hosts = frozenset(host for host in own_hosts if "*" not in host)
        self._admin_token = admin_token
        self._is_for_users = is_for_users

    def check(self, request: IHttp1Request) -> None:
        """Raise `ForeignOrigin` or `UnnamedPage` for a request of a page that may not send it."""
        headers = request.headers
        if _is_form_of_old_browser(request):
            self._check_page(headers, "form")
            return
        if self._is_for_users:
            is_allowed = not _is_of_another_site(headers) or _opens_page(request)
        else:
            is_allowed = self.is_local(headers) or _is_visit(request)
        if not is_allowed and _find_origin(headers) not in self._named:
            raise ForeignOrigin(_find_origin(headers), is_for_users=self._is_for_users)

    def check_script(self, request: IHttp1Request) -> None:
        """Raise `ForeignOrigin` or `UnnamedPage` for a script (JSONP) of an unknown page.

        Any page can read the arguments with which a script calls a function.
        """
        self._check_page(request.headers, "script")

    def _check_page(self, headers: Headers, kind: Literal["script", "form"]) -> None:
        """Raise `ForeignOrigin` or `UnnamedPage` unless the request names a page that may send it.

        Without TLS, or in an old browser, only `Referer` may name the page. A page of a sister host
        is `same-site`: in development mode that is a page of this machine, but for users who are
        logged in it may belong to another party.
        """
        origin = _find_origin(headers)
        site = first(headers, b"sec-fetch-site")
        if self._is_for_users:
            is_own = site in ("same-origin", "none") or _is_host_of(headers, origin)
        else:
            is_own = site in _OWN_SITES or self._is_here(origin) or _is_host_of(headers, origin)
        if is_own or origin in self._named:
            return
        is_unnamed = origin is None and site is None and not self._is_for_users
        if is_unnamed:
            raise UnnamedPage(kind)
        raise ForeignOrigin(origin, is_for_users=self._is_for_users)

    def check_token(self, headers: Headers, token: str | None) -> None:
        """Raise `BadToken` for the emulator's owner token from a page of another site."""
        if token == self._admin_token and not self.is_local(headers):
            name = OWNER_TOKEN if token == OWNER_TOKEN else "of the admin"
            raise BadToken(
                f"The token {name} counts only for programs and pages of this machine.", "origin"
            )

    def is_local(self, headers: Headers) -> bool:
        """Return whether a program, a page of this site or a page of loopback sent a request."""
        return self._is_here(_find_origin(headers)) or not _is_of_another_site(headers)

    def _is_here(self, origin: str | None) -> bool:
        """Return whether this machine serves the pages of an origin."""
        return is_loopback(origin) or (_host_of(origin) or "").strip("[]") in self._own_hosts


def make_guard(settings: Settings) -> OriginGuard | None:
    """Return what refuses pages of other sites; None outside development mode."""
    if not settings.is_local:
        return None
    token = settings.admin_token or OWNER_TOKEN
    return OriginGuard(settings.http.cors_origins, settings.own_hosts, token)


def _find_origin(headers: Headers) -> str | None:
    """Return the origin of the page that sends a request, None if the browser does not name it.

    A script is loaded without `Origin`; then `Referer` names it, which a page can only omit.
    """
    if b"origin" in headers:
        return b", ".join(headers[b"origin"]).decode("latin-1")
    found = _REFERER.match(first(headers, b"referer") or "")
    return found[1] if found else None


def _is_of_another_site(headers: Headers) -> bool:
    """Return whether either header names another site than that of the request."""
    if any(each.decode("latin-1") not in _OWN_SITES for each in headers.get(b"sec-fetch-site", ())):
        return True
    if b"origin" not in headers:
        return False
    return not _is_host_of(headers, _find_origin(headers))


def _is_host_of(headers: Headers, origin: str | None) -> bool:
    """Return whether a request goes to the host of an origin."""
    own = _HOST.fullmatch(first(headers, b"host") or "")
    host = _host_of(origin)
    return host is not None and own is not None and host == own[1].lower()


def is_loopback(origin: str | None) -> bool:
    """Return whether an origin is on this machine; False for None."""
    host = _host_of(origin)
    if host is None:
        return False
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return host == "localhost" or host.endswith(".localhost")


def is_loopback_address(address: str) -> bool:
    """Return whether a client is on this machine; True for one without an address."""
    try:
        return without_mapping(ipaddress.ip_address(address or "::1")).is_loopback
    except ValueError:
        return False


def _host_of(origin: str | None) -> str | None:
    """Return the host of an origin in lower case; None for `null`, a list or malformed text."""
    found = _ORIGIN.fullmatch(origin or "")
    return found[1].lower() if found else None


def _is_form_of_old_browser(request: IHttp1Request) -> bool:
    """Return whether a form sends a request, by an old browser that does not name the page.

    Such a browser requests HTML; programs have another `User-Agent`, or do not request HTML (Java
    has both).
    """
    headers = request.headers
    return (
        request.method == b"POST"
        and SENT_FOR_PAGES.isdisjoint(headers)
        and "text/html" in (first(headers, b"accept") or "")
        and (first(headers, b"user-agent") or "").startswith(("Mozilla/", "Opera/"))
    )


def _is_visit(request: IHttp1Request) -> bool:
    """Return whether a user opens the root or the console by a link.

    The page with the link sees no response. `treedb console` opens the console by a page that is in
    a file, which is of another site to a browser.
    """
    segments = [each for each in request.postpath if each]
    return segments in ([], [CONSOLE]) and _opens_page(request)


def _opens_page(request: IHttp1Request) -> bool:
    """Return whether a user opens a page by a link; the page with the link sees no response."""
    headers = request.headers
    return (
        request.method in (b"GET", b"HEAD")
        and b"origin" not in headers
        and first(headers, b"sec-fetch-mode") == "navigate"
        and first(headers, b"sec-fetch-dest") == "document"
    )
