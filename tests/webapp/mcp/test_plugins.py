"""Plugins on a served server: which questions and answers they allow, and what they receive."""

from collections.abc import Awaitable, Callable
from dataclasses import replace
from datetime import timedelta
from typing import Annotated, Any

import pytest
from pydantic import BaseModel, Field

from flows import elicit
from flows.elicitation.states import Status
from flows.elicitation.traits import ApprovedByKey
from flows.errors import InvalidAnswer
from flows.hooks import (
    STAGES,
    GivenAnswer,
    HookFacts,
    HookRefused,
    ProposedQuestion,
    SettledQuestion,
    StartedQuestion,
    after,
    around,
    before,
)
from tests.support.mcp_server import (
    URL,
    Caller,
    ServerEnv,
    caller_of,
    eventually,
    link_in,
    soon,
    text_of,
)
from webapp.limits import CallLimits
from webapp.mcp.results import RESULT_TOOL
from webapp.settings.identity import IdentitySettings

ANSWER_TO_ALL = IdentitySettings(lets_model_answer=True)


class Notes:
    def __init__(self) -> None:
        self.questions: list[StartedQuestion] = []
        self.ends: list[SettledQuestion] = []

    @after("start")
    async def note(self, question: StartedQuestion) -> None:
        self.questions.append(question)

    @after("settle")
    def note_end(self, question: SettledQuestion) -> None:
        self.ends.append(question)


class Broken:
    @after("start")
    def page_somebody(self, question: StartedQuestion) -> None:
        raise RuntimeError("the pager is down")


class Closed:
    """A plugin that allows no question."""

    def __init__(self) -> None:
        self.is_closed = True

    @before("start")
    def close(self, question: ProposedQuestion) -> None:
        if self.is_closed:
            raise HookRefused("We are closed: tell the person to come back on Monday.")


class NoCats:
    """A plugin that rejects an answer whose first name is Tom."""

    @before("settle")
    async def look(self, answer: GivenAnswer) -> None:
        if answer.content.get("first", "Tom") == "Tom":
            raise HookRefused("Cats are not served here.", field="first")


class Person(BaseModel):
    first: Annotated[str, Field(title="First name")]
    note: str = ""


@pytest.fixture
def server(server: Any) -> Any:
    @server.tool()
    async def delete(count: int) -> str:
        question = elicit.confirm(f"Delete {count} to-dos?", arguments={"count": count})
        return "deleted" if await question else "kept"

    @server.tool()
    async def greet() -> str:
        outcome = await elicit.form("Who are you?", Person, elicitation_id="who").outcome()
        who = outcome.content
        return str(outcome.error) if who is None else f"Hello, {who.first}. {who.note}".strip()

    @server.tool()
    async def both() -> str:
        first = await elicit.form("The first?")
        return f"{first} {await elicit.form('The second?')}"

    @server.tool()
    @elicit.gate
    async def drop() -> str:
        raise AssertionError("nobody has approved it")

    @server.tool()
    async def keep() -> str:
        await elicit.secret("Your key, please.")
        return "kept"

    @server.tool()
    async def visit() -> str:
        await elicit.url("Read it, please.", "https://shop.example/terms")
        return "read"

    return server


async def test_plugins_receive_asked_questions_and_their_ends(server, revision):
    # parity: T8
    notes = Notes()
    async with caller_of(
        server, revision, plugins=[notes, Broken()], declares="all", fills=["cancel", {}]
    ) as (env, caller):
        assert await caller.text("delete", count=5) == "kept"
        assert await caller.text("delete", count=5) == "deleted"
        (reported,) = notes.questions  # the second call joined the first call's question
        (row,) = await env.elicitations()
        assert (reported.id, reported.kind, reported.tool) == (row.id, "confirm", "delete")
        assert (reported.message, reported.arguments) == ("Delete 5 to-dos?", {"count": 5})
        await eventually(lambda: notes.ends)
        (end,) = notes.ends
        assert (end.id, end.status, end.by) == (row.id, "accepted", "InClient")


