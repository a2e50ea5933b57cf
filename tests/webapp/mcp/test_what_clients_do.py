"""Client behavior with questions: the person is reached, and no client answers for them."""

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import mcp_types as types
import pytest

from flows import elicit
from flows.elicitation.states import Status
from flows.elicitation.tool_call import CallingClient
from flows.elicitation.traits import OnPage
from tests.support.client_by_hand import NOBODY, Here, Shows, code_of, here, is_link
from tests.support.clock import Clock
from tests.support.mcp_server import (
    BOTH,
    FORM,
    LEGACY,
    MODERN,
    URL,
    answered_in,
    attached,
    eventually,
    link_in,
    new_server,
    soon,
    text_of,
)
from tests.support.service_env import process
from webapp.calls.clients import FORM as FORM_MODE
from webapp.calls.clients import ClientName, Reaction
from webapp.mcp.callers import LIBRARY_NAMES
from webapp.settings.quotas import ListedClient, PolicySettings
from webapp.stores.sqlite import MemoryStore

if TYPE_CHECKING:
    import asyncio

TOOLS = ("name", "sure", "wipe", "visit")
DONE = {"name": "hello Ann", "sure": "sure: True", "wipe": "wiped", "visit": "went"}
CODES = {"decline": "ELICITATION_DECLINED", "cancel": "ELICITATION_CANCELLED"}
DECLARED = {"name": FORM, "sure": FORM, "wipe": FORM, "visit": BOTH}


@pytest.fixture
def server(library: str) -> Any:
    server = new_server(library)

    @server.tool()
    async def name() -> str:
        return f"hello {await elicit.form('Your name?')}"

    @server.tool()
    async def surname() -> str:
        return f"hello {await elicit.form('Your surname?')}"

    @server.tool()
    async def sure() -> str:
        return f"sure: {await elicit.confirm('Sure?')}"

    @server.tool()
    @elicit.gate
    async def wipe() -> str:
        return "wiped"

    @server.tool()
    async def visit() -> str:
        await elicit.url("Go there", "https://shop.example/")
        return "went"

    return server


async def is_reached_on_the_page(it: Here, tool: str, result: types.CallToolResult) -> None:
    """Check that the same question continues on the page and is not sent to the client again."""
    (asked,) = await it.env.elicitations()
    assert asked.status is Status.PENDING
    assert it.env.id_of(link_in(result)) == asked.id
    sent = it.shows.asked
    again = it.caller.call(tool)
    await it.env.pending()
    await it.answer_on_page(tool)
    assert text_of(await soon(again)) == DONE[tool]
    assert it.shows.asked == sent


@pytest.mark.every_way
@pytest.mark.parametrize("tool", TOOLS)
@pytest.mark.parametrize("action", ["decline", "cancel"])
async def test_immediate_decline_is_automatic_and_ignored(server, revision, tool, action):
    async with here(server, revision, (action, None), declares=DECLARED[tool]) as it:
        result = await it.caller.result(tool)
        assert not result.is_error  # the person is asked through the link
        assert code_of(result) == NOBODY
        assert text_of(result).startswith("Nobody was asked")
        assert "Show the person this complete link" in text_of(result)
        await is_reached_on_the_page(it, tool, result)


@pytest.mark.every_way
@pytest.mark.parametrize("tool", ["sure", "wipe"])
@pytest.mark.parametrize("content", [None, {}, {"yes": True}])
async def test_immediate_acceptance_is_automatic_and_ignored(server, revision, tool, content):
    async with here(server, revision, ("accept", content)) as it:
        result = await it.caller.result(tool)
        assert code_of(result) == NOBODY
        await is_reached_on_the_page(it, tool, result)


async def test_automatic_answers_to_questions_asked_together_lead_to_the_link(server, revision):
    @server.tool()
    async def both() -> str:
        answers = await elicit.together(
            elicit.confirm("Sure?"), elicit.url("Go there", "https://shop.example/")
        )
        return str(answers[0])

    answers = [("decline", None), ("accept", None)]
    async with here(server, revision, declares=BOTH) as it:
        call = await it.asks("both")
        await eventually(lambda: it.shows.asked == 2 or revision == MODERN)
        for answer in answers:
            await it.shows.says(*answer)
        result = await soon(call)
        assert code_of(result) == NOBODY
        assert "What for: Sure?" in text_of(result)


