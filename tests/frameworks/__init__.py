"""Real agent frameworks as MCP clients, with simulated models.

Each framework is installed separately with its own pins, because some need other versions of
libraries than this project. Each runs in its own process (`agents`), which simulates the model and
the person.
"""
