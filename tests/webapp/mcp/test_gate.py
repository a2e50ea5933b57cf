"""The gate as tools, clients and people see it: no body starts before a person accepts."""

import asyncio
import hashlib
from collections.abc import Callable
from contextlib import suppress
from datetime import timedelta
from functools import wraps
from typing import Any

import mcp_types as types
import pytest
from fastmcp import Client, Context, FastMCP
from fastmcp.server.middleware import Middleware
from fastmcp.server.transforms import search as searches
from fastmcp.tools import Tool
from fastmcp.utilities.versions import VersionSpec
from mcp.shared.exceptions import MCPError

from flows import elicit
from flows.elicitation.states import Completion, Status
from flows.elicitation.traits import traits_of
from flows.kinds.gate import APPROVED_FOR, GatePolicy
from tests.support.mcp_sandbox import caller_at_sandbox
from tests.support.mcp_server import (
    BOTH,
    FORM,
    LEGACY,
    MODERN,
    URL,
    caller_of,
    link_in,
    new_server,
    server_env,
    soon,
    text_of,
)
from webapp.limits import CallLimits
from webapp.settings.identity import IdentitySettings

DESTRUCTIVE = types.ToolAnnotations(destructive_hint=True)
FROM_AFAR = {"x-forwarded-for": "203.0.113.7"}
RAN: list[object] = []


@pytest.fixture
def ran() -> list[object]:
    """Return the list of the bodies that ran in this test, empty at first."""
    RAN.clear()
    return RAN


@pytest.fixture
def server(server: Any, ran: list[object]) -> Any:
    @server.tool(annotations=DESTRUCTIVE)
    def delete(count: int) -> str:
        ran.append(count)
        return f"deleted {count}"

    @server.tool()
    @elicit.gate
    def marked_below(count: int) -> str:
        ran.append(count)
        return "done"

    @elicit.gate(message="Empty the bin for good?")
    @server.tool()
    def marked_above(count: int) -> str:
        ran.append(count)
        return "done"

    @elicit.gate
    @_plain
    @server.tool()
    def marked_above_all(count: int) -> str:
        ran.append(count)
        return "done"

    @elicit.gate(off=True)
    @server.tool(annotations=DESTRUCTIVE)
    def freed() -> str:
        return "done"

    @server.tool()
    def look() -> str:
        return "seen"

    @server.tool(annotations=DESTRUCTIVE)
    async def rename() -> str:
        ran.append("rename")
        name = await elicit.form("Which name?")
        place = await elicit.form("Where?")
        return f"{name} in {place}"

    return server


@pytest.mark.every_way
async def test_destructive_tool_waits_for_acceptance_in_the_clients_form(server, revision, ran):
    # parity: T1
    # parity: E9
    # parity: T2
    for declared in (BOTH, FORM):
        ran.clear()
        fills = ["decline", {}]
        async with caller_of(server, revision, declares=declared, fills=fills) as (_, caller):
            refused = await caller.result("delete", count=5)
            assert refused.is_error
            assert refused.meta["code"] == "ELICITATION_DECLINED"
            assert not ran
            assert await caller.text("delete", count=5) == "deleted 5"
            assert ran == [5]
            assert [form.message for form in caller.forms] == ["Run delete?\ncount: 5"] * 2
            assert caller.forms[0].requested_schema == {"type": "object", "properties": {}}


@pytest.mark.every_way
@pytest.mark.parametrize("tool", ["marked_below", "marked_above", "marked_above_all"])
async def test_gated_tool_waits_in_any_order_of_decorators(server, revision, ran, tool):
    # parity: T1
    fills = ["decline", "cancel", {}]
    async with caller_of(server, revision, declares=BOTH, fills=fills) as (_, caller):
        assert (await caller.result(tool, count=1)).is_error
        assert (await caller.result(tool, count=1)).is_error
        assert not ran
        assert await caller.text(tool, count=1) == "done"
        says = (
            "Empty the bin for good? (marked_above)" if tool == "marked_above" else f"Run {tool}?"
        )
        assert caller.forms[0].message == f"{says}\ncount: 1"


