"""Client capabilities, the replies to clients without them, and the error codes."""

from datetime import timedelta
from typing import TYPE_CHECKING, Any, cast

import mcp_types as types
import pytest
from mcp import Client
from mcp.server.mcpserver import Context

from flows import InvalidQuestion, InvalidToken, NotSupported, elicit, supports_elicitation
from flows.elicitation.states import Completion, Json, Status
from flows.errors import Expired
from flows.question import asking
from tests.support.clock import Clock
from tests.support.mcp_sandbox import caller_at_sandbox
from tests.support.mcp_server import (
    BOTH,
    FORM,
    LEGACY,
    MODERN,
    URL,
    caller_of,
    eventually,
    new_server,
    server_env,
    soon,
    text_of,
)
from tests.support.service_env import Holding, call_of, process
from webapp.calls.verbs import Verbs
from webapp.settings.quotas import PolicySettings
from webapp.stores.sqlite import MemoryStore

if TYPE_CHECKING:
    from collections.abc import Mapping

OLD = types.ElicitationCapability()
NESTED = {
    "type": "object",
    "properties": {"home": {"type": "object", "properties": {"street": {"type": "string"}}}},
}
NESTED_ITEMS = {
    "type": "object",
    "properties": {
        "tags": {"type": "array", "items": {"type": "array", "items": {"type": "string"}}}
    },
}
COMBINED = {"type": "object", "properties": {"age": {"allOf": [{"type": "integer"}]}}}
IN_CLIENT_ONLY = PolicySettings(forms_on_pages=False)


def capabilities(declared: types.ElicitationCapability | None) -> types.ClientCapabilities:
    return types.ClientCapabilities(elicitation=declared)


@pytest.mark.parametrize(
    ("declared", "modes"),
    [
        (None, set()),
        ({}, set()),
        ({"elicitation": None}, set()),
        ({"elicitation": True}, set()),
        ({"elicitation": []}, set()),
        ({"elicitation": {}}, {"form"}),
        ({"elicitation": {"form": None}}, {"form"}),
        ({"elicitation": {"form": {}}}, {"form"}),
        ({"elicitation": {"url": {}}}, {"url"}),
        ({"elicitation": {"form": {}, "url": {}}}, {"form", "url"}),
        (capabilities(None), set()),
        (capabilities(OLD), {"form"}),
        (capabilities(FORM), {"form"}),
        (capabilities(URL), {"url"}),
        (capabilities(BOTH), {"form", "url"}),
    ],
)
def test_supports_elicitation_reads_declared_capabilities(declared, modes):
    # parity: F11
    assert {m for m in ("form", "url") if supports_elicitation(declared, m)} == modes
    assert supports_elicitation(declared) is bool(modes)


def test_supports_elicitation_with_unknown_mode_raises_invalid_question():
    # parity: F11
    with pytest.raises(InvalidQuestion, match="'sms' is not an elicitation mode"):
        supports_elicitation({"elicitation": {}}, "sms")


@pytest.mark.parametrize(
    ("declared", "expected"),
    [(BOTH, "form url"), (FORM, "form"), (OLD, "form"), (URL, "url"), (None, "")],
    ids=["both", "form", "{}", "url", "nothing"],
)
async def test_elicit_can_reports_the_clients_modes(
    server, revision, declared: types.ElicitationCapability | None, expected
):
    # parity: E8
    @server.tool()
    async def modes() -> str:
        return " ".join(mode for mode in ("form", "url") if elicit.can(mode))

    @server.tool()
    async def wrong() -> str:
        return str(elicit.can("Form"))

    async with caller_of(server, revision, declares=declared) as (_, caller):
        assert await caller.text("modes") == expected
        refused = await caller.result("wrong")
        assert refused.is_error
        assert refused.meta["code"] == "ELICITATION_INVALID_USE"
        assert "'Form' is not an elicitation mode" in text_of(refused)


