"""Questions that a tool creates and never awaits: the tool's result is withheld."""

import asyncio
import contextlib
import inspect
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from fastmcp import Context, FastMCP
from fastmcp.exceptions import ToolError as FastError

from flows import Money, NotAsked, Question, elicit
from tests.support.mcp_server import FORM, LEGACY, MODERN, caller_of, new_server, text_of

LOGIN = "https://example.org/login"
PRICE = Money("9.00", "EUR")
NOT_AWAITED = "ELICITATION_NOT_AWAITED"
CONSTANT = elicit.confirm("Created at import and never awaited")


def line_of(mark: str) -> str:
    """Return the file name and line number of this file's line that ends with the mark."""
    lines = Path(__file__).read_text("utf-8").splitlines()
    (number,) = [at for at, line in enumerate(lines, start=1) if line.endswith(f"# {mark}")]
    return f"{Path(__file__).name}:{number}"


def assert_is_withheld(result: Any, *marks: str, code: str = "ELICITATION_NOT_ASKED") -> None:
    assert result.is_error
    assert result.meta["code"] == code
    assert "goods" not in str(result)
    for mark in marks:
        assert line_of(mark) in text_of(result)


@pytest.mark.every_way
async def test_unawaited_question_used_as_its_answer_is_reported(server, revision):
    @server.tool()
    async def buy() -> str:
        receipt: Any = elicit.payment(PRICE, "A report")  # used as a receipt
        return f"the goods of {receipt.id}"

    @server.tool()
    async def visit() -> str:
        content: Any = elicit.url("Sign in", LOGIN)  # used as a mapping
        return f"the goods of {content['card']}"

    @server.tool()
    async def decide() -> str:
        sure: Any = elicit.confirm("Sure?")  # used as an answer
        return "the goods" if sure else "nothing"

    async with caller_of(server, revision) as (env, caller):
        assert_is_withheld(await caller.result("buy"), "used as a receipt", code=NOT_AWAITED)
        assert_is_withheld(await caller.result("visit"), "used as a mapping", code=NOT_AWAITED)
        result = await caller.result("decide")
        assert_is_withheld(result, "used as an answer", code=NOT_AWAITED)
        assert "write `await` before the question" in text_of(result)
        assert not await env.elicitations()


@pytest.mark.every_way
async def test_unawaited_question_withholds_the_result(server, revision):
    # finding: A1
    @server.tool()
    async def buy() -> str:
        elicit.payment(PRICE, "A report")  # type: ignore[unused-awaitable]  # forgot to pay
        return "the goods"

    @server.tool()
    def visit() -> str:
        elicit.url("Sign in", LOGIN)  # type: ignore[unused-awaitable]  # forgot to visit
        return "the goods"

    @server.tool()
    async def both() -> str:
        elicit.together(elicit.confirm("Sure?"), elicit.form("Who?"))  # type: ignore[unused-awaitable]  # forgot both
        return "the goods"

    async with caller_of(server, revision) as (env, caller):
        assert_is_withheld(await caller.result("buy"), "forgot to pay")
        assert_is_withheld(await caller.result("visit"), "forgot to visit")
        assert_is_withheld(await caller.result("both"), "forgot both")
        assert not await env.elicitations()


@pytest.mark.every_way
async def test_unawaited_duplicate_of_an_asked_question_is_detected(server, revision):
    @server.tool()
    async def buy() -> str:
        first, second = elicit.form("Who?"), elicit.form("Who?")
        assert first == second
        return f"the goods for {await first}"

    fills = [{"response": "Ada"}]
    async with caller_of(server, revision, declares=FORM, fills=fills) as (_, caller):
        assert_is_withheld(await caller.result("buy"))
        assert len(caller.forms) == 1


WAYS: dict[str, Callable[[Question[str]], Any]] = {
    "awaited": lambda question: question,
    "its outcome": lambda question: question.outcome(),
    "or none": lambda question: question.or_none(),
    "together": elicit.together,
    "gathered": asyncio.gather,
    "discarded": lambda question: question.discard(),
    "discarded together": lambda question: elicit.together(question).discard(),
}


@pytest.mark.diagonal
@pytest.mark.parametrize("way", WAYS)
async def test_each_way_to_ask_counts(server, revision, way):
    @server.tool()
    async def buy() -> str:
        asked = WAYS[way](elicit.form("Who?"))
        if inspect.isawaitable(asked):
            await asked
        return "the goods"

    fills = [{"response": "Ada"}]
    async with caller_of(server, revision, declares=FORM, fills=fills) as (_, caller):
        assert await caller.text("buy") == "the goods"


async def test_unstarted_task_with_a_question_counts_as_asked():
    server, tasks = new_server("mcp"), list[asyncio.Task[Any]]()

    @server.tool()
    async def buy() -> str:
        tasks.append(asyncio.create_task(elicit.form("Who?").outcome()))
        return "done"

    async with caller_of(server, LEGACY, declares=FORM) as (_, caller):
        assert await caller.text("buy") == "done"
        await asyncio.gather(*tasks, return_exceptions=True)


