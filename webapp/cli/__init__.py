"""The command `elicit`: one module a command, each a thin caller of the service.

`main` has the names of the commands, and imports the module of the one that is asked for. A module
declares its arguments in `declare` and what is run with them; what several have in common stands in
`arguments` (ports, ids) and `operator` (work on the store of this environment).

Promised: an error is a sentence and a status, never a traceback; what is printed is fit for a
terminal.
"""
