"""`treedb import`: every format arrives as a PUT would leave it, also after breaks."""

from __future__ import annotations

import itertools
import json
import os
import pathlib
import signal
import subprocess
from collections.abc import Iterator

import pytest
import pytest_twisted

from tests import command
from tests.cli.loading.documents import DOCUMENT, as_json, as_lines, encode
from tests.command import CommandResult, result_of, run_command, treedb
from tests.daemon import Daemon
from tests.fork_server import ForkedCommand
from tests.proxy import CuttingProxy
from tests.rest import Client

SUFFIXES = [".json", ".json.gz", ".json.zst", ".ndjson", ".ndjson.gz", ".ndjson.zst"]
DYING = """
import os, signal, sys
from treedbd.cli.loading.importing import StoreWriter
from treedbd.cli.main import main
write, left = StoreWriter.write, [int(sys.argv.pop(1))]
def write_and_die(self, part):
    write(self, part)
    left[0] -= 1
    if not left[0]:
        os.kill(os.getpid(), int(os.environ["SIGNAL"]))
StoreWriter.write = write_and_die
sys.exit(main())
"""
DYING_ONLINE = """
import os, signal, sys
from treedbd.cli.loading.transfer import Sender
from treedbd.cli.main import main
write, left = Sender.write, [int(sys.argv.pop(1))]
def write_and_die(self, part):
    write(self, part)
    left[0] -= 1
    if not left[0]:
        os.kill(os.getpid(), int(os.environ["SIGNAL"]))
Sender.write = write_and_die
sys.exit(main())
"""
SMALL_PARTS = """
import sys
import treedbd.cli.loading.chunks as documents
documents.PartMaker.__init__.__kwdefaults__["part_bytes"] = 50_000
documents.parts_of.__kwdefaults__["part_bytes"] = 50_000
documents.parts_of.__kwdefaults__["fragment_bytes"] = 8_000
import attrs
import treedbd.cli.loading.importing as importing
read = importing.read_settings
def read_small(arguments):
    settings = read(arguments)
    return attrs.evolve(settings, limits=attrs.evolve(settings.limits, write_body_bytes=50_000))
importing.read_settings = read_small
"""

_hosts = (f"import{number}" for number in itertools.count())


@pytest.fixture
def url(shared_daemon: Daemon) -> str:
    """The URL of a path in a project that no other test uses."""
    return f"{shared_daemon.http}/data?ns={next(_hosts)}"


@pytest.fixture
def file(tmp_path: pathlib.Path) -> pathlib.Path:
    """A file with the document."""
    path = tmp_path / "document.json"
    path.write_bytes(as_json())
    return path


def start(*words: str | pathlib.Path) -> ForkedCommand | subprocess.Popen[bytes]:
    """Start a command whose parts are small, so that there are many of them."""
    script = SMALL_PARTS + "from treedbd.cli.main import main\nsys.exit(main())"
    return command.start(words, program=script)


def finish(process: ForkedCommand | subprocess.Popen[bytes]) -> tuple[int, str]:
    done = result_of(process)
    return done.status, done.errors


def run_dying(script: str, *words: str | pathlib.Path, number: signal.Signals) -> CommandResult:
    """Run a command whose parts are small, and which gets a signal after the third of them."""
    variables = {"SIGNAL": str(int(number))}
    return result_of(
        command.start(["3", *words], program=SMALL_PARTS + script, variables=variables)
    )


def exported(daemon: Daemon, url: str) -> object:
    target = url.removeprefix(daemon.http).replace("?", ".json?") + "&format=export"
    return daemon.request("GET", target).json


@pytest.mark.parametrize("suffix", SUFFIXES)
@pytest_twisted.ensureDeferred
async def test_a_file_of_any_format_is_imported(
    shared_daemon: Daemon, url: str, tmp_path: pathlib.Path, suffix: str
) -> None:
    file = tmp_path / f"document{suffix}"
    file.write_bytes(encode(DOCUMENT, suffix))
    done = await treedb("import", file, url)
    assert done.status == 0, done
    assert done.errors.startswith("Imported ")
    assert exported(shared_daemon, url) == DOCUMENT
    assert list(tmp_path.iterdir()) == [file]


@pytest_twisted.ensureDeferred
async def test_standard_input_is_imported(shared_daemon: Daemon, url: str) -> None:
    done = await treedb("import", "-", url, "--format", "ndjson", "--quiet", stdin=as_lines())
    assert done == (0, b"", "")
    assert exported(shared_daemon, url) == DOCUMENT
    done = await treedb("import", "-", url, "--replace", stdin=b" [1, null, {}, 2] ")
    assert done.status == 0, done
    assert exported(shared_daemon, url) == {"0": 1, "3": 2}


