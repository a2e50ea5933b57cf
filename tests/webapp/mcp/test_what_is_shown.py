"""The arguments that a person sees at a gate: exactly those that the body receives."""

import asyncio
import dataclasses
import json
import re
from collections import deque
from collections.abc import Callable
from datetime import date, datetime
from decimal import Decimal
from typing import Any, Literal

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from mcp.server.mcpserver import Context
from pydantic import BaseModel, Field, PrivateAttr, SecretStr, TypeAdapter, model_validator
from pydantic_core import core_schema

from flows import elicit
from flows.errors import InvalidArguments
from flows.shown import arguments_of
from tests.support.mcp_server import (
    BOTH,
    FORM,
    LIBRARIES,
    MODERN,
    URL,
    CutOffCaller,
    caller_of,
    new_server,
    server_env,
    soon,
    text_of,
)
from webapp.mcp.received import as_json, received
from webapp.mcp.tools import ServedTool, tool_of

RAN: list[dict[str, Any]] = []
PADDING: dict[str, Any] = {f"a{number:02}": number for number in range(49)}


class Step(BaseModel):
    """A model with a secret and an excluded field, which the body still receives."""

    city: str
    code: SecretStr = SecretStr("none")
    hidden: float = Field(default=1, exclude=True)


@pytest.fixture
def server(server: Any) -> Any:
    return with_tools(server)


def with_tools(server: Any) -> Any:
    RAN.clear()

    @server.tool()
    @elicit.gate
    def pay(amounts: dict[int, str], by: str) -> str:
        RAN.append({"amounts": amounts, "by": by})
        return "done"

    @server.tool()
    @elicit.gate
    def run(command: str, again: int = 2, at: datetime | None = None) -> str:
        RAN.append({"command": command, "again": again, "at": at})
        return "done"

    @server.tool()
    @elicit.gate
    async def transfer(amount: float, note: Any = None) -> str:
        RAN.append({"amount": amount, "note": note})
        return "done"

    @server.tool()
    @elicit.gate
    def travel(  # noqa: PLR0917 - arguments of a tool, passed by name
        zeal: int,
        by: Literal["rail", "road"],
        to: Step,
        on: date,
        price: Decimal,
        stops: list[str],
        marks: set[int],
        sure: bool = False,
        more: Any = None,
        rest: dict[str, Step] | None = None,
    ) -> str:
        RAN.append(dict(locals()))
        return "done"

    return server


@pytest.mark.every_way
@pytest.mark.parametrize("declares", [BOTH, FORM, URL, None])
async def test_undeclared_argument_refuses_the_call_before_asking(server, revision, declares):
    # finding: S8
    async with caller_of(server, revision, declares=declares, fills=[{}]) as (env, caller):
        refused = await caller.result("run", **PADDING, command="rm -rf ~")
        assert refused.is_error
        assert refused.meta["code"] == "ELICITATION_INVALID_ARGUMENTS"
        assert 'It accepts "command", "again", "at"' in text_of(refused)
        assert not caller.forms
        assert not await env.elicitations()
        assert not RAN


@pytest.mark.every_way
async def test_defaults_and_coerced_values_are_shown_at_the_gate(server, revision):
    # finding: S8
    async with caller_of(server, revision, declares=BOTH, fills=[{}]) as (_, caller):
        assert await caller.text("run", command="ls", at="2031-05-28") == "done"
        assert [form.message for form in caller.forms] == [
            "Run run?\ncommand: ls\nagain: 2\nat: 2031-05-28T00:00:00"
        ]
        # The client sent no time zone, so the tool receives a datetime without one.
        assert [{"command": "ls", "again": 2, "at": datetime(2031, 5, 28)}] == RAN  # noqa: DTZ001


@pytest.mark.every_way
@pytest.mark.parametrize("declares", [BOTH, FORM, URL])
async def test_arguments_too_long_for_a_form_are_shown_on_the_page(server, revision, declares):
    # finding: S8
    command = "ls" + " " * 420 + "; rm -rf ~"
    async with caller_of(server, revision, declares=declares, fills=[{}]) as (env, caller):
        call = caller.call("run", command=command)
        if declares is FORM:
            first = await soon(call)
            link = text_of(first).split("unchanged: ")[1].split("\n")[0]
        else:
            link = await caller.link()
        person = await env.person()
        assert command in (await person.visit(link)).text
        assert not RAN
        await person.press(link)
        done = caller.call("run", command=command) if declares is FORM else call
        assert text_of(await soon(done)) == "done"
        assert not caller.forms


