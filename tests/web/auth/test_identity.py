"""Where the token of a request is found, the identity of its claims, and what an admin may do."""

from __future__ import annotations

import math
from typing import Any

import pytest

from treedbd.http1.parser import Headers
from treedbd.tree.types import InvalidQuery, Json
from treedbd.web.auth import identity
from treedbd.web.auth.identity import (
    ANONYMOUS,
    OWNER,
    AuthOverride,
    AuthRequired,
    Identity,
    NotAdmin,
)
from treedbd.web.auth.jwt import BadToken, Claims
from treedbd.web.request import Parameters, find_token, parse_parameters

USER = Identity(False, {"uid": "alice"}, 1000.0, "a secret")
ACCOUNTS = "accounts.example.com"
ADMIN = Identity(True, {"uid": "root"}, 1000.0, "a secret")


def header(*fields: bytes) -> Headers:
    return {b"host": [b"localhost"], b"authorization": list(fields)}


@pytest.mark.parametrize(
    ("headers", "parameters", "token"),
    [
        ({}, {}, None),
        (header(), {}, None),
        ({}, {"auth": "a.b.c"}, "a.b.c"),
        ({}, {"access_token": "a.b.c"}, "a.b.c"),
        (header(b"Bearer a.b.c"), {}, "a.b.c"),
        (header(b"bearer a.b.c"), {}, "a.b.c"),
        (header(b"  BEARER   a.b.c  "), {}, "a.b.c"),
        ({}, {"auth": ""}, None),
        ({}, {"auth": "", "access_token": ""}, None),
        (header(b""), {}, None),
        (header(b"Bearer"), {}, None),
        (header(b"Bearer "), {"auth": ""}, None),
        (header(b"Bearer"), {"auth": "a.b.c"}, "a.b.c"),
        ({}, {"auth": "", "access_token": "a.b.c"}, "a.b.c"),
        ({}, {"auth": "a.b.c", "access_token": "a.b.c"}, "a.b.c"),
        (header(b"Bearer a.b.c", b"Bearer a.b.c"), {"auth": "a.b.c"}, "a.b.c"),
        (header(b"Bearer\ta.b.c"), {}, "a.b.c"),
        (header(b"Basic YTpi"), {}, None),
        (header(b"Basic YTpi"), {"auth": "a.b.c"}, "a.b.c"),
        (header(b"Basic YTpi", b"Bearer a.b.c"), {}, "a.b.c"),
        (header(b"Token e30.e30.e30"), {}, None),
        (header(b"e30.e30.e30"), {}, None),
        (header(b"owner"), {}, None),
    ],
)
def test_a_token_is_found_in_any_of_three_places(
    headers: Headers, parameters: Parameters, token: str | None
) -> None:
    assert find_token(headers, parameters) == token


@pytest.mark.parametrize(
    ("headers", "parameters"),
    [
        ({}, {"auth": "a", "access_token": "b"}),
        (header(b"Bearer a"), {"auth": "b"}),
        (header(b"Bearer a"), {"access_token": "b"}),
        (header(b"Bearer a", b"Bearer b"), {}),
    ],
)
def test_two_different_tokens_are_refused(headers: Headers, parameters: Parameters) -> None:
    with pytest.raises(InvalidQuery, match="two different tokens"):
        find_token(headers, parameters)


@pytest.mark.parametrize(
    ("claims", "uid", "provider"),
    [
        ({"admin": True}, None, "custom"),
        ({"uid": "a"}, "a", "custom"),
        ({"sub": "a"}, "a", "custom"),
        ({"uid": "a", "sub": "b"}, "a", "custom"),
        ({"uid": None, "sub": "b"}, "b", "custom"),
        ({}, None, "custom"),
        ({"uid": "a", "provider": "password"}, "a", "password"),
        ({"uid": "a", "provider": 7}, "a", "custom"),
        ({"sub": "a", "firebase": {"sign_in_provider": "google.com"}}, "a", "google.com"),
        ({"provider": "x", "firebase": {"sign_in_provider": "google.com"}}, None, "x"),
        ({"firebase": "sign_in_provider"}, None, "custom"),
        ({"firebase": {"sign_in_provider": None}}, None, "custom"),
    ],
)
def test_the_auth_of_a_service_token_has_uid_provider_and_all_claims(
    claims: dict[str, Any], uid: str | None, provider: str
) -> None:
    auth = {"uid": uid, "provider": provider, "token": claims}
    assert identity.auth_of_service_token(claims) == auth


