"""Where a request carries a token, what claims make of their bearer, and what an admin may do."""

from __future__ import annotations

import math
from typing import Any

import pytest

from treedbd.tree.query import InvalidQuery
from treedbd.web.head import Head
from treedbd.web.identity import identity
from treedbd.web.identity.identity import (
    ANONYMOUS,
    OWNER,
    AuthRequired,
    Identity,
    NotAdmin,
    Override,
)
from treedbd.web.identity.tokens import BadToken
from treedbd.web.parameters import Parameters, parse_parameters

USER = Identity(False, {"uid": "alice"}, 1000.0, "a secret")
ADMIN = Identity(True, {"uid": "root"}, 1000.0, "a secret")


def header(*fields: bytes) -> Head:
    return {b"host": [b"localhost"], b"authorization": list(fields)}


@pytest.mark.parametrize(
    ("head", "parameters", "token"),
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
def test_a_token_stands_in_any_of_three_places(
    head: Head, parameters: Parameters, token: str | None
) -> None:
    assert identity.find_token(head, parameters) == token


@pytest.mark.parametrize(
    ("head", "parameters"),
    [
        ({}, {"auth": "a", "access_token": "b"}),
        (header(b"Bearer a"), {"auth": "b"}),
        (header(b"Bearer a"), {"access_token": "b"}),
        (header(b"Bearer a", b"Bearer b"), {}),
    ],
)
def test_two_different_tokens_are_refused(head: Head, parameters: Parameters) -> None:
    with pytest.raises(InvalidQuery, match="two different tokens"):
        identity.find_token(head, parameters)


@pytest.mark.parametrize(
    ("claims", "uid", "provider"),
    [
        ({"uid": "a"}, "a", "custom"),
        ({"sub": "a"}, "a", "custom"),
        ({"uid": "a", "sub": "b"}, "a", "custom"),
        ({"uid": None, "sub": "b"}, "b", "custom"),
        ({"uid": "", "sub": "b"}, "", "custom"),
        ({}, None, "custom"),
        ({"uid": "a", "provider": "password"}, "a", "password"),
        ({"uid": "a", "provider": 7}, "a", "custom"),
        ({"sub": "a", "firebase": {"sign_in_provider": "google.com"}}, "a", "google.com"),
        ({"provider": "x", "firebase": {"sign_in_provider": "google.com"}}, None, "x"),
        ({"firebase": "sign_in_provider"}, None, "custom"),
        ({"firebase": {"sign_in_provider": None}}, None, "custom"),
    ],
)
def test_auth_has_uid_provider_and_all_claims(
    claims: dict[str, Any], uid: str | None, provider: str
) -> None:
    auth = {"uid": uid, "provider": provider, "token": claims}
    assert identity.user_auth(claims) == auth
    assert identity.service_auth(claims) == auth


@pytest.mark.parametrize("claims", [{"uid": 7}, {"uid": True}, {"uid": {"a": 1}}, {"sub": ["a"]}])
def test_a_uid_that_is_no_text_is_refused(claims: dict[str, Any]) -> None:
    with pytest.raises(BadToken, match=r"malformed: its (uid|sub) must be a string"):
        identity.user_auth(claims)


def test_the_auth_of_a_legacy_token_is_its_d_as_it_is() -> None:
    d = {"uid": 7, "any": {"thing": [None]}}
    assert identity.service_auth({"v": 0, "d": d, "iat": 1}) == d
    assert identity.service_auth({"v": 0, "d": {}}) == {}


@pytest.mark.parametrize("claims", [{"d": {"uid": "a"}}, {"v": 1, "d": {}}, {"v": 0}, {"v": False}])
def test_a_token_is_legacy_only_with_v_0_and_d(claims: dict[str, Any]) -> None:
    assert identity.service_auth(claims) == identity.user_auth(claims)


@pytest.mark.parametrize("d", [None, "a", 1, ["a"]])
def test_a_legacy_token_whose_d_is_no_object_is_refused(d: Any) -> None:
    with pytest.raises(BadToken, match="malformed: its d"):
        identity.service_auth({"v": 0, "d": d})


def test_in_the_tokens_of_providers_nothing_is_legacy() -> None:
    assert identity.user_auth({"v": 0, "d": {"uid": "b"}, "sub": "a"})["uid"] == "a"


@pytest.mark.parametrize(
    ("text", "auth"),
    [
        ("null", None),
        ("{}", {}),
        ('{"uid":"a","token":{"n":1.5}}', {"uid": "a", "token": {"n": 1.5}}),
    ],
)
def test_an_admin_can_have_the_rules_judge_with_another_auth(
    text: str, auth: dict[str, Any] | None
) -> None:
    judged = identity.override_auth(ADMIN, identity.parse_override(text))
    assert judged == Identity(False, auth, ADMIN.expires_at, ADMIN.source)
    assert not identity.override_auth(OWNER, Override(auth)).is_admin


def test_without_an_override_an_identity_stays_what_it_is() -> None:
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
    assert identity.parse_override(parameters["auth_variable_override"]) == Override({"uid": "a b"})


def test_nobody_else_can_override_auth() -> None:
    with pytest.raises(AuthRequired):
        identity.override_auth(ANONYMOUS, Override(None))
    with pytest.raises(NotAdmin):
        identity.override_auth(USER, Override(None))
    once = identity.override_auth(ADMIN, Override({"admin": True}))
    with pytest.raises(NotAdmin):
        identity.override_auth(once, Override(None))


def test_what_is_for_admins_says_so_to_others() -> None:
    identity.require_admin(ADMIN, "This")
    identity.require_admin(OWNER, "This")
    with pytest.raises(AuthRequired, match=r"^This takes an admin's token\.$"):
        identity.require_admin(ANONYMOUS, "This")
    with pytest.raises(NotAdmin, match=r"^This takes an admin's token; "):
        identity.require_admin(USER, "This")


def test_an_identity_shows_neither_claims_nor_what_vouches_for_it() -> None:
    hidden = Identity(True, {"uid": "hidden"}, math.inf, "hidden")
    assert "hidden" not in repr(hidden) + repr(Override({"uid": "hidden"}))