@pytest.mark.parametrize("declared", [URL, None], ids=["url", "nothing"])
async def test_in_client_only_form_without_form_mode_fails_with_not_supported(
    server, revision, declared: types.ElicitationCapability | None
):
    # parity: F11
    # parity: E4
    # parity: E1
    seen: list[int] = []

    @server.tool()
    async def ask() -> str:
        try:
            return await elicit.form("Who are you?")
        except NotSupported as error:
            seen.append(error.jsonrpc_code)
            raise

    @server.tool()
    async def sure() -> str:
        outcome = await elicit.confirm("Sure?").outcome()
        return f"{await elicit.confirm('Really?')} {outcome.action} {bool(outcome)}"

    about = {"policies": IN_CLIENT_ONLY, "declares": declared}
    async with caller_of(server, revision, **about) as (env, caller):
        refused = await caller.result("ask")
        assert refused.is_error
        assert text_of(refused) == (
            "This client does not support form elicitation. [ELICITATION_NOT_SUPPORTED]"
        )
        assert refused.meta["errorId"] == refused.meta["code"] == "ELICITATION_NOT_SUPPORTED"
        assert (refused.meta["status"], refused.meta["jsonrpcCode"]) == (400, -32007)
        assert seen == [-32007]
        assert await caller.text("sure") == "False cancel False"
        assert await env.elicitations() == []
        assert not caller.has_links_left


async def test_in_client_only_form_is_shown_by_a_client_with_form_mode(server, revision):
    # parity: F11
    @server.tool()
    async def ask() -> str:
        return f"{await elicit.form('Who?')} {await elicit.confirm('Sure?')}"

    async with caller_of(
        server, revision, policies=IN_CLIENT_ONLY, declares=FORM, fills=[{"response": "Ada"}, {}]
    ) as (_, caller):
        assert await caller.text("ask") == "Ada True"


async def test_in_client_only_question_fails_if_the_client_cannot_show_its_form(server):
    @server.tool()
    async def ask() -> str:
        return f"{await elicit.confirm('Sure?')} {await elicit.form('Who?')}"

    async def fail(_: Any, __: Any) -> types.ErrorData:
        return types.ErrorData(code=-32603, message="no window")

    async with (
        server_env(server, policies=IN_CLIENT_ONLY) as env,
        Client(env.mcp_url, mode=LEGACY, elicitation_callback=cast("Any", fail)) as client,
    ):
        result = await soon(client.call_tool("ask", {}))
        assert result.is_error
        assert result.meta["code"] == "ELICITATION_FAILED"
        assert "cannot show the form" in text_of(result)
        assert "http" not in text_of(result)
        assert {row.status for row in await env.elicitations()} == {Status.FAILED}


async def test_in_client_only_form_shown_too_often_returns_no_link():
    server = new_server("mcp")

    @server.tool()
    async def ask() -> str:
        return await elicit.form("Who?")

    async with caller_of(
        server, MODERN, policies=IN_CLIENT_ONLY, declares=FORM, fills=[{"response": "Ada"}]
    ) as (_, caller):
        result = await caller.send_call("ask")
        while isinstance(result, types.InputRequiredResult):
            again = await soon(
                caller.client.session.call_tool(
                    "ask", {}, request_state=result.request_state, allow_input_required=True
                )
            )
            result = again
        assert "Call this tool again" in text_of(result)
        assert "http" not in text_of(result)
        assert "elicitationPending" not in (result.meta or {})
        assert await caller.text("ask") == "Ada"


@pytest.mark.parametrize(
    ("schema", "named"), [(NESTED, "home"), (NESTED_ITEMS, "tags"), (COMBINED, "age")]
)
async def test_unsupported_form_schema_is_refused_and_names_the_property(
    server, revision, schema, named
):
    # parity: E6
    with pytest.raises(InvalidQuestion, match=named) as refused:
        _ = elicit.form("Where do you live?", schema)
    assert refused.value.jsonrpc_code == -32603

    @server.tool()
    async def ask() -> str:
        return str(await elicit.form("Where do you live?", schema))

    async with caller_of(server, revision, declares=FORM) as (env, caller):
        result = await caller.result("ask")
        assert result.is_error
        assert named in text_of(result)
        refused_as = (result.meta["code"], result.meta["jsonrpcCode"])
        assert refused_as == ("ELICITATION_INVALID_SCHEMA", -32603)
        assert await env.elicitations() == []


