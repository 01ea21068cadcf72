"""Everything that a daemon has of PostgreSQL: the connections, and what uses them.

Each role has connections of its own, so that none waits for another: some for commits, some for
fetches and projects, one for the read index, one for the tail and one for hints. All are made when
they are needed, and again after an error. All methods block and may be called in any thread.
"""

from __future__ import annotations

import pathlib
from typing import Final

from treedbd.store.lock import DirectoryLock
from treedbd.store.postgresql.commits import CommitCounts, CommitSender
from treedbd.store.postgresql.connection import PostgresqlSettings, SessionPool
from treedbd.store.postgresql.engine import DatabaseIdentity, PostgresqlEngine, open_copy
from treedbd.store.postgresql.fetching import Fetcher
from treedbd.store.postgresql.leases import Leases
from treedbd.store.postgresql.projects import ProjectStore
from treedbd.store.postgresql.read_index import ReadIndex
from treedbd.store.postgresql.schema import prepare_schema
from treedbd.store.postgresql.tail import Notifier, Tail
from treedbd.store.sqlite.engine import RESERVE_BYTES

_OTHER_CONNECTIONS: Final = 8


class PostgresqlCluster:
    """The connections of one daemon.

    Attributes:
        cluster: the id of the cluster, 16 bytes.
        projects: rules and databases.
        leases: which daemons live that have writes for the end of their sessions.
        read_index: how far databases are, for reads.
        tail: what others have committed.
        notifier: tells others of commits.
        pool: connections for `trimming` and `status`, and for fetches.

    """

    def __init__(self, settings: PostgresqlSettings, *, retain: int) -> None:
        """Create or migrate the tables if need be; copies get about `retain` log entries.

        Raises `StoreUnreachable` or `CannotOpenStore`.
        """
        self.cluster: Final = prepare_schema(settings)
        self.pool: Final = SessionPool(settings, _OTHER_CONNECTIONS)
        self.projects: Final = ProjectStore(self.pool, is_strict=settings.is_strict)
        self.leases: Final = Leases(settings)
        self.read_index: Final = ReadIndex(settings)
        self.notifier: Final = Notifier(settings)
        self.tail: Final = Tail(settings, self.notifier.is_own)
        self._commits = SessionPool(settings, settings.commit_connections)
        self._sender = CommitSender(self._commits)
        self._fetcher = Fetcher(self.pool, is_strict=settings.is_strict, retain=retain)
        self._retain = retain

    def open_engine(
        self,
        path: pathlib.Path,
        db: int,
        *,
        epoch: int,
        lock: DirectoryLock | None = None,
        reserve_bytes: int = RESERVE_BYTES,
    ) -> PostgresqlEngine:
        """Open a database with its copy at `path`, which is made if there is none.

        Nothing is fetched: before the first use, `fetch` and `apply_fetched`. `epoch` is that of
        the rules that the daemon has. Raises what `open_copy` raises.
        """
        local = open_copy(path, lock=lock, reserve_bytes=reserve_bytes)
        try:
            return PostgresqlEngine(
                local,
                DatabaseIdentity(self.cluster, db),
                self._sender,
                self._fetcher,
                epoch=epoch,
                retain=self._retain,
            )
        except BaseException:
            local.close()
            raise

    @property
    def counts(self) -> CommitCounts:
        """The commits of all databases since the start, for the heartbeat."""
        return self._sender.counts

    def close(self) -> None:
        """Close all connections; uses that are under way end first."""
        self._commits.close()
        self.pool.close()
        self.leases.close()
        self.read_index.close()
        self.tail.close()
        self.notifier.close()
