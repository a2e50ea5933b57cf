"""Calls as a client that lies, repeats itself and races with itself makes them."""

import asyncio
from datetime import timedelta
from typing import Any

import mcp_types as types
import pytest

from flows import elicit
from flows.crypto.tokens import Claims, Purpose
from flows.elicitation.states import Json
from flows.elicitation.tool_call import ToolCall
from tests.attacks.attack import Attack
from tests.support.clock import Clock
from tests.support.legs import answer, settled_loop
from tests.support.mcp_server import (
    FORM,
    LEGACY,
    LIBRARIES,
    MODERN,
    ServerEnv,
    answered_in,
    asked_in,
    link_in,
    links_asked,
    new_server,
    soon,
    staged,
    text_of,
)
from tests.support.service_env import Holding, process
from webapp.calls.call import Call
from webapp.identity.identity import Caller
from webapp.limits import CallLimits
from webapp.mcp.attach import attach
from webapp.mcp.presenters.retry import read_chain
from webapp.mcp.results import RESULT_TOOL
from webapp.service import Service
from webapp.stores.memory import MemoryStore

LOGIN = "https://example.org/login"
SHORT = CallLimits(leg=timedelta(milliseconds=50), leg_at_least=timedelta(milliseconds=50))

foreign_stream = Attack(
    who="whoever got hold of an id of another session's event",
    how="takes that session's stream up in a session of their own, to read its results",
    stopped="an event is known to the session that it was made in, and its id is chance; "
    "every other is refused",
    where=("webapp/mcp/resuming.py",),
    elsewhere=(
        "tests/webapp/mcp/test_resuming.py::test_an_event_that_is_not_this_sessions_is_refused",
        "tests/webapp/mcp/test_resuming.py::test_ids_of_events_are_not_to_be_guessed",
    ),
)
again_refunded = Attack(
    who="a person, or their model",
    how="gets the money back, and makes the same call again to have the result for nothing",
    stopped="a result is given again only behind the checks of a new call, and not where its "
    "money has gone back",
    where=("webapp/calls/call.py", "webapp/calls/delivery.py"),
    elsewhere=(
        "tests/webapp/calls/test_repeated_paid_results.py::test_what_was_given_back_is_not_given_again",
        (
            "tests/webapp/mcp/test_repeated_results.py"
            "::test_a_token_of_a_gated_call_gives_nothing_that_the_gate_keeps"
        ),
    ),
)
own_yes = Attack(
    who="a client, or the model that speaks through it",
    how="answers for the person: accepts the link with content of its own",
    stopped="an accept means only that the link was shown; our page says what is done",
    where=("webapp/mcp/presenters/retry.py", "webapp/mcp/presenters/hold.py"),
)
foreign_state = Attack(
    who="a client",
    how="brings a requestState of another caller, tool or question, a damaged one, or its own "
    "(foreign requestState)",
    stopped="it is sealed, names its run, and a run is continued by its owner and very call only",
    where=("webapp/mcp/presenters/retry.py", "webapp/calls/run.py"),
    elsewhere=(
        "tests/webapp/mcp/test_clients.py::test_a_damaged_state_is_refused",
        "tests/webapp/mcp/test_clients.py::test_the_state_of_another_call_is_refused",
        "tests/webapp/calls/test_waiting.py::test_an_outcome_is_used_by_its_owner_tool_and_arguments_only",
    ),
)
replayed_state = Attack(
    who="a client",
    how="sends the same requestState again after the result, to have the work done twice "
    "(replayed requestState)",
    stopped="the run's result is kept and given again; the body does not run",
    where=("webapp/calls/run.py",),
    elsewhere=(
        "tests/webapp/calls/test_waiting.py::test_a_result_is_repeated_for_ten_minutes_only",
    ),
)
parallel_legs = Attack(
    who="a client",
    how="sends two legs of one call, or two identical calls, at once, to use one answer twice "
    "(parallel legs)",
    stopped="an outcome is taken by one run, in one compare-and-set, before the line returns",
    where=("flows/elicitation/states.py", "webapp/calls/leases.py"),
    elsewhere=(
        "tests/webapp/mcp/test_clients.py::test_of_two_legs_at_once_the_newer_one_waits_and_the_older_one_is_told",
        "tests/webapp/mcp/test_clients.py::test_two_legs_after_the_answer_run_one_body_and_get_one_result",
        "tests/webapp/calls/test_waiting.py::test_while_a_body_runs_no_second_one_starts",
        "tests/webapp/elicitations/test_interleavings.py::test_in_every_order_one_outcome_moves_one_run",
        "tests/webapp/mcp/test_identical_calls.py::test_two_identical_calls_at_one_moment_do_the_work_once",
    ),
)
foreign_id = Attack(
    who="whoever can make trusted code call `complete_elicitation`",
    how="gives it a foreign, made-up or cut id, or one of an account, a payment or a secret",
    stopped="an id is looked up whole, with its owner, and finishes visits only",
    where=("webapp/kinds/url.py", "webapp/completion.py"),
    elsewhere=(
        "tests/webapp/mcp/test_path.py::test_a_completion_by_a_foreign_id_does_nothing",
        "tests/webapp/elicitations/test_completion.py::test_an_id_under_another_owners_tag_is_unknown",
        "tests/webapp/elicitations/test_completion.py::test_the_beginning_of_an_id_and_the_owners_tag_are_unknown",
        "tests/webapp/elicitations/test_completion.py::test_by_its_id_only_a_visit_is_completed",
        "tests/webapp/elicitations/test_completion.py::test_an_id_of_the_authors_own_cannot_be_another_questions_id",
    ),
)
foreign_return = Attack(
    who="whoever reads a return token of the author's",
    how="comes back in another browser, or with another token in its place",
    stopped="the return token and the browser that pressed Continue, and its person",
    where=("webapp/completion.py",),
    elsewhere=(
        "tests/webapp/mcp/test_path.py::test_a_route_of_the_authors_completes_for_no_other_browser",
        "tests/webapp/elicitations/test_completion.py::test_a_return_completes_in_the_browser_that_pressed_continue_only",
        "tests/webapp/elicitations/test_completion.py::test_only_a_return_token_returns",
    ),
)
another_client = Attack(
    who="another client of the same person, such as a second assistant",
    how="makes the same call, to join the first one's question or get what was answered to it "
    "(another client of the same user)",
    stopped="the client is part of the key of a call and of a question",
    where=("webapp/calls/call.py", "webapp/calls/questions.py"),
)
another_version = Attack(
    who="a client, or the model that speaks through it",
    how="has one version of a tool approved and names another one in `_meta` (FastMCP), or lets "
    "the server's own tool go on with another one (another version)",
    stopped="the version that runs is part of the key of a call, a question and an approval, and "
    "is put back into a call that is gone on with",
    where=("webapp/mcp/versions.py", "webapp/calls/run.py", "webapp/kinds/approvals.py"),
    elsewhere=(
        "tests/webapp/mcp/test_versions.py::test_a_wide_yes_is_for_one_version_too",
        "tests/webapp/mcp/test_versions.py::test_a_call_of_another_version_joins_no_run_that_waits",
        "tests/webapp/mcp/test_versions.py::test_the_version_that_was_called_is_gone_on_with",
        "tests/webapp/mcp/test_versions.py::test_a_version_that_came_since_does_not_run_in_its_place",
    ),
)
waited_again = Attack(
    who="the model",
    how="waits once more by `elicitation_result` for what is done, to have it done again",
    stopped="a result that went out ends its run: it is given again while it is kept, and where it "
    "was too long for that nothing is",
    where=("flows/elicitation/run.py", "webapp/mcp/result_tool.py"),
    elsewhere=(
        "tests/webapp/mcp/test_elicitation_result.py::test_a_result_too_long_to_be_kept_is_given_once_and_nothing_is_run_again",
        "tests/webapp/mcp/test_elicitation_result.py::test_when_the_result_is_wiped_nothing_is_run",
        "tests/webapp/calls/test_long_results.py::test_one_that_arrived_ends_its_run_and_the_same_call_asks_anew",
    ),
)
nameless = Attack(
    who="a server that shares a store with another one, and has no name either",
    how="has a tool of the same name, and runs it by a yes to the other's (servers without a name)",
    stopped="a server with a name that its library made up is not served",
    where=("webapp/mcp/naming.py",),
    elsewhere=(
        "tests/webapp/cli/test_serve.py::test_a_server_without_a_name_is_refused_in_a_sentence",
        "tests/webapp/mcp/test_naming.py::test_a_server_without_a_name_is_refused_and_told_to_have_one",
    ),
)
changed_price = Attack(
    who="a tool whose arguments a model chose",
    how="asks for one thing and then, on the retry, for another under the same answer",
    stopped="the digest of a question covers every word that the person was shown",
    where=("flows/question.py", "webapp/calls/call.py"),
    elsewhere=(
        "tests/webapp/mcp/test_kinds.py::test_a_price_that_changes_between_two_legs_is_an_error_and_nothing_is_taken",
        "tests/webapp/calls/test_waiting.py::test_a_question_that_changed_between_two_legs_is_noticed",
        "tests/webapp/calls/test_waiting.py::test_another_question_of_the_same_call_is_not_answered_by_it",
    ),
)