async def test_gate_with_url_mode_only_is_a_page(server, revision, ran):
    async with caller_of(server, revision, declares=URL) as (env, caller):
        call = caller.call("delete", count=5)
        link = await caller.link()
        person = await env.person()
        page = await person.visit(link)
        assert page.heading == "Run delete?"
        assert "<dt><bdi>Count</bdi></dt><dd><bdi>5</bdi></dd>" in page.text
        assert not ran
        assert (await person.press(link)).status == 303
        assert text_of(await soon(call)) == "deleted 5"
        assert (await person.visit(link)).heading == "Approved"


async def test_client_without_elicitation_passes_the_gate_by_repeating_the_call(
    server, revision, ran
):
    async with caller_of(server, revision, declares=None) as (env, caller):
        link = await caller.link_in_result("delete", count=5)
        person = await env.person()
        await person.decline(link)
        refused = await caller.result("delete", count=5)
        assert refused.meta["code"] == "ELICITATION_DECLINED"
        again = await caller.link_in_result("delete", count=5)
        assert env.id_of(again) != env.id_of(link)
        assert not ran
        await person.press(again)
        assert await caller.text("delete", count=5) == "deleted 5"
        assert ran == [5]


async def test_approval_covers_the_same_arguments_only(server, revision):
    fills = [{}, {}, "decline"]
    async with caller_of(server, revision, declares=BOTH, fills=fills) as (env, caller):
        for _ in range(3):
            assert await caller.text("delete", count=5) == "deleted 5"
        assert len(caller.forms) == 1
        assert await caller.text("delete", count=6) == "deleted 6"
        assert len(caller.forms) == 2
        approvals = env.service.kinds.gates.approvals
        assert await approvals.clear() == 2
        assert (await caller.result("delete", count=5)).is_error
        assert len(caller.forms) == 3


async def test_approval_of_a_whole_tool_is_given_only_on_the_page(server, revision):
    async with caller_of(server, revision, declares=URL) as (env, caller):
        call = caller.call("delete", count=5)
        link = await caller.link()
        person = await env.person()
        page = await person.visit(link)
        assert "Don't ask again for this tool, for one hour" in page.text
        await person.browser.post(link, data={"csrf": page.csrf, "remember": "1"})
        assert text_of(await soon(call)) == "deleted 5"
        assert await caller.text("delete", count=6) == "deleted 6"
        assert not caller.has_links_left
        (approval,) = await env.service.kinds.gates.approvals.all()
        assert (approval.tool, approval.covers) == ("delete", None)
        caller.begin("marked_below", count=5)
        assert await caller.link()


async def test_clients_form_cannot_widen_an_approval(server, revision):
    fills: list[Any] = [{"remember": "1", "content": True}, "decline"]
    async with caller_of(server, revision, declares=FORM, fills=fills) as (env, caller):
        assert await caller.text("delete", count=5) == "deleted 5"
        assert (await caller.result("delete", count=6)).is_error
        (approval,) = await env.service.kinds.gates.approvals.all()
        assert approval.covers is not None


async def test_ungated_tool_asks_nothing(server, revision):
    async with caller_of(server, revision, declares=None) as (env, caller):
        assert await caller.text("look") == "seen"
        assert await caller.text("freed") == "done"
        assert not await env.elicitations()


