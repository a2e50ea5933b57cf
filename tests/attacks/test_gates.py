"""Attacks on gates, approvals and forms by a model and by a client that lies.

No body of a gated tool may start before an authorized person has approved that exact call.
"""

from datetime import timedelta
from typing import Any

import mcp_types as types
import pytest
from pydantic import BaseModel, Field

from flows import elicit
from flows.elicitation.states import Json, Status
from tests.support.issuer import issuing, sign_in
from tests.support.mcp_sandbox import caller_at_sandbox
from tests.support.mcp_server import (
    FORM,
    LEGACY,
    MODERN,
    URL,
    Caller,
    caller_of,
    new_server,
    server_env,
    soon,
    text_of,
)
from webapp.limits import CallLimits
from webapp.settings.identity import IdentitySettings

REFUSED = ["decline"]


def gated(server: Any) -> list[Json]:
    """Add gated tools, and return the list of their bodies' arguments."""
    done: list[Json] = []

    @server.tool()
    @elicit.gate
    def pay(to: str, amount: int = 1, note: str = "") -> str:
        done.append([to, amount, note])
        return "paid"

    @server.tool()
    @elicit.gate
    def burn(to: str, amount: int = 1) -> str:
        done.append(["burnt", to, amount])
        return "burnt"

    return done


@pytest.fixture
def done(server: Any) -> list[Json]:
    return gated(server)


async def is_refused(caller: Caller, tool: str, **arguments: Json) -> bool:
    """Return True if somebody was asked and declined."""
    result = await caller.result(tool, **arguments)
    return bool(result.meta and result.meta.get("code") == "ELICITATION_DECLINED")


async def test_model_allowed_to_answer_forms_cannot_open_gate(server, done, revision):
    who = IdentitySettings(lets_model_answer=True)
    async with caller_of(
        server, revision, who=who, limits=CallLimits(link=timedelta()), declares=None
    ) as (env, caller):
        link = await caller.link_in_result("pay", to="eve")
        about: dict[str, Any] = {"elicitId": env.id_of(link)}
        for answer in (
            {"action": "accept"},
            {"action": "accept", "content": {}},
            {"action": "accept", "content": {"approved": True, "remember": "1"}},
            {"action": "wait", "content": {}},
            {"content": {"response": "yes"}},
        ):
            assert await caller.text("elicitation_result", **about, **answer) != "paid"
            assert await caller.text("pay", to="eve") != "paid"
        assert not done
        assert await env.status(link) is Status.PENDING
        assert not await env.service.kinds.gates.approvals.all()


async def test_approval_of_one_person_does_not_open_gate_for_another(server, done):
    async with issuing() as issuer, server_env(server, who=issuer.who()) as env:

        def bearer(subject: str) -> Any:
            return issuer.bearer(subject, audience=env.mcp_url)

        async with (
            env.caller(LEGACY, headers=bearer("alice"), declares=FORM, fills=[{}]) as alice,
            env.caller(LEGACY, headers=bearer("mallory"), declares=FORM, fills=REFUSED) as mallory,
            env.caller(LEGACY, headers=bearer("alice"), declares=URL) as at_pages,
        ):
            assert await alice.text("pay", to="ann") == "paid"
            assert await is_refused(mallory, "pay", to="ann")
            at_pages.begin("burn", to="ann")
            at_pages.begin("burn", to="bob")
            stranger = await env.person()
            asked = [row for row in await env.pending(4) if not row.status.is_final]
            for link in map(env.link_of, asked):
                await sign_in(stranger, await stranger.visit(link), "mallory")
                page = await stranger.visit(link)
                assert page.heading == "This link belongs to someone else"
                form = {"csrf": page.csrf or "", "remember": "1"}
                assert (await stranger.browser.post(link, data=form)).status_code >= 400
        assert done == [["ann", 1, ""]]


