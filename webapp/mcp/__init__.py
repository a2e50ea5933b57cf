"""The author's MCP server, served through one middleware.

`attach` adds the middleware to an author's server, of either library, and leaves the server
unchanged. The middleware creates the Call of each tools/call, picks a presenter (`presenters`) and
returns the outcome as a result (`leg`). A call that waits for days may be a task (`tasks`): a run
that its client polls, without another record. `received` returns the arguments that a body will
get, for the person to see. `before` asks the questions that come before a body. `visibility`
decides which tools a caller sees. `result_tool` is the tool for clients that show nothing. `opened`
is the only layer in front of the MCP library: it limits message sizes (`messages`), and implements
the sessions and streams of protocol version 2025-11-25 (`resuming`).

Guarantees: an author has to import this library in a tool and change nothing else. An author's own
requestState passes through unchanged.

This package never imports `webapp.routes`, and `webapp.routes` never imports this package.
"""