@pytest_twisted.ensureDeferred
async def test_a_target_with_data_is_only_replaced_or_merged_on_request(
    shared_daemon: Daemon, url: str, tmp_path: pathlib.Path
) -> None:
    file = tmp_path / "small.json"
    file.write_text('{"a": {"new": 1}}')
    target = url.removeprefix(shared_daemon.http).replace("?", ".json?")
    before = {"a": {"old": 1}, "b": 2}
    shared_daemon.request("PUT", target, json.dumps(before))
    assert "The target is not empty" in (await treedb("import", file, url)).error
    assert exported(shared_daemon, url) == before
    assert await treedb("import", file, url, "--merge", "--quiet") == (0, b"", "")
    assert exported(shared_daemon, url) == {"a": {"new": 1}, "b": 2}
    assert await treedb("import", file, url, "--replace", "--quiet") == (0, b"", "")
    assert exported(shared_daemon, url) == {"a": {"new": 1}}


@pytest.mark.parametrize("mode", [(), ("--merge",)])
@pytest_twisted.ensureDeferred
async def test_a_leaf_above_the_target_is_only_replaced_on_request(
    shared_daemon: Daemon, url: str, tmp_path: pathlib.Path, mode: tuple[str, ...]
) -> None:
    file = tmp_path / "small.json"
    file.write_text('{"a": 1}')
    target = url.removeprefix(shared_daemon.http).replace("?", ".json?")
    shared_daemon.request("PUT", target, "5")
    below = url.replace("?", "/x/y?")
    error = (await treedb("import", file, below, *mode)).error
    assert error.startswith("There is a value at /")
    assert exported(shared_daemon, url) == 5
    assert await treedb("import", file, below, "--replace", "--quiet") == (0, b"", "")
    assert exported(shared_daemon, url) == {"x": {"y": {"a": 1}}}


@pytest_twisted.ensureDeferred
async def test_a_leaf_above_the_target_is_not_replaced_offline(tmp_path: pathlib.Path) -> None:
    file, data = tmp_path / "small.json", tmp_path / "data"
    url = "http://localhost/a?ns=demo"
    file.write_text("5")
    assert await treedb("import", file, url, "--data", data, "--quiet") == (0, b"", "")
    below = ("import", file, url.replace("?", "/b?"), "--data", data, "--quiet")
    assert (await treedb(*below)).error.startswith("There is a value at /a,")
    assert await treedb(*below, "--replace") == (0, b"", "")


@pytest_twisted.ensureDeferred
async def test_a_merge_of_null_keeps_all_children(
    shared_daemon: Daemon, url: str, tmp_path: pathlib.Path
) -> None:
    file = tmp_path / "null.json"
    file.write_text("null")
    target = url.removeprefix(shared_daemon.http).replace("?", ".json?")
    shared_daemon.request("PUT", target, '{"kept": 1}')
    assert await treedb("import", file, url, "--merge", "--quiet") == (0, b"", "")
    assert exported(shared_daemon, url) == {"kept": 1}


@pytest.mark.parametrize(
    ("name", "content", "error"),
    [
        ("x.json", b'{"a": ', "Not valid JSON"),
        ("x.ndjson", b'{"key": "a", "value": 1}\n{"key": "b"}\n', "Line 2: A line must be"),
        ("x.json.gz", encode(DOCUMENT, ".json.gz")[:-9], "x.json.gz is cut off."),
        ("x.json.zst", encode(DOCUMENT, ".json.zst")[:-9], "x.json.zst is cut off."),
        ("x.gz", b"\x1f\x8bnonsense", "cannot be decompressed"),
        ("x.json", b'{"a.b": 1}', "is not allowed"),
    ],
)
@pytest_twisted.ensureDeferred
async def test_a_bad_file_is_one_sentence(
    url: str, tmp_path: pathlib.Path, name: str, content: bytes, error: str
) -> None:
    file = tmp_path / name
    file.write_bytes(content)
    assert error in (await treedb("import", file, url)).error


