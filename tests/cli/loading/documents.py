"""Documents for tests of imports and exports, and their export form."""

from __future__ import annotations

import gzip
import json
import sys
from typing import Any

if sys.version_info >= (3, 14):
    from compression import zstd
else:
    from backports import zstd


def make_document(records: int = 1500) -> dict[str, Any]:
    """Return a document of about 300 bytes for each record, with priorities at all levels."""
    people = {
        f"p{number:06}": {
            ".priority": number % 7,
            "name": {".value": f"Zoë {number}", ".priority": "n"},
            "tags": {"0": "a", "1": "b", "5": True},
            "text": "x" * 200,
        }
        for number in range(records)
    }
    return {
        ".priority": 1,
        "first": {".value": "leaf", ".priority": -2.5},
        "users": {".priority": "u", "all": people, "count": records},
        "z": {"deep": {"er": {"est": {"0": 1, "x": 1e21}, "est2": 2}}},
    }


DOCUMENT = make_document()


def as_json(document: Any = DOCUMENT) -> bytes:
    """Return a document as JSON, with spaces and escapes."""
    return json.dumps(document).encode()


def as_lines(document: dict[str, Any] = DOCUMENT) -> bytes:
    """Return a document as newline-delimited members."""
    lines = [json.dumps({"key": key, "value": value}) for key, value in document.items()]
    return "\n".join(lines).encode()


def encode(document: dict[str, Any], suffix: str) -> bytes:
    """Return the content of a file whose name has a suffix, such as `.ndjson.gz`."""
    return compress(as_lines(document) if ".ndjson" in suffix else as_json(document), suffix)


def compress(content: bytes, suffix: str) -> bytes:
    """Return content compressed as the end of a file's name says."""
    if suffix.endswith(".gz"):
        return gzip.compress(content, mtime=0)
    return zstd.compress(content) if suffix.endswith(".zst") else content


def decode(content: bytes, suffix: str) -> dict[str, Any]:
    """Return the document in the content of a file whose name has a suffix.

    Raises ValueError if a member is repeated.
    """
    if suffix.endswith(".gz"):
        content = gzip.decompress(content)
    elif suffix.endswith(".zst"):
        content = zstd.decompress(content)
    if ".ndjson" not in suffix:
        return _parse(content)
    lines = [_parse(line) for line in content.splitlines()]
    return _unique([(line["key"], line["value"]) for line in lines])


def _parse(text: bytes) -> dict[str, Any]:
    return json.loads(text, object_pairs_hook=_unique)  # type: ignore[no-any-return]  # an object


def _unique(members: list[tuple[str, Any]]) -> dict[str, Any]:
    """Return an object none of whose members is repeated."""
    found = dict(members)
    if len(found) < len(members):
        raise ValueError("A member is repeated.")
    return found
