"""Files that cannot be imported, one for each kind of fault, of any size."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Final, NamedTuple

from tests.cli.loading.documents import DOCUMENT, compress

_RECORD: Final = "x" * 230
_RECORD_BYTES: Final = 250
_LONG: Final = '"%s"' % ("é" * (5 * 2**20 + 1))
_MANY: Final = ",\n".join(
    f'"k{at:05}": {{"text": "{"x" * 90}", "n": [1, 2]}}' for at in range(3000)
)
_LINES: Final = "\n".join(f'{{"key": "k{at}", "value": {{"n": {at}}}}}' for at in range(3000))
_TEXT: Final = json.dumps(DOCUMENT)


class Fault(NamedTuple):
    """A file that is not valid: its name, its content, and what the error says.

    `store` returns the bytes of the content.
    """

    name: str
    content: str
    error: str
    store: Callable[[str], bytes] = str.encode

    def make(self, size: int = 0) -> bytes:
        """Return the file, with about `size` bytes of valid records before the fault."""
        count = size // _RECORD_BYTES
        if self.content[:1] != "{":
            return self.store("\n" * size + self.content)  # no record can be before it
        if ".ndjson" in self.name:
            lines = (f'{{"key":"k{at:08}","value":"{_RECORD}"}}\n' for at in range(count))
            return self.store("".join(lines) + self.content)
        members = (f'"k{at:08}":"{_RECORD}",' for at in range(count))
        return self.store(f"{{{''.join(members)}{self.content[1:]}")

    def is_refused(self, mode: str) -> bool:
        """Return whether an import fails; no lines change nothing with --merge."""
        return mode == "--replace" or self.error != "The file is empty"


def _nest(levels: int) -> str:
    return '{"d": ' * levels + "1" + "}" * levels


def _gzip(text: str) -> bytes:
    return compress(text.encode(), ".gz")


def _zstd(text: str) -> bytes:
    return compress(text.encode(), ".zst")


def _corrupt_gzip(text: str) -> bytes:
    content = _gzip(text)
    return content[:60] + b"?!" + content[62:]


FAULTS: Final = {
    "empty": Fault("x.json", "", "The file is empty."),
    "blank": Fault("x.json", " \n\n", "The file is empty."),
    "no line": Fault("x.ndjson", "", "The file is empty"),
    "cut off": Fault("x.json", '{"a": 1,\n "b": {', "Line 2, column 7: Not valid JSON"),
    "cut off late": Fault("x.json", "{" + _MANY, "Line 3000, column 125: Not valid JSON"),
    "string that does not end": Fault("x.json", '{"a": "b}', "Line 1, column"),
    "a page": Fault("x.json", "<!DOCTYPE html>\n<p>404</p>", "Line 1, column 1: Not valid JSON"),
    "dot in a key": Fault(
        "x.json", '{"a": 1,\n "b": {"c.d": 1}}', "Line 2, column 8, at /data/b/c.d: The key 'c.d'"
    ),
    "dot in a key late": Fault(
        "x.json",
        f'{{{_MANY},\n"z": {{\n "é": {{"a.b": 1}}}}}}',
        "Line 3002, column 8, at /data/z/é/a.b",
    ),
    "NaN": Fault("x.json", '{"a": 1,\n"b": NaN}', "Line 2, column 6: Not valid JSON"),
    "NaN late": Fault("x.json", f'{{{_MANY},\n"b": NaN}}', "Line 3001, column 6: Not valid JSON"),
    "unknown server value": Fault(
        "x.json", '{"a": {"b": {".sv": "now"}}}', "Line 1, column 8, at /data/a/b: "
    ),
    "increment of a string": Fault(
        "x.ndjson", '{"key": "a", "value": {"b": {".sv": {"increment": "1"}}}}', "Line 1, at /a/b: "
    ),
    "UTF-16": Fault("x.json", '{"a": 1}', "The file is UTF-16", lambda text: text.encode("utf-16")),
    "UTF-16 without a mark": Fault(
        "x.json", '{"a": 1}', "Not valid JSON", lambda text: text.encode("utf-16-le")
    ),
    "Latin-1": Fault(
        "x.json",
        '{"a": "café"}',
        "Line 1, column 11: Not valid JSON",
        lambda text: text.encode("latin-1"),
    ),
    "control character in a key": Fault(
        "x.json", r'{"a": {"b\u0007": 1}}', "Line 1, column 8, at /data/a/"
    ),
    "key that is too long": Fault(
        "x.json",
        json.dumps({"a": {"k" * 769: 1}}),
        f"Line 1, column 8, at /data/a/{'k' * 64}…: The key",
    ),
    "empty key": Fault("x.json", '{"a": {"": 1}}', "Line 1, column 8, at /data/a/: "),
    "slash in a key": Fault("x.json", '{"a/b": 1}', "Line 1, column 2, at /data/a/b: "),
    "too deep": Fault("x.json", _nest(32), "Line 1, column "),
    "far too deep": Fault("x.json", _nest(200), "deeper than"),
    "lone surrogate": Fault("x.json", r'{"a": "\ud800"}', "Line 1, column "),
    "bad value of two that have one key": Fault(
        "x.json", '{"a": 1, "a": {"b$": 1}}', "Line 1, column 16, at /data/a/b$: "
    ),
    "trailing garbage": Fault("x.json", '{"a": 1}\n]', "Line 2, column 1: Not valid JSON"),
    "two documents": Fault("x.json", '{"a": 1}\n{"b": 1}', "Line 2, column 1: Not valid JSON"),
    "trailing comma": Fault("x.json", '{"a": 1,\n}', "Line 1, column 8: Not valid JSON"),
    "single quotes": Fault("x.json", "{'a': 1}", "Line 1, column 2: Not valid JSON"),
    "line without a key": Fault("x.ndjson", '{"value": 1}', "Line 1: A line must be"),
    "bad line in the middle": Fault(
        "x.ndjson", f"{_LINES}\nnope\n{_LINES}", "Line 3001, column 1: Not valid JSON"
    ),
    "bad key in the last line": Fault(
        "x.ndjson", _LINES + '\n{"key": "z", "value": {"a": {"b#": 1}}}', "Line 3001, at /z/a/b#: "
    ),
    "line that is cut off": Fault("x.ndjson", _LINES + '\n{"key": "z", "va', "Line 3001, column "),
    "lines that are one document": Fault("x.ndjson", '{"a": 1}', "Line 1: A line must be"),
    "gzip that is cut off": Fault("x.json.gz", _TEXT, "is cut off.", lambda text: _gzip(text)[:-9]),
    "corrupt gzip": Fault("x.json.gz", _TEXT, "cannot be decompressed", _corrupt_gzip),
    "wrong check sum": Fault(
        "x.json.gz", _TEXT, "cannot be decompressed", lambda text: _gzip(text)[:-8] + b"?" * 8
    ),
    "garbage after gzip": Fault(
        "x.json.gz", _TEXT, "cannot be decompressed", lambda text: _gzip(text) + b"?!"
    ),
    "zstd that is cut off": Fault(
        "x.json.zst", _TEXT, "is cut off.", lambda text: _zstd(text)[:-9]
    ),
    "corrupt zstd": Fault(
        "x.json.zst", _TEXT, "cannot be decompressed", lambda text: _zstd(text)[:4] + b"?" * 60
    ),
    "garbage after zstd": Fault(
        "x.json.zst", _TEXT, "cannot be decompressed", lambda text: _zstd(text) + b"?!"
    ),
    "string that is too long": Fault(
        "x.json",
        f'{{"a":\n {{"b": {_LONG}}}}}',
        "Line 2, column 3, at /data/a/b: A string is longer",
    ),
    "number beyond the range": Fault("x.json", '{"a": [1, 1e999]}', "Line 1, column "),
    "value of a leaf that is an object": Fault(
        "x.json", '{"a": {".value": {"b": 1}}}', "Line 1, column 2, at /data/a: .value must be"
    ),
    "priority that is an object": Fault(
        "x.json", '{"a": {"b": 1, ".priority": {}}}', "Line 1, column 2, at /data/a: A priority"
    ),
    "members beside a leaf": Fault(
        "x.json", f'{{"a": {{".value": 1, {_MANY}}}}}', "at /data/a: An object with .value"
    ),
    "missing comma": Fault("x.json", '{"a": 1 "b": 2}', "Line 1, column 9: Not valid JSON"),
    "wrong bracket": Fault("x.json", '{"a": [1}', "Line 1, column 9: Not valid JSON"),
    "bad escape": Fault("x.json", r'{"a": "\x"}', "Line 1, column "),
    "line end in a string": Fault("x.json", '{"a": "b\nc"}', "Line 1, column "),
    "number with a leading zero": Fault("x.json", '{"a": 01}', "Line 1, column "),
    "Infinity": Fault("x.json", '{"a": -Infinity}', "Line 1, column "),
    "key that is a number": Fault("x.json", "{1: 2}", "Line 1, column 2: Not valid JSON"),
    "comment": Fault("x.json", '{"a": 1} // b', "Line 1, column 10: Not valid JSON"),
    "zeros at the end": Fault("x.json", '{"a": 1}' + "\0" * 4096, "Line 1, column 9: Not valid"),
    "zeros instead of the end": Fault("x.json", '{"a": "b' + "\0" * 4096, "Line 1, column "),
    "second byte order mark": Fault("x.json", '{"a": 1,\ufeff"b": 1}', "Line 1, column 9: Not"),
    "lines of which one is empty JSON": Fault("x.ndjson", _LINES + "\n{}", "Line 3001: A line"),
    "two values in a line": Fault("x.ndjson", '{"key": "a", "value": 1} 2', "Line 1, column 26"),
    "unknown priority beside a value": Fault(
        "x.ndjson", '{"key": "a", "value": {".priority": [1], "b": 1}}', "Line 1, at /a: A priority"
    ),
}
"""What can be wrong, by its name."""
