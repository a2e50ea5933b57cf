"""The log: a line for an event, with ids and never a token, code, state, cookie, query or body.

`events` writes a record, `lines` takes it off the loop, `masking` takes out what was typed in
confidence.
"""
