"""The two dialects of the interface; everything in which they differ is here.

`STANDARD` is the interface as it is documented. `FIREBASE` is for clients that were written for
Firebase Realtime Database (a trademark of Google, to which treedb is not connected) and depend on
its exact bytes. A project may be set to either; otherwise a request that carries what the
documented interface does not have is answered in the second (`request.choose_dialect`).

A client of Firebase takes the body of a 412 for the value, and may show by nothing but its tag that
it is one. So tags in the second dialect are bare: a client that has read one sends it so.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final

import attrs

from treedbd.tree.hashes import NULL_ETAG, ETagSet, parse_etags
from treedbd.tree.types import Chunks, Json
from treedbd.tree.value import compact, indent, pretty, space_colons

_FIREBASE_NULL_ETAG: Final = "null_etag"
_DENIED: Final = "Permission denied"


@attrs.frozen
class Dialect:
    """One of the two dialects; `is_firebase` says which."""

    is_firebase: bool

    @property
    def denied_status(self) -> int:
        """The status of what the rules, or a resource for admins, deny."""
        return 401 if self.is_firebase else 403

    def denial(self, message: str) -> str:
        """Return the message about what the rules, or a resource for admins, deny."""
        return _DENIED if self.is_firebase else message

    def error_body(self, code: str, message: str, hint: str = "") -> bytes:
        """Return the body of an error; Firebase's have no member for a hint."""
        error: dict[str, Json] = {"error": code, "message": message}
        if hint:
            error["hint"] = hint
        if self.is_firebase:
            error = {"error": message}
            return self.pretty(error) + b"\n"
        return compact(error)

    @property
    def takes_412_for_value(self) -> bool:
        """Whether the body of a 412 must be the value, since clients take any other for it."""
        return self.is_firebase

    def mismatch_body(self, code: str, message: str, printed: Chunks) -> Chunks:
        """Return the body of a 412, which shows the value that did not match, as it is printed."""
        if self.is_firebase:
            return printed
        shown: Json = {"error": code, "message": message, "data": None}
        return (compact(shown).removesuffix(b"null}"), *printed, b"}")

    def etag(self, tag: str) -> bytes:
        """Return an entity tag as it is sent in a header: Firebase's have no quotes."""
        if self.is_firebase:
            tag = _FIREBASE_NULL_ETAG if tag == NULL_ETAG else tag.strip('"')
        return tag.encode()

    def parse_etags(self, header: str) -> ETagSet:
        """Parse the tags of a condition, Firebase's `null_etag` included."""
        tags = parse_etags(header)
        if not self.is_firebase or _FIREBASE_NULL_ETAG not in tags.opaque:
            return tags
        return attrs.evolve(tags, opaque=tags.opaque | {NULL_ETAG.strip('"')})

    def rules_error(self, text: str) -> str:
        """Return the message about an error in a rules document."""
        return f"{text}\n" if self.is_firebase else text

    def pretty(self, json: Json) -> bytes:
        """Print JSON with an indent of two spaces."""
        text = pretty(json)
        return space_colons(text) if self.is_firebase else text

    def indent(self, chunks: Iterable[bytes]) -> Iterator[bytes]:
        """Print compact JSON that comes in chunks as `pretty` does; some chunks are empty."""
        return indent(chunks, spaces_colons=self.is_firebase)


STANDARD: Final = Dialect(False)
FIREBASE: Final = Dialect(True)
