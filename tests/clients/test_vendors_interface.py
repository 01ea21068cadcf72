"""What the vendor's clients send and match byte for byte, one thing at a time, over the wire."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator
from typing import Any

import pytest

from tests.clients.stage import DOMAIN, RULES, Domain, sign_token
from tests.daemon import Daemon
from tests.rest import Answer, Client, check_error

OWNER = {"Authorization": "Bearer owner"}
RULES_PLACE = "/.settings/rules.json"
DENIED = b'{\n  "error" : "Permission denied"\n}\n'
CANONICAL = {
    *("Date", "Content-Type", "Content-Length", "Cache-Control", "ETag", "Vary"),
    *("X-Content-Type-Options", "Access-Control-Allow-Origin", "Access-Control-Expose-Headers"),
}

_projects = (f"vendor{number}" for number in itertools.count())


@pytest.fixture
def ns() -> str:
    """The name of a project that no other test uses."""
    return next(_projects)


@pytest.fixture
def local(development: Daemon) -> Iterator[Client]:
    """A client in development mode that says by `ns` whom it wants."""
    with Client(development, "127.0.0.1") as client:
        yield client


@pytest.fixture
def members(domain: Domain) -> Iterator[Client]:
    """A client over TLS of a project with rules, whose dialect is found out by the request."""
    with Client(domain, f"members.{DOMAIN}", secure=True) as client:
        yield client


@pytest.fixture
def devices(domain: Domain) -> Iterator[Client]:
    """A client over TLS of a project of the vendor's dialect that denies everything."""
    with Client(domain, f"devices.{DOMAIN}", secure=True) as client:
        yield client


def bearer(project: str, **claims: Any) -> dict[str, str]:
    return {"Authorization": f"Bearer {sign_token(project, **claims)}"}


def test_a_project_that_never_was_is_named_by_ns(local: Client, ns: str) -> None:
    assert local.ask("PUT", f"/a.json?ns={ns}", "1").body == b"1"
    assert local.ask("PUT", f"/a.json?ns=eu--{ns}", "2").body == b"2"
    assert local.get(f"/a.json?ns=default--{ns}") == 1
    assert local.get("/a.json?ns=other") is None
    by_host = Client(local.daemon, f"eu--{ns}.localhost")
    assert by_host.get("/a.json") == by_host.get(f"/a.json?ns=eu--{ns}") == 2
    assert by_host.ask("GET", f"/a.json?ns={ns}").status == 400
    by_host.close()


@pytest.mark.parametrize(
    "query",
    ["limitToFirst=1", "print=pretty&print=pretty", "x=%zz", 'orderBy="a"&equalTo=1&startAt=1'],
)
def test_an_error_is_told_in_the_dialect_of_the_request(local: Client, ns: str, query: str) -> None:
    plain = local.ask("GET", f"/a.json?{query}")
    message = check_error(plain, 400, "invalid_query")
    expected = b'{\n  "error" : %b\n}\n' % json.dumps(message).encode()
    for answer in (
        local.ask("GET", f"/a.json?ns={ns}&{query}"),
        local.ask("GET", f"/a.json?{query}&ns={ns}"),
        local.ask("GET", f"/a.json?{query}", headers=OWNER),
    ):
        assert (answer.status, answer.body) == (400, expected)


def test_a_project_of_the_vendors_dialect_needs_no_sign(devices: Client) -> None:
    for query in ("", "?x=1"):
        answer = devices.ask("GET", f"/a.json{query}")
        assert (answer.status, answer.body) == (401, DENIED)
    answer = devices.ask("GET", "/a.json?auth=x&auth=y")
    assert answer.status == 400
    assert answer.body.startswith(b'{\n  "error" : "')
    answer = devices.ask("GET", "/a")
    assert answer.status == 404
    assert answer.body.startswith(b'{\n  "error" : "')


