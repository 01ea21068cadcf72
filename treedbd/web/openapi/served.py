"""The OpenAPI document as it is served, at `/.openapi.json`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from hashlib import sha256
from typing import Final
from urllib.parse import quote

import attrs
import orjson

from treedbd.http1.headers import joined
from treedbd.http1.interface import IHttp1Request
from treedbd.tree.hashes import parse_etags
from treedbd.web.openapi.document import DeclaredRoute, make_document
from treedbd.web.options import WebOptions
from treedbd.web.response import JSON_TYPE, Response

MAX_AGE_S: Final = 300


@attrs.frozen
class _Made:
    """The document of a service that is mounted at `prefix`."""

    prefix: str
    tag: str
    response: Response


class OpenApi:
    """Answers with the document; it is made when it is first asked for."""

    def __init__(
        self,
        routes: Iterable[DeclaredRoute],
        options: WebOptions,
        codes: Mapping[int, Sequence[str]],
    ) -> None:
        """Describe these routes; `codes` are those of errors by their statuses."""
        self._codes = codes
        self._routes = tuple(routes)
        self._options = options
        self._made: _Made | None = None

    async def answer(self, request: IHttp1Request) -> Response:
        """Return the document, or 304 to a client that has it."""
        prefix = "".join(f"/{quote(each, safe='')}" for each in request.prepath if each)
        if self._made is None or self._made.prefix != prefix:
            self._made = self._make(prefix)
        listed = joined(request.headers, b"if-none-match")
        if listed is not None and parse_etags(listed).matches(self._made.tag, True):
            return attrs.evolve(self._made.response, status=304, body=b"")
        return self._made.response

    def _make(self, prefix: str) -> _Made:
        body = orjson.dumps(make_document(self._routes, self._options, self._codes, prefix))
        tag = f'"{sha256(body).hexdigest()}"'
        headers = (JSON_TYPE, (b"ETag", tag.encode()))
        return _Made(prefix, tag, Response(200, body, headers, max_age_s=MAX_AGE_S))
