"""The one-time code from the page to the chat, on servers where people cannot sign in."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import Any

import pytest

from flows import elicit
from flows.elicitation.states import Json, Status
from flows.elicitation.user_code import FRESH_WORDS, WRONG_WORDS
from tests.support.by_code import (
    ANONYMOUS,
    FROM_AFAR,
    WORDS,
    code_for,
    code_on,
    confirmed,
    nameless,
    shop,
)
from tests.support.guarded_server import TOKEN, new_guarded_server
from tests.support.mcp_server import (
    URL,
    Caller,
    ServerEnv,
    caller_of,
    eventually,
    link_in,
    new_server,
    soon,
    text_of,
)
from webapp.identity.identity import QUESTIONS_AT_ONCE
from webapp.limits import CallLimits
from webapp.settings.identity import IdentitySettings

BY_CODE = IdentitySettings(binds_by_code=True)


@asynccontextmanager
async def by_token(
    revision: str, *, library: str = "mcp", **options: Any
) -> AsyncIterator[tuple[ServerEnv, Caller]]:
    """Open Ann's client on a server that knows her by its own tokens and has no sign-in."""
    server = shop(new_guarded_server(library, subject="ann"))
    about = {"headers": TOKEN, **options}
    async with caller_of(server, revision, who=BY_CODE, **about) as (env, caller):
        yield env, caller


def wrong(code: str) -> str:
    return code[:-1] + ("B" if code[-1] != "B" else "C")


@pytest.mark.every_way
async def test_user_code_typed_in_the_chat_opens_the_page(library, revision):
    async with nameless(revision, library=library) as (env, caller, typed):
        call = caller.call("visit")
        link = await caller.link()
        person = await env.person()
        typed.put_nowait(await code_for(person, link))
        await confirmed(env, link)
        assert WORDS in (await person.visit(link)).text
        assert await person.go_on(link) == "https://shop.example/terms"
        await env.complete(link)
        assert text_of(await soon(call)) == "done"


async def test_wrong_user_code_opens_nothing_and_is_asked_for_again(revision):
    async with nameless(revision) as (env, caller, typed):
        call = caller.call("visit")
        link = await caller.link()
        person = await env.person()
        user_code = await code_for(person, link)
        for _ in range(5):
            typed.put_nowait(wrong(user_code))
        await eventually(lambda: len(caller.code_prompts) == 6)
        assert caller.code_prompts[1:5] == [WRONG_WORDS] * 4
        assert caller.code_prompts[5] == FRESH_WORDS
        assert WORDS not in (await person.visit(link)).text
        fresh = code_on(await person.visit(link))
        assert fresh != user_code
        typed.put_nowait(fresh)
        await confirmed(env, link)
        await env.complete(link)
        assert text_of(await soon(call)) == "done"


async def test_user_code_never_shown_opens_nothing(revision):
    async with nameless(revision) as (env, caller, typed):
        caller.begin("visit")
        link = await caller.link()
        typed.put_nowait("BCDF-GHJK")
        await eventually(lambda: len(caller.code_prompts) == 2)
        assert "Nobody has opened the link yet" in caller.code_prompts[1]
        assert await env.status(link) is Status.PENDING


