"""The HTTP API, by the requests of a program."""
