"""The frame that the pages for browsers share: style, icon, and headers that let nothing else in.

The files of a page are in the folder `static`. A page loads nothing: its style and its icon are
within it, and its Content-Security-Policy forbids all else, but for requests to its own origin:
what a user pastes into the console of the browser may send those. A page of the documentation loads
one script too, from its own origin.
"""

from __future__ import annotations

import base64
import hashlib
from html import escape
from importlib.resources import files
from string import Template
from typing import Final

from treedbd.http1.headers import Header
from treedbd.web.response import Response

MAX_ICON_AGE_S: Final = 86_400

_FOLDER: Final = files("treedbd.web") / "static"


def read_static(name: str) -> bytes:
    """Return a file of the folder of the pages."""
    return (_FOLDER / name).read_bytes()


def read_template(name: str) -> Template:
    """Return a template from the folder of the pages; what is filled in has to be escaped."""
    return Template(read_static(name).decode())


def _digest(content: str) -> str:
    """Return the source expression of an inline style (CSP level 3, section 2.3.1)."""
    digest = base64.b64encode(hashlib.sha256(content.encode()).digest())
    return f"'sha256-{digest.decode()}'"


_STYLE: Final = (_FOLDER / "style.css").read_text(encoding="utf-8")
_ICON: Final = (_FOLDER / "favicon.svg").read_bytes()
ICON_URL: Final = f"data:image/svg+xml;base64,{base64.b64encode(_ICON).decode()}"
"""The icon of the service, to be put into a page."""
_FRAME: Final = read_template("frame.html")
_POLICY: Final = "; ".join(
    (
        "default-src 'none'",
        f"style-src {_digest(_STYLE)}",
        "img-src 'self' data:",
        "connect-src 'self'",
        "base-uri 'none'",
        "form-action 'none'",
        "frame-ancestors 'none'",
    )
)
_POLICY_WITH_SCRIPTS: Final = f"{_POLICY}; script-src 'self'"
ALONE_HEADERS: Final[tuple[Header, ...]] = ((b"Content-Security-Policy", b"default-src 'none'"),)
"""Headers of what is no page: opened by itself, it runs no script."""
_ICON_HEADERS: Final[tuple[Header, ...]] = (
    (b"Content-Type", b"image/svg+xml"),
    (b"Content-Security-Policy", b"default-src 'none'"),
)

ICON: Final = Response(200, _ICON, _ICON_HEADERS, max_age_s=MAX_ICON_AGE_S)
"""The icon of the service."""


def html_page(title: str, main: str, *, has_scripts: bool = False) -> Response:
    """Return a page; `title` is text, `main` is HTML, which names scripts if it `has_scripts`."""
    page = _FRAME.substitute(
        title=escape(title),
        style=_STYLE,
        icon=ICON_URL,
        main=main,
    )
    policy = _POLICY_WITH_SCRIPTS if has_scripts else _POLICY
    headers = (
        (b"Content-Type", b"text/html; charset=utf-8"),
        (b"Content-Security-Policy", policy.encode()),
        (b"X-Frame-Options", b"DENY"),
        (b"Vary", b"Accept"),
    )
    return Response(200, page.encode(), headers)
