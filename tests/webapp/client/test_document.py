"""The code samples of docs/how-to/client.md run, and do what the page says."""

import ast
import asyncio
import inspect
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from types import ModuleType
from typing import Any

import pytest

from flows import Money, elicit
from flows.elicitation.shown_link import ShownLink
from flows.elicitation.states import Elicitation
from flows.providers import github
from tests.support.runs_env import Programs, approve, connect, fill, pay
from tests.support.samples import samples
from webapp.client import Elicit

FIRST, SENDS, LISTS, AGENT, GRAPH, TASK, NOTEBOOK = samples("docs/how-to/client.md", "python")[:7]
NAMES: dict[str, Any] = {"Elicit": Elicit, "Money": Money, "elicit": elicit, "github": github}


@dataclass
class Reader:
    """A reader who runs copied samples of the page, and the person whom the samples ask."""

    shop: Programs
    links: asyncio.Queue[ShownLink] = field(default_factory=asyncio.Queue)
    loop: asyncio.AbstractEventLoop = field(default_factory=asyncio.get_running_loop)

    def show(self, link: ShownLink) -> None:
        self.loop.call_soon_threadsafe(self.links.put_nowait, link)

    def copied(self, sample: str, **names: Any) -> dict[str, Any]:
        own = {**NAMES, "KEY": self.shop.key, "send_link": self.show, **names}
        exec(self.code(sample), own)  # noqa: S102 - what a reader copies
        return own

    def code(self, sample: str) -> Any:
        text = sample.replace("https://elicit.example", self.shop.here.url)
        return compile(text, "client.md", "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)

    async def does(self, *acts: Any) -> None:
        guest = await self.shop.here.guest()
        for act in acts:
            await act(guest, (await self.links.get()).url)


@pytest.fixture
async def reader(shop: Programs) -> Reader:
    return Reader(shop)


@pytest.fixture
def stand_in(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Return a function that installs a fake library with the names that a sample imports."""

    def put(name: str, **members: object) -> None:
        package = name.partition(".")[0]
        for each in {package, name}:
            module = ModuleType(each)
            vars(module).update(members)
            monkeypatch.setitem(sys.modules, each, module)

    return put


async def test_first_sample_connects_account_charges_and_files_report(reader: Reader) -> None:
    async def file_report(who: str, receipt: str, key: str) -> str:
        return f"a report for {who}"

    report = reader.copied(FIRST, file_report=file_report)["report"]
    result, _ = await asyncio.gather(report("ann", 8), reader.does(connect, pay))
    assert result == "a report for octocat"


async def test_user_code_is_requested_until_correct(reader: Reader) -> None:
    asked, typed = list[str](), ["ABCD", "ABCD-EFGH"]

    @dataclass
    class Link:
        message: str = "Where to?"
        url: str = "https://elicit.example/e/x"
        needs_code: bool = True

        async def confirm(self, code: str) -> str | None:
            return None if code == "ABCD-EFGH" else "That is not it."

    def prompted(words: str) -> str:
        asked.append(words)
        return typed.pop(0)

    await reader.copied(SENDS, input=prompted)["send_link"](Link())
    assert [words.split(".")[0] for words in asked] == [
        "Type the eight letters that the page shows",
        "That is not it",
    ]


async def test_program_that_stored_no_links_lists_its_open_questions(
    reader: Reader, capsys: pytest.CaptureFixture[str]
) -> None:
    # finding: XQ5
    async def work(_: Elicit) -> bool:
        return await elicit.confirm("Delete it?")

    blocks = [reader.shop.begin(work, user=user, run=user) for user in ("ann", "bob")]
    for block in blocks:
        await block.link()
    await reader.copied(LISTS)["show_again"]()
    lines = sorted(line.rpartition(" ")[0] for line in capsys.readouterr().out.splitlines())
    assert lines == ["ann Delete it?", "bob Delete it?"]


async def test_restarted_agent_repeats_no_step(reader: Reader) -> None:
    # parity: F2
    @dataclass
    class Step:
        tool: str | None
        is_risky: bool = False
        answer: str = "Deleted."
        arguments: dict[str, Any] = field(default_factory=dict)

    done, reported, crashes = list[str](), list[str](), [True]

    async def next_step(results: list[str]) -> Step:
        if len(results) == 2 and crashes:
            raise LookupError(crashes.pop())
        steps = [Step("read"), Step("delete", is_risky=True), Step(None)]
        return steps[len(results) - 1]

    async def run_tool(step: Step, key: str) -> str:
        done.append(str(step.tool))
        return f"{step.tool} is done"

    run_agent = reader.copied(
        AGENT, next_step=next_step, run_tool=run_tool, send_text=reported.append
    )["run_agent"]
    with pytest.raises(LookupError):
        await run_agent("Tidy up.", user="ann", run="tidy")
    result, _ = await asyncio.gather(
        run_agent("Tidy up.", user="ann", run="tidy"), reader.does(approve)
    )
    assert (result, done) == ("Deleted.", ["read", "delete"])
    assert reported[-1] == "Running delete"


async def test_graph_is_interrupted_with_link_and_resumed_with_answer(
    reader: Reader, stand_in: Callable[..., None]
) -> None:
    class GraphInterrupt(Exception):
        """The exception with which the library ends a node."""

    def interrupt(value: dict[str, Any]) -> None:
        raise GraphInterrupt(value)

    stand_in("langgraph.types", interrupt=interrupt)
    node, state = reader.copied(GRAPH)["approve"], {"user": "ann", "order": "order 8"}
    with pytest.raises(GraphInterrupt) as first:
        await node(state)
    link = first.value.args[0]
    assert link["message"] == "Send the invoice?"
    await approve(await reader.shop.here.guest(), link["url"])
    with pytest.raises(GraphInterrupt) as second:
        await node(state)
    assert second.value.args[0]["message"] == "To which address?"
    await fill(await reader.shop.here.guest(), second.value.args[0]["url"])
    assert await node(state) == {"sent_to": "Lund"}
    asked = await reader.shop.here.service.elicitations.all(Elicitation)
    assert [one.delivered_at is not None for one in asked] == [True, True]


async def test_synchronous_task_waits_with_asyncio_run(
    reader: Reader, stand_in: Callable[..., None]
) -> None:
    def shared_task(*, acks_late: bool) -> Callable[[Any], Any]:
        return lambda function: function

    stand_in("celery", shared_task=shared_task)
    bill = reader.copied(TASK)["bill"]
    receipt, _ = await asyncio.gather(asyncio.to_thread(bill, "ann", 8), reader.does(pay))
    (paid,) = await reader.shop.here.service.kinds.payments.ledger.all()
    assert (receipt, paid.status.value) == (paid.id, "spent")


async def test_notebook_prints_link_below_cell(
    reader: Reader, capsys: pytest.CaptureFixture[str]
) -> None:
    cell = {**NAMES, "KEY": reader.shop.key}
    running = asyncio.ensure_future(_cell(reader.code(NOTEBOOK), cell))
    out = ""
    while "/e/" not in out and not running.done():
        await asyncio.sleep(0)
        out += capsys.readouterr().out
    assert out.startswith("Connect GitHub\n")
    await connect(await reader.shop.here.guest(), out.split()[-1])
    await running
    assert cell["repositories"]


async def _cell(code: Any, names: dict[str, Any]) -> None:
    waits = eval(code, names)  # noqa: S307 - as a notebook does it
    if inspect.isawaitable(waits):
        await waits
