"""The name of a served server, which separates its approvals and secrets from another server's.

Risks: two servers without a name use one store, and an approval of a tool of one server runs a tool
of the other. A name is therefore required. The libraries do not report whether an author gave a
name, so generated names are recognised by their form: "mcp-server" is the name of each MCPServer,
and "FastMCP-1a2b" consists of the class and a suffix that differs in each process.
"""

import re
from typing import Any

# FastMCP's names for servers that it makes from an OpenAPI document or a FastAPI application.
_EVERYBODYS = frozenset({"mcp-server", "OpenAPI Server", "FastAPI"})
_CHANCE = re.compile(r"-[0-9a-f]{4}")


def must_be_named(server: Any) -> None:
    """Check that the author named the server. Raises ValueError if the library made the name up."""
    name, kind = str(server.name), type(server).__name__
    if name in _EVERYBODYS:
        why = "the default name of the library"
    elif name.startswith(kind) and _CHANCE.fullmatch(name.removeprefix(kind)):
        why = "a name that changes with each process"
    else:
        return
    raise ValueError(
        f"The server has no name of its own ({name!r} is {why}), but approvals are stored under "
        "the name of the server. Give it a name that none of your other servers has: "
        f'{kind}(name="...").'
    )
