"""JSON Web Tokens: which are accepted, and every way in which one is refused."""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import math
import pathlib
from collections.abc import Callable
from typing import Any

import jwt as pyjwt
import orjson
import pytest
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from hypothesis import given
from hypothesis import strategies as st

from tests.oidc import private_key, public_jwk
from treedbd.web.auth import jwt
from treedbd.web.auth.jwt import BadSecret, BadToken

SECRET = b"0123456789abcdef0123456789abcdef"
OTHER = b"another secret of 32 bytes or so."
NOW = 1_700_000_000.0


def base64url(raw: bytes) -> str:
    return base64.urlsafe_b64encode(raw).rstrip(b"=").decode()


def forge(
    header: bytes | dict[str, Any],
    claims: bytes | dict[str, Any] = b"{}",
    secret: bytes = SECRET,
    digest: Callable[..., Any] = hashlib.sha256,
) -> str:
    """Return a token with any header and claims, signed with HMAC."""
    parts = [each if isinstance(each, bytes) else orjson.dumps(each) for each in (header, claims)]
    signed = ".".join(map(base64url, parts))
    return f"{signed}.{base64url(hmac.digest(secret, signed.encode(), digest))}"


def with_unused_bits(text: str) -> str:
    """Return a token whose base64url has other unused bits at its end; the bytes are the same."""
    alphabet = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_"
    return text[:-1] + alphabet[alphabet.index(text[-1]) + 1]


def with_claims(**claims: Any) -> str:
    return forge({"alg": "HS256"}, claims)


def verify(text: str, *secrets: bytes) -> jwt.Claims:
    token = jwt.parse(text)
    jwt.verify_by_secret(token, secrets or (SECRET,))
    jwt.lifetime(token.claims, NOW)
    return token.claims


def test_a_minted_token_verifies_and_carries_its_claims() -> None:
    claims: jwt.Claims = {"uid": "ål", "n": 2**60, "deep": {"list": [1, 2.5, None, True]}}
    text = jwt.mint(SECRET, claims, now=NOW, ttl_s=60)
    assert verify(text) == {**claims, "iat": NOW, "exp": NOW + 60}


def test_another_implementation_reads_a_minted_token() -> None:
    text = jwt.mint(SECRET, {"uid": "a"}, now=NOW)
    options: Any = {"verify_iat": False}
    assert pyjwt.decode(text, SECRET, algorithms=["HS256"], options=options)["uid"] == "a"
    assert pyjwt.get_unverified_header(text) == {"alg": "HS256", "typ": "JWT"}


def test_any_one_of_several_secrets_verifies_and_is_returned() -> None:
    token = jwt.parse(jwt.mint(OTHER, {}, now=NOW))
    assert jwt.verify_by_secret(token, [SECRET, OTHER]) == OTHER


@pytest.mark.parametrize(
    "claims", [{"x": "y" * 8192}, {"x": math.nan}, {"x": object()}, {"x": "\ud800"}]
)
def test_claims_that_no_verifier_accepts_are_not_minted(claims: dict[str, Any]) -> None:
    with pytest.raises(BadToken, match="malformed"):
        jwt.mint(SECRET, claims, now=NOW)


def test_a_short_secret_mints_nothing() -> None:
    with pytest.raises(BadSecret):
        jwt.mint(b"short", {}, now=NOW)


HS256 = {"alg": "HS256"}
PEM = (
    private_key("RS256").public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
)
DER = (
    private_key("RS256").public_key().public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)
)
JWK = json.dumps(public_jwk(private_key("RS256"))).encode()

