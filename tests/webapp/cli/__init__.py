"""The command line, run as a process of its own, as a person runs it."""
