"""What operators see of a daemon: its log, metrics, health and traces.

log             the log: an entry, its text or JSON, where it is written
metrics         the table of metrics: how each is read, added up over all workers, shown as text
operations      `ops_listen`: the pages for operators, /.metrics and the full /.health
opentelemetry   the spans of requests, exported to a collector of OpenTelemetry
"""
