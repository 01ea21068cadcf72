"""`treedb ls`, `treedb tree` and `treedb cp`, with a real daemon."""

from __future__ import annotations

import json
import pathlib
import subprocess
import sys
from typing import BinaryIO

import pytest
import pytest_twisted

from tests.command import COMMAND, environment, error_of, mint, output_of, treedb
from tests.daemon import Daemon

PEOPLE = '{"ada":{"age":36,"name":"Ada","tags":{"x":1}},"n":1,"ok":true,"s":"text"}'


@pytest.fixture
def host(request: pytest.FixtureRequest) -> str:
    """The host of a project that no other test uses."""
    return f"{request.node.name.replace('_', '-')[-60:].strip('-')}.localhost"


@pytest.fixture
def project(shared_daemon: Daemon, host: str) -> str:
    """The URL of the project."""
    return shared_daemon.http.replace("127.0.0.1", host)


@pytest_twisted.ensureDeferred
async def test_the_keys_of_children_are_listed(project: str) -> None:
    await output_of("set", f"{project}/p", PEOPLE)
    assert (await output_of("ls", f"{project}/p")).split() == ["ada", "n", "ok", "s"]
    lines = (await output_of("ls", "-l", f"{project}/p.json")).splitlines()
    assert [line.split() for line in lines] == [
        ["object", "38", "ada"],
        ["number", "1", "n"],
        ["boolean", "4", "ok"],
        ["string", "6", "s"],
    ]
    (first, *_) = (await output_of("ls", "--json", f"{project}/p")).splitlines()
    assert json.loads(first) == {"key": "ada", "kind": "object", "size": 38}


def test_names_are_utf_8_whatever_the_locale_is(project: str) -> None:
    subprocess.run([*COMMAND, "set", f"{project}/p", '{"ä├":{"ö":1}}'], check=True)
    ascii_only = {"LC_ALL": "C", "PYTHONCOERCECLOCALE": "0", "PYTHONUTF8": "0"}
    for name, shown in (("ls", "ä├\n"), ("tree", "p (1 child)\n└── ä├ (1 child, 8 bytes)\n")):
        words = [*COMMAND, name, f"{project}/p"]
        done = subprocess.run(
            words, capture_output=True, env={**environment(), **ascii_only}, check=True
        )
        assert done.stdout.decode().startswith(shown), done


@pytest_twisted.ensureDeferred
async def test_a_path_without_children_cannot_be_listed(project: str) -> None:
    await output_of("set", f"{project}/a", '""')
    assert "is a string, without children." in await error_of("ls", f"{project}/a")
    assert await error_of("ls", f"{project}/b") == f"There is nothing at {project}/b."
    assert await error_of("tree", f"{project}/b") == f"There is nothing at {project}/b."
    assert await output_of("tree", f"{project}/a") == 'a: ""'


@pytest_twisted.ensureDeferred
async def test_any_number_of_children_is_listed_in_pages(project: str) -> None:
    keys = [f"k {number:04}" for number in range(2500)]
    await treedb("set", project, json.dumps(dict.fromkeys(keys, 1)), "--silent")
    assert (await output_of("ls", project)).splitlines() == keys
    assert len((await output_of("ls", "-l", project)).splitlines()) == 2500
    tree = (await output_of("tree", project, "--children", "3")).splitlines()
    assert tree == [
        "/ (2,500 children)",
        *(f"├── {key}: 1" for key in keys[:3]),
        "└── … 2,497 more",
    ]


