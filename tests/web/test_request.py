"""The parser of requests: every rule about its address, method, parameters and headers."""

from __future__ import annotations

from typing import Any

import attrs
import pytest

from tests.web.tree_server import LISTEN
from treedbd.config.settings import HttpSettings, Settings
from treedbd.http1.parser import Http1Parser
from treedbd.http1.request import Request
from treedbd.limits import Limits
from treedbd.names import DatabaseName, DialectName
from treedbd.tree.hashes import NULL_ETAG, ETagSet
from treedbd.tree.types import ROOT, InvalidPath, InvalidQuery, Place
from treedbd.web.auth.identity import AuthOverride
from treedbd.web.request import (
    CACHED_PATH_BYTES,
    FIREBASE,
    STANDARD,
    AllowedMethods,
    DataRequest,
    Dialect,
    Location,
    MethodNotAllowed,
    Misdirected,
    MissingSuffix,
    NoDatabaseNamed,
    PayloadTooLarge,
    RequestParser,
    find_token,
    parse_short_path,
)

SHOP = DatabaseName("shop")
SETTINGS = Settings(listen=LISTEN, domains=("db.test",))
TREE = AllowedMethods.of(["GET", "HEAD", "PUT", "POST", "PATCH", "DELETE", "OPTIONS"])
RULES = AllowedMethods.of(["GET", "HEAD", "PUT", "OPTIONS"])
READS = ("GET", "HEAD")
WRITES = ("PUT", "POST", "PATCH", "DELETE")


def make_request(
    target: str = "/a.json", *headers: str, method: str = "GET", hosts: tuple[str, ...] = ("",)
) -> Request:
    """Return a request as the server parses it; an empty host is replaced by shop.db.test."""
    lines = [f"{method} {target} HTTP/1.1"]
    lines += [f"Host: {host or 'shop.db.test'}" for host in hosts]
    parser = Http1Parser(Limits())
    assert parser.receive("\r\n".join([*lines, *headers, "", ""]).encode())
    no_connection: Any = None
    return Request(no_connection, parser)


def locate(request: Request, options: Settings = SETTINGS) -> Location:
    return RequestParser(options).locate(request)


def parse_request(
    request: Request,
    allowed: AllowedMethods = TREE,
    dialect: DialectName = "auto",
    *,
    options: Settings = SETTINGS,
    has_place: bool = True,
) -> DataRequest:
    parser = RequestParser(options)
    location = parser.locate(request)
    return parser.parse(request, location, dialect, allowed, has_place=has_place)


def parse(target: str = "/a.json", *headers: str, method: str = "GET") -> DataRequest:
    return parse_request(make_request(target, *headers, method=method))


# Where.


@pytest.mark.parametrize(
    ("target", "host", "name"),
    [
        ("/a.json", "shop.db.test", SHOP),
        ("/a.json", "SHOP.DB.Test.:8443", SHOP),
        ("/a.json", "eu--shop.db.test", DatabaseName("shop", "eu")),
        ("/a.json?ns=shop", "db.test", SHOP),
        ("/a.json?ns=eu--shop", "localhost:8080", DatabaseName("shop", "eu")),
        ("/a.json?ns=SHOP", "127.0.0.1", SHOP),
        ("/a.json?ns=shop", "[::1]:80", SHOP),
        ("/a.json?ns=shop", "shop.db.test", SHOP),
        ("http://shop.db.test/a.json", "shop.db.test", SHOP),
        ("HTTPS://shop.db.test:443/a.json?x", "shop.db.test:80", SHOP),
        ("http://db.test/a.json?ns=shop", "db.test", SHOP),
    ],
)
def test_host_and_ns_name_the_database(target: str, host: str, name: DatabaseName) -> None:
    assert locate(make_request(target, hosts=(host,))).name == name


def test_without_both_the_default_project_is_addressed_if_there_is_one() -> None:
    request = make_request(hosts=("localhost",))
    options = Settings(listen=LISTEN, domains=("db.test",), default_project="main")
    assert locate(request, options).name == DatabaseName("main")
    with pytest.raises(NoDatabaseNamed, match="names no project"):
        locate(request)


