"""What operators see of a daemon: its metrics as a scraper reads them, and its health."""

from __future__ import annotations

import json
from email.message import Message
from typing import Any, TypeAlias
from urllib.parse import urlsplit

from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse_open
from prometheus_client.parser import text_string_to_metric_families as parse

from tests.daemon import Daemon, Mark, request

OPS_LISTEN = 'ops_listen = ["tcp:0:interface=127.0.0.1"]'
OPEN_METRICS = "application/openmetrics-text; version=1.0.0"

Sample: TypeAlias = tuple[str, tuple[tuple[str, str], ...]]
"""The name of a sample and its labels, in order."""


def ops_url(daemon: Daemon) -> str:
    """Return the URL of the first endpoint of `ops_listen`."""
    return daemon.await_line(r"Metrics and health: (\S+)", Mark(0))[1]


def fetch(
    url: str, accept: str = "", method: str = "GET", host: str = ""
) -> tuple[int, Message, str]:
    """Return the status, the headers, and the text of a response."""
    headers = ({"Accept": accept} if accept else {}) | ({"Host": host} if host else {})
    address = urlsplit(url)
    response = request(url, method, f"{address.path}?{address.query}", None, headers)
    return response.status, response.headers, response.body.decode()


def health(daemon: Daemon, query: str = "") -> tuple[int, Any]:
    """Return the status and the JSON of the health."""
    status, _, text = fetch(f"{ops_url(daemon)}/.health{query}")
    return status, json.loads(text)


class Scrape:
    """The samples of one scrape.

    Attributes:
        text: as it was received.
        names: the names of all metrics.
        labels: the names of the labels of each metric that has samples, without those of buckets.
        samples: the values.

    """

    def __init__(self, text: str, *, is_open: bool = False) -> None:
        """Parse a scrape strictly."""
        self.text = text
        families = list((parse_open if is_open else parse)(text))
        suffix = "_total"
        self.names = {each.name + (suffix if each.type == "counter" else "") for each in families}
        self.labels: dict[str, set[str]] = {}
        self.samples: dict[Sample, float] = {}
        for family in families:
            name = family.name + (suffix if family.type == "counter" else "")
            for sample in family.samples:
                self.labels.setdefault(name, set()).update(set(sample.labels) - {"le"})
                labels = tuple(sorted(sample.labels.items()))
                self.samples[sample.name, labels] = sample.value

    def get(self, name: str, **labels: str) -> float:
        """Return a value, 0 if it is not there."""
        return self.samples.get((name, tuple(sorted(labels.items()))), 0.0)

    def of(self, name: str) -> dict[Sample, float]:
        """Return all values of a metric, those of a histogram with the count and the buckets."""
        own = {name, f"{name}_count", f"{name}_bucket", f"{name}_sum"}
        return {sample: value for sample, value in self.samples.items() if sample[0] in own}


def scrape(daemon: Daemon) -> Scrape:
    """Scrape a daemon."""
    status, _, text = fetch(f"{ops_url(daemon)}/.metrics")
    assert status == 200, text
    return Scrape(text)
