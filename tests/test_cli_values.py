"""Options of reads and writes from the command line: tags, files, time-outs; and hints."""

from __future__ import annotations

import json
import pathlib
import signal
import socket
import subprocess

import pytest
import pytest_twisted

from tests.command import COMMAND, error_of, output_of, run_command, treedb
from tests.daemon import Daemon
from treedbd.cli.data import hint_at_value


@pytest.fixture
def project(shared_daemon: Daemon, request: pytest.FixtureRequest) -> str:
    """The URL of a project that no other test uses."""
    name = request.node.name.replace("_", "-")[-60:].strip("-")
    return shared_daemon.http.replace("127.0.0.1", f"{name}.localhost")


@pytest_twisted.ensureDeferred
async def test_a_write_is_done_only_if_the_tag_is_the_present_one(project: str) -> None:
    url = f"{project}/n"
    await output_of("set", url, "1")
    tag = await output_of("get", url, "--etag")
    assert json.loads(await output_of("get", url, "--json")) == {"etag": tag, "value": 1}
    assert await output_of("set", url, "2", "--if-match", tag) == "2"
    present = await output_of("get", url, "--etag")
    for words in (["set", url, "3"], ["update", url, "{}"], ["push", url, "3"], ["remove", url]):
        error = await error_of(*words, "--if-match", tag)
        assert error.startswith("412 condition_failed: ")
        assert error.endswith(f"its entity tag is now {present}.")
    assert await output_of("remove", url, "--if-match", f'"{present}"') == "null"
    assert "must be one entity tag" in await error_of("set", url, "1", "--if-match", "a b")
    assert "no entity tag" in await error_of("get", project, "--shallow", "--etag")


@pytest_twisted.ensureDeferred
async def test_an_export_shows_priorities(project: str) -> None:
    await output_of("set", project, '{"a":{".value":1,".priority":2}}')
    assert json.loads(await output_of("get", project, "--export")) == {
        "a": {".value": 1, ".priority": 2}
    }


@pytest_twisted.ensureDeferred
async def test_a_value_is_written_to_a_file_that_appears_whole(
    project: str, tmp_path: pathlib.Path
) -> None:
    await output_of("set", project, '{"a":1}')
    file = tmp_path / "out.json"
    link = tmp_path / "link.json"
    link.symlink_to(file)
    file.write_text("old")
    file.chmod(0o640)
    assert (await treedb("get", project, "-o", link)).output == b""
    assert (file.read_text(), file.stat().st_mode & 0o777) == ('{"a":1}\n', 0o640)
    assert link.is_symlink()
    await error_of("get", f"{project}/a%23", "-o", file)
    assert file.read_text() == '{"a":1}\n'
    assert sorted(each.name for each in tmp_path.iterdir()) == ["link.json", "out.json"]
    missing = tmp_path / "none" / "x"
    error = await error_of("get", project, "-o", missing)
    assert error == f"{missing} cannot be written (No such file or directory)."
    assert "cannot be written (Is a directory)" in await error_of("get", project, "-o", tmp_path)
    assert await output_of("get", project, "-o", "-") == '{"a":1}'


@pytest_twisted.ensureDeferred
async def test_a_time_out_is_sent_and_checked(project: str) -> None:
    assert await output_of("get", project, "--timeout", "5s") == "null"
    assert await output_of("set", project, "1", "--timeout", "2min") == "1"
    assert await output_of("get", project, "--timeout", "2m") == "1"
    for wrong in ("5", "0s", "16min", "-1s"):
        assert (await treedb("get", project, f"--timeout={wrong}")).status == 2


@pytest.mark.parametrize(
    ("value", "hint"),
    [
        ("hello", """'"hello"'."""),
        ("it's", """'"it'"'"'s"'."""),
        ("{name: ada}", """'{"name": "ada"}'."""),
        ("[1,a]", """'[1,"a"]'."""),
        ("{a:{b:true}}", """'{"a":{"b":true}}'."""),
        ("{", ""),
        ('"a', ""),
        ("1", ""),
        ("-", ""),
        ("a\x1b", ""),
        ("x" * 300, ""),
    ],
)
def test_a_value_that_is_not_json_is_explained(value: str, hint: str) -> None:
    found = hint_at_value(value)
    assert found.endswith(hint)
    assert bool(found) == bool(hint)


@pytest_twisted.ensureDeferred
async def test_the_error_of_a_bare_word_has_the_hint(project: str) -> None:
    error = await error_of("set", project, "hello")
    assert error.startswith("400 invalid_data: ")
    assert error.endswith("""A JSON string has quotation marks: '"hello"'.""")


@pytest.mark.parametrize(
    ("words", "hint"),
    [
        (["gte", "http://h"], "Did you mean get?"),
        (["rules", "chek", "x"], "Did you mean check?"),
        (["get", "http://h", "--shalow"], "Did you mean --shallow?"),
        (["rules", "put", "http://h", "--dryrun"], "Did you mean --dry-run?"),
    ],
)
def test_a_mistyped_name_is_recognised(words: list[str], hint: str) -> None:
    done = run_command(*words)
    assert done.status == 2
    assert done.errors.rstrip().endswith(hint)


def test_an_interrupted_command_leaves_no_unfinished_file(tmp_path: pathlib.Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        url = f"http://127.0.0.1:{listener.getsockname()[1]}/a"
        words = [*COMMAND, "get", url, "-o", str(tmp_path / "out")]
        with subprocess.Popen(words, stderr=subprocess.PIPE) as running:
            accepted, _ = listener.accept()
            assert [each.name.startswith(".out.") for each in tmp_path.iterdir()] == [True]
            running.send_signal(signal.SIGINT)
            assert running.wait(30) == 130
            accepted.close()
    assert not list(tmp_path.iterdir())