@pytest.mark.parametrize(
    ("target", "hosts", "error"),
    [
        ("/a.json", (), InvalidPath),
        ("/a.json", ("shop.db.test", "shop.db.test"), InvalidPath),
        ("/a.json", ("shop db.test",), InvalidPath),
        ("/a.json", ("x" * 300,), InvalidPath),
        ("/a.json", ("shop.elsewhere.test",), Misdirected),
        ("/a.json", ("a.shop.db.test",), NoDatabaseNamed),
        ("/a.json", ("-shop.db.test",), NoDatabaseNamed),
        ("/a.json?ns=", ("localhost",), InvalidQuery),
        ("/a.json?ns=a--b--c", ("localhost",), InvalidQuery),
        ("/a.json?ns=other", ("shop.db.test",), InvalidQuery),
        ("http://other.db.test/a.json", ("shop.db.test",), InvalidPath),
        ("http://shop.db.test:x/a.json", ("shop.db.test",), InvalidPath),
    ],
)
def test_an_address_that_names_no_database_is_an_error(
    target: str, hosts: tuple[str, ...], error: type[Exception]
) -> None:
    with pytest.raises(error):
        locate(make_request(target, hosts=hosts))


def test_a_target_that_is_not_a_path_and_not_absolute_is_an_error() -> None:
    request = make_request()
    request.uri = b"a.json"  # a `Site` lets it through
    with pytest.raises(InvalidPath, match="request target"):
        locate(request)


def test_a_location_keeps_the_raw_path_and_the_parameters() -> None:
    location = locate(make_request("http://shop.db.test/a%2Fb.json?print=pretty&shallow"))
    assert location.raw_path == b"/a%2Fb.json"
    assert location.parameters == {"print": "pretty", "shallow": ""}
    assert location.malformed is None


@pytest.mark.parametrize(
    "query", ["ns=shop&ns=other", "print=%zz&ns=shop", "ns=shop&print=%ff", "x=%&ns=shop&y"]
)
def test_a_malformed_query_still_locates_by_its_first_ns(query: str) -> None:
    location = locate(make_request(f"/a.json?{query}", hosts=("localhost",)))
    assert location.name == SHOP
    assert location.parameters == {"ns": "shop"}
    assert isinstance(location.malformed, InvalidQuery)


def test_an_ns_that_does_not_decode_names_no_database() -> None:
    with pytest.raises(InvalidQuery, match="ns must be"):
        locate(make_request("/a.json?ns=%zz", hosts=("localhost",)))


def test_a_host_is_checked_unless_the_whole_server_is_addressed() -> None:
    parser = RequestParser(SETTINGS)
    parser.check_host(make_request())
    parser.check_host(make_request("*", method="OPTIONS", hosts=()))
    with pytest.raises(Misdirected):
        parser.check_host(make_request(hosts=("elsewhere.test",)))
    with pytest.raises(InvalidPath):
        parser.check_host(make_request(hosts=()))
    with pytest.raises(InvalidPath):
        parser.check_host(make_request("http://other.db.test/", hosts=("shop.db.test",)))


# Which place.


@pytest.mark.parametrize(
    ("target", "place"),
    [
        ("/.json", Place(ROOT)),
        ("/a/b.json?x=/c.json", Place(("a", "b"))),
        ("http://shop.db.test/a.json", Place(("a",))),
        ("/a/.priority.json", Place(("a",), is_priority=True)),
    ],
)
def test_the_path_names_the_place(target: str, place: Place) -> None:
    assert parse(target).place == place


def test_the_place_is_below_the_prefix_where_the_resource_is_mounted() -> None:
    request = make_request("/tree/v1/a/b.json")
    request.prepath = [b"tree", b"v1"]
    assert parse_request(request).place == Place(("a", "b"))


def test_a_path_that_names_no_place_is_not_parsed() -> None:
    request = make_request("/.settings/rules.json")
    assert parse_request(request, RULES, has_place=False).place == Place(ROOT)