async def test_approval_in_one_client_does_not_open_gate_in_another(server, done, revision):
    # finding: S11
    async with issuing() as issuer, server_env(server, who=issuer.who()) as env:

        def alice(client_id: str, **about: Any) -> Any:
            headers = issuer.bearer("alice", audience=env.mcp_url, client_id=client_id)
            return env.caller(revision, headers=headers, name="same name", **about)

        async with (
            alice("one", declares=FORM, fills=[{}]) as one,
            alice("two", declares=FORM, fills=REFUSED * 2) as two,
            alice("three", declares=URL) as at_pages,
        ):
            assert await one.text("pay", to="ann") == "paid"
            assert await is_refused(two, "pay", to="ann")
            assert await one.text("pay", to="ann") == "paid"
            call = at_pages.call("burn", to="ann")
            link = await at_pages.link()
            person = await env.person()
            page = await sign_in(person, await person.visit(link), "alice")
            assert "<bdi>three</bdi>" in page.text
            assert "Approve it for my other assistants too" in page.text
            form = {"csrf": page.csrf or "", "remember": "1"}
            await person.browser.post(link, data=form)
            assert text_of(await soon(call)) == "burnt"
            assert await is_refused(two, "burn", to="ann")
            assert done == [["ann", 1, ""]] * 2 + [["burnt", "ann", 1]]


async def test_local_approval_covers_same_client_name_or_all_clients_if_ticked(server, done):
    # finding: S11
    async with (
        caller_of(server, MODERN, name="Claude", declares=URL) as (env, claude),
        env.caller(MODERN, name="Cursor", declares=FORM, fills=REFUSED) as cursor,
    ):
        for ticks in ({"remember": "1"}, {"all_clients": "1"}):
            tool = "pay" if "remember" in ticks else "burn"
            call = claude.call(tool, to="ann")
            link = await claude.link()
            person = await env.person()
            page = await person.visit(link)
            assert "This is its own name, not verified." in page.text
            await person.browser.post(link, data={"csrf": page.csrf or "", **ticks})
            await soon(call)
        assert await is_refused(cursor, "pay", to="ann")
        assert await cursor.text("burn", to="ann") == "burnt"
        assert len(done) == 3


async def test_approval_of_one_call_does_not_cover_similar_call(server, done):
    others: list[tuple[str, dict[str, Json]]] = [
        ("pay", {"to": "ann", "amount": 500}),
        ("pay", {"to": "ann", "amount": 5, "note": ""}),
        ("pay", {"to": "ann", "amount": "5"}),
        ("pay", {"to": "ann", "amount": 5.0}),
        ("pay", {"to": "ann "}),
        ("pay", {"to": "ann"}),
        ("pay", {"to": "Ann", "amount": 5}),
        ("burn", {"to": "ann", "amount": 5}),
    ]
    fills: list[Any] = [{}, *REFUSED * len(others)]
    async with caller_of(server, LEGACY, declares=FORM, fills=fills) as (_, caller):
        assert await caller.text("pay", to="ann", amount=5) == "paid"
        for tool, arguments in others:
            assert await is_refused(caller, tool, **arguments), arguments
        assert await caller.text("pay", amount=5, to="ann") == "paid"
        assert done == [["ann", 5, ""]] * 2


@pytest.mark.parametrize("ends", ["expired", "revoked", "cleared"])
async def test_call_is_asked_again_after_approval_expired_or_was_revoked(ends):
    server = new_server("mcp")
    done = gated(server)
    fills = [{}, *REFUSED]
    async with caller_at_sandbox(server, LEGACY, declares=FORM, fills=fills) as (at, caller):
        approvals = at.env.service.kinds.gates.approvals
        assert await caller.text("pay", to="ann") == "paid"
        at.clock.tick(minutes=14)
        assert await caller.text("pay", to="ann") == "paid"
        (approval,) = await approvals.all()
        if ends == "expired":
            at.clock.tick(minutes=1, seconds=1)
        elif ends == "revoked":
            assert await approvals.revoke(approval.id)
        else:
            assert await approvals.clear() == 1
        assert await is_refused(caller, "pay", to="ann")
        assert len(done) == 2


