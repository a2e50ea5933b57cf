"""Clients as they are: what a person sees, what the model receives, and how soon.

Clients often declare something else than they do. So each known client is described as data
(`catalog`): its name, what it declares on each revision, how it reacts to a form, a link, an
InputRequiredResult, -32042 or a link in a result, and after what time it gives up a call.
`scripted` performs that data as raw JSON-RPC (`transport`) against the complete application. `env`
has a store, a sandbox, a person with a browser, and an event loop without sockets on a manual
clock: a minute takes no time, and the same run gives the same seconds.

In a run (`reaching`), the model calls a tool that asks. The person answers wherever they first can.
The model does what it is told, until the tool has returned. The result is a row of
docs/reference/clients.md (`document`, written by `python -m tests.clients`), and a test compares
the committed file with the runs. No row may be "never".

Risks: a client is described wrongly, and then its runs prove little. So real official clients run
too: tests/typescript/test_shown.py.

Nothing here sleeps in real time or leaves the process, and none of our code is patched.
"""
