"""A process that serves: its socket, its signals, MCP over HTTP or over stdin and stdout.

`finding` finds the author's server by `module:attribute`, or by the function that makes it.
`http_server` serves it with the pages on a socket of this process, `stdio_server` on stdin and
stdout with the pages on a port that several processes share. Both begin alike (the store, who was
served by that name before, `known_servers`) and end alike: calls that are held get their answer,
what works may finish. `running` does the same from inside of an author's program, whose own `run()`
it takes over; `reloading` starts a process anew when a file changes, and keeps the socket;
`supervising` has several workers serve on one, and replaces those that die.

Whoever starts it, the same holds: the connection is asked for its user as it is accepted, the
guard's limits stand before the first byte is parsed, and nothing but the protocol is written to
stdout where a client reads it.

A refusal is sentences and a status (`webapp.command.CommandRefused`): a command prints them, and a
program that calls `run()` gets them as an exception.
"""
