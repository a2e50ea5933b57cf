"""A serving process: its socket, its signals, and MCP over HTTP or over stdin and stdout.

`finding` imports the author's server by `module:attribute`, or calls the function that creates it.
`http_server` serves it together with the pages on a socket of this process. `stdio_server` serves
it on stdin and stdout, with the pages on a port that several processes share. Both start in the
same way (the store, then the check in `known_servers` that the name belongs to this server) and end
in the same way: held calls are answered and running calls may finish. `running` does the same from
inside an author's program and replaces its `run()`. `reloading` restarts the process when a file
changes and keeps the socket. `supervising` runs several workers on one socket and replaces workers
that die.

For all of them: the user of a connection is determined when it is accepted, the guard's limits
apply before the first byte is parsed, and only the protocol is written to stdout if a client reads
it.

A refusal consists of sentences and an exit status (`webapp.command.CommandRefused`). Commands print
it, and a program that calls `run()` receives it as an exception.
"""
