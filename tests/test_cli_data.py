"""Reading and writing places from the command line, against a real daemon."""

from __future__ import annotations

import itertools
import json
import os
import pathlib
import re
import signal
import subprocess
import sys
from collections.abc import Iterator

import pytest

from tests.command import COMMAND, environment, treedb
from tests.daemon import Daemon

MIB = 1_048_576
MEMORY = """
import atexit, sys
from treedbd.cli.main import main
def tell():
    for line in open("/proc/self/status"):
        if line.startswith("VmHWM:"):
            print(line, file=sys.stderr)
atexit.register(tell)
sys.exit(main())
"""

_numbers = itertools.count()


@pytest.fixture(scope="module")
def daemon(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    """A daemon in development mode for all tests here."""
    with Daemon(tmp_path_factory.mktemp("daemon")) as running:
        yield running


@pytest.fixture
def tree(daemon: Daemon) -> str:
    """The URL of a project that no other test uses."""
    return daemon.http.replace("127.0.0.1", f"cli{next(_numbers)}.localhost")


def test_a_place_is_set_read_pushed_to_updated_and_removed(tree: str) -> None:
    assert treedb("get", tree).text == "null"
    assert treedb("set", f"{tree}/users/ada", '{"age": 36}').text == '{"age":36}'
    key = json.loads(treedb("push", f"{tree}/log.json", '"hello"').text)["name"]
    changes = '{"users/ada/age": 37, "x": -1}'
    assert json.loads(treedb("update", tree, changes).text) == json.loads(changes)
    assert treedb("remove", f"{tree}/x").text == "null"
    expected = {"log": {key: "hello"}, "users": {"ada": {"age": 37}}}
    assert json.loads(treedb("get", f"{tree}/.json").text) == expected


def test_a_silent_write_prints_nothing(tree: str) -> None:
    done = treedb("set", tree, "1", "--silent")
    assert (done.status, done.output, done.errors) == (0, b"", "")
    assert treedb("get", tree).text == "1"


def test_a_value_may_come_from_standard_input(tree: str, tmp_path: pathlib.Path) -> None:
    file = tmp_path / "value.json"
    file.write_text('{"from": "a file"}')
    assert treedb("set", tree, "-", given='"grüße"'.encode()).text == '"grüße"'
    with file.open("rb") as opened:
        subprocess.run([*COMMAND, "set", tree, "-"], stdin=opened, check=True, capture_output=True)
    assert treedb("get", tree).text == '{"from":"a file"}'


def test_a_value_that_looks_like_an_option_is_one_behind_two_hyphens(tree: str) -> None:
    assert treedb("set", tree, "-5").text == "-5"
    assert treedb("set", tree, "--", "-1e400").sentence.startswith("400 invalid_data: ")


def test_options_make_a_query(tree: str) -> None:
    people = {"ada": {"age": 36}, "alan": {"age": 41}, "grace": {"age": 85}, "5": {"age": "old"}}
    assert treedb("set", tree, json.dumps(people), "--silent").status == 0

    def keys(*options: str) -> list[str]:
        return list(json.loads(treedb("get", tree, *options).text))

    assert keys("--order-by", "age", "--limit-to-first", "2") == ["ada", "alan"]
    assert keys("--order-by", "age", "--start-at", "41", "--end-at", "85") == ["alan", "grace"]
    assert keys("--order-by", "age", "--equal-to", "old") == ["5"]
    assert keys("--order-by", "$key", "--start-after", "ada", "--limit-to-last", "1") == ["grace"]
    assert keys("--order-by", '"$key"', "--end-before", '"alan"') == ["5", "ada"]
    assert keys("--order-by", "age", "--start-at", '41,"b"') == ["grace", "5"]
    assert keys("--order-by", "$key", "--equal-to", '"5"') == ["5"]
    assert treedb("get", f'{tree}?orderBy="age"', "--limit-to-first", "1").status == 0


def test_a_read_may_be_shallow_or_pretty(tree: str) -> None:
    assert treedb("set", tree, '{"a": {"b": 1}}', "--silent").status == 0
    assert treedb("get", tree, "--shallow").text == '{"a":true}'
    assert treedb("get", tree, "--pretty").text == '{\n  "a": {\n    "b": 1\n  }\n}'


def test_what_the_daemon_refuses_is_one_sentence(tree: str) -> None:
    assert re.match("400 invalid_data: .+", treedb("set", tree, "{").sentence)
    assert re.match("400 invalid_query: .+", treedb("get", tree, "--start-at", "1").sentence)
    assert re.match("400 invalid_path: .+", treedb("get", f"{tree}/a%23").sentence)
    assert re.match(
        "413 payload_too_large: .+", treedb("set", tree, "-", given=b" " * 17 * MIB)[2][8:]
    )


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
        ["import", "a", "http://h"],
        ["watch"],
        ["watch", "http://h", "--keep-alive", "0"],
        ["rules"],
        ["rules", "explain", "http://h", "--auth", "{"],
        ["check", "x"],
    ],
)
def test_a_wrong_command_line_ends_with_2(words: list[str]) -> None:
    done = treedb(*words)
    assert (done.status, done.output) == (2, b"")
    assert "error: " in done.errors
    assert "hidden" not in done.errors


