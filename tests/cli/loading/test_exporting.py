"""`treedb export`: every format holds what `format=export` prints, also after breaks."""

from __future__ import annotations

import json
import os
import pathlib
import signal
import subprocess
import time
from collections.abc import Iterator

import pytest
import pytest_twisted

from tests.cli.loading.documents import DOCUMENT, as_json, decode
from tests.command import result_of, run_command, start, treedb
from tests.daemon import Daemon
from tests.proxy import CuttingProxy
from treedbd.cli.loading.exporting import RECENT_S

SUFFIXES = [".json", ".json.gz", ".json.zst", ".ndjson", ".ndjson.gz"]
PATIENCE_S = 60
CUTS = [50, 100_000, 300_000, 472_500]


@pytest.fixture(scope="module")
def url(shared_daemon: Daemon) -> str:
    """The URL of the document."""
    done = shared_daemon.request("PUT", "/data.json?ns=export", as_json())
    assert done.status == 200
    return f"{shared_daemon.http}/data?ns=export"


@pytest.fixture
def proxy(shared_daemon: Daemon) -> Iterator[CuttingProxy]:
    with CuttingProxy(shared_daemon.http) as running:
        yield running


def through(proxy: CuttingProxy, url: str) -> str:
    assert proxy.upstream is not None
    return url.replace(proxy.upstream, proxy.url)


@pytest.mark.parametrize("suffix", SUFFIXES)
@pytest_twisted.ensureDeferred
async def test_a_file_of_any_format_holds_the_document(
    url: str, tmp_path: pathlib.Path, suffix: str
) -> None:
    file = tmp_path / f"out{suffix}"
    file.write_bytes(b"replaced")
    done = await treedb("export", url, file)
    assert done.status == 0, done
    assert done.errors.startswith("Exported ")
    assert decode(file.read_bytes(), suffix) == DOCUMENT
    assert file.stat().st_mode & 0o077 == 0
    assert list(tmp_path.iterdir()) == [file]


@pytest_twisted.ensureDeferred
async def test_the_bytes_are_those_of_a_get(
    shared_daemon: Daemon, url: str, tmp_path: pathlib.Path
) -> None:
    file = tmp_path / "out.json"
    for options, parameter in ((["--plain"], ""), ([], "&format=export")):
        assert await treedb("export", url, file, "--quiet", *options) == (0, b"", "")
        body = shared_daemon.request("GET", f"/data.json?ns=export{parameter}").body
        assert file.read_bytes() == body
        assert await treedb("export", url, "-", "--quiet", *options) == (0, body, "")


@pytest.mark.parametrize(
    ("value", "lines"), [("5", None), ('{".value":5,".priority":1}', None), ("null", b"")]
)
@pytest_twisted.ensureDeferred
async def test_a_leaf_and_nothing_are_documents_too(
    shared_daemon: Daemon, value: str, lines: bytes | None
) -> None:
    shared_daemon.request("PUT", "/leaf.json?ns=export", value)
    url = f"{shared_daemon.http}/leaf?ns=export"
    assert await treedb("export", url, "-", "--quiet") == (0, value.encode(), "")
    done = await treedb("export", url, "-", "--quiet", "--format", "ndjson")
    if lines is None:
        assert "has no lines" in done.error
    else:
        assert done == (0, lines, "")


@pytest.mark.parametrize("suffix", [".json", ".json.gz", ".ndjson"])
@pytest.mark.parametrize("cut", CUTS)
@pytest_twisted.ensureDeferred
async def test_a_download_that_was_cut_goes_on(
    url: str, proxy: CuttingProxy, tmp_path: pathlib.Path, suffix: str, cut: int
) -> None:
    proxy.cut_after = {0: cut, 1: 200_000, 2: 1000}
    file = tmp_path / f"out{suffix}"
    done = await treedb("export", through(proxy, url), file, "--quiet")
    assert done.status == 0, done
    assert "Trying again" in done.errors
    assert decode(file.read_bytes(), suffix) == DOCUMENT
    assert list(tmp_path.iterdir()) == [file]