@pytest.mark.parametrize(
    ("policy", "gated"),
    [
        (GatePolicy(gates_destructive=False), {"marked_below"}),
        (GatePolicy(patterns=("l*", "fre?d")), {"delete", "marked_below", "look", "freed"}),
        (GatePolicy(gates_destructive=False, patterns=("look",)), {"marked_below", "look"}),
    ],
)
async def test_gate_policy_decides_which_tools_are_gated(
    server, revision, policy: GatePolicy, gated
):
    # parity: T1
    tools: dict[str, dict[str, Any]] = {
        "delete": {"count": 1},
        "marked_below": {"count": 1},
        "look": {},
        "freed": {},
    }
    fills = ["decline"] * 4
    async with caller_of(server, revision, gate=policy, declares=FORM, fills=fills) as (_, caller):
        refused = {
            name
            for name, arguments in tools.items()
            if (await caller.result(name, **arguments)).is_error
        }
        assert refused == gated


async def test_two_concurrent_identical_calls_ask_and_run_once(server, revision, ran):
    async with (
        caller_of(server, revision, declares=URL) as (env, one),
        env.caller(revision, declares=URL) as other,
    ):
        first = one.call("delete", count=5)
        link = await one.link()
        ((waits),) = [row.waiter for row in await env.pending()]
        second = other.call("delete", count=5)
        assert env.id_of(await other.link()) == env.id_of(link)
        await env.waited_for_by_another(link, waits)
        await (await env.person()).press(link)
        texts = {text_of(await soon(call)) for call in (first, second)}
        assert "deleted 5" in texts
        assert ran == [5]
        assert len(await env.elicitations()) == 1


async def test_gate_asks_once_per_call_with_several_requests(server, revision, ran):
    fills: list[Any] = [{}, {"response": "Ada"}, {"response": "Rome"}]
    async with caller_of(server, revision, declares=FORM, fills=fills) as (_, caller):
        assert await caller.text("rename") == "Ada in Rome"
        assert [form.message for form in caller.forms] == ["Run rename?", "Which name?", "Where?"]
        assert len(ran) == (1 if revision == LEGACY else 3)


async def test_gate_answer_does_not_open_another_call(server, ran):
    async with caller_of(server, MODERN, declares=FORM) as (env, caller):
        asked = await caller.asked("delete", count=5)
        with pytest.raises(MCPError, match="requestState"):
            await caller.send_call("delete", after=asked, count=500)
        unasked = asked.model_copy(update={"request_state": None})
        other = await caller.asked("delete", after=unasked, count=500)
        assert not ran, "an answer does not approve other arguments"
        again = await caller.asked("delete", after=unasked, count=5)
        assert not ran, "an answer without its request state approves nothing"
        await caller.answered("delete", after=other, count=500)
        assert ran == [500]
        assert again.input_requests == asked.input_requests
        assert len(await env.elicitations()) == 2


async def test_gate_acceptance_survives_a_server_crash(library, tmp_path):
    def made() -> Any:
        server = new_server(library)

        @server.tool()
        @elicit.gate
        async def rename() -> str:
            return f"it is {await elicit.form('Which name?')}"

        return server

    store = f"sqlite:///{tmp_path / 'elicit.db'}"
    async with caller_of(made(), MODERN, store=store, declares=FORM) as (_, caller):
        asked = await caller.asked("rename")
        for_name = await caller.asked("rename", after=asked)
    async with server_env(made(), store=store) as env:
        unanswered = for_name.model_copy(update={"input_requests": {}})
        async with env.caller(MODERN, declares=FORM) as caller:
            again = await caller.asked("rename", after=unanswered)
            requests: list[Any] = list((again.input_requests or {}).values())
            assert [request.params.message for request in requests] == ["Which name?"]
        rows = await env.elicitations()
        assert [row.kind for row in rows] == ["gate", "form"]
        assert rows[0].status is Status.ACCEPTED


