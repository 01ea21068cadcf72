"""Tokens: as a client sends them, and made of a header and claims that are signed here."""

from __future__ import annotations

import hashlib
import hmac
from base64 import urlsafe_b64encode
from typing import Final

from tests.fuzz.expecting import outcome
from treedbd.web.auth import jwt
from treedbd.web.auth.identity import Identity, auth_of_service_token
from treedbd.web.auth.jwt import BadToken
from treedbd.web.auth.providers import Provider, ProviderKeys
from treedbd.web.auth.verifier import Verifier

TOKENS: Final = (
    *(b"\n", b".", b"{", b"}", b'"', b":", b",", b'"alg":"HS256"', b'"alg":"none"', b'"typ":"JWT"'),
    *(b'"kid":"a"', b'"crit":["x"]', b'"jku":"https://a"', b'"admin":true', b'"admin":1', b"=="),
    *(b'"uid":"ada"', b'"sub":"ada"', b'"exp":0', b'"exp":1e400', b'"nbf":9e9', b'"iat":-1', b"-_"),
    *(b'"v":0', b'"d":{}', b'"v":0,"d":{"uid":"x"}', b'"iss":"a"', b'"aud":["a"]', b"[[[[[[[["),
    *(b'"firebase":{"sign_in_provider":"x"}', b"null", b'"uid":"a/b"', b"\xff", b"\\u0000", b"eyJ"),
)
SECRET: Final = b"0123456789abcdef0123456789abcdef"
_NOW: Final = 1_700_000_000.0


def check(data: bytes) -> None:
    """Verify a token: as it is if the first byte is odd, else one that is signed here.

    In that case a line end divides what follows into the header and the claims.
    """
    mode, rest = (data[:1] or b"\0")[0], data[1:]
    if mode & 1:
        text = rest.decode("latin-1")
        _check(text, is_signed=False)
        return
    header, _, claims = rest.partition(b"\n")
    signed = b".".join(map(_encode, (header, claims)))
    signature = hmac.digest(SECRET, signed, hashlib.sha256)
    _check(f"{signed.decode()}.{_encode(signature).decode()}", is_signed=True)
    wrong = bytes([signature[0] ^ 1 << (mode & 7)]) + signature[1:]
    _check(f"{signed.decode()}.{_encode(wrong).decode()}", is_signed=False)


def _check(text: str, *, is_signed: bool) -> None:
    verifier = Verifier([SECRET], open_keys=_open_none)
    identity = outcome(lambda: verifier.verify(text, _NOW), BadToken)
    assert isinstance(identity, Identity | BadToken), "A token waits for a provider."
    if isinstance(identity, BadToken):
        assert text not in str(identity) or len(text) < 4
        assert verifier.recall(text, _NOW) is None
        return
    assert is_signed, "A token without the signature of the secret is accepted."
    token = jwt.parse(text)
    assert token.algorithm == "HS256"
    assert identity == verifier.recall(text, _NOW)
    assert identity.is_admin is (token.claims.get("admin") is True)
    assert identity.auth == auth_of_service_token(token.claims)
    assert jwt.lifetime(token.claims, _NOW).until > _NOW


def _open_none(provider: Provider) -> ProviderKeys:
    raise AssertionError(f"No provider is configured, but {provider} is asked.")


def _encode(part: bytes) -> bytes:
    return urlsafe_b64encode(part).rstrip(b"=")
