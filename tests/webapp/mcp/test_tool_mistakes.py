"""Mistakes in the code of tools: the server refuses to start, and names the line of each."""

import asyncio
import threading
from collections.abc import Callable
from dataclasses import dataclass
from datetime import time, timedelta
from functools import wraps
from pathlib import Path
from typing import Any, Literal, TypedDict

import pytest
from fastmcp import FastMCP
from pydantic import BaseModel

import flows
from flows import InvalidQuestion, elicit
from flows.elicit import form as ask
from tests.support.cli import run
from tests.support.mcp_server import new_server
from tests.support.work import steps_of
from webapp import asking
from webapp.mcp.tool_mistakes import must_have_no_mistakes
from webapp.testing import elicit_person

ANY: Any = elicit  # these mistakes are errors for type checkers too


class Address(BaseModel):
    street: str


class Nested(BaseModel):
    address: Address


class Tags(BaseModel):
    tags: list[str]


class Either(BaseModel):
    size: int | str


class Times(TypedDict):
    opens: time


@dataclass
class Pause:
    lasts: timedelta


class Login(BaseModel):
    password: str


class Meal(BaseModel):
    dish: Literal["soup", "salad"]


class Models:
    Tags = Tags

    @staticmethod
    def form(message: str, schema: object) -> str:
        return f"{message} {schema}"


