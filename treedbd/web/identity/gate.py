"""Who may come in at all: the verifiers of all projects, and what a token makes of its bearer."""

from __future__ import annotations

from collections.abc import Callable

from twisted.internet.defer import Deferred

from treedbd.database.question import Caller
from treedbd.web.identity.identity import ANONYMOUS, Identity, Override, override_auth
from treedbd.web.identity.tokens import BadToken
from treedbd.web.identity.verifier import Verifier


class Gate:
    """Identifies callers, by project."""

    def __init__(
        self, verifier: Callable[[str], Verifier | None], wall_clock: Callable[[], float]
    ) -> None:
        """Take the verifier of a project from `verifier`; None trusts nobody."""
        self._verifier = verifier
        self._wall_clock = wall_clock

    def identify(
        self, project: str, token: str | None, override: Override | None
    ) -> Identity | Deferred[Identity]:
        """Return who sent a token to a project; a Deferred while a provider's keys are fetched.

        Fails with or raises `BadToken`, `ProviderUnavailable`, `AuthRequired` or `NotAdmin`.
        """
        if token is None:
            return override_auth(ANONYMOUS, override)
        verifier = self._verifier(project)
        if verifier is None:
            raise BadToken("The token has an unknown issuer.")
        found = verifier.verify(token, self._wall_clock())
        if isinstance(found, Deferred):
            return found.addCallback(override_auth, override)
        return override_auth(found, override)

    def trusts(self, project: str, identity: Identity) -> bool:
        """Tell whether what vouches for an identity is still trusted."""
        verifier = self._verifier(project)
        return verifier is not None and verifier.trusts(identity)


def caller_of(identity: Identity) -> Caller:
    """Return what the database has to know of an identity."""
    return Caller(identity.auth, identity.is_admin)