@pytest_twisted.ensureDeferred
async def test_standard_output_goes_on_after_a_cut(url: str, proxy: CuttingProxy) -> None:
    proxy.cut_after = {0: 300_000, 1: 100}
    done = await treedb("export", through(proxy, url), "-", "--quiet")
    assert done.status == 0, done
    assert decode(done.output, ".json") == DOCUMENT
    assert any("startAfter" in line for line in proxy.seen)


@pytest_twisted.ensureDeferred
async def test_a_plain_download_begins_again_after_a_cut(
    shared_daemon: Daemon, url: str, proxy: CuttingProxy, tmp_path: pathlib.Path
) -> None:
    proxy.cut_after = {0: 300_000}
    file = tmp_path / "out.json"
    assert (await treedb("export", through(proxy, url), file, "--plain", "--quiet")).status == 0
    assert file.read_bytes() == shared_daemon.request("GET", "/data.json?ns=export").body
    proxy.cut_after = {proxy.accepted: 300_000}
    done = await treedb("export", through(proxy, url), "-", "--plain", "--quiet")
    assert done.status == 1
    assert "was cut off" in done.errors


@pytest.mark.parametrize("name", ["/dev/stdout", "/dev/fd/1", "link"])
def test_an_open_file_is_written_to_and_not_replaced(
    url: str, tmp_path: pathlib.Path, name: str
) -> None:
    (tmp_path / "link").symlink_to("/dev/stdout")
    file = tmp_path / "all"
    for command in (["export", url, name, "--quiet"], ["get", url, "-o", name]):
        with file.open("wb") as output:
            output.write(b"before\n")
            output.flush()
            assert result_of(start(command, folder=tmp_path, output=output)).status == 0
        assert file.read_bytes().startswith(b"before\n{")
        done = run_command(*command, folder=tmp_path)
        assert (done.status, done.output[:1]) == (0, b"{")


@pytest.mark.parametrize("name", ["-", "/dev/stdout", "/dev/fd/1"])
def test_a_reader_that_closes_the_output_early_is_no_error(url: str, name: str) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    with os.fdopen(writer) as output:
        done = result_of(start(["export", url, name, "--quiet"], output=output))
    assert (done.status, done.errors) == (1, "")


@pytest.mark.parametrize("words", [["--plain"], [], ["--format", "ndjson"]])
@pytest_twisted.ensureDeferred
async def test_a_download_that_is_always_cut_at_the_same_place_ends(
    url: str, proxy: CuttingProxy, tmp_path: pathlib.Path, words: list[str]
) -> None:
    proxy.cut_after = dict.fromkeys(range(1000), 700)
    words = [*words, "--retry-for", "1", "--quiet"]
    done = await treedb("export", through(proxy, url), tmp_path / "out", *words)
    assert done.status == 1
    assert "was cut off" in done.errors


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGINT])
@pytest.mark.parametrize("suffix", [".json", ".ndjson.zst"])
@pytest_twisted.ensureDeferred
async def test_an_export_that_was_killed_goes_on(
    url: str, proxy: CuttingProxy, tmp_path: pathlib.Path, suffix: str, number: signal.Signals
) -> None:
    proxy.cut_after, proxy.hold_from = {0: 300_000}, 1
    file = tmp_path / f"out{suffix}"
    words = ["export", through(proxy, url), str(file), "--quiet"]
    process = start(words)
    proxy.await_accepted(2)
    process.send_signal(number)
    killed = result_of(process)
    assert killed.status == (130 if number == signal.SIGINT else -signal.SIGKILL)
    assert not file.exists()
    if number == signal.SIGINT:
        assert killed.errors.endswith(" Interrupted. The same command goes on where it stopped.\n")
    proxy.release(proxy.upstream)
    done = await treedb(*words)
    assert done.status == 0, done
    assert done.errors.startswith("treedb: Going on with an export that was interrupted.\n")
    assert decode(file.read_bytes(), suffix) == DOCUMENT
    assert list(tmp_path.iterdir()) == [file]


