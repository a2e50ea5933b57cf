"""The command `elicit`: one module a command, each a thin caller of the service.

`main` has the names of the commands, and imports the module of the one that is asked for. A module
declares its arguments in `declare` and what is run with them; what several have in common stands in
`arguments` (ports, ids), `operator` (work on the store of this environment), `people` (whose data
is meant) and `table` (a list of rows, on a terminal, in a pipe and as JSON). What the doctor looks
at beyond this machine is in `examination`. The class of a row has the names of its JSON.

Promised: an error is a sentence and a status, never a traceback; what is printed is fit for a
terminal; every list has `--json`, and the names in it stay; an id may be cut short wherever one is
taken, and means one row or none.
"""
