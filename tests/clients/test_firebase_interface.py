"""The requests of Firebase clients, and the bytes that they expect in responses."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator
from typing import Any

import pytest

from tests.clients.harness import DOMAIN, RULES, Domain, sign_token
from tests.daemon import Daemon, Response
from tests.rest import Client, check_error

OWNER = {"Authorization": "Bearer owner"}
RULES_PATH = "/.settings/rules.json"
DENIED = b'{\n  "error" : "Permission denied"\n}\n'
CANONICAL = {
    *("Date", "Content-Type", "Content-Length", "Cache-Control", "ETag", "Vary"),
    *("X-Content-Type-Options", "Access-Control-Allow-Origin", "Access-Control-Expose-Headers"),
}

_projects = (f"firebase{number}" for number in itertools.count())


@pytest.fixture
def ns() -> str:
    """The name of a project that no other test uses."""
    return next(_projects)


@pytest.fixture
def local(development: Daemon) -> Iterator[Client]:
    """A client in development mode that names its project by `ns`."""
    with Client(development, "127.0.0.1") as client:
        yield client


@pytest.fixture
def members(domain: Domain) -> Iterator[Client]:
    """A client over TLS of a project with rules and the dialect `auto`."""
    with Client(domain, f"members.{DOMAIN}", secure=True) as client:
        yield client


@pytest.fixture
def devices(domain: Domain) -> Iterator[Client]:
    """A client over TLS of a project with the dialect `firebase`, which denies everything."""
    with Client(domain, f"devices.{DOMAIN}", secure=True) as client:
        yield client


def bearer(project: str, **claims: Any) -> dict[str, str]:
    return {"Authorization": f"Bearer {sign_token(project, **claims)}"}


def test_ns_may_name_a_project_that_does_not_exist_yet(local: Client, ns: str) -> None:
    assert local.request("PUT", f"/a.json?ns={ns}", "1").body == b"1"
    assert local.request("PUT", f"/a.json?ns=eu--{ns}", "2").body == b"2"
    assert local.get(f"/a.json?ns=default--{ns}") == 1
    assert local.get("/a.json?ns=other") is None
    by_host = Client(local.daemon, f"eu--{ns}.localhost")
    assert by_host.get("/a.json") == by_host.get(f"/a.json?ns=eu--{ns}") == 2
    assert by_host.request("GET", f"/a.json?ns={ns}").status == 400
    by_host.close()


@pytest.mark.parametrize(
    "query",
    ["limitToFirst=1", "print=pretty&print=pretty", "x=%zz", 'orderBy="a"&equalTo=1&startAt=1'],
)
def test_an_error_has_the_dialect_of_the_request(local: Client, ns: str, query: str) -> None:
    plain = local.request("GET", f"/a.json?{query}")
    message = check_error(plain, 400, "invalid_query")
    expected = b'{\n  "error" : %b\n}\n' % json.dumps(message).encode()
    for response in (
        local.request("GET", f"/a.json?ns={ns}&{query}"),
        local.request("GET", f"/a.json?{query}&ns={ns}"),
        local.request("GET", f"/a.json?{query}", headers=OWNER),
    ):
        assert (response.status, response.body) == (400, expected)


def test_a_project_with_the_dialect_firebase_uses_it_for_every_request(devices: Client) -> None:
    for query in ("", "?x=1"):
        response = devices.request("GET", f"/a.json{query}")
        assert (response.status, response.body) == (401, DENIED)
    response = devices.request("GET", "/a.json?auth=x&auth=y")
    assert response.status == 400
    assert response.body.startswith(b'{\n  "error" : "')
    response = devices.request("GET", "/a")
    assert response.status == 404
    assert response.body.startswith(b'{\n  "error" : "')


def test_a_denial_has_the_status_of_its_dialect(members: Client) -> None:
    check_error(members.request("GET", "/users/ada.json"), 403, "permission_denied")
    token = sign_token("members", uid="alan")
    check_error(
        members.request("PUT", f"/users/ada.json?auth={token}", "1"), 403, "permission_denied"
    )
    for response in (
        members.request("GET", "/users/ada.json?ns=members"),
        members.request("GET", "/users/ada.json", headers=bearer("members", uid="alan")),
        members.request("PUT", f"/users/ada.json?ns=members&access_token={token}", "1"),
        members.request(
            "GET", "/users/ada.json?ns=members", headers={"Accept": "text/event-stream"}
        ),
    ):
        assert (response.status, response.body) == (401, DENIED)


def test_a_failed_condition_returns_the_value_itself(local: Client, ns: str) -> None:
    target = f"/a.json?ns={ns}"
    local.put(target, {"b": [1]})
    response = local.request("PUT", target, "2", {"If-Match": '"no"'})
    tag = local.request("GET", target, headers={"X-Firebase-ETag": "true"}).headers["ETag"]
    assert (response.status, response.body, response.headers["ETag"]) == (412, b'{"b":[1]}', tag)
    local.request("DELETE", target)
    response = local.request("PUT", target, "2", {"If-Match": tag})
    assert (response.status, response.body, response.headers["ETag"]) == (412, b"null", "null_etag")


def test_absence_has_the_tag_null_etag(local: Client, ns: str) -> None:
    target, headers = f"/a.json?ns={ns}", {"X-Firebase-ETag": "true"}
    response = local.request("GET", target, headers=headers)
    assert (response.status, response.body, response.headers["ETag"]) == (200, b"null", "null_etag")
    response = local.request("GET", target, headers={"If-None-Match": "null_etag"})
    assert (response.status, response.headers["ETag"]) == (304, "null_etag")
    response = local.request("PUT", target, "1", {"If-Match": "null_etag"})
    assert response.status == 200
    assert response.headers["ETag"] != "null_etag"
    response = local.request("DELETE", target, headers=headers)
    assert (response.body, response.headers["ETag"]) == (b"null", "null_etag")
    standard = local.request("GET", "/nothing.json", headers={"X-TreeDB-ETag": "true"})
    assert len(standard.headers["ETag"]) == 66


def test_pretty_print_is_that_of_firebase(local: Client, ns: str) -> None:
    local.put(f"/a.json?ns={ns}", {"b": {"c": 1}, "d": "e"})
    expected = b'{\n  "b" : {\n    "c" : 1\n  },\n  "d" : "e"\n}'
    assert local.request("GET", f"/a.json?ns={ns}&print=pretty").body == expected
    response = local.request("PATCH", f"/a.json?ns={ns}&print=pretty", '{"f":2}')
    assert response.body == b'{\n  "f" : 2\n}'


def test_a_silent_response_has_a_tag_if_requested(local: Client, ns: str) -> None:
    target, headers = f"/a.json?ns={ns}", {"X-Firebase-ETag": "true"}
    local.put(target, 5)
    tag = local.request("GET", target, headers=headers).headers["ETag"]
    for method, body in (("GET", None), ("PUT", "5"), ("PATCH", '{"b":1}')):
        response = local.request(method, f"{target}&print=silent", body, headers)
        assert (response.status, response.body) == (204, b"")
        assert (response.headers["ETag"] == tag) is (method != "PATCH")
    assert "ETag" not in local.request("GET", f"{target}&print=silent").headers


def test_the_owner_of_an_emulator_is_an_admin(local: Client, ns: str) -> None:
    target = f"{RULES_PATH}?ns={ns}"
    response = local.request("GET", target)
    assert (response.status, response.body[:14]) == (401, b'{\n  "error" : ')
    assert local.request("GET", target, headers=OWNER).json == {
        "rules": {".read": True, ".write": True}
    }
    local.request("PUT", target, '{"rules":{}}', OWNER)
    assert local.request("PUT", f"/a.json?ns={ns}", "1").body == DENIED
    assert local.request("PUT", f"/a.json?ns={ns}", "1", OWNER).status == 200


def test_outside_development_mode_the_owner_token_is_invalid(members: Client) -> None:
    response = members.request("GET", "/a.json", headers=OWNER)
    assert response.status == 401
    assert response.body not in (DENIED, b"null")


def test_an_admin_may_override_auth(members: Client) -> None:
    admin = bearer("members", admin=True)
    as_ada = 'auth_variable_override={"uid":"ada"}'
    assert members.request("PUT", f"/users/ada.json?{as_ada}", "1", admin).status == 200
    assert members.request("PUT", f"/users/alan.json?{as_ada}", "1", admin).body == DENIED
    assert (
        members.request("GET", "/users/ada.json?auth_variable_override=null", None, admin).body
        == DENIED
    )
    response = members.request(
        "GET", f"/users/ada.json?{as_ada}", None, bearer("members", uid="ada")
    )
    assert response.status == 401
    response = members.request("GET", "/users/ada.json?auth_variable_override=1", None, admin)
    assert response.status == 400


def test_an_export_keeps_priorities_and_objects(local: Client, ns: str) -> None:
    local.put(f"/a.json?ns={ns}", {".priority": 1, "0": {".value": "x", ".priority": "p"}})
    assert local.get(f"/a.json?ns={ns}") == ["x"]
    exported = local.request("GET", f"/a.json?format=export&ns={ns}")
    assert exported.json == {".priority": 1, "0": {".value": "x", ".priority": "p"}}
    assert local.request("GET", f"/a.json?format=strict&ns={ns}").status == 400


def test_a_dry_run_of_rules_changes_nothing(local: Client, ns: str) -> None:
    target = f"{RULES_PATH}?ns={ns}"
    before = local.request("GET", target, headers=OWNER).body
    response = local.request("PUT", f"{target}&dryRun=true", RULES, OWNER)
    assert (response.status, response.json) == (200, {"status": "ok"})
    assert local.request("GET", target, headers=OWNER).body == before
    for query in ("", "&dryRun=true"):
        response = local.request("PUT", target + query, '{"rules":\n {".read": "no"}}', OWNER)
        assert response.status == 400
        assert response.body.startswith(b'{\n  "error" : "2:13: ')
        assert response.body.endswith(b'\\n"\n}\n')
    assert local.request("PUT", f"{target}&dryRun=false", RULES, OWNER).json == {"status": "ok"}
    assert local.request("GET", target, headers=OWNER).body.decode() == RULES
    strict = local.request("GET", f"{target}&format=strict", headers=OWNER)
    assert list(strict.json["rules"]) == ["users"]


def test_the_databases_of_a_project_are_listed(local: Client, ns: str) -> None:
    for label in (ns, f"eu--{ns}"):
        local.put(f"/a.json?ns={label}", 1)
    response = local.request("GET", f"/.inspect/databases.json?ns={ns}", headers=OWNER)
    assert sorted(entry["name"] for entry in response.json) == [f"eu--{ns}", ns]
    assert local.request("GET", f"/.inspect/databases.json?ns={ns}").status == 401


@pytest.mark.parametrize(
    "extra", ["writeSizeLimit=tiny", "disableTriggers=false", "disableTriggers=true&auth=owner"]
)
def test_parameters_of_writes_are_accepted(local: Client, ns: str, extra: str) -> None:
    target = f"/a.json?ns={ns}&{extra}"
    assert local.request("PUT", target, '{"b":{"c":1}}').status == 200
    assert local.request("PATCH", target, '{"b":null,"d":1}').status == 200
    assert local.request("PATCH", target, "null").status == 200
    assert local.request("POST", target, "1").status == 200
    assert local.request("DELETE", target).body == b"null"


def test_only_an_admin_disables_triggers(local: Client, ns: str) -> None:
    for method in ("PUT", "PATCH", "POST", "DELETE"):
        body = None if method == "DELETE" else "1"
        refused = local.request(method, f"/a.json?ns={ns}&disableTriggers=true", body)
        assert refused.status == 401
        bad = local.request(method, f"/a.json?ns={ns}&disableTriggers=yes&auth=owner", body)
        assert (bad.status, bad.json) == (400, {"error": "disableTriggers must be true or false."})


def test_a_patch_of_null_removes(local: Client, ns: str) -> None:
    local.put(f"/a/b.json?ns={ns}", {"c": 1})
    assert local.request("PATCH", f"/a/b.json?ns={ns}", "null").body == b"null"
    response = local.request("PATCH", f"/a/b.json?ns={ns}&print=silent", "null")
    assert (response.status, response.body) == (204, b"")
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
def test_a_post_may_override_its_method(
    local: Client, ns: str, query: str, headers: dict[str, str]
) -> None:
    def post(method: str, body: str | None) -> Response:
        fields = {name: text.format(method=method) for name, text in headers.items()}
        return local.request("POST", f"/a.json?ns={ns}{query.format(method=method)}", body, fields)

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
def test_quotes_in_a_query_need_no_escape(
    local: Client, ns: str, query: str, keys: list[str]
) -> None:
    local.put(f"/q.json?ns={ns}", {"a": {"n": 1}, "b": {"n": 2}, "c": {"n": 3}})
    assert list(local.get(f"/q.json?ns={ns}&{query}") or ()) == keys


def test_header_names_have_canonical_case(local: Client, devices: Client, ns: str) -> None:
    headers = {"x-firebase-etag": "true", "if-match": "*"}
    for client in (local, devices):
        for method, body in (("PUT", "1"), ("GET", None), ("POST", "1"), ("BREW", None)):
            response = client.request(method, f"/a.json?ns={ns}", body, headers)
            assert set(response.headers.keys()) - {"Allow"} <= CANONICAL, response
