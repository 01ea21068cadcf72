"""Reading and writing values from the command line, with a real daemon."""

from __future__ import annotations

import itertools
import json
import os
import pathlib
import re
import signal
import subprocess
import sys

import pytest
import pytest_twisted

from tests.command import (
    COMMAND,
    environment,
    error_of,
    mint,
    output_of,
    result_of,
    run_command,
    start,
    treedb,
)
from tests.daemon import Daemon

MIB = 1_048_576
MEMORY = """
import atexit, sys
from treedbd.cli.main import main
def print_peak():
    for line in open("/proc/self/status"):
        if line.startswith("VmHWM:"):
            print(line, file=sys.stderr)
atexit.register(print_peak)
sys.exit(main())
"""

_numbers = itertools.count()


@pytest.fixture
def project(shared_daemon: Daemon) -> str:
    """The URL of a project that no other test uses."""
    return shared_daemon.http.replace("127.0.0.1", f"cli{next(_numbers)}.localhost")


def test_a_command_is_a_process_that_ends_with_a_status(project: str) -> None:
    assert run_command("set", project, "-", stdin=b'"x"').text == '"x"'
    assert run_command("get", f"{project}/a").text == "null"
    assert "auth_required" in run_command("rules", "get", project).error
    assert run_command("get", project, "--silent").status == 2


@pytest_twisted.ensureDeferred
async def test_a_value_is_set_read_pushed_to_updated_and_removed(project: str) -> None:
    assert await output_of("get", project) == "null"
    assert await output_of("set", f"{project}/users/ada", '{"age": 36}') == '{"age":36}'
    key = json.loads(await output_of("push", f"{project}/log.json", '"hello"'))["name"]
    changes = '{"users/ada/age": 37, "x": -1}'
    assert json.loads(await output_of("update", project, changes)) == json.loads(changes)
    assert await output_of("remove", f"{project}/x") == "null"
    expected = {"log": {key: "hello"}, "users": {"ada": {"age": 37}}}
    assert json.loads(await output_of("get", f"{project}/.json")) == expected


@pytest_twisted.ensureDeferred
async def test_a_silent_write_prints_nothing(project: str) -> None:
    done = await treedb("set", project, "1", "--silent")
    assert (done.status, done.output, done.errors) == (0, b"", "")
    assert await output_of("get", project) == "1"


@pytest_twisted.ensureDeferred
async def test_a_value_may_come_from_standard_input(project: str, tmp_path: pathlib.Path) -> None:
    file = tmp_path / "value.json"
    file.write_text('{"from": "a file"}')
    assert await output_of("set", project, "-", stdin='"grüße"'.encode()) == '"grüße"'
    with file.open("rb") as opened:
        subprocess.run(
            [*COMMAND, "set", project, "-"], stdin=opened, check=True, capture_output=True
        )
    assert await output_of("get", project) == '{"from":"a file"}'


@pytest_twisted.ensureDeferred
async def test_a_value_that_looks_like_an_option_is_given_after_two_hyphens(project: str) -> None:
    assert await output_of("set", project, "-5") == "-5"
    assert "400 invalid_data: " in await error_of("set", project, "--", "-1e400")


@pytest_twisted.ensureDeferred
async def test_options_make_a_query(project: str) -> None:
    people = {"ada": {"age": 36}, "alan": {"age": 41}, "grace": {"age": 85}, "5": {"age": "old"}}
    assert (await treedb("set", project, json.dumps(people), "--silent")).status == 0

    async def keys(*options: str) -> list[str]:
        return list(json.loads(await output_of("get", project, *options)))

    assert await keys("--order-by", "age", "--limit-to-first", "2") == ["ada", "alan"]
    assert await keys("--order-by", "age", "--end-at", "40") == ["ada"]
    assert await keys("--order-by", "age", "--equal-to", "old") == ["5"]
    assert await keys("--order-by", "$key", "--start-after", "ada") == ["alan", "grace"]
    assert await keys("--order-by", "$key", "--limit-to-last", "1") == ["grace"]
    assert await keys("--order-by", '"$key"', "--end-before", '"alan"') == ["5", "ada"]
    assert await keys("--order-by", "age", "--start-at", '41,"b"') == ["grace", "5"]
    assert await keys("--order-by", "$key", "--equal-to", '"5"') == ["5"]
    assert await keys("--order-by", "$key", "--equal-to", "5") == ["5"]
    assert await keys("--order-by", '"$key"', "--start-at", "5", "--end-at", "5") == ["5"]
    assert await keys("--order-by", "$key", "--start-at", "b", "--end-at", "true") == ["grace"]
    assert await keys("--where", '{"age":{">":36}}') == ["alan", "grace"]
    assert await keys("--where", '{"age":{">":36}}', "--limit-to-last", "1") == ["grace"]
    assert await keys("--order-by", "age", "--where", '{"$key":{"!=":"alan"}}') == [
        *("ada", "grace", "5")
    ]
    assert (await treedb("get", f'{project}?orderBy="age"', "--limit-to-first", "1")).status == 0


