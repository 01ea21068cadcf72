"""Who a session is: `auth`, `gauth` and `unauth`, and tokens that expire.

An admin may be another user for the session, or nobody: `authvar` and `noauth`, as
`auth_variable_override` does for one request over HTTP. An `auth` that fails ends the identity that
there was before.
"""

from __future__ import annotations

from typing import Any

from treedbd.database.requests import Caller
from treedbd.http1.interface import IHttp1Request
from treedbd.limits import DEFAULT_TIMEOUT_S, MAX_CLAIM_LEVELS
from treedbd.tree.types import Json
from treedbd.web.auth.identity import AuthOverride, Identity
from treedbd.web.auth.jwt import BadToken, exceeds_levels
from treedbd.web.auth.unsigned import unsigned_identity
from treedbd.web.realtime.messages import InvalidRequest
from treedbd.web.realtime.service import RealtimeParts


class SessionCaller:
    """The identity of one session.

    Attributes:
        identity: who it is now.
        caller: the same as the rules see it; another object after each change.
        is_overridden: whether an admin is another user here.

    """

    __slots__ = ("_first", "_parts", "_project", "_request", "caller", "identity", "is_overridden")

    def __init__(
        self, parts: RealtimeParts, project: str, request: IHttp1Request, first: Identity
    ) -> None:
        """Begin as `first`, which the session is again without a token.

        Tokens of `project` count; `request` is what has opened the session.
        """
        self._parts = parts
        self._project = project
        self._request = request
        self._first = first
        self.is_overridden = False
        self._become(first)

    def forget(self) -> None:
        """Be again who opened the session."""
        self.is_overridden = False
        self._become(self._first)

    async def sign_in(self, body: dict[str, Any]) -> Json:
        """Become whom the token in a request names; return what it is answered.

        Raises as `Authenticator.identify`, or `InvalidRequest`; then the session is nobody.
        """
        self.forget()
        token = body.get("cred")
        if not isinstance(token, str):
            raise BadToken("The token is malformed: cred must be a string.")
        override = _parse_override(body)
        parts, headers = self._parts, self._request.headers
        if parts.guard is not None:
            parts.guard.check_token(headers, token)
        identity = None
        if parts.accepts_unsigned and override is None and parts.is_local(headers):
            identity = unsigned_identity(token)
        if identity is None:
            identify = parts.authenticator.identify
            identity = await identify(self._project, token, override, DEFAULT_TIMEOUT_S)
        self.is_overridden = override is not None
        self._become(identity)
        return {"auth": identity.auth}

    def _become(self, identity: Identity) -> None:
        self.identity = identity
        self.caller = Caller(identity.auth, identity.is_admin)


def _parse_override(body: dict[str, Any]) -> AuthOverride | None:
    if body.get("noauth") is True:
        return AuthOverride(None)
    if "authvar" not in body:
        return None
    variable = body["authvar"]
    if variable is None:
        return AuthOverride(None)
    if not isinstance(variable, dict) or exceeds_levels(variable, MAX_CLAIM_LEVELS):
        raise InvalidRequest("authvar must be an object.")
    return AuthOverride(variable)