@pytest.mark.every_way
async def test_tools_own_exception_is_reported_with_an_unawaited_question(server, revision):
    from mcp.server.mcpserver.exceptions import ToolError

    kind = FastError if hasattr(server, "_mcp_server") else ToolError

    @server.tool()
    async def buy() -> str:
        elicit.form("Who?")  # type: ignore[unused-awaitable]
        raise kind("sold out")

    async with caller_of(server, revision) as (_, caller):
        result = await caller.result("buy")
        assert result.is_error
        assert "sold out" in text_of(result)


async def test_error_that_the_library_hides_is_not_blamed_on_an_unawaited_question(
    revision, caplog
):
    server = new_server("mcp")

    @server.tool()
    async def buy(item: str) -> str:
        sure = elicit.confirm("Sure?")  # before the error
        stock = {"tea": 1}[item]
        return f"{await sure} {stock}"

    async with caller_of(server, revision) as (_, caller):
        result = await caller.result("buy", item="coffee")
    assert result.meta["code"] == "ELICITATION_NOT_ASKED"
    text = text_of(result)
    assert text.startswith("The tool raised an error, which is in the server's log. A possible")
    assert line_of("before the error") in text
    errors = [one.exc_info[1] for one in caplog.records if one.exc_info]
    assert any(isinstance(one.__cause__, KeyError) for one in errors)


@pytest.mark.every_way
async def test_question_awaited_in_a_later_request_is_not_reported(server, revision):
    @server.tool()
    async def buy() -> str:
        second = elicit.form("What?")
        return f"{await elicit.form('Who?')} {await second}"

    fills = [{"response": "Ada"}, {"response": "tea"}]
    async with caller_of(server, revision, declares=FORM, fills=fills) as (_, caller):
        assert await caller.text("buy") == "Ada tea"


async def test_tool_with_own_input_request_is_checked_after_its_last_request(library):
    from tests.support.own_requests import size_form

    if library == "fastmcp":
        from fastmcp import Context
    else:
        from mcp.server.mcpserver import Context  # type: ignore[assignment]
    server = new_server(library)

    @server.tool()
    async def buy(context: Context) -> Any:
        name = elicit.form("Who?")
        if "size" not in (context.input_responses or {}):
            return size_form()
        name.discard()
        return "done"

    async with caller_of(server, MODERN) as (_, caller):
        asked = await caller.asked("buy")
        assert text_of(await caller.send_call("buy", after=asked)) == "done"  # type: ignore[arg-type]


async def name_of() -> str:
    return await elicit.form("Who?")


@pytest.mark.every_way
async def test_result_with_a_coroutine_is_withheld_with_the_line_of_its_call(server, revision):
    left = list[Any]()  # Python warns of a coroutine that nobody closes

    def noted(awaitable: Any) -> Any:
        left.append(awaitable)
        return awaitable

    @server.tool()
    async def direct() -> Any:
        return noted(name_of())  # returned

    @server.tool()
    async def listed() -> Any:
        name = await elicit.once("name", lambda: "Ada")
        return {"names": [name, noted(name_of())]}  # listed

    @server.tool()
    async def local() -> str:
        async def inner() -> str:
            return await name_of()

        return f"Hello {noted(inner())}"  # local

    marks = {"direct": "returned", "listed": "listed", "local": "local"}
    async with caller_of(server, revision) as (env, caller):
        for tool, mark in marks.items():
            assert_is_withheld(await caller.result(tool), mark)
        assert not await env.elicitations()
    for coroutine in left:
        coroutine.close()


@pytest.mark.every_way
async def test_result_with_a_task_is_withheld_with_the_line_of_its_call(server, revision):
    tasks = list[Any]()

    async def later() -> object:
        return await asyncio.Event().wait()

    @server.tool()
    async def task() -> Any:
        tasks.append(asyncio.create_task(later()))  # in a task
        return tasks[-1]

    @server.tool()
    async def gathered() -> Any:
        tasks.append(asyncio.gather(later()))  # gathered
        return tasks[-1]

    async with caller_of(server, revision) as (_, caller):
        assert_is_withheld(await caller.result("task"), "in a task")
        assert_is_withheld(await caller.result("gathered"), "gathered")
        for one in tasks:
            one.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


@pytest.mark.every_way
async def test_result_with_a_question_of_another_thread_is_withheld(server, revision):
    def question() -> Any:
        return elicit.form("Who?")  # in a thread

    @server.tool()
    async def buy() -> str:
        make = partial(question)  # the server cannot read a partial at its start
        asked = await asyncio.get_running_loop().run_in_executor(None, make)
        return f"Hello {asked}"

    async with caller_of(server, revision) as (_, caller):
        assert_is_withheld(await caller.result("buy"), "in a thread", code=NOT_AWAITED)


async def test_async_generator_that_the_library_does_not_run_is_explained(revision):
    server = new_server("mcp")

    @server.tool()
    async def buy() -> Any:
        yield await name_of()

    async with caller_of(server, revision) as (_, caller):
        result = await caller.result("buy")
    assert result.is_error
    assert "contains `yield`" in text_of(result)
    assert f"{Path(__file__).name}:" in text_of(result)