async def test_call_of_an_anonymous_caller_counts_once_against_its_limit(revision):
    server = new_server("mcp")

    @server.tool()
    async def greet() -> str:
        return await elicit.once("greeting", lambda: "hello")  # refused above the limit

    who = IdentitySettings(binds_by_code=True, asks_anonymous=True)
    about: dict[str, Any] = {"who": who, "headers": FROM_AFAR, "typed": asyncio.Queue[str]()}
    async with caller_of(server, revision, **about) as (_, caller):
        for _ in range(QUESTIONS_AT_ONCE * 2 // 3):
            assert text_of(await soon(caller.call("greet"))) == "hello"


@pytest.mark.parametrize(
    ("status", "says"),
    [(Status.CANCELLED, "This request was cancelled"), (Status.DECLINED, "You declined")],
)
async def test_link_of_an_ended_question_shows_its_ending_and_no_code(revision, status, says):
    async with nameless(revision) as (env, caller, _typed):
        caller.begin("visit")
        link = await caller.link()
        await env.service.elicitations.settle(env.id_of(link), status)
        page = await (await env.person()).visit(link)
        assert page.heading == says


async def test_user_code_in_another_browser_does_not_invalidate_the_askers_code(revision):
    # finding: S21
    async with nameless(revision) as (env, caller, typed):
        caller.begin("visit")
        link = await caller.link()
        person, other = await env.person(), await env.person()
        user_code = await code_for(person, link)
        assert await code_for(other, link) != user_code
        assert code_on(await person.visit(link)) == user_code
        typed.put_nowait(user_code)
        await confirmed(env, link)
        assert WORDS in (await person.visit(link)).text
        refused = await other.visit(link)
        assert (refused.status, refused.heading) == (403, "This link was opened in another browser")
        assert await person.go_on(link) == "https://shop.example/terms"
        row = await env.service.elicitations.get(env.id_of(link))
        assert row is not None
        assert row.binding is not None
        assert row.binding.wrong == 0


async def test_anonymous_caller_is_not_asked_for_a_stored_secret(revision):
    async with nameless(revision, typed=None) as (env, caller, _):
        result = await caller.result("key")
        assert "[ELICITATION_NOT_ALLOWED]" in text_of(result)
        assert not await env.elicitations()


async def test_two_anonymous_callers_share_nothing(revision):
    async with (
        nameless(revision) as (env, one, typed),
        env.caller(revision, headers=FROM_AFAR, typed=typed) as other,
    ):
        one.begin("visit")
        other.begin("visit")
        ids = {env.id_of(await caller.link()) for caller in (one, other)}
        assert len({id[:20] for id in ids}) == 2


async def test_call_of_anonymous_client_without_forms_is_refused(revision):
    async with nameless(revision, typed=None, declares=URL) as (env, caller, _):
        result = await caller.result("visit")
        assert "url and form" in text_of(result)
        assert not await env.elicitations()


@pytest.mark.every_way
async def test_person_known_by_token_confirms_by_user_code_without_a_sign_in(library, revision):
    typed = asyncio.Queue[str]()
    async with by_token(revision, library=library, typed=typed) as (env, caller):
        call = caller.call("visit")
        link = await caller.link()
        person = await env.person()
        assert WORDS not in (await person.visit(link)).text
        typed.put_nowait(await code_for(person, link))
        await confirmed(env, link)
        assert await person.go_on(link) == "https://shop.example/terms"
        await env.complete(link)
        assert text_of(await soon(call)) == "done"


async def test_user_code_without_forms_is_sent_through_the_result_tool(revision):
    async with by_token(revision, declares=None) as (env, caller):
        listed = {tool.name for tool in (await caller.client.list_tools()).tools}
        assert "elicitation_result" in listed
        shown = await caller.result("visit")
        assert "eight letters" in text_of(shown)
        link = link_in(shown)
        person = await env.person()
        user_code = await code_for(person, link)
        pass_on = {"elicitId": env.id_of(link)}
        result = await caller.result("elicitation_result", code=wrong(user_code), **pass_on)
        assert result.is_error
        assert WORDS not in (await person.visit(link)).text
        result = await caller.result("elicitation_result", code=user_code, **pass_on)
        assert not result.is_error
        assert await person.go_on(link) == "https://shop.example/terms"
        await env.complete(link)
        assert await caller.text("visit") == "done"


async def test_user_code_is_sent_through_the_result_tool_if_the_client_shows_nothing(
    revision,
):
    refuses: dict[str, Any] = {"answers": ["decline"], "min_answer": timedelta(minutes=1)}
    async with by_token(revision, **refuses) as (env, caller):
        listed = {tool.name for tool in (await caller.client.list_tools()).tools}
        assert listed == {"visit", "key", "elicitation_result"}
        link = link_in(await caller.result("visit"))
        person = await env.person()
        user_code = await code_for(person, link)
        result = await caller.result("elicitation_result", code=user_code, elicitId=env.id_of(link))
        assert not result.is_error
        assert await person.go_on(link) == "https://shop.example/terms"
        await env.complete(link)
        assert await caller.text("visit") == "done"


async def test_no_link_is_returned_if_its_user_code_cannot_be_sent(revision):
    refuses: dict[str, Any] = {
        "typed": None,
        "answers": ["decline"],
        "min_answer": timedelta(minutes=1),
    }
    async with nameless(revision, **refuses) as (_, caller, __):
        result = await caller.result("visit")
        assert "[ELICITATION_NOBODY_ASKED]" in text_of(result)
        assert "ELICIT_CLIENTS" in text_of(result)
        assert "/e/" not in text_of(result)
        assert "elicitation_result" not in text_of(result)


@pytest.mark.parametrize("tries", [{"elicitId": 3, "code": "x"}, {"elicitId": "no", "code": "x"}])
async def test_result_tool_refuses_a_user_code_with_an_invalid_elicit_id(revision, tries):
    async with by_token(revision, declares=None) as (_, caller):
        assert (await caller.result("elicitation_result", **tries)).is_error


async def test_result_of_once_is_not_stored_for_an_anonymous_caller(library, revision):
    server = shop(new_server(library))
    keys: list[str] = []

    @server.tool()
    async def order() -> str:
        async def work(key: str) -> Json:
            keys.append(key)
            return {"seats": (1, 2)}  # JSON has no tuples, so the value comes back as a list

        return str(await elicit.once("order", work))

    async with caller_of(server, revision, who=ANONYMOUS, headers=FROM_AFAR) as (_, caller):
        for _ in range(2):
            assert await caller.text("order") == "{'seats': [1, 2]}"
    assert len(set(keys)) == 2


async def test_code_form_accepted_without_a_code_returns_the_link(revision):
    # finding: XC3
    typed: asyncio.Queue[str] = asyncio.Queue()
    typed.put_nowait("")
    limits = CallLimits(link=timedelta())
    async with by_token(revision, typed=typed, limits=limits) as (env, caller):
        result = await caller.result("visit")
        assert link_in(result)
        assert "eight letters" in text_of(result)
        assert not result.is_error
        assert link_in(await caller.result("visit"))
        assert len(caller.code_prompts) == 1, "no later call asks for the code again"
        (asked,) = await env.elicitations()
        assert asked.status is Status.PENDING