@pytest_twisted.ensureDeferred
async def test_a_read_may_be_shallow_or_pretty(project: str) -> None:
    assert (await treedb("set", project, '{"a": {"b": 1}}', "--silent")).status == 0
    assert await output_of("get", project, "--shallow") == '{"a":true}'
    assert await output_of("get", project, "--pretty") == '{\n  "a": {\n    "b": 1\n  }\n}'


@pytest_twisted.ensureDeferred
async def test_an_error_of_the_daemon_is_one_sentence(project: str) -> None:
    assert "400 invalid_data: " in await error_of("set", project, "{")
    assert "400 invalid_query: " in await error_of("get", project, "--start-at", "1")
    assert "400 invalid_path: " in await error_of("get", f"{project}/a%23")
    too_much = b" " * 17 * MIB
    assert "413 payload_too_large: " in await error_of("set", project, "-", stdin=too_much)


@pytest.mark.parametrize(
    "words",
    [
        [],
        ["fetch", "http://h"],
        ["get"],
        ["get", "h/a"],
        ["get", "http://h", "1"],
        ["get", "http://h?auth=hidden"],
        ["get", "http://h", "--token", "hidden"],
        ["get", "http://h", "--token-fil", "x"],
        ["set", "http://h"],
        ["remove", "http://h", "1"],
        ["import", "a"],
        ["watch"],
        ["watch", "http://h", "--keep-alive", "0"],
        ["rules"],
        ["rules", "explain", "http://h", "--auth", "{"],
        ["check", "x"],
    ],
)
@pytest_twisted.ensureDeferred
async def test_a_wrong_command_line_ends_with_2(words: list[str]) -> None:
    done = await treedb(*words)
    assert (done.status, done.output) == (2, b"")
    assert "error: " in done.errors
    assert "hidden" not in done.errors


@pytest_twisted.ensureDeferred
async def test_a_missing_server_is_one_sentence() -> None:
    assert (
        await error_of("get", "http://localhost:1/a") == "No server listens at http://localhost:1."
    )


@pytest_twisted.ensureDeferred
async def test_development_mode_s_certificate_is_trusted_on_this_machine(
    shared_daemon: Daemon,
) -> None:
    for host in ("localhost", "127.0.0.1", "shop.localhost"):
        url = shared_daemon.https.replace("127.0.0.1", host)
        assert await output_of("get", f"{url}/none", "--data", shared_daemon.data) == "null"


