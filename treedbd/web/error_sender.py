"""Answers a request with the error that it has met."""

from __future__ import annotations

from collections.abc import Callable

import attrs

from treedbd.errors import in_one_line
from treedbd.http1.content import WaitingBytesRefused
from treedbd.http1.interface import IHttp1Request
from treedbd.http1.request import id_header, shown_path
from treedbd.names import DatabaseName, DialectName
from treedbd.web.auth.host_login import ClientGone
from treedbd.web.errors import code_of, error_response, is_server_error
from treedbd.web.request import DataRequest, Dialect, RequestParser
from treedbd.web.response import Response, ResponseWriter


class ErrorSender:
    """Answers with errors, each in the dialect of its request."""

    def __init__(
        self,
        parser: RequestParser,
        writer: ResponseWriter,
        setting_of: Callable[[DatabaseName], DialectName],
        note: Callable[[IHttp1Request, BaseException, str], None] | None = None,
    ) -> None:
        """`setting_of` returns the dialect that is set for the project of a database.

        `note` is called with each error that is answered, and its code.
        """
        self._note = note
        self._parser = parser
        self._writer = writer
        self._setting_of = setting_of

    def __call__(
        self, request: IHttp1Request, error: BaseException, wanted: DataRequest | None = None
    ) -> None:
        """Answer with an error; `wanted` is the request as far as it has been parsed."""
        if isinstance(error, ClientGone):
            return
        if self._note is not None:
            self._note(request, error, code_of(error))
        dialect = (
            self._parser.dialect_of(request, self._setting_of) if wanted is None else wanted.dialect
        )
        try:
            self._writer.send(request, _response_to(request, error, dialect), no_store=True)
        except WaitingBytesRefused as refused:  # an error that shows a large value
            self._writer.send(request, _response_to(request, refused, dialect), no_store=True)


def _response_to(request: IHttp1Request, error: BaseException, dialect: Dialect) -> Response:
    """Return the response to an error; that to an error of the server has the id of the request."""
    if not is_server_error(error):
        return error_response(error, dialect)
    logged = {
        "request_id": request.request_id,
        "method": in_one_line(request.method.decode("latin-1")),
        "path": in_one_line(shown_path(request.path)),
    }
    response = error_response(error, dialect, logged)
    return attrs.evolve(response, headers=(*response.headers, id_header(request)))
