"""The alert rules and the dashboard of `conf/`, loaded by the tools that use them."""

from __future__ import annotations

import json
import pathlib
import re
import subprocess
from collections.abc import Iterable
from typing import Any

import pytest

from treedbd.operating.metrics import METRICS

CONF = pathlib.Path(__file__).parents[1] / "conf"
ALERTS = CONF / "prometheus-alerts.yml"
DASHBOARD: dict[str, Any] = json.loads((CONF / "grafana-dashboard.json").read_text())
NAMES = {metric.name for metric in METRICS} | {"up"}
LABELS = {label for metric in METRICS for label in metric.labels} | {"job", "instance", "le"}
STANDING = {"$__rate_interval": "5m", "$job": "treedb", "$instance": ".*"}
"""What Grafana puts in place of its variables."""

INSTANCE = 'job="treedb", instance="a:9100"'
FIRES: dict[str, dict[str, str]] = {
    "TreedbDown": {"up{%s}": "0x180"},
    "TreedbCannotWrite": {"treedb_write_problems{%s}": "1x180"},
    "TreedbUnhealthy": {"treedb_problems{%s}": "1x180", "treedb_write_problems{%s}": "0x180"},
    "TreedbAuditLags": {"treedb_audit_lag_seconds{%s}": "90x180"},
    "TreedbWebhooksLag": {"treedb_webhook_lag_seconds{%s}": "700x180"},
    "TreedbWebhookDeadLetters": {"treedb_webhook_dead_letters{%s}": "1x180"},
    "TreedbWebhookLostEvents": {"treedb_webhook_losses_total{%s}": "0x170 1x10"},
    "TreedbServerErrors": {
        'treedb_requests_total{%s, status="500"}': "0+60x180",
        'treedb_requests_total{%s, status="200"}': "0+600x180",
    },
    "TreedbSlowRequests": {
        'treedb_request_seconds_bucket{%s, le="1.0"}': "0+60x180",
        'treedb_request_seconds_bucket{%s, le="2.5"}': "0+120x180",
        'treedb_request_seconds_bucket{%s, le="+Inf"}': "0+120x180",
    },
    "TreedbSlowCommits": {
        'treedb_sync_seconds_bucket{%s, le="0.5"}': "0+60x180",
        'treedb_sync_seconds_bucket{%s, le="1.0"}': "0+120x180",
        'treedb_sync_seconds_bucket{%s, le="+Inf"}': "0+120x180",
    },
    "TreedbLongTurns": {
        'treedb_turn_seconds_bucket{%s, le="0.1"}': "0+600x180",
        "treedb_turn_seconds_count{%s}": "0+660x180",
    },
    "TreedbWritesQueue": {"treedb_waiting_writes{%s}": "2000x180"},
    "TreedbDiskAlmostFull": {"treedb_disk_free_bytes{%s}": "1000x180"},
    "TreedbDescriptorsAlmostUsedUp": {
        "process_open_fds{%s}": "950x180",
        "process_max_fds{%s}": "1000x180",
    },
    "TreedbCertificateEnds": {"treedb_certificate_end_timestamp_seconds{%s}": "86400x180"},
    "TreedbNoBackup": {"treedb_last_backup_timestamp_seconds{%s}": "-200000x180"},
    "TreedbReaderLostItsPlace": {"treedb_log_cursors_dropped_total{%s}": "0x170 1x10"},
    "TreedbReaderLags": {'treedb_log_cursor_lag_seconds{%s, cursor="archive"}': "1000x180"},
    "TreedbExpiryLags": {"treedb_expiry_lag_seconds{%s}": "1000x180"},
    "TreedbArchiveLags": {"treedb_archive_lag_seconds{%s}": "100x180"},
    "TreedbStandbyLags": {"treedb_standby_lag_seconds{%s}": "100x180"},
    "TreedbArchiveFails": {"treedb_archive_failures_total{%s}": "0+1x180"},
    "TreedbTokenFailures": {'treedb_token_failures_total{%s, reason="expired"}': "0+600x180"},
    "TreedbRefusals": {'treedb_refusals_total{%s, code="too_many_requests"}': "0+600x180"},
    "TreedbHoldsTooMuch": {'treedb_held_refusals_total{%s, limit="held_bytes"}': "0+60x180"},
    "TreedbStaleStreams": {"treedb_stale_streams_total{%s}": "0+600x180"},
    "TreedbStaleListens": {"treedb_stale_listens_total{%s}": "0+600x180"},
    "TreedbSocketRefusals": {'treedb_socket_refusals_total{%s, limit="sockets"}': "0+600x180"},
    "TreedbRestarts": {"process_start_time_seconds{%s}": "0+1x180"},
}
"""Series, a value each minute, for which an alert fires after some time."""