UNSHOWABLE = [
    ("transfer", '{"amount": 1e400}'),
    ("transfer", '{"amount": NaN}'),
    ("transfer", '{"amount": "NaN"}'),
    ("transfer", '{"amount": "-inf"}'),
    ("transfer", '{"amount": 1, "note": {"deep": [1e400]}}'),
    ("transfer", '{"amount": 1, "note": "half \\ud800"}'),
    ("transfer", '{"amount": 1, "note": {"\\ud800": 1, "\\udfff": 2}}'),
    ("run", '{"command": "ls", "\\ud800": 1, "\\udfff": 2}'),
    ("run", '{"command": "ls", "...": "x"}'),
]


@pytest.mark.every_way
async def test_arguments_with_values_no_page_can_show_are_refused(server, revision):
    # finding: S8
    # finding: S27
    async with server_env(server) as env:
        caller = await env.cut_off_caller(revision)
        for tool, arguments in UNSHOWABLE:
            answer = await soon(_call_raw(caller, tool, arguments))
            assert re.search('"isError": ?true|"error": ?{', answer), arguments
            assert not await env.elicitations(), arguments
            assert not RAN, arguments


async def _call_raw(caller: CutOffCaller, tool: str, arguments: str) -> str:
    """Send a request with these raw JSON arguments."""
    is_modern = caller.headers["mcp-protocol-version"] == MODERN
    meta: dict[str, Any] = {
        "io.modelcontextprotocol/protocolVersion": MODERN,
        "io.modelcontextprotocol/clientInfo": {"name": "mcp", "version": "1"},
        "io.modelcontextprotocol/clientCapabilities": {"elicitation": {"form": {}, "url": {}}},
    }
    own = {"_meta": meta} if is_modern else {}
    body = json.dumps(
        {
            "jsonrpc": "2.0",
            "id": 1,
            "method": "tools/call",
            "params": {"name": tool, "arguments": "HERE", **own},
        }
    ).replace('"HERE"', arguments)
    headers = {"mcp-method": "tools/call", "mcp-name": tool} if is_modern else {}
    return await caller.post_raw(body, headers)


def test_additional_properties_are_shown_after_declared_properties():
    # finding: S8
    schema = {"properties": {"z": {}, "b": {"default": 3}}, "additionalProperties": True}
    shown = received({"a": 1, "z": 2}, tool="t", schema=schema, validate=None)
    assert list(shown.items()) == [("z", 2), ("b", 3), ("a", 1)]


def test_generated_default_is_shown_as_made_by_the_tool():
    # finding: S8
    made = iter(range(100))
    shown = received(
        {"a": "1"},
        tool="t",
        schema={"properties": {"a": {}, "b": {}}},
        validate=lambda given: {"a": int(given["a"]), "b": next(made)},
    )
    assert shown == {"a": 1, "b": "made by the tool itself"}


@dataclasses.dataclass
class Job:
    label: str
    command: dataclasses.InitVar[str] = "ls"

    def __post_init__(self, command: str) -> None:
        self._argv = command.split()


class Box:
    """A custom type of the author's."""

    @classmethod
    def __get_pydantic_core_schema__(cls, source: Any, handler: Any) -> Any:
        return core_schema.no_info_plain_validator_function(lambda _: cls())


class Parcel(BaseModel):
    box: Box
    items: deque[str] = deque(["x"])
    count: int = 100


class Errand(BaseModel):
    label: str
    _argv: str = PrivateAttr("ls")

    @model_validator(mode="wrap")
    @classmethod
    def _restored(cls, data: Any, made: Callable[[Any], "Errand"]) -> "Errand":
        errand = made(data)
        errand._argv = data["command"]
        return errand


@pytest.mark.parametrize("kind", [Job, Errand])
def test_value_reduced_by_its_type_is_shown_as_sent_and_as_received(kind):
    # finding: S8
    sent = {"label": "list", "command": "rm -rf ~"}
    adapter = TypeAdapter[Any](kind)
    shown = received(
        {"job": sent},
        tool="t",
        schema={"properties": {"job": {}}},
        validate=lambda given: {"job": adapter.validate_python(given["job"])},
    )
    both = {"as the tool stores it": {"label": "list"}, "as it was sent": sent}
    assert shown == {"job": both}


