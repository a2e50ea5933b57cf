"""A server with the tools that the official conformance suite calls.

Most tools that ask a person have two versions: one sends protocol requests itself, the other
calls `elicit.form`.
"""

from typing import Any

import mcp_types as types
from mcp.server.mcpserver import Context, MCPServer

from flows import elicit

# The smallest possible picture and sound.
PIXEL = "R0lGODlhAQABAAAAACH5BAEKAAEALAAAAAABAAEAAAICTAEAOw=="
SILENCE = "UklGRiYAAABXQVZFZm10IBAAAAABAAEAQB8AAAB9AAACABAAZGF0YQIAAAA="
STATE = "as it was"


def _object(**properties: Any) -> dict[str, Any]:
    return {"type": "object", "properties": properties, "required": list(properties)}


TEXT = {"type": "string"}
WHO = _object(username=TEXT, email=TEXT)
OK = _object(ok={"type": "boolean"})
NAME, COLOR = _object(name=TEXT), _object(color=TEXT)
DEFAULTS = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "default": "John Doe"},
        "age": {"type": "integer", "default": 30},
        "score": {"type": "number", "default": 95.5},
        "status": {
            "type": "string",
            "enum": ["active", "inactive", "pending"],
            "default": "active",
        },
        "verified": {"type": "boolean", "default": True},
    },
}


def _titled(*values: str) -> list[dict[str, str]]:
    return [{"const": value, "title": value.title()} for value in values]


ENUMS = _object(
    untitledSingle={"type": "string", "enum": ["option1", "option2", "option3"]},
    titledSingle={"type": "string", "oneOf": _titled("value1", "value2", "value3")},
    legacyEnum={
        "type": "string",
        "enum": ["opt1", "opt2", "opt3"],
        "enumNames": ["Option One", "Option Two", "Option Three"],
    },
    untitledMulti={
        "type": "array",
        "items": {"type": "string", "enum": ["option1", "option2", "option3"]},
    },
    titledMulti={"type": "array", "items": {"anyOf": _titled("value1", "value2", "value3")}},
)


def everything(*, with_verbs: bool) -> MCPServer:
    """Return the server. Its tools ask with our verbs if `with_verbs`, else with the protocol."""
    server = MCPServer("everything", log_level="WARNING")
    _add_plain_tools(server)
    _add_input_tools(server)
    if with_verbs:
        _add_verb_tools(server)
    else:
        _add_asking_tools(server)
        _add_rounds(server)
    return server


def _add_plain_tools(server: MCPServer) -> None:
    resource = types.TextResourceContents(
        uri="test://embedded-resource",
        mime_type="text/plain",
        text="This is an embedded resource content.",
    )
    embedded = types.EmbeddedResource(type="resource", resource=resource)
    pixel = types.ImageContent(type="image", data=PIXEL, mime_type="image/gif")

    @server.tool()
    async def test_simple_text() -> str:
        """Say one thing."""
        return "This is a simple text response for testing."

    @server.tool()
    async def test_image_content() -> list[types.ImageContent]:
        """Show a picture."""
        return [pixel]

    @server.tool()
    async def test_audio_content() -> list[types.AudioContent]:
        """Play a sound."""
        return [types.AudioContent(type="audio", data=SILENCE, mime_type="audio/wav")]

    @server.tool()
    async def test_embedded_resource() -> list[types.EmbeddedResource]:
        """Show a resource."""
        return [embedded]

    @server.tool()
    async def test_multiple_content_types() -> list[Any]:
        """Show some of everything."""
        return [
            types.TextContent(type="text", text="Multiple content types test:"),
            pixel,
            embedded,
        ]

    @server.tool()
    async def test_tool_with_progress(context: Context) -> str:
        """Report how far it is."""
        for done in (0, 50, 100):
            await context.report_progress(done, 100)
        return "done"

    @server.tool()
    async def test_error_handling() -> str:
        """Fail."""
        raise RuntimeError("This tool intentionally returns an error for testing")


def _add_asking_tools(server: MCPServer) -> None:
    """Add tools that ask with the protocol itself, on the older revision."""

    async def ask(context: Context, message: str, schema: dict[str, Any]) -> str:
        asked = await context.request_context.session.elicit_form(
            message, schema, related_request_id=context.request_id
        )
        return f"User response: action={asked.action}, content={asked.content}"

    @server.tool()
    async def test_elicitation(message: str, context: Context) -> str:
        """Ask for a name and an address."""
        return await ask(context, message, WHO)

    @server.tool()
    async def test_elicitation_sep1034_defaults(context: Context) -> str:
        """Ask with defaults."""
        return await ask(context, "Is this you?", DEFAULTS)

    @server.tool()
    async def test_elicitation_sep1330_enums(context: Context) -> str:
        """Ask for choices."""
        return await ask(context, "Choose.", ENUMS)


