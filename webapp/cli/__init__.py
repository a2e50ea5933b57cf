"""The command `elicit`: one module a command, each a thin caller of the service.

Promised: an error is a sentence and a status, never a traceback; what is printed is fit for a
terminal.
"""