async def test_model_cannot_approve_by_any_tool(server, revision, ran):
    # parity: T9
    @server.tool()
    async def finish(id: str) -> str:
        return (await elicit.complete_elicitation(id, {"approved": True})).value

    limits = CallLimits(link=timedelta())
    async with caller_of(server, revision, limits=limits, declares=None) as (env, caller):
        asked = await caller.result("delete", count=5)
        id = env.id_of(link_in(asked))
        assert await caller.text("finish", id=id) != Completion.ACCEPTED.value
        for action in ("accept", "approve", "yes"):
            answer: dict[str, Any] = {"elicitId": id, "action": action, "content": {}}
            await caller.result("elicitation_result", **answer)
            await caller.result("elicitation_result", **answer, code="BCDF-GHJK")
        for arguments in ({"count": 5, "approved": True}, {"count": 5, "remember": "1"}):
            await caller.result("delete", **arguments)
        await caller.result("delete", count=5)
        assert not ran
        assert await env.status(link_in(asked)) in (Status.PENDING, Status.OPENED)


async def test_long_arguments_are_shown_and_approved_in_full(server, revision, ran):
    # parity: T2
    @server.tool()
    @elicit.gate
    def write(text: str) -> str:
        ran.append(hashlib.sha256(text.encode()).hexdigest())
        return "written"

    long = "a" * 40_000
    async with caller_of(server, revision, declares=FORM, fills=["decline"]) as (env, caller):
        person = await env.person()
        link = await caller.link_in_result("write", text=long)
        assert long in (await person.visit(link)).text
        await person.press(link)
        assert await caller.text("write", text=long) == "written"
        assert not caller.forms, "arguments too long for a form are shown only on the page"
        assert await caller.link_in_result("write", text=f"{long[:-1]}b")
        assert len(ran) == 1