def test_long_paths_are_not_cached() -> None:
    parser = RequestParser(SETTINGS)

    def parse_and_count(path: str) -> tuple[int, int]:
        request = make_request(path)
        wanted = parser.parse(request, parser.locate(request), "auto", TREE)
        assert len(wanted.place.path) == path.count("/")
        info = parse_short_path.cache_info()
        return info.hits, info.misses

    end = "/k.json"
    longest = "/" + "x" * (CACHED_PATH_BYTES - len(end) - 1) + end
    hits, misses = parse_and_count(longest)
    assert parse_and_count(longest) == (hits + 1, misses)
    longer = "/x" + longest[1:]
    assert parse_and_count(longer) == parse_and_count(longer) == (hits + 1, misses)


# The order of errors.


@pytest.mark.parametrize(
    ("method", "target", "is_oversized", "error"),
    [
        ("BREW", "/a.b?print=%zz", True, MissingSuffix),
        ("BREW", "/a.b.json?print=%zz", True, MethodNotAllowed),
        ("PUT", "/a.b.json?print=%zz", True, PayloadTooLarge),
        ("PUT", "/a.b.json?print=%zz", False, InvalidPath),
        ("PUT", "/a.json?print=%zz", False, InvalidQuery),
    ],
)
def test_of_several_errors_the_first_in_the_promised_order_is_raised(
    method: str, target: str, is_oversized: bool, error: type[Exception]
) -> None:
    request = make_request(target, "Print: loud", method=method)
    request.is_oversized = is_oversized
    with pytest.raises(error):
        parse_request(request)


def test_the_error_of_a_body_too_large_names_the_limit() -> None:
    request = make_request(method="PUT")
    request.is_oversized = True
    options = attrs.evolve(SETTINGS, limits=Limits(write_body_bytes=7))
    with pytest.raises(PayloadTooLarge, match="at most 7 bytes"):
        parse_request(request, options=options)


# Methods.


def test_allowed_methods_are_listed_in_their_usual_order() -> None:
    allowed = AllowedMethods.of(["OPTIONS", "PUT", "HEAD", "GET"])
    assert allowed.header == b"GET, HEAD, PUT, OPTIONS"
    assert allowed.names == {b"GET", b"HEAD", b"PUT", b"OPTIONS"}


@pytest.mark.parametrize("method", ["GET", "HEAD", "PUT", "POST", "PATCH", "DELETE"])
def test_an_allowed_method_is_that_of_the_request(method: str) -> None:
    assert parse(method=method).method == method.encode()


@pytest.mark.parametrize("method", ["DELETE", "PATCH", "BREW", "get"])
def test_another_method_is_an_error_with_those_that_are_allowed(method: str) -> None:
    with pytest.raises(MethodNotAllowed, match="GET, HEAD, PUT, OPTIONS") as caught:
        parse_request(make_request(method=method), RULES)
    assert caught.value.allowed is RULES


@pytest.mark.parametrize("override", ["GET", "PUT", "PATCH", "DELETE", "patch"])
def test_a_post_can_be_overridden_by_header_or_parameter(override: str) -> None:
    method = override.upper().encode()
    name = "x-http-method-override"
    assert parse("/a.json", f"{name}: {override}", method="POST").method == method
    assert parse(f"/a.json?{name}={override}", method="POST").method == method
    both = parse(f"/a.json?{name}=PUT", f"{name}: {override}", method="POST")
    assert both.method == method


@pytest.mark.parametrize("method", ["GET", "PUT"])
def test_another_method_than_post_cannot_be_overridden(method: str) -> None:
    target = "/a.json?x-http-method-override=DELETE"
    assert parse(target, "X-HTTP-Method-Override: PATCH", method=method).method == method.encode()


def test_an_empty_override_is_none() -> None:
    target = "/a.json?x-http-method-override="
    assert parse(target, "X-HTTP-Method-Override:", method="POST").method == b"POST"


@pytest.mark.parametrize("override", ["HEAD", "POST", "OPTIONS", "BREW"])
def test_a_post_cannot_be_overridden_to_other_methods(override: str) -> None:
    with pytest.raises(MethodNotAllowed, match="overridden") as caught:
        parse("/a.json", f"X-HTTP-Method-Override: {override}", method="POST")
    assert caught.value.allowed is TREE