def traced(tool: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(tool)
    async def call() -> str:
        return str(await tool())

    return call


async def ask_for_tags() -> Tags:
    return await elicit.form("Tags?", Tags)


async def wrong_by_position() -> str:
    return str(await elicit.form("Tags?", Tags))


async def wrong_by_name() -> str:
    return str(await flows.elicit.form("Tags?", schema=Tags))


async def wrong_by_other_name() -> str:
    return str(await ask("Tags?", Models.Tags))


async def wrong_in_a_helper() -> str:
    return str(await ask_for_tags())


async def wrong_in_a_lambda() -> str:
    def later() -> Any:
        return elicit.form("Tags?", Tags)

    return str(await later())


@traced
async def wrong_below_a_decorator() -> str:
    return str(await elicit.form("Tags?", Tags))


async def wrong_in_together() -> str:
    both = elicit.together(elicit.confirm("Sure?"), elicit.form("Tags?", Tags))
    return str(await both)


WRONG = [each for name, each in list(globals().items()) if name.startswith("wrong_")]


async def nested() -> str:
    return str(await elicit.form("Where?", Nested))


async def either() -> str:
    return str(await elicit.form("Which?", Either))


async def times() -> str:
    return str(await elicit.form("When?", Times))


async def pause() -> str:
    return str(await elicit.form("How long?", Pause))


async def number() -> str:
    return str(await elicit.form("How many?", int))


async def login() -> str:
    return str(await elicit.form("Who?", Login))


async def secret_times() -> str:
    return str(await elicit.secret("When?", Times))


SENTENCES: dict[Callable[..., Any], str] = {
    nested: "Nested.address: `Address` cannot be asked as a form",
    either: "Either.size: `int | str` cannot be asked as a form: a field has one type",
    times: "Times.opens: `time` cannot be asked as a form: use str, int",
    pause: "Pause.lasts: `timedelta` cannot be asked as a form: use str, int",
    number: "`int` cannot be asked as a form: it has no fields. Use a model with one field",
    login: "The field 'password' looks like a secret",
    secret_times: "Times.opens: `time` cannot be asked as a form",
}


async def right() -> str:
    return str(await elicit.form("What would you like?", Meal))


async def right_by_its_own_name() -> str:
    Tags = Meal  # noqa: N806 - hides the model of the module
    return str(await elicit.form("What would you like?", Tags))


async def right_with_its_own_verb() -> str:
    def asked(elicit: Any) -> str:
        return str(elicit.form("Tags?", Tags))

    return asked(Models)


async def right_as_another_function() -> str:
    return str(Models.form("Tags?", Tags))


async def right_by_a_name_of_the_call(name: str) -> str:
    return str(await elicit.form("Tags?", globals()[name]))


RIGHT = [each for name, each in list(globals().items()) if name.startswith("right")]


def server_with(library: str, *tools: Callable[..., Any]) -> Any:
    server = new_server(library)
    for tool in tools:
        server.tool()(tool)
    return server


@pytest.mark.parametrize("tool", WRONG, ids=lambda one: one.__name__)
async def test_model_that_no_form_can_show_is_refused_with_its_line(library, tool):
    # finding: XA15
    with pytest.raises(InvalidQuestion) as refused:
        await must_have_no_mistakes(server_with(library, right, tool))
    assert str(refused.value).startswith(f"{Path(__file__)}:")
    assert "Tags.tags: `list[str]` cannot be asked as a form: use list[Literal[...]] or" in str(
        refused.value
    )


async def test_each_wrong_model_has_a_sentence_in_python(library):
    # finding: XA15
    with pytest.raises(InvalidQuestion) as refused:
        await must_have_no_mistakes(server_with(library, *SENTENCES))
    lines = str(refused.value).splitlines()
    assert len(lines) == len(SENTENCES)
    assert [words for words in SENTENCES.values() if not any(words in line for line in lines)] == []
    assert "$" not in str(refused.value)


async def test_model_that_is_known_only_in_the_call_does_not_stop_the_start(library):
    await must_have_no_mistakes(server_with(library, *RIGHT))


@elicit.gate
async def delete() -> str:
    return "deleted"


@elicit.needs(elicit.confirm("Sure?"))
@traced
async def rename() -> str:
    return "renamed"


@elicit.gate(off=True)
async def read() -> str:
    return "text"


def hiding(tool: Callable[..., Any]) -> Callable[..., Any]:
    async def call() -> str:
        return str(await tool())

    return call


async def calls_gate() -> str:
    return await delete()


async def calls_need() -> str:
    return str(await rename())


async def calls_in_a_helper() -> str:
    return await calls_gate()


@elicit.gate
async def calls_gate_when_gated() -> str:
    return await delete()


async def calls_and_names() -> str:
    return f"{await read()} {delete} {traced(delete)}"


hidden = hiding(delete)


@pytest.mark.parametrize(
    ("tool", "helper"),
    [(calls_gate, "delete"), (calls_need, "rename"), (calls_in_a_helper, "delete")],
)
async def test_marked_function_that_is_no_tool_is_refused_at_its_call(library, tool, helper):
    with pytest.raises(InvalidQuestion) as refused:
        await must_have_no_mistakes(server_with(library, right, tool))
    (line,) = str(refused.value).splitlines()
    assert line.startswith(f"{Path(__file__)}:")
    assert f"`{helper}` is marked with gate or needs, but this line calls it as a plain" in line


async def awaits_caller() -> str:
    return str(await ANY.caller())


async def awaits_can() -> str:
    return "link" if await ANY.can("url") else "text"


async def makes_a_task() -> str:
    return str(await asyncio.create_task(ANY.confirm("Sure?")))


async def makes_tasks_in_a_group() -> None:
    async with asyncio.TaskGroup() as group:
        group.create_task(ANY.form("Name?"))


async def makes_futures() -> str:
    sure = asyncio.ensure_future(elicit.confirm("Sure?"))
    done = asyncio.create_task(elicit.once("work", lambda: 1))
    return f"{await sure} {await done} {elicit.caller().id}"


@pytest.mark.parametrize(
    ("tool", "words"),
    [
        (awaits_caller, "elicit.caller returns its value at once, so leave out `await`."),
        (awaits_can, "elicit.can returns its value at once, so leave out `await`."),
        (makes_a_task, "Write asyncio.ensure_future(elicit.confirm(...))"),
        (makes_tasks_in_a_group, "Write asyncio.ensure_future(elicit.form(...))"),
    ],
)
async def test_verb_that_is_awaited_or_made_a_task_wrongly_is_refused(library, tool, words):
    with pytest.raises(InvalidQuestion) as refused:
        await must_have_no_mistakes(server_with(library, makes_futures, tool))
    (line,) = str(refused.value).splitlines()
    assert line.startswith(f"{Path(__file__)}:")
    assert words in line


async def who() -> str:
    return await elicit.form("Who?")


async def order() -> Any:
    return await elicit.once("order", lambda: 1)


async def plain() -> str:
    return "text"


async def runs_in_a_loop() -> str:
    return asyncio.run(who())


def runs_in_a_new_loop() -> str:
    return asyncio.new_event_loop().run_until_complete(who())


async def runs_a_lambda_in_a_loop() -> str:
    return await asyncio.to_thread(lambda: asyncio.run(who()))


async def works_in_an_executor() -> str:
    loop = asyncio.get_running_loop()
    return str(await loop.run_in_executor(None, lambda: elicit.form("Who?")))


async def works_async_in_an_executor() -> str:
    name = await asyncio.get_running_loop().run_in_executor(None, who)
    return f"Hello {name}"


async def works_in_a_thread() -> None:
    threading.Thread(target=who).start()


async def forgets_a_helper() -> str:
    who()  # type: ignore[unused-coroutine]
    return "done"


async def forgets_a_helper_inside() -> str:
    async def inner() -> str:
        return await who()

    return f"Hello {inner()}"


async def forgets_once_in_a_helper() -> str:
    done: Any = order()
    return str(done.id)


async def forgets_a_helper_in_a_test() -> str:
    return "yes" if who() else "no"  # type: ignore[truthy-bool]


async def asks_someone_else() -> None:
    async with asking("ada", show=print):
        await elicit.form("Who?")


async def awaits_its_helpers() -> Any:
    async def inner() -> str:
        return await who()

    first, task, tasks = who(), asyncio.create_task(who()), [inner(), who()]
    later = who()
    late = later
    thread = threading.Thread(target=lambda: asyncio.run(plain()))
    other = threading.Thread(target=lambda: asyncio.run(asks_someone_else()))
    loop = asyncio.get_running_loop()
    built: Any = await loop.run_in_executor(None, lambda: elicit.form("Who?"))
    work = await loop.run_in_executor(None, plain)
    unused = plain()
    unused.close()
    return first, await task, await asyncio.gather(*tasks), late, thread, other, await built, work


@pytest.mark.parametrize(
    ("tool", "words"),
    [
        (runs_in_a_loop, "`asyncio.run` runs this coroutine in another event loop"),
        (runs_in_a_new_loop, "runs this coroutine in another event loop"),
        (runs_a_lambda_in_a_loop, "`asyncio.run` runs this coroutine in another event loop"),
        (works_in_an_executor, "`loop.run_in_executor` runs this function in a thread"),
        (works_async_in_an_executor, "runs this function in a thread"),
        (works_in_a_thread, "`threading.Thread` runs this function in a thread"),
        (forgets_a_helper, "Write `await who(...)`."),
        (forgets_a_helper_inside, "Write `await inner(...)`."),
        (forgets_once_in_a_helper, "Write `await order(...)`."),
        (forgets_a_helper_in_a_test, "Write `await who(...)`."),
    ],
)
async def test_helper_that_can_ask_nobody_is_refused_at_its_line(library, tool, words):
    with pytest.raises(InvalidQuestion) as refused:
        await must_have_no_mistakes(server_with(library, awaits_its_helpers, tool))
    (line,) = str(refused.value).splitlines()
    assert line.startswith(f"{Path(__file__)}:")
    assert words in line


async def test_helper_that_a_resource_does_not_await_is_refused(library):
    server = server_with(library, right)
    server.resource("shop://orders")(forgets_a_helper)
    with pytest.raises(InvalidQuestion, match=r"Write `await who\(...\)`."):
        await must_have_no_mistakes(server)


async def test_helpers_that_are_awaited_later_do_not_stop_the_start(library):
    await must_have_no_mistakes(server_with(library, awaits_its_helpers))


@pytest.mark.parametrize("kind", ["resource", "template", "prompt"])
@pytest.mark.parametrize("mark", [elicit.gate, elicit.needs(elicit.confirm("Sure?"))])
async def test_mark_on_a_resource_or_a_prompt_is_refused(library, kind, mark):
    server = server_with(library, right)
    kinds = {
        "resource": server.resource("report://all"),
        "template": server.resource("report://{name}"),
        "prompt": server.prompt(),
    }

    @mark
    def report() -> str:
        return "all"

    @mark
    def report_of(name: str) -> str:
        return name

    await must_have_no_mistakes(server)
    kinds[kind](report_of if kind == "template" else report)
    with pytest.raises(InvalidQuestion, match=r"`report.* is marked .* is a resource or a prompt"):
        await must_have_no_mistakes(server)


async def test_decorator_that_hides_a_mark_is_refused(library):
    with pytest.raises(
        InvalidQuestion, match=r"`delete` is marked .* add `@functools\.wraps\(tool\)`"
    ):
        await must_have_no_mistakes(server_with(library, hidden))


async def test_marked_tools_and_calls_of_them_do_not_stop_the_start(library):
    tools = (delete, rename, calls_gate, calls_need, calls_in_a_helper)
    await must_have_no_mistakes(server_with(library, *tools))
    await must_have_no_mistakes(server_with(library, calls_and_names, calls_gate_when_gated))


async def test_tool_of_mounted_server_is_checked_too():
    outer = FastMCP("outer")
    outer.mount(server_with("fastmcp", wrong_by_position), "inner")
    with pytest.raises(InvalidQuestion, match=r"Tags\.tags"):
        await must_have_no_mistakes(outer)


async def test_kit_refuses_the_server_of_a_wrong_model(library):
    with pytest.raises(InvalidQuestion, match=r"Tags\.tags"):
        async with elicit_person(server_with(library, wrong_by_position)):
            pass


def test_start_reads_only_the_functions_of_the_tools(tmp_path):
    steps = list[int]()
    for others in (10, 2000):
        file = tmp_path / f"shop_of_{others}.py"
        file.write_text(
            "async def order() -> str:\n    return 'done'\n"
            + "def other() -> None:\n    pass\n" * others
        )
        names: dict[str, Any] = {}
        exec(compile(file.read_text(), file, "exec"), names)  # noqa: S102 - written above
        server = server_with("mcp", names["order"])

        def check(server: Any = server) -> None:
            asyncio.run(must_have_no_mistakes(server))

        check()
        steps.append(steps_of(check))
    assert steps[1] < 2 * steps[0]


async def test_start_of_the_command_names_file_line_field_and_fix(tmp_path):
    (tmp_path / "shop.py").write_text(
        "from mcp.server.mcpserver import MCPServer\n"
        "from pydantic import BaseModel\n"
        "from flows import elicit\n"
        "mcp = MCPServer('shop')\n"
        "class Order(BaseModel):\n"
        "    tags: list[str]\n"
        "@mcp.tool()\n"
        "async def order() -> str:\n"
        "    return str(await elicit.form('Tags?', Order))\n"
    )
    ran = await run("serve", "shop:mcp", "--port", "0", home=tmp_path)
    assert ran.status == 2
    assert "shop.py:9: Order.tags: `list[str]` cannot be asked as a form: use list[" in ran.err
    assert "Traceback" not in ran.err
