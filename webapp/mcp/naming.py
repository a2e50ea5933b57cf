"""The name of a served server, by which approvals, secrets and joins are told from another's.

What could go wrong: two servers without a name on one store, where a yes to a tool of the one runs
the other's. The libraries do not say whether an author gave a name, so what they would make up is
known by its looks: "mcp-server", the same for each MCPServer, and "FastMCP-1a2b", by the class and
another one in each process.
"""

import re
from typing import Any

# What FastMCP calls a server that it makes of an OpenAPI document or a FastAPI application.
_EVERYBODYS = frozenset({"mcp-server", "OpenAPI Server", "FastAPI"})
_CHANCE = re.compile(r"-[0-9a-f]{4}")


def must_be_named(server: Any) -> None:
    """Raises ValueError, in words for the terminal, if the library made the name up."""
    name, kind = str(server.name), type(server).__name__
    if name in _EVERYBODYS:
        why = "every server without one has that"
    elif name.startswith(kind) and _CHANCE.fullmatch(name.removeprefix(kind)):
        why = "it is another one in each process"
    else:
        return
    raise ValueError(
        f"The server has no name of its own ({name!r}: {why}), and what a person approves is kept "
        f'under its name. Give it one that no other server of yours has: {kind}(name="...").'
    )
