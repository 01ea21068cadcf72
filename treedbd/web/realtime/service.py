"""What the sessions of the real-time protocol share: the parts of the service, and its limits."""

from __future__ import annotations

from collections.abc import Callable

import attrs
from twisted.internet.interfaces import IReactorTime

from treedbd.database.database import Database
from treedbd.database.slices import Slices
from treedbd.http1.headers import Headers
from treedbd.limits import Limits
from treedbd.web.auth.authenticator import Authenticator
from treedbd.web.origins import OriginGuard
from treedbd.web.rates import BodyGate, Rates
from treedbd.web.reading import MissingIndexes, SharedReads
from treedbd.web.realtime.known_hashes import KnownHashes
from treedbd.web.realtime.registry import SocketRegistry


@attrs.frozen(eq=False)
class RealtimeParts:
    """The parts of the service that sessions use.

    `now_ms` returns the time in milliseconds since 1970. `acquire` keeps a database open, and fires
    when a read of it shows what others have committed; `release` ends that. With `explains_denials`
    every client is sent why the rules deny, otherwise only an admin who overrides `auth` is.
    With `accepts_unsigned`, in emulator mode, tokens that nobody has signed count.
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
