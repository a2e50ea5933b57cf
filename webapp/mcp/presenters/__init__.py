"""The presenters: how a question reaches a person, by protocol revision and by client.

`choice` picks a presenter by what the client declares. Its own presenters keep the call open and
send the link, or the client's own form, on the call's stream (2025-11-25). `on_stream` has what the
two have in common. `retry` ends the request with an InputRequiredResult (2026-07-28). `link` puts
the link into the result if a client shows nothing. `in_task` holds no request: the task shows the
question. Each presenter asks `webapp.calls.clients` before it sends a question to the client. If
the client was seen to show nothing, or did not answer this question before, the presenter passes
the question to `link`.

Guarantees: the meaning of an answer depends on what was shown, not on what the client declared. An
answer that comes sooner than a person can answer is ignored. A form that is open when its call ends
stays open, and a late answer in the form counts. A model can wait or decline, and never accept.
"""
