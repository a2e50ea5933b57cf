"""The command `elicit`: its commands only call the service.

`main` has the names of the commands and imports the module of the requested one. A module declares
its arguments in `declare`, together with the function to run. Commands that share rows or files are
in one module (`show`, `pending` and `questions`). Shared parts are in `arguments`
(ports, ids), `operator` (work on the environment's store, finding a person) and `table` (rows on a
terminal, in a pipe, and as JSON). The doctor's checks beyond this machine are in `examination`. The
JSON of a row has the names of the fields of its row class.

Guarantees: an error is a sentence and an exit status, never a traceback. Output has no terminal
control characters. Every list has `--json`, and the names in it are stable. Every id can be
shortened, as long as exactly one row matches.
"""
