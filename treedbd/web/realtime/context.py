"""What the sessions of the real-time protocol share, and what orders the requests of one.

`RealtimeParts` are the parts of the service and its limits. `Pending` counts the requests of one
client that have not taken effect yet. `KnownHashes` keeps the hashes of values that clients listen
to.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Hashable
from typing import Final

import attrs
from twisted.internet.defer import Deferred
from twisted.internet.interfaces import IReactorTime

from treedbd.database.database import Database
from treedbd.database.requests import Unavailable
from treedbd.database.slices import Slices
from treedbd.http1.headers import Headers
from treedbd.limits import KIB, MIB, Limits
from treedbd.store.rows import parse_stored
from treedbd.tree.hashes import data_hash
from treedbd.tree.value import from_export
from treedbd.web.auth.verifier import Authenticator
from treedbd.web.listeners import (
    SocketRegistry,
)
from treedbd.web.origins import OriginGuard
from treedbd.web.rates import Rates
from treedbd.web.reading import MissingIndexes, Rendering, SharedReads
from treedbd.web.write import BodyGate


@attrs.frozen(eq=False)
class RealtimeParts:
    """The parts of the service that sessions use.

    `now_ms` returns the time in milliseconds since 1970. `acquire` keeps a database open, and fires
    when a read of it shows what others have committed; `release` ends that. With `explains_denials`
    every client is sent why the rules deny, otherwise only an admin who overrides `auth` is.
    With `accepts_unsigned`, in emulator mode, tokens without a signature count.
    """

    limits: Limits
    buffer_bytes: int
    registry: SocketRegistry
    authenticator: Authenticator
    guard: OriginGuard | None
    rates: Rates | None
    reads: SharedReads
    gate: BodyGate
    missing_indexes: MissingIndexes
    hashes: KnownHashes
    slices: Slices
    clock: IReactorTime
    now_ms: Callable[[], int]
    acquire: Callable[[Database], object]
    release: Callable[[Database], None]
    explains_denials: bool
    accepts_unsigned: bool

    def is_local(self, headers: Headers) -> bool:
        """Return whether a request is that of a program or a page of this machine."""
        return self.guard is None or self.guard.is_local(headers)


class Pending:
    """How many requests of one kind have not taken effect yet, for those after them that must wait.

    The requests of a client take effect in the order in which they were sent: what is read after a
    write shows it and is answered after it, what is written after a read is not shown by it. Writes
    wait for no writes, which are queued in their order, and reads for no reads.
    """

    __slots__ = ("_count", "_settled")

    def __init__(self) -> None:
        self._count = 0
        self._settled: Deferred[None] | None = None

    def begin(self) -> None:
        """Count a request."""
        self._count += 1

    def end(self) -> None:
        """Stop counting it: it has taken effect, or was refused."""
        self._count -= 1
        settled = self._settled
        if not self._count and settled is not None:
            self._settled = None
            settled.callback(None)

    def settled(self) -> Deferred[None] | None:
        """Return what fires when none is pending any more, None if none is; one caller can wait."""
        if not self._count:
            return None
        self._settled = Deferred()
        return self._settled

    def give_up(self) -> None:
        """Fail what waits for them with `Unavailable`: the client has gone."""
        settled, self._settled = self._settled, None
        if settled is not None:
            settled.errback(Unavailable("The client has gone."))


HASHED_BYTES: Final = 64 * KIB
"""The JSON of a longer value is not hashed: sending it costs less."""
MAX_KNOWN: Final = 4096
MAX_KNOWN_BYTES: Final = 4 * MIB
"""Hashes that are kept, and bytes of what they are kept by, which has the path of a client."""
_ENTRY_BYTES: Final = 500


class KnownHashes:
    """The hashes that were computed last, kept for the next client that listens with a hash.

    After a restart all clients connect at once, each with the hash of what it holds. The hash of a
    value is computed from its JSON once, and kept by what was rendered and the number of the state.
    """

    def __init__(self) -> None:
        self._known: OrderedDict[Hashable, tuple[str, int]] = OrderedDict()
        self._bytes = 0

    def is_hash_of(
        self, claimed: str, rendered: bytes | Rendering, key: Hashable, sequence: int
    ) -> bool:
        """Return whether what was rendered has the hash that a client claims, if that is cheap.

        `key` and `sequence` say what was rendered, from which state.
        """
        if not claimed:
            return False
        size = len(rendered) if isinstance(rendered, bytes) else rendered.size
        if size > HASHED_BYTES:
            return False
        place = (key, sequence)
        known = self._known.get(place)
        if known is None:
            body = rendered if isinstance(rendered, bytes) else rendered.whole()
            known = data_hash(from_export(parse_stored(body))), len(repr(place)) + _ENTRY_BYTES
            self._keep(place, known)
        return known[0] == claimed

    def _keep(self, place: Hashable, known: tuple[str, int]) -> None:
        self._known[place] = known
        self._bytes += known[1]
        while len(self._known) > MAX_KNOWN or self._bytes > MAX_KNOWN_BYTES:
            _, (_, size) = self._known.popitem(last=False)
            self._bytes -= size
