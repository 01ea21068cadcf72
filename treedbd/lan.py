"""What `--lan` prints when the daemon is ready: URLs, a QR code, the admin's token, the authority.

It is printed on standard output, which is the only place where the token is ever shown.
"""

from __future__ import annotations

import io
from collections.abc import Iterable, Sequence
from typing import Final
from urllib.parse import urlsplit

import segno

from treedbd.config.endpoints import AUTHORITY_CERTIFICATE, Endpoint
from treedbd.config.local_network import LocalNetwork
from treedbd.config.settings import Settings

_ANY_INTERFACE: Final = frozenset({"", "0.0.0.0", "::"})  # noqa: S104 - compared, not bound
_NO_ADDRESS: Final = "None yet: this machine has no address in a network."
_ONLY_LOOPBACK: Final = "None: the endpoints that --listen names are on loopback."


def lan_lines(
    settings: Settings, network: LocalNetwork, urls: Sequence[str], *, encoding: str | None
) -> list[str]:
    """Return the lines to print; `urls` are those of `settings.listen`, as this machine reaches it.

    `encoding` is that of a terminal, which shows a QR code; None if it is no terminal.
    """
    found = lan_urls(settings.listen, network, urls)
    is_reachable = not all(endpoint.is_loopback for endpoint in settings.listen)
    why_none = _NO_ADDRESS if is_reachable else _ONLY_LOOPBACK
    lines = ["", "With --lan other machines of the network can connect:"]
    lines += [f"    {url}" for url in found] or [f"    {why_none}"]
    others = network.addresses[1:]
    if found and others:
        lines += [f"    (other addresses of this machine: {', '.join(others)})"]
    if found and encoding is not None:
        lines += ["", *_qr_code(found[0], encoding)]
    return [
        *lines,
        "",
        "The token of an admin, in place of owner; new at each start, and shown nowhere else:",
        f"    {network.admin_token}",
        "",
        "A device accepts the certificate once it trusts this authority (how: docs/serving.md):",
        f"    {settings.data.absolute() / AUTHORITY_CERTIFICATE}",
        "",
    ]


def lan_urls(listen: Iterable[Endpoint], network: LocalNetwork, urls: Iterable[str]) -> list[str]:
    """Return the URLs at which other machines reach the endpoints; those have TLS."""
    found = []
    for endpoint, url in zip(listen, urls, strict=True):
        parts = urlsplit(url)
        if endpoint.is_loopback or parts.scheme != "https":
            continue
        if endpoint.interface not in _ANY_INTERFACE:
            found.append(url)
            continue
        multicast = [name for name in network.names if name.endswith(".local")]
        hosts = (*_reachable(endpoint, network)[:1], *multicast)
        found += [f"{parts.scheme}://{host}:{parts.port}" for host in hosts]
    return found


def _reachable(endpoint: Endpoint, network: LocalNetwork) -> list[str]:
    """Return the addresses of the family of an endpoint, as they stand in URLs."""
    six = [f"[{each}]" for each in network.addresses if ":" in each]
    four = [each for each in network.addresses if ":" not in each]
    return six if endpoint.interface == "::" else four


def _qr_code(url: str, encoding: str) -> list[str]:
    drawn = io.StringIO()
    segno.make(url, error="l", micro=False).terminal(drawn, border=2, compact=True)
    try:
        drawn.getvalue().encode(encoding)
    except (UnicodeEncodeError, LookupError):
        return []
    return drawn.getvalue().splitlines()