def test_an_override_must_be_allowed_too() -> None:
    request = make_request("/a.json", "X-HTTP-Method-Override: DELETE", method="POST")
    with pytest.raises(MethodNotAllowed, match="The methods here"):
        parse_request(request, RULES)


def test_a_malformed_query_still_overrides_the_method() -> None:
    request = make_request("/a.json?x-http-method-override=BREW&print=%zz", method="POST")
    with pytest.raises(MethodNotAllowed):
        parse_request(request)


# Parameters.


def test_a_request_without_parameters_and_headers_has_the_defaults() -> None:
    request = make_request()
    assert parse_request(request) == DataRequest(
        method=b"GET",
        place=Place(("a",)),
        parameters={},
        print="compact",
        timeout_s=30.0,
        wants_etag=False,
        condition=None,
        token=None,
        override=None,
        dialect=STANDARD,
        wants_explanation=False,
        accepts_events=False,
        last_event_id=None,
    )


@pytest.mark.parametrize("query", ["print=%zz", "unknown=%", "print=pretty&print=pretty", "%ff"])
def test_a_malformed_query_is_an_error(query: str) -> None:
    with pytest.raises(InvalidQuery):
        parse(f"/a.json?{query}")


def test_parameters_are_decoded_and_separated_by_ampersands_only() -> None:
    assert parse("/a.json?auth=a+b%2Bc;d&v").parameters == {"auth": "a b+c;d", "v": ""}


def test_unknown_parameters_are_ignored() -> None:
    assert parse("/a.json?x=1&x=2&Print=loud&&=").parameters == {}


@pytest.mark.parametrize(
    ("query", "printed"), [("print=pretty", "pretty"), ("print=silent", "silent"), ("v", "compact")]
)
@pytest.mark.parametrize("method", [*READS, *WRITES])
def test_print_chooses_the_form_of_the_response(query: str, printed: str, method: str) -> None:
    assert parse(f"/a.json?{query}", method=method).print == printed


def test_the_header_print_silences_writes_only() -> None:
    for method in WRITES:
        assert parse("/a.json", "Print: silent", method=method).print == "silent"
        assert parse("/a.json?print=pretty", "Print: silent", method=method).print == "silent"
        with pytest.raises(InvalidQuery, match="header print"):
            parse("/a.json", "Print: pretty", method=method)
    for method in READS:
        assert parse("/a.json", "Print: silent", method=method).print == "compact"
        assert parse("/a.json", "Print: loud", method=method).print == "compact"


@pytest.mark.parametrize("value", ["", "compact", "Pretty", "loud"])
def test_another_value_of_print_is_an_error(value: str) -> None:
    with pytest.raises(InvalidQuery, match="print must be pretty or silent"):
        parse(f"/a.json?print={value}")


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("1ms", 0.001), ("250ms", 0.25), ("3s", 3), ("900s", 900), ("15min", 900), ("0001s", 1)],
)
def test_a_timeout_is_read_in_its_unit(text: str, seconds: float) -> None:
    assert parse(f"/a.json?timeout={text}").timeout_s == pytest.approx(seconds)


@pytest.mark.parametrize("text", ["", "3", "0s", "-1s", "1.5s", "1h", "901s", "16min", "٣s", "1 s"])
def test_another_timeout_is_an_error(text: str) -> None:
    with pytest.raises(InvalidQuery, match="timeout must be"):
        parse(f"/a.json?timeout={text.replace(' ', '+')}")


def test_an_override_of_auth_is_parsed() -> None:
    assert parse().override is None
    name = "auth_variable_override"
    assert parse(f'/a.json?{name}={{"uid":"x"}}').override == AuthOverride({"uid": "x"})
    assert parse(f"/a.json?{name}=null").override == AuthOverride(None)
    with pytest.raises(InvalidQuery, match=name):
        parse(f"/a.json?{name}=1")


# Tokens.