@pytest.mark.parametrize("is_offline", [False, True])
def test_a_resumed_import_goes_on_only_with_the_same_file(
    tmp_path: pathlib.Path, is_offline: bool
) -> None:
    file = tmp_path / "x.ndjson"
    lines = [b'{"key":"k%04d","value":"%s"}\n' % (at, b"x" * 900) for at in range(900)]
    file.write_bytes(b"".join(lines))
    expected = {f"k{at:04}": "x" * 900 for at in range(900)}
    with Daemon(tmp_path) as daemon:
        target = break_import(daemon, file, is_offline=is_offline)
        assert len(list(tmp_path.glob(".x.ndjson.*.import"))) == 1
        corrected = [*lines[:50], lines[50].replace(b"xx", b"yy", 1), *lines[51:]]
        file.write_bytes(b"".join(corrected))
        status, errors = finish(start("import", file, *target))
        assert (status, errors.count("\n")) == (1, 1)
        assert f"{file} has changed since its import was interrupted" in errors
        assert "--replace" in errors
        file.write_bytes(b"".join([*lines[:-1], lines[-1].replace(b"xx", b"yy", 1)]))
        expected["k0899"] = "yy" + "x" * 898
        status, errors = finish(start("import", file, *target))
        assert status == 0, errors
        assert errors.startswith("treedb: Going on with an import that was interrupted.\n")
        if is_offline:
            daemon.start()
        assert exported(daemon, f"{daemon.http}/data?ns=demo") == expected
    assert not list(tmp_path.glob(".x.ndjson.*"))


def break_import(
    daemon: Daemon, file: pathlib.Path, *, is_offline: bool
) -> list[str | pathlib.Path]:
    """Kill an import after some parts; return its target, as words of the command line."""
    if is_offline:
        assert daemon.stop() == 0
        target: list[str | pathlib.Path] = ["http://localhost/data", "--data", daemon.data]
        script = DYING
    else:
        target = [f"{daemon.http}/data?ns=demo"]
        script = DYING_ONLINE
    killed = run_dying(script, "import", file, *target, number=signal.SIGKILL)
    assert killed.status == -signal.SIGKILL, killed
    return target


@pytest_twisted.ensureDeferred
async def test_a_missing_file_and_a_missing_server_are_one_sentence(tmp_path: pathlib.Path) -> None:
    missing = tmp_path / "missing.json"
    nowhere = "http://127.0.0.1:1/a"
    assert "cannot be read" in (await treedb("import", missing, nowhere)).error
    file = tmp_path / "a.json"
    file.write_text("1")
    done = await treedb("import", file, nowhere, "--retry-for", "0")
    assert done.error == "No server listens at http://127.0.0.1:1."
    assert (await treedb("import", file, nowhere, "--retry-for", "-1")).status == 2
    assert (await treedb("import", file, nowhere, "--merge", "--replace")).status == 2


def test_an_import_survives_a_restart_of_the_daemon(
    tmp_path: pathlib.Path, file: pathlib.Path
) -> None:
    with Daemon(tmp_path) as daemon, CuttingProxy(daemon.http) as proxy:
        proxy.hold_from = 5
        process = start("import", file, f"{proxy.url}/data")
        proxy.await_accepted(6)
        daemon.kill()
        proxy.release(None)
        proxy.await_accepted(9)
        daemon.start()
        proxy.release(daemon.http)
        status, errors = finish(process)
        assert (status, errors.count("Trying again")) == (0, 1), errors
        assert exported(daemon, f"{daemon.http}/data?ns=demo") == DOCUMENT


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGINT])
def test_an_import_that_was_killed_goes_on(
    shared_daemon: Daemon, file: pathlib.Path, number: signal.Signals
) -> None:
    with CuttingProxy(shared_daemon.http) as proxy:
        url = f"{proxy.url}/data?ns={next(_hosts)}"
        proxy.hold_from = 7
        process = start("import", file, url)
        proxy.await_accepted(8)
        process.send_signal(number)
        status, errors = finish(process)
        first = [line for line in proxy.seen if line.startswith("PATCH")]
        assert len(first) >= 2
        if number == signal.SIGINT:
            assert (status, errors) == (
                130,
                "treedb: Interrupted. The same command goes on where it stopped.\n",
            )
        proxy.release(proxy.upstream)
        proxy.seen.clear()
        status, errors = finish(start("import", file, url))
        assert status == 0, errors
        assert errors.startswith("treedb: Going on with an import that was interrupted.\n")
        second = [line for line in proxy.seen if line.startswith("PATCH")]
        direct = url.replace(proxy.url, shared_daemon.http)
        assert exported(shared_daemon, direct) == DOCUMENT
        proxy.seen.clear()
        assert finish(start("import", file, f"{url}x"))[0] == 0
        assert len(second) < sum(line.startswith("PATCH") for line in proxy.seen)


@pytest.fixture
def offline(tmp_path: pathlib.Path) -> Iterator[tuple[Daemon, list[str | pathlib.Path]]]:
    """A daemon that is not running, and the options that name its data."""
    with Daemon(tmp_path) as daemon:
        daemon.request("PUT", "/x.json", "1")
        assert daemon.stop() == 0
        yield daemon, ["http://localhost:9000/data", "--data", daemon.data]