@pytest.mark.parametrize("is_old", [True, False])
@pytest_twisted.ensureDeferred
async def test_an_export_begins_again_on_request_and_after_a_long_time(
    url: str, proxy: CuttingProxy, tmp_path: pathlib.Path, is_old: bool
) -> None:
    proxy.cut_after = {0: 300_000}
    file = tmp_path / "out.json"
    words: list[str | pathlib.Path] = ["export", through(proxy, url), file]
    broken = await treedb(*words, "--retry-for", "0", "--quiet")
    assert broken.status == 1
    assert broken.errors.endswith("was cut off. The same command goes on where it stopped.\n")
    (part,) = tmp_path.iterdir()
    if is_old:
        os.utime(part, (0, time.time() - RECENT_S - 1))
    done = await treedb(*words, *([] if is_old else ["--restart"]))
    assert done.status == 0
    assert done.errors.startswith("Exported ")
    assert decode(file.read_bytes(), ".json") == DOCUMENT
    assert not any("startAfter" in line for line in proxy.seen)
    assert list(tmp_path.iterdir()) == [file]


@pytest_twisted.ensureDeferred
async def test_what_cannot_be_exported_is_one_sentence(
    shared_daemon: Daemon, url: str, tmp_path: pathlib.Path
) -> None:
    missing = tmp_path / "missing" / "out.json"
    assert "cannot be written" in (await treedb("export", url, missing)).error
    done = await treedb("export", "http://127.0.0.1:1/a", "-", "--retry-for", "0")
    assert done.error == "No server listens at http://127.0.0.1:1."
    assert (await treedb("export", url, "x.ndjson", "--plain")).status == 2


@pytest_twisted.ensureDeferred
async def test_a_stopped_store_is_read(tmp_path: pathlib.Path) -> None:
    with Daemon(tmp_path) as daemon:
        assert daemon.request("PUT", "/data.json", as_json()).status == 200
        words: list[str | pathlib.Path] = [
            "http://localhost:9000/data",
            "-",
            "--data",
            daemon.data,
            "--quiet",
        ]
        assert "is in use by another treedb" in (await treedb("export", *words)).error
        assert daemon.stop() == 0
        assert json.loads((await treedb("export", *words)).output) == DOCUMENT
        lines = (await treedb("export", *words, "--format", "ndjson")).output
        assert decode(lines, ".ndjson") == DOCUMENT
        words[0] = "http://localhost:9000/data?ns=nothing"
        assert "There is no database" in (await treedb("export", *words)).error


@pytest_twisted.ensureDeferred
async def test_a_link_is_followed_and_a_pipe_is_written_to(
    url: str, tmp_path: pathlib.Path
) -> None:
    target, link, pipe, received = (tmp_path / name for name in ("target", "link", "pipe", "copy"))
    link.symlink_to(target)
    assert (await treedb("export", url, link)).status == 0
    assert link.is_symlink()
    assert decode(target.read_bytes(), ".json") == DOCUMENT
    os.mkfifo(pipe)
    with subprocess.Popen(["cat", pipe], stdout=received.open("wb")) as reader:
        assert (await treedb("export", url, pipe)).status == 0
        assert reader.wait(PATIENCE_S) == 0
    assert received.read_bytes() == target.read_bytes()
    assert pipe.is_fifo()
    assert set(tmp_path.iterdir()) == {target, link, pipe, received}


@pytest_twisted.ensureDeferred
async def test_an_export_that_cannot_begin_leaves_nothing(
    shared_daemon: Daemon, tmp_path: pathlib.Path
) -> None:
    assert shared_daemon.request("PUT", "/leaf.json?ns=export", b"1").status == 200
    leaf = f"{shared_daemon.http}/leaf?ns=export"
    assert (await treedb("export", leaf, tmp_path / "leaf.ndjson")).status == 1
    assert list(tmp_path.iterdir()) == []
