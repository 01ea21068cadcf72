"""The dialect of a request that names no client of Firebase but by its entity tags."""

from __future__ import annotations

import json
import pathlib
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final

import pytest

from tests import expected
from tests.daemon import Daemon
from tests.rest import OPEN_RULES, Client, check_error

WANTS_TAG: Final = {"X-Firebase-ETag": "true"}
VALUE: Final = {"x": [1, "é"]}
TAG: Final = expected.entity_tag(VALUE)
BARE: Final = TAG.strip('"')
NOTHING: Final = "null_etag"
MISMATCH: Final = {"error": "condition_failed", "message": "ETag mismatch"}
CLIENTS: Final = 4
ADDITIONS: Final = 15
CONFIG: Final = """
domains = ["db.test"]
[projects.auto]
rules_file = "open.json"
[projects.strict]
rules_file = "open.json"
dialect = "standard"
[projects.closed]
rules_file = "closed.json"
"""
CLOSED: Final = '{"rules": {"open": {".read": true, ".write": true}}}'


@pytest.fixture(scope="module", params=["1", "2"], ids=["one process", "two workers"])
def daemon(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Daemon]:
    folder: pathlib.Path = tmp_path_factory.mktemp("dialects")
    (folder / "open.json").write_text(OPEN_RULES)
    (folder / "closed.json").write_text(CLOSED)
    with Daemon(folder, config=CONFIG, arguments=["--workers", request.param]) as running:
        yield running


@pytest.fixture
def client_of(daemon: Daemon) -> Iterator[Callable[[str], Client]]:
    """What returns a client of a project."""
    opened: list[Client] = []

    def open_client(project: str) -> Client:
        opened.append(Client(daemon, f"{project}.db.test"))
        return opened[-1]

    yield open_client
    for each in opened:
        each.close()


@pytest.fixture
def client(client_of: Callable[[str], Client]) -> Client:
    return client_of("auto")


# A client that reads with `X-Firebase-ETag`, and writes with `if-match` alone.


def test_a_lost_race_shows_the_value_and_its_tag(client: Client) -> None:
    client.put("/race.json", None)
    read = client.request("GET", "/race.json", headers=WANTS_TAG)
    assert (read.status, read.body, read.headers["ETag"]) == (200, b"null", NOTHING)
    client.put("/race.json", VALUE)
    lost = client.request("PUT", "/race.json", "1", {"if-match": read.headers["ETag"]})
    assert (lost.status, lost.json, lost.headers["ETag"]) == (412, VALUE, BARE)
    won = client.request("PUT", "/race.json", "2", {"if-match": lost.headers["ETag"]})
    assert (won.status, won.body) == (200, b"2")
    assert won.headers["ETag"] == expected.entity_tag(2).strip('"')
    gone = client.request("DELETE", "/race.json", headers={"if-match": won.headers["ETag"]})
    assert (gone.status, gone.body, gone.headers["ETag"]) == (200, b"null", NOTHING)


def add_one(client: Client, seen: list[Any]) -> None:
    """Add to a counter as clients of this kind do; note what they take for the value."""
    read = client.request("GET", "/counter.json", headers=WANTS_TAG)
    assert read.status == 200
    value, tag = read.json, read.headers["ETag"]
    while True:
        seen.append(value)
        new = json.dumps({"n": (value or {"n": 0})["n"] + 1})
        answer = client.request("PUT", "/counter.json", new, {"if-match": tag})
        if answer.status == 200:
            return
        assert answer.status == 412
        value, tag = answer.json, answer.headers["ETag"]


def test_no_client_takes_an_error_for_the_value(daemon: Daemon, client: Client) -> None:
    client.put("/counter.json", None)

    def work(_: int) -> list[Any]:
        seen: list[Any] = []
        with Client(daemon, "auto.db.test") as own:
            for _ in range(ADDITIONS):
                add_one(own, seen)
        return seen

    with ThreadPoolExecutor(CLIENTS) as threads:
        values = [value for seen in threads.map(work, range(CLIENTS)) for value in seen]
    assert {tuple(value) for value in values if value is not None} == {("n",)}
    assert client.get("/counter.json") == {"n": CLIENTS * ADDITIONS}


