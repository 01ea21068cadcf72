"""What handlers give the audit: where writes come from, and the requests that are recorded.

A write is audited from the change log; here its caller gets the `Origin` that is logged with it.
Denied writes, reads of admins, and what admins set are recorded as requests (`audit.accesses`).
What is recorded is the path as admins see it elsewhere, without what may be a token in it.
"""

from __future__ import annotations

from typing import Final

from treedbd.audit.accesses import AccessRecorder
from treedbd.database.requests import ConditionFailed, PermissionDenied
from treedbd.http1.request import IHttp1Request
from treedbd.names import DatabaseName, Origin
from treedbd.store.changelog import Writer
from treedbd.web.auth.identity import (
    ANONYMOUS,
    AuthRequired,
    Identity,
    NotAdmin,
    ReadOnlyToken,
    TokenRequired,
    name_token,
    override_auth,
)
from treedbd.web.auth.jwt import BadToken, parse
from treedbd.web.auth.minting import MadeToken
from treedbd.web.auth.verifier import Authenticator
from treedbd.web.request import READING, DataRequest, Question
from treedbd.web.response import address_of
from treedbd.web.seen_requests import show_path, uid_of

DENIALS: Final = (
    *(PermissionDenied, ReadOnlyToken, NotAdmin, AuthRequired, TokenRequired),
    BadToken,
)
"""The errors of a write that its sender may not do."""
SETTINGS: Final = b"/.settings/"
TRIAL: Final = b"/rules/trial.json"
FEED: Final = b"/.settings/events.json"
"""By POST a program says each second what it has done."""
"""Sets nothing, although it is a POST."""
_NO_TOKEN: Final = (BadToken, AuthRequired, TokenRequired)


class RequestAudit:
    """Gives writes their origin, and records requests.

    Attributes:
        reads: whether reads of admins are recorded.

    """

    def __init__(self, recorder: AccessRecorder, authenticator: Authenticator) -> None:
        """Record by `recorder`; `authenticator` recalls who has sent a request."""
        self.reads: Final = recorder.reads
        self._recorder = recorder
        self._authenticator = authenticator

    def origin(self, request: IHttp1Request, identity: Identity, means: str = "http") -> Origin:
        """Return where a request comes from; a program that embeds the service has no address."""
        is_local = getattr(request, "is_local", False)
        means = "local" if is_local else means
        return Origin(address_of(request), identity.token_id, means, identity.admin)

    def read(
        self, request: IHttp1Request, wanted: DataRequest, name: DatabaseName, identity: Identity
    ) -> None:
        """Record a read if its sender is an admin, also one who has another `auth` for it."""
        if identity.is_of_admin:
            writer = self._writer(request, identity, "http")
            method = wanted.method.decode("ascii", "replace")
            self._recorder.note("read", name, writer, method, show_path(wanted))

    def read_by_message(
        self, request: IHttp1Request, name: DatabaseName, identity: Identity, path: str
    ) -> None:
        """Record a listen or a get of the real-time protocol if its sender is an admin."""
        if identity.is_of_admin:
            writer = self._writer(request, identity, "socket")
            self._recorder.note("read", name, writer, "GET", show_path(path))

    def denied_by_message(
        self,
        request: IHttp1Request,
        name: DatabaseName,
        identity: Identity,
        path: str,
        method: str,
        means: str,
        error: BaseException | None,
    ) -> None:
        """Record a write of the real-time protocol if it was denied."""
        if self._recorder.denied and isinstance(error, DENIALS):
            writer = self._writer(request, identity, means)
            self._recorder.note(
                "denied", name, writer, method, show_path(path), error=_code_of(error)
            )

    def refused(self, request: IHttp1Request, error: BaseException, _: str) -> None:
        """Record a request that is answered with an error, if it is a denied write."""
        question = request.head_memory.question
        if not isinstance(question, Question) or not question.wanted.is_write:
            return
        self.refuse(request, question.wanted, question.name, error)

    def refuse(
        self,
        request: IHttp1Request,
        wanted: DataRequest,
        name: DatabaseName,
        error: BaseException,
    ) -> None:
        """Record a write that is refused, if it is denied.

        One whose condition is not true shows the value that is there: that is a read.
        """
        if not wanted.is_write or wanted.wants_explanation:
            return
        if isinstance(error, ConditionFailed) and error.is_shown and self.reads:
            self.read(request, wanted, name, self._sender(wanted, name))
        if not (self._recorder.denied and isinstance(error, DENIALS)):
            return
        writer = self._writer(request, self._sender(wanted, name), "http")
        method = wanted.method.decode("ascii", "replace")
        path, code = show_path(wanted), _code_of(error)
        self._recorder.note("denied", name, writer, method, path, error=code)

    def settings(
        self, request: IHttp1Request, wanted: DataRequest, name: DatabaseName, status: int
    ) -> None:
        """Record what an admin has set, and read of settings and clients if reads are recorded."""
        path = wanted.admin_path
        if path is None:
            return
        is_read = wanted.method in READING or path.endswith(TRIAL) or SETTINGS not in path
        is_read = is_read or (wanted.method == b"POST" and path.endswith(FEED))
        if is_read and not self.reads:
            return
        self._recorder.note(
            "read" if is_read else "settings",
            name,
            self._writer(request, self._sender(wanted, name), "http"),
            wanted.method.decode("ascii", "replace"),
            show_path(wanted),
            status=status,
        )

    def made(
        self,
        request: IHttp1Request,
        name: DatabaseName,
        admin: Identity,
        made: MadeToken,
        uid: str | None,
    ) -> None:
        """Record that an admin has made a token for a user, or for themselves if `uid` is None."""
        writer = self._writer(request, admin, "http")
        token_id = name_token(made.text, parse(made.text).claims)
        token = {"uid": uid_of(admin) if uid is None else uid, "token_id": token_id}
        self._recorder.note("token", name, writer, "POST", "/.settings/tokens.json", made=token)

    def _sender(self, wanted: DataRequest, name: DatabaseName) -> Identity:
        """Return who has sent a request, as far as that was found out."""
        identity = wanted.identity
        if identity is None and wanted.token is not None:
            identity = self._authenticator.recall(name.project, wanted.token)
        if identity is None:
            return ANONYMOUS
        return override_auth(identity, wanted.override) if identity.is_admin else identity

    def _writer(self, request: IHttp1Request, identity: Identity, means: str) -> Writer:
        return Writer(uid_of(identity), identity.is_admin, self.origin(request, identity, means))


def _code_of(error: BaseException) -> str:
    return "auth_required" if isinstance(error, _NO_TOKEN) else "permission_denied"
