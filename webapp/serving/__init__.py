"""A serving process: its socket, its signals, and MCP over HTTP or over stdin and stdout.

`finding` imports the author's server by `module:attribute`, or calls the function that creates it.
`http_server` serves this server and the pages on a socket of this process. `stdio_server` serves
the server on stdin and stdout, and the pages on a port that several processes share. Both first
open the store and check that no other server uses this server's name. When they end, waiting calls
get a response and running calls may finish. `running` does the same from inside an author's program
and replaces the program's `run()`. `reloading` restarts the process when a file changes and keeps
the socket. `supervising` runs several workers on one socket and replaces workers that die.

In all of these modules, the user of a connection is determined when the connection is accepted, and
the guard's limits apply before the first byte is parsed. If a client reads stdout, nothing but the
protocol is written to stdout.

A refusal consists of sentences and an exit status (`webapp.command.CommandRefused`). Commands print
the refusal, and in a program that calls `run()`, the refusal is raised as an exception.
"""