async def test_question_refused_by_a_plugin_is_not_asked(server, revision):
    closed = Closed()
    async with caller_of(server, revision, plugins=[closed], fills=[{"first": "Ada"}]) as (
        env,
        caller,
    ):
        result = await caller.result("greet")
        assert result.is_error
        assert "come back on Monday" in text_of(result)
        assert "[ELICITATION_REFUSED]" in text_of(result)
        store = env.service.elicitations.store
        for kind in ("elicitation", "run", "alias", "standing"):
            assert not await store.list(kind), kind
        closed.is_closed = False
        assert await caller.text("greet") == "Hello, Ada."


async def test_gate_refused_by_a_plugin_stays_closed(server, revision):
    async with caller_of(server, revision, plugins=[Closed()]) as (env, caller):
        result = await caller.result("drop")
        assert result.is_error
        assert "come back on Monday" in text_of(result)
        assert not await env.elicitations()


def counting() -> tuple[object, list[str]]:
    """Return a plugin with a hook at each stage, and the list of stages that ran."""
    seen = list[str]()

    def hook_at(stage: str) -> Any:
        async def hook(self: object, value: HookFacts, *call_on: Any) -> None:
            seen.append(stage)
            for one in call_on:
                await one()

        around_it: Any = around
        before_it: Any = before
        return before_it(stage)(hook) if STAGES[stage].writes else around_it(stage)(hook)

    return type("Counting", (), {stage: hook_at(stage) for stage in STAGES})(), seen


async def test_plugin_stages_run_once_per_question_if_the_tool_runs_again(server, revision):
    # parity: F9
    plugin, seen = counting()
    fills = [{"response": "one"}, {"response": "two"}]
    async with caller_of(server, revision, plugins=[plugin], fills=fills) as (_, caller):
        assert await caller.text("both") == "one two"
        assert seen == [*STAGES] * 2


async def test_joining_calls_and_repeated_results_run_no_plugin_stages(server, revision):
    plugin, seen = counting()
    fills = ["cancel", "cancel", {"first": "Ada"}]
    async with caller_of(server, revision, plugins=[plugin], fills=fills) as (_, caller):
        for _ in range(2):
            await caller.result("greet")
        assert seen == [*STAGES][:3]
        assert await caller.text("greet") == "Hello, Ada."
        assert seen == [*STAGES]


async def test_plugin_can_change_the_message_and_timeout(server, revision):
    class Politely:
        @before("describe")
        def say(self, question: ProposedQuestion) -> ProposedQuestion:
            minute = timedelta(minutes=1)
            return replace(question, message=f"{question.message} Thank you.", timeout=minute)

    fills = ["cancel", {"first": "Ada"}]
    async with caller_of(server, revision, plugins=[Politely()], fills=fills) as (env, caller):
        await caller.result("greet")
        assert await caller.text("greet") == "Hello, Ada."  # it answers the dismissed question
        assert [form.message for form in caller.forms] == ["Who are you? Thank you."] * 2
        (row,) = await env.elicitations()
        assert row.expires_at - row.created_at == timedelta(minutes=1)


async def typed(env: ServerEnv, link: str, **fields: str) -> Any:
    person = await env.person()
    page = await person.visit(link)
    given = {"csrf": page.csrf or "", **{f"answer.{name}": text for name, text in fields.items()}}
    return await person.browser.post(link, data=given)


async def test_answer_refused_by_a_plugin_is_returned_for_correction(server, revision):
    notes = Notes()
    async with caller_of(server, revision, plugins=[NoCats(), notes], declares=URL) as (
        env,
        caller,
    ):
        call = caller.call("greet")
        link = await caller.link()
        refused = await typed(env, link, first="Tom", note="Purr")
        assert refused.status_code == 422
        for words in ("Cats are not served here.", "First name", "Tom", "Purr"):
            assert words in refused.text
        assert not (await env.status(link)).is_final
        assert notes.ends == []
        assert (await typed(env, link, first="Ada")).status_code == 303
        assert text_of(await soon(call)) == "Hello, Ada."
        await eventually(lambda: notes.ends)
        assert notes.ends[0].content == {"first": "Ada"}