async def test_immediate_form_with_content_is_accepted(server, revision):
    async with here(server, revision, ("accept", {"response": "Ann"})) as it:
        assert await it.caller.text("name") == "hello Ann"


async def test_client_filling_forms_immediately_with_invalid_content_gets_a_link_next(
    server, revision
):
    async with here(server, revision, ("accept", {"response": 5})) as it:
        assert code_of(await it.caller.result("name")) == "INVALID_INPUT"
        assert is_link(await it.caller.result("name"))
        assert it.shows.asked == 1


@pytest.mark.parametrize("content", [None, {}, {"response": 5}, {"other": "Ann"}])
async def test_same_call_after_an_invalid_answer_returns_the_link(server, revision, content):
    # finding: XC3
    async with here(server, revision) as it:
        call = await it.asks("name")
        it.clock.tick(seconds=2)
        await it.shows.says("accept", content)
        assert code_of(await soon(call)) == "INVALID_INPUT"
        result = await it.caller.result("name")
        assert is_link(result)
        assert it.shows.asked == 1
        again = it.caller.call("name")
        await it.env.pending()
        (asked,) = [e for e in await it.env.elicitations() if not e.status.is_final]
        kind = it.env.service.kinds.on_page(asked.kind)
        assert kind is not None
        await kind.complete(asked, {"response": "Ann"}, OnPage())
        assert text_of(await soon(again)) == DONE["name"]
        # Only a client that answered without any content gets the link for another tool's question.
        if content:
            assert not (await it.asks("surname")).done()
        else:
            assert is_link(await it.caller.result("surname"))


async def test_empty_form_answered_immediately_is_automatic_and_ignored(server, revision):
    async with here(server, revision, ("accept", None)) as it:
        result = await it.caller.result("name")
        assert code_of(result) == NOBODY
        await is_reached_on_the_page(it, "name", result)


@pytest.mark.every_way
@pytest.mark.parametrize("tool", TOOLS)
@pytest.mark.parametrize(
    ("action", "status"), [("decline", Status.DECLINED), ("cancel", Status.PENDING)]
)
async def test_decline_or_cancel_after_a_second_counts_as_the_persons(
    server, revision, tool, action, status
):
    async with here(server, revision, declares=DECLARED[tool]) as it:
        call = await it.asks(tool)
        it.clock.tick(seconds=1)
        await it.shows.says(action)
        result = await soon(call)
        assert code_of(result) != NOBODY
        assert await it.statuses() == [status]
        if tool == "sure":
            assert text_of(result) == "sure: False"
        else:
            assert code_of(result) == CODES[action]


async def test_acceptance_after_a_second_counts_as_the_persons(server, revision):
    async with here(server, revision) as it:
        call = await it.asks("wipe")
        it.clock.tick(seconds=1)
        await it.shows.says("accept", {})
        assert text_of(await soon(call)) == "wiped"


async def test_form_dismissed_after_a_second_is_asked_again_in_the_client(server, revision):
    async with here(server, revision) as it:
        call = await it.asks("name")
        it.clock.tick(seconds=1)
        await it.shows.says("cancel")
        await soon(call)
        again = await it.asks("name")
        await it.shows.says("accept", {"response": "Ann"})
        assert text_of(await soon(again)) == "hello Ann"


async def test_automatic_answer_leaves_an_in_client_only_question_open(server, revision):
    policies = PolicySettings(forms_on_pages=False)
    async with here(server, revision, ("decline", None), policies=policies) as it:
        result = await it.caller.result("name")
        assert code_of(result) == NOBODY
        assert "/e/" not in text_of(result)
        assert "ELICIT_CLIENTS" in text_of(result)
        assert await it.statuses() == [Status.PENDING]
        again = await it.asks("name")
        await it.shows.says("accept", {"response": "Ann"})
        assert text_of(await soon(again)) == "hello Ann"