@pytest_twisted.ensureDeferred
async def test_a_page_may_end_with_a_key_in_quotation_marks(
    project: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("treedbd.cli.data.PAGE_CHILDREN", 1)
    keys = ['"', '"z"', "a"]
    await output_of("set", project, json.dumps(dict.fromkeys(keys, 1)))
    assert (await output_of("ls", project)).splitlines() == keys


@pytest_twisted.ensureDeferred
async def test_a_page_of_large_values_is_read_in_smaller_ones(project: str) -> None:
    for key in "abcd":
        value = json.dumps("x" * 6_000_000).encode()
        await treedb("set", f"{project}/{key}", "-", "--silent", stdin=value)
    lines = (await output_of("ls", "-l", project)).splitlines()
    assert [line.split() for line in lines] == [["string", "6000002", key] for key in "abcd"]


@pytest_twisted.ensureDeferred
async def test_a_tree_is_shown_down_to_a_depth(project: str) -> None:
    await output_of("set", f"{project}/p", PEOPLE)
    assert (await output_of("tree", f"{project}/p")).splitlines() == [
        "p (4 children)",
        "├── ada (3 children, 38 bytes)",
        "│   ├── age: 36",
        '│   ├── name: "Ada"',
        "│   └── tags (7 bytes)",
        "├── n: 1",
        "├── ok: true",
        '└── s: "text"',
    ]
    lines = (
        await output_of("tree", f"{project}/p", "--depth", "1", "--children", "2")
    ).splitlines()
    assert lines[1:] == ["├── ada (38 bytes)", "├── n: 1", "└── … 2 more"]
    found = json.loads(await output_of("tree", f"{project}/p", "--json", "--children", "1"))
    assert (found["key"], found["kind"], found["count"]) == ("p", "object", 4)
    (ada,) = found["children"]
    assert (ada["key"], ada["size"], ada["count"]) == ("ada", 38, 3)
    assert ada["children"] == [{"key": "age", "kind": "number", "size": 2, "value": 36}]


@pytest_twisted.ensureDeferred
async def test_colours_are_shown_on_a_terminal_only(
    project: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    await output_of("set", project, '{"a":{"b":"\\u001b[2J"}}')
    assert "\x1b" not in await output_of("tree", project)
    monkeypatch.setattr("treedbd.cli.exit.sys", _Terminal())
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv("TERM", "xterm")
    assert "\x1b[1;34ma\x1b[0m" in await output_of("tree", project)
    monkeypatch.setenv("NO_COLOR", "1")
    assert "\x1b" not in await output_of("tree", project)


class _Terminal:
    """A `sys` whose standard output is a terminal."""

    @property
    def stdout(self) -> _Terminal:
        return self

    @property
    def buffer(self) -> BinaryIO:
        return sys.stdout.buffer

    def isatty(self) -> bool:
        return True


@pytest_twisted.ensureDeferred
async def test_a_value_is_copied_with_its_priorities(project: str) -> None:
    await output_of("set", f"{project}/a", '{"x":{".value":1,".priority":2}}')
    assert (await treedb("cp", f"{project}/a", f"{project}/b/c")).output == b""
    assert await output_of("get", f"{project}/b/c", "--export") == (
        '{"x":{".value":1,".priority":2}}'
    )
    await treedb("cp", f"{project}/a", f"{project}/d", "--no-export")
    assert await output_of("get", f"{project}/d", "--export") == '{"x":1}'


@pytest_twisted.ensureDeferred
async def test_a_copy_into_itself_and_of_nothing_is_refused(
    shared_daemon: Daemon, project: str, host: str
) -> None:
    await output_of("set", f"{project}/a", '{"x":1}')
    label = host.removesuffix(".localhost")
    same = f"{shared_daemon.http}/a/b.json?ns={label}"
    for target in (f"{project}/a", f"{project}//a/.json", f"{project}/%61/c", same):
        assert "cannot be copied into itself" in await error_of("cp", f"{project}/a", target)
    assert "so nothing was copied" in await error_of("cp", f"{project}/none", f"{project}/a")
    assert await output_of("get", f"{project}/a") == '{"x":1}'
    assert (await treedb("cp", f"{project}/a", f"{project}/ab")).status == 0
    other = f"{shared_daemon.http}/a/b?ns=other-{label[:38].strip('-')}"
    assert (await treedb("cp", f"{project}/a", other)).status == 0


@pytest_twisted.ensureDeferred
async def test_a_copy_that_is_too_large_names_the_remedy(project: str) -> None:
    for key in "abc":
        value = json.dumps("x" * 7_000_000).encode()
        await treedb("set", f"{project}/a/{key}", "-", "--silent", stdin=value)
    error = await error_of("cp", f"{project}/a", f"{project}/b")
    assert error.startswith("413 ")
    assert error.endswith("treedb export and import copy values of any size.")
    assert await output_of("get", f"{project}/b") == "null"


@pytest_twisted.ensureDeferred
async def test_a_token_is_sent_to_another_server_only_if_it_is_given_for_it(
    shared_daemon: Daemon, host: str, project: str, tmp_path: pathlib.Path
) -> None:
    admin = mint(shared_daemon, host, "root", "--admin")
    await output_of("set", f"{project}/a", "1", token=admin)
    await output_of("rules", "put", project, '{"rules":{}}', token=admin)
    assert (await treedb("cp", f"{project}/a", f"{project}/b", token=admin)).status == 0
    secure = project.replace(shared_daemon.http[-5:], shared_daemon.https[-5:])
    secure = secure.replace("http:", "https:")
    words = ("cp", secure + "/a", f"{project}/c", "--data", shared_daemon.data)
    assert "permission" in (await error_of(*words, token=admin)).lower()
    file = tmp_path / "token"
    file.write_text(admin)
    assert (await treedb(*words, "--source-token-file", file, token=admin)).status == 0
