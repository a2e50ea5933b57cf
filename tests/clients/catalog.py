"""The known clients and how each behaves (versions and reports of autumn 2026).

If nothing is known of a client on a revision, the revision is left out. The clients' names are
those that they send, where known. No test depends on the names.
"""

from collections.abc import Mapping

from tests.clients.official import PythonClient
from tests.clients.scripted import (
    CANCELS,
    DECLINES,
    FAILS,
    NEWER,
    OLDER,
    SHOWS,
    ScriptedClient,
)
from tests.clients.transport import Json

FORM: Json = {}  # clients declared forms in this way before the protocol had modes
BOTH: Json = {"form": {}, "url": {}}
LINK: Json = {"url": {}}


def _on_both(declared: Json | None) -> Mapping[str, Json | None]:
    return {OLDER: declared, NEWER: declared}


CLIENTS = (
    ScriptedClient(
        name="VS Code",
        calls_itself="Visual Studio Code",
        declares={OLDER: BOTH},
        form=SHOWS,
        link=SHOWS,
    ),
    ScriptedClient(
        name="Claude Code", calls_itself="claude-code", declares=_on_both(FORM), form=SHOWS
    ),
    ScriptedClient(
        name="Claude Desktop, Cowork: never answers",
        calls_itself="claude-ai",
        declares=_on_both(FORM),
        gives_up_after_seconds=60,
    ),
    ScriptedClient(
        name="Claude Desktop, Cowork: drops the question",
        calls_itself="claude-ai",
        declares={NEWER: FORM},
        reads_input_required=False,
        gives_up_after_seconds=180,
    ),
    ScriptedClient(
        name="Claude Desktop, Cowork: declines or cancels without the person",
        calls_itself="claude-ai",
        declares=_on_both(FORM),
        form=DECLINES,
        gives_up_after_seconds=60,
    ),
    ScriptedClient(
        name="Claude Desktop, Cowork: declines or cancels without the person",
        calls_itself="claude-ai",
        declares=_on_both(FORM),
        form=CANCELS,
        gives_up_after_seconds=60,
    ),
    ScriptedClient(
        name="Codex",
        calls_itself="codex-mcp-client",
        declares={OLDER: FORM},
        form=SHOWS,
        gives_up_after_seconds=60,
        pauses=True,
    ),
    ScriptedClient(
        name="Cursor, JetBrains, Postman, Mistral",
        calls_itself="cursor-vscode",
        declares={OLDER: FORM},
        form=SHOWS,
    ),
    ScriptedClient(
        name="Glama, ggcode, MCPJam",
        calls_itself="mcpjam",
        declares={OLDER: BOTH},
        form=SHOWS,
        link=SHOWS,
    ),
    ScriptedClient(
        name="Inspector",
        calls_itself="inspector-client",
        declares=_on_both(BOTH),
        form=SHOWS,
        link=SHOWS,
        shows_required=True,
        calls_again_after_required=5,
        between_rounds_seconds=0.0,
    ),
    ScriptedClient(
        name="TypeScript client",
        calls_itself="typescript",
        declares=_on_both(BOTH),
        form=SHOWS,
        link=SHOWS,
        gives_up_after_seconds=60,
    ),
    PythonClient(name="Python client"),
    ScriptedClient(
        name="mcp-remote, with a client that shows forms and links",
        calls_itself="a client (via mcp-remote 0.15.1)",
        declares={OLDER: BOTH},
        form=SHOWS,
        link=SHOWS,
    ),
    ScriptedClient(
        name="mcp-remote, with a client that shows forms and links",
        calls_itself="a client (via mcp-remote 0.15.1)",
        declares={NEWER: BOTH},
        form=SHOWS,
        link=FAILS,
    ),
    ScriptedClient(
        name="goose, Qwen Code, Copilot CLI, Kiro, Gemini CLI",
        calls_itself="goose",
        declares=_on_both(None),
    ),
)
# Agent frameworks, with their defaults unless the name says otherwise.
FRAMEWORKS = (
    ScriptedClient(
        name="LangChain (`langchain.mcp`)",
        calls_itself="fastmcp",
        version="4.2.3",
        declares={NEWER: BOTH},
        form=SHOWS,
        link=SHOWS,
        replays=True,
        between_rounds_seconds=0.0,
    ),
    ScriptedClient(
        name="LangChain (`langchain-mcp-adapters`), with `on_elicitation`",
        calls_itself="mcp",
        declares={OLDER: BOTH},
        form=SHOWS,
        link=SHOWS,
    ),
    ScriptedClient(
        name="LangChain (`langchain-mcp-adapters`)", calls_itself="mcp", declares={OLDER: None}
    ),
    ScriptedClient(
        name="pydantic-ai, with `elicitation_handler`",
        calls_itself="fastmcp",
        version="4.2.3",
        declares=_on_both(BOTH),
        form=SHOWS,
        link=SHOWS,
        gives_up_after_seconds=300,
    ),
    ScriptedClient(
        name="pydantic-ai",
        calls_itself="fastmcp",
        version="4.2.3",
        declares=_on_both(None),
        gives_up_after_seconds=300,
    ),
    ScriptedClient(
        name="openai-agents",
        calls_itself="mcp",
        declares={OLDER: None},
        gives_up_after_seconds=5,
    ),
    ScriptedClient(
        name="a FastMCP proxy, before a client that cannot be asked",
        calls_itself="fastmcp",
        version="4.2.3",
        declares={OLDER: None},
    ),
    ScriptedClient(
        name="a FastMCP proxy, before a client that cannot be asked",
        calls_itself="fastmcp",
        version="4.2.3",
        declares={NEWER: BOTH},
        form=FAILS,
        link=FAILS,
        declares_too=("roots", "sampling"),
    ),
)
# These clients receive -32042 from a server that cannot ask while a call is open.
WITHOUT_STREAMS = (
    ScriptedClient(
        name="Inspector, at a server that answers in plain JSON",
        calls_itself="inspector-client",
        declares={OLDER: BOTH},
        shows_required=True,
        calls_again_after_required=5,
    ),
    ScriptedClient(
        name="LibreChat, at a server that answers in plain JSON",
        calls_itself="librechat",
        declares={OLDER: LINK},
        shows_required=True,
        calls_again_after_required=1,
    ),
    ScriptedClient(
        name="AgentCore Gateway and other gateways, at a server that answers in plain JSON",
        calls_itself="a gateway",
        declares={OLDER: LINK},
        shows_required=True,
    ),
)
