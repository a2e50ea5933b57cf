"""The package behind `elicit demo`: tools with a small service of their own, and a client.

`server` and `tools` are served. `client` calls each tool as a host would. `walker` acts as the
person without a browser. `paired` identifies the person if the machine cannot distinguish users.

The client reaches the server over HTTP only, so the demo shows what any client gets.
"""
