"""Clients as they are: what a person sees, what the model receives, and how soon.

Clients often do not support what they declare. So `catalog` describes each known client as data:
its name, what it declares on each revision, how it reacts to a form, a link, an
InputRequiredResult, -32042 or a link in a result, and its time limit for a call. `scripted` behaves
as described there, and sends raw JSON-RPC (`transport`) to the complete application. `env` provides
a store, a sandbox, a person with a browser, and an event loop without sockets on a manual clock:
waiting for a minute takes no real time, and every run measures the same seconds.

In a run (`reaching`), the model calls a tool that asks. The person answers at the first place that
allows an answer. The model follows the instructions in each result until the tool has returned.
The result is a row of docs/reference/clients.md (`document`, written by `python -m tests.clients`),
and a test compares the committed file with the runs. In every row, the person must be reached.

Risk: if a description is wrong, the runs of that client prove little. So the real official clients
run too: tests/typescript/test_shown.py.

Nothing here sleeps in real time or leaves the process, and none of our code is patched.
"""
