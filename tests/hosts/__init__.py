"""Hosts: ASGI servers and frameworks that serve the application, and the promises that hold there.

A host is a row of the table (`HOSTS` in `table.py`): an object that starts the host, with the line
of code or the command that an author writes (`host.py`). A promise is a column: a check
(`checks.py`) that tests a served host from outside, only through HTTP. A cell says that the promise
holds, or that the host prevents it. The tests run every check on every host and compare the results
with the table. The command `python -m tests.hosts` writes the table into
docs/reference/clients.md, and a fast test checks the file.

Risks: the table claims something that is not true. So every cell comes from a check that ran, and a
refusal at the start is tested by starting the host.
"""
