"""The author's MCP server, served through one middleware.

`attach` adds the middleware to an author's server, of either library, and leaves the server
unchanged. The middleware creates the Call of each tools/call, picks a presenter (`presenters`) and
returns the outcome as a result (`leg`). A call that waits for days may be a task (`tasks`): a run
that its client polls, without another record. `received` shows the arguments that a body will get.
`before` asks what has to be asked before a body. `visibility` decides which tools a caller sees.
`result_tool` is the tool for clients that show nothing. `opened`, `shares` and `resuming` are the
sessions and streams of 2025-11-25.

Guarantees: a tool only imports this library, and an author's own requestState passes through
unchanged.

This package never imports `webapp.routes`, and `webapp.routes` never imports this package.
"""
