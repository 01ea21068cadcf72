"""The values of metrics at one moment, and how those of several processes are added up."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final, Literal, TypeAlias

import attrs

from treedbd.loop import Histogram

Labels: TypeAlias = tuple[str, ...]
Buckets: TypeAlias = tuple[tuple[int, ...], float]
"""The observations in each bucket of a histogram, the last of which has no bound, and their sum."""
Samples: TypeAlias = "dict[str, dict[Labels, float | Buckets]]"
"""The values of each metric by its labels; of a histogram the buckets."""
Reading: TypeAlias = "float | Histogram | Mapping[Labels, float] | None"
"""What is read of a service: one value, the values by labels, or None if there is none."""
Kind: TypeAlias = Literal["counter", "gauge", "histogram"]


@attrs.frozen
class Metric:
    """One metric: its name, what it means, and how it is read.

    Attributes:
        read: returns the values, of the sources of a service.
        labels: the names of the labels.
        bounds: those of the buckets of a histogram.
        combine: makes one gauge of those of all processes; None if what one process reads holds
            for all of them.

    """

    name: str
    kind: Kind
    help: str
    read: Callable[[Any], Reading]
    labels: tuple[str, ...] = ()
    bounds: tuple[float, ...] = ()
    combine: Callable[[Iterable[float]], float] | None = sum

    @property
    def only_grows(self) -> bool:
        """Whether its values only grow, also while processes end and others begin."""
        return self.kind != "gauge"


def read_samples(metrics: Iterable[Metric], sources: Any) -> Samples:
    """Return the present values of metrics."""
    return {metric.name: _values_of(metric.read(sources)) for metric in metrics}


def _values_of(reading: Reading) -> dict[Labels, float | Buckets]:
    if reading is None:
        return {}
    if isinstance(reading, Histogram):
        return {(): (tuple(reading.counts), reading.total)}
    if isinstance(reading, Mapping):
        return dict(reading)
    return {(): reading}


def add_up(metrics: Iterable[Metric], parts: Sequence[Samples]) -> Samples:
    """Return the values of several processes together; the first is the one that adds them up."""
    return {
        metric.name: _add_up(metric, [part.get(metric.name, {}) for part in parts])
        for metric in metrics
    }


def _add_up(
    metric: Metric, parts: Sequence[Mapping[Labels, float | Buckets]]
) -> dict[Labels, float | Buckets]:
    if metric.combine is None:
        return dict(parts[0])
    together: dict[Labels, list[Any]] = {}
    for part in parts:
        for labels, value in part.items():
            together.setdefault(labels, []).append(value)
    combine = _add_buckets if metric.kind == "histogram" else metric.combine
    return {labels: combine(values) for labels, values in together.items()}


def _add_buckets(values: Sequence[Buckets]) -> Buckets:
    counts = tuple(map(sum, zip(*(counts for counts, _ in values), strict=True)))
    return counts, sum(total for _, total in values)


def growing(metrics: Iterable[Metric], samples: Samples) -> Samples:
    """Return the values of those metrics that only grow."""
    return {
        metric.name: samples[metric.name]
        for metric in metrics
        if metric.only_grows and metric.name in samples
    }


def to_json(samples: Samples) -> dict[str, Any]:
    """Return values as JSON that `from_json` reads."""
    return {name: list(values.items()) for name, values in samples.items()}


def from_json(json: Mapping[str, Any]) -> Samples:
    """Return what `to_json` was given."""
    return {
        name: {tuple(labels): _value_from(value) for labels, value in values}
        for name, values in json.items()
    }


def _value_from(value: Any) -> float | Buckets:
    if isinstance(value, list):
        counts, total = value
        return tuple(counts), total
    number: float = value
    return number


NOTHING: Final[Samples] = {}
