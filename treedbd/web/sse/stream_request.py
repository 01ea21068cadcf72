"""What a stream is asked for."""

from __future__ import annotations

import attrs

from treedbd.database.database import Database
from treedbd.database.rights import ReadRequest
from treedbd.held_bytes import HeldAccount
from treedbd.tree.query import Query
from treedbd.tree.types import Path
from treedbd.web.auth.identity import Identity
from treedbd.web.sse.disconnect import StreamWrites


@attrs.frozen
class StreamRequest:
    """What a stream watches: a path, all of it or a query; `with_ids` if it can be resumed.

    `read` is what the rules are evaluated for, `identity` who reads, from which `address`. `writes`
    is what it writes when it ends. What is held for it is charged to its `account`.
    """

    database: Database
    path: Path
    query: Query | None
    read: ReadRequest
    identity: Identity
    address: str
    with_ids: bool
    writes: StreamWrites | None = None
    account: HeldAccount | None = None
