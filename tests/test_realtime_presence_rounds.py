"""Presence is right however a client, its network or the daemon ends, and after it comes back."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.presence_rounds import ENDS, KEEP_ALIVE_S, PresenceRounds

ROUNDS = 2
SOON_S = 3.0


@pytest.fixture(scope="module", params=["1", "2"], ids=["one process", "workers"])
def rounds(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[PresenceRounds]:
    folder = tmp_path_factory.mktemp("presence")
    with PresenceRounds(folder, "--workers", request.param) as running:
        yield running
        assert "Traceback" not in running.log, running.log


@pytest.mark.parametrize("end", ENDS)
def test_online_is_right_right_afterwards(rounds: PresenceRounds, end: str) -> None:
    for _ in range(ROUNDS):
        took = rounds.run(end)
        assert took < SOON_S + (3 * KEEP_ALIVE_S if end == "cut" else 0)