@pytest.mark.parametrize(
    ("claims", "uid", "provider"),
    [
        ({"sub": "a"}, "a", "accounts.example.com"),
        ({"sub": "a", "uid": "b", "provider": "custom"}, "a", "accounts.example.com"),
        ({"sub": "a", "v": 0, "d": {"uid": "b"}}, "a", "accounts.example.com"),
        ({"sub": "a", "firebase": {"sign_in_provider": "google.com"}}, "a", "google.com"),
        ({"sub": "a", "firebase": {"sign_in_provider": "custom"}}, "a", "accounts.example.com"),
        ({"sub": "a", "firebase": {"sign_in_provider": ""}}, "a", "accounts.example.com"),
        ({"sub": "a", "firebase": {"sign_in_provider": 7}}, "a", "accounts.example.com"),
        ({"sub": "a", "firebase": "sign_in_provider"}, "a", "accounts.example.com"),
        ({"sub": "a" * 256}, "a" * 256, "accounts.example.com"),
        ({"sub": "ä.#$[] 人"}, "ä.#$[] 人", "accounts.example.com"),
    ],
)
def test_the_auth_of_a_providers_token_has_its_sub_as_uid(
    claims: dict[str, Any], uid: str, provider: str
) -> None:
    auth = identity.auth_of_provider_token(claims, ACCOUNTS)
    assert auth == {"uid": uid, "provider": provider, "token": claims}


def test_the_configuration_names_a_provider_and_a_prefix_for_its_uids() -> None:
    auth = identity.auth_of_provider_token({"sub": "a"}, "accounts", "acc:")
    assert (auth["uid"], auth["provider"]) == ("acc:a", "accounts")


BAD_UIDS = ["", "a" * 257, "a/b", "/", "a\n", "\x00", "a\x7f", "a\x85"]


@pytest.mark.parametrize("uid", BAD_UIDS)
def test_a_uid_that_fits_no_path_is_refused(uid: str) -> None:
    for name in ("uid", "sub"):
        with pytest.raises(BadToken, match=f"malformed: its {name} must have 1 to 256 characters"):
            identity.auth_of_service_token({name: uid})
    with pytest.raises(BadToken, match="malformed: its sub must have 1 to 256 characters"):
        identity.auth_of_provider_token({"sub": uid}, ACCOUNTS)


def test_a_prefix_counts_for_the_length_of_a_uid_and_is_none_by_itself() -> None:
    auth = identity.auth_of_provider_token({"sub": "a" * 252}, ACCOUNTS, "acc:")
    assert auth["uid"] == "acc:" + "a" * 252
    for sub in ("", "a" * 253):
        with pytest.raises(BadToken, match="1 to 252 characters"):
            identity.auth_of_provider_token({"sub": sub}, ACCOUNTS, "acc:")


@pytest.mark.parametrize("claims", [{}, {"sub": None}, {"sub": 7}, {"uid": "a"}])
def test_a_providers_token_must_name_its_subject(claims: dict[str, Any]) -> None:
    with pytest.raises(BadToken, match="malformed: its sub must be a string"):
        identity.auth_of_provider_token(claims, ACCOUNTS)


def test_no_provider_makes_the_uid_of_another_ones_user() -> None:
    prefixes = ["", "other:", "other:"]  # the last two are of one issuer: their users are the same
    for prefix, sub, uid in (("", "other", "other"), ("other:", "other:a", "other:other:a")):
        auth = identity.auth_of_provider_token({"sub": sub}, ACCOUNTS, prefix, prefixes)
        assert auth["uid"] == uid
    for sub in ("other:", "other:a"):
        with pytest.raises(BadToken, match="begins with another provider's prefix"):
            identity.auth_of_provider_token({"sub": sub}, ACCOUNTS, "", prefixes)


@pytest.mark.parametrize("claims", [{"uid": 7}, {"uid": True}, {"uid": {"a": 1}}, {"sub": ["a"]}])
def test_a_uid_that_is_not_a_string_is_refused(claims: dict[str, Any]) -> None:
    with pytest.raises(BadToken, match=r"malformed: its (uid|sub) must be a string"):
        identity.auth_of_service_token(claims)


