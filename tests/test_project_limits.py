"""Quotas, rates and the creation of databases, as the configuration of a project says."""

from __future__ import annotations

import json
import pathlib
from collections.abc import Iterator

import pytest

from tests.access import DOMAIN, Tree, at, user, write_secret
from tests.daemon import Daemon, Response
from tests.rest import check_error, check_refused
from tests.sse import EventStream

CONFIG = f"""
domains = ["{DOMAIN}"]
[projects.shop]
databases = "*"
create_databases = "admin"
rules_file = "rules.json"
secret_files = ["shop.secret"]
dialect = "standard"
[projects.open]
databases = "*"
rules_file = "rules.json"
secret_files = ["open.secret"]
dialect = "standard"
[projects.small]
database_bytes = 500
database_nodes = 20
rules_file = "rules.json"
secret_files = ["small.secret"]
[projects.slow]
rates = {{ requests_per_uid = 1 }}
rules_file = "rules.json"
secret_files = ["slow.secret"]
dialect = "standard"
"""
RULES = {"rules": {"a": {".read": True, ".write": "auth != null && auth.uid != 'mallory'"}}}


@pytest.fixture(scope="module")
def daemon(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    folder = tmp_path_factory.mktemp("daemon")
    (folder / "rules.json").write_text(json.dumps(RULES))
    for project in ("shop", "open", "small", "slow"):
        write_secret(folder, project)
    with Daemon(folder, config=CONFIG) as running:
        yield running


def file_of(daemon: Daemon, project: str, database: str) -> pathlib.Path:
    return daemon.data / project / f"{database}.shelf"


def put(tree: Tree, token: str = "", body: str = "1") -> Response:
    return tree.request("PUT", at("/a.json", token), body)


@pytest.mark.parametrize("method", ["PUT", "PATCH", "POST"])
def test_a_write_that_the_rules_deny_creates_no_database(daemon: Daemon, method: str) -> None:
    for project in ("open", "shop"):
        with Tree(daemon, project, "denied") as tree:
            for token in ("", user(project, "mallory")):
                response = tree.request(method, at("/a.json", token), '{"b":1}')
                check_error(response, 403, "permission_denied")
            assert not file_of(daemon, project, "denied").exists()


def test_a_write_that_the_rules_allow_creates_a_database(daemon: Daemon) -> None:
    with Tree(daemon, "open", "new") as tree:
        assert put(tree, user("open", "ada")).status == 200
        assert file_of(daemon, "open", "new").is_file()


def test_reads_and_streams_create_no_database(daemon: Daemon) -> None:
    for project in ("open", "shop"):
        with Tree(daemon, project, "read") as tree:
            assert tree.request("GET", "/a.json").body == b"null"
            with EventStream(tree, "/a.json") as stream:
                assert stream.status == 200
            assert not file_of(daemon, project, "read").exists()


@pytest.mark.parametrize("size", [1, 2_000_000])
def test_only_an_admin_creates_a_database_where_the_project_says_so(
    daemon: Daemon, size: int
) -> None:
    with Tree(daemon, "shop", f"d{size}") as tree:
        file, ada, body = file_of(daemon, "shop", f"d{size}"), user("shop", "ada"), "x" * size
        for method, sent in (("PUT", f'"{body}"'), ("POST", f'"{body}"'), ("DELETE", None)):
            message = check_error(tree.request(method, at("/a.json", ada), sent), 404, "not_found")
            assert message == f"The project shop has no database d{size}."
        assert not file.exists()
        assert put(tree, tree.admin).status == 200
        assert file.is_file()
        assert put(tree, ada).status == 200
        assert put(tree).status == 403


def test_a_write_beyond_a_quota_is_507_in_both_dialects(daemon: Daemon) -> None:
    with Tree(daemon, "small") as tree:
        ada = user("small", "ada")
        assert put(tree, ada, json.dumps(dict.fromkeys("abcdefghij", 1))).status == 200
        message = check_error(put(tree, ada, json.dumps("x" * 500)), 507, "quota_exceeded")
        assert "The database small may hold 500 bytes (database_bytes)" in message
        assert "Remove data first" in message
        check_error(put(tree, tree.admin, json.dumps([1] * 21)), 507, "quota_exceeded")
        assert tree.get("/a/b.json") == 1
        assert tree.request("DELETE", at("/a/b.json", ada)).status == 200
        refused = tree.request(
            "PUT", "/a.json", json.dumps("x" * 500), {"Authorization": f"Bearer {ada}"}
        )
        check_refused(refused, 507)
        assert refused.body.startswith(b'{\n  "error" : "The database small may hold')


def test_a_large_write_beyond_a_quota_is_507(daemon: Daemon) -> None:
    with Tree(daemon, "small") as tree:
        body = json.dumps({f"k{number}": "x" * 100 for number in range(20_000)})
        check_error(put(tree, tree.admin, body), 507, "quota_exceeded")


def test_a_project_has_rates_of_its_own(daemon: Daemon) -> None:
    with Tree(daemon, "slow") as tree:
        ada = user("slow", "ada")
        statuses = [tree.status("GET", at("/a.json", ada)) for _ in range(30)]
        assert statuses[:10] == [200] * 10  # ten seconds' worth
        assert 429 in statuses
        refused = tree.request("GET", at("/a.json", ada))
        assert check_error(refused, 429, "too_many_requests").startswith("Too many requests of")
        assert int(refused.headers["Retry-After"]) >= 1
        assert tree.status("GET", "/a.json") == 200
    with Tree(daemon, "open") as tree:
        ada = user("open", "ada")
        assert {tree.status("GET", at("/a.json", ada)) for _ in range(30)} == {200}
