"""Entity tags: the canonical form of JSON, the tag over it, and the lists of tags in headers.

The canonical form is that of RFC 8785 (JCS), the tag its SHA-256 in lower-case hexadecimal within
double quotes. JSON comes as a plain GET shows it, with numbers as `number.settle` leaves them.
"""

from __future__ import annotations

import re
from hashlib import sha256
from typing import Final

import attrs

from treedbd.tree import printing
from treedbd.tree.value import Json

MOST_TAGGED_BYTES: Final = 32 * 1_048_576
"""A tag is made of the whole value at once; a larger one has none."""

_BEYOND_16_BITS = re.compile(rb"[\xf0-\xf4]")
_ABOVE_SURROGATES = re.compile(rb"[\xee\xef]")
_LISTED = re.compile(r'(?:[^,"]|"[^"]*"?)+')
_TAG = re.compile(r'(W/)?(?:"([^"]*)"|([^\s"]+))')


def canonicalise(json: Json) -> bytes:
    """Return the canonical form of JSON (RFC 8785); integers print all their digits."""
    # JCS orders members by UTF-16 code units, orjson by UTF-8 bytes, which is the order of code
    # points. Both compare characters below U+10000 by code point, and take one beyond, which
    # UTF-16 writes as a surrogate pair from U+D800 on, for greater than all below U+D800. So they
    # differ only where a character beyond meets one of U+E000 to U+FFFF. In UTF-8 the first kind
    # begins with the bytes F0 to F4, the second with EE or EF, and no other character holds
    # these. Where the text as sorted by orjson lacks either, its order is the canonical one.
    text = printing.compact_sorted(json)
    if text.isascii() or not (_BEYOND_16_BITS.search(text) and _ABOVE_SURROGATES.search(text)):
        return text
    return printing.compact(_sort_by_utf16(json))


def tag(json: Json) -> str:
    """Return the entity tag of JSON, with its quotes."""
    return tag_of(canonicalise(json))


def tag_of(canonical: bytes) -> str:
    """Return the entity tag of JSON in its canonical form."""
    return f'"{sha256(canonical).hexdigest()}"'


NULL_TAG: Final = tag(None)
"""The tag of nothing."""


@attrs.frozen
class Tags:
    """The tags that a condition names; `is_any` if `*` is among them."""

    is_any: bool
    opaque: frozenset[str]

    def matches(self, tag: str, exists: bool) -> bool:
        """Tell whether `tag` is among them, or anything will do and there is something."""
        return (self.is_any and exists) or tag.strip('"') in self.opaque


def parse_tags(header: str, *, is_weak: bool = False) -> Tags:
    """Parse an `If-Match` or `If-None-Match` header: `*`, or tags with or without quotes.

    With `is_weak` a tag marked `W/` counts as the tag itself, as `If-None-Match` compares; without
    it such a tag matches nothing, as `If-Match` compares (RFC 9110, section 8.8.3.2). Never
    raises: what is no tag matches nothing.
    """
    opaque = set()
    is_any = False
    for listed in _LISTED.findall(header):
        found = _TAG.fullmatch(listed.strip())
        if found is None:
            continue
        weak, quoted, bare = found.groups()
        if bare == "*":
            is_any = True
        elif is_weak or not weak:
            opaque.add(quoted or bare)
    return Tags(is_any, frozenset(opaque))


def _sort_by_utf16(json: Json) -> Json:
    if isinstance(json, dict):
        keys = sorted(json, key=lambda key: key.encode("utf-16-be"))
        return {key: _sort_by_utf16(json[key]) for key in keys}
    if isinstance(json, list):
        return [_sort_by_utf16(item) for item in json]
    return json
