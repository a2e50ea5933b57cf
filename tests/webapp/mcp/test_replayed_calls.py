"""Workflow engines that repeat a call's first request while its question is open (2026-07-28)."""

import asyncio
from collections.abc import Sequence
from datetime import timedelta
from typing import Any

import mcp_types as types
import pytest

from flows import elicit
from flows.elicitation.states import Status
from tests.support.client_by_hand import Here, here
from tests.support.mcp_server import (
    BOTH,
    MODERN,
    answered_in,
    asked_in,
    link_in,
    links_asked,
    new_server,
    server_env,
    text_of,
)
from webapp.stores.sqlite import MemoryStore

ACCEPT = types.ElicitResult(action="accept")
ANN = types.ElicitResult(action="accept", content={"response": "Ann"})
ANSWERS = {"name": ANN, "sure": ACCEPT, "wipe": ACCEPT}
DONE = {"name": "hello Ann", "sure": "sure: True", "wipe": "wiped"}


@pytest.fixture
def server(library: str) -> Any:
    return shop(library)


def shop(library: str) -> Any:
    server = new_server(library)

    @server.tool()
    async def name() -> str:
        return f"hello {await elicit.form('Your name?')}"

    @server.tool()
    async def sure() -> str:
        return f"sure: {await elicit.confirm('Sure?')}"

    @server.tool()
    @elicit.gate
    async def wipe() -> str:
        return "wiped"

    @server.tool()
    async def visit() -> str:
        await elicit.url("Go there", "https://shop.example/", elicitation_id="visit")
        return f"went: {await elicit.form('Your name?')}"

    @server.tool()
    @elicit.gate
    async def three() -> str:
        who, is_sure = await elicit.together(
            elicit.form("Your name?"), elicit.confirm("Sure?", key="sure")
        )
        return f"{who} {is_sure} {await elicit.form('Where?', key='where')}"

    @server.tool()
    async def quick() -> str:
        return f"hello {await elicit.form('Your name?', timeout=timedelta(seconds=30))}"

    return server


async def first(caller: Any, tool: str) -> Any:
    return await caller.client.session.call_tool(tool, {}, allow_input_required=True)


async def replayed(caller: Any, tool: str, resumed: Sequence[dict[str, Any]]) -> Any:
    """Run an engine once: repeat the call from its first request, with the stored answers.

    Each round sends the answers that are stored for it. A question whose key has no stored answer
    ends the run with a KeyError.
    """
    result = await first(caller, tool)
    for answers in resumed:
        if not isinstance(result, types.InputRequiredResult):
            return result
        assert result.input_requests, "each input_required result has a question"
        result = await caller.client.session.call_tool(
            tool,
            {},
            input_responses={key: answers[key] for key in result.input_requests},
            request_state=result.request_state,
            allow_input_required=True,
        )
    return result


async def in_an_engine(it: Here, tool: str) -> tuple[Any, int]:
    """Return the call's result and how often the engine was interrupted by a question."""
    resumed: list[dict[str, Any]] = []
    while isinstance(result := await replayed(it.caller, tool, resumed), types.InputRequiredResult):
        it.clock.tick(seconds=2)
        asked = result.input_requests or {}
        resumed.append({key: _answer(request) for key, request in asked.items()})
    return result, len(resumed)


def _answer(request: Any) -> types.ElicitResult:
    schema = getattr(request.params, "requested_schema", None) or {}
    return ANN if "response" in schema.get("properties", {}) else ACCEPT


@pytest.mark.every_way
@pytest.mark.parametrize("tool", list(DONE))
async def test_first_request_again_while_form_is_out_gets_same_question(server, tool):
    # finding: XC1
    async with here(server, MODERN) as it:
        asked = asked_in(await first(it.caller, tool))
        # Before the last repeat, the client sends nothing for longer than `CallLimits.silence`.
        for seconds in (0, 1, 6, 12, 60):
            it.clock.tick(seconds=seconds)
            again = asked_in(await first(it.caller, tool))
            assert again.input_requests == asked.input_requests
        assert await it.statuses() == [Status.PENDING]


@pytest.mark.every_way
@pytest.mark.parametrize("tool", list(DONE))
@pytest.mark.parametrize("seconds", [2, 200])
async def test_answer_to_a_replayed_form_is_accepted(server, tool, seconds):
    # finding: XC1
    async with here(server, MODERN) as it:
        asked = asked_in(await first(it.caller, tool))
        it.clock.tick(seconds=seconds)
        (key,) = asked.input_requests or {}
        result = await replayed(it.caller, tool, [{key: ANSWERS[tool]}])
        assert text_of(answered_in(result)) == DONE[tool]
        assert len(await it.env.elicitations()) == 1


