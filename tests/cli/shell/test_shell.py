"""Scripts of the shell, with a real daemon."""

from __future__ import annotations

import itertools
import json
import pathlib
import socket
import subprocess
import sys

import pytest
import pytest_twisted

from tests.command import CommandResult, mint, output_of, run_command, treedb
from tests.daemon import Daemon
from treedbd.cli import data
from treedbd.cli.options import TOKEN_VARIABLE
from treedbd.cli.parser import make_parser, parse
from treedbd.cli.shell import shell
from treedbd.cli.shell.shell import COMMANDS, make_session, quote, run_line

PEOPLE = {"ada": {"age": 36, "name": "Ada"}, "alan": {"age": 41}, "zoe": "a word"}

_numbers = itertools.count()


@pytest.fixture
def project(shared_daemon: Daemon) -> str:
    """The URL of a project that no other test uses."""
    return shared_daemon.http.replace("127.0.0.1", f"shell{next(_numbers)}.localhost")


@pytest.fixture
def people(shared_daemon: Daemon, project: str) -> str:
    """The URL of people."""
    host = {"Host": project.removeprefix("http://")}
    response = shared_daemon.request("PUT", "/users.json", json.dumps(PEOPLE), host)
    assert response.status == 200
    return f"{project}/users"


async def lines_of(url: str, script: str, token: str = "") -> list[str]:
    """Run a script that succeeds; return the lines of its output."""
    return (await output_of("shell", url, stdin=script.encode(), token=token)).splitlines()


async def failure_of(url: str, script: str) -> str:
    """Run a script that fails; return its error."""
    done = await treedb("shell", url, stdin=script.encode())
    assert done.status == 1
    return done.errors.removeprefix("treedb: ").rstrip("\n")


def test_a_script_is_run_from_standard_input(people: str) -> None:
    script = b'\xef\xbb\xbf# A comment.\n\nset ada/age 37\ncd ada\nset . {"age":\n  38}\nget; pwd\n'
    shown = f'37\n{{"age":38}}\n{{"age":38}}\n/users/ada  {people}/ada'
    assert run_command("shell", people, stdin=script).text == shown


@pytest_twisted.ensureDeferred
async def test_a_script_ends_at_its_first_error(people: str) -> None:
    script = 'set --silent a {\n"x": 1}\n\nset --silent b hello\nset --silent c 1\n'
    error = await failure_of(people, script)
    assert error.startswith("Line 4: 400 invalid_data: ")
    assert error.endswith(""" A JSON string has quotation marks: '"hello"'.""")
    assert await lines_of(people, "get a; cat c") == ['{"x":1}', "null"]
    assert (await failure_of(people, "sett a 1")).endswith("sett. Did you mean set?")
    for word, meant in {"del": "remove", "post": "push", "put": "set", "patch": "update"}.items():
        assert (await failure_of(people, word)).endswith(f"{word}. Did you mean {meant}?")
    assert (await failure_of(people, "qqq")).endswith("qqq. Try help.")
    assert (await failure_of(people, "ls\nset --silent a {")).startswith("Line 2: a bracket")
    assert "400 invalid_query" in await failure_of(people, "cat --limit-to-first x")
    assert "not allowed" in await failure_of(people, "cd a.b")
    assert (await treedb("shell", people, stdin=b"ls \xff")).errors.endswith("not UTF-8.\n")
    assert (await treedb("shell", people, "-c", "ls \udcff")).errors.endswith("not UTF-8.\n")


@pytest_twisted.ensureDeferred
async def test_commands_may_be_an_argument(people: str) -> None:
    done = await treedb("shell", people, "-c", "ls; cat zoe", stdin=b"rm zoe")
    assert done.text.splitlines() == ["ada", "alan", "zoe", '"a word"']
    done = await treedb("shell", people, "-c", "ls\nxyz")
    assert (done.status, done.errors[:16]) == (1, "treedb: Line 2: ")
    assert (await treedb("shell", people, "-c", "exit; nothing")).status == 0


@pytest_twisted.ensureDeferred
async def test_places_are_walked_through(people: str) -> None:
    assert (await lines_of(people, "cd ada; cat age; cd ..; cd alan; cat age")) == ["36", "41"]
    assert await lines_of(people, "cd /; ls; cd -; cd -") == ["users", "/users", "/"]
    assert await lines_of(people, "cd; pwd") == [f"/  {people.removesuffix('users')}"]
    assert "no previous place" in await failure_of(people, "cd -")