def test_the_auth_of_a_legacy_token_is_its_d_unchanged() -> None:
    d: Claims = {"uid": 7, "any": {"thing": [None]}}
    assert identity.auth_of_service_token({"v": 0, "d": d, "iat": 1}) == d
    assert identity.auth_of_service_token({"v": 0, "d": {}}) == {}


@pytest.mark.parametrize("claims", [{"d": {"uid": "a"}}, {"v": 1, "d": {}}, {"v": 0}, {"v": False}])
def test_a_token_is_legacy_only_with_v_0_and_d(claims: dict[str, Any]) -> None:
    auth = identity.auth_of_service_token(claims)
    assert auth == {"uid": None, "provider": "custom", "token": claims}


@pytest.mark.parametrize("d", [None, "a", 1, ["a"]])
def test_a_legacy_token_whose_d_is_not_an_object_is_refused(d: Any) -> None:
    with pytest.raises(BadToken, match="malformed: its d"):
        identity.auth_of_service_token({"v": 0, "d": d})


@pytest.mark.parametrize(
    ("text", "auth"),
    [
        ("null", None),
        ("{}", {}),
        ('{"uid":"a","token":{"n":1.5}}', {"uid": "a", "token": {"n": 1.5}}),
    ],
)
def test_an_admin_can_have_the_rules_evaluated_with_another_auth(
    text: str, auth: dict[str, Any] | None
) -> None:
    overridden = identity.override_auth(ADMIN, identity.parse_override(text))
    assert overridden == Identity(False, auth, ADMIN.expires_at, ADMIN.source)
    assert not identity.override_auth(OWNER, AuthOverride(auth)).is_admin


def test_without_an_override_an_identity_is_unchanged() -> None:
    assert identity.parse_override(None) is None
    for each in (ANONYMOUS, USER, ADMIN, OWNER):
        assert identity.override_auth(each, None) is each


@pytest.mark.parametrize(
    "text",
    ["", "true", "1", '"a"', "[]", "{", '{"a":NaN}', "nul", "{}{}", '{"a":' * 40 + "1" + "}" * 40],
)
def test_an_override_that_is_neither_an_object_nor_null_is_refused(text: str) -> None:
    with pytest.raises(InvalidQuery, match="JSON object or null"):
        identity.parse_override(text)


def test_an_override_is_read_from_the_query_string() -> None:
    parameters = parse_parameters(b'auth_variable_override={"uid":"a%20b"}&auth=x')
    assert identity.parse_override(parameters["auth_variable_override"]) == AuthOverride(
        {"uid": "a b"}
    )


def test_only_an_admin_can_override_auth() -> None:
    with pytest.raises(AuthRequired):
        identity.override_auth(ANONYMOUS, AuthOverride(None))
    with pytest.raises(NotAdmin):
        identity.override_auth(USER, AuthOverride(None))
    once = identity.override_auth(ADMIN, AuthOverride({"admin": True}))
    with pytest.raises(NotAdmin):
        identity.override_auth(once, AuthOverride(None))


def test_an_admin_who_may_only_read_stays_so_with_another_auth() -> None:
    reader = Identity(True, {"uid": "root"}, source="x", is_read_only=True)
    others: list[dict[str, Json] | None] = [None, {}, {"uid": "ada", "admin": True}]
    for auth in others:
        assert identity.override_auth(reader, AuthOverride(auth)).is_read_only


@pytest.mark.parametrize("value", [1, 0, "true", "false", None, [], {}])
def test_a_read_only_that_is_neither_true_nor_false_is_malformed(value: Json) -> None:
    with pytest.raises(BadToken, match="read_only must be true or false"):
        identity.is_read_only({"admin": True, "read_only": value})
    assert identity.is_read_only({"read_only": True})
    assert not identity.is_read_only({"read_only": False})
    assert not identity.is_read_only({})


def test_a_request_that_requires_an_admin_says_so_to_others() -> None:
    identity.require_admin(ADMIN, "This")
    identity.require_admin(OWNER, "This")
    with pytest.raises(AuthRequired, match=r"^This requires an admin's token\.$"):
        identity.require_admin(ANONYMOUS, "This")
    with pytest.raises(NotAdmin, match=r"^This requires an admin's token; "):
        identity.require_admin(USER, "This")


def test_an_identity_shows_neither_its_claims_nor_its_source() -> None:
    hidden = Identity(True, {"uid": "hidden"}, math.inf, "hidden")
    assert "hidden" not in repr(hidden) + repr(AuthOverride({"uid": "hidden"}))