@pytest_twisted.ensureDeferred
async def test_without_a_certificate_to_trust_nothing_is_sent(
    shared_daemon: Daemon, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = f"{shared_daemon.https}/none"
    monkeypatch.chdir(tmp_path)
    assert "not signed by a trusted authority" in await error_of("get", url)
    (tmp_path / "treedb.toml").write_text(f'data = "{shared_daemon.data}"\n')
    assert "not signed by a trusted authority" in await error_of(
        "get", url, "--config", "treedb.toml"
    )
    assert await output_of("get", url, "--cacert", shared_daemon.ca) == "null"
    assert "no certificate in PEM" in await error_of("get", url, "--cacert", __file__)


@pytest_twisted.ensureDeferred
async def test_a_token_comes_from_a_variable_or_a_file(
    shared_daemon: Daemon, tmp_path: pathlib.Path
) -> None:
    url = f"{shared_daemon.http}/.settings/rules"
    token = mint(shared_daemon, "demo", "me", "--admin")
    file = tmp_path / "token"
    file.write_text(token + "\n")
    assert "auth_required" in await error_of("get", url)
    assert "rules" in await output_of("get", url, token=token)
    assert "rules" in await output_of("get", url, "--token-file", file, token="wrong")
    assert "401" in await error_of("get", url, token="wrong")
    assert token not in shared_daemon.log


@pytest.mark.parametrize("content", [b"", b"two words", b"a\nb", b"\xff", b"a\0b"])
@pytest_twisted.ensureDeferred
async def test_an_invalid_token_is_neither_sent_nor_printed(
    tmp_path: pathlib.Path, content: bytes
) -> None:
    file = tmp_path / "token"
    file.write_bytes(content)
    error = await error_of("get", "http://localhost:1/a", "--token-file", file)
    assert error == f"{file} does not hold a token, which is one word."


@pytest_twisted.ensureDeferred
async def test_a_closed_output_ends_the_command_without_a_message(project: str) -> None:
    assert (
        await treedb("set", project, "-", "--silent", stdin=b'"%b"' % (b"x" * 5 * MIB))
    ).status == 0
    running = subprocess.Popen(
        [*COMMAND, "get", project],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=environment(),
    )
    assert running.stdout is not None
    assert running.stderr is not None
    assert running.stdout.read(1) == b'"'
    running.stdout.close()
    assert running.stderr.read() == b""
    assert running.wait(30) == 1


def test_a_full_disk_is_one_sentence(project: str) -> None:
    with open("/dev/full", "wb") as full:
        for words in (["get", project], ["--version"]):
            done = result_of(start(words, output=full))
            assert done.error == "The output cannot be written (No space left on device)."


@pytest_twisted.ensureDeferred
async def test_an_interrupted_command_ends_by_the_signal(project: str) -> None:
    assert (
        await treedb("set", project, "-", "--silent", stdin=b'"%b"' % (b"x" * 5 * MIB))
    ).status == 0
    for number in (signal.SIGINT, signal.SIGTERM):
        running = subprocess.Popen(
            [*COMMAND, "get", project], stdout=subprocess.PIPE, stderr=subprocess.PIPE
        )
        assert running.stdout is not None
        assert running.stderr is not None
        assert running.stdout.read(1) == b'"'
        os.kill(running.pid, number)
        assert running.wait(30) == -number
        assert running.stderr.read() == b""
        running.stdout.close()
        running.stderr.close()


def test_large_values_are_not_held_in_memory(project: str) -> None:
    part = b'"%b"' % (b"x" * 9 * MIB)

    def peak_kib(*words: str, stdin: bytes = b"") -> tuple[int, int]:
        done = subprocess.run(
            [sys.executable, "-c", MEMORY, *words], input=stdin, capture_output=True, check=True
        )
        found = re.fullmatch(rb"VmHWM:\s+([0-9]+) kB\n\n", done.stderr)
        assert found, done.stderr
        return int(found[1]), len(done.stdout)

    small, _ = peak_kib("set", f"{project}/0", "1")
    for number in range(1, 5):
        large, length = peak_kib("set", f"{project}/{number}", "-", stdin=part)
        assert length == len(part) + 1
        assert large < small + 8 * 1024
    large, length = peak_kib("get", project)
    assert length > 4 * len(part)
    assert large < small + 8 * 1024


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["get", "{}", "--limit-to-first", "3"], "--limit-to-first needs --order-by."),
        (["get", "{}", "--start-at", "3"], "--start-at needs --order-by."),
        (
            ["watch", "{}", "--limit-to-first", "1", "--limit-to-last", "1", "--order-by", "a"],
            "--limit-to-first and --limit-to-last cannot be combined.",
        ),
        (
            ["get", "{}", "--limit-to-last", "x", "--order-by", "a"],
            "--limit-to-last must be an integer of at least 1, written in at most 100 digits.",
        ),
        (["set", "{}", "{"], "400 invalid_data: "),
        (["shell", "{}", "-c", "cat --limit-to-first 2"], "--limit-to-first needs --order-by."),
        (["shell", "{}", "-c", "watch --end-at 2"], "--end-at needs --order-by."),
        (["get", "{}/a.b"], "400 invalid_path: "),
    ],
)
@pytest_twisted.ensureDeferred
async def test_errors_are_the_same_with_a_token_and_name_options(
    project: str, words: list[str], sentence: str
) -> None:
    command = [word.replace("{}", project) for word in words]
    error = await error_of(*command)
    assert sentence in error
    assert await error_of(*command, token="owner") == error
