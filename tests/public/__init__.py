"""Three public MCP servers from PyPI, each with at most three added lines, that ask people.

The tests show that three lines are enough for a server by another author. Each server is started as
its author intends, or by `elicit serve`. A client of the official library calls it on both
revisions, and a person does in a browser what the link asks for.
"""