def promtool(*arguments: str | pathlib.Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["promtool", *map(str, arguments)], capture_output=True, text=True, check=False
    )


def alert_names() -> list[str]:
    return re.findall(r"^ +- alert: (\w+)$", ALERTS.read_text(), re.MULTILINE)


def panels() -> list[dict[str, Any]]:
    """Return the panels with data."""
    return [panel for panel in DASHBOARD["panels"] if panel["type"] != "row"]


def expressions() -> list[str]:
    """Return the expressions of the dashboard, as Grafana sends them."""
    found = []
    for panel in panels():
        for target in panel["targets"]:
            expression = target["expr"]
            for variable, value in STANDING.items():
                expression = expression.replace(variable, value)
            found.append(expression)
    return found


def names_in(text: str) -> set[str]:
    """Return the metrics that expressions name, without the endings of histograms."""
    names = re.findall(r"\b(?:(?:treedb|process)_[a-z_]+|up)\b(?=[{ \[)])", text)
    bare = {name: re.sub("_(bucket|count|sum)$", "", name) for name in names}
    return {bare[name] if bare[name] in NAMES else name for name in names}


def labels_in(texts: Iterable[str]) -> set[str]:
    """Return the labels that expressions select, or group by."""
    text = "\n".join(texts)
    grouped = ",".join(re.findall(r"\bby \(([^)]*)\)", text))
    return {*re.findall(r"(\w+)(?:=~|!~|!=|=)\"", text), *re.findall(r"\w+", grouped)}


def test_prometheus_accepts_the_alert_rules() -> None:
    done = promtool("check", "rules", ALERTS)
    assert done.returncode == 0, done.stderr
    assert f"{len(FIRES)} rules found" in done.stdout


def test_each_alert_fires_and_without_a_reason_none_does(tmp_path: pathlib.Path) -> None:
    assert set(FIRES) == set(alert_names())
    quiet = [{"series": f"up{{{INSTANCE}}}", "values": "1x180"}]
    tests = [
        {
            "name": alert,
            "interval": "1m",
            "input_series": [
                *([] if alert == "TreedbDown" else quiet),
                *({"series": name % INSTANCE, "values": values} for name, values in series.items()),
            ],
            "promql_expr_test": [
                {
                    "expr": 'count by (alertname) (ALERTS{alertstate="firing"})',
                    "eval_time": "3h",
                    "exp_samples": [
                        {"labels": f'{{alertname="{alert}"}}', "value": 1},
                    ],
                }
            ],
        }
        for alert, series in FIRES.items()
    ]
    tests.append(
        {
            "name": "nothing is wrong",
            "interval": "1m",
            "input_series": quiet,
            "promql_expr_test": [{"expr": "count(ALERTS)", "eval_time": "3h", "exp_samples": []}],
        }
    )
    file = tmp_path / "tests.yml"  # JSON is YAML
    settings = {"rule_files": [str(ALERTS)], "evaluation_interval": "5m", "tests": tests}
    file.write_text(json.dumps(settings))
    done = promtool("test", "rules", file)
    assert done.returncode == 0, done.stdout + done.stderr


def test_prometheus_accepts_every_expression_of_the_dashboard(tmp_path: pathlib.Path) -> None:
    rules = [
        {"record": f"panel:{number}", "expr": expression}
        for number, expression in enumerate(expressions())
    ]
    file = tmp_path / "rules.yml"
    file.write_text(json.dumps({"groups": [{"name": "dashboard", "rules": rules}]}))
    done = promtool("check", "rules", file)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("source", ["alerts", "dashboard"])
def test_expressions_use_metrics_and_labels_that_there_are(source: str) -> None:
    texts = expressions() if source == "dashboard" else [ALERTS.read_text()]
    used = names_in("\n".join(texts))
    assert used <= NAMES
    assert labels_in(texts) <= LABELS
    if source == "dashboard":  # shows everything
        assert used == NAMES - {"up"}


def test_the_dashboard_can_be_imported_with_any_data_source() -> None:
    ids = [panel["id"] for panel in DASHBOARD["panels"]]
    assert len(set(ids)) == len(ids)
    variables = {each["name"]: each["type"] for each in DASHBOARD["templating"]["list"]}
    assert variables == {"datasource": "datasource", "job": "query", "instance": "query"}
    for panel in panels():
        sources = [panel["datasource"], *(target["datasource"] for target in panel["targets"])]
        assert {source["uid"] for source in sources} == {"${datasource}"}
        assert panel["title"]
