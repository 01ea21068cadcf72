"""Values of metrics as text, OpenMetrics or Prometheus, by prometheus-client."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from itertools import accumulate

import attrs
from prometheus_client.exposition import choose_encoder
from prometheus_client.metrics_core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
)
from prometheus_client.metrics_core import Metric as Family
from prometheus_client.registry import Collector, CollectorRegistry
from prometheus_client.utils import floatToGoString

from treedbd.metrics.samples import Buckets, Labels, Metric, Samples


@attrs.frozen(eq=False)
class _Taken(Collector):
    """Values that were taken, for a registry of their own."""

    metrics: Iterable[Metric]
    samples: Samples

    def collect(self) -> Iterator[Family]:
        for metric in self.metrics:
            yield make_family(metric, self.samples.get(metric.name, {}))


def format_samples(metrics: Iterable[Metric], samples: Samples, accept: str) -> tuple[bytes, str]:
    """Return values as text in the format that a header `Accept` prefers, and its media type."""
    registry = CollectorRegistry(auto_describe=False)
    registry.register(_Taken(metrics, samples))
    encode, media_type = choose_encoder(accept)
    return encode(registry), media_type


def make_family(metric: Metric, values: Mapping[Labels, float | Buckets]) -> Family:
    """Return a metric with its values, as prometheus-client has them."""
    if metric.kind == "histogram":
        histogram = HistogramMetricFamily(metric.name, metric.help, labels=metric.labels)
        for labels, value in values.items():
            if isinstance(value, tuple):
                counts, total = value
                bounds = [*map(floatToGoString, metric.bounds), "+Inf"]
                buckets = list(zip(bounds, accumulate(counts), strict=True))
                histogram.add_metric(labels, buckets, total)
        return histogram
    kind = CounterMetricFamily if metric.kind == "counter" else GaugeMetricFamily
    family = kind(metric.name, metric.help, labels=metric.labels)
    for labels, value in values.items():
        if not isinstance(value, tuple):
            family.add_metric(labels, value)
    return family
