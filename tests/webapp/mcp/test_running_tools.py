"""Tools that swallow cancellation, gather, outlive their call, change their questions, or fail."""

import asyncio
from typing import Any

import pytest

from flows import CallOver, Declined, ElicitError, NoAsker, elicit
from flows.elicitation.states import Json
from tests.support.mcp_server import (
    LEGACY,
    MODERN,
    caller_of,
    links_asked,
    new_server,
    server_env,
    soon,
    text_of,
)
from tests.support.own_requests import size_form

LOGIN = "https://example.org/login"


@pytest.mark.every_way
async def test_broad_except_does_not_swallow_the_question(server, revision):
    @server.tool()
    async def careless() -> str:
        try:
            return str(dict(await elicit.url("Sign in", LOGIN)))
        except:  # noqa: E722 - what the test is about
            return "swallowed"

    @server.tool()
    async def careful() -> str:
        try:
            return str(dict(await elicit.url("Sign in", LOGIN)))
        except Exception as error:  # noqa: BLE001 - what the test is about
            return f"handled {type(error).__name__}"

    async with caller_of(server, revision) as (env, caller):
        for tool in ("careless", "careful"):
            assert await env.text_after_visit(caller, tool, {"name": "ann"}) == "{'name': 'ann'}"


async def test_tool_can_handle_a_decline(server, revision):
    @server.tool()
    async def polite() -> str:
        try:
            await elicit.url("Sign in", LOGIN)
        except Declined:
            return "as you wish"
        return "signed in"

    async with caller_of(server, revision, answers=["decline"]) as (_, caller):
        result = await caller.result("polite")
        assert (text_of(result), result.is_error) == ("as you wish", False)


async def both_gathered() -> list[Any]:
    return [*await asyncio.gather(elicit.url("One", LOGIN), elicit.url("Two", LOGIN))]


async def both_in_a_task_group() -> list[Any]:
    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(_answer(message)) for message in ("One", "Two")]
    return [task.result() for task in tasks]


@pytest.mark.every_way
@pytest.mark.parametrize("ask", [both_gathered, both_in_a_task_group])
async def test_gathered_questions_each_get_their_own_answer(server, revision, ask):
    @server.tool()
    async def both() -> str:
        return " ".join(str(dict(answer)) for answer in await ask())

    async with caller_of(server, revision) as (env, caller):
        call = caller.call("both")
        for _ in range(2):
            link = await caller.link()
            elicitation = await env.service.elicitations.get(env.id_of(link))
            assert elicitation is not None
            await env.complete(link, {"is": elicitation.request.message})
        assert text_of(await soon(call)) == "{'is': 'One'} {'is': 'Two'}"


async def test_gathered_question_stops_waiting_when_its_request_ends(server):
    add_both(server)
    async with caller_of(server, MODERN) as (env, caller):
        first = await caller.asked("both")
        second = await caller.asked("both", after=first)
        assert len({*links_asked(first), *links_asked(second)}) == 2
        is_quiet = not len(env.service.elicitations.waiters)
        for link in (*links_asked(first), *links_asked(second)):
            await env.complete(link)
        assert is_quiet, "an ended request leaves no waiter that could claim an answer"


async def test_answer_between_two_requests_of_a_gather_is_used_by_the_next_request(server):
    add_both(server)
    async with caller_of(server, MODERN) as (env, caller):
        first = await caller.asked("both")
        second = await caller.asked("both", after=first)
        for link in (*links_asked(first), *links_asked(second)):
            await env.complete(link)
        takes = [elicitation.take for elicitation in await env.elicitations()]
        assert takes == [None, None]  # otherwise the next request waits until the claim expires
        assert await caller.last_text("both", after=second) == "done"


async def test_decline_of_a_gathered_question_ends_the_wait_for_the_other(server):
    add_both(server)
    async with caller_of(server, LEGACY) as (env, caller):
        call = caller.call("both")
        links = [await caller.link() for _ in range(2)]
        await (await env.person()).decline(links[0])
        assert "[ELICITATION_DECLINED]" in text_of(await soon(call))
        is_quiet = not len(env.service.elicitations.waiters)
        assert await env.complete(links[1]) == "accepted"
        assert is_quiet


