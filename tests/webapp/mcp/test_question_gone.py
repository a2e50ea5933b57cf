"""A question that its store has lost: the waiting call asks again, with a new link."""

from typing import Any

from flows import elicit
from tests.support.mcp_server import ServerEnv, attached, soon, text_of
from tests.support.records import go_back, scanned
from webapp.elicitations.watcher import _apply
from webapp.records.owners import SERVICE


def asking(server: Any) -> None:
    @server.tool()
    async def visit() -> str:
        done = await elicit.url("Visit", "https://example.org/", elicitation_id="a-visit")
        return f"by {done['by']}"


async def lose(env: ServerEnv, copies: Any) -> None:
    elicitations = env.service.elicitations
    owners = {each.owner for each in await scanned(elicitations.store)} - {SERVICE}
    await go_back(elicitations.store, copies, newer=sorted(owners))
    await _apply(elicitations, None)


# finding: XB5
async def test_waiting_call_shows_a_new_link_after_the_store_lost_its_question(server, revision):
    asking(server)
    async with attached(server) as env, env.caller(revision) as caller:
        copies = await scanned(env.service.elicitations.store)
        call = caller.call("visit")
        lost = await caller.link()
        await lose(env, copies)
        again = await caller.link()
        assert again != lost
        await env.service.completing.complete("a-visit", {"by": "ann"}, owner=None)
        assert text_of(await soon(call)) == "by ann"


# finding: XB5
async def test_repeated_call_gets_a_new_link_after_the_store_lost_its_question(server, revision):
    asking(server)
    async with attached(server) as env, env.caller(revision, declares=None) as caller:
        copies = await scanned(env.service.elicitations.store)
        lost = await caller.link_in_result("visit")
        await lose(env, copies)
        assert await caller.link_in_result("visit") != lost
        await env.service.completing.complete("a-visit", {"by": "ann"}, owner=None)
        assert await caller.text("visit") == "by ann"
