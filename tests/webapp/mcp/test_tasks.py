"""Tasks: a call whose person takes days holds no request, and its client looks in for it."""

import asyncio
from typing import Any

import pytest

from flows import elicit
from tests.support.mcp_server import server_env
from tests.support.task_client import task_client


class Shop:
    """Tools of an author's, and how often their bodies began."""

    def __init__(self, server: Any) -> None:
        self.began: list[str] = []
        self.may_end = asyncio.Event()
        self.may_end.set()

        @server.tool()
        async def visit(page: str = "terms") -> str:
            self.began.append(page)
            await elicit.url("Please read this", f"https://shop.example/{page}")
            await self.may_end.wait()
            return f"read {page}"

        @server.tool()
        async def delete() -> str:
            return "deleted" if await elicit.confirm("Delete it all?") else "kept"

        @server.tool()
        async def plain(words: str = "done") -> str:
            self.began.append("plain")
            await self.may_end.wait()
            return words


@pytest.fixture
def shop(server: Any) -> Shop:
    return Shop(server)


@pytest.mark.every_way
async def test_a_task_waits_for_its_person_and_then_comes_to_its_end(
    server: Any, shop: Shop, revision: str
) -> None:
    async with server_env(server) as env, task_client(env, revision) as client:
        task = await client.task("visit")
        waiting = await client.until(task, "input_required")
        assert waiting["taskId"] == task
        (asked,) = await env.elicitations()
        assert await client.status(task) == "input_required"
        await env.complete(env.link_of(asked))
        assert await client.text(task) == "read terms"
        assert await client.status(task) == "completed"
        assert shop.began == ["terms", "terms"]