MALFORMED = {
    "nothing": "",
    "a word": "owner",
    "two parts": "e30.e30",
    "four parts": forge(HS256) + ".e30",
    "five parts, an encrypted token": "e30.e30.e30.e30.e30",
    "an empty header": "." + forge(HS256).split(".", 1)[1],
    "padding": forge(HS256) + "=",
    "padding inside": "eyJhbGciOiJIUzI1NiJ9==.e30." + forge(HS256).split(".")[2],
    "a line end": forge(HS256) + "\n",
    "a space before": " " + forge(HS256),
    "the alphabet of plain base64": "e30+.e30.e30",
    "letters that are not ASCII": "é30.e30.e30",
    "digits that are not ASCII": "e٣0.e30.e30",
    "a length that base64 cannot have": "eyJhb.e30.e30",
    "unused bits that are set": with_unused_bits(forge(HS256)),
    "too long": forge(HS256, {"x": "y" * 8192}),
    "a header that is not JSON": forge(b"alg=HS256"),
    "a header that is an array": forge(b"[]"),
    "a header that is null": forge(b"null"),
    "claims that are not JSON": forge(HS256, b"uid=a"),
    "claims that are an array": forge(HS256, b"[]"),
    "claims that are not UTF-8": forge(HS256, b'{"uid":"\xff"}'),
    "a lone surrogate": forge(HS256, b'{"uid":"\\ud800"}'),
    "a number out of range": forge(HS256, b'{"n":1e999}'),
    "not a number": forge(HS256, b'{"n":NaN}'),
    "text after the claims": forge(HS256, b"{} {}"),
    "a repeated member in the header": forge(b'{"alg":"HS256","alg":"HS256"}'),
    "a repeated member, spelt otherwise": forge(b'{"alg":"HS256","\\u0061lg":"none"}'),
    "a repeated claim": forge(HS256, b'{"admin":false,"admin":true}'),
    "a repeated claim inside": forge(HS256, b'{"d":{"uid":"a","uid":"b"}}'),
    "no algorithm": forge({"typ": "JWT"}),
    "an algorithm that is not a string": forge({"alg": ["HS256"]}),
    "a kid that is not a string": forge({**HS256, "kid": {"a": 1}}),
    "a kid that is null": forge({**HS256, "kid": None}),
    "crit": forge({**HS256, "crit": ["exp"], "exp": 1}),
    "an empty crit": forge({**HS256, "crit": []}),
    "jku": forge({**HS256, "jku": "https://evil.example/keys"}),
    "jwk": forge({**HS256, "jwk": {"kty": "oct", "k": "AAAA"}}),
    "x5u": forge({**HS256, "x5u": "https://evil.example/cert"}),
    "x5c": forge({**HS256, "x5c": ["AAAA"]}),
    "b64": forge({**HS256, "b64": False}),
    "zip": forge({**HS256, "zip": "DEF"}),
    "claims nested too deep": forge(HS256, b'{"d":' + b"[" * 40 + b"]" * 40 + b"}"),
    "claims nested beyond the parsers": forge(HS256, b'{"d":' + b"[" * 2000 + b"]" * 2000 + b"}"),
    "objects nested beyond the parsers": forge(HS256, b'{"d":' * 900 + b"1" + b"}" * 900),
    "exp as text": with_claims(exp=f"{NOW + 60:.0f}"),
    "exp null": with_claims(exp=None),
    "exp true": with_claims(exp=True),
    "exp a list": with_claims(exp=[NOW + 60]),
    "exp in milliseconds": with_claims(exp=NOW * 1000),
    "exp huge": with_claims(exp=1e300),
    "exp with very many digits": forge(HS256, b'{"exp":' + b"9" * 300 + b"}"),
    "exp with more digits than a double": forge(HS256, b'{"exp":' + b"9" * 400 + b"}"),
    "exp too far in the past": with_claims(exp=-1e300),
    "nbf as text": with_claims(nbf="0"),
    "nbf false": with_claims(nbf=False),
    "iat as text": with_claims(iat="0"),
    "iat huge": with_claims(iat=1e300),
}


@pytest.mark.parametrize("text", MALFORMED.values(), ids=MALFORMED)
def test_a_malformed_token_is_refused(text: str) -> None:
    with pytest.raises(BadToken, match=r"^The token is malformed: .*\.$"):
        verify(text)


FORGED = {
    "none": forge({"alg": "none"}).rpartition(".")[0] + ".",
    "none, with a signature": forge({"alg": "none"}),
    "None": forge({"alg": "None"}),
    "HS384": forge({"alg": "HS384"}, digest=hashlib.sha384),
    "HS512": forge({"alg": "HS512"}, digest=hashlib.sha512),
    "HS384 in name, HS256 in truth": forge({"alg": "HS384"}),
    "HS512 in name, HS256 in truth": forge({"alg": "HS512"}),
    "hs256": forge({"alg": "hs256"}),
    "RS256 signed with the secret": forge({"alg": "RS256"}),
    "HS256 with a longer digest": forge(HS256, digest=hashlib.sha512),
    "HS256 with half a signature": forge(HS256)[:-20],
    "HS256 without a signature": forge(HS256).rpartition(".")[0] + ".",
    "another secret": forge(HS256, secret=OTHER),
    "no secret": forge(HS256, secret=b""),
    "an RSA public key as secret, PEM": forge(HS256, secret=PEM),
    "an RSA public key as secret, DER": forge(HS256, secret=DER),
    "a JWK as secret": forge(HS256, secret=JWK),
    "the secret as text of base64": forge(HS256, secret=base64.b64encode(SECRET)),
}