@pytest_twisted.ensureDeferred
async def test_a_stopped_store_is_written(
    offline: tuple[Daemon, list[str | pathlib.Path]], file: pathlib.Path
) -> None:
    daemon, target = offline
    done = await treedb("import", file, *target)
    assert done.status == 0, done
    assert "The target is not empty" in (await treedb("import", file, *target)).error
    daemon.start()
    assert exported(daemon, f"{daemon.http}/data?ns=demo") == DOCUMENT
    assert daemon.request("GET", "/x.json").json == 1
    assert "is in use by another treedb" in (await treedb("import", file, *target)).error
    assert daemon.stop() == 0
    assert (await treedb("check", "--data", daemon.data)).status == 0


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGINT])
@pytest_twisted.ensureDeferred
async def test_an_import_into_a_store_that_was_killed_goes_on(
    offline: tuple[Daemon, list[str | pathlib.Path]], file: pathlib.Path, number: signal.Signals
) -> None:
    daemon, target = offline
    killed = run_dying(DYING, "import", file, *target, number=number)
    assert killed.status == (130 if number == signal.SIGINT else -signal.SIGKILL)
    assert (await treedb("check", "--data", daemon.data)).status == 0
    status, errors = finish(start("import", file, *target))
    assert status == 0, errors
    assert errors.startswith("treedb: Going on with an import")
    daemon.start()
    assert exported(daemon, f"{daemon.http}/data?ns=demo") == DOCUMENT


@pytest_twisted.ensureDeferred
async def test_an_offline_import_needs_a_database_that_is_configured(
    tmp_path: pathlib.Path, file: pathlib.Path
) -> None:
    config = tmp_path / "treedb.toml"
    config.write_text('domains = ["db.test"]\n[projects.shop]\n')
    words: list[str | pathlib.Path] = ["--config", config, "--data", tmp_path / "data"]
    for url, error in [
        ("http://other.db.test/a", "The project other is not configured."),
        ("http://eu--shop.db.test/a", "The project shop has no database eu."),
        ("http://elsewhere.test/a", "The host elsewhere.test is not served here."),
    ]:
        assert error in (await treedb("import", file, url, *words)).error
    assert not os.path.exists(tmp_path / "data" / "shop")


@pytest_twisted.ensureDeferred
async def test_rules_are_judged_and_the_refusal_is_the_daemons(
    tmp_path: pathlib.Path, file: pathlib.Path
) -> None:
    with Daemon(tmp_path) as daemon:
        with Client(daemon) as client:
            rules = '{"rules": {"open": {".read": true, ".write": true}}}'
            headers = {"Authorization": "Bearer owner"}
            assert client.request("PUT", "/.settings/rules.json", rules, headers).status == 200
        assert "permission_denied" in (await treedb("import", file, f"{daemon.http}/shut")).error
        assert await treedb("import", file, f"{daemon.http}/open", "--quiet") == (0, b"", "")
        assert exported(daemon, f"{daemon.http}/open?ns=demo") == DOCUMENT


def test_the_command_line_explains_itself() -> None:
    text = run_command("import", "--help").text
    for option in ("--replace", "--merge", "--restart", "--format", "--retry-for", "--data"):
        assert option in text


@pytest_twisted.ensureDeferred
async def test_a_wrong_order_and_a_bare_path_say_what_is_wanted(
    file: pathlib.Path, tmp_path: pathlib.Path
) -> None:
    swapped = await treedb("import", "http://localhost:9000/a", file)
    assert swapped.status == 2
    assert "argument FILE: is a URL: the order is treedb import FILE URL" in swapped.errors
    bare = await treedb("import", file, "/users", "--data", tmp_path / "data")
    assert bare.status == 2
    assert "argument URL: with --data give a URL" in bare.errors


@pytest_twisted.ensureDeferred
async def test_a_short_file_is_one_write(
    shared_daemon: Daemon, url: str, tmp_path: pathlib.Path
) -> None:
    target = url.removeprefix(shared_daemon.http).replace("?", ".json?")
    for suffix in (".json", ".ndjson.gz"):
        file = tmp_path / f"document{suffix}"
        file.write_bytes(encode(DOCUMENT, suffix))
        shared_daemon.request("PUT", target, '{"old": 1}')
        with CuttingProxy(shared_daemon.http) as proxy:
            through = url.replace(shared_daemon.http, proxy.url)
            assert run_command("import", file, through, "--replace", "--quiet") == (0, b"", "")
            writes = [line.split()[0] for line in proxy.seen if not line.startswith("GET")]
        assert writes == ["PUT"]
        assert exported(shared_daemon, url) == DOCUMENT
