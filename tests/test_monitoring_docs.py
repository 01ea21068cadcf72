"""`docs/monitoring.md`: its table of metrics, its figures, its configurations."""

from __future__ import annotations

import json
import pathlib
import re
import subprocess

from tests.pages import DOCS, read_blocks
from treedbd.config.settings import Settings
from treedbd.operating.metrics import LARGEST, METRICS
from treedbd.operating.operations import OPS_CONNECTIONS
from treedbd.web.activity import MAX_OTHERS

PAGE = (DOCS / "monitoring.md").read_text()


def test_the_table_has_each_metric_as_it_is() -> None:
    rows = re.findall(r"^\| `(\w+)` \| (\w+) \| ([^|]*) \| (.*) \|$", PAGE, re.MULTILINE)
    expected = [
        (metric.name, metric.kind, ", ".join(f"`{label}`" for label in metric.labels), metric.help)
        for metric in METRICS
    ]
    assert rows == expected


def test_the_page_names_no_other_metric() -> None:
    names = set(re.findall(r"`((?:treedb|process)_\w+[a-z])`", PAGE))
    assert names == {metric.name for metric in METRICS}


def test_its_figures_are_those_of_the_code() -> None:
    assert f"up to {OPS_CONNECTIONS} connections" in PAGE
    assert f"the first {MAX_OTHERS} have a label" in PAGE
    assert f"the {LARGEST} largest databases" in PAGE


def test_prometheus_accepts_the_configuration(tmp_path: pathlib.Path) -> None:
    (block,) = read_blocks("monitoring.md", "yaml")
    (tmp_path / "prometheus.yml").write_text(block.text)
    alerts = (DOCS.parent / "conf/prometheus-alerts.yml").read_text()
    (tmp_path / "prometheus-alerts.yml").write_text(alerts)
    done = subprocess.run(
        ["promtool", "check", "config", "prometheus.yml"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr


def test_the_setting_is_valid() -> None:
    (line,) = re.findall(r"^    (ops_listen = .*)$", PAGE, re.MULTILINE)
    endpoints = json.loads(line.partition(" = ")[2])
    assert [each.port for each in Settings.from_values(ops_listen=endpoints).ops_listen] == [9100]