def add_both(server: Any) -> None:
    @server.tool()
    async def both() -> str:
        await asyncio.gather(*(_answer(message) for message in ("One", "Two")))
        return "done"


async def _answer(message: str) -> Json:
    return dict(await elicit.url(message, LOGIN))


async def test_question_after_the_call_ended_raises_an_error(server, revision):
    later: list[asyncio.Task[object]] = []
    gate = asyncio.Event()

    @server.tool()
    async def leave() -> str:
        async def linger() -> object:
            await gate.wait()
            return await elicit.url("Too late", LOGIN)

        later.append(asyncio.create_task(linger()))
        return "left"

    async with caller_of(server, revision) as (env, caller):
        assert await caller.text("leave") == "left"
        gate.set()
        with pytest.raises(CallOver):
            await later[0]
        assert not await env.elicitations()


async def test_question_outside_a_call_raises_no_asker(server):
    with pytest.raises(NoAsker):
        await elicit.url("Anybody?", LOGIN)
    async with server_env(server):
        with pytest.raises(NoAsker):
            await elicit.url("Anybody?", LOGIN)


async def test_question_change_between_requests_is_an_error(server):
    prices = iter((9, 90))

    @server.tool()
    async def pay() -> str:
        await elicit.url(f"Pay {next(prices)} EUR", LOGIN)
        return "paid"

    async with caller_of(server, MODERN) as (env, caller):
        asked = await caller.asked("pay")
        await env.complete(links_asked(asked)[0])
        result = await caller.answered("pay", after=asked)
        assert result.is_error
        assert "[ELICITATION_QUESTION_CHANGED]" in text_of(result)
        assert "Pay 9 EUR" in text_of(result)
        assert "Pay 90 EUR" in text_of(result)


def add_own_state(server: Any, library: str, *, asks_first: bool) -> list[str | None]:
    """Add a tool that returns its own InputRequiredResult.

    Return the list of request states that the tool received.
    """
    if library == "fastmcp":
        from fastmcp import Context
    else:
        from mcp.server.mcpserver import Context  # type: ignore[assignment]
    seen: list[str | None] = []

    @server.tool()
    async def own(context: Context, state: str):
        seen.append(context.request_state)
        if asks_first:
            await elicit.url("Sign in", LOGIN)
        if context.request_state is None:
            return size_form(state)
        return f"{context.request_state} {context.input_responses is not None}"

    return seen


@pytest.mark.parametrize("state", ["mine", "elicit-url:forged:x", "elicit-url:", "{}"])
async def test_tools_own_state_is_returned_unchanged(library, state):
    server = new_server(library)
    seen = add_own_state(server, library, asks_first=False)
    async with caller_of(server, MODERN) as (_, caller):
        assert await caller.text("own", state=state) == f"{state} True"
        assert seen == [None, state]


@pytest.mark.parametrize("state", ["mine", "elicit-url:forged:x"])
async def test_tools_own_state_is_carried_with_our_state(library, state):
    server = new_server(library)
    seen = add_own_state(server, library, asks_first=True)
    async with caller_of(server, MODERN) as (env, caller):
        assert await env.text_after_visit(caller, "own", state=state) == f"{state} True"
        assert seen == [None, None, state]
        assert [row.delivered_at is not None for row in await env.elicitations()] == [True]


@pytest.mark.every_way
async def test_once_runs_once_across_requests(server, revision):
    keys: list[str] = []

    async def reserve(key: str) -> Json:
        keys.append(key)
        return {"seats": [len(keys)]}

    async def ship(key: str) -> Json:
        keys.append(key)
        return len(keys)

    @server.tool()
    async def buy() -> str:
        seat = await elicit.once("reserve", reserve, again=True)
        await elicit.url("Pay", LOGIN)
        shipped = await elicit.once("ship", ship)
        await elicit.url("Sign", LOGIN)
        return f"{seat} {shipped}"

    async with caller_of(server, revision) as (env, caller):
        for number in (1, 2):
            call = caller.call("buy")
            for _ in range(2):
                await env.complete(await caller.link())
            result = text_of(await soon(call))
            assert len(set(keys)) == len(keys)
            first = 2 * number - 1
            assert result == f"{{'seats': [{first}]}} {first + 1}"


