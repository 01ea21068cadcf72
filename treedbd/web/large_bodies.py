"""Large bodies: written piece by piece (`database.apply`), never parsed as a whole.

The response to one is what a small one would have: a PUT reads as its value is stored, a PATCH as
it was sent. Where the caller may not see what its server values became, it is sent its own body.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Iterator
from functools import partial
from io import SEEK_END, BytesIO
from typing import IO, Final, Protocol, TypeVar

import attrs
from twisted.internet.defer import CancelledError
from twisted.internet.interfaces import IReactorTime

from treedbd.database.requests import DeadlinePassed
from treedbd.http1.content import SMALL_BYTES, Content, JoinedContent
from treedbd.http1.headers import Coding, decode_pieces
from treedbd.http1.interface import IHttp1Request
from treedbd.limits import KIB
from treedbd.store.nodes import HeldNodes, Nodes, PresentNodes
from treedbd.tree.edit import Edit
from treedbd.tree.types import Chunks, Json
from treedbd.tree.value import compact
from treedbd.web.reading import (
    ReadSource,
    Rendering,
    SharedReads,
    TooMuchWork,
    Waiter,
    before_deadline,
)
from treedbd.web.request import PLAIN, DataRequest, PayloadTooLarge
from treedbd.web.response import JSON_TYPE, Response, counted_address_of

T = TypeVar("T")

LARGE_BODY_BYTES: Final = 256 * KIB
LARGE_BODY_NODES: Final = 2000
"""A body with more bytes, or more members and items, is written piece by piece.

Others are parsed, brought into normal form and printed in one step each, which takes a few
milliseconds at most, whatever they hold.
"""
PIECE_BYTES: Final = 64 * KIB


@attrs.frozen
class SentBody:
    """A body as it was sent: `length` bytes in `file`, in a content coding or None."""

    file: IO[bytes]
    length: int
    coding: Coding | None

    @property
    def is_large(self) -> bool:
        """Whether it is written piece by piece, however few nodes it may have."""
        return self.length > LARGE_BODY_BYTES

    def read(self) -> bytes:
        """Return all of it, in its content coding."""
        self.file.seek(0)
        return self.file.read()

    def pieces(self) -> Iterator[bytes]:
        """Yield the text; raise `InvalidData` for what is not in its content coding."""
        sent = (self._read_at(at) for at in range(0, self.length, PIECE_BYTES))
        return sent if self.coding is None else decode_pieces(sent, self.coding, PIECE_BYTES)

    def _read_at(self, at: int) -> bytes:
        self.file.seek(at)
        return self.file.read(PIECE_BYTES)


def body_of(request: IHttp1Request, coding: Coding | None) -> SentBody:
    """Return the body of a request."""
    file: IO[bytes] = BytesIO() if request.content is None else request.content
    return SentBody(file, file.seek(0, SEEK_END), coding)


class ReadsState(Protocol):
    """What is read of a database (`database.Database`)."""

    def read(self, work: Callable[[PresentNodes], T]) -> T:
        """Run `work` on the last durable state and return its result."""

    def hold(self) -> HeldNodes:
        """Hold the last durable state open."""


class WrittenBody(Protocol):
    """What is known of a write that is durable (`database.requests.Outcome`)."""

    @property
    def edit(self) -> Edit:
        """Where was written."""

    @property
    def sent(self) -> Chunks | None:
        """What a PATCH sent, server values resolved; None if that is too long."""

    @property
    def etag(self) -> str | None:
        """The tag of the new value."""

    @property
    def may_read(self) -> bool:
        """Whether the caller may see what it wrote as it is stored."""


class LargeBodies:
    """Prepares large writes, and answers them."""

    def __init__(self, reads: SharedReads, clock: IReactorTime) -> None:
        """Read what was written by `reads`."""
        self._reads = reads
        self._clock = clock

    async def check_size(self, body: SentBody, limit: int, deadline: float) -> None:
        """Raise `PayloadTooLarge` if a body has more than `limit` bytes when it is decoded.

        Raises `InvalidData` and `DeadlinePassed`, too; then, or before, nothing has been written.
        """
        if body.coding is not None:
            await self._reads.slices.run(self._decode(body, limit, deadline))

    async def read(self, body: SentBody, limit: int, deadline: float) -> bytes:
        """Return the text of a body; raise as `check_size` does."""
        if body.coding is None:
            return body.read()
        kept: list[bytes] = []
        await self._reads.slices.run(self._decode(body, limit, deadline, kept.append))
        return b"".join(kept)

    def _decode(
        self,
        body: SentBody,
        limit: int,
        deadline: float,
        keep: Callable[[bytes], None] = lambda _: None,
    ) -> Generator[None, None, None]:
        """Decode a body in steps: together, however many are, they have one slice of each turn."""
        size = 0
        for piece in body.pieces():
            size += len(piece)
            if size > limit:
                raise PayloadTooLarge(limit)
            keep(piece)
            if self._clock.seconds() >= deadline:
                raise DeadlinePassed("it was applied")
            yield

    async def respond(
        self,
        request: IHttp1Request,
        wanted: DataRequest,
        database: ReadsState,
        written: WrittenBody,
        body: SentBody,
    ) -> Response | None:
        """Return the response to a write that has just become durable; None if nobody waits."""
        tag = written.etag
        headers = () if tag is None else ((b"ETag", wanted.dialect.etag(tag)),)
        if wanted.print == "silent":
            return Response(204, b"", headers)
        shown: bytes | Rendering | Content | None
        if wanted.method == b"POST":
            name: Json = {"name": written.edit.place.path[-1]}
            shown = compact(name)
        elif written.edit.method == "put" and written.may_read:
            shown = await self._read(request, wanted, database, written)
            if shown is None:
                return None
        else:
            parts = await self._reads.slices.run(self._sent(body, written))
            sent = JoinedContent(self._reads.memory, parts)
            shown = sent if sent.size > SMALL_BYTES else sent.whole()
        return Response(200, shown, (JSON_TYPE, *headers))

    def _sent(self, body: SentBody, written: WrittenBody) -> Generator[None, None, Iterable[bytes]]:
        """Return what was sent in steps: its server values replaced, if the caller may see them."""
        if written.may_read and written.sent is not None:
            return written.sent
        pieces = []
        for piece in body.pieces():
            pieces.append(piece)
            yield
        return pieces

    async def _read(
        self,
        request: IHttp1Request,
        wanted: DataRequest,
        database: ReadsState,
        written: WrittenBody,
    ) -> bytes | Rendering | None:
        """Return what was written, as it is in the turn in which it became durable."""
        source = ReadSource(database, written.edit.place, PLAIN)
        rendered = database.read(partial(self._reads.render, source))
        if not isinstance(rendered, TooMuchWork):
            return rendered
        waiter = Waiter(source, _allow, rendered.sequence, _do_nothing)
        waiting = self._reads.render_large(database.hold, waiter, counted_address_of(request))
        request.notifyFinish().addErrback(lambda _: waiting.cancel())
        try:
            return await before_deadline(
                waiting, self._clock.seconds() + wanted.timeout_s, self._clock
            )
        except CancelledError:
            return None


def _allow(_: Nodes) -> None:
    """Allow a caller to read what it has written."""


def _do_nothing(_: int) -> None:
    pass
