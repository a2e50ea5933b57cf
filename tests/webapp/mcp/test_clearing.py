"""Removal of typed secrets from a tool's errors, in every form that the secret can take."""

import asyncio
import base64
from typing import Any

import mcp_types as types
import pytest
from mcp import MCPError
from pydantic import TypeAdapter

from flows import elicit
from flows.elicitation.states import Json
from flows.payments.money import Money
from tests.support.mcp_sandbox import caller_at_sandbox
from tests.support.mcp_server import MODERN, links_asked, soon, text_of
from tests.support.own_requests import size_form

LONG = "Kx7-Qp2_Zt9!Vb4?Wn6+Ls1=Rd3~Hf5.Jg8/Mc0,Ty8;Ua6:Ei4%Ob2&Sw7*Dv9#Fk1-Gm3"
PIN = 482913
SCHEMA: dict[str, Json] = {
    "type": "object",
    "properties": {"key": {"type": "string"}, "pin": {"type": "integer"}},
    "required": ["key", "pin"],
}


def blocks(key: str) -> list[Any]:
    uri = f"file:///{key}"
    resource = types.TextResourceContents(uri=uri, text=key, mime_type="text/plain")
    return [
        types.TextContent(text=f"{key} is wrong, and {PIN}"),
        types.ResourceLink(uri=uri, name=key, title=key, description=f"about {key}"),
        types.EmbeddedResource(resource=resource),
        types.ImageContent(data=base64.b64encode(b"x").decode(), mime_type="image/png"),
    ]


@pytest.mark.every_way
async def test_typed_secret_is_removed_from_every_form_of_error(server, library, revision):
    # finding: S3
    if library == "fastmcp":
        from fastmcp.exceptions import ToolError
        from fastmcp.tools.base import ToolResult
    else:
        from mcp.server.mcpserver.exceptions import ToolError  # type: ignore[assignment]

    @server.tool()
    async def knock(shape: str) -> Any:
        typed = await elicit.secret("The key of the tea room", SCHEMA)
        key = str(typed["key"])
        match shape:
            case "protocol":
                raise MCPError(-32001, f"{key} is wrong", {"at": [key, PIN], key: "tried"})
            case "result":
                reported: dict[str, Any] = {"tried": {"key": key, "pin": PIN}}
                if library == "fastmcp":
                    return ToolResult(blocks(key), reported, is_error=True)
                return types.CallToolResult(
                    content=blocks(key), structured_content=reported, is_error=True
                )
            case "pydantic":
                try:
                    TypeAdapter(int).validate_python(key)
                except ValueError as error:
                    raise ToolError(str(error)) from error
            case _:
                raise ToolError(f"{typed!r} {key[:20]}...")

    async with caller_at_sandbox(server, revision) as (at, caller):
        for shape in ("protocol", "result", "pydantic", "tool"):
            call = caller.call("knock", shape=shape)
            await at.guest.type(await caller.link(), key=LONG, pin=str(PIN))
            try:
                text = (await soon(call)).model_dump_json()
                assert '"isError":true' in text or '"is_error":true' in text
            except MCPError as error:
                text = (
                    f"{shape == 'protocol' and error.code == -32001} {error.message} {error.data}"
                )
                assert text.startswith("True")
            assert "***" in text
            assert str(PIN) not in text
            assert not [at for at in range(len(LONG) - 4) if LONG[at : at + 5] in text], text


async def test_typed_secret_is_removed_from_protocol_errors(server):
    """The client's error omits the secret if a middleware raises an error that contains it."""
    from tests.support.mcp_server import LEGACY

    parts = getattr(server, "_mcp_server", server).middleware

    async def fails(context: Any, call_next: Any) -> Any:
        result = await call_next(context)
        if context.method == "tools/call":
            raise RuntimeError(f"could not write {result}")
        return result

    @server.tool()
    async def knock() -> str:
        return await elicit.secret("The key of the tea room")

    for revision in (LEGACY, MODERN):
        async with caller_at_sandbox(server, revision) as (at, caller):
            if fails not in parts:
                parts.append(fails)
            call = caller.call("knock")
            await at.guest.type(await caller.link(), value=LONG)
            with pytest.raises(MCPError) as raised:
                await soon(call)
            assert LONG not in f"{raised.value.message} {raised.value.data}"
            parts.remove(fails)


ACCOUNT: dict[str, Json] = {
    "type": "object",
    "properties": {
        "host": {"type": "string", "default": "db.example.com"},
        "key": {"type": "string", "writeOnly": True},
        "pin": {"type": "integer"},
        "port": {"type": "integer"},
    },
    "required": ["host", "key", "pin", "port"],
}


