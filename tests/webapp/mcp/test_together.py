"""Questions that are asked together are sent in one round, whatever modes the client supports."""

import asyncio
from collections.abc import Mapping
from datetime import timedelta
from typing import Any, cast

import mcp_types as types
import pytest
from mcp import MCPError

from flows import Money, elicit
from flows.crypto.tokens import MAXIMUM_TEXT_BYTES
from flows.elicitation.run import Run
from flows.elicitation.states import Status
from flows.providers import github
from tests.support.mcp_sandbox import caller_at_sandbox
from tests.support.mcp_server import (
    BOTH,
    FORM,
    LEGACY,
    MODERN,
    URL,
    Caller,
    ServerEnv,
    answered_in,
    asked_in,
    attached,
    caller_of,
    eventually,
    new_server,
    soon,
    text_of,
)
from webapp.limits import CallLimits

AT_ONCE = CallLimits(link=timedelta())
SHORT = CallLimits(retry=timedelta(), request_at_least=timedelta())
NAME = {"response": "Ada"}


@pytest.fixture
def server(server: Any) -> Any:
    @server.tool()
    async def order() -> str:
        name, is_sure, paid = await elicit.together(
            elicit.form("Who are you?"),
            elicit.confirm("Sure?"),
            elicit.url("Pay here", "https://shop.example/pay"),
        )
        return f"{name} {is_sure} {dict(paid)}"

    @server.tool()
    async def visit_both() -> str:
        first, second = await elicit.together(
            elicit.url("The first", "https://shop.example/1"),
            elicit.url("The second", "https://shop.example/2"),
        )
        return f"{dict(first)} {dict(second)}"

    @server.tool()
    async def outcomes() -> str:
        reported = await elicit.together(
            elicit.form("Who are you?"),
            elicit.url("Pay here", "https://shop.example/pay"),
        ).outcomes()
        return " ".join(outcome.status for outcome in reported)

    @server.tool()
    async def same_twice() -> str:
        return " ".join(await elicit.together(elicit.form("Name?"), elicit.form("Name?")))

    return server


def links_in(result: types.CallToolResult) -> dict[str, str]:
    """Return the URL of each link in a result, by its message."""
    assert result.meta is not None, text_of(result)
    first = result.meta["elicitationPending"]
    pending = result.meta.get("elicitationsPending", [first])
    assert pending[0] == first
    for one in pending:
        assert one["url"] in text_of(result)
        assert one["message"] in text_of(result)
    return {one["message"]: one["url"] for one in pending}


def asked_by(result: object) -> dict[str, Any]:
    """Return the parameters of each question for the client, by its message."""
    requests = asked_in(result).input_requests or {}
    params = [cast("Any", request).params for request in requests.values()]
    return {one.message: one for one in params}


async def go_on(
    caller: Caller,
    tool: str,
    after: types.InputRequiredResult,
    answers: Mapping[str, object],
) -> types.CallToolResult | types.InputRequiredResult:
    """Send the next request. `answers` maps messages to contents or actions; None sends none."""
    responses: dict[str, Any] = {}
    for key, request in (after.input_requests or {}).items():
        answer = answers.get(cast("Any", request).params.message)
        if isinstance(answer, str):
            responses[key] = types.ElicitResult(action=cast("Any", answer))
        elif answer is not None:
            responses[key] = types.ElicitResult(action="accept", content=cast("Any", answer))
    return cast(
        "types.CallToolResult | types.InputRequiredResult",
        await soon(
            caller.client.session.call_tool(
                tool,
                {},
                input_responses=responses or None,
                request_state=after.request_state,
                allow_input_required=True,
            )
        ),
    )


async def statuses(env: ServerEnv) -> dict[str, Status]:
    return {row.request.message: row.status for row in await env.elicitations()}


@pytest.mark.every_way
async def test_together_returns_the_answers_in_order(library, revision):
    built = new_server(library)

    @built.tool()
    async def order() -> str:
        paid, name = await elicit.together(
            elicit.url("Pay here", "https://shop.example/pay"), elicit.form("Who are you?")
        )
        return f"{dict(paid)} {name}"

    async with caller_of(built, revision, declares=BOTH, fills=[NAME]) as (env, caller):
        assert await env.text_after_visit(caller, "order", {"sum": 9}) == "{'sum': 9} Ada"
        assert len(await env.elicitations()) == 2


