"""Answers to all kinds of questions in three browsers, by a person whose client shows no links."""

import re
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from itertools import product

import httpx2
import pytest
import pytest_asyncio
from mcp import Client
from mcp.client.streamable_http import streamable_http_client
from mcp_types import TextContent

from tests.browser.drivers import NAMES, Driven, driven
from tests.browser.env import open_env
from tests.browser.shop_env import open_shop
from tests.browser.visits import REPOSITORIES
from tests.crash.shop_env import no_certificates

pytestmark = pytest.mark.asyncio(loop_scope="session")
Browsers = Callable[[str], AbstractAsyncContextManager[Driven]]
Steps = Callable[[Driven], Awaitable[None]]


async def account(ann: Driven) -> None:
    await ann.reads("use your GitHub account?")
    await ann.press("Continue")
    await ann.press("Approve")
    await ann.reads("GitHub is connected")


async def payment(ann: Driven) -> None:
    await ann.reads("Pay €9.00 to")
    await ann.press("Continue to payment")
    await ann.press("Pay with a test card")
    await ann.reads("Paid €9.00")


async def secret(ann: Driven) -> None:
    await ann.reads("Enter your key")
    await ann.type("kestrel")
    await ann.press("Save")
    await ann.reads("Saved")


async def form(ann: Driven) -> None:
    await ann.reads("What shall I order?")
    await ann.type("soup")
    await ann.press("Send")
    await ann.reads("Sent")


async def approval(ann: Driven) -> None:
    await ann.reads("Delete the notes?")
    await ann.press("Approve")
    await ann.reads("Approved")


async def url(ann: Driven) -> None:
    await ann.press("Continue to localhost")
    await ann.press("Pay")
    await ann.reads("Done")


KINDS: dict[str, tuple[str, Steps, str]] = {
    "account": ("list_my_repositories", account, REPOSITORIES),
    "payment": ("buy_report", payment, "The premium report is yours"),
    "secret": ("use_key", secret, "a key of 7 letters"),
    "form": ("order_lunch", form, "Ordered soup."),
    "approval": ("delete_notes", approval, "The notes are gone."),
    "url": ("book_a_table", url, "Booked"),
}


@asynccontextmanager
async def calling(server: str) -> AsyncGenerator[Client]:
    async with (
        httpx2.AsyncClient(verify=no_certificates(), timeout=300) as http_client,
        Client(streamable_http_client(f"{server}/mcp", http_client=http_client)) as client,
    ):
        yield client


async def call_text(client: Client, tool: str, arguments: dict[str, str]) -> str:
    (content,) = (await client.call_tool(tool, arguments)).content
    assert isinstance(content, TextContent)
    return content.text


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def browsers(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Browsers]:
    """Provide a function that starts each browser once and yields it without cookies."""
    started = dict[str, Driven]()
    async with AsyncExitStack() as stack:

        @asynccontextmanager
        async def browser(name: str) -> AsyncGenerator[Driven]:
            if name not in started:
                opened = driven(name, tmp_path_factory.mktemp(name))
                started[name] = await stack.enter_async_context(opened)
            try:
                yield started[name]
            finally:
                await started[name].session.command("DeleteAllCookies")
                # Otherwise the page could reload in the next test, when its server has stopped.
                await started[name].open("about:blank")

        yield browser


# One axis of pairs, so that each kind runs in each browser even without `--whole`.
@pytest.mark.parametrize(("browser_name", "kind"), list(product(NAMES, KINDS)))
async def test_person_answers_each_kind_of_question(
    browser_name: str, kind: str, browsers: Browsers
) -> None:
    tool, steps, result = KINDS[kind]
    arguments = {"way": "checkout"} if kind == "url" else {}
    opened = open_shop() if kind == "url" else open_env()
    async with (
        opened as env,
        calling(env.url) as client,
        browsers(browser_name) as ann,
    ):
        text = await call_text(client, tool, arguments)
        (link,) = set(re.findall(rf"{env.url}/e/[\w.~-]+", text))
        await ann.open(link)
        await steps(ann)
        assert result in await call_text(client, tool, arguments)
