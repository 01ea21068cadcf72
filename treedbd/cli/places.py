"""Places: a database and a path in it, as one URL, and as words relative to another place."""

from __future__ import annotations

import ipaddress
from typing import Final
from urllib.parse import parse_qs, unquote

import attrs

from treedbd.cli.exit import CommandFailed
from treedbd.cli.options import NAMESPACE, SUFFIX, InvalidUrl, Url, is_local_name
from treedbd.names import parse_label
from treedbd.tree.path import check_depth, check_key
from treedbd.tree.types import InvalidPath, Path

UP: Final = ".."
HERE: Final = "."
_LABELS_WITH_DATABASE: Final = 3


def resolve_path(text: str, here: Path) -> Path:
    """Return the path that a text names, relative to another one; raise `CommandFailed`."""
    keys = [] if text.startswith("/") else list(here)
    try:
        for segment in text.split("/"):
            if segment == UP:
                del keys[-1:]
            elif segment not in {"", HERE}:
                keys.append(check_key(segment))
        return check_depth(tuple(keys))
    except InvalidPath as error:
        raise CommandFailed(str(error)) from None


def split_url(url: Url) -> tuple[Url, Path]:
    """Return the URL of the database of a URL, and the path in it; raise `InvalidUrl`."""
    given = parse_qs(url.query, keep_blank_values=True)
    if not given.keys() <= {NAMESPACE}:
        raise InvalidUrl("must have no other parameter than ns")
    segments = url.path.removesuffix(SUFFIX).split("/")
    try:
        path = check_depth(tuple(check_key(unquote(each)) for each in segments if each))
    except InvalidPath as error:
        raise InvalidUrl(f"must name a path: {error}") from None
    return attrs.evolve(url, path=""), path


def label_of(root: Url, default: str) -> str:
    """Return what the prompt calls a database; `default` if its URL does not say it."""
    labels = parse_qs(root.query).get(NAMESPACE)
    if labels:
        return labels[-1]
    first, _, rest = root.host.partition(".")
    is_subdomain = is_local_name(rest) or root.host.count(".") + 1 >= _LABELS_WITH_DATABASE
    if is_subdomain and not _is_address(root.host) and parse_label(first) is not None:
        return first.lower()
    return default or root.authority


def with_parameter(root: Url, label: str) -> Url:
    """Return the URL of another database at the same host, named by a parameter."""
    return attrs.evolve(root, query="").with_parameters({NAMESPACE: label})


def with_host(root: Url, label: str) -> Url:
    """Return the URL of another database, named by the first label of the host."""
    rest = root.host.partition(".")[2]
    return attrs.evolve(root, query="", host=f"{label}.{rest}")


def _is_address(host: str) -> bool:
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True
