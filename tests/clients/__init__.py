"""Clients as they are, on the wire: what a person sees, what the model hears, and how soon.

What clients declare and what they do are two things, so each client that is known of is written
down here as data (`catalog`): what it calls itself, what it declares on each revision, what it does
with a form, a link, an InputRequiredResult, -32042 or a link in a result, after how long, and when
it gives up on a call. `scripted` acts that data out as raw JSON-RPC (`transport`) against the whole
served application, for which `env` has a store, a sandbox, a person with a browser, and a loop
without sockets on a hand clock: a minute costs nothing, and the same run gives the same seconds.

One run (`reaching`): the model calls a tool that asks; the person answers wherever they first have
a way to; the model does what it was told, until the tool's line has returned. What was seen is a
row of docs/reference/clients.md (`document`, written by `python -m tests.clients`), and a test
holds the committed file against the runs. None may be "never".

What could go wrong: a client is written down wrongly, and all of this proves little. So beside it
the official clients run in earnest: tests/typescript/test_shown.py.

Promised: nothing here sleeps in real time or leaves the process, and no code of ours is patched.
"""
