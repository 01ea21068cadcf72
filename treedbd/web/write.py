"""Writes: the handlers of PUT, POST, PATCH and DELETE.

Errors have the promised order: first the token, then whether the caller may write anything at or
below the place, then the body, then what the rules say of it. So a caller without rights costs
little, however large the body: only a short one is parsed before its rights are known, because
evaluating the rules once is enough then. A long body waits for its turn (`body_gate`), and a large
one is parsed in several turns of the reactor.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Final, TypeAlias

import attrs
from twisted.internet.defer import CancelledError
from twisted.internet.interfaces import IReactorTime
from twisted.internet.task import deferLater

from treedbd.database.database import Database
from treedbd.database.errors import SHUTTING_DOWN, DeadlinePassed
from treedbd.database.requests import Caller, Condition, Outcome, Write
from treedbd.limits import KIB, MAX_DEPTH, Limits
from treedbd.tree import printing
from treedbd.tree.edit import Edit, make_patch, make_put, make_remove
from treedbd.tree.errors import InvalidData, InvalidPath
from treedbd.tree.normalise import has_more_nodes
from treedbd.tree.types import Json, Place
from treedbd.web.auth.identity import Identity
from treedbd.web.body_gate import FREE_BYTES, BodyGate, Turn
from treedbd.web.content_coding import Coding, decode_body, parse_coding
from treedbd.web.explain import explanation
from treedbd.web.http1.interface import IHttp1Request
from treedbd.web.representation import json_response
from treedbd.web.request import DataRequest, PayloadTooLarge
from treedbd.web.response import JSON_TYPE, Response

DECODED_AT_ONCE_BYTES: Final = 64 * KIB
"""A compressed body that has no more when it is decoded waits as it is then; others as they were
sent, because they would fill the memory."""
_MIN_NODE_BYTES: Final = len("1,")


MakeEdit: TypeAlias = Callable[[Json], Edit]
"""Returns the edit that a body requests; raises `InvalidData`."""
Identify: TypeAlias = Callable[[DataRequest, Database], Awaitable[Identity]]


@attrs.frozen
class _BegunWrite:
    """A write whose caller is known; its time in milliseconds since 1970, and its deadline."""

    wanted: DataRequest
    database: Database
    identity: Identity
    now: int
    deadline: float

    def check_rights(self) -> None:
        """Raise `PermissionDenied` if the caller may write nothing here, whatever the body is."""
        if not self.wanted.wants_explanation:
            caller = Caller(self.identity.auth, self.identity.is_admin)
            self.database.check_may_write(self.wanted.place.path, caller)


class WriteHandlers:
    """Handles the requests that write."""

    def __init__(
        self,
        limits: Limits,
        identify: Identify,
        identify_for_explanation: Identify,
        clock: IReactorTime,
        now_ms: Callable[[], int],
    ) -> None:
        """`now_ms` returns the time in milliseconds since 1970; `clock` counts for deadlines.

        `identify` returns the caller of a request, `identify_for_explanation` the one whom an admin
        asks about.
        """
        self._limits = limits
        self._identify = identify
        self._identify_for_explanation = identify_for_explanation
        self._clock = clock
        self._now_ms = now_ms
        self._gate = BodyGate(limits.parsed_bytes, clock)

    def refuse_writes(self) -> None:
        """Refuse the bodies that wait, and all that come: the server is shutting down."""
        self._gate.refuse(SHUTTING_DOWN)

    async def put(
        self, request: IHttp1Request, wanted: DataRequest, database: Database
    ) -> Response | None:
        """Set a place to the body."""

        def make_edit(body: Json) -> Edit:
            return make_put(wanted.place, body, self._limits.string_bytes)

        return await self._write(request, wanted, database, make_edit)

    async def post(
        self, request: IHttp1Request, wanted: DataRequest, database: Database
    ) -> Response | None:
        """Add a child with a push id as its key and the body as its value."""
        path = _node_path(wanted)
        if len(path) == MAX_DEPTH:
            raise InvalidData(f"A child of this path is deeper than {MAX_DEPTH} keys.")
        place = Place((*path, database.push_ids.next(self._now_ms())))

        def make_edit(body: Json) -> Edit:
            return make_put(place, body, self._limits.string_bytes)

        return await self._write(request, wanted, database, make_edit)

    async def patch(
        self, request: IHttp1Request, wanted: DataRequest, database: Database
    ) -> Response | None:
        """Merge the members of the body, whose names may be slash paths, into a node."""
        path = _node_path(wanted)

        def make_edit(body: Json) -> Edit:
            return make_patch(path, body, self._limits.string_bytes)

        return await self._write(request, wanted, database, make_edit)

    async def delete(
        self, _: IHttp1Request, wanted: DataRequest, database: Database
    ) -> Response | None:
        """Remove what is at a place."""
        begun = await self._begin(wanted, database)
        return await self._do(begun, make_remove(wanted.place))

    async def _write(
        self,
        request: IHttp1Request,
        wanted: DataRequest,
        database: Database,
        make_edit: MakeEdit,
    ) -> Response | None:
        """Do the edit that a body requests; None if the client has disconnected."""
        begun = await self._begin(wanted, database)
        headers = request.headers
        body = read_body(request)
        coding = parse_coding(headers) if b"content-encoding" in headers else None
        if coding is not None:
            begun.check_rights()
            decoded = decode_body(body, coding, DECODED_AT_ONCE_BYTES)
            if decoded is not None:
                body, coding = decoded, None
        if coding is not None or len(body) > FREE_BYTES:
            begun.check_rights()
            return await self._write_in_turn(request, begun, body, coding, make_edit)
        try:
            edit = make_edit(parse_body(body, self._limits))
        except InvalidData:
            begun.check_rights()  # a caller without rights is not told what is wrong with a body
            raise
        return await self._do(begun, edit)

    async def _write_in_turn(
        self,
        request: IHttp1Request,
        begun: _BegunWrite,
        body: bytes,
        coding: Coding | None,
        make_edit: MakeEdit,
    ) -> Response | None:
        """Wait until a body may be decoded and parsed, then do its edit."""
        limits = self._limits
        turn = Turn(limits.write_body_bytes, limits.write_nodes)
        if coding is None:
            turn = Turn.of(body)
        try:
            await self._gate.enter(request, turn, begun.deadline)
        except CancelledError:
            return None  # the client has disconnected
        try:
            if coding is not None:
                body = decode(body, coding, limits.write_body_bytes)
            json = parse_body(body, limits)
            if turn.takes_long:
                await self._let_others_run(begun)
            edit = make_edit(json)
            if turn.takes_long:
                await self._let_others_run(begun)
            return await self._do(begun, edit)
        finally:
            self._gate.leave(turn)

    async def _let_others_run(self, begun: _BegunWrite) -> None:
        await deferLater(self._clock, 0)
        self._check_deadline(begun)

    async def _begin(self, wanted: DataRequest, database: Database) -> _BegunWrite:
        now, deadline = self._now_ms(), self._clock.seconds() + wanted.timeout_s
        if wanted.wants_explanation:
            identity = await self._identify_for_explanation(wanted, database)
        else:
            identity = await self._identify(wanted, database)
        return _BegunWrite(wanted, database, identity, now, deadline)

    async def _do(self, begun: _BegunWrite, edit: Edit) -> Response:
        """Do or explain an edit, and return the response."""
        self._check_deadline(begun)
        wanted, identity = begun.wanted, begun.identity
        is_admin = identity.is_admin and not wanted.wants_explanation
        caller = Caller(identity.auth, is_admin)
        write = make_write(wanted, edit, begun.now, caller, begun.deadline)
        if wanted.wants_explanation:
            verdict = begun.database.explain_write(write)
            return json_response(
                wanted, explanation(verdict, is_admin=identity.is_admin, auth=identity.auth)
            )
        return write_response(wanted, await begun.database.write(write))

    def _check_deadline(self, begun: _BegunWrite) -> None:
        if self._clock.seconds() >= begun.deadline:
            raise DeadlinePassed("it was applied")


def _node_path(wanted: DataRequest) -> tuple[str, ...]:
    """Return the path of a request that does not address a priority; raise `InvalidPath`."""
    if wanted.place.is_priority:
        raise InvalidPath("A priority can only be read, set and removed.")
    return wanted.place.path


def read_body(request: IHttp1Request) -> bytes:
    """Return the body of a request as it was sent, in its content coding."""
    body: bytes = request.content.read() if request.content is not None else b""
    return body


def decode(body: bytes, coding: Coding, limit: int) -> bytes:
    """Return a body without its content coding.

    Raises `PayloadTooLarge` if it has more than `limit` bytes then, or `InvalidData`.
    """
    decoded = decode_body(body, coding, limit)
    if decoded is None:
        raise PayloadTooLarge(limit)
    return decoded


def parse_body(body: bytes, limits: Limits) -> Json:
    """Return the JSON in a body; raise `InvalidData`."""
    if not body.strip():
        raise InvalidData("The request needs a JSON body.")
    json = printing.parse(body)
    limit = limits.write_nodes
    if len(body) > _MIN_NODE_BYTES * limit and has_more_nodes(json, limit):
        raise InvalidData(
            f"A body may have at most {limit} members and array items (write_nodes): "
            "write it in parts."
        )
    return json


def make_write(
    request: DataRequest, edit: Edit, now: int, caller: Caller, deadline: float
) -> Write:
    """Return the write for a database.

    `now` is in milliseconds since 1970, `deadline` in seconds of the database's clock.
    """
    etags = request.condition
    condition = None if etags is None else Condition(request.place, etags)
    return Write(
        edit,
        now,
        caller,
        condition,
        deadline,
        wants_echo=request.print != "silent" and request.method != b"POST",
        wants_etag=request.wants_etag or condition is not None,
        must_have_etag=request.wants_etag,
    )


def write_response(request: DataRequest, outcome: Outcome) -> Response:
    """Return the response to a write that is durable."""
    tag = outcome.etag
    headers = () if tag is None else ((b"ETag", request.dialect.etag(tag)),)
    is_push = request.method == b"POST"
    shown: Json = {"name": outcome.edit.place.path[-1]} if is_push else outcome.echo
    if request.print != "compact":
        return json_response(request, shown, *headers)
    return Response(200, printing.compact(shown), (JSON_TYPE, *headers))
