"""Hosts: ASGI servers and frameworks that serve the application, and the promises that hold there.

A host is a row (`HOSTS` in `table.py`): an object that starts the host and has the line that an
author writes (`host.py`). A promise is a column: a check (`checks.py`) that tests a served host
from outside, only through HTTP. The verdict is that the promise holds, or that the host is
responsible for it. The tests run every check through every host and compare. The command
`python -m tests.hosts` writes the table into docs/reference/clients.md, and a fast test checks the
file.

Risks: a row that is only claimed. So every cell has a check that ran, and a refusal at the start is
tested by starting the host.
"""
