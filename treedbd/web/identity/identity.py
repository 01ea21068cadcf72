"""Who is asking: where a request carries a token, and what its claims make of its bearer.

Nothing is verified here: that is the verifier's. What rules say about an identity is not known
here either.
"""

from __future__ import annotations

from typing import Final

import attrs

from treedbd.tree import printing
from treedbd.tree.query import InvalidQuery
from treedbd.tree.value import InvalidData, Json
from treedbd.web.head import Head
from treedbd.web.identity.tokens import MAX_CLAIM_LEVELS, BadToken, Claims, exceeds_levels
from treedbd.web.parameters import Parameters

CUSTOM: Final = "custom"


class AuthRequired(Exception):
    """Something that takes an admin was asked without a token; the message says what."""


class NotAdmin(Exception):
    """Something that takes an admin was asked with a token that is not an admin's."""


@attrs.frozen
class Identity:
    """Who asks.

    `auth` is what the rules know by that name, None for nobody. `expires_at` is in seconds since
    1970, leeway included, None for never. `source` names the secret or provider that vouches.
    """

    is_admin: bool
    auth: Json | None = attrs.field(repr=False)
    expires_at: float | None = None
    source: str = attrs.field(default="", repr=False)


ANONYMOUS: Final = Identity(False, None, source="nobody")
OWNER: Final = Identity(True, None, source="emulator")


@attrs.frozen
class Override:
    """The `auth` with which an admin wants the rules to judge a request."""

    auth: dict[str, Json] | None = attrs.field(repr=False)


def find_token(head: Head, parameters: Parameters) -> str | None:
    """Return the token that a request carries, None if it carries none.

    Raises `InvalidQuery` where it carries two that differ. An `Authorization` of another scheme
    than Bearer carries none.
    """
    found = {parameters.get("auth"), parameters.get("access_token")}
    for value in head.get(b"authorization", ()):
        found.add(_bearer_token(value.decode("latin-1").strip()))
    found -= {None, ""}
    if len(found) > 1:
        raise InvalidQuery("The request carries two different tokens.")
    return found.pop() if found else None


def _bearer_token(field: str) -> str:
    scheme, *token = field.split(None, 1) or ("",)
    return token[0] if token and scheme.lower() == "bearer" else ""


def parse_override(text: str | None) -> Override | None:
    """Return what `auth_variable_override` asks for, None if it is absent; raise `InvalidQuery`."""
    if text is None:
        return None
    try:
        auth = printing.parse(text.encode())
    except InvalidData:
        auth = ()
    if not isinstance(auth, dict | None) or exceeds_levels(auth, MAX_CLAIM_LEVELS):
        raise InvalidQuery("auth_variable_override must be a JSON object or null.")
    return Override(auth)


def override_auth(identity: Identity, override: Override | None) -> Identity:
    """Return the identity by which the rules are to judge; raise `AuthRequired` or `NotAdmin`.

    An admin who overrides `auth` is none for that request.
    """
    if override is None:
        return identity
    require_admin(identity, "auth_variable_override")
    return attrs.evolve(identity, is_admin=False, auth=override.auth)


def require_admin(identity: Identity, what: str) -> None:
    """Raise `AuthRequired` for a caller without a token, `NotAdmin` for one who is no admin."""
    if identity.is_admin:
        return
    if identity.source == ANONYMOUS.source:
        raise AuthRequired(f"{what} takes an admin's token.")
    raise NotAdmin(f"{what} takes an admin's token; this one is not.")


def service_auth(claims: Claims) -> Json:
    """Return the `auth` of a service token, or that which a legacy token carries (`v`, `d`).

    Raises `BadToken`.
    """
    version = claims.get("v")
    if type(version) is not int or version != 0 or "d" not in claims:
        return user_auth(claims)
    if not isinstance(claims["d"], dict):
        raise BadToken("The token is malformed: its d must be a JSON object.")
    return claims["d"]


def user_auth(claims: Claims) -> Json:
    """Return the `auth` that the claims of a token make; raise `BadToken`."""
    name = "uid" if claims.get("uid") is not None else "sub"
    uid = claims.get(name)
    if not isinstance(uid, str | None):
        raise BadToken(f"The token is malformed: its {name} must be a string.")
    return {"uid": uid, "provider": _sign_in(claims), "token": claims}


def _sign_in(claims: Claims) -> str:
    """Return how the user signed in, as the token says it or as the vendor's tokens do."""
    vendor = claims.get("firebase")
    for provider in (
        claims.get("provider"),
        vendor.get("sign_in_provider") if isinstance(vendor, dict) else None,
    ):
        if isinstance(provider, str):
            return provider
    return CUSTOM
