"""JSON Web Keys (RFC 7517): the keys of a provider's key set with which signatures are verified.

The key determines the algorithm: RSA of 2048 to 8192 bits verifies RS256, P-256 verifies ES256.
All other keys, and keys for another use, are ignored.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final, Literal, TypeAlias

import attrs
import jwt
import orjson
from jwt.algorithms import Algorithm, ECAlgorithm, RSAAlgorithm

from treedbd.tree.types import Json

KeyAlgorithm: TypeAlias = Literal["RS256", "ES256"]

MIN_RSA_BITS: Final = 2048
MAX_RSA_BITS: Final = 8192
MAX_KEYS: Final = 100

_ALGORITHMS: Final[dict[KeyAlgorithm, Algorithm]] = {
    "RS256": RSAAlgorithm(RSAAlgorithm.SHA256),
    "ES256": ECAlgorithm(ECAlgorithm.SHA256),
}
_MEMBERS: Final[dict[KeyAlgorithm, tuple[str, ...]]] = {
    "RS256": ("kty", "n", "e"),
    "ES256": ("kty", "crv", "x", "y"),
}


class InvalidKeySet(ValueError):
    """A key set that cannot be used.

    Attributes:
        problem: what is wrong with the document, from the verb on.

    """

    def __init__(self, problem: str) -> None:
        super().__init__(f"The key set {problem}.")
        self.problem = problem


@attrs.frozen
class PublicKey:
    """A public key that verifies signatures of one algorithm.

    `material` holds the members of the JWK that make up the key, as they were in the set; equal
    keys have equal material.
    """

    key_id: str | None
    algorithm: KeyAlgorithm
    material: tuple[str, ...]
    _public: Any = attrs.field(eq=False, repr=False)

    def verify(self, signed: bytes, signature: bytes) -> bool:
        """Return whether the private half of this key made the signature."""
        return _ALGORITHMS[self.algorithm].verify(signed, self._public, signature)


class KeySet:
    """The keys of one set, found by id and algorithm."""

    def __init__(self, keys: Iterable[PublicKey]) -> None:
        self.keys: Final = frozenset(keys)
        self._by_id: dict[tuple[str | None, str], PublicKey] = {
            (key.key_id, key.algorithm): key for key in self.keys
        }

    def has(self, key_id: str) -> bool:
        """Return whether any key has this id."""
        return any(key.key_id == key_id for key in self.keys)

    def find(self, key_id: str | None, algorithm: str) -> PublicKey | None:
        """Return the key for a token's `kid`; without one, the only key of that algorithm."""
        if key_id is not None:
            return self._by_id.get((key_id, algorithm))
        candidates = [key for key in self.keys if key.algorithm == algorithm]
        return candidates[0] if len(candidates) == 1 else None


def parse_key_set(body: bytes) -> KeySet:
    """Return the usable keys of a JWK set; raise `InvalidKeySet`."""
    try:
        document = orjson.loads(body)
    except ValueError:
        document = None
    entries = document.get("keys") if isinstance(document, dict) else None
    if not isinstance(entries, list):
        raise InvalidKeySet("is not a JWK set")
    if len(entries) > MAX_KEYS:
        raise InvalidKeySet(f"has more than {MAX_KEYS} keys")
    return KeySet(key for entry in entries if (key := _parse_key(entry)) is not None)


def _parse_key(entry: Json) -> PublicKey | None:
    if not isinstance(entry, dict) or not _can_verify(entry):
        return None
    key_id = entry.get("kid")
    algorithm = _algorithm_of(entry)
    if algorithm is None or entry.get("alg", algorithm) != algorithm:
        return None
    # Only the members of the public key are used: the private half in a set never is.
    members = {name: entry.get(name) for name in _MEMBERS[algorithm]}
    if not isinstance(key_id, str | None) or not all(isinstance(m, str) for m in members.values()):
        return None
    try:
        public = _ALGORITHMS[algorithm].from_jwk(members)
    except (ValueError, TypeError, jwt.PyJWTError):
        return None
    if algorithm == "RS256" and not MIN_RSA_BITS <= public.key_size <= MAX_RSA_BITS:
        return None
    return PublicKey(key_id, algorithm, tuple(map(str, members.values())), public)


def _can_verify(entry: dict[str, Json]) -> bool:
    operations = entry.get("key_ops", ["verify"])
    return (
        entry.get("use", "sig") == "sig" and isinstance(operations, list) and "verify" in operations
    )


def _algorithm_of(entry: dict[str, Json]) -> KeyAlgorithm | None:
    if entry.get("kty") == "RSA":
        return "RS256"
    if entry.get("kty") == "EC" and entry.get("crv") == "P-256":
        return "ES256"
    return None