def test_a_denial_has_the_status_of_its_dialect(members: Client) -> None:
    check_error(members.ask("GET", "/users/ada.json"), 403, "permission_denied")
    token = sign_token("members", uid="alan")
    check_error(members.ask("PUT", f"/users/ada.json?auth={token}", "1"), 403, "permission_denied")
    for answer in (
        members.ask("GET", "/users/ada.json?ns=members"),
        members.ask("GET", "/users/ada.json", headers=bearer("members", uid="alan")),
        members.ask("PUT", f"/users/ada.json?ns=members&access_token={token}", "1"),
        members.ask("GET", "/users/ada.json?ns=members", headers={"Accept": "text/event-stream"}),
    ):
        assert (answer.status, answer.body) == (401, DENIED)


def test_a_mismatch_is_answered_with_the_value_itself(local: Client, ns: str) -> None:
    place = f"/a.json?ns={ns}"
    local.put(place, {"b": [1]})
    answer = local.ask("PUT", place, "2", {"If-Match": '"no"'})
    tag = local.ask("GET", place, headers={"X-Firebase-ETag": "true"}).headers["ETag"]
    assert (answer.status, answer.body, answer.headers["ETag"]) == (412, b'{"b":[1]}', tag)
    local.ask("DELETE", place)
    answer = local.ask("PUT", place, "2", {"If-Match": tag})
    assert (answer.status, answer.body, answer.headers["ETag"]) == (412, b"null", "null_etag")


def test_nothing_has_the_vendors_tag(local: Client, ns: str) -> None:
    place, wish = f"/a.json?ns={ns}", {"X-Firebase-ETag": "true"}
    answer = local.ask("GET", place, headers=wish)
    assert (answer.status, answer.body, answer.headers["ETag"]) == (200, b"null", "null_etag")
    answer = local.ask("GET", place, headers={"If-None-Match": "null_etag"})
    assert (answer.status, answer.headers["ETag"]) == (304, "null_etag")
    answer = local.ask("PUT", place, "1", {"If-Match": "null_etag"})
    assert answer.status == 200
    assert answer.headers["ETag"] != "null_etag"
    answer = local.ask("DELETE", place, headers=wish)
    assert (answer.body, answer.headers["ETag"]) == (b"null", "null_etag")
    standard = local.ask("GET", "/nothing.json", headers=wish)
    assert len(standard.headers["ETag"]) == 66


def test_pretty_print_is_the_vendors(local: Client, ns: str) -> None:
    local.put(f"/a.json?ns={ns}", {"b": {"c": 1}, "d": "e"})
    expected = b'{\n  "b" : {\n    "c" : 1\n  },\n  "d" : "e"\n}'
    assert local.ask("GET", f"/a.json?ns={ns}&print=pretty").body == expected
    answer = local.ask("PATCH", f"/a.json?ns={ns}&print=pretty", '{"f":2}')
    assert answer.body == b'{\n  "f" : 2\n}'


def test_a_silent_answer_has_a_tag_where_one_is_wanted(local: Client, ns: str) -> None:
    place, wish = f"/a.json?ns={ns}", {"X-Firebase-ETag": "true"}
    local.put(place, 5)
    tag = local.ask("GET", place, headers=wish).headers["ETag"]
    for method, body in (("GET", None), ("PUT", "5"), ("PATCH", '{"b":1}')):
        answer = local.ask(method, f"{place}&print=silent", body, wish)
        assert (answer.status, answer.body) == (204, b"")
        assert (answer.headers["ETag"] == tag) is (method != "PATCH")
    assert "ETag" not in local.ask("GET", f"{place}&print=silent").headers


def test_the_owner_of_an_emulator_is_an_admin(local: Client, ns: str) -> None:
    where = f"{RULES_PLACE}?ns={ns}"
    answer = local.ask("GET", where)
    assert (answer.status, answer.body[:14]) == (401, b'{\n  "error" : ')
    assert local.ask("GET", where, headers=OWNER).json == {"rules": {".read": True, ".write": True}}
    local.ask("PUT", where, '{"rules":{}}', OWNER)
    assert local.ask("PUT", f"/a.json?ns={ns}", "1").body == DENIED
    assert local.ask("PUT", f"/a.json?ns={ns}", "1", OWNER).status == 200