@pytest.mark.parametrize("text", FORGED.values(), ids=FORGED)
def test_a_forged_token_is_refused(text: str) -> None:
    with pytest.raises(BadToken, match="signature"):
        verify(text)


def test_claims_with_the_signature_of_other_claims_are_refused() -> None:
    header, _, signature = with_claims(uid="a").split(".")
    with pytest.raises(BadToken, match="signature"):
        verify(".".join((header, base64url(b'{"uid":"b"}'), signature)))


def test_without_a_secret_nothing_is_verified() -> None:
    with pytest.raises(BadToken, match="signature"):
        jwt.verify_by_secret(jwt.parse(forge(HS256)), [])


@pytest.mark.parametrize("name", ["kid", "typ", "cty", "x5t", "x5t#S256"])
def test_other_members_of_the_header_are_ignored(name: str) -> None:
    assert verify(forge({**HS256, name: "any"}, {"uid": "a"})) == {"uid": "a"}


@pytest.mark.parametrize(
    ("claims", "problem"),
    [
        ({"exp": NOW - 10}, "expired"),
        ({"exp": NOW - 9.9}, None),
        ({"exp": NOW + 0.5}, None),
        ({"exp": 0}, "expired"),
        ({"exp": -1}, "expired"),
        ({"exp": jwt.MAX_TIME_S}, None),
        ({"nbf": NOW + 10}, None),
        ({"nbf": NOW + 10.1}, "not yet valid"),
        ({"iat": NOW + 10}, None),
        ({"iat": NOW + 11}, "not yet valid"),
        ({"nbf": 0, "iat": NOW + 11}, "not yet valid"),
        ({"nbf": NOW + 11, "iat": 0}, "not yet valid"),
        ({}, None),
    ],
)
def test_times_are_checked_with_ten_seconds_of_leeway(
    claims: jwt.Claims, problem: str | None
) -> None:
    if problem is None:
        life = jwt.lifetime(claims, NOW)
        assert life.since <= NOW < life.until
    else:
        with pytest.raises(BadToken, match=problem):
            jwt.lifetime(claims, NOW)


def test_a_lifetime_is_from_when_until_when_a_token_is_valid() -> None:
    life = jwt.lifetime({"nbf": NOW - 5, "iat": NOW - 7, "exp": NOW + 60}, NOW)
    assert (life.since, life.until) == (NOW - 15, NOW + 70)
    assert jwt.lifetime({}, NOW) == jwt.Lifetime(-math.inf, math.inf)


@pytest.mark.parametrize(
    ("claims", "until"),
    [
        ({"iat": NOW}, NOW + 3600),
        ({"iat": NOW - 3000}, NOW + 600),
        ({"iat": NOW - 3605}, NOW - 5),
        ({"iat": NOW, "exp": NOW + 60}, NOW + 60),
        ({"iat": NOW, "exp": NOW + 86_400}, NOW + 3600),
        ({"exp": NOW + 60}, NOW + 60),
        ({"iat": NOW - 3611}, None),
        ({"iat": NOW - 3611, "exp": NOW + 60}, None),
        ({"exp": NOW + 86_400}, None),
        ({}, None),
    ],
)
def test_the_maximum_life_starts_at_the_time_of_issue(
    claims: jwt.Claims, until: float | None
) -> None:
    if until is None:
        with pytest.raises(BadToken, match=r"expired|valid for longer"):
            jwt.lifetime(claims, NOW, 3600)
    else:
        assert jwt.lifetime(claims, NOW, 3600).until == until + jwt.LEEWAY_S


@given(st.text(max_size=200) | st.from_regex(r"[A-Za-z0-9_-]*\.[A-Za-z0-9_-]*\.[A-Za-z0-9_-]*"))
def test_any_text_is_refused(text: str) -> None:
    with pytest.raises(BadToken):
        verify(text)