async def test_questions_asked_together_are_sent_in_one_round(server):
    async with caller_of(server, MODERN, declares=BOTH) as (env, caller):
        first = await caller.asked("order")
        asked = asked_by(first)
        assert list(asked) == ["Who are you?", "Sure?", "Pay here"]
        assert [one.mode for one in asked.values()] == ["form", "form", "url"]
        await env.complete(asked["Pay here"].url, {"sum": 9})
        answers = {"Who are you?": NAME, "Sure?": {}, "Pay here": "accept"}
        done = answered_in(await go_on(caller, "order", first, answers))
        assert text_of(done) == "Ada True {'sum': 9}"


async def test_answered_question_is_not_shown_again(server):
    async with caller_of(server, MODERN, limits=SHORT, declares=BOTH) as (env, caller):
        first = await caller.asked("order")
        link = asked_by(first)["Pay here"].url
        # An unanswered form is shown again at once, while the link waits for the person.
        second = asked_in(
            await go_on(caller, "order", first, {"Who are you?": NAME, "Pay here": "accept"})
        )
        assert list(asked_by(second)) == ["Sure?"]
        third = asked_in(await go_on(caller, "order", second, {"Sure?": {}}))
        assert not third.input_requests
        assert await statuses(env) == {
            "Who are you?": Status.ACCEPTED,
            "Sure?": Status.ACCEPTED,
            "Pay here": Status.PENDING,
        }
        await env.complete(link)
        done = answered_in(await go_on(caller, "order", third, {}))
        assert text_of(done) == "Ada True {}"
        assert len(await env.elicitations()) == 3


async def test_form_shown_again_does_not_wait_for_the_other_questions(server):
    """A link alone would keep the request open for 40 seconds with the default limits."""
    async with caller_of(server, MODERN, declares=BOTH) as (env, caller):
        first = await caller.asked("order")
        answers = {"Who are you?": NAME, "Pay here": "accept"}
        second = await go_on(caller, "order", first, answers)
        assert list(asked_by(second)) == ["Sure?"]
        assert (await statuses(env))["Pay here"] is Status.PENDING


async def test_together_questions_in_a_session_are_shown_at_the_same_time(server):
    async with caller_of(server, LEGACY, declares=URL) as (env, caller):
        call = caller.call("visit_both")
        links = [await caller.link(), await caller.link()]
        assert not call.done()
        for number, link in reversed(list(enumerate(links, 1))):
            await env.complete(link, {"n": number})
        assert text_of(await soon(call)) == "{'n': 1} {'n': 2}"
        assert sorted(caller.completed) == sorted(map(env.id_of, links))


async def test_client_with_links_only_gets_pages_for_the_forms(server, revision):
    async with caller_of(server, revision, declares=URL) as (env, caller):
        call = caller.call("order")
        links = {await kind_of(env, link): link for link in [await caller.link() for _ in "123"]}
        person = await env.person()
        page = await person.visit(links["form"])
        fields = {"csrf": page.csrf, "answer.response": "Ada"}
        await person.browser.post(links["form"], data=fields)
        await person.press(links["confirm"])
        await env.complete(links["url"])
        assert text_of(await soon(call)) == "Ada True {}"


async def kind_of(env: ServerEnv, link: str) -> str:
    found = await env.service.elicitations.get(env.id_of(link))
    assert found is not None
    return found.kind


async def test_result_without_elicitation_has_all_links(server, revision):
    # parity: F12
    async with caller_of(server, revision, limits=AT_ONCE, declares=None) as (env, caller):
        shown = await caller.result("visit_both")
        assert text_of(shown).startswith("This tool requires user input to continue")
        links = links_in(shown)
        assert list(links) == ["The first", "The second"]
        await env.complete(links["The second"], {"n": 2})
        still = await caller.result("visit_both")
        assert text_of(still).startswith("Still waiting")
        assert list(links_in(still)) == ["The first"]
        await env.complete(links["The first"], {"n": 1})
        assert await caller.text("visit_both") == "{'n': 1} {'n': 2}"
        assert len(await env.elicitations()) == 2


async def test_together_questions_are_declined_by_their_own_ids(server, revision):
    # parity: F12
    async with caller_of(server, revision, declares=None) as (env, caller):
        shown = await caller.result("visit_both")
        second = shown.meta["elicitationsPending"][1]
        result = await caller.result(
            "elicitation_result", elicitId=second["elicitId"], action="decline"
        )
        assert "The person declined: 'The second'" in text_of(result)
        assert await statuses(env) == {
            "The first": Status.PENDING,
            "The second": Status.DECLINED,
        }


