"""Entity tags: the canonical form of JSON, the tag over it, and the tags in a condition.

The canonical form is that of RFC 8785 (JCS). The tag is its SHA-256 in lower-case hexadecimal, in
double quotes. The JSON is that of a plain GET, with numbers as the tree stores them.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from hashlib import sha256
from typing import Final

import attrs

from treedbd.tree.types import Json
from treedbd.tree.value import compact, compact_sorted

_BEYOND_16_BITS = re.compile(rb"[\xf0-\xf4]")
_ABOVE_SURROGATES = re.compile(rb"[\xee\xef]")
_LISTED = re.compile(r'(?:[^,"]|"[^"]*"?)+')
_ETAG = re.compile(r'(?:W/)?(?:"([^"]*)"|([^\s"]+))')


def canonicalise(json: Json) -> bytes:
    """Return the canonical form of JSON (RFC 8785); integers print all their digits."""
    # JCS orders members by UTF-16 code units, orjson by UTF-8 bytes, which is the order of code
    # points. They differ only where a character beyond U+FFFF (a surrogate pair in UTF-16, from
    # U+D800 on) meets one of U+E000 to U+FFFF. In UTF-8 the first kind begins with the bytes F0 to
    # F4, the second with EE or EF, and no other character holds these. So if the text that orjson
    # sorted lacks either, its order is the canonical one.
    text = compact_sorted(json)
    if text.isascii() or not (_BEYOND_16_BITS.search(text) and _ABOVE_SURROGATES.search(text)):
        return text
    return compact(_sort_by_utf16(json))


def etag(json: Json) -> str:
    """Return the entity tag of JSON, with its quotes."""
    return etag_of_canonical(canonicalise(json))


def etag_of_canonical(canonical: bytes) -> str:
    """Return the entity tag of JSON in its canonical form."""
    return f'"{sha256(canonical).hexdigest()}"'


NULL_ETAG: Final = etag(None)
"""The tag of nothing."""


@attrs.frozen
class ETagSet:
    """The tags of a condition, without their quotes; `is_any` if `*` is among them."""

    is_any: bool
    opaque: frozenset[str]

    def matches(self, tag: str, exists: bool) -> bool:
        """Return whether the set holds `tag`, or holds `*` and the value `exists`."""
        return (self.is_any and exists) or tag.strip('"') in self.opaque


def parse_etags(header: str) -> ETagSet:
    """Parse an `If-Match` or `If-None-Match` header: `*`, or tags with or without quotes.

    A tag marked `W/` counts as the tag itself, in `If-Match` too, although RFC 9110 (section
    13.1.1) compares strongly there: a tag is that of the value and not of its bytes, and a proxy
    that compresses responses weakens the tags in them. Never raises: text that is not a tag matches
    nothing.
    """
    listed = list(_listed_tags(header))
    opaque = frozenset(quoted or bare for quoted, bare in listed if bare != "*")
    return ETagSet(any(bare == "*" for _, bare in listed), opaque)


def has_bare_tag(header: str) -> bool:
    """Return whether one of the tags in a condition is without quotes; `*` is not a tag."""
    return any(bare not in ("", "*") for _, bare in _listed_tags(header))


def _listed_tags(header: str) -> Iterator[tuple[str, str]]:
    """Yield what is listed: the tag in quotes, or the one without; the other of both is empty."""
    for listed in _LISTED.findall(header):
        found = _ETAG.fullmatch(listed.strip())
        if found is not None:
            yield found[1] or "", found[2] or ""


def _sort_by_utf16(json: Json) -> Json:
    if isinstance(json, dict):
        keys = sorted(json, key=lambda key: key.encode("utf-16-be"))
        return {key: _sort_by_utf16(json[key]) for key in keys}
    if isinstance(json, list):
        return [_sort_by_utf16(item) for item in json]
    return json
