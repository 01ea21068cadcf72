"""Looking for problems: in slices, and once for all who ask meanwhile."""

from __future__ import annotations

import pathlib

import pytest
from twisted.internet.defer import Deferred
from twisted.internet.task import Clock
from twisted.python.failure import Failure

from tests.database.catalogs import PROJECT, close, find, make_catalog, put
from tests.database.world import TurnClock
from treedbd.database.runtime import Look, Problem, ProblemSearch
from treedbd.database.slices import SLICE_SECONDS, Slices

FULL = Problem("demo", "default", "The disk is full.")


class Looks:
    """Looks of three steps, each of which takes a slice."""

    def __init__(self) -> None:
        self.clock = TurnClock(SLICE_SECONDS)
        self.begun = 0
        self.search = ProblemSearch(self._look, Slices(self.clock))

    def find(self) -> list[object]:
        """Ask, and return what gets the result."""
        found: list[object] = []
        self.search.find().addBoth(found.append)
        return found

    def _look(self) -> Look:
        self.begun += 1
        number = self.begun
        for _ in range(3):
            yield
        return [FULL] * number


def test_a_look_gives_the_reactor_back_and_those_who_ask_meanwhile_share_the_next() -> None:
    looks = Looks()
    first = looks.find()
    assert (looks.begun, first) == (1, [])
    later = [looks.find() for _ in range(5)]
    assert looks.begun == 1
    for _ in range(3):
        assert first == []
        assert looks.clock.take_turn()
    assert first == [[FULL]]
    while looks.clock.take_turn():
        pass
    assert looks.begun == 2
    assert later == [[[FULL, FULL]]] * 5
    assert looks.find() == []
    assert looks.begun == 3


def test_a_look_that_fails_answers_those_who_wait_and_no_other() -> None:
    def look() -> Look:
        yield
        raise OSError("The disk is gone.")

    search = ProblemSearch(look, Slices(Clock()))
    for _ in range(2):
        waiting: Deferred[list[Problem]] = search.find()
        failures: list[Failure] = []
        waiting.addErrback(failures.append)
        with pytest.raises(OSError, match="The disk is gone"):
            failures[0].raiseException()


def test_many_open_databases_are_looked_at_in_slices(tmp_path: pathlib.Path) -> None:
    catalog, clock = make_catalog(tmp_path, PROJECT)
    for name in "abcdef":
        put(find(catalog, name), clock, 1)
    (tmp_path / "p" / "f.shelf").rename(tmp_path / "moved")
    clock.lag = SLICE_SECONDS
    found: list[list[Problem]] = []
    catalog.find_problems().addCallback(found.append)
    turns = 0
    while not found:
        assert clock.take_turn()
        turns += 1
    assert turns >= 6
    assert [each.database for each in found[0]] == ["f"]
    (tmp_path / "moved").rename(tmp_path / "p" / "f.shelf")
    close(catalog)
