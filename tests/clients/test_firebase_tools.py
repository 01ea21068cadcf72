"""The command line tool of Firebase, as published on npm.

Normally services of Firebase give it the account, the database of a project and its URL. Here these
are in environment variables, which the lines of `docs/clients.md` set. No request leaves this
machine, and the requests for data are the tool's own.

The tool takes longer to start than for ten commands. So most commands of a test run in one process,
one after the other; those that show an end of the process run in one of their own.
"""

from __future__ import annotations

import json
import pathlib
import re
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import attrs
import pytest

from tests.clients.harness import (
    DOMAIN,
    HERE,
    RULES,
    Domain,
    converse_with_node,
    run_client,
    run_node,
    sign_token,
)
from tests.daemon import Daemon
from tests.rest import Client
from tests.sse import EventStream

DOCUMENTATION = HERE.parents[1] / "docs/clients.md"
PREPARATION = re.compile(r"^    umask 077\n(?:    .*\n)+", re.MULTILINE)
PROGRAM = HERE / "node_modules/firebase-tools/lib/bin/firebase.js"
PEOPLE = {
    "ada": {"age": 36, "tags": ["x", "y"]},
    "alan": {"age": 41, "name": "čaj"},
    "grace": {"age": 85},
}


@attrs.frozen
class Tool:
    """The tool in a folder of its own, for one project of one origin."""

    folder: pathlib.Path
    project: str
    origin: str
    variables: dict[str, str]
    ask: Callable[[Any], Any]
    """Runs a command in the process that all of them share."""

    def run(self, *arguments: str, status: int = 0) -> str:
        """Run a command; return its output."""
        done = self.ask([*arguments, *self._options()])
        assert done["status"] == status, done["printed"]
        printed: str = done["printed"]
        return printed

    def run_apart(self, *arguments: str, status: int = 0) -> str:
        """Run a command in a process of its own, as a user does; return its output."""
        command = [str(PROGRAM), *arguments, *self._options()]
        return run_node(command, self.folder, self.variables, status)

    def _options(self) -> list[str]:
        return ["--project", self.project, "--non-interactive"]

    def get(self, path: str, *options: str) -> Any:
        """Return the parsed output of `database:get`."""
        return json.loads(self.run("database:get", path, *options))

    def write(self, name: str, text: str) -> str:
        """Write a file into the folder; return its name."""
        (self.folder / name).write_text(text)
        return name


def prepare_tool(folder: pathlib.Path, project: str, origin: str, token: str) -> dict[str, str]:
    """Run the shell commands of the documentation; return the variables that the tool needs."""
    found = PREPARATION.search(DOCUMENTATION.read_text())
    assert found is not None
    lines = found[0].splitlines()
    script = "\n".join(["set -eu", *lines, "env -0"])
    given = {"HOME": str(folder), "PROJECT": project, "ORIGIN": origin, "TOKEN": token}
    prepared = run_client(["sh", "-c", script], folder, given)
    exported = dict(line.split("=", 1) for line in prepared.split("\0") if "=" in line)
    names = ["XDG_CONFIG_HOME", "CI", *(name for name in exported if name.startswith("FIREBASE_"))]
    (folder / "firebase.json").write_text('{"database": {"rules": "rules.json"}}')
    return {name: exported[name] for name in names}


@contextmanager
def run_tool(
    folder: pathlib.Path, project: str, origin: str, token: str, variables: dict[str, str]
) -> Iterator[Tool]:
    """Prepare the tool, and run it within a block, with some more variables."""
    given = {**prepare_tool(folder, project, origin, token), **variables}
    with converse_with_node("play_tool.cjs", folder, given) as ask:
        yield Tool(folder, project, origin, given, ask)


@pytest.fixture(scope="module")
def local(development: Daemon, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Tool]:
    """The tool for a project in development mode."""
    origin = f"http://tools.localhost:{development.port}"
    folder, variables = tmp_path_factory.mktemp("local"), {"PLAY_DOMAIN": "localhost"}
    with run_tool(folder, "tools", origin, "owner", variables) as tool:
        yield tool


@pytest.fixture
def remote(domain: Domain, tmp_path: pathlib.Path) -> Iterator[Tool]:
    """The tool for a project of a domain, over TLS."""
    token = sign_token("guarded", admin=True)
    trust = {"NODE_EXTRA_CA_CERTS": str(domain.ca)}
    with run_tool(tmp_path, "guarded", domain.url("guarded"), token, trust) as tool:
        yield tool