async def test_text_about_coroutines_of_other_programs_is_no_mistake(server, revision):
    text = "<coroutine object main at 0x7f> <_GatheringFuture pending> <Question of the kind form>"

    @server.tool()
    async def run() -> str:
        return text

    async with caller_of(server, revision) as (_, caller):
        assert await caller.text("run") == text


@pytest.mark.every_way
async def test_verbs_after_a_payment_without_await_are_refused(server, revision):
    done = list[str]()

    async def deliver(_: str) -> str:
        done.append("delivered")
        return "the goods"

    @server.tool()
    async def buy(what: str) -> object:
        elicit.payment(PRICE, "A report")  # type: ignore[unused-awaitable]  # stops
        match what:
            case "once":
                return await elicit.once("deliver", deliver)
            case "form":
                return await elicit.form("Who?")
            case "together":
                return await elicit.together(elicit.form("Who?"))
            case "forget":
                return await elicit.forget("key")
            case _:
                return (await elicit.complete_elicitation("x", {})).value

    async with caller_of(server, revision) as (env, caller):
        for what in ("once", "form", "together", "forget", "complete"):
            assert_is_withheld(await caller.result("buy", what=what), "stops")
        assert done == []
        assert not await env.elicitations()


async def test_result_is_withheld_although_the_tool_caught_the_error(server, revision):
    @server.tool()
    async def buy() -> str:
        elicit.confirm("Sure?")  # type: ignore[unused-awaitable]  # caught
        with contextlib.suppress(NotAsked):
            await elicit.form("Who?")
        return "the goods"

    async with caller_of(server, revision) as (_, caller):
        assert_is_withheld(await caller.result("buy"), "caught")


@pytest.mark.every_way
async def test_questions_created_together_can_be_gathered_in_any_order(server, revision):
    @server.tool()
    async def order() -> str:
        first, second = elicit.confirm("Sure?"), elicit.confirm("Really?")
        return f"{await asyncio.gather(second, first)}"

    async with caller_of(server, revision, declares=FORM, fills=[{}, {}]) as (_, caller):
        assert await caller.text("order") == "[True, True]"


async def test_question_created_by_a_module_belongs_to_no_call(
    server, revision, tmp_path, monkeypatch
):
    (tmp_path / "made_late.py").write_text(
        "from flows import elicit\nSURE = elicit.confirm('Sure?')\n"
        "class Shop:\n    OPEN = elicit.confirm('Open?')\n"
    )
    monkeypatch.syspath_prepend(tmp_path)

    @server.tool()
    async def buy() -> str:
        import made_late  # type: ignore[import-not-found]

        assert made_late.SURE != CONSTANT
        return "done"

    try:
        async with caller_of(server, revision) as (_, caller):
            assert await caller.text("buy") == "done"
    finally:
        sys.modules.pop("made_late", None)


async def test_nested_tool_fails_for_its_own_question_without_await(revision):

    server = FastMCP("shop")

    @server.tool
    async def deliver() -> str:
        elicit.form("Who?")  # type: ignore[unused-awaitable]  # inner
        return "the goods"

    @server.tool
    async def raises() -> str:
        elicit.form("Who?")  # type: ignore[unused-awaitable]
        raise ValueError("sold out")

    @server.tool
    async def sell(ctx: Context) -> str:
        return str(await ctx.fastmcp.call_tool("deliver", {}))

    @server.tool
    async def try_to_sell(ctx: Context) -> str:
        results = list[str]()
        for name in ("deliver", "raises"):
            try:
                results.append(str(await ctx.fastmcp.call_tool(name, {})))
            except Exception as error:  # noqa: BLE001 -- whatever the library makes of it
                results.append(type(error).__name__)
        return " ".join(results)

    async with caller_of(server, revision) as (_, caller):
        assert_is_withheld(await caller.result("sell"), "inner")
        assert await caller.text("try_to_sell") == "NotAsked ToolError"


async def test_pending_question_of_a_parallel_tool_does_not_fail_a_tool(revision):

    server, made, over = FastMCP("shop"), asyncio.Event(), asyncio.Event()

    @server.tool
    async def slow() -> str:
        question = elicit.confirm("Sure?")
        made.set()
        await over.wait()
        return str(await question)

    @server.tool
    async def quick() -> str:
        await made.wait()
        return str(await elicit.once("work", _work))

    @server.tool
    async def both(ctx: Context) -> str:
        quick = asyncio.create_task(ctx.fastmcp.call_tool("quick", {}))
        quick.add_done_callback(lambda _: over.set())
        results = await asyncio.gather(ctx.fastmcp.call_tool("slow", {}), quick)
        return f"{len(results)} done"

    async with caller_of(server, revision, declares=FORM, fills=[{}, {}]) as (_, caller):
        assert await caller.text("both") == "2 done"


async def _work(_: str) -> str:
    return "done"