async def test_waiting_for_a_together_question_waits_for_all(server, revision):
    async with caller_of(server, revision, declares=None) as (env, caller):
        shown = await caller.result("visit_both")
        links = links_in(shown)
        first = shown.meta["elicitationsPending"][0]["elicitId"]
        waiting = caller.call("elicitation_result", elicitId=first)
        await env.pending(2)
        await env.complete(links["The first"])
        await env.complete(links["The second"])
        assert text_of(await soon(waiting)) == "{} {}"


async def test_client_with_forms_only_gets_the_forms_first_and_then_the_links(server, revision):
    async with caller_of(server, revision, declares=FORM, fills=[NAME, {}]) as (env, caller):
        shown = await caller.result("order")
        assert [form.message for form in caller.forms] == ["Who are you?", "Sure?"]
        links = links_in(shown)
        assert list(links) == ["Pay here"]
        await env.complete(links["Pay here"])
        assert await caller.text("order") == "Ada True {}"
        assert len(caller.forms) == 2


async def test_client_without_a_stream_gets_all_links_in_the_error(library):
    server = new_server(library)

    @server.tool()
    async def visit_both() -> str:
        await elicit.together(
            elicit.url("The first", "https://shop.example/1"),
            elicit.url("The second", "https://shop.example/2"),
        )
        return "done"

    async with attached(server, json_response=True) as env, env.caller(LEGACY) as caller:
        with pytest.raises(MCPError) as required:
            await caller.result("visit_both")
        assert required.value.error.code == -32042
        asked = required.value.error.data["elicitations"]
        assert [one["message"] for one in asked] == ["The first", "The second"]
        for one in asked:
            await env.complete(one["url"])
        assert await caller.text("visit_both") == "done"


@pytest.mark.parametrize(
    ("no", "code"), [("decline", "ELICITATION_DECLINED"), ("cancel", "ELICITATION_CANCELLED")]
)
async def test_first_refusal_is_raised_and_ends_the_wait_for_the_rest(server, revision, no, code):
    async with caller_of(server, revision, declares=BOTH, fills=[no, {}]) as (env, caller):
        result = await caller.result("order")
        assert result.is_error
        assert "Who are you?" in text_of(result)
        assert result.meta["code"] == code
        assert (await statuses(env))["Pay here"] is Status.PENDING


async def test_declined_confirmation_in_together_is_false(server, revision):
    fills = [NAME, "decline"]
    async with caller_of(server, revision, declares=BOTH, fills=fills) as (env, caller):
        assert await env.text_after_visit(caller, "order") == "Ada False {}"


@pytest.mark.parametrize("no", ["decline", "cancel"])
async def test_together_outcomes_waits_for_every_outcome(server, revision, no):
    """A dismissed form is not shown again in later requests of the same call."""
    about: dict[str, Any] = {"limits": SHORT, "fills": [no]}
    async with caller_of(server, revision, declares=BOTH, **about) as (env, caller):
        call = caller.call("outcomes")
        link = await caller.link()
        await eventually(lambda: caller.forms)
        await env.complete(link)
        expected = "declined" if no == "decline" else "cancelled"
        assert text_of(await soon(call)) == f"{expected} accepted"
        assert len(caller.forms) == 1


async def test_equal_questions_in_together_get_separate_answers(server, revision):
    fills = [{"response": "one"}, {"response": "two"}]
    async with caller_of(server, revision, declares=BOTH, fills=fills) as (env, caller):
        text = await caller.text("same_twice")
        assert sorted(text.split()) == ["one", "two"]
        if revision == MODERN:  # clients can answer simultaneous questions in any order
            assert text == "one two"
        assert len(await env.elicitations()) == 2


async def test_together_questions_are_recorded_in_order(server, revision):
    async with caller_of(server, revision, declares=None) as (env, caller):
        await caller.result("order")
        (run,) = await env.service.elicitations.all(Run)
        assert [asking.says for asking in run.asked] == ["Who are you?", "Sure?", "Pay here"]
        assert all(asking.is_ordered for asking in run.asked)
        assert [asking.place.nth for asking in run.asked] == [0, 0, 0]


