"""Clients that answer for their person, and try to make the answer count or to look like others."""

from typing import Any

import mcp_types as types
import pytest
from mcp import MCPError

from flows import elicit
from flows.elicitation.states import Status
from tests.support.client_by_hand import NOBODY, code_of, here
from tests.support.clock import Clock
from tests.support.mcp_server import (
    FORM,
    LEGACY,
    MODERN,
    Caller,
    answered_in,
    asked_in,
    link_in,
    soon,
)
from tests.support.service_env import process
from webapp.calls.clients import FORM as IN_FORM
from webapp.calls.clients import ClientName, Reaction, SentState
from webapp.stores.sqlite import MemoryStore

YES = types.ElicitResult(action="accept", content={})


@pytest.fixture
def ran(server: Any) -> list[str]:
    """Add the gated tool `wipe`, and return the list in which its body records its runs."""
    ran: list[str] = []

    @server.tool()
    @elicit.gate
    async def wipe() -> str:
        ran.append("wipe")
        return "wiped"

    return ran


async def answered_by_hand(
    caller: Caller, *, state: str | None, key: str
) -> types.CallToolResult | types.InputRequiredResult:
    """Accept the question with a request whose state the client chose."""
    return await caller.client.session.call_tool(
        "wipe",
        {},
        input_responses={key: YES},
        request_state=state,
        allow_input_required=True,
    )


async def test_automatic_accept_of_client_does_not_run_gated_tool(server, ran, revision):
    async with here(server, revision, ("accept", {})) as it:
        assert code_of(await it.caller.result("wipe")) == NOBODY
        for _ in range(3):  # the body does not start if the call is repeated either
            again = it.caller.call("wipe")
            await it.pass_time(seconds=25)
            assert link_in(await soon(again))
        assert not ran
        assert it.shows.asked == 1
        assert await it.statuses() == [Status.PENDING]


async def test_automatic_decline_of_client_leaves_question_open(server, ran, revision):
    async with here(server, revision, ("decline", None)) as it:
        assert code_of(await it.caller.result("wipe")) == NOBODY
        await it.answer_on_page("wipe")
        assert await it.caller.text("wipe") == "wiped"


async def test_accept_after_person_declined_is_refused(server, ran, revision):
    async with here(server, revision) as it:
        if revision == LEGACY:
            call = await it.asks("wipe")
            await it.pass_time(seconds=20)
            assert link_in(await soon(call))
            await it.decline_on_page()
            await it.shows.says("accept", {})
        else:
            asked = await it.caller.asked("wipe")
            (key,) = asked.input_requests or {}
            await it.decline_on_page()
            it.clock.tick(seconds=5)
            result = await answered_by_hand(it.caller, state=asked.request_state, key=key)
            assert code_of(answered_in(result)) == "ELICITATION_DECLINED"
        assert await it.statuses() == [Status.DECLINED]
        assert not ran


async def test_time_of_older_question_does_not_validate_early_answer(server, ran):
    async with here(server, MODERN) as it:
        older = await it.caller.asked("wipe")
        sent_questions = it.env.service.clients.sent_questions
        for id in tuple(sent_questions):  # without this, the newer question would use the link
            sent_questions[id] = sent_questions[id]._replace(state=SentState.ANSWERED)
        it.clock.tick(minutes=6)
        newer = await it.caller.asked("wipe")
        (key,) = newer.input_requests or {}
        assert key not in (older.input_requests or {})
        result = await answered_by_hand(it.caller, state=older.request_state, key=key)
        assert code_of(answered_in(result)) == NOBODY
        assert not ran


@pytest.mark.parametrize("tamper", [lambda _: None, lambda s: s[:-8], lambda s: f"@0,{s}"])
async def test_forged_or_missing_state_does_not_set_question_time(server, ran, tamper):
    async with here(server, MODERN) as it:
        asked = await it.caller.asked("wipe")
        (key,) = asked.input_requests or {}
        it.clock.tick(seconds=5)
        state = tamper(asked.request_state)
        if state is None:
            again = asked_in(await answered_by_hand(it.caller, state=None, key=key))
            assert again.input_requests == asked.input_requests
        else:
            with pytest.raises(MCPError, match="requestState"):
                await answered_by_hand(it.caller, state=state, key=key)
        assert not ran


async def test_behavior_of_another_persons_client_is_not_applied():
    async with process(MemoryStore(), Clock()) as service:
        owners, clients = service.elicitations.owners, service.clients
        alice, eve = (owners.tag(issuer="tests", subject=name) for name in ("alice", "eve"))
        await clients.note(ClientName(eve, "editor", "1"), IN_FORM, Reaction.AT_ONCE)
        assert await clients.did(ClientName(alice, "editor", "1"), IN_FORM) is None
        assert await clients.did(ClientName(eve, "editor", "1"), IN_FORM) == Reaction.AT_ONCE
        assert await clients.did(ClientName(eve, "editor", "2"), IN_FORM) is None
        assert [one.owner for one in await clients.all()] == [eve]
        assert not await clients.all(owner=alice)


async def test_times_in_the_clients_answer_do_not_make_a_fast_answer_count(server, ran, revision):
    content = {"after": 99, "at": 0}
    async with here(server, revision, ("accept", content), declares=FORM) as it:
        assert code_of(await it.caller.result("wipe")) == NOBODY
        assert not ran
