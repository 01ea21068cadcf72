"""What operators see: log, metrics, traces.

log             the log: entries, lines, output
metrics         metrics: their table, their values, how they are read
board           values that workers share
operations      the endpoints for operators
opentelemetry   spans for a collector
"""
