"""Other people's hosts: who else may serve the application, and what it promises there.

A host is a row (`HOSTS` in `table.py`): an object that starts itself and says how an author would
(`host.py`). A promise is a column: a check (`checks.py`) that looks at a served host from outside,
through HTTP alone, and gives a verdict: it holds, or it is the host's own affair. The tests run
every check through every host and compare; `python -m tests.hosts` writes what they hold to be true
into docs/reference/clients.md, and a fast test compares the file.

What could go wrong: a row that is only claimed. So there is no cell without a check that ran, and
what a host refuses at its start is started and seen to be refused.
"""
