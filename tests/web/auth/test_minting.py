"""Requests for tokens, and what a renewed one claims."""

from __future__ import annotations

import json
from typing import Any

import pytest

from treedbd.limits import MAX_MADE_TOKEN_S, MAX_RENEWED_S
from treedbd.tree.types import InvalidData
from treedbd.web.auth.jwt import parse_ttl
from treedbd.web.auth.minting import TokenRequest, parse_token_request, renew_claims

NOW = 1_700_000_000


def request_of(**members: Any) -> TokenRequest:
    """Return the parsed request for the token of a user."""
    request = parse_token_request(json.dumps({"uid": "ada", **members}).encode())
    assert request is not None
    return request


def refusal(body: str) -> str:
    with pytest.raises(InvalidData) as raised:
        parse_token_request(body.encode())
    return str(raised.value)


def test_a_request_names_a_user_with_claims_for_a_time() -> None:
    request = request_of(claims={"role": "editor", "provider": "shop"}, ttl="2h")
    assert request.claims == {"role": "editor", "provider": "shop", "uid": "ada"}
    assert request.life_s(None) == 7200
    assert request_of().claims == {"uid": "ada"}


def test_a_request_to_renew_says_nothing_else() -> None:
    assert parse_token_request(b' {"renew": true} ') is None
    for body in ('{"renew":false}', '{"renew":1}', '{"renew":true,"uid":"ada"}', '{"renew":"x"}'):
        assert refusal(body).startswith("A token is requested by an object with"), body


@pytest.mark.parametrize(
    "name",
    ["admin", "read_only", "auth_time", "uid", "sub", "iss", "iat", "nbf", "exp", "v", "d"],
)
@pytest.mark.parametrize("value", [True, False, None, 0, {"uid": "eve"}])
def test_claims_hold_nothing_that_is_more_than_a_users_own(name: str, value: object) -> None:
    body = json.dumps({"uid": "ada", "claims": {"a": 1, name: value}})
    assert refusal(body) == f"claims must not have {name}."


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ("", "Not valid JSON"),
        ("{", "Not valid JSON"),
        ("[]", "A token is requested by"),
        ("null", "A token is requested by"),
        ('{"uid":"ada","admin":true}', "A token is requested by"),
        ('{"uid":"ada","expires":"1h"}', "A token is requested by"),
        ("{}", "uid must be a string"),
        ('{"uid":null}', "uid must be a string"),
        ('{"uid":7}', "uid must be a string"),
        ('{"uid":""}', "1 to 256 characters"),
        ('{"uid":"a/b"}', "none of them /"),
        ('{"uid":"a\\nb"}', "control character"),
        (json.dumps({"uid": "x" * 257}), "1 to 256 characters"),
        ('{"uid":"ada","claims":null}', "claims must be an object"),
        ('{"uid":"ada","claims":[]}', "claims must be an object"),
        ('{"uid":"ada","ttl":null}', "ttl must be a number with a unit"),
        ('{"uid":"ada","ttl":3600}', "ttl must be a number with a unit"),
        ('{"uid":"ada","ttl":"never"}', "ttl must be a number with a unit"),
        ('{"uid":"ada","ttl":"0s"}', "ttl must be a number with a unit"),
        ('{"uid":"ada","ttl":"-1h"}', "ttl must be a number with a unit"),
    ],
)
def test_another_request_is_refused_with_what_is_wrong(body: str, said: str) -> None:
    assert said in refusal(body)


def test_a_token_lives_an_hour_at_least_a_second_and_at_most_what_is_allowed() -> None:
    assert request_of().life_s(None) == 3600
    assert request_of().life_s(600) == 600
    assert request_of(ttl="30d").life_s(None) == MAX_MADE_TOKEN_S
    assert request_of(ttl="10m").life_s(600) == 600
    for ttl, most, said in (("31d", None, "2592000"), ("2592001s", None, "2592000")):
        with pytest.raises(InvalidData, match=f"at most {said} seconds"):
            request_of(ttl=ttl).life_s(most)
    with pytest.raises(InvalidData, match="at most 600 seconds"):
        request_of(ttl="601s").life_s(600)


