"""What an operator watches: metrics, traces, and which question a line of the log belongs to.

`observer` is the protocol that the other rooms call, at few places: a store's operation is over, a
question is asked, ends or wakes somebody, a provider has answered, a webhook came, the sweeper went
round. Whoever is not observed calls methods that do nothing. `families` is the table of all
metrics, from which docs/metrics.md is written; `metrics` counts them for Prometheus and is the one
file that imports its library, where ELICIT_METRICS asks for it.

`work` is what a task is at: one request, one call, one row of the sweeper's. The first question
that it reads is what it is about, and every line that is logged meanwhile has that id. Where traces
are collected, a span of the question's own trace is begun there: its call's context travels in its
record, so that a page, a callback or a webhook in another process goes on with the same trace.
`telemetry` has who hears and what begins spans in this process.

Promised: nobody is named, and no id stands in a label; labels take their values from the code and
the settings, never from a request. No span has a path, a query, a body or a text of anybody's.

Never imports another room of webapp's: they all may call this one.
"""
