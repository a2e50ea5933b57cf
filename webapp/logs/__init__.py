"""The log: one line per event, with ids, never with a token, code, state, cookie, query or body.

`events` formats a record, `lines` writes it in a thread and remembers the latest ones, and
`masking` removes secrets that people typed.
"""