@pytest.mark.parametrize(
    ("method", "body"), [("PUT", "2"), ("POST", "2"), ("PATCH", '{"y":2}'), ("DELETE", None)]
)
@pytest.mark.parametrize("query", ["", "?print=silent", "?print=pretty"])
def test_every_method_shows_the_value(
    client: Client, method: str, body: str | None, query: str
) -> None:
    client.put("/a.json", VALUE)
    lost = client.request(method, f"/a.json{query}", body, {"if-match": NOTHING})
    assert (lost.status, lost.json, lost.headers["ETag"]) == (412, VALUE, BARE)
    assert client.get("/a.json") == VALUE
    won = client.request(method, f"/a.json{query}", body, {"if-match": BARE})
    assert won.status in (200, 204)
    assert not won.headers["ETag"].startswith('"')


# Which conditions choose the dialect.


@pytest.mark.parametrize(
    "condition",
    ["another", NOTHING, f'{TAG[:-2]}x", another', 'another, "other"', "W/another", "*a", "a"],
)
def test_a_bare_tag_chooses_the_dialect(client: Client, condition: str) -> None:
    client.put("/a.json", VALUE)
    lost = client.request("PUT", "/a.json", "2", {"If-Match": condition})
    assert (lost.status, lost.json, lost.headers["ETag"]) == (412, VALUE, BARE)


@pytest.mark.parametrize("condition", ['"another"', 'W/"another"', '"null_etag"', "", "a b", '"*"'])
def test_other_conditions_do_not(client: Client, condition: str) -> None:
    client.put("/a.json", VALUE)
    lost = client.request("PUT", "/a.json", "2", {"If-Match": condition})
    assert (lost.status, lost.json) == (412, {**MISMATCH, "data": VALUE})
    assert lost.headers["ETag"] == TAG


def test_a_star_is_not_a_bare_tag(client: Client) -> None:
    client.put("/a.json", None)
    lost = client.request("PUT", "/a.json", "2", {"If-Match": "*"})
    assert (lost.status, lost.json) == (412, {**MISMATCH, "data": None})
    client.put("/a.json", 1)
    won = client.request("PUT", "/a.json", "2", {"If-Match": "*"})
    assert (won.status, won.headers["ETag"]) == (200, expected.entity_tag(2))


@pytest.mark.parametrize("condition", [BARE, f"W/{BARE}", f'"x", {BARE}', f"{BARE},{TAG}"])
def test_a_write_by_a_bare_tag_is_answered_with_one(client: Client, condition: str) -> None:
    client.put("/a.json", VALUE)
    won = client.request("PUT", "/a.json", "2", {"If-Match": condition})
    assert (won.status, won.headers["ETag"]) == (200, expected.entity_tag(2).strip('"'))


def test_lines_of_conditions_are_one_list(client: Client) -> None:
    client.put("/a.json", VALUE)
    lines = [("If-Match", '"x"'), ("if-match", "y")]
    assert client.request("PUT", "/a.json", "2", lines).json == VALUE


def test_a_condition_of_a_read_does_not_choose(client: Client) -> None:
    client.put("/a.json", VALUE)
    for condition in (BARE, TAG):
        read = client.request("GET", "/a.json", headers={"If-None-Match": condition})
        assert (read.status, read.headers["ETag"]) == (304, TAG)
    read = client.request("GET", "/a.json", headers={**WANTS_TAG, "If-None-Match": BARE})
    assert (read.status, read.headers["ETag"]) == (304, BARE)


# All of the dialect.


@pytest.mark.parametrize("chosen", [WANTS_TAG, {"If-Match": "abc"}])
def test_all_answers_are_of_the_dialect(
    client_of: Callable[[str], Client], chosen: dict[str, str]
) -> None:
    closed = client_of("closed")
    denied = closed.request("PUT", "/a.json", "1", chosen)
    assert denied.status == 401
    assert denied.body == b'{\n  "error" : "Permission denied"\n}\n'
    malformed = closed.request("GET", "/open.json?limitToFirst=1", headers=chosen)
    assert (malformed.status, list(malformed.json)) == (400, ["error"])
    assert malformed.body.endswith(b'"\n}\n')
    closed.put("/open.json", {"a": 1})
    pretty = closed.request("GET", "/open.json?print=pretty", headers=chosen)
    assert pretty.body == b'{\n  "a" : 1\n}'