def _add_rounds(server: MCPServer) -> None:
    """Add tools that ask with the protocol itself, on the newer revision."""

    @server.tool()
    async def test_input_required_result_request_state(context: Context) -> Any:
        """Ask, and expect the state back."""
        if context.request_state == STATE and (context.input_responses or {}).get("confirm"):
            return "state-ok"
        return _asking({"confirm": _form("Please confirm", OK)}, STATE)

    @server.tool()
    async def test_input_required_result_tampered_state(context: Context) -> Any:
        """Ask with a state that nobody may change."""
        if context.request_state == STATE:
            return "state-ok"
        return _asking({"confirm": _form("Please confirm", OK)}, STATE)

    @server.tool()
    async def test_input_required_result_multi_round(context: Context) -> Any:
        """Ask twice, one after the other."""
        if context.request_state is None:
            return _asking({"step1": _form("Step 1: What is your name?", NAME)}, "1")
        if context.request_state == "1":
            return _asking({"step2": _form("Step 2: What is your favorite color?", COLOR)}, "2")
        return "done"


def _add_verb_tools(server: MCPServer) -> None:
    """Add the same tools as our users write them, once for both revisions."""

    async def ask(message: str, schema: dict[str, Any]) -> str:
        outcome = await elicit.form(message, schema).outcome()
        return f"User response: action={outcome.action}, content={outcome.content}"

    @server.tool()
    async def test_elicitation(message: str) -> str:
        """Ask for a name and an address."""
        return await ask(message, WHO)

    @server.tool()
    async def test_elicitation_sep1034_defaults() -> str:
        """Ask with defaults."""
        return await ask("Is this you?", DEFAULTS)

    @server.tool()
    async def test_elicitation_sep1330_enums() -> str:
        """Ask for choices."""
        return await ask("Choose.", ENUMS)

    @server.tool()
    async def test_input_required_result_request_state() -> str:
        """Ask, and expect the state back."""
        await elicit.form("Please confirm", OK)
        return "state-ok"

    @server.tool()
    async def test_input_required_result_tampered_state() -> str:
        """Ask with a state that nobody may change."""
        await elicit.form("Please confirm", OK)
        return "state-ok"

    @server.tool()
    async def test_input_required_result_multi_round() -> str:
        """Ask twice, one after the other."""
        await elicit.form("Step 1: What is your name?", NAME)
        await elicit.form("Step 2: What is your favorite color?", COLOR)
        return "done"


def _add_input_tools(server: MCPServer) -> None:
    """Add tools and a prompt that need features that elicit does not have.

    These are request keys chosen by the tool, sampling, roots, and questions in a prompt.
    """
    model = types.CreateMessageRequest(
        params=types.CreateMessageRequestParams(
            messages=[
                types.SamplingMessage(
                    role="user", content=types.TextContent(type="text", text="Which capital?")
                )
            ],
            max_tokens=100,
        )
    )
    folders = types.ListRootsRequest()
    name = _form("What is your name?", NAME)

    def has(context: Context, *keys: str) -> bool:
        return set(keys) <= set(context.input_responses or {})

    @server.tool()
    async def test_input_required_result_elicitation(context: Context) -> Any:
        """Ask for a name."""
        answer = (context.input_responses or {}).get("user_name")
        if isinstance(answer, types.ElicitResult) and answer.content:
            return f"Hello, {answer.content.get('name')}!"
        return _asking({"user_name": name})

    @server.tool()
    async def test_input_required_result_sampling(context: Context) -> Any:
        """Ask the client's model."""
        return "Paris" if has(context, "capital") else _asking({"capital": model})

    @server.tool()
    async def test_input_required_result_list_roots(context: Context) -> Any:
        """Ask for the client's folders."""
        return "seen" if has(context, "roots") else _asking({"roots": folders})

    @server.tool()
    async def test_input_required_result_multiple_inputs(context: Context) -> Any:
        """Ask for all three at once."""
        asked = {"user_name": name, "greeting": model, "client_roots": folders}
        return "done" if has(context, *asked) else _asking(asked, STATE)

    @server.tool()
    async def test_input_required_result_capabilities(context: Context) -> Any:
        """Ask for what the client can answer."""
        can = context.client_capabilities or types.ClientCapabilities()
        asked = {
            **({"user_name": name} if can.elicitation else {}),
            **({"greeting": model} if can.sampling else {}),
        }
        return "done" if has(context, *asked) else _asking(asked)

    @server.prompt()
    async def test_input_required_result_prompt(context: Context) -> Any:
        """Ask for the context before returning the prompt."""
        if has(context, "user_context"):
            return "With context"
        return _asking({"user_context": _form("Which context?", _object(context=TEXT))})


def _form(message: str, schema: dict[str, Any]) -> types.ElicitRequest:
    return types.ElicitRequest(
        params=types.ElicitRequestFormParams(message=message, requested_schema=schema)
    )


def _asking(requests: dict[str, Any], state: str | None = None) -> types.InputRequiredResult:
    return types.InputRequiredResult(input_requests=requests, request_state=state)


by_the_protocol = everything(with_verbs=False)
with_our_verbs = everything(with_verbs=True)