def buying(library: str) -> tuple[Any, list[Json]]:
    """A server whose tool asks, and what its bodies were given."""
    server, bought = new_server(library), list[Json]()

    @server.tool()
    async def buy() -> str:
        bought.append(dict(await elicit.url("Pay", LOGIN)))
        return f"bought {len(bought)}"

    return server, bought


@own_yes
@pytest.mark.parametrize("content", [None, {"name": "eve"}, {"paid": True, "status": "accepted"}])
async def test_a_clients_accept_is_no_answer_whatever_it_carries(content):
    server, bought = buying("mcp")
    async with staged(server, limits=SHORT) as stage, stage.caller(MODERN) as caller:
        asked = asked_in(await caller.leg("buy"))
        (link,) = links_asked(asked)
        for _ in range(3):
            yes = types.ElicitResult(action="accept", content=content)
            keys = [*(asked.input_requests or {}), "elicit-url-0", "elicit-url-1"]
            again = await soon(
                caller.client.session.call_tool(
                    "buy",
                    {},
                    input_responses=dict.fromkeys(keys, yes),
                    request_state=asked.request_state,
                    allow_input_required=True,
                )
            )
            assert isinstance(again, types.InputRequiredResult)
        assert not bought
        assert await stage.status(link) == "pending"
        await stage.complete(link, {"name": "ann"})
        result = await caller.leg("buy", after=asked)
        assert text_of(answered_in(result)) == "bought 1"
        assert bought == [{"name": "ann"}]