async def test_arguments_imitating_other_arguments_are_shown_escaped(server, done):
    honest: dict[str, Json] = {"to": "ann", "amount": 1, "note": "cheap"}
    plays: list[dict[str, Json]] = [
        {"to": "ann\namount: 1\nnote: cheap", "amount": 9000},
        {"to": "ann\r\namount: 1", "amount": 9000, "note": "\u2028note: cheap"},
        {"to": "ann\u202e0009 :tnuoma", "amount": 9000},
        {"to": "ann\x1b[2K\x08\x08", "amount": 9000},
        {"to": "ann", "amount": 9000, "note": "\n" * 50 + "amount: 1"},
    ]
    fills = REFUSED * (len(plays) + 1)
    async with caller_of(server, LEGACY, declares=FORM, fills=fills) as (_, caller):
        for arguments in (honest, *plays):
            assert await is_refused(caller, "pay", **arguments)
        shown = [form.message for form in caller.forms]
    assert shown[0] == "Run pay?\nto: ann\namount: 1\nnote: cheap"
    assert len(shown) == len(plays) + 1
    for message in shown[1:]:
        lines = message.splitlines()
        assert [line.partition(":")[0] for line in lines[1:]] == ["to", "amount", "note"]
        assert "amount: 9000" in lines
        assert all(line.isprintable() for line in lines)
    assert not done


@pytest.mark.parametrize("asked", ["password", "api_key", "creditCard", "What is your password?"])
async def test_form_asking_for_secret_is_not_shown(server, asked):
    @server.tool()
    async def ask(what: str) -> str:
        if what.endswith("?"):
            return await elicit.form(what)
        fields: dict[str, Json] = {"type": "object", "properties": {what: {"type": "string"}}}
        return str(await elicit.form("Just this", fields))

    fills = [{asked: "hunter2"}]
    async with caller_of(server, MODERN, declares=FORM, fills=fills) as (env, caller):
        result = await caller.result("ask", what=asked)
        assert result.is_error
        assert "ask for it with elicit.secret" in text_of(result)
        assert not caller.forms
        assert not await env.elicitations()


class Transfer(BaseModel):
    amount: int = Field(ge=1, le=100)
    to: str = Field(max_length=20)


async def test_invalid_form_answer_does_not_reach_tool(server, revision):
    given = list[object]()

    @server.tool()
    async def transfer(number: int) -> str:
        given.append(await elicit.form("How much, and to whom?", Transfer))
        return "done"

    fills: list[Any] = [
        {"amount": 101, "to": "ann"},
        {"amount": True, "to": "ann"},
        {"amount": "5; drop", "to": "ann"},
        {"amount": 5},
        {"amount": 5, "to": "a" * 21},
        {"amount": 5, "to": ["ann"]},
        {"amount": 5, "to": "ann", "is_admin": True},
        {"amount": 5, "to": "a" * 20_000},
        {},
    ]
    async with caller_of(server, revision, declares=FORM, fills=fills) as (env, caller):
        for number, fill in enumerate(fills):  # each number makes a new question
            result = await caller.result("transfer", number=number)
            assert result.is_error, fill
            assert result.meta
            assert result.meta["code"] == "INVALID_INPUT", fill
        assert not given
        assert {row.status for row in await env.elicitations()} == {Status.FAILED}


async def test_unlisted_tool_is_gated_too(server, done):

    @server.tool()
    @elicit.gate
    @elicit.needs(elicit.secret("The key of the door", name="door"), hide=True)
    def wipe() -> str:
        done.append("wiped")
        return "wiped"

    async with caller_of(server, MODERN, declares=FORM) as (env, caller):
        listed = {tool.name for tool in (await soon(caller.client.list_tools())).tools}
        assert listed == {"pay", "burn"}
        asked = await caller.asked("wipe")
        (request,) = (asked.input_requests or {}).values()
        params: Any = request.params
        assert params.message == "Run wipe?"
        refused = await caller.send_call("wipe", after=asked, action="decline")
        assert isinstance(refused, types.CallToolResult)
        assert refused.is_error
        assert not done
        assert [row.kind for row in await env.elicitations()] == ["gate"]