async def test_silent_client_gets_the_link_after_twenty_seconds(server):
    async with here(server, LEGACY) as it:
        call = await it.asks("name")
        await it.pass_time(seconds=19)
        assert not call.done()
        await it.pass_time(seconds=1)
        result = await soon(call)
        assert is_link(result)
        await is_reached_on_the_page(it, "name", result)


async def test_unopened_link_is_in_the_result_after_twenty_seconds(server):
    async with here(server, LEGACY, declares=BOTH) as it:
        call = await it.asks("visit")
        for _ in range(3):
            await it.pass_time(seconds=5)
        assert not call.done()
        await it.pass_time(seconds=5)
        result = await soon(call)
        assert is_link(result)
        await is_reached_on_the_page(it, "visit", result)


async def test_result_has_the_link_that_a_patient_client_accepted_immediately(
    server,
):
    patient = PolicySettings(patient_clients=frozenset({"mcp"}))
    async with here(server, LEGACY, ("accept", None), declares=URL, policies=patient) as it:
        call = await it.asks("visit")
        (asked,) = await it.env.elicitations()
        clients = it.env.service.clients
        await eventually(lambda: clients.sent_questions[asked.id].state.name == "ANSWERED")
        await it.pass_time(seconds=50)
        assert is_link(await soon(call))


@pytest.mark.parametrize("seconds", [0, 50])
@pytest.mark.parametrize("when", ["between two calls", "while the next one waits"])
async def test_slow_typists_answer_is_used_and_not_asked_for_again(server, seconds, when):
    async with here(server, LEGACY) as it:
        call = await it.asks("name")
        await it.pass_time(seconds=20)
        assert is_link(await soon(call))
        it.clock.tick(seconds=seconds)
        if when.startswith("between"):
            await it.shows.says("accept", {"response": "Ann"})
            assert await it.statuses() == [Status.ACCEPTED]
        again = it.caller.call("name")
        if when.startswith("while"):
            await it.env.pending()
            await it.shows.says("accept", {"response": "Ann"})
        assert text_of(await soon(again)) == "hello Ann"
        assert it.shows.asked == 1
        # The client shows forms, so its next form is held open for the usual time.
        slow = await it.asks("surname")
        await it.pass_time(seconds=49)
        assert not slow.done()


async def test_next_call_after_a_late_invalid_answer_returns_the_link(server):
    async with here(server, LEGACY) as it:
        call = await it.asks("name")
        await it.pass_time(seconds=20)
        await soon(call)
        await it.shows.says("accept", {"response": 7})
        assert is_link(await it.caller.result("name"))
        assert it.shows.asked == 1


async def test_late_decline_is_reported_to_the_next_call(server):
    async with here(server, LEGACY) as it:
        call = await it.asks("name")
        await it.pass_time(seconds=20)
        await soon(call)
        await it.shows.says("decline")
        assert await it.statuses() == [Status.DECLINED]
        assert code_of(await it.caller.result("name")) == "ELICITATION_DECLINED"


async def test_next_call_after_an_abandoned_form_gets_the_link_immediately(server):
    async with here(server, LEGACY) as it:
        call = await it.asks("name")
        call.cancel()
        await eventually(lambda: not len(it.env.service.running_tools))
        result = await it.caller.result("name")
        assert is_link(result)
        await it.shows.says("accept", {"response": "Ann"})
        assert await it.caller.text("name") == "hello Ann"
        assert it.shows.asked == 1


async def test_form_stays_open_when_a_newer_identical_call_supersedes_its_call(server):
    async with here(server, LEGACY) as it:
        older = await it.asks("name")
        it.clock.tick(seconds=10)  # more than `min_answer`, so a person can have read the form
        assert is_link(await it.caller.result("name"))
        assert "Another call is waiting" in text_of(await soon(older))
        await it.shows.says("accept", {"response": "Ann"})
        assert await it.caller.text("name") == "hello Ann"
        assert it.shows.asked == 1