@pytest.mark.parametrize(
    ("query", "headers", "token"),
    [
        ("", (), None),
        ("?auth=t", (), "t"),
        ("?access_token=t", (), "t"),
        ("", ("Authorization: Bearer t",), "t"),
        ("", ("Authorization:   bEARER   t  ",), "t"),
        ("?auth=t&access_token=t", ("Authorization: Bearer t", "Authorization: Bearer t"), "t"),
        ("?auth=&access_token=t", (), "t"),
        ("?auth=", ("Authorization:",), None),
        ("", ("Authorization: Bearer",), None),
        ("", ("Authorization: Basic dTpw",), None),
        ("", ("Authorization: Bearert",), None),
        ("?auth=t", ("Authorization: Basic dTpw",), "t"),
    ],
)
def test_a_token_is_found_in_parameters_and_header(
    query: str, headers: tuple[str, ...], token: str | None
) -> None:
    assert parse(f"/a.json{query}", *headers).token == token


@pytest.mark.parametrize(
    ("query", "headers"),
    [
        ("?auth=t&access_token=u", ()),
        ("?auth=t", ("Authorization: Bearer u",)),
        ("", ("Authorization: Bearer t", "Authorization: Bearer u")),
    ],
)
def test_two_different_tokens_are_an_error(query: str, headers: tuple[str, ...]) -> None:
    with pytest.raises(InvalidQuery, match="two different tokens"):
        parse(f"/a.json{query}", *headers)


def test_the_bytes_of_a_token_in_a_header_are_kept() -> None:
    assert find_token({b"authorization": [b"Bearer \xff"]}, {}) == "\xff"


# Tags and conditions.


@pytest.mark.parametrize(
    ("headers", "wanted"),
    [
        (("X-TreeDB-ETag: true",), True),
        (("x-firebase-etag: TRUE",), True),
        (("X-Vendor-ETag: false", "X-TreeDB-ETag: true"), True),
        (("X-TreeDB-ETag: 1",), False),
        (("X-TreeDB-ETag: false", "X-TreeDB-ETag: true"), False),
        (("X-Other-ETag: true",), False),
        (("ETag: true",), False),
    ],
)
def test_an_etag_is_requested_by_one_of_the_configured_headers(
    headers: tuple[str, ...], wanted: bool
) -> None:
    assert parse("/a.json", *headers).wants_etag is wanted


def test_the_header_that_requests_an_etag_can_be_configured() -> None:
    options = attrs.evolve(SETTINGS, http=HttpSettings(etag_headers=("Mine",)))
    for name, wanted in (("Mine", True), ("TreeDB", False)):
        request = make_request("/a.json", f"X-{name}-ETag: true")
        assert parse_request(request, options=options).wants_etag is wanted


def test_reads_have_the_condition_if_none_match_with_weak_tags() -> None:
    for method in READS:
        wanted = parse("/a.json", 'If-None-Match: W/"x"', "If-None-Match: y", method=method)
        assert wanted.condition == ETagSet(False, frozenset({"x", "y"}))
        assert parse("/a.json", 'If-Match: "x"', method=method).condition is None


def test_writes_have_the_condition_if_match_with_weak_tags() -> None:
    for method in WRITES:
        wanted = parse("/a.json", 'If-Match: W/"x"', 'If-Match: "y"', method=method)
        assert wanted.condition == ETagSet(False, frozenset({"x", "y"}))
        assert parse("/a.json", 'If-None-Match: "x"', method=method).condition is None
        assert parse("/a.json", "If-Match: *", method=method).condition == ETagSet(
            True, frozenset()
        )


def test_a_post_that_is_overridden_to_get_has_the_headers_of_a_read() -> None:
    headers = ("X-HTTP-Method-Override: GET", "If-None-Match: *", "Accept: text/event-stream")
    wanted = parse("/a.json", *headers, "Print: silent", method="POST")
    assert wanted.condition == ETagSet(True, frozenset())
    assert wanted.accepts_events
    assert wanted.print == "compact"