@pytest.mark.parametrize("turns", ["sequential", "concurrent", "after a question", "invalid key"])
async def test_second_once_with_same_name_and_key_raises_and_does_not_run(server, revision, turns):
    # finding: R13
    done: list[str] = []

    async def pay(key: str) -> Json:
        done.append(key)
        await asyncio.sleep(0)
        return len(done)

    @server.tool()
    async def pay_all() -> str:
        match turns:
            case "sequential":
                return str([await elicit.once("pay", pay) for _ in range(3)])
            case "concurrent":
                three = (elicit.once("pay", pay) for _ in range(3))
                *_, last = await asyncio.gather(*three, return_exceptions=True)
                assert isinstance(last, Exception)
                raise last
            case "after a question":
                await elicit.once("pay", pay, key=1)
                await elicit.url("Sign", LOGIN)
                return str(await elicit.once("pay", pay, key=1))
        return str(await elicit.once("pay", pay, key=1.5))  # type: ignore[call-overload]

    async with caller_of(server, revision) as (env, caller):
        call = caller.call("pay_all")
        if turns == "after a question":
            await env.complete(await caller.link())
        result = await soon(call)
        assert result.is_error
        assert "[ELICITATION_INVALID_USE]" in text_of(result)
        assert "key" in text_of(result)
        assert len(done) == (0 if turns == "invalid key" else 1)


@pytest.mark.every_way
async def test_once_with_a_key_runs_once_per_loop_iteration(server, revision):
    # finding: R13
    done: list[str] = []
    fails = [True]

    @server.tool()
    async def pay_all() -> str:
        paid: list[Json] = []
        for item in ("tea", "milk", 3):

            async def pay(key: str, item: Any = item) -> Json:
                if item == "milk" and fails.pop():
                    fails.append(False)
                    raise RuntimeError("no milk")
                done.append(key)
                return f"{item} {len(done)}"

            try:
                paid.append(await elicit.once("pay", pay, key=item))
            except RuntimeError:  # a function that raised is not recorded and can run again
                fails.append(False)
                paid.append(await elicit.once("pay", pay, key=item))
        await elicit.url("Sign", LOGIN)
        return str(paid)

    async with caller_of(server, revision) as (env, caller):
        assert await env.text_after_visit(caller, "pay_all") == "['tea 1', 'milk 2', '3 3']"
        assert len(set(done)) == len(done) == 3


async def test_once_of_a_nested_call_is_separate(revision):
    # finding: R13
    server = new_server("fastmcp")
    done: list[str] = []

    @server.tool()
    async def pay(item: str) -> str:
        async def work(key: str) -> Json:
            done.append(key)
            return f"{item} {len(done)}"

        return str(await elicit.once("pay", work))

    @server.tool()
    async def pay_all() -> str:
        paid = [
            (await server.call_tool("pay", {"item": item})).structured_content["result"]
            for item in ("tea", "milk", "tea")
        ]
        await elicit.url("Sign", LOGIN)
        return str(paid)

    async with caller_of(server, revision) as (env, caller):
        assert await env.text_after_visit(caller, "pay_all") == "['tea 1', 'milk 2', 'tea 3']"
        assert len(set(done)) == len(done) == 3


async def test_once_with_a_plain_function_runs_once(server, revision):
    # finding: A10
    done: list[str] = []

    def work(key: str) -> Any:
        done.append(key)
        return len(done)

    @server.tool()
    async def count() -> str:
        number = await elicit.once("count", work)
        await elicit.url("Sign", LOGIN)
        return f"number {number}"

    async with caller_of(server, revision) as (env, caller):
        assert await env.text_after_visit(caller, "count") == "number 1"
        assert len(done) == 1


class Odd(dict[str, Any]):
    """A dict whose `items()` raises an error."""

    def items(self) -> Any:
        raise KeyError("lazy")