@given(st.binary(max_size=60), st.binary(max_size=60))
def test_any_bytes_as_header_and_claims_are_refused(header: bytes, claims: bytes) -> None:
    with pytest.raises(BadToken):
        verify(forge(header, claims))


@given(st.data())
def test_a_token_with_any_character_changed_is_refused(data: st.DataObject) -> None:
    text = jwt.mint(SECRET, {"uid": "alice", "admin": False}, now=NOW)
    index = data.draw(st.integers(0, len(text) - 1))
    other = data.draw(st.characters(codec="ascii").filter(lambda each: each != text[index]))
    with pytest.raises(BadToken):
        verify(text[:index] + other + text[index + 1 :])


@pytest.mark.parametrize("secret", [b"", b"x" * 31])
def test_a_secret_under_32_bytes_is_refused_and_not_shown(secret: bytes) -> None:
    with pytest.raises(BadSecret, match=rf"^The secret has {len(secret)} bytes, .* 32\.$"):
        jwt.check_secret(secret)


@pytest.mark.parametrize(
    "secret",
    [
        pytest.param(PEM, id="PEM"),
        pytest.param(DER, id="DER"),
        pytest.param(JWK, id="JWK"),
        pytest.param(b" \n" + JWK, id="JWK after white space"),
        pytest.param(b'{"kty":"oct","k":"AAAAAAAAAAAA"}', id="symmetric JWK"),
    ],
)
def test_a_key_is_refused_as_a_secret(secret: bytes) -> None:
    with pytest.raises(BadSecret, match="random bytes"):
        jwt.check_secret(secret)


@pytest.mark.parametrize(
    "secret", [b"x" * 32, bytes(range(256)), b"123456789012345678901234567890.5"]
)
def test_any_32_bytes_are_accepted_as_a_secret(secret: bytes) -> None:
    jwt.check_secret(secret)


@pytest.mark.parametrize(
    ("content", "secret"),
    [
        (SECRET, SECRET),
        (SECRET + b"\n", SECRET),
        (SECRET + b"\r\n", SECRET),
        (SECRET + b"\n\n", SECRET + b"\n"),
        (SECRET + b"\r", SECRET + b"\r"),
        (b" \n" + SECRET + b" \n", b" \n" + SECRET + b" "),
        (bytes(range(200, 256)), bytes(range(200, 256))),
    ],
)
def test_the_secret_is_the_content_of_its_file_without_one_final_line_end(
    tmp_path: pathlib.Path, content: bytes, secret: bytes
) -> None:
    file = tmp_path / "shop.secret"
    file.write_bytes(content)
    assert jwt.read_secret(file) == secret


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (None, r"cannot be read \(No such file"),
        (SECRET[:31] + b"\n", "has 31 bytes"),
        (b"", "has 0 bytes"),
        (b"x" * 65_537, "more than 65536 bytes"),
    ],
)
def test_the_error_of_a_bad_secret_file_says_why(
    tmp_path: pathlib.Path, content: bytes | None, problem: str
) -> None:
    file = tmp_path / "shop.secret"
    if content is not None:
        file.write_bytes(content)
    with pytest.raises(BadSecret, match=problem) as raised:
        jwt.read_secret(file)
    assert SECRET[:31].decode() not in str(raised.value)


def test_the_content_of_a_token_is_not_shown() -> None:
    token = jwt.parse(forge({**HS256, "kid": "hidden"}, {"uid": "hidden"}))
    assert repr(token) == "Token(algorithm='HS256')"


@pytest.mark.parametrize("text", [*MALFORMED.values(), *FORGED.values()], ids=[*MALFORMED, *FORGED])
def test_no_error_contains_a_part_of_its_token(text: str) -> None:
    with pytest.raises(BadToken) as raised:
        verify(text)
    error: BaseException | None = raised.value
    while error is not None:
        shown = repr(error) + str(vars(error))
        assert not [part for part in text.split(".") if len(part) > 6 and part in shown]
        assert not getattr(error, "doc", None)
        error = error.__context__


@given(st.binary(max_size=20), st.binary(max_size=20))
def test_a_fingerprint_distinguishes_the_same_bytes_in_other_parts(
    left: bytes, right: bytes
) -> None:
    assert (jwt.fingerprint(left, right) == jwt.fingerprint(left + right)) is False
    assert (jwt.fingerprint(left) == jwt.fingerprint(right)) is (left == right)
