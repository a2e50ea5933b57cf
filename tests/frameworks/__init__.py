"""Agent frameworks as MCP clients, the real ones, with models that are played.

Each is installed apart, by the pins of its own file, because some need other versions of libraries
than this project. Each runs in a process of its own (`agents`), which is the model and the person.
"""