def test_unreadable_argument_part_does_not_hide_other_parts():
    # finding: S8
    adapter = TypeAdapter[Any](Parcel)
    sent = {"box": "a", "cuont": 1}
    shown = received(
        {"parcel": sent},
        tool="t",
        schema={"properties": {"parcel": {}}},
        validate=lambda given: {"parcel": adapter.validate_python(given["parcel"])},
    )
    assert shown == {"parcel": {"box": "a", "items": ["x"], "count": 100}}


@pytest.mark.every_way
async def test_different_key_order_in_an_argument_is_a_different_call(server, revision):
    # finding: S8
    one = {"1": "5 EUR to alice", "01": "9 EUR to mallory"}
    fills: list[Any] = [{}, "decline"]
    async with caller_of(server, revision, declares=FORM, fills=fills) as (_, caller):
        await caller.result("pay", amounts=one, by="rail")
        (ran,) = RAN
        assert ran == {"amounts": {1: "9 EUR to mallory"}, "by": "rail"}
        assert json.dumps(ran["amounts"]) in caller.forms[0].message
        other = dict(reversed(one.items()))
        assert (await caller.result("pay", by="rail", amounts=other)).is_error
        assert len(caller.forms) == 2, "a different key order needs a new approval"
        assert len(RAN) == 1


def test_arguments_too_long_to_show_are_refused():
    # finding: S8
    with pytest.raises(InvalidArguments, match="Call it with shorter arguments"):
        received({"a": "x" * 60_000}, tool="t", schema=None, validate=None)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(st.characters(exclude_categories=["Cs"])),
    lambda inner: st.lists(inner, max_size=3)
    | st.dictionaries(st.text(st.characters(exclude_categories=["Cs"])), inner, max_size=3),
    max_leaves=6,
)  # fmt: skip


@settings(deadline=None)
@given(one=JSON, other=JSON)
def test_different_values_are_never_shown_alike(one, other):
    # finding: S8
    for in_a_line in (False, True):
        first, second = (
            arguments_of({"a": value}, in_a_line=in_a_line)[0].value for value in (one, other)
        )
        assert (first == second) is (json.dumps(one) == json.dumps(other))
        assert not in_a_line or "\n" not in first


PLACES = st.fixed_dictionaries(
    {"city": st.text(st.characters(exclude_categories=["Cs"]))},
    optional={"code": st.sampled_from(["x", "y"]), "hidden": st.integers(-5, 5), "other": JSON},
)
TRAVELS = st.fixed_dictionaries(
    {
        "zeal": st.integers(-10, 10) | st.integers(0, 9).map(str),
        "by": st.sampled_from(["rail", "road"]),
        "to": PLACES,
        "on": st.dates().map(str),
        "price": st.integers(0, 99) | st.sampled_from(["1.50", "2"]),
        "stops": st.lists(st.sampled_from(["a", "b, c", "yes"]), max_size=3),
        "marks": st.lists(st.integers(0, 3), max_size=3),
    },
    optional={
        "sure": st.booleans() | st.sampled_from(["yes", "off", 1]),
        "more": JSON,
        "rest": st.dictionaries(st.sampled_from("ab"), PLACES, max_size=2),
    },
)


def _tool(library: str) -> tuple[Any, ServedTool]:
    server = with_tools(new_server(library))
    tool = asyncio.run(tool_of(server, "travel"))
    assert tool is not None
    return server, tool


TOOLS = {library: _tool(library) for library in LIBRARIES}


@pytest.mark.parametrize("name", LIBRARIES)
@settings(deadline=None)
@given(given_=TRAVELS)
def test_shown_arguments_equal_the_arguments_the_tool_receives(name, given_):
    # finding: S8
    server, tool = TOOLS[name]
    shown = received(given_, tool="travel", schema=tool.schema, validate=tool.validate)
    RAN.clear()
    asyncio.run(_run(name, server, given_))
    (ran,) = RAN
    assert json.dumps(shown) == json.dumps({each: as_json(value) for each, value in ran.items()})
    assert not RAN[1:], "reading the arguments for the page does not run the tool"


async def _run(library: str, server: Any, arguments: dict[str, Any]) -> None:
    if library == "mcp":
        await server._tool_manager.get_tool("travel").run(arguments, Context())
    else:
        await (await server.get_tool("travel")).run(arguments)
