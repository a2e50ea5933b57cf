"""Two neighbouring versions on one store: a rolling upgrade and a rollback.

On 2026-07-28 each request of a call can reach another process. On 2025-11-25 a call stays with its
session, and the person can be routed to either process.
"""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import pytest_asyncio

from tests.deployment.versions import STORES_BEFORE, VERSIONS, Site, link_in
from tests.support.mcp_server import LEGACY, MODERN, CutOffCaller
from tests.support.shared_stores import STORES

ORDER = {"what": "tea"}
DONE = "tea for 4 letters"


@pytest_asyncio.fixture(name="site", params=STORES_BEFORE)
async def _site(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Site]:
    async with STORES[request.param](tmp_path) as address:
        yield Site(home=tmp_path, store=address)


def other(version: str) -> str:
    return next(each for each in VERSIONS if each != version)


@asynccontextmanager
async def asked(caller: CutOffCaller) -> AsyncIterator[tuple[str, AsyncIterator[str]]]:
    """Start a call of 2025-11-25 that waits. Provide its link and the rest of its stream."""
    request = {"jsonrpc": "2.0", "id": 7, "method": "tools/call"}
    request |= {"params": {"name": "order", "arguments": ORDER}}
    async with caller.http.stream(
        "POST", caller.url, json=request, headers=caller.headers
    ) as stream:
        lines = stream.aiter_lines()
        async for line in lines:
            if "/e/" in line:
                yield link_in(line), lines
                return
    raise AssertionError("no link was shown")


async def finished(caller: CutOffCaller, state: str | None = None) -> str:
    """Repeat the call, and return its response."""
    return (await caller.call("order", state=state, **ORDER)).text


@pytest.mark.parametrize("asks", VERSIONS)
async def test_question_asked_by_old_or_new_version_is_answered_at_the_other(
    site: Site, asks: str
) -> None:
    async with site.served(asks) as here, site.served(other(asks)) as there:
        async with here.caller(LEGACY) as caller, asked(caller) as (link, lines):
            await there.person(link)
            assert any([DONE in line async for line in lines])
        async with here.caller(MODERN) as caller, there.caller(MODERN) as again:
            answer = (await caller.call("order", **ORDER)).json()["result"]
            assert answer["resultType"] == "input_required", answer
            await there.person(link_in(str(answer)))
            assert DONE in await finished(again, state=answer["requestState"])


@pytest.mark.parametrize("revision", [LEGACY, MODERN])
@pytest.mark.parametrize("first", VERSIONS)
async def test_question_asked_by_replaced_version_is_answered_at_its_successor(
    site: Site, first: str, revision: str
) -> None:
    async with site.served(first) as here, here.caller(revision) as caller:
        if revision == LEGACY:
            async with asked(caller) as (link, lines):
                here.process.terminate()
                assert any(["Still waiting" in line async for line in lines])
        else:
            link = link_in((await caller.call("order", **ORDER)).text)
    async with site.served(other(first)) as there, there.caller(revision) as caller:
        await there.person(link)
        assert DONE in await finished(caller)
