"""A byte order mark at the beginning of a file, or of standard input, is skipped by the commands.

Over HTTP it is an error.
"""

from __future__ import annotations

import gzip
import itertools
import json
import os
import pathlib
import subprocess
from codecs import BOM_UTF8

import pytest

from tests.cli.loading.documents import DOCUMENT, as_json, as_lines, compress
from tests.command import COMMAND, environment, mint, run_command
from tests.daemon import Daemon
from tests.rest import Client, check_error

RULES = '{"rules":{".read":true,".write":true}}'
_numbers = itertools.count()


@pytest.fixture
def host() -> str:
    return f"marks{next(_numbers)}.localhost"


@pytest.fixture
def project(shared_daemon: Daemon, host: str) -> str:
    """The URL of a project that no other test uses."""
    return shared_daemon.http.replace("127.0.0.1", host)


def marked(content: str | bytes, count: int = 1) -> bytes:
    return BOM_UTF8 * count + (content.encode() if isinstance(content, str) else content)


@pytest.mark.parametrize("suffix", ["", ".gz", ".zst"])
@pytest.mark.parametrize("form", [".json", ".ndjson"])
def test_import_skips_it_in_files_of_any_form(
    shared_daemon: Daemon, project: str, tmp_path: pathlib.Path, form: str, suffix: str
) -> None:
    file = tmp_path / f"document{form}{suffix}"
    content = as_json() if form == ".json" else as_lines()
    file.write_bytes(compress(marked(content), suffix))
    assert run_command("import", file, f"{project}/a").status == 0
    done = run_command("get", f"{project}/a", "--export")
    assert json.loads(done.text) == DOCUMENT
    piped = compress(marked(content), suffix)
    words = ("import", "-", f"{project}/b", "--format", form[1:])
    assert run_command(*words, stdin=piped).status == 0
    assert json.loads(run_command("get", f"{project}/b", "--export").text) == DOCUMENT


def test_import_skips_one_only_and_at_the_beginning_only(
    project: str, tmp_path: pathlib.Path
) -> None:
    file = tmp_path / "document.json"
    for content in (marked("1", 2), b" " + marked("1"), b'{"a":' + marked("1") + b"}", marked("")):
        file.write_bytes(content)
        assert run_command("import", file, f"{project}/c").status == 1
    file.write_bytes(b'"' + marked("text") + b'"')
    assert run_command("import", file, f"{project}/c").status == 0
    assert run_command("get", f"{project}/c").text == '"\ufefftext"'


def test_values_from_standard_input_may_begin_with_it(project: str, tmp_path: pathlib.Path) -> None:
    assert run_command("set", f"{project}/a", "-", stdin=marked('{"b":1}')).text == '{"b":1}'
    assert run_command("update", f"{project}/a", "-", stdin=marked('{"c":2}')).text == '{"c":2}'
    assert run_command("push", f"{project}/list", "-", stdin=marked("3")).status == 0
    file = tmp_path / "value.json"
    for content, status in ((marked("7"), 0), (marked("8", 2), 1), (marked(""), 1), (b"9", 0)):
        file.write_bytes(content)
        with file.open("rb") as opened:
            command = [*COMMAND, "set", f"{project}/file", "-"]
            done = subprocess.run(command, stdin=opened, env=environment(), check=False)
        assert done.returncode == status, content
    assert run_command("get", f"{project}/file").text == "9"


def test_a_pipe_that_is_slow_may_begin_with_it(project: str) -> None:
    reading, writing = os.pipe()
    command = [*COMMAND, "set", f"{project}/slow", "-"]
    with subprocess.Popen(command, stdin=reading, env=environment()) as process:
        os.close(reading)
        for byte in marked("[1,2]"):
            os.write(writing, bytes([byte]))
        os.close(writing)
        assert process.wait(60) == 0
    assert run_command("get", f"{project}/slow").text == "[1,2]"


def test_rules_and_their_tests_may_begin_with_it(
    shared_daemon: Daemon, project: str, host: str, tmp_path: pathlib.Path
) -> None:
    rules = tmp_path / "rules.json"
    rules.write_bytes(marked(RULES))
    assert run_command("rules", "check", rules).text == f"{rules}: ok"
    assert run_command("rules", "check", "-", stdin=marked(RULES)).text == "-: ok"
    token = mint(shared_daemon, host, "root", "--admin")
    assert run_command("rules", "put", project, rules, token=token).status == 0
    assert run_command("rules", "put", project, "-", token=token, stdin=marked(RULES)).status == 0
    assert run_command("rules", "get", project, token=token).text == RULES
    case = {"as": None, "read": "/a", "allowed": True}
    suite = tmp_path / "suite.json"
    suite.write_bytes(marked(json.dumps({"rules": "rules.json", "cases": [case]})))
    assert run_command("rules", "test", suite).status == 0
    suite.write_bytes(marked(json.dumps({"rules": json.loads(RULES), "cases": [case]})))
    assert run_command("rules", "test", suite).status == 0


def test_the_place_of_an_error_does_not_count_it(tmp_path: pathlib.Path) -> None:
    rules = tmp_path / "rules.json"
    rules.write_bytes(marked('{"rules":{".read":"nobody"}}'))
    done = run_command("rules", "check", rules)
    assert (done.status, done.errors.splitlines()[1].strip()) == (1, '{"rules":{".read":"nobody"}}')
    assert done.errors.startswith(f"treedb: {rules}:1:20: Unknown variable 'nobody'.\n")


def test_a_daemon_reads_rules_that_begin_with_it(tmp_path: pathlib.Path) -> None:
    (tmp_path / "rules.json").write_bytes(marked(RULES))
    config = 'default_project = "shop"\n[projects.shop]\nrules_file = "rules.json"\n'
    with Daemon(tmp_path, config=config) as daemon, Client(daemon) as client:
        client.put("/a.json", 1)
        assert client.get("/a.json") == 1


def test_claims_from_standard_input_may_begin_with_it(
    shared_daemon: Daemon, host: str, project: str
) -> None:
    name = host.removesuffix(".localhost")
    words = ("token", "--project", name, "--uid", "ada", "--data", shared_daemon.data)
    assert run_command(*words, "--claims", "-", stdin=marked('{"role":"chief"}')).status == 0


@pytest.mark.parametrize("method", ["PUT", "POST", "PATCH"])
@pytest.mark.parametrize("coding", [None, "gzip"])
def test_over_http_it_is_an_error(tree: Client, method: str, coding: str | None) -> None:
    body = marked('{"a":1}')
    headers = {} if coding is None else {"Content-Encoding": coding}
    sent = body if coding is None else gzip.compress(body)
    check_error(tree.request(method, "/a.json", sent, headers), 400, "invalid_data")
    large = marked(json.dumps({"a": "x" * 1_500_000}))
    check_error(tree.request(method, "/a.json", large), 400, "invalid_data")
    assert tree.get("/.json") is None


def test_rules_over_http_may_not_begin_with_it(shared_daemon: Daemon, host: str) -> None:
    token = mint(shared_daemon, host, "root", "--admin")
    with Client(shared_daemon, host) as client:
        target = f"/.settings/rules.json?auth={token}"
        response = client.request("PUT", target, marked(RULES))
        assert "byte order mark" in check_error(response, 400, "invalid_data")