@pytest.mark.parametrize(("setting", "matches"), [("firebase", True), ("standard", False)])
def test_a_condition_is_parsed_in_the_dialect_of_the_request(
    setting: DialectName, matches: bool
) -> None:
    wanted = parse_request(make_request("/a.json", "If-None-Match: null_etag"), dialect=setting)
    assert wanted.condition is not None
    assert wanted.condition.matches(NULL_ETAG, False) is matches


# Dialects.


@pytest.mark.parametrize(
    ("target", "headers", "setting", "dialect"),
    [
        ("/a.json", (), "auto", STANDARD),
        ("/a.json?ns=shop", (), "auto", FIREBASE),
        ("/a.json", ("Authorization: x",), "auto", FIREBASE),
        ("/a.json?ns=shop", (), "standard", STANDARD),
        ("/a.json", (), "firebase", FIREBASE),
    ],
)
def test_the_dialect_is_chosen_by_the_setting_or_by_the_request(
    target: str, headers: tuple[str, ...], setting: DialectName, dialect: Dialect
) -> None:
    request = make_request(target, *headers)
    assert parse_request(request, dialect=setting).dialect is dialect
    assert RequestParser(SETTINGS).dialect_of(request, lambda _: setting) is dialect


@pytest.mark.parametrize(
    ("target", "hosts", "dialect"),
    [
        ("/a.b?print=%zz", ("shop.db.test",), FIREBASE),  # the setting of the project
        ("/a.json", (), STANDARD),
        ("/a.json", ("elsewhere.test",), STANDARD),
        ("/a.json?ns=shop", ("elsewhere.test",), FIREBASE),
        ("/a.json?print=%zz&ns=shop", ("elsewhere.test",), FIREBASE),
        ("/a.json", ("other.db.test",), STANDARD),
        ("*", ("shop.db.test",), STANDARD),
    ],
)
def test_an_error_has_a_dialect_whatever_is_wrong_with_the_request(
    target: str, hosts: tuple[str, ...], dialect: Dialect
) -> None:
    settings: dict[DatabaseName, DialectName] = {SHOP: "firebase"}
    request = make_request(target, hosts=hosts)
    assert RequestParser(SETTINGS).dialect_of(request, settings.__getitem__) is dialect


# Explanations and streams.


@pytest.mark.parametrize(("text", "wanted"), [("true", True), ("True", True), ("1", False)])
def test_an_explanation_is_requested_by_its_header(text: str, wanted: bool) -> None:
    assert parse("/a.json", f"X-TreeDB-Explain: {text}").wants_explanation is wanted


@pytest.mark.parametrize(
    ("fields", "accepted"),
    [
        (("text/event-stream",), True),
        (("Text/Event-Stream",), True),
        (("application/json, text/event-stream;q=0.1",), True),
        (("application/json", "text/event-stream ; charset=utf-8"), True),
        (("text/event-stream;q=0.001",), True),
        (("text/event-stream;q=0",), False),
        (("text/event-stream; q=0.00",), False),
        (("text/event-streams",), False),
        (("x-text/event-stream",), False),
        (("text/*",), False),
        (("*/*",), False),
        ((), False),
    ],
)
def test_a_stream_is_requested_by_its_media_type(fields: tuple[str, ...], accepted: bool) -> None:
    headers = [f"Accept: {field}" for field in fields]
    for method in READS:
        assert parse("/a.json", *headers, method=method).accepts_events is accepted
    for method in WRITES:
        assert parse("/a.json", *headers, method=method).accepts_events is False


def test_the_last_event_id_is_kept_as_text() -> None:
    assert parse("/a.json", "Last-Event-ID: 7-ab").last_event_id == "7-ab"
    assert parse("/a.json", "Last-Event-ID:").last_event_id == ""


def test_secrets_are_not_shown_in_a_repr() -> None:
    target = '/a.json?auth=SECRET&auth_variable_override={"k":"SECRET"}'
    request = make_request(target, "Authorization: Bearer SECRET")
    location = locate(request)
    wanted = parse_request(request)
    assert wanted.token == "SECRET"
    assert "SECRET" not in repr(location) + repr(wanted)
