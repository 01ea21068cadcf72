"""Answers a request with the error that it has met."""

from __future__ import annotations

from collections.abc import Callable

from treedbd.names import DatabaseName, DialectName
from treedbd.web.auth.host_login import ClientGone
from treedbd.web.content import WaitingBytesRefused
from treedbd.web.errors import error_response
from treedbd.web.http1.interface import IHttp1Request
from treedbd.web.request import DataRequest, RequestParser
from treedbd.web.response import ResponseWriter


class ErrorSender:
    """Answers with errors, each in the dialect of its request."""

    def __init__(
        self,
        parser: RequestParser,
        writer: ResponseWriter,
        setting_of: Callable[[DatabaseName], DialectName],
    ) -> None:
        """`setting_of` returns the dialect that is set for the project of a database."""
        self._parser = parser
        self._writer = writer
        self._setting_of = setting_of

    def __call__(
        self, request: IHttp1Request, error: BaseException, wanted: DataRequest | None = None
    ) -> None:
        """Answer with an error; `wanted` is the request as far as it has been parsed."""
        if isinstance(error, ClientGone):
            return
        dialect = (
            self._parser.dialect_of(request, self._setting_of) if wanted is None else wanted.dialect
        )
        try:
            self._writer.send(request, error_response(error, dialect), no_store=True)
        except WaitingBytesRefused as refused:  # an error that shows a large value
            self._writer.send(request, error_response(refused, dialect), no_store=True)
