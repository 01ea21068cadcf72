"""The link of a service to PostgreSQL, which needs libraries that not everybody installs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

from twisted.internet.defer import Deferred
from twisted.python.reflect import namedAny

from treedbd.config.settings import Settings
from treedbd.database.catalog_files import MakeFiles
from treedbd.database.session_owner import OwnerFile, SessionOwner
from treedbd.files import read_installation


class ClusterLink(Protocol):
    """What a service has of PostgreSQL (`cluster.service`)."""

    @property
    def make_files(self) -> MakeFiles:
        """Makes the files of a catalog."""
        ...

    def make_owner(self, make_file: Callable[[], OwnerFile]) -> SessionOwner:
        """Return the owner of the sessions of this daemon."""
        ...

    def lag_ms(self) -> int:
        """Return how old, in milliseconds, what reads show may be."""
        ...

    def connect(self) -> None:
        """Connect, and check the server; blocks.

        Raises `StoreUnreachable` or `CannotOpenStore`.
        """
        ...

    def start(self) -> None:
        """Begin to follow the other daemons."""
        ...

    async def stop(self) -> bool:
        """Follow no more, and close all connections; return False if one does not end in time."""
        ...

    def close_at_once(self) -> None:
        """Close all connections in this thread; nothing may be under way."""
        ...

    def run_in_thread(self, work: Callable[[], None]) -> Deferred[None]:
        """Run what blocks in a thread that nothing waits for at the end of the process."""
        ...


def make_cluster(settings: Settings, reactor: Any) -> ClusterLink | None:
    """Return the link that the settings ask for, None if they ask for none.

    Raises `ConfigError` if the libraries are not installed.
    """
    if not settings.is_cluster:
        return None
    try:
        make = namedAny("treedbd.cluster.service.ClusterService")
        make_settings = namedAny("treedbd.store.postgresql.settings.PostgresqlSettings")
    except ImportError:
        raise settings.location.at("engine").error(
            "needs the library psycopg, which is not installed",
            f"run {read_installation().line_for('postgresql')}",
        ) from None
    postgresql = make_settings(
        settings.engine,
        is_cluster="," in settings.engine.partition("//")[2].partition("/")[0],
    )
    is_strict, retain = settings.reads == "strict", settings.streams.retain_events
    link: ClusterLink = make(postgresql, reactor, retain=retain, is_strict=is_strict)
    return link