def test_nobody_there_is_one_sentence() -> None:
    assert treedb("get", "http://localhost:1/a").sentence == "Nobody listens at http://localhost:1."


def test_development_mode_s_certificate_is_trusted_on_this_machine(daemon: Daemon) -> None:
    for host in ("localhost", "127.0.0.1", "shop.localhost"):
        url = daemon.https.replace("127.0.0.1", host)
        assert treedb("get", f"{url}/none", "--data", daemon.data).text == "null"


def test_without_a_certificate_to_trust_nothing_is_sent(
    daemon: Daemon, tmp_path: pathlib.Path
) -> None:
    url = f"{daemon.https}/none"
    assert "nobody who is trusted here" in treedb("get", url, folder=tmp_path).sentence
    (tmp_path / "treedb.toml").write_text(f'data = "{daemon.data}"\n')
    config = ["--config", tmp_path / "treedb.toml"]
    assert "nobody who is trusted here" in treedb("get", url, *config).sentence
    assert treedb("get", url, "--cacert", daemon.ca).text == "null"
    assert "no certificate in PEM" in treedb("get", url, "--cacert", __file__).sentence


def test_a_token_comes_from_a_variable_or_a_file(daemon: Daemon, tmp_path: pathlib.Path) -> None:
    url = f"{daemon.http}/.settings/rules"
    token = treedb(
        *("token", "--project", "demo", "--uid", "me", "--admin", "--data", daemon.data)
    ).text
    file = tmp_path / "token"
    file.write_text(token + "\n")
    assert "auth_required" in treedb("get", url).sentence
    assert "rules" in treedb("get", url, token=token).text
    assert "rules" in treedb("get", url, "--token-file", file, token="wrong").text
    assert treedb("get", url, token="wrong").sentence.startswith("401")
    assert token not in daemon.log


@pytest.mark.parametrize("content", [b"", b"two words", b"a\nb", b"\xff", b"a\0b"])
def test_what_is_no_token_is_not_sent_and_not_said(tmp_path: pathlib.Path, content: bytes) -> None:
    file = tmp_path / "token"
    file.write_bytes(content)
    sentence = treedb("get", "http://localhost:1/a", "--token-file", file).sentence
    assert sentence == f"{file} does not hold a token, which is one word."


def test_a_reader_who_has_enough_ends_it_without_a_word(tree: str) -> None:
    assert treedb("set", tree, "-", "--silent", given=b'"%b"' % (b"x" * 5 * MIB)).status == 0
    process = subprocess.Popen(
        [*COMMAND, "get", tree], stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment()
    )
    assert process.stdout is not None
    assert process.stderr is not None
    assert process.stdout.read(1) == b'"'
    process.stdout.close()
    assert process.stderr.read() == b""
    assert process.wait(30) == 1


def test_a_full_disk_is_one_sentence(tree: str) -> None:
    with open("/dev/full", "wb") as full:
        done = subprocess.run(
            [*COMMAND, "get", tree], stdout=full, stderr=subprocess.PIPE, check=False
        )
    assert done.returncode == 1
    assert done.stderr == b"treedb: The output cannot be written (No space left on device).\n"


def test_an_interrupted_command_ends_by_the_signal(tree: str) -> None:
    assert treedb("set", tree, "-", "--silent", given=b'"%b"' % (b"x" * 5 * MIB)).status == 0
    for number in (signal.SIGINT, signal.SIGTERM):
        process = subprocess.Popen(
            [*COMMAND, "get", tree], stdout=subprocess.PIPE, stderr=subprocess.PIPE
        )
        assert process.stdout is not None
        assert process.stderr is not None
        assert process.stdout.read(1) == b'"'
        os.kill(process.pid, number)
        assert process.wait(30) == -number
        assert process.stderr.read() == b""
        process.stdout.close()
        process.stderr.close()


def test_large_values_pass_through_without_being_held(tree: str) -> None:
    part = b'"%b"' % (b"x" * 9 * MIB)

    def peak_kib(*words: str, given: bytes = b"") -> tuple[int, int]:
        done = subprocess.run(
            [sys.executable, "-c", MEMORY, *words], input=given, capture_output=True, check=True
        )
        found = re.fullmatch(rb"VmHWM:\s+([0-9]+) kB\n\n", done.stderr)
        assert found, done.stderr
        return int(found[1]), len(done.stdout)

    small, _ = peak_kib("set", f"{tree}/0", "1")
    for number in range(1, 5):
        large, length = peak_kib("set", f"{tree}/{number}", "-", given=part)
        assert length == len(part) + 1
        assert large < small + 8 * 1024
    large, length = peak_kib("get", tree)
    assert length > 4 * len(part)
    assert large < small + 8 * 1024
