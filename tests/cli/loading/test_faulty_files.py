"""A file that is not valid changes nothing: whatever is wrong, wherever the target is."""

from __future__ import annotations

import itertools
import json
import pathlib
from collections.abc import Iterator
from typing import Any

import pytest
import pytest_twisted

from tests.cli.loading.documents import encode
from tests.cli.loading.faulty_files import FAULTS, Fault
from tests.command import treedb
from tests.daemon import Daemon

BEFORE = {"a": {"old": 1}, "b": 2}

_hosts = (f"faulty{number}" for number in itertools.count())


@pytest.fixture(params=list(FAULTS))
def fault(request: Any) -> Fault:
    return FAULTS[request.param]


@pytest.fixture
def file(fault: Fault, tmp_path: pathlib.Path) -> pathlib.Path:
    folder = tmp_path / "files"
    folder.mkdir()
    path = folder / fault.name
    path.write_bytes(fault.make())
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
        if fault.is_refused(mode):
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
    if fault.is_refused("--merge"):
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
