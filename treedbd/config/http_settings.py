"""The settings of the interface over HTTP, `[http]`."""

from __future__ import annotations

import re
from typing import Final

import attrs

from treedbd.config.log_settings import AccessLog, read_access_log
from treedbd.config.values import SettingLocation, boolean, integer, items, key, text, texts

HSTS_S: Final = 31_536_000
"""The `hsts_s` of a daemon that other machines reach: a year."""

_PAGE_ORIGIN: Final = r"[a-z][a-z0-9+.-]*://[^/?#@\s]+"
_ORIGIN: Final = r"\*|null|[a-z][a-z0-9+.-]*://[^/?#\s]+"


@attrs.frozen
class HttpSettings:
    """`[http]`: header names and origins of clients, access log, compression, page at `/`, HSTS.

    If `hsts_s` is None, it is `HSTS_S` for a daemon that other machines reach, else 0.
    """

    etag_headers: tuple[str, ...] = key(
        ("Vendor", "Firebase", "TreeDB"),
        texts(r"[A-Za-z0-9-]+", 'parts of header names like "Vendor"'),
    )
    cors_origins: tuple[str, ...] = key(
        ("*",), texts(_ORIGIN, 'origins like "https://app.example.com", or "*"')
    )
    access_log: AccessLog = key(False, read_access_log)
    compression: bool = key(True, boolean)
    page: bool = key(True, boolean)
    hsts_s: int | None = key(None, integer(0, 10 * HSTS_S))
    hsts_subdomains: bool = key(False, boolean)


def read_page_origins(raw: object, location: SettingLocation) -> tuple[str, ...]:
    """Read the origins of pages that `--origin` names; raise `ConfigError`."""
    origins = tuple(text(each, location) for each in items(raw, location))
    for origin in origins:
        if re.fullmatch(_PAGE_ORIGIN, origin) is None:
            raise location.error(
                f'is "{origin}", which is not the origin of a page, as https://app.example.com is',
                "give its scheme, host and port, and no path",
            )
    return origins