@pytest.mark.every_way
@pytest.mark.parametrize(
    "gives",
    [40, 65_747, 1024 * 1024, 1024 * 1024 + 1, None, Odd(a=1)],
    ids=lambda gives: f"{gives!r:.9}",
)
async def test_once_runs_once_for_any_return_value(server, revision, gives):
    # finding: R12
    done: list[str] = []

    async def fetch(key: str) -> Any:
        done.append(key)
        return '"' * 9 + "x" * (gives - 20) if isinstance(gives, int) else gives or object()

    @server.tool()
    async def report() -> str:
        text = str(await elicit.once("fetch", fetch))
        await elicit.url("Sign", LOGIN)
        return f"{len(text)} {text[:12]}"

    async with caller_of(server, revision) as (env, caller):
        if isinstance(gives, int) and gives <= 1024 * 1024:
            assert (
                await env.text_after_visit(caller, "report") == f"{gives - 11} " + '"' * 9 + "xxx"
            )
            assert len(done) == 1
            return
        for _ in range(3):
            result = await caller.result("report")
            assert result.is_error
            assert "[ELICITATION_RESULT_NOT_KEPT]" in text_of(result)
            assert "is done" in text_of(result)
        assert len(done) == 1


async def test_link_in_place_of_a_list_result_does_not_break_the_client(server, revision):
    @server.tool()
    async def repositories() -> list[str]:
        await elicit.url("Connect", LOGIN)
        return ["a", "b"]

    async with caller_of(server, revision, declares=None) as (env, caller):
        link = await caller.link_in_result("repositories")
        await env.complete(link)
        result = await caller.result("repositories")
        assert result.structured_content == {"result": ["a", "b"]}


async def test_tools_own_error_after_an_answer_is_unchanged(server, revision):
    @server.tool()
    async def break_down() -> str:
        await elicit.url("Sign in", LOGIN)
        raise RuntimeError("the printer is on fire")

    async with caller_of(server, revision) as (env, caller):
        call = caller.call("break_down")
        await env.complete(await caller.link())
        result = await soon(call)
        assert result.is_error
        assert "break_down" in text_of(result)
        assert "ELICITATION" not in text_of(result)


@pytest.mark.every_way
async def test_error_raised_in_place_of_our_error_has_no_elicitation_code(server, revision):
    @server.tool()
    async def translate() -> str:
        try:
            await elicit.url("Sign in", LOGIN)
        except Declined as error:
            raise RuntimeError("no sign-in") from error
        return "signed in"

    @server.tool()
    async def forget() -> str:
        await elicit.url("Sign in", LOGIN).or_none()
        raise RuntimeError("something else")

    async with caller_of(server, revision, answers=["decline", "decline"]) as (_, caller):
        for tool in ("translate", "forget"):
            result = await caller.result(tool)
            assert result.is_error
            assert "ELICITATION" not in text_of(result)
            assert "declined" not in text_of(result)


async def test_reraised_elicitation_error_has_its_code(server, revision):
    @server.tool()
    async def tidy() -> str:
        try:
            await elicit.url("Sign in", LOGIN)
        except ElicitError as error:
            error.add_note("tidied up")
            raise
        return "signed in"

    async with caller_of(server, revision, answers=["decline"]) as (_, caller):
        assert "[ELICITATION_DECLINED]" in await caller.text("tidy")


async def test_invalid_question_returns_a_sentence_with_a_code(server, revision):
    @server.tool()
    async def wander() -> str:
        await elicit.url("Go", lambda _: "https://evil.example/", origins=["https://example.org"])
        return "gone"

    async with caller_of(server, revision) as (env, caller):
        result = await caller.result("wander")
        assert result.is_error
        assert "evil.example" in text_of(result)
        assert "[ELICITATION_INVALID_USE]" in text_of(result)
        assert all(row.status.is_final for row in await env.elicitations())


async def test_same_question_twice_in_a_call_is_two_questions(server, revision):
    @server.tool()
    async def twice() -> str:
        answers = [await elicit.url("Again", LOGIN) for _ in range(2)]
        return " ".join(str(answer["n"]) for answer in answers)

    async with caller_of(server, revision) as (env, caller):
        call = caller.call("twice")
        for number in (1, 2):
            assert await env.complete(await caller.link(), {"n": number}) == "accepted"
        assert text_of(await soon(call)) == "1 2"
