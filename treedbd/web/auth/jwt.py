"""JSON Web Tokens, the keys that verify them, and the secrets that sign them.

A token (RFC 7515, 7519) is parsed strictly, and completely before any part of it is used. Nothing
in it chooses how it is verified: by calling `verify_by_secret` the caller has chosen HS256 and the
secrets. This module does not know where in a request a token is, nor which identity its claims
describe.

The keys of a provider's key set (RFC 7517) verify signatures. The key determines the algorithm: RSA
of 2048 to 8192 bits verifies RS256, P-256 verifies ES256. All other keys, and keys for another use,
are ignored.

The secrets of projects, and that of development mode, are read from files, which only their owner
should be able to read. `treedb token` signs with them where no daemon runs, so this module imports
no Twisted.

No message, `repr` or traceback of this module contains a token, a part of one, or a secret.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import math
import pathlib
import re
import secrets
from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections.abc import Iterable, Mapping
from typing import Any, Final, Literal, TypeAlias

import attrs
import jwt
import orjson
from jwt.algorithms import Algorithm, ECAlgorithm, HMACAlgorithm, RSAAlgorithm

from treedbd.errors import OperatorError
from treedbd.files import create_directory, write_atomically
from treedbd.limits import MAX_CLAIM_LEVELS, MAX_TOKEN_CHARACTERS
from treedbd.tree.types import Json

Claims: TypeAlias = dict[str, Json]

MIN_SECRET_BYTES: Final = 32
"""The least size of a key for HS256 (RFC 7518, section 3.2)."""
MAX_SECRET_BYTES: Final = 65_536
DEVELOPMENT_SECRET: Final = "development.secret"  # noqa: S105 - the name of a file
_DEVELOPMENT_SECRET_BYTES: Final = 32
LEEWAY_S: Final = 10.0
"""Tolerance for clocks that differ, on every time in a token."""
MAX_TIME_S: Final = 253_402_300_799.0
"""The end of the year 9999: a later time is invalid, most likely one in milliseconds."""

_TTL_UNITS: Final = {"s": 1, "m": 60, "min": 60, "h": 3600, "d": 86_400}
_TTL = re.compile(r"([0-9]{1,10})(s|m|min|h|d)", re.ASCII)
_PARTS = re.compile(r"([A-Za-z0-9_-]+)\.([A-Za-z0-9_-]+)\.([A-Za-z0-9_-]*)")
# Header members with which a token would choose how it is verified or parsed.
_REFUSED_MEMBERS: Final = frozenset({"crit", "jku", "jwk", "x5u", "x5c", "b64", "zip", "enc"})
_HS256: Final = HMACAlgorithm(HMACAlgorithm.SHA256)

BadTokenReason: TypeAlias = Literal[
    "malformed",
    "signature",
    "expired",
    "not_yet_valid",
    "issuer",
    "audience",
    "lifetime",
    "origin",
]


class BadToken(Exception):
    """A token that is not valid; the message is a sentence that says why, without the token.

    Attributes:
        reason: the same in a word.

    """

    def __init__(self, message: str, reason: BadTokenReason = "malformed") -> None:
        super().__init__(message)
        self.reason: Final = reason


class BadSecret(ValueError):
    """A secret that must not be used.

    Attributes:
        problem: what is wrong with it, from the verb on; it does not contain the secret.

    """

    def __init__(self, problem: str) -> None:
        super().__init__(f"The secret {problem}.")
        self.problem = problem


class BadCredentials(OperatorError):
    """A file of secrets, keys or rules that cannot be used."""


@attrs.frozen
class Token:
    """A parsed token; nothing in it is verified yet."""

    algorithm: str
    key_id: str | None = attrs.field(repr=False)
    claims: Claims = attrs.field(repr=False)
    signed: bytes = attrs.field(repr=False)
    signature: bytes = attrs.field(repr=False)


@attrs.frozen
class Lifetime:
    """When a token is valid, leeway included: from `since` until just before `until`.

    Both are in seconds since 1970, and infinite if the token has no such claim.
    """

    since: float
    until: float


def parse(text: str) -> Token:
    """Parse a token in compact serialisation; raise `BadToken` for any other text."""
    if len(text) > MAX_TOKEN_CHARACTERS:
        raise _malformed(f"it is longer than {MAX_TOKEN_CHARACTERS} characters")
    found = _PARTS.fullmatch(text)
    if found is None:
        raise _malformed("it must be three parts of base64url without padding, joined by dots")
    raw = [_decode(part) for part in found.groups()]
    header, claims = _parse_object(raw[0]), _parse_object(raw[1])
    signature = raw[2]
    if header is None:
        raise _malformed("its header is not a JSON object without repeated members")
    if claims is None:
        raise _malformed("its claims are not a JSON object without repeated members")
    if signature is None:
        raise _malformed("its signature is not base64url")
    algorithm, key_id = _read_header(header)
    if exceeds_levels(claims, MAX_CLAIM_LEVELS):
        raise _malformed(f"its claims are nested deeper than {MAX_CLAIM_LEVELS} levels")
    return Token(
        algorithm=algorithm,
        key_id=key_id,
        claims=claims,
        signed=text[: found.end(2)].encode(),
        signature=signature,
    )


def _read_header(header: dict[str, Any]) -> tuple[str, str | None]:
    """Return the algorithm that a header names, and the id of the key, None if it has none."""
    refused = sorted(_REFUSED_MEMBERS & header.keys())
    if refused:
        raise _malformed(f"its header must not have {refused[0]}")
    algorithm, key_id = header.get("alg"), header.get("kid")
    if not isinstance(algorithm, str):
        raise _malformed("its header must name its algorithm")
    if not isinstance(key_id, str | None) or (key_id is None and "kid" in header):
        raise _malformed("the kid in its header must be a string")
    return algorithm, key_id


def lifetime(claims: Claims, now: float, max_life_s: float | None = None) -> Lifetime:
    """Return when a token with these claims is valid; raise `BadToken` if it is not valid `now`.

    With `max_life_s` it is valid for at most that long from its `iat`; without `iat`, its `exp`
    must be within that time from now.
    """
    life = _life(claims, now, max_life_s)
    if now >= life.until:
        raise BadToken("The token is expired.", "expired")
    if now < life.since:
        raise BadToken("The token is not yet valid.", "not_yet_valid")
    return life


def _life(claims: Claims, now: float, max_life_s: float | None = None) -> Lifetime:
    """Return when a token with these claims is valid, also if that time is past or to come."""
    expires, not_before, issued = (read_time(claims, name) for name in ("exp", "nbf", "iat"))
    until = math.inf if expires is None else expires
    if max_life_s is not None:
        until = min(until, _latest_end(expires, issued, now, max_life_s))
    since = max(*(-math.inf if time is None else time for time in (not_before, issued)))
    return Lifetime(since - LEEWAY_S, until + LEEWAY_S)


def verify_by_secret(token: Token, trusted: Iterable[bytes]) -> bytes:
    """Return which of the secrets signed a token with HS256; raise `BadToken` if none did."""
    if token.algorithm != "HS256":
        raise BadToken("The token's signature must be made with HS256.", "signature")
    for secret in trusted:
        if _HS256.verify(token.signed, secret, token.signature):
            return secret
    raise BadToken("The token's signature is wrong.", "signature")


def parse_ttl(text: str) -> float | None:
    """Return a time to live in seconds, as in `30s`, `5m`, `1h` or `7d`; None for other texts."""
    found = _TTL.fullmatch(text)
    seconds = int(found[1]) * _TTL_UNITS[found[2]] if found else 0
    return float(seconds) if seconds > 0 else None


def mint(
    secret: bytes, claims: Mapping[str, Json], *, now: float, ttl_s: float | None = None
) -> str:
    """Return a token with these claims, signed with HS256.

    `iat` is `now` unless the claims hold one; with `ttl_s` the token expires that many seconds
    after `now`, both in whole seconds. Raises `BadSecret`, and `BadToken` for claims that no
    verifier accepts, now or later.
    """
    check_secret(secret)
    payload: dict[str, Any] = {"iat": int(now), **claims}
    if ttl_s is not None:
        payload["exp"] = int(now) + math.ceil(ttl_s)
    try:
        text = jwt.encode(payload, secret, algorithm="HS256")
    except (TypeError, ValueError, RecursionError, jwt.PyJWTError):
        text = ""
    life = _life(parse(text).claims, now)
    if life.until <= max(now, life.since):
        raise BadToken("The token is expired, or would be before it is valid.", "expired")
    return text


def check_secret(secret: bytes) -> None:
    """Raise `BadSecret` for a secret that is too short, or that is a key or a certificate."""
    if len(secret) < MIN_SECRET_BYTES:
        raise BadSecret(f"has {len(secret)} bytes, but needs at least {MIN_SECRET_BYTES}")
    if not _is_opaque(secret):
        raise BadSecret("is a key, a certificate or a JWK, not random bytes")


def read_secret(file: pathlib.Path) -> bytes:
    """Return the secret in a file: its content without one final line end; raise `BadSecret`."""
    try:
        with file.open("rb") as opened:
            content = opened.read(MAX_SECRET_BYTES + 1)
    except OSError as error:
        raise BadSecret(f"cannot be read ({error.strerror})") from None
    if len(content) > MAX_SECRET_BYTES:
        raise BadSecret(f"has more than {MAX_SECRET_BYTES} bytes")
    secret = content.removesuffix(b"\n")
    if secret != content:
        secret = secret.removesuffix(b"\r")
    check_secret(secret)
    return secret


def read_project_secret(file: pathlib.Path, location: object) -> bytes:
    """Return the secret in a file that a setting at `location` names; raise `BadCredentials`."""
    try:
        return read_secret(file)
    except BadSecret as error:
        raise BadCredentials(
            location,
            f"names {file}, which {error.problem}",
            f"use a file with {MIN_SECRET_BYTES} random bytes or more that the user that runs "
            "treedb can read",
        ) from None


def ensure_development_secret(data: pathlib.Path) -> bytes:
    """Return the secret of development mode, created at its first use; raise `BadCredentials`."""
    file = data / DEVELOPMENT_SECRET
    try:
        if not file.exists():
            create_directory(data)
            write_atomically(file, secrets.token_urlsafe(_DEVELOPMENT_SECRET_BYTES).encode())
    except OSError as error:
        raise BadCredentials(
            file,
            f"cannot be created ({error.strerror})",
            f"let the user that runs treedb write to {data}",
        ) from None
    try:
        return read_secret(file)
    except BadSecret as error:
        raise BadCredentials(file, error.problem, "remove it: the next use makes another") from None


def derive_project_secret(secret: bytes, project: str) -> bytes:
    """Return the secret that signs the tokens of one project only, in development mode."""
    return hmac.new(secret, project.encode(), hashlib.sha256).hexdigest().encode()


def fingerprint(*parts: bytes) -> str:
    """Return a name for these byte strings that does not reveal them; they may be secrets."""
    digest = hashlib.sha256()
    for part in parts:
        digest.update(b"%d:" % len(part) + part)
    return digest.hexdigest()


def exceeds_levels(json: Json, levels: int) -> bool:
    """Return whether JSON is nested deeper than `levels`."""
    level = [json]
    for _ in range(levels):
        level = [child for parent in level for child in _children(parent)]
        if not level:
            return False
    return any(isinstance(node, dict | list) for node in level)


def _children(json: Json) -> Iterable[Json]:
    if isinstance(json, dict):
        return json.values()
    return json if isinstance(json, list) else ()


def _malformed(problem: str) -> BadToken:
    return BadToken(f"The token is malformed: {problem}.")


def _decode(part: str) -> bytes | None:
    """Decode base64url in its one canonical form (RFC 4648, section 3.5)."""
    try:
        raw = urlsafe_b64decode(part + "=" * (-len(part) % 4))
    except ValueError:
        return None
    return raw if urlsafe_b64encode(raw).rstrip(b"=") == part.encode() else None


def _refuse_repetition(members: list[tuple[str, Any]]) -> dict[str, Any]:
    unique = dict(members)
    if len(unique) != len(members):
        raise ValueError
    return unique


_REPETITION: Final = json.JSONDecoder(
    object_pairs_hook=_refuse_repetition, parse_int=str, parse_float=str
)


def _parse_object(raw: bytes | None) -> Claims | None:
    """Parse a JSON object without repeated members; return None for anything else.

    orjson parses, because it is strict about text and numbers; the second decoder only finds
    repeated members. The errors of both contain the text, so neither is raised from here.
    """
    try:
        parsed = orjson.loads(raw or b"")
        if isinstance(parsed, dict):
            _REPETITION.decode((raw or b"").decode())
            return parsed
    except (ValueError, RecursionError):
        pass
    return None


def read_time(claims: Claims, name: str) -> float | None:
    """Return a time in claims, in seconds since 1970, None if it is absent; raise `BadToken`."""
    if name not in claims:
        return None
    time = claims[name]
    if isinstance(time, int | float) and type(time) is not bool and abs(time) <= MAX_TIME_S:
        return float(time)
    raise _malformed(f"{name} must be a number of seconds since 1970")


def _latest_end(
    expires: float | None, issued: float | None, now: float, max_life_s: float
) -> float:
    """Return the latest end that `max_life_s` allows; raise `BadToken` if that is unknown."""
    if issued is not None:
        return issued + max_life_s
    if expires is not None and expires <= now + max_life_s + LEEWAY_S:
        return expires
    raise BadToken(
        f"The token is valid for longer than the {max_life_s:g} seconds allowed here.", "lifetime"
    )


def _is_opaque(secret: bytes) -> bool:
    try:
        _HS256.prepare_key(secret)
    except jwt.InvalidKeyError:
        return False
    return True


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
