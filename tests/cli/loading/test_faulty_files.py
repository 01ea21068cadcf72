"""A file that is not valid changes nothing: whatever is wrong, wherever the target is."""

from __future__ import annotations

import itertools
import json
import pathlib
from collections.abc import Iterator
from typing import Any, NamedTuple

import pytest
import pytest_twisted

from tests.cli.loading.documents import DOCUMENT, encode
from tests.command import treedb
from tests.daemon import Daemon

BEFORE = {"a": {"old": 1}, "b": 2}
LONG = '"%s"' % ("é" * (5 * 2**20 + 1))
MANY = ",\n".join(f'"k{at:05}": {{"text": "{"x" * 90}", "n": [1, 2]}}' for at in range(3000))
LINES = "\n".join(f'{{"key": "k{at}", "value": {{"n": {at}}}}}' for at in range(3000))
GZIP = encode(DOCUMENT, ".json.gz")
ZSTD = encode(DOCUMENT, ".json.zst")


class Fault(NamedTuple):
    """A file that is not valid: its name, its content, and what the error says."""

    name: str
    content: bytes | str
    error: str


def _nest(levels: int) -> str:
    return '{"d": ' * levels + "1" + "}" * levels


FAULTS = {
    "empty": Fault("x.json", "", "The file is empty."),
    "blank": Fault("x.json", " \n\n", "The file is empty."),
    "no line": Fault("x.ndjson", "", "The file is empty"),
    "cut off": Fault("x.json", '{"a": 1,\n "b": {', "Line 2, column 7: Not valid JSON"),
    "cut off late": Fault("x.json", "{" + MANY, "Line 3000, column 125: Not valid JSON"),
    "string that does not end": Fault("x.json", '{"a": "b}', "Line 1, column"),
    "a page": Fault("x.json", "<!DOCTYPE html>\n<p>404</p>", "Line 1, column 1: Not valid JSON"),
    "dot in a key": Fault(
        "x.json", '{"a": 1,\n "b": {"c.d": 1}}', "Line 2, column 8, at /data/b/c.d: The key 'c.d'"
    ),
    "dot in a key late": Fault(
        "x.json",
        f'{{{MANY},\n"z": {{\n "é": {{"a.b": 1}}}}}}',
        "Line 3002, column 8, at /data/z/é/a.b",
    ),
    "NaN": Fault("x.json", '{"a": 1,\n"b": NaN}', "Line 2, column 6: Not valid JSON"),
    "NaN late": Fault("x.json", f'{{{MANY},\n"b": NaN}}', "Line 3001, column 6: Not valid JSON"),
    "unknown server value": Fault(
        "x.json", '{"a": {"b": {".sv": "now"}}}', "Line 1, column 8, at /data/a/b: "
    ),
    "increment of a string": Fault(
        "x.ndjson", '{"key": "a", "value": {"b": {".sv": {"increment": "1"}}}}', "Line 1, at /a/b: "
    ),
    "UTF-16": Fault("x.json", '{"a": 1}'.encode("utf-16"), "The file is UTF-16"),
    "UTF-16 without a mark": Fault("x.json", '{"a": 1}'.encode("utf-16-le"), "Not valid JSON"),
    "Latin-1": Fault("x.json", b'{"a": "caf\xe9"}', "Line 1, column 11: Not valid JSON"),
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
        "x.ndjson", f"{LINES}\nnope\n{LINES}", "Line 3001, column 1: Not valid JSON"
    ),
    "bad key in the last line": Fault(
        "x.ndjson", LINES + '\n{"key": "z", "value": {"a": {"b#": 1}}}', "Line 3001, at /z/a/b#: "
    ),
    "line that is cut off": Fault("x.ndjson", LINES + '\n{"key": "z", "va', "Line 3001, column "),
    "lines that are one document": Fault("x.ndjson", '{"a": 1}', "Line 1: A line must be"),
    "gzip that is cut off": Fault("x.json.gz", GZIP[:-9], "x.json.gz is cut off."),
    "corrupt gzip": Fault("x.json.gz", GZIP[:60] + b"?!" + GZIP[62:], "cannot be decompressed"),
    "zstd that is cut off": Fault("x.json.zst", ZSTD[:-9], "x.json.zst is cut off."),
    "corrupt zstd": Fault("x.json.zst", ZSTD[:4] + b"?" * 60, "cannot be decompressed"),
    "string that is too long": Fault(
        "x.json",
        f'{{"a":\n {{"b": {LONG}}}}}',
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
        "x.json", f'{{"a": {{".value": 1, {MANY}}}}}', "at /data/a: An object with .value"
    ),
}

