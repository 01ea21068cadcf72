"""Presence: what a session writes when it ends, however it ends.

`o` sets a value, `om` merges one, `oc` cancels what was set at a path and below. They are kept in
the store (`database.disconnect`) before they are answered, so they are written after a crash
of the server too. They keep the identity with which they were set.
"""

from __future__ import annotations

from typing import Final, Protocol

from twisted.internet.defer import Deferred, succeed
from twisted.python.failure import Failure

from treedbd.database.disconnect import check_nodes
from treedbd.database.requests import TooManyDisconnectWrites, Write
from treedbd.limits import DEFAULT_TIMEOUT_S
from treedbd.tree.edit import Method
from treedbd.web.realtime.messages import RealtimeRequest, place_of, value_of
from treedbd.web.realtime.writes import WriteOwner, make_edit, target_of

METHODS: Final[dict[str, Method]] = {"o": "put", "om": "patch"}


class PresenceOwner(WriteOwner, Protocol):
    """The session whose end is prepared."""

    @property
    def id(self) -> str:
        """By which the store knows it."""
        ...

    def end(self) -> None:
        """End it, so that its client connects again."""
        ...


class SessionPresence:
    """The disconnect writes of one session.

    Attributes:
        is_set: whether there may be any.

    """

    __slots__ = ("_owner", "is_set")

    def __init__(self, owner: PresenceOwner) -> None:
        self._owner = owner
        self.is_set = False

    def set(self, request: RealtimeRequest) -> None:
        """Keep a write for the end of the session; raise if it is malformed."""
        owner, body, method = self._owner, request.body, METHODS[request.action]
        limits = owner.parts.limits
        value = value_of(body)
        check_nodes(value)
        edit = make_edit(method, target_of(body, method), value, limits.string_bytes)
        self.is_set = True
        now, caller = owner.parts.now_ms(), owner.caller
        write = Write(edit, now, caller, None, owner.parts.clock.seconds() + DEFAULT_TIMEOUT_S)
        limit = limits.disconnect_writes_per_connection
        kept = owner.database.disconnect_writes.set(owner.id, edit, caller, now, limit, owner.end)
        self._answer(request.number, kept, write)

    def cancel(self, request: RealtimeRequest) -> None:
        """Cancel what was set at a path and below; raise if that is malformed."""
        owner = self._owner
        place = place_of(request.body)
        if not self.is_set:
            owner.answer_when_notified(request.number)
            return
        cancelled = owner.database.disconnect_writes.cancel(owner.id, place.path)
        self._answer(request.number, cancelled, None)

    def run(self) -> Deferred[None]:
        """Write what was set: the session has ended."""
        if not self.is_set:
            return succeed(None)
        self.is_set = False
        return self._owner.database.disconnect_writes.run(self._owner.id)

    def _answer(self, number: int, waiting: Deferred[None], write: Write | None) -> None:
        owner = self._owner

        def failed(failure: Failure) -> None:
            if failure.check(TooManyDisconnectWrites) is not None:
                owner.parts.registry.refused["disconnect_writes_per_connection"] += 1
            owner.fail_when_notified(number, failure.value, write)

        waiting.addCallbacks(lambda _: owner.answer_when_notified(number), failed)