async def test_call_after_two_silent_requests_gets_the_link(server):
    async with here(server, MODERN) as it:
        await it.caller.asked("name")
        it.clock.tick(seconds=60)
        await it.caller.asked("name")
        it.clock.tick(seconds=60)
        reported = await it.caller.answered("name")
        assert is_link(reported)
        await is_reached_on_the_page(it, "name", reported)


async def test_late_request_still_delivers_its_answer(server):
    async with here(server, MODERN) as it:
        asked = await it.caller.asked("name")
        it.clock.tick(seconds=35)
        await it.caller.asked("name")
        it.clock.tick(seconds=35)
        assert is_link(await it.caller.answered("name"))
        (key,) = asked.input_requests or {}
        result = await it.caller.client.session.call_tool(
            "name",
            {},
            input_responses={key: types.ElicitResult(action="accept", content={"response": "Ann"})},
            request_state=asked.request_state,
            allow_input_required=True,
        )
        assert text_of(answered_in(result)) == "hello Ann"


@pytest.mark.every_way
@pytest.mark.parametrize("way", ["answers at once", "is silent", "gives up"])
async def test_client_seen_to_show_nothing_gets_the_link_immediately_for_a_day(
    server, revision, way
):
    if way == "gives up" and revision == MODERN:
        way = "is silent"
    at_once = (("decline", None),) if way == "answers at once" else ()
    async with here(server, revision, *at_once) as it:
        await draws_nothing(it, revision, way)
        sent = it.shows.asked
        assert is_link(await it.caller.result("surname"))
        it.clock.tick(hours=23)
        assert is_link(await it.caller.result("sure"))
        assert it.shows.asked == sent
        it.clock.tick(hours=2)
        assert not (await it.asks("wipe")).done()


async def draws_nothing(it: Here, revision: str, way: str) -> None:
    if way == "answers at once":
        assert code_of(await it.caller.result("name")) == NOBODY
    elif revision == MODERN:
        for _ in range(2):
            await it.caller.asked("name")
            it.clock.tick(seconds=60)
        await it.caller.answered("name")
    elif way == "is silent":
        call = await it.asks("name")
        await it.pass_time(seconds=20)
        await soon(call)
    else:
        (await it.asks("name")).cancel()
        await eventually(lambda: not len(it.env.service.running_tools))


async def test_client_seen_to_show_forms_is_still_trusted_when_its_person_is_away(server):
    async with here(server, LEGACY) as it:
        call = await it.asks("name")
        it.clock.tick(seconds=3)
        await it.shows.says("accept", {"response": "Ann"})
        await soon(call)
        call = await it.asks("surname")
        await it.pass_time(seconds=50)
        assert is_link(await soon(call))
        (record,) = await it.env.service.clients.all()
        assert record.forms is not None
        assert len(record.forms.unanswered) == 1  # two in a row would count
        again = it.caller.call("surname")
        await it.shows.says("accept", {"response": "Smith"})
        assert text_of(await soon(again)) == "hello Smith"
        assert it.shows.asked == 2


@pytest.mark.every_way
async def test_client_listed_as_showing_nothing_is_sent_no_questions(server, revision):
    policies = PolicySettings(clients=(ListedClient(name="mcp/1", draws=frozenset()),))
    async with here(server, revision, policies=policies, declares=BOTH) as it:
        for tool in TOOLS:
            assert is_link(await it.caller.result(tool))
        assert it.shows.asked == 0


async def test_client_listed_as_showing_forms_is_held_for_the_full_limit(server):
    policies = PolicySettings(clients=(ListedClient(name="mcp"),))
    async with here(server, LEGACY, policies=policies) as it:
        call = await it.asks("name")
        await it.pass_time(seconds=49)
        assert not call.done()


async def test_client_listed_as_answering_can_answer_those_kinds_immediately(server, revision):
    listed = ListedClient(name="mcp", answers=frozenset({"confirm"}))
    policies = PolicySettings(clients=(listed,))
    answers: list[tuple[str, Any]] = [("accept", {}), ("decline", None), ("accept", {})]
    async with here(server, revision, *answers, policies=policies) as it:
        assert await it.caller.text("sure") == "sure: True"
        assert await it.caller.text("sure") == "sure: False"
        assert code_of(await it.caller.result("wipe")) == NOBODY


