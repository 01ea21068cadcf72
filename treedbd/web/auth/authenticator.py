"""Authentication of requests: the verifiers of all projects, and from a token to an identity."""

from __future__ import annotations

from collections.abc import Callable
from typing import NoReturn

from twisted.internet.defer import Deferred
from twisted.internet.interfaces import IReactorTime

from treedbd.database.requests import DeadlinePassed
from treedbd.web.auth.identity import ANONYMOUS, HOST_SOURCE, AuthOverride, Identity, override_auth
from treedbd.web.auth.jwt import BadToken
from treedbd.web.auth.verifier import Verifier


class Authenticator:
    """Identifies the callers of each project."""

    def __init__(
        self,
        verifier: Callable[[str], Verifier | None],
        clock: IReactorTime,
        wall_clock: Callable[[], float],
    ) -> None:
        """Identify by the verifier of a project; `verifier` returns None if it trusts no token.

        `clock` measures timeouts; `wall_clock` returns seconds since 1970, for the times in tokens.
        """
        self._verifier = verifier
        self._clock = clock
        self._wall_clock = wall_clock

    async def identify(
        self,
        project: str,
        token: str | None,
        override: AuthOverride | None,
        timeout_s: float,
        known: Identity | None = None,
    ) -> Identity:
        """Return the identity that a token has in a project; waits only for a provider's keys.

        Who is `known` without a token, needs none. Raises `BadToken`, `ProviderUnavailable`,
        `AuthRequired`, `NotAdmin` or `DeadlinePassed`.
        """
        if known is not None:
            return override_auth(known, override)
        if token is None:
            return override_auth(ANONYMOUS, override)
        verifier = self._verifier(project)
        if verifier is None:
            raise BadToken("The token has an unknown issuer.", "issuer")
        identity = verifier.verify(token, self._wall_clock())
        if isinstance(identity, Deferred):
            identity = await identity.addTimeout(timeout_s, self._clock, _time_out)
        return override_auth(identity, override)

    def recall(self, project: str, token: str) -> Identity | None:
        """Return the identity of a token that was verified before, None if it must be verified."""
        verifier = self._verifier(project)
        return None if verifier is None else verifier.recall(token, self._wall_clock())

    def trusts(self, project: str, identity: Identity) -> bool:
        """Return whether a project still trusts the secret or provider that an identity is from."""
        if identity.source == HOST_SOURCE:
            return True
        verifier = self._verifier(project)
        return verifier is not None and verifier.trusts(identity)


def _time_out(_: object, __: float) -> NoReturn:
    raise DeadlinePassed("the identity provider answered")
