"""The MCP server of an author, served: a middleware, and what it needs of the protocol.

`attach` puts one middleware before an author's server, of either library and unchanged. It makes
the Call of each tools/call, picks a presenter (`presenters`) and gives the outcome back as a
result (`leg`). A call that waits for days may be a task (`tasks`): a run that its client looks in
for, and no other record. `received` shows what a body will get, `before` is what stands before it,
`visibility` which tools somebody sees, `result_tool` is the tool for clients that show nothing;
`opened`, `shares` and `resuming` are the sessions and streams of 2025-11-25.

Promised: nothing of a tool is ours but the import; an author's own requestState travels untouched.

Never imports `webapp.routes`, nor is imported by it.
"""
