"""JSON as bytes: parsed strictly, printed compactly or indented, numbers as RFC 8785 prints them.

`orjson` prints everything of the interface right but doubles with an exponent; where one may
stand in its output, those doubles are printed by `number` and put in as they are.
"""

from __future__ import annotations

import re

import orjson

from treedbd.tree.number import print_double
from treedbd.tree.value import InvalidData, Json

NULL = b"null"
# An exponent as orjson prints one, up to what may follow a number. Found by its "e", for which the
# search is fastest; in a string that happens to look so it costs time, not truth.
_EXPONENT = re.compile(rb"e(?<=[0-9]e)[-+]?[0-9]{1,3}(?:[,\]}\n]|\Z)")


def parse(body: bytes) -> Json:
    """Parse one JSON text; raise `InvalidData` for anything else, also for a lone surrogate.

    A repeated member counts once, with its last value.
    """
    try:
        return orjson.loads(body)
    except orjson.JSONDecodeError as error:
        raise InvalidData(f"Not valid JSON: {error}.") from None


def compact(json: Json) -> bytes:
    """Print JSON without any white space."""
    return _dump(json, 0)


def pretty(json: Json) -> bytes:
    """Print JSON with an indent of two spaces, `"a": 1`."""
    return _dump(json, orjson.OPT_INDENT_2)


def compact_sorted(json: Json) -> bytes:
    """Print JSON compactly, members in the order of their UTF-8 bytes."""
    return _dump(json, orjson.OPT_SORT_KEYS)


def _dump(json: Json, option: int) -> bytes:
    text = orjson.dumps(json, option=option)
    if _EXPONENT.search(text):
        return orjson.dumps(_with_plain_doubles(json), option=option)
    return text


def _with_plain_doubles(json: Json) -> Json:
    if isinstance(json, float):
        return orjson.Fragment(print_double(json).encode())
    if isinstance(json, dict):
        return {key: _with_plain_doubles(item) for key, item in json.items()}
    if isinstance(json, list):
        return [_with_plain_doubles(item) for item in json]
    return json
