"""The owner of sessions over PostgreSQL renews its lease, and is another one if it loses it."""

from __future__ import annotations

import os
import pathlib
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

import pytest
import pytest_twisted
from twisted.internet.defer import Deferred, execute
from twisted.internet.task import Clock
from twisted.logger import capturedLogs

from tests.database.world import run_at_once
from tests.postgresql import PostgresqlServers
from treedbd.cluster.service import GRACE_S, RENEW_S, RETRY_S, LeasedOwner
from treedbd.database.session_owners import OWNER_FILE, OwnerFile
from treedbd.names import DatabaseName
from treedbd.store.engine import StoreUnreachable
from treedbd.store.postgresql.cluster import Leases
from treedbd.store.postgresql.connection import PostgresqlSettings
from treedbd.store.postgresql.schema import prepare_schema

T = TypeVar("T")

SHOP = DatabaseName("shop")
OWNERS = "SELECT owner, is_over FROM treedb.owners"


class Connections:
    """The connections of a daemon, which run all in place."""

    def __init__(self, dsn: str) -> None:
        settings = PostgresqlSettings(dsn)
        prepare_schema(settings)
        self.leases = Leases(settings)
        self.is_away = False

    @property
    def store(self) -> Connections:
        return self

    def run(self, work: Callable[[], T]) -> Deferred[T]:
        def reach() -> T:
            if self.is_away:
                raise StoreUnreachable("PostgreSQL cannot be reached.")
            return work()

        return execute(reach)


class OwningDaemon:
    """One daemon: its owner, its clock and its data directory."""

    def __init__(self, server: PostgresqlServers, folder: pathlib.Path) -> None:
        self.query = server.primary.query
        self.folder = folder
        self.connections: Any = Connections(server.dsn)
        self.clock = Clock()
        self.owner = self.make_owner(folder)
        self.ended: list[str] = []

    def make_owner(self, folder: pathlib.Path) -> LeasedOwner:
        def make_file() -> OwnerFile:
            return OwnerFile(folder, run_at_once, os.urandom, knows_all=False)

        return LeasedOwner(self.connections, make_file, self.clock)

    def begin(self) -> str:
        """Let the owner have a session with writes; return its id."""
        noting = self.owner.note(SHOP)
        assert noting is not None
        assert noting.called
        self.owner.keep(SHOP, "1", lambda: self.ended.append("1"))
        return self.owner.id

    @property
    def files(self) -> list[str]:
        """The ids of owners whose files are there."""
        return sorted(
            each.name.removeprefix(OWNER_FILE) for each in self.folder.glob(f"{OWNER_FILE}*")
        )


@pytest.fixture
def world(clean_server: PostgresqlServers, tmp_path: pathlib.Path) -> Iterator[OwningDaemon]:
    made = OwningDaemon(clean_server, tmp_path)
    yield made
    made.owner.close()
    made.connections.leases.close()


def test_a_database_is_listed_in_postgresql_and_in_the_file(world: OwningDaemon) -> None:
    own = world.begin()
    assert world.owner.note(SHOP) is None
    assert world.files == [own]
    assert world.query("SELECT owner, project, name FROM treedb.owner_dbs") == [
        (own, "shop", "default")
    ]


def test_a_lease_is_renewed_for_as_long_as_the_owner_lives(world: OwningDaemon) -> None:
    world.begin()
    for _ in range(3):
        world.query("UPDATE treedb.owners SET ends = now()")
        world.clock.advance(RENEW_S)
        assert world.query("SELECT ends > now() FROM treedb.owners") == [(True,)]
    world.owner.close()
    assert world.clock.getDelayedCalls() == []


def test_an_owner_that_was_found_dead_is_another_one_and_ends_its_sessions(
    world: OwningDaemon,
) -> None:
    former = world.begin()
    world.query("UPDATE treedb.owners SET is_over = true")
    with capturedLogs() as logs:
        world.clock.advance(RENEW_S)
    assert world.ended == ["1"]
    assert "what 1 sessions have left" in logs[0]["log_format"].format(**logs[0])
    assert world.owner.id != former
    assert world.owner.is_dead(former)
    world.owner.forget(SHOP, "1")
    again = world.begin()
    assert world.files == sorted([former, again])
    assert sorted(world.query(OWNERS)) == sorted([(former, True), (again, False)])


def test_that_is_noticed_when_a_database_is_listed_too(world: OwningDaemon) -> None:
    former = world.begin()
    world.query("UPDATE treedb.owners SET is_over = true")
    with capturedLogs():
        noting = world.owner.note(DatabaseName("shop", "eu"))
    assert noting is not None
    assert noting.called
    assert world.ended == ["1"]
    assert former != world.owner.id
    assert world.query("SELECT owner FROM treedb.owner_dbs WHERE name = 'eu'") == [
        (world.owner.id,)
    ]


def test_while_postgresql_is_away_the_owner_stays_and_tries_again(world: OwningDaemon) -> None:
    own = world.begin()
    world.connections.is_away = True
    world.clock.advance(RENEW_S)
    world.clock.advance(10 * RENEW_S)
    world.query("UPDATE treedb.owners SET ends = now()")
    world.connections.is_away = False
    world.clock.advance(RETRY_S)
    assert (world.ended, world.owner.id) == ([], own)
    assert world.query("SELECT ends > now() FROM treedb.owners") == [(True,)]


def test_an_id_whose_beginning_is_in_doubt_is_not_used_again(world: OwningDaemon) -> None:
    former = world.owner.id
    world.connections.is_away = True
    failed: list[type[BaseException] | None] = []
    noting = world.owner.note(SHOP)
    assert noting is not None
    noting.addErrback(lambda failure: failed.append(failure.type))
    assert failed == [StoreUnreachable]
    world.connections.is_away = False
    assert world.begin() != former


def test_a_lease_ends_with_a_clean_stop(world: OwningDaemon) -> None:
    world.begin()
    world.owner.close()
    world.owner.end_lease()
    assert world.query(OWNERS) == []


@pytest_twisted.ensureDeferred
async def test_others_are_found_dead_only_after_postgresql_has_answered_for_a_while(
    world: OwningDaemon, tmp_path: pathlib.Path
) -> None:
    former = world.begin()
    other = world.make_owner(tmp_path / "other")
    world.query("UPDATE treedb.owners SET ends = now()")

    async def look(seconds: float) -> bool:
        """Look each second for so long; return whether the owner was found dead."""
        found: list[Any] = []
        begin = world.clock.seconds()
        while world.clock.seconds() < begin + seconds:
            world.clock.rightNow += 1
            found += await other.find_dead()
        return bool(found)

    assert not await look(GRACE_S)
    world.connections.is_away = True
    assert not await look(1)
    world.connections.is_away = False
    assert not await look(GRACE_S)
    assert world.query(OWNERS) == [(former, False)]
    assert await look(2)
    assert world.query(OWNERS) == [(former, True)]
    await other.learn([former])
    assert other.is_dead(former)
