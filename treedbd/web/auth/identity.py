"""Identities: what the claims of a token say about a caller, and the override of `auth`.

Nothing is verified here; `verifier` does that. Rules are not evaluated here either.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable
from typing import Final

import attrs

from treedbd.limits import MAX_CLAIM_LEVELS, MAX_UID_CHARACTERS
from treedbd.names import SERVICE_PROVIDER
from treedbd.tree.types import InvalidData, InvalidQuery, Json
from treedbd.tree.value import parse
from treedbd.web.auth.jwt import BadToken, Claims, exceeds_levels

ADMIN_CLAIM: Final = "admin"
READ_ONLY_CLAIM: Final = "read_only"
"""The claims that make an admin, and one who may only read, in a token that the project signed."""
_NOT_IN_A_UID = re.compile(r"[/\x00-\x1f\x7f-\x9f]")


class AuthRequired(Exception):
    """A request without a token for something that only an admin may do.

    Attributes:
        what: what was requested, as the subject of a sentence.

    """

    def __init__(self, what: str) -> None:
        super().__init__(f"{what} requires an admin's token.")
        self.what = what


class NotAdmin(Exception):
    """A request with another token than an admin's for something that only an admin may do.

    Attributes:
        what: what was requested, as the subject of a sentence.

    """

    def __init__(self, what: str) -> None:
        super().__init__(f"{what} requires an admin's token; this one is not.")
        self.what = what


class TokenRequired(Exception):
    """A request without a token for `what` only a caller with a token may do.

    `what` is the subject of a sentence.
    """

    def __init__(self, what: str) -> None:
        super().__init__(f"{what} requires a token.")


class ReadOnlyToken(Exception):
    """A request that would write, with an admin's token that may only read."""

    def __init__(self) -> None:
        super().__init__("This token may only read.")


@attrs.frozen
class Identity:
    """Who sent a request.

    `auth` is the variable of that name in the rules, None for an anonymous caller. `expires_at` is
    in seconds since 1970, leeway included, None for never. `source` is the fingerprint of the
    secret or provider that verified the token; `ANONYMOUS` and `OWNER` have sources of their own,
    and so have those whom the program that embeds the service names. An admin who `is_read_only`
    may write nothing, also with another `auth`. `token_id` names its token to operators without
    being one: the `jti`, or a digest; None without a token. `admin` is the uid of the admin
    who has sent this with another `auth`, empty if the admin has none, None for others. `uid` is
    that of a user, None for an admin and for a caller without one.
    """

    is_admin: bool
    auth: dict[str, Json] | None = attrs.field(repr=False)
    expires_at: float | None = None
    source: str = attrs.field(default="", repr=False)
    is_read_only: bool = False
    token_id: str | None = attrs.field(default=None, eq=False)
    admin: str | None = attrs.field(default=None, eq=False)
    uid: str | None = attrs.field(init=False, eq=False, repr=False)

    @property
    def is_of_admin(self) -> bool:
        """Whether an admin has sent this, perhaps with another `auth`."""
        return self.is_admin or self.admin is not None

    @uid.default
    def _uid(self) -> str | None:
        if self.is_admin or self.auth is None:
            return None
        uid = self.auth.get("uid")
        return uid if isinstance(uid, str) else None


ANONYMOUS: Final = Identity(False, None, source="anonymous")
OWNER: Final = Identity(True, None, source="emulator", token_id="owner")  # noqa: S106 - a name
HOST_SOURCE: Final = "application"
"""The source of identities that the embedding program names."""
_NAME: Final = re.compile(r"(?!sha256:)[!-~]{1,128}")
_DIGEST_DIGITS: Final = 16


def name_token(text: str, claims: Claims) -> str:
    """Return the id of a token: its `jti` (RFC 7519, section 4.1.7), or a digest of all of it.

    A `jti` that is not a short word of ASCII, or looks like a digest, is not used.
    """
    jti = claims.get("jti")
    if isinstance(jti, str) and _NAME.fullmatch(jti):
        return jti
    return "sha256:" + hashlib.sha256(text.encode()).hexdigest()[:_DIGEST_DIGITS]


@attrs.frozen
class AuthOverride:
    """The `auth` that replaces an admin's own while the rules are evaluated."""

    auth: dict[str, Json] | None = attrs.field(repr=False)


