"""The users whom the application that embeds the service has logged in."""

from __future__ import annotations

from collections.abc import Iterable

import attrs

from treedbd.http1.adapter import AdaptedRequest
from treedbd.http1.interface import IHttp1Request
from treedbd.web.auth.host_login import HostLogin
from treedbd.web.auth.identity import Identity
from treedbd.web.origins import OriginGuard
from treedbd.web.request import DataRequest


class Users:
    """Finds the user who sends a request, and refuses requests of pages of other sites."""

    def __init__(self, login: HostLogin, origins: Iterable[str]) -> None:
        """Ask `login`; pages of `origins` may send requests of users too."""
        self._login = login
        self._guard = OriginGuard(origins, is_for_users=True)

    async def find(self, request: IHttp1Request, timeout_s: float) -> Identity | None:
        """Return who is logged in, None if only a token can say who sends a request.

        Raises `ForeignOrigin`: browsers add a login to the requests of any page. Else raises as
        `HostLogin.find`.
        """
        original = request.original if isinstance(request, AdaptedRequest) else request
        user = await self._login.find(original, timeout_s, request.notifyFinish)
        if user is not None:
            self._guard.check(request)
        return user

    async def identify(self, request: IHttp1Request, wanted: DataRequest) -> DataRequest:
        """Return a parsed request with who sends it; raises as `find`."""
        user = await self.find(request, wanted.timeout_s)
        if user is not None and "callback" in wanted.parameters:
            self._guard.check_script(request)
        return attrs.evolve(wanted, identity=user)