def test_the_tool_sets_gets_pushes_and_updates(local: Tool, development: Daemon) -> None:
    local.run_apart(
        "database:set", "/people", local.write("people.json", json.dumps(PEOPLE)), "--force"
    )
    with Client(development, "tools.localhost") as client:
        assert client.get("/people.json") == PEOPLE
    query = ("--order-by", "age", "--start-at", "36", "--end-at", "41", "--limit-to-last", "1")
    printed = local.run("database:get", "/people", *query, "--pretty")
    assert printed == '{\n  "alan" : {\n    "age" : 41,\n    "name" : "čaj"\n  }\n}\n'
    assert local.get("/people", "--shallow") == dict.fromkeys(PEOPLE, True)
    local.run("database:update", "/people", "--data", '{"ada/age": 37, "grace": null}', "--force")
    local.run("database:push", "/people/ada/log", "--data", '{"at": 1}')
    found = local.get("/people", "--export")
    assert list(found) == ["ada", "alan"]
    assert found["ada"]["age"] == 37
    assert list(found["ada"]["log"].values()) == [{"at": 1}]


def test_the_tool_imports_a_file_and_removes_a_large_tree(local: Tool, development: Daemon) -> None:
    large = {
        f"k{number:04}": {"text": "x" * 3000, "list": [number, {"deep": True}], "n": number / 8}
        for number in range(1500)
    }
    file = local.write("large.json", json.dumps(large))
    local.run("database:import", "/imported/here", file, "--force")
    with Client(development, "tools.localhost") as client:
        assert client.get("/imported/here.json") == large
        client.put("/imported/beside.json", 1)
        output = local.run("database:import", "/imported/here", file, "--force", status=2)
        assert "only allowed for an empty location" in output
        local.run("database:remove", "/imported/here", "--force", "--disable-triggers")
        assert client.get("/imported.json") == {"beside": 1}


def test_the_tool_removes_in_pieces_if_the_server_refuses(local: Tool, development: Daemon) -> None:
    with Client(development, "tools.localhost") as client:
        client.put("/pieces/here.json", {f"k{at}": {"a": [at, {"b": "c"}]} for at in range(900)})
        client.put("/pieces/beside.json", 1)
        script = str(HERE / "play_removal.cjs")
        arguments = [script, local.origin, "tools", "/pieces/here"]
        output = run_node(arguments, local.folder, local.variables)
        assert client.get("/pieces.json") == {"beside": 1}
    assert int(output.split()[2]) > 5, output


def test_the_tool_profiles_a_database(local: Tool, development: Daemon) -> None:
    ended = threading.Event()

    def work(client: Client) -> None:
        while not ended.is_set():  # it is not known when the profile begins
            with EventStream(client, '/profiled/here.json?orderBy="age"&limitToLast=9'):
                client.put("/profiled/here/b.json", {"age": 2})
                client.get("/profiled/here.json")

    with Client(development, "tools.localhost") as client:
        working = threading.Thread(target=work, args=(client,))
        working.start()
        try:
            # It closes its standard input, which the other commands share.
            local.run_apart("database:profile", "--duration", "1", "--output", "report.txt")
        finally:
            ended.set()
            working.join()
    report = (local.folder / "report.txt").read_text()
    tables = re.split(r"\n(?=[A-Z][a-z]+ [A-Z])", report)
    paths = {
        table.partition("\n")[0]: {line.split()[1] for line in re.findall("│ /.*", table)}
        for table in tables
    }
    here, below = "/profiled/here", "/profiled/here/b"
    assert paths["Read Speed"] == paths["Unlisten Speed"] == {here}
    assert paths["Write Speed"] == paths["Uploaded Bytes"] == {below}
    assert paths["Broadcast Speed"] == {below}
    assert re.search(r"│ /profiled/here +│ age +│ 1 +│", report.partition("Unindexed")[2])


def test_the_tool_deploys_rules(local: Tool, development: Daemon) -> None:
    local.write("rules.json", RULES.replace("===", "="))
    output = local.run_apart("deploy", "--only", "database", status=1)
    assert re.search(r"Syntax error in database rules:\n\n4:\d+: .", output), output
    with Client(development, "tools.localhost") as client:
        owner = {"Authorization": "Bearer owner"}
        before = client.request("GET", "/.settings/rules.json", headers=owner)
        assert b"users" not in before.body
        local.write("rules.json", RULES)
        local.run("deploy", "--only", "database")
        after = client.request("GET", "/.settings/rules.json", headers=owner)
        assert after.body.decode() == RULES
        client.request("PUT", "/.settings/rules.json", before.body, headers=owner)


def test_the_tool_works_over_tls_with_a_token(remote: Tool, domain: Domain) -> None:
    remote.write("rules.json", RULES)
    remote.run_apart("deploy", "--only", "database")
    remote.run("database:set", "/people", "--data", json.dumps(PEOPLE), "--force")
    assert remote.get("/people/ada", "--order-by-key", "--limit-to-first", "1") == {"age": 36}
    remote.run("database:remove", "/people", "--force")
    admin = {"Authorization": f"Bearer {sign_token('guarded', admin=True)}"}
    with Client(domain, f"guarded.{DOMAIN}", secure=True) as client:
        assert client.request("GET", "/people.json", headers=admin).body == b"null"