async def test_changed_together_questions_are_an_error(server):
    turns = iter([("The first", "The second"), ("A third", "The second")])

    @server.tool()
    async def fickle() -> str:
        pages = [elicit.url(words, "https://shop.example/") for words in next(turns)]
        await elicit.together(*pages)
        return "done"

    async with caller_of(server, MODERN, declares=URL) as (_, caller):
        first = await caller.asked("fickle")
        result = await caller.answered("fickle", after=first)
        assert result.is_error
        assert "[ELICITATION_QUESTION_CHANGED]" in text_of(result)


async def test_result_after_the_last_round_has_all_links(server):
    limits = CallLimits(rounds=1, retry=timedelta(), request_at_least=timedelta())
    async with caller_of(server, MODERN, limits=limits, declares=URL) as (env, caller):
        first = await caller.asked("visit_both")
        last = await caller.answered("visit_both", after=first)
        assert text_of(last).startswith("Still waiting")
        links = links_in(last)
        assert list(links) == ["The first", "The second"]
        for link in links.values():
            await env.complete(link)
        assert await caller.last_text("visit_both") == "{} {}"


async def test_tool_cannot_swallow_the_suspension_of_several_questions(server):
    @server.tool()
    async def stubborn() -> str:
        with_errors: list[str] = []
        try:
            await elicit.together(
                elicit.url("The first", "https://shop.example/1"),
                elicit.url("The second", "https://shop.example/2"),
            )
        except Exception as error:  # noqa: BLE001 - what authors write
            with_errors.append(type(error).__name__)
        return f"done {with_errors}"

    async with caller_of(server, MODERN, declares=URL) as (env, caller):
        first = await caller.asked("stubborn")
        for asked in asked_by(first).values():
            await env.complete(asked.url)
        assert await caller.last_text("stubborn", after=first) == "done []"


async def test_together_groups_in_a_gather_use_more_rounds(server, revision):
    @server.tool()
    async def gathered() -> str:
        pairs = await asyncio.gather(
            *(
                elicit.together(
                    elicit.url(f"{name} one", "https://shop.example/"),
                    elicit.url(f"{name} two", "https://shop.example/"),
                ).outcomes()
                for name in ("a", "b")
            )
        )
        return " ".join(str(bool(outcome)) for pair in pairs for outcome in pair)

    async with caller_of(server, revision, declares=URL) as (env, caller):
        call = caller.call("gathered")
        for _ in range(4):
            await env.complete(await caller.link())
        assert text_of(await soon(call)) == "True True True True"
        assert len(await env.elicitations()) == 4


async def test_abandoned_together_call_leaves_no_waiters(server, revision):
    async with caller_of(server, revision, declares=BOTH) as (env, caller):
        call = caller.call("visit_both")
        links = [await caller.link(), await caller.link()]
        await env.pending(2)
        call.cancel()
        await asyncio.gather(call, return_exceptions=True)
        await eventually(lambda: not len(env.service.elicitations.waiters))
        for link in links:
            await env.complete(link)
        assert await caller.text("visit_both") == "{} {}"


async def test_account_and_payment_can_be_asked_together(server, revision):
    @server.tool()
    async def both() -> str:
        account, receipt = await elicit.together(
            elicit.oauth(github), elicit.payment(Money("9.00", "EUR"), "A pot of tea", again=True)
        )
        return f"{account.label} {receipt.price}"

    async with caller_at_sandbox(server, revision) as (at, caller):
        call = caller.call("both")
        links = [await caller.link(), await caller.link()]
        for link in links:
            await at.guest.finish(await kind_of(at.env, link), link)
        assert text_of(await soon(call)) == "octocat 9.00 EUR"
        assert [payment.status for payment in await at.payments()] == ["spent"]
        # The account is stored now, so the tool asks only for the payment.
        again = caller.call("both")
        await at.guest.pay(await caller.link())
        assert text_of(await soon(again)) == "octocat 9.00 EUR"
        assert not caller.has_links_left


async def test_request_state_of_a_hundred_questions_stays_readable(server):
    @server.tool()
    async def many() -> str:
        for part in range(2):
            questions: list[Any] = [elicit.confirm(f"{part} {each}?") for each in range(50)]
            await elicit.together(*questions).outcomes()
        return "all"

    async with caller_of(server, MODERN) as (_, caller):
        first = await caller.asked("many")
        second = await caller.asked("many", after=first)
        assert second.request_state is not None
        assert len(second.request_state) < MAXIMUM_TEXT_BYTES
        assert await caller.last_text("many", after=second) == "all"