@pytest.mark.parametrize("declares", [BOTH, URL])
async def test_bridge_is_sent_no_link_on_the_newer_revision(server, declares):
    name = "editor (via mcp-remote 0.15.1)"
    async with here(server, MODERN, declares=declares, name=name) as it:
        assert is_link(await it.caller.result("visit"))
        assert it.shows.asked == 0


async def test_bridge_version_is_not_part_of_the_clients_identity(server, revision):
    async with here(server, revision, name="editor (via mcp-remote 0.15.1)") as it:
        call = await it.asks("name")
        it.clock.tick(seconds=2)
        await it.shows.says("cancel")
        await soon(call)
        shows = Shows()
        async with it.env.caller(
            revision, declares=FORM, slow=shows.answer, name="editor (via mcp-remote 0.16.0)"
        ) as other:
            again = other.call("name")
            await shows.says("accept", {"response": "Ann"})
            assert text_of(await soon(again)) == "hello Ann"
        (asked,) = await it.env.elicitations()
        assert asked.request.client == "editor"


@pytest.mark.parametrize("minutes", [-2, 2])
async def test_clock_change_during_a_call_does_not_affect_answer_timing(server, minutes):
    async with here(server, LEGACY) as it:
        for tool, seconds, code in (("name", 2, CODES["decline"]), ("surname", 0, NOBODY)):
            call = await it.asks(tool)
            it.clock.tick(seconds=seconds)
            it.clock.set(minutes=minutes)
            await it.shows.says("decline")
            assert code_of(await soon(call)) == code


@pytest.mark.parametrize(
    ("minutes", "code"), [(-2, NOBODY), (2, CODES["decline"])], ids=["set back", "set forward"]
)
async def test_clock_set_back_between_two_requests_leaves_the_person_the_link(
    server, minutes, code
):
    async with here(server, MODERN) as it:
        call = await it.asks("name")
        it.clock.tick(seconds=2)
        it.clock.set(minutes=minutes)
        await it.shows.says("decline")
        result = await soon(call)
        assert code_of(result) == code
        assert ("/e/" in text_of(result)) == (code == NOBODY)


async def test_client_unable_to_send_an_empty_form_is_remembered_for_confirmations_only(server):
    # finding: XC4
    async with here(server, LEGACY) as it:
        call = await it.asks("name")
        it.clock.tick(seconds=3)
        await it.shows.says("accept", {"response": "Ann"})
        await soon(call)
        call = await it.asks("sure")  # the form's button does nothing
        await it.pass_time(seconds=20)
        assert is_link(await soon(call))
        assert is_link(await it.caller.result("wipe"))
        assert not (await it.asks("surname")).done()


async def test_client_with_two_unanswered_questions_in_a_row_is_not_waited_for():
    # finding: XC4
    async with process(MemoryStore(), Clock()) as service:
        clients, client = service.clients, ClientName("ann", "editor", "1")
        await clients.note(client, FORM_MODE, Reaction.ANSWERED)
        for about in ("first", "first"):
            await clients.note(client, FORM_MODE, Reaction.SILENT, about=about)
            assert await clients.did(client, FORM_MODE) == Reaction.ANSWERED
        await clients.note(client, FORM_MODE, Reaction.ANSWERED)  # the person is back
        await clients.note(client, FORM_MODE, Reaction.SILENT, about="second")
        assert await clients.did(client, FORM_MODE) == Reaction.ANSWERED
        await clients.note(client, FORM_MODE, Reaction.NEVER, about="third")
        assert await clients.did(client, FORM_MODE) == Reaction.NEVER