async def test_decline_of_a_replayed_form_declines_the_question(server):
    # finding: XC1
    async with here(server, MODERN) as it:
        asked = asked_in(await first(it.caller, "sure"))
        it.clock.tick(seconds=2)
        (key,) = asked.input_requests or {}
        no = types.ElicitResult(action="decline")
        assert text_of(answered_in(await replayed(it.caller, "sure", [{key: no}]))) == "sure: False"


async def test_replaying_engine_is_not_remembered_as_showing_nothing(server):
    # finding: XC1
    async with here(server, MODERN) as it:
        result, count = await in_an_engine(it, "name")
        assert (text_of(answered_in(result)), count) == ("hello Ann", 1)
        (record,) = await it.env.service.clients.all()
        assert record.forms is not None
        assert record.forms.what == "answered"


async def test_several_questions_of_a_call_are_replayed_in_the_same_rounds(server):
    # finding: XC1
    async with here(server, MODERN) as it:
        result, count = await in_an_engine(it, "three")
        assert (text_of(answered_in(result)), count) == ("Ann True Ann", 3)
        assert len(await it.env.elicitations()) == 4


async def test_link_completed_on_the_page_is_replayed_before_the_next_question(server):
    # finding: XC1
    async with here(server, MODERN, declares=BOTH) as it:
        resumed: list[dict[str, Any]] = []
        asked = asked_in(await replayed(it.caller, "visit", resumed))
        assert links_asked(asked)
        it.clock.tick(seconds=30)
        await it.env.service.completing.complete("visit", {})
        resumed.append(dict.fromkeys(asked.input_requests or {}, ACCEPT))
        asked = asked_in(await replayed(it.caller, "visit", resumed))
        it.clock.tick(seconds=30)
        resumed.append(dict.fromkeys(asked.input_requests or {}, ANN))
        result = await replayed(it.caller, "visit", resumed)
        assert text_of(answered_in(result)) == "went: Ann"
        assert len(await it.env.elicitations()) == 2


async def test_link_accepted_too_early_by_an_engine_is_returned_in_a_result(server):
    # finding: XC1
    async with here(server, MODERN, declares=BOTH) as it:
        asked = asked_in(await first(it.caller, "visit"))
        it.clock.tick(seconds=2)
        accepted = dict.fromkeys(asked.input_requests or {}, ACCEPT)
        run = asyncio.create_task(replayed(it.caller, "visit", [accepted]))
        await it.pass_time(seconds=60)  # the call is held open in the meantime
        reported = answered_in(await run)
        assert it.env.id_of(link_in(reported)) == (await it.env.elicitations())[0].id
        assert not reported.is_error


async def test_replay_after_the_timeout_gets_the_link_of_a_new_question(server):
    # finding: XC1
    async with here(server, MODERN) as it:
        asked = asked_in(await first(it.caller, "quick"))
        it.clock.tick(seconds=31)
        (key,) = asked.input_requests or {}
        reported = answered_in(await replayed(it.caller, "quick", [{key: ANN}]))
        assert not reported.is_error
        assert link_in(reported)
        expired, fresh = await it.statuses()
        assert (expired, fresh) == (Status.EXPIRED, Status.PENDING)


async def test_answered_question_is_not_asked_again_after_a_client_crash(server):
    async with here(server, MODERN) as it:
        asked = asked_in(await first(it.caller, "three"))  # the gate
        it.clock.tick(seconds=20)
        both = asked_in(await it.caller.send_call("three", after=asked))
        assert len(both.input_requests or {}) == 2
        again = asked_in(await first(it.caller, "three"))
        assert again.input_requests == both.input_requests


@pytest.mark.parametrize("tool", list(DONE))
async def test_replay_in_another_process_gets_the_same_question_and_answers_it(library, tool):
    # finding: XC1
    store = MemoryStore()
    async with (
        server_env(shop(library), store=store) as one,
        server_env(shop(library), store=store.sibling(), is_alone=False) as two,
        one.caller(MODERN) as caller,
        two.caller(MODERN) as other,
    ):
        asked = asked_in(await first(caller, tool))
        again = asked_in(await first(other, tool))
        assert again.input_requests == asked.input_requests
        (key,) = asked.input_requests or {}
        result = await replayed(other, tool, [{key: ANSWERS[tool]}])
        assert text_of(answered_in(result)) == DONE[tool]
        assert len(await two.elicitations()) == 1
