"""Which keys of a provider's set are used, and for what."""

from __future__ import annotations

import json
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa
from jwt.algorithms import ECAlgorithm, OKPAlgorithm, RSAAlgorithm

from tests.oidc import private_key, public_jwk
from treedbd.web.auth.jwt import InvalidKeySet, KeySet, parse_key_set

RSA = public_jwk(private_key("RS256"), kid="r")
EC = public_jwk(private_key("ES256"), kid="e")
SIGN = {
    "RS256": RSAAlgorithm(RSAAlgorithm.SHA256).sign,
    "ES256": ECAlgorithm(ECAlgorithm.SHA256).sign,
}


def key_set(*jwks: Any) -> KeySet:
    return parse_key_set(json.dumps({"keys": jwks}).encode())


@pytest.mark.parametrize("algorithm", ["RS256", "ES256"])
def test_a_key_verifies_what_its_private_half_signed(algorithm: str) -> None:
    private: Any = private_key(algorithm)
    key = key_set(public_jwk(private, kid="k")).find("k", algorithm)
    assert key is not None
    signature = SIGN[algorithm](b"signed", private)  # type: ignore[operator]
    assert key.verify(b"signed", signature)
    assert not key.verify(b"other", signature)
    assert not key.verify(b"signed", signature[:-1])
    assert not key.verify(b"signed", b"")


def test_the_key_determines_the_algorithm() -> None:
    keys = key_set(RSA, EC)
    assert keys.find("r", "RS256") is not None
    assert keys.find("e", "ES256") is not None
    for key_id, algorithm in [("r", "ES256"), ("e", "RS256"), ("r", "HS256"), ("r", "RS512")]:
        assert keys.find(key_id, algorithm) is None


def test_without_a_kid_only_the_sole_key_of_an_algorithm_is_found() -> None:
    second = public_jwk(private_key("ES256", 1), kid="e2")
    assert key_set(RSA, EC).find(None, "ES256") is not None
    assert key_set(EC, second).find(None, "ES256") is None
    assert key_set({**EC, "kid": None}).find(None, "ES256") is not None


@pytest.mark.parametrize(
    ("jwk", "is_used"),
    [
        (RSA, True),
        ({**RSA, "alg": "RS256"}, True),
        ({**RSA, "alg": "RS512"}, False),
        ({**RSA, "alg": "PS256"}, False),
        ({**RSA, "alg": "HS256"}, False),
        ({**EC, "alg": "ES256"}, True),
        ({**EC, "alg": "RS256"}, False),
        ({**RSA, "use": "enc"}, False),
        ({**RSA, "key_ops": ["verify"]}, True),
        ({**RSA, "key_ops": ["encrypt"]}, False),
        ({**RSA, "key_ops": "verify"}, False),
        ({**RSA, "kid": 7}, False),
        ({**RSA, "n": 7}, False),
        ({**RSA, "n": "="}, False),
        ({**RSA, "e": "AA"}, False),
        ({**RSA, "n": "AQAB"}, False),
        ({"kty": "RSA", "kid": "r"}, False),
        ({**EC, "crv": "P-384"}, False),
        ({**EC, "crv": "secp256k1"}, False),
        ({**EC, "x": EC["y"]}, False),
        ({**EC, "y": "AA"}, False),
        ({"kty": "oct", "k": "A" * 43, "kid": "o", "alg": "HS256"}, False),
        ({"kid": "?"}, False),
        ("RSA", False),
        (None, False),
    ],
)
def test_only_keys_that_verify_one_of_the_two_algorithms_are_used(jwk: Any, is_used: bool) -> None:
    assert bool(key_set(jwk).keys) is is_used


def test_a_weak_key_and_keys_of_other_types_are_not_used() -> None:
    weak = rsa.generate_private_key(65537, 1024)
    other = OKPAlgorithm.to_jwk(ed25519.Ed25519PrivateKey.generate().public_key(), as_dict=True)
    wide = ECAlgorithm.to_jwk(ec.generate_private_key(ec.SECP384R1()).public_key(), as_dict=True)
    assert not key_set(public_jwk(weak), other, wide).keys


def test_only_the_public_half_of_a_private_key_is_used() -> None:
    private: Any = private_key("RS256")
    jwk = {**RSAAlgorithm.to_jwk(private, as_dict=True), "kid": "r"}
    del jwk["key_ops"]
    assert key_set(jwk).keys == key_set(RSA).keys
    assert jwk["d"] not in repr(key_set(jwk).keys)


def test_sets_of_the_same_keys_are_equal() -> None:
    assert key_set(RSA, EC).keys == key_set({**EC, "x5t": "any"}, RSA, "?").keys
    assert key_set(RSA).keys != key_set({**RSA, "kid": "other"}).keys
    assert key_set(RSA).keys != key_set(public_jwk(private_key("RS256", 1), kid="r")).keys


def test_an_empty_set_is_valid() -> None:
    assert key_set().keys == frozenset()


@pytest.mark.parametrize(
    "body", [b"", b"null", b"[]", b"{}", b'{"keys":{}}', b"<html>", b'{"keys":[', b"\xff"]
)
def test_a_document_that_is_not_a_key_set_is_refused(body: bytes) -> None:
    with pytest.raises(InvalidKeySet, match="is not a JWK set"):
        parse_key_set(body)


def test_a_set_of_too_many_keys_is_refused() -> None:
    with pytest.raises(InvalidKeySet, match="more than 100"):
        key_set(*[EC] * 101)
