"""The window of a query is charged to one of those who watch it, for as long as it stays."""

from __future__ import annotations

from typing import Any

import pytest

from tests.database.test_watched_queries import ALL, LIST, FollowedWorld, Follower
from tests.tree.queries import query
from treedbd.counting import HeldAccount, HeldBytes, HeldBytesRefused
from treedbd.database.watched_queries import CHARGED_BYTES
from treedbd.limits import Limits
from treedbd.tree.query import Query
from treedbd.tree.window import CHILD_BYTES

MANY = query(orderBy='"$key"', limitToFirst="1000000")
CHILDREN = 500


def make_world() -> FollowedWorld:
    world = FollowedWorld()
    world.put(LIST, {f"k{number}": number for number in range(CHILDREN)})
    return world


def watch(world: FollowedWorld, account: HeldAccount | None, watched: Query = MANY) -> Any:
    """Return a follower that has begun, of a caller with this account."""
    follower = Follower(world, watched, LIST)
    follower.subscription = world.database.subscribe(LIST, watched, follower, account=account)
    follower.begin()
    return follower


def test_a_window_is_charged_once_and_passes_to_who_stays() -> None:
    world, held = make_world(), HeldBytes(Limits(), lambda: 0.0)
    accounts = [held.account("192.0.2.1"), held.account("192.0.2.2")]
    first, second = (watch(world, account) for account in accounts)
    size = accounts[0].bytes
    assert CHILDREN * CHILD_BYTES <= size < CHILDREN * (CHILD_BYTES + 10) + CHARGED_BYTES
    assert accounts[1].bytes == 0
    first.subscription.unwatch()
    assert [each.bytes for each in accounts] == [0, size]
    second.subscription.unwatch()
    assert held.total == 0


def test_a_query_without_a_limit_has_no_window() -> None:
    world, held = make_world(), HeldBytes(Limits(), lambda: 0.0)
    watch(world, held.account(""), ALL)
    assert held.total == 0


def test_a_window_that_would_hold_too_much_is_not_drawn() -> None:
    world, held = make_world(), HeldBytes(Limits(held_bytes=100_000), lambda: 0.0)
    account = held.account("")
    with pytest.raises(HeldBytesRefused):
        watch(world, account)
    assert account.bytes == 0
    assert world.database.watching.watchers.collection(LIST) is None


def test_a_window_that_grows_beyond_the_bound_ends_its_streams() -> None:
    world, held = make_world(), HeldBytes(Limits(held_bytes=200_000), lambda: 0.0)
    account = held.account("")
    follower = watch(world, account)
    assert account.bytes > 0
    for number in range(CHILDREN, 2 * CHILDREN):
        world.put((*LIST, f"k{number}"), number)
    assert follower.is_revoked
    follower.subscription.unwatch()
    assert held.total == 0


def test_a_window_that_shrinks_gives_back() -> None:
    world, held = make_world(), HeldBytes(Limits(), lambda: 0.0)
    account = held.account("")
    watch(world, account)
    before = account.bytes
    world.put(LIST, {"k1": 1})
    assert account.bytes <= CHARGED_BYTES < before
