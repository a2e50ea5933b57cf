"""Three public MCP servers from PyPI, each with at most three lines added, asking people.

What is shown here is that a server which somebody else has written needs no more than that. Each
is started as its author means it to be started, or by `elicit serve`; a client of the official
library calls it on both revisions, and a person does in a browser what the link asks for.
"""
