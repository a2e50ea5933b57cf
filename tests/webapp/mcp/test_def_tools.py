"""Plain `def` tools: their needs are asked before the body starts, and read in its thread."""

import asyncio
import re
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import ModuleType

import anyio.from_thread
import httpx

from flows import Money, elicit
from flows.providers import github
from tests.support.ways import protocol
from webapp.testing import elicit_person

DOCUMENT = Path(__file__).parents[3] / "docs" / "how-to" / "writing-tools.md"
ACCOUNT = elicit.oauth(github, scopes=["repo"])
TEA = elicit.payment(Money("9.00", "EUR"), "Tea")
KEY = elicit.secret("The key of the tea room")


async def test_def_tool_calls_an_api_with_the_needed_account(server, revision):
    threads = set[int]()

    @server.tool()
    @elicit.needs(ACCOUNT)
    def list_repositories() -> list[str]:
        threads.add(threading.get_ident())
        with elicit.needed(ACCOUNT).sync_client() as api:
            return [one["name"] for one in api.get("/user/repos").raise_for_status().json()]

    async with elicit_person(server, revision=protocol(revision)) as person:
        person.connects()
        result = await person.call("list_repositories")
        assert "hello-sandbox" in result.text, result.text
        assert not (await person.call("list_repositories")).is_error
        assert len(person.asked) == 1
    assert threading.get_ident() not in threads


async def test_documented_def_tool_sample_runs(revision):
    samples = re.findall(r"```py\n(.*?)```", DOCUMENT.read_text("utf-8"), re.DOTALL)
    (sample,) = [one for one in samples if "list_my_repositories" in one]
    module = ModuleType("sample")
    exec(sample, vars(module))  # noqa: S102 - it is our own
    async with elicit_person(module.mcp, revision=protocol(revision)) as person:
        person.connects()
        assert "octocat/hello-sandbox" in (await person.call("list_my_repositories")).text


async def test_def_tool_can_read_several_needs_repeatedly(server, revision):
    @server.tool()
    @elicit.needs(ACCOUNT, TEA)
    @elicit.needs(KEY)
    def serve_tea() -> str:
        account, receipt = elicit.needed(ACCOUNT), elicit.needed(TEA)
        anyio.from_thread.run(receipt.spend)
        assert elicit.needed(ACCOUNT) == account
        return f"{account.label} {receipt.price} {len(elicit.needed(KEY))}"

    async with elicit_person(server, revision=protocol(revision)) as person:
        person.connects()
        person.pays()
        person.types("sesame")
        assert (await person.call("serve_tea")).text == "octocat 9.00 EUR 6"
        assert [payment.status for payment in await person.payments()] == ["spent"]


async def test_needs_of_a_def_tool_are_not_in_its_schema(server):
    @server.tool()
    @elicit.needs(ACCOUNT)
    def greet(name: str) -> str:
        return f"{name}, {elicit.needed(ACCOUNT).label}"

    async with elicit_person(server) as person:
        (tool,) = (await person.client.list_tools()).tools
        assert list(tool.input_schema["properties"]) == ["name"]


async def test_refused_access_token_is_renewed_for_all_threads_of_a_def_tool(server, revision):
    @server.tool()
    @elicit.needs(ACCOUNT)
    def ask_often() -> str:
        person.clock.tick(hours=2)  # the access token is valid for one hour
        with elicit.needed(ACCOUNT).sync_client() as api, ThreadPoolExecutor(4) as pool:
            replies = list(pool.map(api.get, ["/user"] * 8))
        return " ".join(sorted({str(reply.status_code) for reply in replies}))

    async with elicit_person(server, revision=protocol(revision)) as person:
        person.connects()
        assert (await person.call("ask_often")).text == "200"
        assert (await person.call("ask_often")).text == "200"


async def test_decline_prevents_a_def_tool_from_starting(server, revision):
    begun: list[bool] = []

    @server.tool()
    @elicit.needs(TEA)
    def serve_tea() -> str:
        begun.append(True)
        return "tea"

    async with elicit_person(server, revision=protocol(revision)) as person:
        person.declines()
        assert (await person.call("serve_tea")).code == "ELICITATION_DECLINED"
    assert not begun


async def test_needed_without_a_declared_need_is_an_error(server):
    @server.tool()
    def serve_tea() -> str:
        return str(elicit.needed(TEA).price)

    @server.tool()
    @elicit.needs(TEA, skip_if=lambda _: True)
    def give_tea() -> str:
        return str(elicit.needed(TEA).price)

    async with elicit_person(server) as person:
        for tool in ("serve_tea", "give_tea"):
            result = await person.call(tool)
            assert result.code == "ELICITATION_INVALID_USE", result.text
            assert "Mark the tool with @elicit.needs" in result.text


async def test_async_tool_can_read_needs_but_not_use_the_sync_client(server):
    @server.tool()
    @elicit.needs(ACCOUNT)
    async def greet() -> str:
        return elicit.needed(ACCOUNT).label

    @server.tool()
    @elicit.needs(ACCOUNT)
    async def block() -> str:
        with elicit.needed(ACCOUNT).sync_client() as api:
            return str(api.get("/user").status_code)

    @server.tool()
    @elicit.needs(ACCOUNT)
    async def work_in_a_thread() -> str:
        account = elicit.needed(ACCOUNT)

        def work() -> int:
            with account.sync_client() as api:
                return api.get("/user").status_code

        return str(await asyncio.to_thread(work))

    async with elicit_person(server) as person:
        person.connects()
        assert (await person.call("greet")).text == "octocat"
        person.connects()
        result = await person.call("block")
        assert "async with account.client()" in result.text, result.text
        person.connects()
        assert (await person.call("work_in_a_thread")).text == "200"


async def test_unasked_question_in_a_def_tool_suggests_needed(server):
    @server.tool()
    def serve_tea() -> str:
        _ = elicit.confirm("Tea?")
        return "tea"

    @server.tool()
    async def serve_coffee() -> str:
        _ = elicit.confirm("Coffee?")
        return "coffee"

    async with elicit_person(server) as person:
        result = await person.call("serve_tea")
        assert result.code == "ELICITATION_NOT_ASKED"
        assert "plain `def` function cannot await" in result.text
        assert "elicit.needed(question)" in result.text
        assert "plain `def`" not in (await person.call("serve_coffee")).text


async def test_sync_client_sends_the_access_token_to_provider_hosts_only(server):
    received: list[httpx.Request] = []

    def elsewhere(request: httpx.Request) -> httpx.Response:
        received.append(request)
        return httpx.Response(200)

    @server.tool()
    @elicit.needs(ACCOUNT)
    def wander() -> str:
        with elicit.needed(ACCOUNT).sync_client() as api:
            api.get("https://elsewhere.example/user")
            return str(api.get("/user").json()["login"])

    outside = httpx.MockTransport(elsewhere)
    async with elicit_person(server, outside=outside) as person:
        person.connects()
        assert (await person.call("wander")).text == "octocat"
    assert len(received) == 1
    assert "authorization" not in received[0].headers
