"""What is written when a stream ends, for whatever reason: its parameter `onDisconnect`.

It is a PATCH of the path of the stream, judged and stored before the stream begins
(`database.disconnect`), and done when the stream ends. Of a stream that is refused, or whose
client is gone before it has begun, nothing is left.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable
from typing import Final

from twisted.internet.defer import Deferred

from treedbd.database.database import Database
from treedbd.database.disconnect import check_nodes
from treedbd.database.requests import Caller, Unavailable
from treedbd.limits import Limits
from treedbd.tree.edit import Edit, make_patch
from treedbd.tree.types import InvalidData, InvalidQuery, Path
from treedbd.tree.value import parse
from treedbd.web.request import ON_DISCONNECT, Parameters

_SESSION_BYTES: Final = 16


def parse_on_disconnect(parameters: Parameters, path: Path, limits: Limits) -> Edit:
    """Return what a stream of `path` writes when it ends; raise `InvalidQuery`.

    Paths are relative to that of the stream, as the keys of a PATCH.
    """
    try:
        body = parse(parameters[ON_DISCONNECT].encode())
        if not isinstance(body, dict):
            raise InvalidData("it must be an object of paths and values.")
        check_nodes(body)
        return make_patch(path, body, limits.string_bytes)
    except InvalidData as error:
        raise InvalidQuery(f"{ON_DISCONNECT}: {error}") from None


class StreamWrites:
    """What one stream writes when it ends.

    Attributes:
        has_begun: whether the stream has begun; if not, nothing is written.
        end_stream: ends the stream, while there is one.

    """

    def __init__(
        self,
        database: Database,
        edit: Edit,
        caller: Caller,
        track: Callable[[Deferred[None]], None],
    ) -> None:
        """Do `edit` as `caller`; `track` is called with what fires when it is done."""
        self.has_begun = False
        self.end_stream: Callable[[], object] | None = None
        self._writes = database.disconnect_writes
        self._edit = edit
        self._caller = caller
        self._track = track
        self._session = secrets.token_hex(_SESSION_BYTES)
        self._is_over = False

    async def store(self, now: int, limit: int) -> None:
        """Judge the write, and store it; raise as `DisconnectWrites.set`."""
        try:
            await self._writes.set(
                *(self._session, self._edit, self._caller, now, limit),
                self._end_all,
            )
        except Unavailable:  # it may be stored all the same
            self.end()
            raise

    async def judge(self, now: int, limit: int) -> None:
        """Judge the write, and store nothing; raise as `store`."""
        self._is_over = True
        await self._writes.judge(self._edit, self._caller, now, limit)

    def _end_all(self) -> None:
        (self.end_stream or self.end)()

    def end(self) -> None:
        """Do the write, or forget it if the stream has not begun; only the first call counts."""
        if not self._is_over:
            self._is_over = True
            self.end_stream = None
            self._track(
                (self._writes.run if self.has_begun else self._writes.forget)(self._session)
            )