def pieces_in(text: str) -> list[int]:
    return [at for at in range(len(LONG) - 7) if LONG[at : at + 8] in text]


@pytest.mark.every_way
async def test_typed_secret_is_removed_from_results(server, library, revision, caplog):
    # finding: XA8
    @server.tool()
    async def knock(shape: str) -> Any:
        typed = await elicit.secret("The key of the tea room", ACCOUNT)
        key, pin = str(typed["key"]), typed["pin"]
        match shape:
            case "text":
                return f"Kept {key} and {pin} for {typed['host']}:{typed['port']}."
            case "object":
                return {"key": key, key: [typed], "pin": pin}
            case "blocks":
                return blocks(key)
            case _:
                return f"Kept {key[:20]}... and ...{key[-4:]} for {typed['host']}:{typed['port']}."

    async with caller_at_sandbox(server, revision) as (at, caller):
        for shape in ("text", "object", "blocks", "part"):
            caplog.clear()
            call = caller.call("knock", shape=shape)
            link = await caller.link()
            await at.guest.type(link, host="db.example.com", key=LONG, pin=str(PIN), port="5432")
            result = await soon(call)
            text = result.model_dump_json()
            assert not result.is_error
            assert "***" in text
            assert str(PIN) not in text
            assert not pieces_in(text), text
            if shape in ("text", "part"):
                assert "for db.example.com:5432." in text
            if shape == "part":  # the last four characters of a key are often shown, so they stay
                assert f"...{LONG[-4:]} for" in text
            (reported,) = [each for each in caplog.records if each.msg == "result.cleared"]
            assert vars(reported)["tool"] == "knock"


@pytest.mark.every_way
async def test_question_containing_a_typed_secret_is_refused(server, revision):
    # finding: XA8
    field: dict[str, Json] = {"type": "string", "title": f"For {LONG}?"}
    schema: dict[str, Json] = {"type": "object", "properties": {"name": field}}
    asks: dict[str, Any] = {
        "confirm": lambda: elicit.confirm(f"Use {LONG}?"),
        "part": lambda: elicit.confirm(f"Use {LONG[:12]}?"),
        "form": lambda: elicit.form("Which one?", schema),
        "url": lambda: elicit.url("Go there.", f"https://example.com/?key={LONG[:11]}"),
        "secret": lambda: elicit.secret(f"And another one than {LONG}?"),
        "payment": lambda: elicit.payment(Money("9.00", "EUR"), f"A room for {LONG}"),
    }

    @server.tool()
    async def knock(kind: str) -> str:
        await elicit.secret("The key of the tea room")
        return str(await asks[kind]())

    async with caller_at_sandbox(server, revision) as (at, caller):
        for kind in asks:
            call = caller.call("knock", kind=kind)
            await at.guest.type(await caller.link(), value=LONG)
            result = await soon(call)
            text = result.model_dump_json()
            assert result.is_error, kind
            assert "The question contains a secret that the person typed in this call" in text
            assert not pieces_in(text)


@pytest.mark.every_way
async def test_typed_secret_is_removed_from_progress_messages(server, revision):
    # finding: XA8
    @server.tool()
    async def knock() -> str:
        key = await elicit.secret("The key of the tea room")
        await elicit.notify(f"Trying {key}")
        return "done"

    reported = list[str | None]()

    async def note(progress: float, total: float | None, message: str | None) -> None:
        reported.append(message)

    async with caller_at_sandbox(server, revision) as (at, caller):
        calling = caller.client.call_tool("knock", {}, progress_callback=note)
        call = asyncio.create_task(calling)
        await at.guest.type(await caller.link(), value=LONG)
        assert text_of(await soon(call)) == "done"
    assert "Trying ***" in reported


async def test_typed_secret_is_removed_from_the_tools_own_requests(server):
    # finding: XA8
    @server.tool()
    async def knock() -> Any:
        key = await elicit.secret("The key of the tea room")
        return size_form(message=f"Which room for {key}?")

    async with caller_at_sandbox(server, MODERN) as (at, caller):
        first = await caller.asked("knock")
        await at.guest.type(links_asked(first)[0], value=LONG)
        second = await caller.asked("knock", after=first)
        (own,) = (second.input_requests or {}).values()
        assert own.model_dump()["params"]["message"] == "Which room for ***?"


async def test_result_with_lone_surrogate_is_an_error_with_an_explanation(server, revision):
    # finding: XS11
    @server.tool()
    async def odd() -> str:
        return "odd \ud800"

    async with caller_at_sandbox(server, revision) as (_, caller):
        result = await soon(caller.call("odd"))
        assert result.is_error
        assert "half a character" in result.content[0].text
