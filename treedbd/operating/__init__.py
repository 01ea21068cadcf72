"""What operators see of a daemon: its log, metrics, health and traces.

log             the log: an entry, its text or JSON, where it is written
metrics         the metrics: their table, how they are read, added up, printed and served
board           memory in which workers show each other their metrics
operations      the endpoints for operators (`ops_listen`), and the counting for them
opentelemetry   the spans of requests, exported to a collector of OpenTelemetry
"""
