"""Reads that a connection repeats, answered in one step from what is kept.

Most requests of a dashboard or a device are the bytes of the one before. If the head is remembered,
so is what it asks (`Question`); if nothing was written there since, so is the answer. What is left
is to evaluate the rules, which is done for each request. Whatever is not that simple, errors
included, is left to the handlers.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from treedbd.database.catalog import Catalog
from treedbd.database.database import Database
from treedbd.database.requests import Caller, PermissionDenied
from treedbd.http1.interface import IHttp1Request
from treedbd.web.auth.authenticator import Authenticator
from treedbd.web.auth.identity import ANONYMOUS
from treedbd.web.origins import OriginGuard
from treedbd.web.rates import Rates
from treedbd.web.representation import kept_response
from treedbd.web.request import DataRequest, Question
from treedbd.web.response import ResponseWriter

ANYONE: Final = Caller(None)


class RepeatedReads:
    """Answers the reads whose question is remembered and whose answer is kept."""

    def __init__(
        self,
        catalog: Catalog,
        authenticator: Authenticator,
        writer: ResponseWriter,
        now_ms: Callable[[], int],
        rates: Rates | None,
        guard: OriginGuard | None,
        refuse: Callable[[IHttp1Request, BaseException, DataRequest], None],
        *,
        leaves_denials: bool,
    ) -> None:
        """`now_ms` returns milliseconds since 1970; `rates` bound what callers do.

        `guard` refuses pages of other sites, `refuse` answers with an error. What rules deny is
        left to the handlers if it `leaves_denials`.
        """
        self._rates = rates
        self._guard = guard
        self._refuse = refuse
        self._leaves_denials = leaves_denials
        self._catalog = catalog
        self._authenticator = authenticator
        self._writer = writer
        self._now_ms = now_ms

    def repeat(
        self, request: IHttp1Request, otherwise: Callable[[IHttp1Request], None] | None
    ) -> bool:
        """Answer a read that the connection repeats, if that is simple; return whether it was.

        It may be answered in a moment, if there is what to do `otherwise`.
        """
        question: Question | None = request.head_memory.question
        if question is None or question.rules is None:
            return False
        wanted = question.wanted
        try:
            if self._guard is not None and wanted.token is not None:
                self._guard.check_token(request.headers, wanted.token)
            if self._answer(request, question):
                return True
        except Exception as error:
            if self._leaves_denials and isinstance(error, PermissionDenied):
                return False  # to be explained, too
            self._refuse(request, error, wanted)
            return True
        if otherwise is None:
            return False
        go_on = otherwise

        def repeat_or_go_on() -> None:
            if not self.repeat(request, None):
                go_on(request)

        return self._catalog.when_current(question.name, repeat_or_go_on)

    def _answer(self, request: IHttp1Request, question: Question) -> bool:
        """Answer a request if that is simple; return whether it is answered.

        Raises `TooManyRequests`, `PermissionDenied` or `WaitingBytesRefused`.
        """
        database = self._catalog.use_open(question.name)
        if database is None or question.rules is not database.rules.current:
            return False
        wanted = question.wanted
        identity, caller = ANONYMOUS, ANYONE
        if wanted.token is not None:
            known = self._authenticator.recall(database.name.project, wanted.token)
            if known is None:
                return False
            identity, caller = known, Caller(known.auth, known.is_admin)
        answer = database.answers.find(wanted.place, wanted.form)
        if answer is None:
            return False
        response = kept_response(wanted, answer, self._writer.waiting)
        if response is None:
            return False
        if self._rates is not None:
            self._rates.take_project(request, database.name.project, is_write=False)
            self._rates.take_user(database.name.project, identity, is_write=False)
        self._check_read(wanted, database, caller)
        self._writer.send(request, response, no_store=wanted.token is not None)
        return True

    def _check_read(self, wanted: DataRequest, database: Database, caller: Caller) -> None:
        path, facts = wanted.place.path, wanted.read_options.facts
        may_read = database.may_read_without_data(path, caller, facts)
        if may_read is None:
            now = self._now_ms()
            database.read(lambda nodes: database.check_read(path, caller, now, nodes, facts))
        elif not may_read:
            raise PermissionDenied("this read")