_hosts = (f"faulty{number}" for number in itertools.count())


@pytest.fixture(params=list(FAULTS))
def fault(request: Any) -> Fault:
    return FAULTS[request.param]


@pytest.fixture
def file(fault: Fault, tmp_path: pathlib.Path) -> pathlib.Path:
    folder = tmp_path / "files"
    folder.mkdir()
    path = folder / fault.name
    content = fault.content
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return path


@pytest_twisted.ensureDeferred
async def test_it_changes_nothing_that_a_daemon_serves(
    shared_daemon: Daemon, fault: Fault, file: pathlib.Path
) -> None:
    host = next(_hosts)
    target = f"/data.json?ns={host}"
    url = f"{shared_daemon.http}/data?ns={host}"
    shared_daemon.request("PUT", target, json.dumps(BEFORE))
    for mode in ("--replace", "--merge"):
        if mode == "--replace" or fault.error != "The file is empty":  # no lines change nothing
            assert fault.error in (await treedb("import", file, url, mode)).error
        assert shared_daemon.request("GET", target).json == BEFORE
    assert list(file.parent.iterdir()) == [file]


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Iterator[pathlib.Path]:
    """A data directory whose daemon does not run."""
    with Daemon(tmp_path_factory.mktemp("faulty")) as daemon:
        daemon.request("PUT", "/data.json", json.dumps(BEFORE))
        assert daemon.stop() == 0
        yield daemon.data


@pytest_twisted.ensureDeferred
async def test_it_changes_nothing_in_a_stopped_store(
    data: pathlib.Path, fault: Fault, file: pathlib.Path, tmp_path: pathlib.Path
) -> None:
    words: list[str | pathlib.Path] = ["import", file, "http://localhost/data", "--data"]
    assert fault.error in (await treedb(*words, data, "--replace")).error
    exported = await treedb("export", "http://localhost/data", "-", "--data", data, "--quiet")
    assert json.loads(exported.output) == BEFORE
    assert list(file.parent.iterdir()) == [file]
    if fault.error != "The file is empty":
        assert fault.error in (await treedb(*words, tmp_path / "new")).error
        assert not (tmp_path / "new").exists()


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("x.json", b'\xef\xbb\xbf{"a": 1}'),
        ("x.ndjson", b'\xef\xbb\xbf{"key": "a", "value": 1}\r\n'),
        ("x.json.gz", encode({"a": 1}, ".json.gz")),
    ],
)
@pytest_twisted.ensureDeferred
async def test_a_byte_order_mark_is_left_out(
    shared_daemon: Daemon, tmp_path: pathlib.Path, name: str, content: bytes
) -> None:
    host = next(_hosts)
    (tmp_path / name).write_bytes(content)
    url = f"{shared_daemon.http}/data?ns={host}"
    form = "ndjson" if "ndjson" in name else "json"
    for file, stdin in [(str(tmp_path / name), b""), ("-", content)]:
        words = ["import", file, url, "--replace", "--quiet", "--format", form]
        done = await treedb(*words, stdin=stdin)
        assert done == (0, b"", "")
        assert shared_daemon.request("GET", f"/data.json?ns={host}").json == {"a": 1}
