"""Names of projects, databases and issuers, and the choices that the configuration names.

A label addresses a database: `<database>--<project>`, or `<project>` alone for the database
`default`. A host carries it as a subdomain of a configured domain, the parameter `ns` where the
host cannot.
"""

from __future__ import annotations

import re
from typing import Final, Literal, TypeAlias
from urllib.parse import urlsplit

import attrs

from treedbd.limits import MAX_LABEL_CHARACTERS

DialectName: TypeAlias = Literal["auto", "standard", "firebase"]
ReadsName: TypeAlias = Literal["strict", "local"]
CreatorName: TypeAlias = Literal["rules", "admin"]
"""Whose write may create a database: one that the rules allow, or an admin's alone."""

DEFAULT_DATABASE: Final = "default"
SERVICE_PROVIDER: Final = "custom"
"""`auth.provider` of service tokens that name none: the project itself vouches for the user."""

HTTPS_URL: Final = "an https URL"
"""How messages describe what `is_https_url` accepts."""
ISSUER_URL: Final = f"{HTTPS_URL} without a query and a fragment"
"""How messages describe what `is_issuer_url` accepts."""

NAME_PATTERN: Final = r"[a-z0-9](?:-?[a-z0-9])*"
"""What the name of a project or a database looks like, in lower case."""

_LABEL = re.compile(rf"(?:(?P<database>{NAME_PATTERN})--)?(?P<project>{NAME_PATTERN})", re.ASCII)


@attrs.frozen
class DatabaseName:
    """The name of a database of a project."""

    project: str
    database: str = DEFAULT_DATABASE

    @property
    def label(self) -> str:
        """The label that addresses the database: `shop`, or `eu--shop`."""
        if self.database == DEFAULT_DATABASE:
            return self.project
        return f"{self.database}--{self.project}"


def parse_label(label: str) -> DatabaseName | None:
    """Return the database that a label names, in letters of either case; None if it is illegal."""
    found = _LABEL.fullmatch(label.lower())
    if found is None or len(label) > MAX_LABEL_CHARACTERS:
        return None
    return DatabaseName(found["project"], found["database"] or DEFAULT_DATABASE)


def is_https_url(url: str) -> bool:
    """Return whether treedb can fetch `url`: https, a host, no user name and no password."""
    try:
        parts = urlsplit(url)
        has_host = bool(parts.hostname) and parts.port != 0
    except ValueError:
        return False
    is_plain = url.isascii() and url.isprintable() and " " not in url
    return url.startswith("https://") and has_host and is_plain and parts.username is None


def is_issuer_url(url: str) -> bool:
    """Return whether `url` can be an issuer identifier (OpenID Connect Core 1.0, section 2)."""
    return is_https_url(url) and not (urlsplit(url).query or urlsplit(url).fragment)
