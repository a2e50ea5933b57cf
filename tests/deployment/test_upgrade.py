"""Two consecutive versions of the server on one store: a rolling upgrade and a rollback.

With protocol revision 2026-07-28, each request of a call can reach another process. With 2025-11-25
a call stays with its session's process, and the person can be routed to either process.
"""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from itertools import combinations_with_replacement
from pathlib import Path

import pytest
import pytest_asyncio

from tests.deployment.versions import VERSIONS, Serving, Site, link_in
from tests.support.mcp_server import LEGACY, MODERN, CutOffCaller
from tests.support.shared_stores import STORES

ORDER = {"what": "tea"}
DONE = "tea for 4 letters"


@pytest_asyncio.fixture(name="site", params=STORES)
async def _site(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Site]:
    async with STORES[request.param](tmp_path) as address:
        yield Site(home=tmp_path, store=address)


def other(version: str) -> str:
    return next(each for each in VERSIONS if each != version)


@asynccontextmanager
async def asked(caller: CutOffCaller) -> AsyncIterator[tuple[str, AsyncIterator[str]]]:
    """Start a call with revision 2025-11-25. Provide its link and the rest of its stream."""
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


@dataclass(kw_only=True)
class Balancer:
    """A load balancer that routes each request to the next process, and the phase of the upgrade.

    In phase 0 the first version serves, in phase 1 both, in phase 2 the other one.
    """

    routes: list[Serving]
    phase: int = 0
    changed: asyncio.Condition = field(default_factory=asyncio.Condition)
    open_requests: Counter[int] = field(default_factory=Counter[int])  # by the port of the process
    done: Counter[int] = field(default_factory=Counter[int])  # by phase

    @asynccontextmanager
    async def route(self, phase: int) -> AsyncIterator[Serving]:
        """Wait until `phase` has begun, and provide the process for one step of a call."""
        async with self.changed:
            await self.changed.wait_for(lambda: self.phase >= phase)
        serving = self.routes[0]
        self.routes.append(self.routes.pop(0))
        self.open_requests[serving.port] += 1
        try:
            yield serving
        finally:
            self.open_requests[serving.port] -= 1
            self.done[phase] += 1
            async with self.changed:
                self.changed.notify_all()

    async def begin(self, phase: int) -> None:
        async with self.changed:
            self.phase = phase
            self.changed.notify_all()

    async def wait_for(self, condition: Callable[[], bool]) -> None:
        async with self.changed:
            await self.changed.wait_for(condition)


@pytest.mark.parametrize("first", VERSIONS)
async def test_calls_that_are_made_during_replacement_all_finish(site: Site, first: str) -> None:
    orders = list(combinations_with_replacement(range(3), 3)) * 2  # phases of a call's three steps

    async def text_of_call(number: int) -> str:
        asks, answers, ends = orders[number]
        what = {"what": f"tea {number}"}
        async with balancer.route(asks) as serving, serving.caller(MODERN) as caller:
            result = (await caller.call("order", **what)).json()["result"]
        async with balancer.route(answers) as serving:
            await serving.person(link_in(str(result)))
        async with balancer.route(ends) as serving, serving.caller(MODERN) as caller:
            return (await caller.call("order", state=result["requestState"], **what)).text

    def is_half_done(phase: int) -> bool:
        return balancer.done[phase] * 2 >= sum(order.count(phase) for order in orders)

    async with site.served(first) as here, asyncio.TaskGroup() as group:
        balancer = Balancer(routes=[here])
        calls = [group.create_task(text_of_call(number)) for number in range(len(orders))]
        await balancer.wait_for(lambda: is_half_done(0))
        async with site.served(other(first)) as there:
            balancer.routes.append(there)
            await balancer.begin(1)
            await balancer.wait_for(lambda: is_half_done(1))
            balancer.routes.remove(here)
            await balancer.wait_for(lambda: balancer.open_requests[here.port] == 0)
            here.process.terminate()
            await balancer.begin(2)
            texts = await asyncio.gather(*calls)
    expected = [f"tea {number} for 4 letters" for number in range(len(orders))]
    assert [done for done, text in zip(expected, texts, strict=True) if done not in text] == []
