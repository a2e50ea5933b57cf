"""Waiting is not an error: a result with a link matches the tool's output schema."""

from typing import Any

import jsonschema
import pytest
from fastmcp import Client as FastMCPClient
from fastmcp import FastMCP
from pydantic import BaseModel, ConfigDict

from flows import elicit
from tests.support.mcp_server import FORM, LEGACY, MODERN, attached, caller_of, link_in, text_of
from webapp.mcp.results import schema_with_pending

PENDING = {"elicitationPending": {"elicitId": "x", "url": "https://a.example/e/x"}}


class Node(BaseModel):
    name: str
    children: list["Node"] = []


class Strict(BaseModel):
    model_config = ConfigDict(extra="forbid")

    elicited: str


def add_tools(server: Any) -> None:
    @server.tool()
    async def text() -> str:
        return await elicit.form("Which?")

    @server.tool()
    async def several() -> list[str]:
        return [await elicit.form("Which?")]

    @server.tool()
    async def numbers() -> dict[str, int]:
        return {await elicit.form("Which?"): 1}

    @server.tool()
    async def tree() -> Node:
        return Node(name=await elicit.form("Which?"), children=[Node(name="leaf")])

    @server.tool()
    async def strict() -> Strict:
        return Strict(elicited=await elicit.form("Which?"))

    @server.tool()
    async def link() -> list[str]:
        return [str((await elicit.url("Go", "https://shop.example/", elicitation_id="go"))["who"])]


RETURNS: dict[str, object] = {
    "text": {"result": "Ann"},
    "several": {"result": ["Ann"]},
    "numbers": {"Ann": 1},
    "tree": {"name": "Ann", "children": [{"name": "leaf", "children": []}]},
    "strict": {"elicited": "Ann"},
}


@pytest.fixture
def server(server: Any) -> Any:
    add_tools(server)
    return server


async def schemas_of(caller: Any) -> dict[str, Any]:
    listed = await caller.client.list_tools()
    return {tool.name: tool.output_schema for tool in listed.tools}


@pytest.mark.every_way
@pytest.mark.parametrize("declares", [None, FORM], ids=["nothing", "forms"])
async def test_pending_link_result_is_not_an_error_and_matches_the_output_schema(
    server, revision, declares
):
    # finding: XC2
    async with caller_of(server, revision, declares=declares, fills=[]) as (env, caller):
        schemas = await schemas_of(caller)
        tools = list(RETURNS) if declares is None else ["link"]
        for tool in tools:
            # This client rejects results that do not match the schema.
            result = await caller.result(tool)
            assert not result.is_error
            jsonschema.validate(result.structured_content, schemas[tool])
            pending = result.structured_content["elicitationPending"]
            assert pending["url"] == link_in(result)
            assert pending["instructions"] == text_of(result)
        assert len(await env.elicitations()) == len(tools)


@pytest.mark.every_way
@pytest.mark.parametrize("tool", list(RETURNS))
async def test_result_after_an_answer_matches_the_output_schema(server, revision, tool):
    # finding: XC2
    fills = [{"response": "Ann"}]
    async with caller_of(server, revision, declares=FORM, fills=fills) as (_, caller):
        result = await caller.result(tool)
        assert result.structured_content == RETURNS[tool]
        jsonschema.validate(result.structured_content, (await schemas_of(caller))[tool])


async def test_fastmcp_client_reads_results_unchanged(server):
    # finding: XC2
    async def answer(*_: Any) -> Any:
        return {"response": "Ann"}

    async with (
        attached(server) as env,
        FastMCPClient(env.mcp_url, elicitation_handler=answer) as client,
    ):
        assert (await client.call_tool("several")).structured_content == {"result": ["Ann"]}
        if isinstance(server, FastMCP):
            assert (await client.call_tool("several")).data == ["Ann"]
    async with attached(server) as env, FastMCPClient(env.mcp_url) as client:
        result = await client.call_tool("several")
        assert not result.is_error
        assert result.structured_content is not None
        assert result.structured_content.keys() == {"elicitationPending"}


async def test_mounted_tool_returns_a_link_to_a_client_without_tool_listing():
    # finding: XC2
    inner, outer = FastMCP("inner"), FastMCP("outer")
    add_tools(inner)
    outer.mount(inner, namespace="in")
    for revision in (LEGACY, MODERN):
        async with caller_of(outer, revision, declares=None) as (_, caller):
            result = await caller.result("in_tree")
            assert not result.is_error
            assert link_in(result)


@pytest.mark.parametrize(
    ("schema", "content"),
    [
        ({"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}, {"a": 1}),
        ({"type": "object", "additionalProperties": {"type": "integer"}}, {"a": 1}),
        ({"type": "object", "properties": {"a": {}}, "additionalProperties": False}, {"a": 1}),
        ({"type": "object", "minProperties": 2}, {"a": 1, "b": 2}),
        ({"type": "object", "propertyNames": {"maxLength": 1}}, {"a": 1}),
        (
            {
                "$defs": {"N": {"type": "object", "properties": {"n": {"$ref": "#/$defs/N"}}}},
                "type": "object",
                "$ref": "#/$defs/N",
            },
            {"n": {"n": {}}},
        ),
        ({"type": "object", "oneOf": [{"required": ["a"]}, {"required": ["b"]}]}, {"b": 1}),
        ({"type": "object", "unevaluatedProperties": False, "properties": {"a": {}}}, {"a": 1}),
        ({"type": "object", "properties": {"elicitationPending": {"type": "string"}}}, {}),
        ({"type": "array", "items": {"type": "integer"}}, [1]),
        ({"type": "string"}, "a"),
        ({"$defs": {"S": {"type": "string"}}, "$ref": "#/$defs/S"}, "a"),
        ({}, 5),
    ],
)
def test_widened_schema_allows_the_original_content_and_a_pending_result(schema, content):
    # finding: XC2
    widened = schema_with_pending(schema)
    jsonschema.Draft202012Validator.check_schema(widened)
    for each in (content, PENDING):
        jsonschema.validate(each, widened)


@pytest.mark.parametrize("content", [{}, {"a": "x"}, {"elicitationPending": 5}, [], "a"])
def test_widened_schema_refuses_other_content(content):
    schema = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(content, schema_with_pending(schema))
