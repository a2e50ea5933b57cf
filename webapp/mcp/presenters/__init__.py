"""How a question reaches a person: a way for each revision, and for what a client shows.

`hold` keeps the call open and sends the link on its stream (2025-11-25), `hold_form` asks in the
client's own form there, `retry` ends the leg with an InputRequiredResult (2026-07-28), `link` puts
the link into the result where a client shows nothing, and `in_task` holds nobody: the question
stands for a task. `choice` picks one by what the client
declares, and each asks `webapp.calls.clients` before it puts a question to the client: where that
was seen to show nothing, or was sent this very question in vain, it hands it to `link`.

Promised: what was shown decides, and not what was declared; an answer that is sooner than a person
is nobody's, and settles nothing; a form that is out when its call ends stays open, and a late
answer in it counts; a model can wait or decline, and never say yes.
"""
