"""Tests of each framework with its defaults: the person is asked once, and no run fails."""

import json
import os
import sys
from collections import Counter
from datetime import timedelta
from typing import Any

import pytest

from flows import elicit
from tests.frameworks.packages import packages_of
from tests.support.cli import PROJECT
from tests.support.mcp_server import LIBRARIES, ServerEnv, new_server, server_env
from tests.support.processes import ended, start
from webapp.limits import CallLimits

# In ASKING frameworks, the client shows the question in a form. In SILENT ones, the model shows the
# person a link in the chat.
ASKING = (
    "langchain",
    "langchain_mcp_adapters_asking",
    "pydantic_ai_asking",
    "pydantic_ai_asking_legacy",
)
SILENT = (
    *("langchain_mcp_adapters", "pydantic_ai", "pydantic_ai_legacy"),
    *("openai_agents", "openai_agents_patient"),
)
RETURNS = {
    "name": "Ann wants tea (1)",
    "book": "booked tea: True (1)",
    "erase": "erased tea (1)",
    "three": "Ann True Ann (1)",
}
A_SECOND = timedelta(seconds=1)


def shop(library: str) -> Any:
    server, done = new_server(library), Counter[str]()

    def times(tool: str) -> str:
        done[tool] += 1
        return f"({done[tool]})"

    @server.tool()
    async def name(what: str) -> str:
        return f"{await elicit.form(f'Who wants {what}?')} wants {what} {times('name')}"

    @server.tool()
    async def book(what: str) -> list[str]:
        return [f"booked {what}: {await elicit.confirm(f'Book {what}?')} {times('book')}"]

    @server.tool()
    @elicit.gate
    async def erase(what: str) -> str:
        return f"erased {what} {times('erase')}"

    @server.tool()
    async def three(what: str) -> str:
        who, is_sure = await elicit.together(
            elicit.form(f"Who wants {what}?"), elicit.confirm("Sure?", key="sure")
        )
        return f"{who} {is_sure} {await elicit.form('Where?', key='where')} {times('three')}"

    return server


async def runs_of(framework: str, env: ServerEnv, *tools: str, early: int) -> list[Any]:
    """Return the results of a run for each tool, all in one process: its imports take seconds."""
    process = await start(
        *(sys.executable, "-m", "tests.frameworks.agents"),
        *(framework, env.mcp_url, str(early), *tools),
        name=framework,
        cwd=PROJECT,
        env={**os.environ, "PYTHONPATH": packages_of(framework)},
    )
    run = await ended(process)
    assert run.status == 0, run.err
    runs = [json.loads(line) for line in run.out.splitlines()]
    assert len(runs) == len(tools), run.out
    return runs


@pytest.mark.parametrize("library", LIBRARIES)
@pytest.mark.parametrize("framework", ASKING)
async def test_person_is_asked_once_in_client_and_answer_is_used(framework, library):
    # finding: XC1
    async with server_env(shop(library)) as env:
        runs = await runs_of(framework, env, *RETURNS, early=0)
        for (tool, returns), run in zip(RETURNS.items(), runs, strict=True):
            assert run["error"] is None
            assert run["asked"] == (3 if tool == "three" else 1), run
            assert [returns in received for received in run["results"]] == [True], run


@pytest.mark.parametrize("library", LIBRARIES)
@pytest.mark.parametrize("framework", SILENT)
async def test_model_gets_link_and_early_repeated_calls_do_not_fail_the_run(framework, library):
    # finding: XC2
    # finding: XC7
    limits = CallLimits() if framework == "openai_agents" else CallLimits(link=A_SECOND)
    async with server_env(shop(library), limits=limits) as env:
        tools = ("name", "book")
        runs = await runs_of(framework, env, *tools, early=3)
        for tool, run in zip(tools, runs, strict=True):
            assert run["error"] is None
            *waiting, returned = run["results"]
            assert RETURNS[tool] in returned
            links = ["/e/" in received and "show" in received.lower() for received in waiting]
            # openai-agents waits only 5 seconds for a response. The server learns this limit in the
            # first call, whose response comes too late.
            lost = 1 if framework == "openai_agents" and tool == "name" else 0
            assert links.count(False) == lost, run
            assert len(waiting) >= 3
