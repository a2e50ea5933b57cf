"""Telemetry for operators: metrics, traces, and the question id of each log line.

`Observer` has the methods that other packages call at a few places: a store operation ended, a
question was asked, ended or woke a call, a provider answered, a webhook arrived, the sweeper
finished a round. Without telemetry its methods do nothing. `families` is the table of all metrics,
from which docs/how-to/monitoring.md is written. `metrics` counts them for Prometheus and is the
only file that imports the Prometheus library. It is imported only if ELICIT_METRICS is set.

`work` tracks units of work: one request, one call, or one row of the sweeper. The first question
that a unit of work reads is its subject, and all its log lines have that question's id. If traces
are collected, a span in the question's own trace starts at that point. The trace context of the
call is stored in the question's record, so a page, a callback or a webhook in another process
continues the same trace. `Telemetry` has the observer and the tracer of this process.

Guarantees: metrics contain no names of people and no ids. Label values come from the code and the
settings, never from a request. Spans contain no path, query, body or user text.

This package imports no other package of webapp, so all other packages can import it.
"""