@pytest_twisted.ensureDeferred
async def test_children_are_listed(people: str) -> None:
    assert await lines_of(people, "ls") == ["ada", "alan", "zoe"]
    assert await lines_of(people, "ls -l") == [
        *("object            23 ada", "object            10 alan", "string             8 zoe")
    ]
    assert await lines_of(people, "ls ada") == ["age", "name"]
    assert "is a string, without children" in await failure_of(people, "ls -l zoe")
    assert await lines_of(people, "set --silent list [1,2]; ls list") == ["0", "1"]
    assert "There is nothing at" in await failure_of(people, "ls nothing")


@pytest_twisted.ensureDeferred
async def test_many_children_are_listed_in_pages(
    people: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(data, "PAGE_CHILDREN", 2)
    keys = ["1", "a b", "k", "k1", "k2", "z"]
    value = json.dumps(dict.fromkeys(keys, 1))
    assert await lines_of(people, f"set --silent /many {value}; ls /many") == keys
    shown = await lines_of(people, "ls -l /many")
    assert [line[21:] for line in shown] == keys


@pytest_twisted.ensureDeferred
async def test_a_tree_has_a_depth_and_a_width(people: str) -> None:
    assert await lines_of(people, "tree") == [
        "users (3 children)",
        "├── ada (2 children, 23 bytes)",
        "│   ├── age: 36",
        '│   └── name: "Ada"',
        "├── alan (1 child, 10 bytes)",
        "│   └── age: 41",
        '└── zoe: "a word"',
    ]
    assert await lines_of(people, "tree --depth 1 --children 2 /users") == [
        "users (3 children)",
        "├── ada (23 bytes)",
        "├── alan (10 bytes)",
        "└── … 1 more",
    ]
    assert await lines_of(people, "tree zoe") == ['zoe: "a word"']
    assert "There is nothing at" in await failure_of(people, "tree nothing")


@pytest_twisted.ensureDeferred
async def test_a_value_is_shown_in_lines_or_raw(people: str) -> None:
    assert await lines_of(people, "cat alan") == ["{", '  "age": 41', "}"]
    assert await lines_of(people, "get alan") == ['{"age":41}']
    query = "get --order-by age --start-at 40 --limit-to-first 1"
    assert await lines_of(people, query) == ['{"alan":{"age":41}}']
    shallow = "get --shallow"
    assert await lines_of(people, shallow) == ['{"ada":true,"alan":true,"zoe":true}']


@pytest_twisted.ensureDeferred
async def test_values_are_written(people: str) -> None:
    script = """set ada '{"age": 1}'; update --silent ada {"name": "A", "x/y": 2}; get ada"""
    assert await lines_of(people, script) == ['{"age":1}', '{"age":1,"name":"A","x":{"y":2}}']
    (key, shown) = await lines_of(people, 'push /log "hello"; get /log')
    key = json.loads(key)["name"]
    assert json.loads(shown) == {key: "hello"}
    script = f"cd /log; cat {key}; rm --silent {key}; cat"
    assert await lines_of(people, script) == ['"hello"', "null"]
    assert "400 invalid_data" in await failure_of(people, "update ada 5")
    assert await lines_of(people, "set --silent 'two words' 1; cat 'two words'") == ["1"]


@pytest_twisted.ensureDeferred
async def test_more_than_one_value_is_removed_only_if_it_is_meant(people: str) -> None:
    error = await failure_of(people, "rm ada")
    assert error == "Line 1: This removes /users/ada and everything below it: give -f."
    assert "the whole database" in await failure_of(people, "rm -f ada; rm /")
    assert await lines_of(people, "rm zoe; rm --silent nothing; get") == [
        *("null", '{"alan":{"age":41}}')
    ]
    assert await lines_of(people, "rm -f --silent /; cat /") == ["null"]


@pytest_twisted.ensureDeferred
async def test_changes_are_watched(people: str) -> None:
    assert await lines_of(people, "watch -n 1 alan") == ['put\t/\t{"age":41}']
    query = "watch -n 1 --order-by age --limit-to-last 1 --equal-to 41"
    assert await lines_of(people, query) == ['put\t/\t{"alan":{"age":41}}']


@pytest_twisted.ensureDeferred
async def test_another_database_is_used_by_its_name(shared_daemon: Daemon, people: str) -> None:
    label = people.removeprefix("http://").partition(".")[0]
    script = f"use eu--{label}; pwd; cat; set --silent a 1; cd a; use {label}; pwd; ls"
    port = people.removesuffix("/users").rpartition(":")[2]
    assert await lines_of(people, script) == [
        f"/  http://eu--{label}.localhost:{port}/",
        "null",
        f"/  http://{label}.localhost:{port}/",
        "users",
    ]
    root = shared_daemon.http
    assert await lines_of(root, f"use {label}; pwd; ls") == [f"/  {root}/?ns={label}", "users"]
    assert "PROJECT or DATABASE--PROJECT" in await failure_of(people, "use a_b")


@pytest_twisted.ensureDeferred
async def test_an_admin_looks_as_somebody_else(shared_daemon: Daemon, people: str) -> None:
    label = people.removeprefix("http://").partition(".")[0]
    token = mint(shared_daemon, f"{label}.localhost", "me", "--admin")
    script = 'as {"uid": "ada"}; whoami; as null; whoami; cat zoe; as; whoami'
    name = 'admin, uid "me"'
    shown = [line.partition(", until")[0] for line in await lines_of(people, script, token)]
    seen = 'rules see auth = {"uid": "ada"}'
    assert shown == [name, seen, name, "rules see auth = null", '"a word"', name]
    assert "requires an admin's token" in await failure_of(people, 'as {"uid": "ada"}; ls')
    assert "as needs an object" in await failure_of(people, "as 5")
    assert await lines_of(people, "whoami") == ["anonymous (no token)"]


@pytest_twisted.ensureDeferred
async def test_help_names_every_command(people: str) -> None:
    names = [line.split()[0] for line in await lines_of(people, "help")]
    assert {"cd", "ls", "cat", "set", "watch", "use", "as", "exit"} <= set(names)
    (usage, *more) = await lines_of(people, "help cat")
    assert usage == "cat [OPTIONS] [PATH]"
    assert "--order-by" in more[-1]
    assert "Did you mean cat?" in await failure_of(people, "help caat")


@pytest_twisted.ensureDeferred
async def test_without_a_url_the_variable_says_where(
    people: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TREEDB_URL", people)
    assert await output_of("shell", "-c", "cat zoe") == '"a word"'
    assert await output_of("shell", stdin=b"cat zoe") == '"a word"'
    monkeypatch.setenv("TREEDB_URL", "nowhere")
    done = await treedb("shell", "-c", "ls")
    assert (done.status, done.errors[:31]) == (1, "treedb: The variable TREEDB_URL")


@pytest_twisted.ensureDeferred
async def test_a_path_alone_is_one_below_the_variable(
    people: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    root, _, path = people.rpartition("/")
    monkeypatch.setenv("TREEDB_URL", root)
    assert await output_of("shell", path, "-c", "cat zoe") == '"a word"'
    assert await output_of("shell", "-c", f"cat {path}/zoe", "/") == '"a word"'
    done = await treedb("shell", f"{path}?print=pretty", "-c", "pwd")
    assert (done.status, done.errors[:34]) == (1, "treedb: The URL must have no other")


@pytest_twisted.ensureDeferred
async def test_a_wrong_command_line_ends_with_2() -> None:
    for words in (["http://h/a?print=pretty"], ["http://h/a%2Eb"], ["h"], ["http://h", "--x"]):
        assert (await treedb("shell", *words)).status == 2


@pytest_twisted.ensureDeferred
async def test_tls_and_a_missing_server_are_as_with_other_commands(shared_daemon: Daemon) -> None:
    url = shared_daemon.https.replace("127.0.0.1", "localhost")
    done = await treedb("shell", url, "--data", shared_daemon.data, "-c", "cat nothing")
    assert done.text == "null"
    assert (await failure_of("http://localhost:1", "ls")) == (
        "Line 1: No server listens at http://localhost:1."
    )


def test_tab_reads_the_keys_of_the_database_in_use(people: str) -> None:
    session, keys = make_session(parse(["shell", people]))
    assert keys.find(session.place, "a") == ["ada", "alan"]
    assert keys.find((*session.place, "zoe"), "") == []
    run_line(session, "set --silent abe 1")
    assert keys.find(session.place, "a") == ["abe", "ada", "alan"]
    run_line(session, "use another")
    assert keys.find(("users",), "") == []


def test_tab_does_not_wait_for_a_silent_server(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shell, "FETCH_S", 0.1)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        words = ["shell", f"http://127.0.0.1:{silent.getsockname()[1]}/users"]
        _, keys = make_session(parse(words))
        assert keys.find((), "a") == []


def test_only_the_prompt_loads_prompt_toolkit(people: str) -> None:
    program = (
        "import sys; from treedbd.cli.main import main; "
        "status = main(sys.argv[1:]); print('prompt_toolkit' in sys.modules)"
    )
    for words in (["get", people], ["shell", people, "-c", "cat"]):
        done = subprocess.run(
            [sys.executable, "-c", program, *words], capture_output=True, text=True, check=True
        )
        assert done.stdout.splitlines()[-1] == "False"


def test_the_result_of_a_script_is_a_process_s(people: str) -> None:
    done = run_command("shell", people, stdin=b"cat zoe\nxyz\ncat zoe\n")
    expected = b'"a word"\n', "treedb: Line 2: There is no command xyz. Try help.\n"
    assert done == CommandResult(1, *expected)


def test_the_prompt_names_the_project_of_the_server(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = "default_project = 'shop'\nemulator = true\n[projects.shop]\n"
    with Daemon(tmp_path, config=config) as daemon:
        arguments = parse(["shell", daemon.http])
        session, _ = make_session(arguments)
        for token, label in (("", ""), ("owner", "shop")):
            monkeypatch.setenv(TOKEN_VARIABLE, token)
            assert shell._find_label(arguments, session) == label
        assert session.label == daemon.http.removeprefix("http://")
    assert shell._find_label(arguments, session) == ""


OF_CONNECTIONS = {"-h", "--help", "--project", "--token-file", "--cacert", "--config", "--data"}
SHARED: tuple[tuple[str, list[str], list[str], list[str]], ...] = (
    ("get", [], ["ada"], []),
    ("get", ["--pretty"], ["ada"], []),
    ("get", ["--json"], ["ada"], []),
    ("get", ["--order-by", "age", "--limit-to-first", "1"], [""], []),
    ("ls", [], [""], []),
    ("ls", ["-l"], ["ada"], []),
    ("ls", ["--json"], [""], []),
    ("tree", [], [""], []),
    ("tree", ["--depth", "1", "--json"], ["ada"], []),
    ("set", [], ["ada/age"], ["37"]),
    ("set", ["--silent"], ["ada/age"], ["37"]),
    ("update", [], ["ada"], ['{"age": 37}']),
    ("push", ["--silent"], ["log"], ["1"]),
    ("remove", [], ["zoe"], []),
    ("cp", [], ["ada", "eve"], []),
    ("mv", [], ["ada", "eve"], []),
    ("transaction", ["--json"], ["ada/age"], [". + 1"]),
    ("watch", ["-n", "1"], ["alan"], []),
    ("watch", ["-n", "1", "--json"], ["alan"], []),
)


@pytest.mark.parametrize("name", sorted({row[0] for row in SHARED}))
def test_a_command_has_the_options_that_it_has_as_a_program(name: str) -> None:
    (choices,) = (each.choices for each in make_parser()._actions if each.choices)
    program = dict(choices)[name]
    program.load()
    assert COMMANDS[name].parser.known.keys() == program._option_string_actions.keys() - (
        OF_CONNECTIONS
    )


@pytest.mark.parametrize(("name", "options", "paths", "rest"), SHARED)
def test_a_command_prints_what_it_prints_as_a_program(
    shared_daemon: Daemon,
    people: str,
    name: str,
    options: list[str],
    paths: list[str],
    rest: list[str],
) -> None:
    words = [*options, *(f"./{path}" for path in paths)]
    value = [quote(each) if name == "transaction" else each for each in rest]
    line = " ".join([name, *words, *value])
    in_shell = run_command("shell", people, "-c", line)
    host = {"Host": people.removeprefix("http://").removesuffix("/users")}
    shared_daemon.request("PUT", "/users.json", json.dumps(PEOPLE), host)
    program = run_command(name, *options, *(f"{people}/{path}" for path in paths), *rest)
    assert in_shell == program == CommandResult(0, program.output, "")