def _plain(function: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(function)
    def wrapper(*args: Any, **named: Any) -> Any:
        return function(*args, **named)

    return wrapper


async def test_gate_mark_is_found_below_decorators_and_on_methods(library, ran):
    server = new_server(library)

    class Tools:
        @elicit.gate
        def of_a_class(self) -> str:
            ran.append(self)
            return "done"

    @server.tool()
    @_plain
    @elicit.gate
    def wrapped() -> str:
        ran.append(1)
        return "done"

    server.add_tool(Tools().of_a_class)
    async with caller_of(server, LEGACY, declares=FORM, fills=["decline"] * 2) as (_, caller):
        for tool in ("wrapped", "of_a_class"):
            assert (await caller.result(tool)).is_error, tool
        assert len(caller.forms) == 2
        assert not ran


async def test_ungated_tool_does_not_ungate_others_with_the_same_function(library, revision, ran):
    server = new_server(library)

    class Box:
        def __init__(self, name: str) -> None:
            self._name = name

        def empty(self) -> str:
            ran.append(self._name)
            return "emptied"

    def delete(path: str) -> str:
        ran.append(path)
        return "deleted"

    @elicit.gate(off=True)
    @wraps(delete)
    def delete_there(path: str) -> str:
        return delete(f"there/{path}")

    @elicit.gate(off=True)
    def empty_there() -> str:
        return Box("some").empty()

    served: dict[str, Callable[..., str]] = {
        "delete": delete,
        "delete_there": delete_there,
        "empty": Box("all").empty,
        "empty_there": empty_there,
    }
    for name, function in served.items():
        server.tool(name=name, annotations=DESTRUCTIVE)(function)
    calls: dict[str, dict[str, Any]] = {
        "delete": {"path": "a"},
        "delete_there": {"path": "a"},
        "empty": {},
        "empty_there": {},
    }
    async with caller_of(server, revision, declares=FORM, fills=["decline"] * 2) as (_, caller):
        refused = [
            name for name, given in calls.items() if (await caller.result(name, **given)).is_error
        ]
        assert refused == ["delete", "empty"]
        assert ran == ["there/a", "some"]


async def test_gate_mark_is_found_on_tools_of_mounted_servers(ran):

    inner, middle, outer = FastMCP("inner"), FastMCP("middle"), FastMCP("shop")

    @inner.tool
    @elicit.gate
    def wipe() -> str:
        ran.append("wipe")
        return "wiped"

    middle.mount(inner, "in")
    outer.mount(middle, "mid")
    outer.add_tool(Tool.from_tool(Tool.from_function(wipe), name="renamed"))
    fills = ["decline", "decline", {}]
    async with caller_of(outer, LEGACY, declares=FORM, fills=fills) as (_, caller):
        assert (await caller.result("mid_in_wipe")).is_error
        assert (await caller.result("renamed")).is_error
        assert not ran
        assert await caller.text("renamed") == "wiped"
        assert caller.forms[0].message == "Run mid_in_wipe?"


async def test_anonymous_callers_approval_is_for_a_single_call(server, revision, ran):
    async with caller_of(
        server,
        revision,
        who=IdentitySettings(asks_anonymous=True),
        declares=BOTH,
        headers=FROM_AFAR,
        fills=[{}, "decline"],
    ) as (env, caller):
        assert await caller.text("delete", count=5) == "deleted 5"
        assert (await caller.result("delete", count=5)).is_error
        assert ran == [5]
        assert not await env.service.kinds.gates.approvals.all()


async def test_gated_tool_is_refused_if_no_person_can_be_asked(server, revision, ran):
    about: dict[str, Any] = {"headers": FROM_AFAR, "fills": [{}]}
    async with caller_of(server, revision, declares=BOTH, **about) as (_, caller):
        refused = await caller.result("delete", count=5)
        assert refused.meta["code"] == "ELICITATION_NOT_ALLOWED"
        assert not ran
        assert await caller.text("look") == "seen"


def _done() -> str:
    RAN.append("ran")
    return "done"


def _also_done() -> str:
    RAN.append("ran")
    return "done"


async def _refused(
    server: Any, tool: str, *, says: str, revision: str = LEGACY, **named: Any
) -> None:
    """Check that a call asks for one approval, and that declining keeps the body from starting."""
    async with caller_of(server, revision, declares=FORM, fills=["decline", {}]) as (_, caller):
        meta: Any = named.pop("meta", None)
        call = caller.client.session.call_tool
        refused = await soon(call(tool, named, meta=meta) if meta else caller.call(tool, **named))
        assert refused.is_error
        assert not RAN
        assert [form.message for form in caller.forms] == [says]
        await soon(call(tool, named, meta=meta) if meta else caller.call(tool, **named))
        assert RAN == ["ran"]
        assert [form.message for form in caller.forms] == [says] * 2


@pytest.mark.parametrize("by", ["mark", "annotation"])
async def test_unlisted_tool_is_gated(ran, by):

    class Hides(Middleware):
        async def on_list_tools(self, context: Any, call_next: Any) -> Any:
            return [tool for tool in await call_next(context) if tool.name != "delete"]

    server = FastMCP("shop", middleware=[Hides()])
    if by == "mark":
        server.tool(elicit.gate(_plain(_done)), name="delete")
    else:
        server.tool(_done, name="delete", annotations=DESTRUCTIVE)
    outer = FastMCP("outer")
    outer.mount(server, "in")
    await _refused(server, "delete", says="Run delete?")
    ran.clear()
    await _refused(outer, "in_delete", says="Run in_delete?")


@pytest.mark.parametrize("gated_is_first", [True, False])
@pytest.mark.parametrize("version", [None, "1.0"])
@pytest.mark.parametrize("is_mounted", [False, True])
async def test_gate_depends_on_the_running_version(ran, version, gated_is_first, is_mounted):

    def free() -> str:
        return "free"

    server = FastMCP("shop")
    gated, other = ("1.0", "2.0") if version else ("2.0", "1.0")
    steps: list[Callable[[], object]] = [
        lambda: server.tool(elicit.gate(_plain(_done)), name="v", version=gated),
        lambda: server.tool(free, name="v", version=other),
    ]
    for step in steps if gated_is_first else steps[::-1]:
        step()
    outer = FastMCP("outer")
    outer.mount(server, "in")
    at, name = (outer, "in_v") if is_mounted else (server, "v")
    meta = {"fastmcp": {"version": version}} if version else None
    await _refused(at, name, says=f"Run {name}?", meta=meta)
    # A version that FastMCP does not understand selects no tool.
    ran.clear()
    if not version:
        await _refused(at, name, says=f"Run {name}?", meta={"fastmcp": {"version": {"lt": "2"}}})


async def test_gate_mark_is_found_on_transformed_tools(ran):

    @elicit.gate
    async def made() -> str:
        return _done()

    server = FastMCP("shop")
    base = Tool.from_function(_also_done)
    server.add_tool(Tool.from_tool(base, name="made", transform_fn=made))
    await _refused(server, "made", says="Run made?")
    assert ran == ["ran"]


@pytest.mark.parametrize("search", ["BM25SearchTransform", "RegexSearchTransform"])
@pytest.mark.parametrize("is_mounted", [False, True])
async def test_tool_called_through_search_is_gated_by_its_own_name(
    ran, revision, search, is_mounted
):

    server = FastMCP("shop", transforms=[getattr(searches, search)()])
    server.tool(_done, name="delete", annotations=DESTRUCTIVE)
    outer = FastMCP("outer")
    outer.mount(server, "in")
    at, name = (outer, "in_call_tool") if is_mounted else (server, "call_tool")
    inner: dict[str, Any] = {"name": "delete", "arguments": {}}
    fills = ["decline", {}, "decline"]
    async with caller_of(at, revision, declares=FORM, fills=fills) as (env, caller):
        # Accepting the inner call does not accept the outer one.
        for is_refused in (True, False, True):
            result = await caller.result(name, **inner)
            assert result.is_error == is_refused
            if is_refused:
                assert result.meta
                assert result.meta["code"] == "ELICITATION_DECLINED"
        assert ran == ["ran"]
        assert [form.message for form in caller.forms] == ["Run delete?"] * 3
        assert not await env.service.kinds.gates.approvals.all()


async def test_tool_calling_a_gated_tool_waits_for_the_gate(ran, revision):

    server = FastMCP("shop")

    @server.tool
    @elicit.gate
    def wipe(what: str) -> str:
        ran.append(what)
        return "wiped"

    @server.tool
    async def wipe_all(ctx: Context) -> str:
        for what in ("a", "b"):
            await ctx.fastmcp.call_tool("wipe", {"what": what})
        return "all wiped"

    async with caller_of(server, revision, declares=FORM, fills=[{}, "decline"]) as (_, caller):
        assert (await caller.result("wipe_all")).is_error
        # On 2026-07-28, the second approval needs a request of its own. The first one stays valid.
        assert ran == (["a"] if revision == LEGACY else ["a", "a"])
        says = [form.message for form in caller.forms]
        assert says == ["Run wipe?\nwhat: a", "Run wipe?\nwhat: b"]


async def test_gate_asks_once_for_mounted_and_renamed_tools(ran):

    inner, outer = FastMCP("inner"), FastMCP("shop")
    inner.tool(elicit.gate(_plain(_done)), name="wipe", annotations=DESTRUCTIVE)
    outer.mount(inner, "in")
    mounted = await outer.get_tool("in_wipe")
    assert mounted
    outer.add_tool(Tool.from_tool(mounted, name="again"))
    for tool in ("in_wipe", "again", "in_wipe"):  # attached again each time
        ran.clear()
        await _refused(outer, tool, says=f"Run {tool}?")
    for server in (inner, outer):
        parts = [part for part in server.middleware if type(part).__name__ == "InnerCalls"]
        assert len(parts) == 1


async def test_nested_approval_covers_reruns_of_the_caller_and_once_runs_once(ran, revision):

    server, work = FastMCP("shop"), list[str]()

    async def wiped(what: str) -> str:
        work.append(what)
        return "wiped"

    @server.tool
    @elicit.gate
    async def wipe(what: str) -> str:
        ran.append(what)
        return str(await elicit.once(f"wipe {what}", lambda _: wiped(what)))

    @server.tool
    async def wipe_all(ctx: Context) -> str:
        calls = [ctx.fastmcp.call_tool("wipe", {"what": what}) for what in ("a", "b", "c")]
        return f"{len(await asyncio.gather(*calls))} wiped"

    fills: list[Any] = [{}, {}, {}]
    async with caller_of(server, revision, declares=FORM, fills=fills) as (_, caller):
        assert await caller.text("wipe_all") == "3 wiped"
        assert len(caller.forms) == 3
        assert sorted(work) == ["a", "b", "c"]
        assert set(map(str, ran)) == {"a", "b", "c"}
        assert (len(ran) == 3) == (revision == LEGACY)


@pytest.mark.parametrize("by", ["server", "client"])
@pytest.mark.parametrize("mounts", ["by_name", "renamed", "in_another", "later"])
async def test_nested_call_on_a_mounted_server_is_gated(ran, revision, mounts, by):

    outer, middle, inner = FastMCP("shop"), FastMCP("middle"), FastMCP("inner")
    inner.tool(_done, name="delete", annotations=DESTRUCTIVE)

    @outer.tool
    async def tidy() -> str:
        if by == "server":
            return str(await inner.call_tool("delete", {}))
        async with Client(inner) as client:
            return str((await client.call_tool("delete", {})).data)

    if mounts == "by_name":
        outer.mount(inner, "in")
    elif mounts == "renamed":
        outer.mount(inner, tool_names={"delete": "wipe"})
    elif mounts == "in_another":
        middle.mount(inner, "in")
        outer.mount(middle)
    async with caller_of(outer, revision, declares=FORM, fills=["decline", {}]) as (_, caller):
        if mounts == "later":
            outer.mount(inner)
        assert (await caller.result("tidy")).is_error
        assert not ran
        assert not (await caller.result("tidy")).is_error
        assert ran == ["ran"]
        assert [form.message for form in caller.forms] == ["Run delete?"] * 2


async def test_declined_nested_call_does_not_settle_a_second_nested_call(ran, revision):

    outer, inner = FastMCP("shop"), FastMCP("inner")
    inner.tool(_done, name="delete", annotations=DESTRUCTIVE)
    outer.mount(inner, "in")

    @outer.tool
    async def tidy() -> str:
        with suppress(Exception):
            await outer.call_tool("in_delete", {})
        return str(await inner.call_tool("delete", {}))

    async with caller_of(outer, revision, declares=FORM, fills=["decline"] * 2) as (_, caller):
        assert (await caller.result("tidy")).is_error
        assert not ran
        assert [form.message for form in caller.forms] == ["Run in_delete?", "Run delete?"]


async def test_middleware_added_later_does_not_bypass_the_gate(ran, revision):

    class Renames(Middleware):
        async def on_call_tool(self, context: Any, call_next: Any) -> Any:
            message = context.message.model_copy(update={"name": "delete"})
            return await call_next(context.copy(message=message))

    server = FastMCP("shop")
    server.tool(_done, name="delete", annotations=DESTRUCTIVE)
    server.tool(_also_done, name="look")
    async with caller_of(server, revision, declares=FORM, fills=["decline"]) as (_, caller):
        server.add_middleware(Renames())
        assert (await caller.result("look")).is_error
        assert not ran
        assert [form.message for form in caller.forms] == ["Run delete?"]


def _adds_a_tenant() -> Any:

    class Adds(Middleware):
        async def on_call_tool(self, context: Any, call_next: Any) -> Any:
            message = context.message
            given: dict[str, Any] = {**(message.arguments or {}), "tenant": "t1"}
            message = message.model_copy(update={"arguments": given})
            return await call_next(context.copy(message=message))

    return Adds()


@pytest.mark.parametrize("is_mounted", [False, True])
async def test_arguments_changed_by_middleware_are_approved_as_changed(ran, revision, is_mounted):

    def delete(count: int, tenant: str = "") -> str:
        ran.append((count, tenant))
        return "deleted"

    async def completed(_: object) -> None:
        ran.append("told")

    server, outer = FastMCP("inner", middleware=[_adds_a_tenant()]), FastMCP("shop")
    ready = elicit.needs(elicit.confirm("Ready?"), on_complete=completed)
    server.tool(ready(delete), name="delete", annotations=DESTRUCTIVE)
    outer.mount(server, "in")
    at, name = (outer, "in_delete") if is_mounted else (server, "delete")
    fills: list[Any] = [{}, {}, {}, {}, "decline"]
    async with caller_of(at, revision, declares=FORM, fills=fills) as (env, caller):
        sent = f'Run {name}?\ncount: 1\ntenant: ""'
        runs = "Run delete?\ncount: 1\ntenant: t1"
        for _ in range(2):
            assert await caller.text(name, count=1) == "deleted"
        asked = [form.message for form in caller.forms]
        assert asked == [sent, "Ready?", runs, "Ready?"]
        assert ran == ["told", (1, "t1"), "told", (1, "t1")]
        approved = await env.service.kinds.gates.approvals.all()
        assert {approval.tool for approval in approved} == {name}
        assert len(approved) == 2
        # The stored approval is for this tool with these arguments only.
        assert (await caller.result(name, count=2)).is_error


@pytest.mark.parametrize("spec", [VersionSpec(eq="1.0"), VersionSpec(lt="2.0")], ids=["eq", "lt"])
async def test_nested_call_of_another_version_is_gated_separately(ran, revision, spec):

    server = FastMCP("shop")
    server.tool(_done, name="wipe", version="1.0", annotations=DESTRUCTIVE)

    @server.tool(name="wipe", version="2.0", annotations=DESTRUCTIVE)
    async def wipe_a_copy(ctx: Context) -> str:
        return str(await ctx.fastmcp.call_tool("wipe", {}, version=spec))

    async with caller_of(server, revision, declares=FORM, fills=[{}, "decline"]) as (_, caller):
        assert (await caller.result("wipe")).is_error
        assert not ran
        assert len(caller.forms) == 2


async def test_program_calls_a_tool_of_a_served_server_in_its_own_process(ran):
    server = FastMCP("shop")
    server.tool(_done, name="look")
    async with caller_of(server, MODERN, declares=FORM) as (_, caller):
        assert await caller.text("look") == "done"
        await server.call_tool("look", {})
    await server.call_tool("look", {})  # nothing serves it any more
    assert ran == ["ran", "ran", "ran"]


@pytest.mark.parametrize("ends", ["time", "revoked", "neither"])
async def test_acceptance_of_a_gate_covers_all_requests_of_its_call_until_it_expires_or_is_revoked(
    library, ends
):
    server = new_server(library)

    @server.tool()
    @elicit.gate
    async def rename() -> str:
        return f"it is {await elicit.form('Which name?', timeout=timedelta(hours=1))}"

    async with caller_at_sandbox(server, MODERN, declares=FORM) as (at, caller):
        asked = await caller.asked("rename")
        for_name = await caller.asked("rename", after=asked)
        at.clock.tick(minutes=16 if ends == "time" else 5)
        if ends == "revoked":
            await at.env.service.kinds.gates.approvals.clear()
        unanswered = for_name.model_copy(update={"input_requests": {}})
        again = await caller.asked("rename", after=unanswered)
        (request,) = (again.input_requests or {}).values()
        params: Any = request.params
        assert params.message == ("Which name?" if ends == "neither" else "Run rename?")


def test_gate_acceptance_lasts_as_long_as_an_approval():
    assert traits_of("gate").holds_for_its_call == APPROVED_FOR
