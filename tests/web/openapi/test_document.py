"""The OpenAPI document: valid, and neither more nor less than what the code has."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

import attrs
import pytest
from openapi_spec_validator import OpenAPIV31SpecValidator, validate

from treedbd.config.settings import HttpSettings, Settings
from treedbd.http1 import parser as protocol
from treedbd.limits import (
    MAX_CALLBACK_CHARACTERS,
    MAX_DEPTH,
    MAX_KEY_BYTES,
    MAX_LABEL_CHARACTERS,
    MAX_PATCH_MEMBERS,
    MAX_TIMEOUT_S,
    MAX_TOKEN_CHARACTERS,
    MAX_WHERE_CONDITIONS,
    Limits,
)
from treedbd.names import NAME_PATTERN
from treedbd.web.admin import DEFAULT_ENTRIES, MAX_ENTRIES
from treedbd.web.errors import STATUS, codes_by_status
from treedbd.web.openapi import DEPTHS, make_document
from treedbd.web.realtime.wire import (
    WrongVersion,
)
from treedbd.web.request import KNOWN, OVERRIDES, TIMEOUT_PATTERN
from treedbd.web.resource import (
    PAGES,
    READ_METHODS,
    RESERVED,
    UNDECLARED,
    TreeResource,
    declared_routes,
)

PROBES = {"live", "ready"}
FILTERS = {"path", "status", "uid", "slower", "database", "cursor", "name", "id", "since", "until"}
FILTERS |= {"after", "limit", "reader", "wait"}
"""Parameters of requests of admins, which the parser of requests for data ignores."""
METHODS = {"get", "head", "put", "post", "patch", "delete", "options"}


def make(options: Settings | None = None, prefix: str = "", *, has_page: bool = True) -> Any:
    """Return the document as a client parses it."""
    routes = declared_routes(TreeResource.app, frozenset() if has_page else PAGES)
    options = options or Settings()
    codes = codes_by_status()
    document = make_document(routes, options.limits, options.http.etag_headers, codes, prefix)
    return json.loads(json.dumps(document))


DOCUMENT = make()
COMPONENTS = DOCUMENT["components"]


def operations(document: Any = DOCUMENT) -> Iterator[tuple[str, str, Any]]:
    for path, item in document["paths"].items():
        for method in METHODS & item.keys():
            yield path, method, item[method]


def resolve(found: Any) -> Any:
    """Return what a reference refers to."""
    _, _, kind, name = found["$ref"].split("/")
    return COMPONENTS[kind][name]


def references(found: Any) -> Iterator[str]:
    if isinstance(found, dict):
        if isinstance(found.get("$ref"), str):
            yield found["$ref"]
        for each in found.values():
            yield from references(each)
    elif isinstance(found, list):
        for each in found:
            yield from references(each)


@pytest.mark.parametrize(
    ("options", "prefix", "has_page"),
    [
        (Settings(), "", True),
        (Settings(http=HttpSettings(etag_headers=())), "/tree", False),
        (Settings(limits=attrs.evolve(Limits(), write_body_bytes=7)), "/a/b%20c", True),
    ],
)
def test_it_is_valid_openapi_3_1(options: Settings, prefix: str, has_page: bool) -> None:
    document = make(options, prefix, has_page=has_page)
    validate(document, cls=OpenAPIV31SpecValidator)
    assert document["openapi"].startswith("3.1.")
    assert document["servers"] == [{"url": prefix or "/"}]


def test_it_has_every_route_and_method_of_the_application_and_no_other() -> None:
    declared = {
        (rule.rule, method.lower())
        for rule in TreeResource.app.url_map.iter_rules()
        for method in rule.methods or ()
        if rule.endpoint not in {"tree", "root", *UNDECLARED}
    }
    # `/` is a page for browsers that read it; all else there is an error, whatever its method.
    declared |= {("/", method.lower()) for method in READ_METHODS}
    of_tree = {(path, method) for path, method, shown in operations() if shown["tags"] == ["data"]}
    assert {(path, method) for path, method, _ in operations()} - of_tree == declared
    assert {method for path, method in of_tree if "priority" not in path} == METHODS
    declared_names = {each.endpoint for each in declared_routes(TreeResource.app, frozenset())}
    assert declared_names >= {*RESERVED.values()} - UNDECLARED


def test_places_are_listed_by_the_number_of_their_keys() -> None:
    listed = [path for path in DOCUMENT["paths"] if re.fullmatch(r"/(\{key\d\}/?)*\.json", path)]
    assert sorted(path.count("{") for path in listed) == list(range(DEPTHS + 1))
    for path in listed:
        keys = [resolve(each)["name"] for each in DOCUMENT["paths"][path].get("parameters", ())]
        assert keys == re.findall(r"\{(\w+)\}", path)


def test_it_has_every_parameter_that_the_parser_knows_and_no_other() -> None:
    used = {
        resolve(each)["name"]
        for _, _, shown in operations()
        for each in shown.get("parameters", ())
        if resolve(each)["in"] == "query"
    }
    tokens = {
        scheme["name"]
        for scheme in COMPONENTS["securitySchemes"].values()
        if scheme.get("in") == "query"
    }
    assert tokens == {"auth", "access_token"}
    assert used | tokens == KNOWN | PROBES | FILTERS


def test_it_has_the_headers_of_the_settings() -> None:
    shown = make(Settings(http=HttpSettings(etag_headers=("Mine",))))["components"]["parameters"]
    assert [name for name in shown if name.endswith("-ETag")] == ["X-Mine-ETag"]
    found = {name for name, each in COMPONENTS["parameters"].items() if each["in"] == "header"}
    assert found >= {"If-Match", "If-None-Match", "Last-Event-ID", "X-TreeDB-Explain"}
    assert found >= {"X-TreeDB-Dialect", "X-HTTP-Method-Override"}
    assert found >= {"Accept-Encoding", "Content-Encoding"}


def test_it_has_every_status_and_code_of_errors_and_no_other() -> None:
    of_requests = {pair for kind, pair in STATUS.items() if kind is not WrongVersion}
    known = {*of_requests, (500, "internal_error")}
    known |= {
        (each.status, each.code)
        for each in vars(protocol).values()
        if isinstance(each, protocol.ErrorReply)
    }
    shown = set()
    for name, response in COMPONENTS["responses"].items():
        if name.startswith("Error"):
            schema = response["content"]["application/json"]["schema"]["anyOf"][0]
            codes = (
                [COMPONENTS["schemas"]["ConditionFailed"]["properties"]["error"]["const"]]
                if "$ref" in schema
                else schema["allOf"][1]["properties"]["error"]["enum"]
            )
            shown |= {(int(name.removeprefix("Error")), code) for code in codes}
    assert shown == known
    all_codes = COMPONENTS["schemas"]["Error"]["properties"]["error"]["enum"]
    assert all_codes == sorted({code for _, code in known})
    used = {int(each) for _, _, shown in operations() for each in shown["responses"]}
    assert {status for status in used if status >= 400} == {status for status, _ in known}


def test_every_component_is_used_and_every_reference_leads_somewhere() -> None:
    used = set(references(DOCUMENT))
    defined = {
        f"#/components/{kind}/{name}"
        for kind, named in COMPONENTS.items()
        for name in named
        if kind != "securitySchemes"
    }
    assert used == defined


def test_operations_have_names_of_their_own() -> None:
    names = [shown["operationId"] for _, _, shown in operations()]
    assert len(names) == len(set(names))
    assert {"getRoot", "getDepth1", "putSettingsRules", "getHealth", "getOpenapi"} <= {*names}


def test_limits_are_those_of_the_service() -> None:
    limits = Limits(write_body_bytes=1234, request_line_bytes=5678, header_count=99)
    text = json.dumps(make(Settings(limits=limits)))
    assert all(each in text for each in ("1,234 bytes", "5,678 bytes", "99 lines"))
    assert not re.search(r"\{[a-z_]+_[a-z_]+\}", text)


def test_bounds_in_schemas_are_those_of_the_code() -> None:
    schemas = {name: each["schema"] for name, each in COMPONENTS["parameters"].items()}
    for number in range(1, DEPTHS + 1):
        assert schemas[f"key{number}"]["maxLength"] == MAX_KEY_BYTES
    assert schemas["ns"]["maxLength"] == MAX_LABEL_CHARACTERS
    assert schemas["ns"]["pattern"] == f"^(?:{NAME_PATTERN}--)?{NAME_PATTERN}$"
    assert schemas["timeout"]["pattern"] == f"^{TIMEOUT_PATTERN}$"
    assert schemas["callback"]["maxLength"] == MAX_CALLBACK_CHARACTERS
    assert schemas["where"]["contentSchema"]["maxProperties"] == MAX_WHERE_CONDITIONS
    assert schemas["limitToFirst.log"]["default"] == DEFAULT_ENTRIES
    overrides = sorted(each.decode() for each in OVERRIDES)
    assert schemas["x-http-method-override"]["enum"] == overrides
    assert schemas["X-HTTP-Method-Override"]["enum"] == overrides
    assert COMPONENTS["schemas"]["Patch"]["maxProperties"] == MAX_PATCH_MEMBERS


def test_bounds_in_texts_are_those_of_the_code() -> None:
    texts = {name: each["description"] for name, each in COMPONENTS["parameters"].items()}
    assert texts["timeout"].endswith(f"at most {MAX_TIMEOUT_S / 60:.0f}min.")
    assert f"{MAX_WHERE_CONDITIONS} at most" in texts["where"]
    assert f"at most {MAX_ENTRIES} are shown" in texts["limitToFirst.log"]
    assert f"up to {MAX_DEPTH} keys" in DOCUMENT["info"]["description"]
    assert f"up to {DEPTHS} keys" in DOCUMENT["info"]["description"]
    for scheme in COMPONENTS["securitySchemes"].values():
        assert scheme["description"].endswith(f"at most {MAX_TOKEN_CHARACTERS} characters.")


def test_only_what_admins_may_do_needs_a_token() -> None:
    needing = {
        path
        for path, _, shown in operations()
        if shown.get("security") and {} not in shown["security"]
    }
    assert needing == {path for path in DOCUMENT["paths"] if path.startswith(("/.s", "/.i"))}
    assert {} in DOCUMENT["security"]


def test_without_pages_they_are_not_in_it() -> None:
    paths = make(has_page=False)["paths"]
    assert DOCUMENT["paths"].keys() - paths.keys() == {
        rule.rule
        for rule in TreeResource.app.url_map.iter_rules()
        if rule.endpoint in PAGES - UNDECLARED
    }
    assert "/.openapi.json" in paths