@pytest.mark.parametrize("text", ["", "1", "h", "1w", "1.5h", "٣h", "1 h", "01234567890s", "0d"])
def test_a_time_to_live_has_a_number_and_a_unit(text: str) -> None:
    assert parse_ttl(text) is None


# Renewed tokens.


def admin_claims(begun: int = NOW, life: int = 1800, **claims: Any) -> dict[str, Any]:
    return {"uid": "root", "admin": True, "iat": begun, "exp": begun + life, **claims}


def test_a_renewed_token_has_the_same_claims_and_life() -> None:
    old = admin_claims(read_only=True, role={"a": [1]}, nbf=NOW)
    claims, end = renew_claims(old, NOW + 1000.7, None)
    assert claims == {**old, "iat": NOW + 1000, "auth_time": NOW}
    assert end == NOW + 2800


def test_the_last_one_ends_twelve_hours_after_the_first_was_made() -> None:
    claims, end = admin_claims(life=3600), NOW + 3600
    while end < NOW + MAX_RENEWED_S:
        claims, after = renew_claims(claims, end - 1, None)
        assert claims["auth_time"] == NOW
        assert after > end
        claims["exp"] = end = after
    assert end == NOW + MAX_RENEWED_S
    with pytest.raises(InvalidData, match="12 hours after the first was made"):
        renew_claims(claims, end - 1, None)


def test_a_token_is_never_replaced_by_one_that_ends_before_it() -> None:
    for life in (MAX_RENEWED_S, 7 * 86_400):
        with pytest.raises(InvalidData, match="cannot be renewed"):
            renew_claims(admin_claims(life=life), NOW + 10, None)
    # the clock that has issued it is a little ahead
    assert renew_claims(admin_claims(begun=NOW + 5), NOW, None)[1] == NOW + 1805


@pytest.mark.parametrize("missing", ["iat", "exp"])
def test_a_token_without_an_end_or_a_beginning_is_not_renewed(missing: str) -> None:
    claims = admin_claims()
    del claims[missing]
    with pytest.raises(InvalidData, match="without iat and exp"):
        renew_claims(claims, NOW, None)


def test_an_auth_time_to_come_does_not_extend_the_twelve_hours() -> None:
    with pytest.raises(InvalidData, match="auth_time to come"):
        renew_claims(admin_claims(auth_time=NOW + 11), NOW, None)
    for wrong in ("1700000000", True, None, 1e15):
        with pytest.raises(InvalidData, match="auth_time must be a number"):
            renew_claims(admin_claims(auth_time=wrong), NOW, None)
    with pytest.raises(InvalidData, match="cannot be renewed"):
        renew_claims(admin_claims(auth_time=NOW - MAX_RENEWED_S), NOW, None)


def test_a_renewed_token_lives_no_longer_than_the_project_allows() -> None:
    _, end = renew_claims(admin_claims(life=3600), NOW + 500, 600)
    assert end == NOW + 500 + 600


def test_the_token_of_a_link_is_replaced_by_one_that_lives_for_the_session() -> None:
    claims, end = renew_claims(admin_claims(life=120, session_s=1800), NOW + 5, None)
    assert end == NOW + 5 + 1800
    assert renew_claims({**claims, "exp": end}, NOW + 100, None)[1] == NOW + 100 + 1800
    assert renew_claims(admin_claims(life=120, session_s=1800), NOW + 5, 600)[1] == NOW + 5 + 600
    for wrong in (0, -5, True, "1800", None):
        assert renew_claims(admin_claims(life=120, session_s=wrong), NOW + 5, None)[1] == NOW + 125
    week = 7 * 86_400
    assert renew_claims(admin_claims(life=120, session_s=week), NOW, None)[1] == NOW + MAX_RENEWED_S