@pytest.mark.parametrize("chosen", [{}, {"X-Firebase-ETag": "false"}, {"X-TreeDB-ETag": "true"}])
def test_without_it_answers_are_standard(
    client_of: Callable[[str], Client], chosen: dict[str, str]
) -> None:
    closed = client_of("closed")
    check_error(closed.request("PUT", "/a.json", "1", chosen), 403, "permission_denied")
    closed.put("/open.json", {"a": 1})
    pretty = closed.request("GET", "/open.json?print=pretty", headers=chosen)
    assert pretty.body == b'{\n  "a": 1\n}'


def test_a_project_of_the_standard_dialect_keeps_it(client_of: Callable[[str], Client]) -> None:
    strict = client_of("strict")
    strict.put("/a.json", VALUE)
    read = strict.request("GET", "/a.json", headers=WANTS_TAG)
    assert read.headers["ETag"] == TAG
    for condition in ("another", NOTHING):
        lost = strict.request("PUT", "/a.json", "2", {**WANTS_TAG, "If-Match": condition})
        assert (lost.status, lost.json) == (412, {**MISMATCH, "data": VALUE})
        assert lost.headers["ETag"] == TAG
    won = strict.request("PUT", "/a.json", "2", {"If-Match": BARE})
    assert (won.status, won.headers["ETag"]) == (200, expected.entity_tag(2))


def test_reads_of_one_connection_are_answered_each_in_its_dialect(client: Client) -> None:
    client.put("/a.json", VALUE)
    for _ in range(3):  # the answer is kept, and the same head is known
        for headers, tag in ((WANTS_TAG, BARE), ({"X-TreeDB-ETag": "true"}, TAG)):
            for _ in range(2):
                assert client.request("GET", "/a.json", headers=headers).headers["ETag"] == tag


def test_a_condition_that_is_sent_again_is_answered_with_the_newest_value(
    daemon: Daemon, client: Client
) -> None:
    with Client(daemon, "auto.db.test") as other:
        for number in range(4):
            other.put("/a.json", number)
            lost = client.request("PUT", "/a.json", "9", {"If-Match": NOTHING})
            assert (lost.status, lost.json) == (412, number)
            assert lost.headers["ETag"] == expected.entity_tag(number).strip('"')
            lost = client.request("PUT", "/a.json", "9", {"If-Match": '"x"'})
            assert (lost.status, lost.json) == (412, {**MISMATCH, "data": number})


@pytest.mark.parametrize("query", ["", "?print=silent", "?print=pretty"])
@pytest.mark.parametrize(
    ("method", "body"), [("PUT", "2"), ("POST", "2"), ("PATCH", '{"y":2}'), ("DELETE", None)]
)
def test_every_method_shows_the_value_in_an_error_of_the_standard(
    client: Client, method: str, body: str | None, query: str
) -> None:
    client.put("/a.json", VALUE)
    lost = client.request(method, f"/a.json{query}", body, {"if-match": '"x"'})
    assert (lost.status, lost.json) == (412, {**MISMATCH, "data": VALUE})
    assert lost.headers["ETag"] == TAG
    assert client.get("/a.json") == VALUE


def test_a_method_that_replaces_another_shows_the_value(client: Client) -> None:
    client.put("/a.json", VALUE)
    for method, body in (("PUT", "2"), ("PATCH", '{"y":2}'), ("DELETE", "")):
        headers = {"If-Match": NOTHING, "X-HTTP-Method-Override": method}
        lost = client.request("POST", "/a.json", body, headers)
        assert (lost.status, lost.json, lost.headers["ETag"]) == (412, VALUE, BARE)


def test_pages_of_other_origins_may_read_the_tag(client: Client) -> None:
    headers = {**WANTS_TAG, "Origin": "https://app.example"}
    read = client.request("GET", "/a.json", headers=headers)
    assert "ETag" in read.headers["Access-Control-Expose-Headers"]
    asked = {"Access-Control-Request-Method": "PUT"}
    asked["Access-Control-Request-Headers"] = "if-match,x-firebase-etag"
    granted = client.request("OPTIONS", "/a.json", headers={**headers, **asked}).headers
    assert granted["Access-Control-Allow-Headers"] == "if-match,x-firebase-etag"
