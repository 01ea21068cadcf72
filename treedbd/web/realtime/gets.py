"""Gets: the present value at a path, or what a query selects, once."""

from __future__ import annotations

from collections.abc import Sequence

import attrs
from twisted.python.failure import Failure

from treedbd.database.rights import ReadRequest
from treedbd.http1.content import WaitingBytesRefused
from treedbd.store.nodes import Nodes
from treedbd.tree.query import Query
from treedbd.tree.types import Place
from treedbd.web.queues import FrameReader
from treedbd.web.reading import ReadSource, Rendering, TooMuchWork, Waiter
from treedbd.web.realtime import messages
from treedbd.web.realtime.values import ReadOwner, SpelledSource, read_message
from treedbd.web.request import EXPORT


class Get:
    """One get of a session: a job of its outbox."""

    def __init__(self, owner: ReadOwner, number: int, place: Place, query: Query | None) -> None:
        """Answer the request `number` with what is at a place."""
        self._owner = owner
        self._number = number
        self._place = place
        options = attrs.evolve(EXPORT, query=query)
        self._facts = options.facts
        self._source = SpelledSource(ReadSource(owner.database, place, options))

    @property
    def read_request(self) -> ReadRequest:
        """What the rules are evaluated for."""
        owner = self._owner
        return ReadRequest(owner.caller, self._place.path, self._facts, owner.parts.now_ms)

    def open(self) -> Sequence[FrameReader] | None:
        """Return the answer (`outbox.Job`)."""
        parts, database = self._owner.parts, self._owner.database

        def render(nodes: Nodes) -> bytes | Rendering | TooMuchWork:
            self._judge(nodes)
            return parts.reads.render(self._source, nodes)

        try:
            rendered = database.read(render)
            if not isinstance(rendered, TooMuchWork):
                return self._answer(rendered)
        except WaitingBytesRefused:
            raise
        except Exception as error:
            self._refuse(error)
            return ()
        waiter = Waiter(self._source, self._judge, rendered.sequence, _do_nothing)
        waiting = parts.reads.render_large(database.hold, waiter, self._owner.address)
        waiting.addCallback(self._rendered).addErrback(self._not_rendered)
        return None

    def _rendered(self, rendering: Rendering) -> None:
        self._owner.outbox.release(self._answer(rendering))

    def _judge(self, nodes: Nodes) -> None:
        self.read_request.check(self._owner.database, nodes)

    def _answer(self, rendered: bytes | Rendering) -> list[FrameReader]:
        owner, start = self._owner, messages.answer_start(self._number)
        owner.parts.registry.messages_out += 1
        return read_message(owner.parts, owner.address, start, rendered, messages.VALUE_END)

    def _not_rendered(self, failure: Failure) -> None:
        self._refuse(failure.value)
        self._owner.outbox.release(())

    def _refuse(self, error: BaseException | None) -> None:
        self._owner.answer_error(self._number, error, self.read_request)


def _do_nothing(_: int) -> None:
    pass
