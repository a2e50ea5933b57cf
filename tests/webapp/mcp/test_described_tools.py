"""MCP titles and descriptions are stored with each question, on both libraries and revisions."""

from typing import Annotated, Any

import mcp_types as types
import pytest
from pydantic import Field

from flows import elicit
from flows.elicitation.states import Elicitation
from flows.elicitation.tool_call import DescribedTool
from tests.support import markup
from tests.support.mcp_server import URL, caller_of
from tests.support.pictures import data_uri, png
from webapp.api.access import Requester
from webapp.api.states import to_question_state
from webapp.mcp.tools import low_level_of
from webapp.settings.brand import image_of

DESTRUCTIVE = types.ToolAnnotations(destructive_hint=True)


@pytest.fixture
def server(server: Any) -> Any:
    low_level_of(server).title = "Acme Shop"

    @server.tool(title="Delete a repository", annotations=DESTRUCTIVE)
    def delete_repo(
        with_backups: bool, repo: Annotated[str, Field(title="Repository")], reason: str = ""
    ) -> str:
        """Delete a repository for good, with its issues, releases and stars.

        Args: these words are for the model.
        """
        return f"deleted {repo}"

    @server.tool(title="Ask a question")
    async def ask() -> str:
        """Ask one question."""
        return await elicit.form("Where to?")

    @server.tool()
    async def plain(order: str) -> str:
        return str(await elicit.confirm("Refund it?", arguments={"order": order}))

    return server


async def _asked(env: Any) -> Elicitation:
    found: list[Elicitation] = await env.elicitations()
    (asked,) = found
    return asked


# finding: XP4
@pytest.mark.every_way
async def test_question_stores_titles_of_server_tool_and_client(server, revision):
    async with caller_of(server, revision, declares=URL) as (env, _):
        named = env.caller(revision, declares=URL, name="Claude", title="Claude Desktop")
        async with named as caller:
            caller.begin("ask")
            await caller.link()
            asked = (await _asked(env)).request
            assert (asked.server, asked.server_title) == ("shop", "Acme Shop")
            assert (asked.client, asked.client_title) == ("Claude", "Claude Desktop")
            assert asked.described == DescribedTool(name="ask", title="Ask a question")


@pytest.mark.every_way
async def test_title_that_the_author_changes_later_is_stored_with_the_next_question(
    server, revision
):
    async with caller_of(server, revision, declares=URL) as (env, caller):
        low_level_of(server).title = "Acme Market"
        caller.begin("ask")
        await caller.link()
        assert (await _asked(env)).request.server_title == "Acme Market"


# finding: XP3
@pytest.mark.every_way
async def test_gate_stores_what_the_author_says_about_its_tool(server, revision):
    async with caller_of(server, revision, declares=URL) as (env, caller):
        caller.begin("delete_repo", repo="acme/website", with_backups=True)
        await caller.link()
        described = (await _asked(env)).request.described
        assert described is not None
        assert described.title == "Delete a repository"
        assert (described.description or "").startswith("Delete a repository for good")
        assert described.is_destructive
        assert described.arguments == (
            ("with_backups", "With backups"),
            ("repo", "Repository"),
            ("reason", "Reason"),
        )


# finding: XP4
async def test_http_api_names_the_tool_and_the_server_by_title(server, revision):
    async with caller_of(server, revision, declares=URL) as (env, caller):
        caller.begin("ask")
        await caller.link()
        state = await to_question_state(Requester(service=env.service), await _asked(env))
        assert (state.asked_by, state.tool_title, state.server_title) == (
            "ask",
            "Ask a question",
            "Acme Shop",
        )


# finding: XP4
# finding: XP12
async def test_page_shows_titles_and_the_servers_own_icon(server, revision):
    low_level_of(server).icons = [types.Icon(src=data_uri(png(48, 48)))]
    low_level_of(server).website_url = "https://acme.example"
    async with caller_of(server, revision, declares=URL) as (env, caller):
        caller.begin("delete_repo", repo="acme/website", with_backups=True)
        person, link = await env.person(), await caller.link()
        page = await person.visit(link)
        assert page.heading == "Delete a repository?"
        assert "Acme Shop" in page.text
        assert 'href="https://acme.example"' in page.text
        assert page.text.index("With backups") < page.text.index("Repository</bdi>")
        logo = await person.browser.get(f"{env.url}/static/{image_of(png(48, 48)).name}")
        assert (logo.status_code, logo.content) == (200, png(48, 48))
        assert logo.headers["content-type"] == "image/png"
        assert (await person.browser.get(f"{env.url}/static/own/nothing.css")).status_code == 404


async def test_lists_of_a_person_name_tools_and_clients_by_title(server, revision):
    # finding: XP4
    async with caller_of(server, revision, declares=URL) as (env, _):
        named = env.caller(revision, declares=URL, name="claude", title="Claude Desktop")
        async with named as caller:
            caller.begin("ask")
            person, _ = await env.person(), await caller.link()
            activity = markup.Page((await person.visit(f"{env.url}/activity")).text).main_text()
            assert "asked by Ask a question in Claude Desktop" in activity
            home = markup.Page((await person.visit(f"{env.url}/")).text).main_text()
            assert "Delete a repository (delete_repo)Delete a repository for good" in home
            assert "these words are for the model" not in home


async def test_question_of_a_tool_without_a_title_stores_no_title(server, revision):
    async with caller_of(server, revision, declares=URL) as (env, caller):
        caller.begin("plain", order="A-17")
        await caller.link()
        described = (await _asked(env)).request.described
        assert described == DescribedTool(name="plain", arguments=(("order", "Order"),))


@pytest.mark.parametrize(
    ("title", "stored"),
    [
        ("x" * 5000, "x" * 200),
        ("\u202egnihton\u2066 \x00", "gnihton"),
        ("<script>alert(1)</script>", "<script>alert(1)</script>"),
        (" \u3164 ", None),
        ("a\nb", "a b"),
    ],
)
async def test_hostile_title_of_a_client_is_cut_and_has_no_invisible_characters(
    server, revision, title: str, stored: str | None
):
    async with (
        caller_of(server, revision, declares=URL) as (env, _),
        env.caller(revision, declares=URL, name="evil", title=title) as caller,
    ):
        caller.begin("ask")
        await caller.link()
        assert (await _asked(env)).request.client_title == stored


@pytest.mark.parametrize("path", ["form", "url", "secret", "confirm"])
async def test_titled_tool_is_named_in_activity_and_on_ended_page_of_each_kind(
    server, revision, path
):
    questions = {
        "form": lambda: elicit.form("Where to?"),
        "url": lambda: elicit.url("Sign the contract", "https://example.org/sign"),
        "secret": lambda: elicit.secret("Your key"),
        "confirm": lambda: elicit.confirm("Go on?"),
    }

    @server.tool(title="Ask for one thing")
    async def ask_one() -> str:
        return str(await questions[path]().outcome())

    async with caller_of(server, revision, declares=URL) as (env, caller):
        caller.begin("ask_one")
        person, link = await env.person(), await caller.link()
        activity = markup.Page((await person.visit(f"{env.url}/activity")).text).main_text()
        assert "asked by Ask for one thing" in activity
        assert (await person.press(link, to="/decline")).status == 303
        assert (await person.visit(link)).heading == "You declined"
