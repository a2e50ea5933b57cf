"""How a question reaches a person: a way for each revision, and for what a client shows.

`hold` keeps the call open and sends the link on its stream (2025-11-25), `hold_form` asks in the
client's own form there, `retry` ends the leg with an InputRequiredResult (2026-07-28), `link` puts
the link into the result where a client shows nothing. `choice` picks one.

Promised: what was shown decides, and not what was declared; a model can wait or decline, and never
say yes.
"""
