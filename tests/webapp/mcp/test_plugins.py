"""Plugins: told of each question once, before anybody sees its link, and never in its way."""

from typing import Any

import pytest

from flows import elicit
from tests.support.mcp_server import caller_of
from webapp.elicitations.plugins import Started


class Notes:
    def __init__(self) -> None:
        self.questions: list[Started] = []

    async def started(self, question: Started) -> None:
        self.questions.append(question)


class Broken:
    def started(self, question: Started) -> None:
        raise RuntimeError("the pager is down")


class Deaf:
    """Has nothing to be told by."""


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
    plugins = [Broken(), Deaf(), notes]
    async with caller_of(
        server, revision, plugins=plugins, declares="all", fills=["cancel", {}]
    ) as (env, caller):
        assert await caller.text("delete", count=5) == "kept"
        assert await caller.text("delete", count=5) == "deleted"
        (told,) = notes.questions  # the second call joined the question of the first
        (row,) = await env.elicitations()
        assert (told.id, told.kind, told.tool) == (row.id, "confirm", "delete")
        assert (told.message, told.arguments) == ("Delete 5 to-dos?", {"count": 5})