@asynccontextmanager
async def two_programs(
    server: Any, revision: str, name: str, *, differ: str
) -> AsyncGenerator[tuple[Here, Here]]:
    """Open two programs of one person with the same name, which differ in `differ` only."""
    clock = Clock()
    other: dict[str, Any] = {"declares": BOTH if differ == "capabilities" else FORM}
    if differ == "version":
        other["version"] = "2"
    first, second = Shows(), Shows()
    async with (
        attached(server, clock=clock, min_answer=timedelta(seconds=1)) as env,
        env.caller(revision, declares=FORM, slow=first.answer, name=name) as one,
        env.caller(revision, slow=second.answer, name=name, **other) as two,
    ):
        yield Here(env, clock, one, first), Here(env, clock, two, second)


async def asked_or_done(it: Here, tool: str) -> "asyncio.Task[types.CallToolResult]":
    """Call the tool. Return the call when the client has its question or the call has ended."""
    call = it.caller.call(tool)
    await eventually(lambda: it.shows.asked or call.done())
    return call


DEFAULTS = pytest.mark.parametrize("name", sorted(LIBRARY_NAMES - {""}))
DIFFER = pytest.mark.parametrize("differ", ["version", "capabilities"])


@pytest.mark.every_way
@DEFAULTS
@DIFFER
async def test_approval_is_not_shared_by_programs_with_the_same_library_name(
    server, revision, name, differ
):
    # finding: XC6
    async with two_programs(server, revision, name, differ=differ) as (one, two):
        for each in (one, two):
            call = await asked_or_done(each, "wipe")
            assert not call.done()
            each.clock.tick(seconds=1)
            await each.shows.says("accept", {})
            assert text_of(await soon(call)) == DONE["wipe"]
        assert len({row.id for row in await one.env.elicitations()}) == 2


@DIFFER
async def test_once_runs_separately_for_programs_with_the_same_library_name(
    server, revision, differ
):
    # finding: XC6
    done = list[str]()

    @server.tool()
    async def book() -> str:
        who = await elicit.form("Who?")

        async def work(key: str) -> str:
            done.append(key)
            return f"booked for {who}"

        return await elicit.once("book", work)

    async with two_programs(server, revision, "fastmcp", differ=differ) as (one, two):
        for each, who in ((one, "Ann"), (two, "Bob")):
            call = await asked_or_done(each, "book")
            assert not call.done()
            each.clock.tick(seconds=1)
            await each.shows.says("accept", {"response": who})
            assert text_of(await soon(call)) == f"booked for {who}"
        again = await soon(one.caller.call("book"))
        assert "booked for Ann" in str(again.content)
        assert len(set(done)) == len(done) == 2


@DIFFER
async def test_approval_is_shared_by_sessions_of_a_client_with_its_own_name(
    server, revision, differ
):
    # finding: XC6
    async with two_programs(server, revision, "my-agent", differ=differ) as (one, two):
        call = await one.asks("wipe")
        one.clock.tick(seconds=1)
        await one.shows.says("accept", {})
        assert text_of(await soon(call)) == DONE["wipe"]
        assert await two.caller.text("wipe") == DONE["wipe"]
        assert two.shows.asked == 0


@DEFAULTS
@DIFFER
async def test_client_record_is_not_shared_by_programs_with_the_same_library_name(
    server, revision, name, differ
):
    # finding: XC6
    async with two_programs(server, revision, name, differ=differ) as (one, two):
        call = await one.asks("name")
        await one.shows.says("decline")
        assert code_of(await soon(call)) == NOBODY
        call = await asked_or_done(two, "surname")
        assert not call.done()
        two.clock.tick(seconds=1)
        await two.shows.says("accept", {"response": "Ann"})
        assert text_of(await soon(call)) == "hello Ann"
        known = await one.env.service.clients.all()
        assert len(known) == len({each.name + each.release for each in known}) == 2
        assert is_link(await one.caller.result("surname"))


@pytest.mark.parametrize("verified", ["agent-1", None])
def test_capabilities_tell_clients_apart_only_without_verified_id(verified: str | None):
    # finding: XC6
    one, two = (CallingClient(name="mcp", id=verified, apart=apart) for apart in ("1", "2"))
    assert (one.key == two.key) is (verified is not None)
