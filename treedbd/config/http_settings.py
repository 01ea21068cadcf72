"""The settings of the interface over HTTP, `[http]`."""

from __future__ import annotations

from typing import Final

import attrs

from treedbd.config.values import boolean, key, texts

_ORIGIN: Final = r"\*|null|[a-z][a-z0-9+.-]*://[^/?#\s]+"


@attrs.frozen
class HttpSettings:
    """`[http]`: header names and origins of clients, access log, compression, the page at `/`."""

    etag_headers: tuple[str, ...] = key(
        ("Vendor", "Firebase", "TreeDB"),
        texts(r"[A-Za-z0-9-]+", 'parts of header names like "Vendor"'),
    )
    cors_origins: tuple[str, ...] = key(
        ("*",), texts(_ORIGIN, 'origins like "https://app.example.com", or "*"')
    )
    access_log: bool = key(False, boolean)
    compression: bool = key(True, boolean)
    page: bool = key(True, boolean)
