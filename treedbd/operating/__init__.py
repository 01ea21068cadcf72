"""What operators see of a daemon: its log, metrics, health and traces.

log             the log: an entry, its text or JSON, where it is written
metrics         the metrics: their table, how they are read, added up over all workers and printed
operations      the endpoints for operators (`ops_listen`), what they serve, the counting for it
opentelemetry   the spans of requests, exported to a collector of OpenTelemetry
"""