def test_elsewhere_the_owner_is_nobody(members: Client) -> None:
    answer = members.ask("GET", "/a.json", headers=OWNER)
    assert answer.status == 401
    assert answer.body not in (DENIED, b"null")


def test_an_admin_is_seen_as_whoever_he_says(members: Client) -> None:
    admin = bearer("members", admin=True)
    as_ada = 'auth_variable_override={"uid":"ada"}'
    assert members.ask("PUT", f"/users/ada.json?{as_ada}", "1", admin).status == 200
    assert members.ask("PUT", f"/users/alan.json?{as_ada}", "1", admin).body == DENIED
    assert members.ask("GET", "/users/ada.json?auth_variable_override=null", None, admin).body == (
        DENIED
    )
    answer = members.ask("GET", f"/users/ada.json?{as_ada}", None, bearer("members", uid="ada"))
    assert answer.status == 401
    answer = members.ask("GET", "/users/ada.json?auth_variable_override=1", None, admin)
    assert answer.status == 400


def test_an_export_keeps_priorities_and_objects(local: Client, ns: str) -> None:
    local.put(f"/a.json?ns={ns}", {".priority": 1, "0": {".value": "x", ".priority": "p"}})
    assert local.get(f"/a.json?ns={ns}") == ["x"]
    exported = local.ask("GET", f"/a.json?format=export&ns={ns}")
    assert exported.json == {".priority": 1, "0": {".value": "x", ".priority": "p"}}
    assert local.ask("GET", f"/a.json?format=strict&ns={ns}").status == 400


def test_rules_are_tried_before_they_are_put(local: Client, ns: str) -> None:
    where = f"{RULES_PLACE}?ns={ns}"
    opened = local.ask("GET", where, headers=OWNER).body
    answer = local.ask("PUT", f"{where}&dryRun=true", RULES, OWNER)
    assert (answer.status, answer.json) == (200, {"status": "ok"})
    assert local.ask("GET", where, headers=OWNER).body == opened
    for query in ("", "&dryRun=true"):
        answer = local.ask("PUT", where + query, '{"rules":\n {".read": "no"}}', OWNER)
        assert answer.status == 400
        assert answer.body.startswith(b'{\n  "error" : "2:13: ')
        assert answer.body.endswith(b'\\n"\n}\n')
    assert local.ask("PUT", f"{where}&dryRun=false", RULES, OWNER).json == {"status": "ok"}
    assert local.ask("GET", where, headers=OWNER).body.decode() == RULES
    strict = local.ask("GET", f"{where}&format=strict", headers=OWNER)
    assert list(strict.json["rules"]) == ["users"]


def test_the_databases_of_a_project_are_listed(local: Client, ns: str) -> None:
    for label in (ns, f"eu--{ns}"):
        local.put(f"/a.json?ns={label}", 1)
    answer = local.ask("GET", f"/.inspect/databases.json?ns={ns}", headers=OWNER)
    assert sorted(entry["name"] for entry in answer.json) == [f"eu--{ns}", ns]
    assert local.ask("GET", f"/.inspect/databases.json?ns={ns}").status == 401


@pytest.mark.parametrize("extra", ["writeSizeLimit=tiny", "disableTriggers=true"])
def test_what_only_the_vendors_service_needs_to_know_is_accepted(
    local: Client, ns: str, extra: str
) -> None:
    place = f"/a.json?ns={ns}&{extra}"
    assert local.ask("PUT", place, '{"b":{"c":1}}').status == 200
    assert local.ask("PATCH", place, '{"b":null,"d":1}').status == 200
    assert local.ask("PATCH", place, "null").status == 200
    assert local.ask("POST", place, "1").status == 200
    assert local.ask("DELETE", place).body == b"null"