async def test_acceptance_refused_by_a_plugin_leaves_the_question_open(server, revision):
    async with caller_of(server, revision, plugins=[NoCats()], declares=URL) as (env, caller):
        call = caller.call("delete", count=5)
        link = await caller.link()
        refused = await typed(env, link)
        assert refused.status_code == 422
        assert "Cats are not served here." in refused.text
        assert "Delete 5 to-dos?" in refused.text
        assert not (await env.status(link)).is_final
        await (await env.person()).decline(link)
        assert text_of(await soon(call)) == "kept"


async def test_answer_in_the_client_refused_by_a_plugin_fails_the_question(server, revision):
    fills = [{"first": "Tom"}, {}]
    async with caller_of(server, revision, plugins=[NoCats()], fills=fills) as (env, caller):
        text = await caller.text("greet")
        assert "Cats are not served here." in text
        assert await caller.text("delete", count=5) == "kept"
        assert [row.status for row in await env.elicitations()] == [Status.FAILED] * 2


async def on_the_page(env: ServerEnv, caller: Caller) -> None:
    (asked,) = await env.elicitations()
    await typed(env, env.link_of(asked), first="Tom")


async def by_name(env: ServerEnv, caller: Caller) -> None:
    with pytest.raises(InvalidAnswer, match="Cats"):
        await env.service.completing.complete("who", {"first": "Tom"})


async def by_key(env: ServerEnv, caller: Caller) -> None:
    (asked,) = await env.elicitations()
    with pytest.raises(InvalidAnswer, match="Cats"):
        await env.service.completing.complete_with(asked, {"first": "Tom"}, ApprovedByKey())


async def by_model(env: ServerEnv, caller: Caller) -> None:
    (asked,) = await env.elicitations()
    result = await caller.result(RESULT_TOOL, elicitId=asked.id, content={"first": "Tom"})
    assert "Cats" in text_of(result)


Door = Callable[[ServerEnv, Caller], Awaitable[None]]


@pytest.mark.parametrize("door", [on_the_page, by_name, by_key, by_model])
async def test_answer_refused_by_plugin_leaves_question_open_at_every_entry_point(
    server, revision, door: Door
):
    async with caller_of(
        server,
        revision,
        plugins=[NoCats()],
        declares=None,
        who=ANSWER_TO_ALL,
        limits=CallLimits(link=timedelta()),
    ) as (env, caller):
        assert link_in(await caller.result("greet"))
        await door(env, caller)
        (row,) = await env.elicitations()
        assert not row.status.is_final


async def test_content_removed_by_a_plugin_reaches_neither_store_nor_tool(server, revision):
    class NoNotes:
        @before("shorten", when=lambda answer: "note" in answer.content)
        def leave_out(self, answer: GivenAnswer) -> GivenAnswer:
            return replace(answer, content={"first": answer.content["first"]})

    fills = [{"first": "Ada", "note": "The key is under the mat."}]
    async with caller_of(server, revision, plugins=[NoNotes()], fills=fills) as (env, caller):
        assert await caller.text("greet") == "Hello, Ada."
        assert "mat" not in str([row.content for row in await env.elicitations()])


async def test_secrets_addresses_and_links_are_not_passed_to_hooks(server, revision):
    seen = list[HookFacts]()

    def hook_at(stage: str, mark: Any) -> Any:
        def note(self: object, value: HookFacts) -> None:
            seen.append(value)

        return mark(stage)(note)

    hooks = {
        f"{mark.__name__}_{at}": hook_at(at, mark) for mark in (before, after) for at in STAGES
    }
    plugin = type("Seeing", (), hooks)()
    async with caller_of(server, revision, plugins=[plugin], declares=URL) as (env, caller):
        call = caller.call("keep")
        link = await caller.link()
        assert (await typed(env, link, value="sk-0123456789")).status_code == 303
        assert text_of(await soon(call)) == "kept"
        assert await env.text_after_visit(caller, "visit", {"code": "c-0123456789"}) == "read"
        await eventually(
            lambda: len([one for one in seen if isinstance(one, SettledQuestion)]) == 2
        )
        assert {type(one).__name__ for one in seen} == {
            *("ProposedQuestion", "StartedQuestion", "SettledQuestion")
        }
        reported = "".join(
            str({name: getattr(one, name) for name in type(one).__dataclass_fields__})
            for one in seen
        )
        for hidden in ("0123456789", "shop.example", link.rsplit("/", 1)[1]):
            assert hidden not in reported