async def test_expired_question_ends_the_tool_with_timeout_details(server, revision):
    # parity: F7
    caught: list[Expired] = []

    @server.tool()
    async def visit() -> str:
        try:
            await elicit.url("Go", "https://example.org/", timeout=timedelta(seconds=1))
        except Expired as error:
            caught.append(error)
            raise
        return "done"

    async with caller_at_sandbox(server, revision) as (at, caller):
        env, call = at.env, caller.call("visit")
        link = await caller.link()
        await at.pass_time(seconds=1)
        result = await soon(call)
        assert result.is_error
        message = "Nobody answered within 1 second: 'Go'. [ELICITATION_TIMEOUT]"
        assert text_of(result) == message
        (row,) = await env.elicitations()
        assert row.status is Status.EXPIRED
        assert (await at.guest.person.visit(link)).heading == "This link has expired"
        assert caller.completed == ([row.id] if revision == LEGACY else [])
        (error,) = caught
        assert (error.elicitation_id, error.ttl) == (row.id, timedelta(seconds=1))
        assert (error.name, error.http_status) == ("ELICITATION_TIMEOUT", 408)
        meta = result.meta
        assert meta["errorId"] == meta["code"] == "ELICITATION_TIMEOUT"
        assert (meta["status"], meta["elicitId"], meta["ttl"]) == (408, row.id, 1000)
        # No call waits and no tool runs any more. The fixture checks that no task is left.
        await eventually(lambda: not len(env.service.elicitations.waiters))
        await eventually(lambda: not len(env.service.running_tools))


async def test_declined_and_cancelled_outcomes_differ_and_are_falsy(server, revision):
    # defect: mcp-authkit denied looks like timed out
    # parity: T4
    @server.tool()
    async def ask() -> str:
        outcome = await elicit.form("Who?").outcome()
        shown = f"{outcome.status} {outcome.action} {outcome.accepted} {bool(outcome)}"
        return f"{shown} {outcome.content}"

    fills: list[Mapping[str, Json] | str] = ["decline", "cancel", {"response": "Ada"}]
    async with caller_of(server, revision, declares=FORM, fills=fills) as (_, one):
        assert await one.text("ask") == "declined decline False False None"
        assert await one.text("ask") == "cancelled cancel False False None"
        assert await one.text("ask") == "accepted accept True True Ada"


async def test_author_token_returns_the_elicitation_id_until_expiry():
    # parity: F5
    clock = Clock()
    async with process(MemoryStore(), clock) as service:
        with asking(service.completing):
            text = elicit.token("order-7", timeout=timedelta(minutes=2))
            assert "order-7" not in text
            assert elicit.read_token(text) == "order-7"
            with pytest.raises(InvalidQuestion):
                elicit.token("order 7")
            with pytest.raises(InvalidQuestion):
                elicit.token("order-7", timeout=timedelta(days=8))
            another = text[:9] + ("_" if text[9] != "_" else "-") + text[10:]
            for wrong in (text[:-1], text + "A", "", another):
                with pytest.raises(InvalidToken):
                    elicit.read_token(wrong)
            clock.tick(minutes=2)
            with pytest.raises(InvalidToken):
                elicit.read_token(text)


async def test_token_of_another_purpose_is_rejected():
    # parity: F5
    async with process(MemoryStore(), Clock()) as service:
        call = call_of(service, presenter=Holding())
        with asking(service.completing):
            now = service.clock()
            link = service.links.for_author(
                elicitation_id="e", expires_at=now + timedelta(minutes=5), now=now
            )
            for other in (link.return_token, link.callback_url.rpartition("/")[2]):
                with pytest.raises(InvalidToken):
                    elicit.read_token(other)
            with pytest.raises(InvalidToken):
                await service.completing.called_back(elicit.token("e"), {})
        verbs = Verbs(call)
        with asking(verbs), pytest.raises(InvalidToken):
            elicit.read_token("rubbish")
        assert isinstance(verbs.raised[-1].error, InvalidToken)


async def test_author_callback_completes_the_question_with_its_token():
    # parity: F5
    server = new_server("mcp")
    sent: list[str] = []

    @server.tool()
    async def order() -> str:
        def address(link: Any) -> str:
            sent.append(elicit.token(link.id))
            return f"https://till.example/?state={sent[-1]}"

        content = await elicit.url("Pay", address, origins=["https://till.example"])
        return str(content["paid"])

    async with caller_of(server, LEGACY) as (_, caller):
        call = caller.call("order")
        await caller.link()
        done = await elicit.complete_elicitation(elicit.read_token(sent[-1]), {"paid": 9})
        assert done is Completion.ACCEPTED
        assert text_of(await soon(call)) == "9"


def test_supports_elicitation_with_wrong_type_raises_invalid_question():
    # finding: H8
    for wrong in (object(), "elicitation", Context()):
        with pytest.raises(InvalidQuestion, match=r"ctx\.session\.client_capabilities"):
            supports_elicitation(wrong)
