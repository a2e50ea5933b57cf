"""Several processes serve one store.

`processes` finds out how many were asked for, and refuses what they could not share. `sessions`
sends each request of MCP 2025-11-25 to the process that has its session, by the end of the
session's id; `relay` passes it on over a socket of this user's alone, and `envelope` is what it
travels in: who calls is settled where the connection was accepted.
"""