def test_a_patch_of_null_removes(local: Client, ns: str) -> None:
    local.put(f"/a/b.json?ns={ns}", {"c": 1})
    assert local.ask("PATCH", f"/a/b.json?ns={ns}", "null").body == b"null"
    answer = local.ask("PATCH", f"/a/b.json?ns={ns}&print=silent", "null")
    assert (answer.status, answer.body) == (204, b"")
    assert local.get(f"/.json?ns={ns}") is None


def test_keys_are_listed_page_by_page(local: Client, ns: str) -> None:
    keys = [*map(str, range(7)), *(f"k{number:02}" for number in range(18))]
    local.put(f"/a.json?ns={ns}", {key: {"x": 1} for key in keys})
    listed: list[str] = []
    query = f"ns={ns}&shallow=true&limitToFirst=4"
    page = local.get(f"/a.json?{query}")
    while page is not None:
        assert set(page.values()) == {True}
        assert len(page) <= 4
        listed += page
        page = local.get(f"/a.json?{query}&startAfter={listed[-1]}&timeout=10000ms")
    assert listed == keys


@pytest.mark.parametrize(
    ("query", "headers"),
    [
        ("", {"X-HTTP-Method-Override": "{method}"}),
        ("&x-http-method-override={method}", {}),
        ("", {"x-http-method-override": "{method}"}),
    ],
)
def test_a_post_may_stand_for_another_method(
    local: Client, ns: str, query: str, headers: dict[str, str]
) -> None:
    def post(method: str, body: str | None) -> Answer:
        fields = {name: text.format(method=method) for name, text in headers.items()}
        return local.ask("POST", f"/a.json?ns={ns}{query.format(method=method)}", body, fields)

    assert post("PUT", '{"b":1}').body == b'{"b":1}'
    assert post("PATCH", '{"c":2}').body == b'{"c":2}'
    assert post("GET", None).body == b'{"b":1,"c":2}'
    assert post("DELETE", None).body == b"null"
    assert local.get(f"/a.json?ns={ns}") is None


def test_a_path_may_end_with_a_slash_before_its_suffix(local: Client, ns: str) -> None:
    local.put(f"/a/b/.json?ns={ns}", 1)
    assert local.get(f"/a/b.json?ns={ns}") == 1
    assert local.get(f"//a//.json?ns={ns}") == {"b": 1}


@pytest.mark.parametrize(
    ("query", "keys"),
    [
        ('orderBy="n"&startAt=2', ["b", "c"]),
        ("orderBy=%22n%22&equalTo=1", ["a"]),
        ('orderBy="$key"&equalTo="b"', ["b"]),
        ('orderBy="n"&startAfter=1,"[MAX_NAME]"', ["b", "c"]),
        ('orderBy="n"&startAt=2,"[MIN_NAME]"', ["b", "c"]),
        ('orderBy="n"&endBefore=2,"[MIN_NAME]"', ["a"]),
        ('orderBy="n"&endAt=2,"[MAX_NAME]"', ["a", "b"]),
        ('orderBy="$priority"&startAfter=null,"a"', ["b", "c"]),
    ],
)
def test_quotes_stand_in_a_query_as_they_are(
    local: Client, ns: str, query: str, keys: list[str]
) -> None:
    local.put(f"/q.json?ns={ns}", {"a": {"n": 1}, "b": {"n": 2}, "c": {"n": 3}})
    assert list(local.get(f"/q.json?ns={ns}&{query}") or ()) == keys


def test_header_names_come_in_canonical_case(local: Client, devices: Client, ns: str) -> None:
    headers = {"x-firebase-etag": "true", "if-match": "*"}
    for client in (local, devices):
        for method, body in (("PUT", "1"), ("GET", None), ("POST", "1"), ("BREW", None)):
            answer = client.ask(method, f"/a.json?ns={ns}", body, headers)
            assert set(answer.headers.keys()) - {"Allow"} <= CANONICAL, answer
