"""What is held for connections: charged to accounts, bounded, and freed with them."""

from __future__ import annotations

import pytest
from twisted.logger import LogLevel, capturedLogs

from treedbd.counting import LOGGED_EVERY_S, HeldBytes, HeldBytesRefused
from treedbd.limits import Limits

LIMITS = Limits(held_bytes=300, held_bytes_per_address=200, held_bytes_per_connection=100)


def held_at(now: list[float]) -> HeldBytes:
    return HeldBytes(LIMITS, lambda: now[0])


def test_each_bound_refuses_what_exceeds_it_and_counts_by_its_setting() -> None:
    held = held_at([0.0])
    first, second, third = (held.account("192.0.2.1") for _ in range(3))
    first.charge(100)
    with pytest.raises(HeldBytesRefused) as refused:
        first.charge(1)
    assert refused.value.limit == "held_bytes_per_connection"
    second.charge(100)
    with pytest.raises(HeldBytesRefused):
        third.charge(1)
    other = held.account("192.0.2.2")
    other.charge(100)
    with pytest.raises(HeldBytesRefused):
        held.account("").charge(1)
    limits = ("held_bytes_per_connection", "held_bytes_per_address", "held_bytes")
    assert held.refused == dict.fromkeys(limits, 1)
    assert held.total == 300


def test_an_unknown_address_has_no_bound_of_its_own() -> None:
    held = held_at([0.0])
    for _ in range(3):
        held.account("").charge(100)
    assert held.total == 300


def test_a_closed_account_holds_nothing_and_takes_nothing() -> None:
    held = held_at([0.0])
    account = held.account("192.0.2.1")
    account.charge(70)
    account.add(50)
    account.close()
    for size in (60, -60):
        account.add(size)
    account.charge(10)
    account.set(10)
    account.close()
    assert (account.bytes, held.total, held.count_of("192.0.2.1")) == (0, 0, 0)


def test_what_is_set_is_charged_by_its_difference() -> None:
    held = held_at([0.0])
    account = held.account("192.0.2.1")
    for size in (40, 90, 10):
        account.set(size)
        assert held.total == size
    with pytest.raises(HeldBytesRefused):
        account.set(101)
    assert held.total == 10


def test_the_log_names_the_setting_once_in_a_while() -> None:
    now = [0.0]
    held = held_at(now)
    account = held.account("")
    with capturedLogs() as logged:
        for _ in range(3):
            with pytest.raises(HeldBytesRefused):
                account.charge(101)
        now[0] += LOGGED_EVERY_S
        with pytest.raises(HeldBytesRefused):
            account.charge(101)
    assert [event["log_level"] for event in logged] == [LogLevel.warn] * 2
    assert {event["limit"] for event in logged} == {"held_bytes_per_connection"}
    assert [event["count"] for event in logged] == [1, 4]
