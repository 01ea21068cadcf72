"""What the web layer must be told: limits, names and origins, frozen."""

from __future__ import annotations

import attrs

MIB = 1_048_576


@attrs.frozen
class WebOptions:
    """Settings of the interface.

    `domains` are those whose subdomains name databases, in lower case. `default_project` answers
    where neither host nor `ns` names one; empty: nobody does. `cors_origins` holds `*` or origins.
    """

    domains: tuple[str, ...] = ()
    default_project: str = ""
    etag_headers: tuple[str, ...] = ("Vendor", "Firebase", "TreeDB")
    cors_origins: tuple[str, ...] = ("*",)
    write_body_bytes: int = 16 * MIB
    write_nodes: int = 1_000_000
    string_bytes: int = 10 * MIB
