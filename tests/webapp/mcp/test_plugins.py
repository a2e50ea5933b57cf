"""Plugins: told of each question once, before anybody sees its link, and never in its way."""

from typing import Any

import pytest

from flows import elicit
from tests.support.mcp_server import soon, staged, text_of
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
    async with (
        staged(server, plugins=plugins) as stage,
        stage.caller(revision, declares="all", fills=["cancel", {}]) as caller,
    ):
        assert text_of(await soon(caller.call("delete", count=5))) == "kept"
        assert text_of(await soon(caller.call("delete", count=5))) == "deleted"
        (told,) = notes.questions  # the second call joined the question of the first
        (row,) = await stage.elicitations()
        assert (told.id, told.kind, told.tool) == (row.id, "confirm", "delete")
        assert (told.message, told.arguments) == ("Delete 5 to-dos?", {"count": 5})