def states(stage: ServerEnv, run_id: str) -> dict[str, str]:
    """States with our mark that are none of ours."""
    now = stage.service.clock()
    made = {}
    for purpose in set(Purpose) - {Purpose.RUN}:
        expires_at = now + timedelta(hours=1)
        claims = Claims(purpose=purpose, id=run_id, rest="1;0", expires_at=expires_at)
        made[purpose.value] = stage.service.links.state(claims, now=now)
    return {**made, "none": "", "rubbish": "x" * 200, "two": ":::", "long": "x" * 5000}


@foreign_state
@pytest.mark.parametrize("library", LIBRARIES)
async def test_a_state_with_our_mark_that_we_did_not_make_is_the_tools_own_and_continues_nothing(
    library,
):
    server, bought = buying(library)
    async with staged(server) as stage, stage.caller(MODERN) as caller:
        asked_in(await caller.leg("buy"))
        (record,) = await stage.service.elicitations.store.list("run")
        for name, token in states(stage, record.id).items():
            state = f"elicit-url:{token}"
            chain = read_chain(state, {}, links=stage.service.links, now=stage.service.clock())
            assert chain.run_id is None, name
            assert chain.foreign == state
        assert not bought


@replayed_state
@pytest.mark.parametrize("library", LIBRARIES)
async def test_a_state_that_is_sent_again_after_the_result_does_no_second_work(library):
    server, bought = buying(library)
    async with staged(server) as stage, stage.caller(MODERN) as caller:
        asked = asked_in(await caller.leg("buy"))
        await stage.complete(links_asked(asked)[0])
        for _ in range(3):
            assert text_of(answered_in(await caller.leg("buy", after=asked))) == "bought 1"
        assert len(bought) == 1


