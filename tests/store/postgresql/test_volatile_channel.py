"""Messages over notifications: whole, in one order at all who receive them, and of daemons only."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.postgresql import PostgresqlServers
from treedbd.store.engine import StoreUnreachable
from treedbd.store.postgresql.cluster import VolatileChannel
from treedbd.store.postgresql.connection import PostgresqlSettings

CLUSTER = bytes(16)
LISTENERS = "SELECT pid FROM pg_stat_activity WHERE query LIKE 'DO %treedb.channel%'"
NOTIFY = "SELECT pg_notify(%s, %s)"


@pytest.fixture
def channels(clean_server: PostgresqlServers) -> Iterator[list[VolatileChannel]]:
    settings = PostgresqlSettings(clean_server.dsn)
    made = [VolatileChannel(settings, CLUSTER) for _ in range(2)]
    for each in made:
        each.listen()
    yield made
    for each in made:
        each.close()


def receive(channel: VolatileChannel, count: int) -> list[bytes]:
    """Return so many messages."""
    found: list[bytes] = []
    while len(found) < count:
        found += channel.receive(60)
    return found


def test_messages_of_any_size_arrive_whole_and_in_one_order(
    channels: list[VolatileChannel],
) -> None:
    sent = [b"a", b"a", bytes(range(256)) * 300, b"b" * 5_925, b"b" * 5_926, b"last"]
    channels[0].send(sent[:4])
    channels[1].send([b"other"])
    channels[0].send(sent[4:])
    expected = [*sent[:4], b"other", *sent[4:]]
    assert [receive(each, len(expected)) for each in channels] == [expected, expected]


def test_what_others_send_is_left_out(
    channels: list[VolatileChannel], clean_server: PostgresqlServers
) -> None:
    query = clean_server.primary.query
    name = channels[0]._name
    for payload in ("", "x", "x 1 . ?", "x 1 + YQ==", "x 1 . é"):
        query(NOTIFY, [name, payload])
    channels[0].send([b"a"])
    assert receive(channels[1], 1) == [b"a"]


def test_no_statement_shows_the_name_of_the_channel(
    channels: list[VolatileChannel], clean_server: PostgresqlServers
) -> None:
    query = clean_server.primary.query
    channels[0].send([b"a"])
    assert receive(channels[1], 1) == [b"a"]
    assert len(query(LISTENERS)) == 2
    shown = query("SELECT query FROM pg_stat_activity WHERE query LIKE %s", ["%treedb_volatile%"])
    assert all(channels[0]._name not in text for (text,) in shown)


def test_a_connection_that_has_ended_is_not_replaced_silently(
    channels: list[VolatileChannel], clean_server: PostgresqlServers
) -> None:
    query = clean_server.primary.query
    for (pid,) in query(LISTENERS):
        query("SELECT pg_terminate_backend(%s)", [pid])
    for _ in range(2):
        with pytest.raises(StoreUnreachable):
            channels[0].receive(60)
    channels[0].listen()
    channels[1].send([b"a"])
    assert receive(channels[0], 1) == [b"a"]