def parse_override(text: str | None) -> AuthOverride | None:
    """Parse the parameter `auth_variable_override`; None if absent. Raises `InvalidQuery`."""
    if text is None:
        return None
    try:
        auth = parse(text.encode())
    except InvalidData:
        auth = ""
    if not isinstance(auth, dict | None) or exceeds_levels(auth, MAX_CLAIM_LEVELS):
        raise InvalidQuery("auth_variable_override must be a JSON object or null.")
    return AuthOverride(auth)


def override_auth(identity: Identity, override: AuthOverride | None) -> Identity:
    """Return the identity for which rules are evaluated; raise `AuthRequired` or `NotAdmin`.

    An admin who overrides `auth` is not an admin for that request.
    """
    if override is None:
        return identity
    require_admin(identity, "auth_variable_override")
    uid = (identity.auth or {}).get("uid")
    admin = uid if isinstance(uid, str) else ""
    return attrs.evolve(identity, is_admin=False, auth=override.auth, admin=admin)


def require_admin(identity: Identity, what: str) -> None:
    """Raise `AuthRequired` for a caller without a token, `NotAdmin` for one who is not an admin.

    `what` is what was requested, as the subject of a sentence.
    """
    if identity.is_admin:
        return
    if identity.source == ANONYMOUS.source:
        raise AuthRequired(what)
    raise NotAdmin(what)


def is_read_only(claims: Claims) -> bool:
    """Return whether an admin's token may only read; raise `BadToken` if that is not clear.

    A misspelt value must not make an admin who may write of one who was meant to read.
    """
    value = claims.get(READ_ONLY_CLAIM, False)
    if not isinstance(value, bool):
        raise BadToken(f"The token is malformed: its {READ_ONLY_CLAIM} must be true or false.")
    return value


def auth_of_service_token(claims: Claims) -> dict[str, Json]:
    """Return the `auth` of a token that the project signed; of a legacy one (`v` is 0), its `d`.

    Raises `BadToken`.
    """
    version = claims.get("v")
    if type(version) is int and version == 0 and "d" in claims:
        auth = claims["d"]
        if not isinstance(auth, dict):
            raise BadToken("The token is malformed: its d must be a JSON object.")
        return auth
    name = "uid" if claims.get("uid") is not None else "sub"
    uid = None if claims.get(name) is None else _parse_uid(claims, name)
    provider = claims.get("provider")
    if not isinstance(provider, str):
        provider = _sign_in_provider(claims) or SERVICE_PROVIDER
    return {"uid": uid, "provider": provider, "token": claims}


def auth_of_provider_token(
    claims: Claims, provider: str, uid_prefix: str = "", other_prefixes: Iterable[str] = ()
) -> dict[str, Json]:
    """Return the `auth` of a token that a provider signed; raise `BadToken`.

    `auth.uid` is the `sub`, which is unique within its issuer (OpenID Connect Core 1.0, section 2),
    after the provider's prefix: no other claim, because users may choose those themselves. A uid
    with one of `other_prefixes`, of the project's other providers, is malformed. `provider` is the
    `auth.provider` of a token that does not say how the user signed in.
    """
    uid = _parse_uid(claims, "sub", uid_prefix)
    if uid.startswith(tuple(set(other_prefixes) - {"", uid_prefix})):
        raise BadToken("The token is malformed: its sub begins with another provider's prefix.")
    named = _sign_in_provider(claims)
    if named is None or named == SERVICE_PROVIDER:
        named = provider
    return {"uid": uid, "provider": named, "token": claims}


def _parse_uid(claims: Claims, name: str, prefix: str = "") -> str:
    """Return the uid that a claim holds, after a prefix; raise `BadToken`.

    Rules join uids to paths, so one that does not fit a path is malformed.
    """
    subject = claims.get(name)
    if not isinstance(subject, str):
        raise BadToken(f"The token is malformed: its {name} must be a string.")
    uid = prefix + subject
    if not subject or len(uid) > MAX_UID_CHARACTERS or _NOT_IN_A_UID.search(uid):
        raise BadToken(
            f"The token is malformed: its {name} must have 1 to {MAX_UID_CHARACTERS - len(prefix)} "
            "characters, none of them / or a control character."
        )
    return uid


def _sign_in_provider(claims: Claims) -> str | None:
    """Return how the user signed in, as Firebase's tokens say it; None if the token does not."""
    firebase = claims.get("firebase")
    named = firebase.get("sign_in_provider") if isinstance(firebase, dict) else None
    return named if isinstance(named, str) and named else None