def call_from(service: Service, client: str, *, run_id: str | None = None) -> Call:
    """The same call of the same person, from one of their clients."""
    return Call(
        elicitations=service.elicitations,
        links=service.links,
        completing=service.completing,
        kinds=service.kinds,
        outbound=service.outbound,
        landed=service.bodies.landed,
        caller=Caller(owner=service.identity.local_owner, client=client),
        tool=ToolCall(server="shop", tool="buy", client=client, arguments="{}"),
        presenter=Holding(),
        run_id=run_id,
    )


@another_client
async def test_another_client_of_the_same_person_neither_joins_nor_gets_what_was_answered():
    question = elicit.url("Pay", LOGIN)
    async with process(MemoryStore(), Clock()) as service:
        first = call_from(service, "first")
        waiting = asyncio.create_task(answer(first, question))
        await settled_loop()
        (record,) = await service.elicitations.store.list("elicitation")
        waiting.cancel()
        await settled_loop()
        await first.finish()
        await service.completing.complete(record.id, {"n": 1})
        for run_id in (None, first.run.value.id):
            second = call_from(service, "second", run_id=run_id)
            joined = asyncio.create_task(answer(second, question))
            await settled_loop()
            assert not joined.done()
            joined.cancel()
            await settled_loop()
            await second.finish()
        again = await answer(call_from(service, "first"), question)
        assert again.content == {"n": 1}


@another_version
@pytest.mark.parametrize("revision", [LEGACY, MODERN])
async def test_a_yes_to_one_version_of_a_tool_runs_no_other(revision):
    from fastmcp import FastMCP

    server, ran = FastMCP("shop"), list[str]()

    def add(version: str) -> None:
        def wipe() -> str:
            ran.append(version)
            return f"{version} wiped"

        server.tool(elicit.gate(wipe), version=version)

    add("1.0")
    add("2.0")
    older: Any = {"fastmcp": {"version": "1.0"}}
    async with (
        staged(server) as stage,
        stage.caller(revision, declares=FORM, fills=[{}, "decline"]) as caller,
    ):
        assert text_of(await soon(caller.call("wipe"))) == "2.0 wiped"
        told = await soon(caller.client.call_tool("wipe", {}, meta=older))
        assert "[ELICITATION_DECLINED]" in text_of(told)
        assert ran == ["2.0"]


@waited_again
@pytest.mark.parametrize("size", [1, 40_000])
@pytest.mark.parametrize("revision", [LEGACY, MODERN])
async def test_waiting_again_for_what_is_done_does_nothing_again(revision, size: int):
    server, ran = new_server("mcp"), list[int]()

    @server.tool()
    @elicit.gate
    async def wipe() -> str:
        ran.append(size)
        return "x" * size

    async with staged(server) as stage, stage.caller(revision, declares=None) as caller:
        shown = await soon(caller.call("wipe"))
        (row,) = await stage.elicitations()
        await (await stage.person()).press(link_in(shown))
        for _ in range(3):
            await soon(caller.call(RESULT_TOOL, elicitId=row.id))
        assert ran == [size]


@nameless
@pytest.mark.parametrize("library", LIBRARIES)
async def test_a_server_without_a_name_cannot_share_a_store(library):
    async with staged(new_server(library)) as stage:
        server = type(new_server(library))()
        with pytest.raises(ValueError, match="has no name of its own"):
            attach(server, stage.service)
