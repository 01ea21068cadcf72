"""The two dialects of the interface; everything in which they differ is here.

`STANDARD` is the interface as it is documented. `FIREBASE` is for clients that were written for the
vendor's service and match its bytes. A project may be set to either; else a request that carries
`ns=` or an `Authorization` header, which the documented interface does not know, is answered in
the second.
"""

from __future__ import annotations

import re
from typing import Final

import attrs

from treedbd.database.catalog import DialectChoice
from treedbd.tree import printing
from treedbd.tree.canonical import NULL_TAG, Tags, parse_tags
from treedbd.tree.value import Json
from treedbd.web.head import Head
from treedbd.web.parameters import Parameters

_VENDORS_NULL_TAG: Final = "null_etag"
_DENIED: Final = "Permission denied"
_MEMBER = re.compile(rb'^( *"(?:[^"\\]|\\.)*"): ', re.MULTILINE)


@attrs.frozen
class Dialect:
    """The differences; `is_vendors` chooses."""

    is_vendors: bool

    @property
    def denied_status(self) -> int:
        """The status of what the rules, or an admin's place, do not allow."""
        return 401 if self.is_vendors else 403

    def error_body(self, code: str, message: str) -> bytes:
        """Return the body of an error."""
        if self.is_vendors:
            sentence = _DENIED if code == "permission_denied" else message
            return self.pretty({"error": sentence}) + b"\n"
        return printing.compact({"error": code, "message": message})

    def mismatch_body(self, code: str, message: str, current: Json) -> bytes:
        """Return the body that tells what is there where a tag did not match."""
        if self.is_vendors:
            return printing.compact(current)
        return printing.compact({"error": code, "message": message, "data": current})

    def tag(self, tag: str) -> bytes:
        """Return an entity tag as it stands in a header."""
        if self.is_vendors and tag == NULL_TAG:
            return _VENDORS_NULL_TAG.encode()
        return tag.encode()

    def parse_tags(self, header: str | None, *, is_weak: bool) -> Tags | None:
        """Parse the tags of a condition, the vendor's tag of nothing too; None if there is none."""
        if header is None:
            return None
        tags = parse_tags(header, is_weak=is_weak)
        if not self.is_vendors or _VENDORS_NULL_TAG not in tags.opaque:
            return tags
        return attrs.evolve(tags, opaque=tags.opaque | {NULL_TAG.strip('"')})

    def rules_fault(self, text: str) -> str:
        """Return the message that tells what is wrong with a rules document."""
        return f"{text}\n" if self.is_vendors else text

    def pretty(self, json: Json) -> bytes:
        """Print JSON with an indent of two spaces."""
        text = printing.pretty(json)
        return _MEMBER.sub(rb"\1 : ", text) if self.is_vendors else text


STANDARD: Final = Dialect(False)
FIREBASE: Final = Dialect(True)


def choose(choice: DialectChoice, parameters: Parameters, head: Head) -> Dialect:
    """Return the dialect in which a request is answered; `choice` is that of its project."""
    if choice == "auto":
        return FIREBASE if "ns" in parameters or b"authorization" in head else STANDARD
    return FIREBASE if choice == "firebase" else STANDARD
