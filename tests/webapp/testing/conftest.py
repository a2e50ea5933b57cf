"""Fixtures: an author's server, built with `mcp` or FastMCP."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import httpx
import pytest

from flows import Money, elicit
from flows.providers import github
from tests.support.mcp_server import new_server
from tests.support.ways import run_each_way
from webapp.testing import AskedPerson, elicit_person

TEA = Money("9.00", "EUR")
DECLARES = {"both": ("form", "url"), "url": ("url",), "form": ("form",), "nothing": ()}


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    run_each_way(metafunc, revisions=("2025-11-25", "2026-07-28"))


@dataclass
class Profile:
    name: str
    age: int = 7


@pytest.fixture
def shop(library: str) -> Any:
    """Return a server with a tool for each kind of question."""
    server = new_server(library)

    @server.tool()
    async def buy_tea(cups: int) -> str:
        receipt = await elicit.payment(TEA, f"{cups} cups of tea")
        return f"{cups} cups for {receipt.price}"

    @server.tool()
    async def give_back() -> str:
        receipt = await elicit.payment(TEA, "Nothing")
        return (await receipt.refund(reason="out of tea")).status

    @server.tool()
    async def list_repositories() -> str:
        account = await elicit.oauth(github, scopes=["repo"])
        async with account.client() as api:
            names = [one["name"] for one in (await api.get("/user/repos")).json()]
        return f"{account.label}: {names[0]}"

    @server.tool()
    async def unlock() -> str:
        return f"a key of {len(await elicit.secret('The key'))} letters"

    @server.tool()
    async def sign_up() -> str:
        profile = await elicit.form("Who are you?", Profile)
        return f"{profile.name}, {profile.age}"

    @server.tool()
    async def delete() -> str:
        return "deleted" if await elicit.confirm("Delete it?", arguments={"name": "x"}) else "kept"

    @server.tool()
    async def lunch() -> str:
        chosen = await elicit.url("What to eat?", "https://kitchen.example/menu")
        return f"eats {chosen.get('dish', 'nothing')}"

    @server.tool()
    async def weather() -> str:
        async with httpx.AsyncClient() as client:
            return client.headers["user-agent"]

    return server


async def a_test(
    server: Any,
    *plan: Callable[[AskedPerson], None],
    tool: str = "",
    arguments: dict[str, Any] | None = None,
    **options: Any,
) -> None:
    """Run an author's test: plan the person's actions, then call the tool."""
    async with elicit_person(server, **options) as person:
        for each in plan:
            each(person)
        if tool:
            await person.call(tool, **(arguments or {}))
