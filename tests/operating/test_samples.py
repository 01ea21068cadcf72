"""How the values of several processes are added up."""

from __future__ import annotations

from operator import itemgetter

import orjson

from treedbd.counting import Histogram
from treedbd.operating.metrics import (
    Metric,
    Samples,
    add_up,
    from_json,
    growing,
    read_samples,
    to_json,
)


def nothing(_: object) -> None:
    """Read nothing."""


COUNTER = Metric("a_total", "counter", "", nothing, ("x",))
HISTOGRAM = Metric("b_seconds", "histogram", "", nothing, bounds=(1.0,))
SUM = Metric("c", "gauge", "", nothing)
LEAST = Metric("d", "gauge", "", nothing, combine=min)
FACT = Metric("e", "gauge", "", nothing, combine=None)
ALL = (COUNTER, HISTOGRAM, SUM, LEAST, FACT)

ONE: Samples = {
    "a_total": {("u",): 1, ("v",): 2},
    "b_seconds": {(): ((1, 2), 0.5)},
    "c": {(): 3},
    "d": {(): 9},
    "e": {(): 4},
}
TWO: Samples = {
    "a_total": {("v",): 5},
    "b_seconds": {(): ((0, 1), 1.5)},
    "c": {(): 1},
    "d": {(): 8},
}


def test_each_kind_is_added_up_in_its_way() -> None:
    assert add_up(ALL, [ONE, TWO]) == {
        "a_total": {("u",): 1, ("v",): 7},
        "b_seconds": {(): ((1, 3), 2.0)},
        "c": {(): 4},
        "d": {(): 8},
        "e": {(): 4},
    }


def test_of_a_process_that_has_ended_only_what_grows_remains() -> None:
    assert growing(ALL, ONE).keys() == {"a_total", "b_seconds"}


def test_values_are_read_in_all_their_forms() -> None:
    histogram = Histogram((1.0,))
    histogram.observe(0.5)
    histogram.observe(1.5)
    readings = {"n": 1.0, "m": {("x",): 2.0}, "h": histogram, "none": None}
    metrics = [Metric(name, "gauge", "", itemgetter(name)) for name in readings]
    assert read_samples(metrics, readings) == {
        "n": {(): 1.0},
        "m": {("x",): 2.0},
        "h": {(): ((1, 1), 2.0)},
        "none": {},
    }


def test_values_survive_json() -> None:
    assert from_json(orjson.loads(orjson.dumps(to_json(ONE)))) == ONE
