"""Plugins beside a served server: told of each question once, before anybody sees its link."""

from typing import Any

import pytest

from flows import elicit
from flows.hooks import StartedQuestion, after
from tests.support.mcp_server import caller_of


class Notes:
    def __init__(self) -> None:
        self.questions: list[StartedQuestion] = []

    @after("start")
    async def note(self, question: StartedQuestion) -> None:
        self.questions.append(question)


class Broken:
    @after("start")
    def page_somebody(self, question: StartedQuestion) -> None:
        raise RuntimeError("the pager is down")


@pytest.fixture
def server(server: Any) -> Any:
    @server.tool()
    async def delete(count: int) -> str:
        question = elicit.confirm(f"Delete {count} to-dos?", arguments={"count": count})
        return "deleted" if await question else "kept"

    return server


async def test_whoever_runs_the_server_is_told_what_is_asked(server, revision):
    # parity: T8
    notes = Notes()
    async with caller_of(
        server, revision, plugins=[notes, Broken()], declares="all", fills=["cancel", {}]
    ) as (env, caller):
        assert await caller.text("delete", count=5) == "kept"
        assert await caller.text("delete", count=5) == "deleted"
        (told,) = notes.questions  # the second call joined the question of the first
        (row,) = await env.elicitations()
        assert (told.id, told.kind, told.tool) == (row.id, "confirm", "delete")
        assert (told.message, told.arguments) == ("Delete 5 to-dos?", {"count": 5})
