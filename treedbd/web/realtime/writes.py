"""Writes of a session: puts, merges and transactions, now or at the end of the session.

A write is queued in the turn of the reactor in which its request is handled, so the writes of one
client are applied in its order. A long one is queued when its value has been admitted to parsing,
and those after it wait. A write is answered when it is durable, after the events of its commit were
sent to the listens of the session. A transaction is a put with the hash of the value that its
client has seen (`tree.hashes`); if the place has another value, the answer is `datastale`, after
the events of the writes that changed it.

Writes at the end: `o` sets a value, `om` merges one, `oc` cancels those at a path and below. They
are stored (`database.disconnect`) before they are answered, so they are done after a crash of the
server too, with the identity of the time of the request.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any, Final

import attrs
from twisted.internet.defer import Deferred, succeed
from twisted.internet.task import deferLater
from twisted.python.failure import Failure

from treedbd.database.disconnect import check_nodes
from treedbd.database.requests import (
    HashCondition,
    LargeBody,
    Outcome,
    TooManyDisconnectWrites,
    Write,
)
from treedbd.limits import DEFAULT_TIMEOUT_S
from treedbd.tree.edit import Edit, Method, make_patch, make_put
from treedbd.tree.types import STORED, Change, InvalidData, Place
from treedbd.web.realtime.messages import (
    InvalidRequest,
    LongWrite,
    RealtimeRequest,
    path_of,
    place_of,
    value_of,
)
from treedbd.web.realtime.socket import Pending
from treedbd.web.write import FREE_BYTES, LARGE_BODY_BYTES, LARGE_BODY_NODES, Admission, parse_whole

if TYPE_CHECKING:
    from treedbd.web.realtime.session import RealtimeSession

METHODS: Final[dict[str, Method]] = {"p": "put", "m": "patch"}
METHODS_AT_END: Final[dict[str, Method]] = {"o": "put", "om": "patch"}


class SessionWrites:
    """Does the writes of one session.

    Attributes:
        pending: those that are not answered yet.
        may_write_at_end: whether writes for the end may be stored.

    """

    __slots__ = ("_session", "may_write_at_end", "pending")

    def __init__(self, session: RealtimeSession) -> None:
        self.pending: Final = Pending()
        self._session = session
        self.may_write_at_end = False

    def write(self, request: RealtimeRequest) -> None:
        """Do a put or a merge; raise if the request is malformed."""
        body, method = request.body, METHODS[request.action]
        place, condition = _target(body, method)
        edit = make_edit(method, place, value_of(body), self._session.context.limits.string_bytes)
        self._submit(request.number, self._make_write(edit, condition))

    async def write_long(self, long: LongWrite) -> None:
        """Do a write with a long value; raise if the request is malformed.

        Returns when it is queued, so that the writes after it are applied after it.
        """
        session, request = self._session, long.request
        method = METHODS[request.action]
        place, condition = _target(request.body, method)
        session.database.check_may_write(place.path, session.caller)
        is_large = long.size > LARGE_BODY_BYTES
        is_whole = place.is_priority or not is_large
        text = b"".join(long.pieces()) if is_whole else None
        admission = Admission(long.size, 0) if text is None or is_large else Admission.of(text)
        if admission.nodes > LARGE_BODY_NODES and not place.is_priority:
            admission, text = Admission(long.size, 0), None
        clock, gate = session.context.clock, session.context.gate
        await gate.enter(session.request, admission, clock.seconds() + DEFAULT_TIMEOUT_S)
        try:
            if text is None:
                write = self._make_large(long, place, method, condition)
            else:
                write = await self._make_long(text, place, method, condition, admission)
        except BaseException:
            gate.leave(admission)
            raise
        self._submit(request.number, write).addBoth(lambda _: gate.leave(admission))

    def set_at_end(self, request: RealtimeRequest) -> None:
        """Store a write for the end of the session; raise if the request is malformed."""
        session, body, method = self._session, request.body, METHODS_AT_END[request.action]
        context, caller = session.context, session.caller
        value = value_of(body)
        check_nodes(value)
        edit = make_edit(method, target_of(body, method), value, context.limits.string_bytes)
        self.may_write_at_end = True
        now = context.now_ms()
        write = Write(
            edit=edit,
            now=now,
            caller=caller,
            deadline=context.clock.seconds() + DEFAULT_TIMEOUT_S,
        )
        limit = context.limits.disconnect_writes_per_connection
        writes = session.database.disconnect_writes
        stored = writes.set(session.id, edit, caller, now, limit, session.end)
        self._answer_at_end(request.number, stored, write)

    def cancel_at_end(self, request: RealtimeRequest) -> None:
        """Cancel the writes at a path and below; raise if the request is malformed."""
        session = self._session
        place = place_of(request.body)
        if not self.may_write_at_end:
            session.answer_when_notified(request.number)
            return
        cancelled = session.database.disconnect_writes.cancel(session.id, place.path)
        self._answer_at_end(request.number, cancelled, None)

    def write_at_end(self) -> Deferred[None]:
        """Do the stored writes: the session has ended."""
        if not self.may_write_at_end:
            return succeed(None)
        self.may_write_at_end = False
        return self._session.database.disconnect_writes.run(self._session.id)

    def _answer_at_end(self, number: int, storing: Deferred[None], write: Write | None) -> None:
        session = self._session

        def failed(failure: Failure) -> None:
            if failure.check(TooManyDisconnectWrites) is not None:
                session.refused("disconnect_writes_per_connection")
            session.fail_when_notified(number, failure.value, write, is_at_end=True)

        storing.addCallbacks(lambda _: session.answer_when_notified(number), failed)

    def _make_large(
        self, long: LongWrite, place: Place, method: Method, condition: HashCondition | None
    ) -> Write:
        limits = self._session.context.limits
        edit = Edit(method, place, None, (Change(place, STORED),))
        large = LargeBody(long.pieces, long.size, limits.string_bytes, limits.write_nodes)
        return attrs.evolve(self._make_write(edit, condition), large=large)

    async def _make_long(
        self,
        text: bytes,
        place: Place,
        method: Method,
        condition: HashCondition | None,
        admission: Admission,
    ) -> Write:
        limits = self._session.context.limits
        json = parse_whole(text, limits, place)
        if admission.takes_long:
            await deferLater(self._session.context.clock, 0)
        return self._make_write(make_edit(method, place, json, limits.string_bytes), condition)

    def _make_write(self, edit: Edit, condition: HashCondition | None) -> Write:
        session = self._session
        deadline = session.context.clock.seconds() + DEFAULT_TIMEOUT_S
        now = session.context.now_ms()
        return Write(
            edit=edit,
            now=now,
            caller=session.caller,
            condition=condition,
            deadline=deadline,
            wants_echo=False,
            contender=id(session),
            refuses_lone_priority=True,
        )

    def _submit(self, number: int, write: Write) -> Deferred[Any]:
        session, pending = self._session, self.pending
        pending.begin()

        def done(outcome: Outcome) -> None:
            commit = outcome.commit
            sequence = None if commit is None else commit.position.sequence
            answer = partial(session.answer_when_notified, number, sequence, pending.end)
            if commit is None and outcome.volatile:
                session.database.when_shown(write.edit, answer)
            else:
                answer()

        def failed(failure: Failure) -> None:
            answer = partial(session.fail_when_notified, number, failure.value, write, pending.end)
            session.database.when_shown(write.edit, answer)

        return session.database.write(write).addCallbacks(done, failed)


def make_edit(method: Method, place: Place, value: Any, max_string_bytes: int) -> Edit:
    """Return the edit of a put or a merge; raise `InvalidData`."""
    if method == "put":
        return make_put(place, value, max_string_bytes)
    if not isinstance(value, dict):
        raise InvalidData("What is merged (d) must be an object.")
    return make_patch(place.path, value, max_string_bytes)


def target_of(body: dict[str, Any], method: Method) -> Place:
    """Return the place of a write, of a merge a node; raise `InvalidPath`."""
    return Place(path_of(body)) if method == "patch" else place_of(body)


def is_long(message: bytes) -> bool:
    """Return whether the value of a message waits until it may be parsed."""
    return len(message) > FREE_BYTES


def _target(body: dict[str, Any], method: Method) -> tuple[Place, HashCondition | None]:
    """Return the place of a write, and the condition; raise `InvalidPath`."""
    place = target_of(body, method)
    data_hash = body.get("h")
    if data_hash is None:
        return place, None
    if not isinstance(data_hash, str):
        raise InvalidRequest("The hash (h) must be a string.")
    return place, HashCondition(place, data_hash)
