"""Answers that come immediately, after two seconds or never, from the official clients.

The clients include the Inspector. docs/reference/clients.md documents the result of each.
"""

import re
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from flows import elicit
from tests.support.mcp_server import ServerEnv, eventually, new_server, server_env
from tests.typescript.env import FORM, OLDER, Official, calling, text_of
from tests.typescript.inspector import ERAS, Inspector
from webapp.calls.clients import SentState
from webapp.demo.walker import walk
from webapp.limits import CallLimits

DOCUMENT = (Path(__file__).parents[2] / "docs" / "reference" / "clients.md").read_text("utf-8")
# Values of `min_answer`. With MINUTE, every answer in these tests is too fast for a person. With
# SECOND, an answer after two seconds can come from a person.
MINUTE, SECOND = timedelta(minutes=1), timedelta(seconds=1)
SOON = CallLimits(silence=timedelta(seconds=0.5))
# With this limit, every client is silent for too long when it is asked again.
AT_ONCE = CallLimits(silence=timedelta(microseconds=1))
# The results as docs/reference/clients.md words them.
LINK = "the link"
NOBODYS = "`ELICITATION_NOBODY_ASKED` and the link"
NO = "`ELICITATION_DECLINED`"
LINK_LATER = "the link, after the client was silent for too long"
LINK_NEXT = "the link, after the client was silent for too long and was asked once more"
NOBODY, DECLINED = "ELICITATION_NOBODY_ASKED", "ELICITATION_DECLINED"


@pytest.fixture
def server() -> Any:
    server = new_server("mcp")

    @server.tool()
    async def ask() -> str:
        return f"hello {await elicit.form('Who are you?')}"

    return server


def says(*cells: str) -> bool:
    """Return True if the page has this row."""
    return f"| {' | '.join(cells)} |" in DOCUMENT


def code_of(result: dict[str, Any]) -> object:
    return result.get("_meta", {}).get("code")


async def answer(env: ServerEnv, result: dict[str, Any]) -> None:
    """Open the link in the result as the person, and answer on our page."""
    link = re.search(r"http://\S+/e/\S+", text_of(result))
    assert link is not None, result
    browser = (await env.person()).browser
    answers = {"answer.response": "Ada"}
    await walk(browser, link[0], answers=answers, say=lambda _: None)


async def test_immediate_answer_is_ignored(node: str, official: Official, server: Any) -> None:
    async with (
        server_env(server, min_answer=MINUTE) as env,
        calling(node, official, env.mcp_url, declares=FORM, answers=["decline"]) as caller,
    ):
        caller.begin("ask")
        await caller.asked()
        result = await caller.result()
        assert code_of(result) == NOBODY
        await answer(env, result)
        assert text_of(await caller.call("ask")) == "hello Ada"
    assert says(f"TypeScript, `{official.library}`", official.revision, "declines at once", NOBODYS)


async def test_answer_after_two_seconds_counts(node: str, official: Official, server: Any) -> None:
    options: Any = {"declares": FORM, "answers": ["decline"], "answers_after": 2.0}
    async with (
        server_env(server, min_answer=SECOND) as env,
        calling(node, official, env.mcp_url, **options) as caller,
    ):
        caller.begin("ask")
        await caller.asked()
        assert code_of(await caller.result()) == DECLINED
    assert says(f"TypeScript, `{official.library}`", official.revision, "declines after 2 s", NO)


async def test_never_answering_client_gets_link(node: str, official: Official, server: Any) -> None:
    options: Any = {"declares": FORM, "answers": ["accept"], "answers_after": "never"}
    limits = SOON if official.revision == OLDER else AT_ONCE
    async with (
        server_env(server, min_answer=SECOND, limits=limits) as env,
        calling(node, official, env.mcp_url, **options) as first,
        calling(node, official, env.mcp_url, **options) as second,
        calling(node, official, env.mcp_url, **options) as third,
    ):
        first.begin("ask")
        await first.asked()
        if official.revision == OLDER:
            result = await first.result()
        else:  # `first` hangs and `second` is asked again, so `third` gets the link
            second.begin("ask")
            await second.asked()
            result = await third.call("ask")
        await answer(env, result)
        assert text_of(await third.call("ask")) == "hello Ada"
        await first.kill()
        await second.kill()
    came = LINK_LATER if official.revision == OLDER else LINK_NEXT
    assert says(f"TypeScript, `{official.library}`", official.revision, "never answers", came)


@pytest.mark.parametrize("revision", ERAS)
async def test_single_call_of_inspector_gets_link(
    newer_node: str, revision: str, server: Any, tmp_path: Path
) -> None:
    async with server_env(server) as env:
        inspector = Inspector(node=newer_node, home=tmp_path, url=env.mcp_url, revision=revision)
        await answer(env, await inspector.call_once("ask"))
        assert text_of(await inspector.call_once("ask")) == "hello Ada"
    assert says("Inspector, `inspector --cli`", revision, "declares nothing", LINK)


@pytest.mark.parametrize("revision", ERAS)
async def test_immediate_decline_in_inspector_is_ignored(
    newer_node: str, revision: str, server: Any, tmp_path: Path
) -> None:
    async with server_env(server, min_answer=MINUTE) as env:
        inspector = Inspector(node=newer_node, home=tmp_path, url=env.mcp_url, revision=revision)
        async with inspector.connected("one"):
            data = await inspector.decline("one", await inspector.asked("one", "ask"))
            assert code_of(data) == NOBODY
            await answer(env, data)
            assert text_of(await inspector.call("one", "ask")) == "hello Ada"
    assert says("Inspector, `mcpdo`", revision, "declines at once", NOBODYS)


@pytest.mark.parametrize("revision", ERAS)
async def test_later_decline_in_inspector_counts(
    newer_node: str, revision: str, server: Any, tmp_path: Path
) -> None:
    async with server_env(server, min_answer=timedelta(milliseconds=1)) as env:
        inspector = Inspector(node=newer_node, home=tmp_path, url=env.mcp_url, revision=revision)
        async with inspector.connected("one"):
            answer = await inspector.decline("one", await inspector.asked("one", "ask"))
            assert code_of(answer) == DECLINED
    assert says("Inspector, `mcpdo`", revision, "declines later", NO)


@pytest.mark.parametrize("revision", ERAS)
async def test_unanswered_question_in_inspector_leads_to_link(
    newer_node: str, revision: str, server: Any, tmp_path: Path
) -> None:
    limits = SOON if revision == OLDER else AT_ONCE
    async with server_env(server, min_answer=SECOND, limits=limits) as env:
        inspector = Inspector(node=newer_node, home=tmp_path, url=env.mcp_url, revision=revision)
        async with inspector.connected("one", "two", "three"):
            await inspector.asked("one", "ask")
            if revision == OLDER:
                sent_questions = env.service.clients.sent_questions
                await eventually(
                    lambda: any(one.state is SentState.LINKED for one in sent_questions.values())
                )
            else:
                await inspector.asked("two", "ask")
            await answer(env, await inspector.call("three", "ask"))
            assert text_of(await inspector.call("three", "ask")) == "hello Ada"
    came = LINK_LATER if revision == OLDER else LINK_NEXT
    assert says("Inspector, `mcpdo`", revision, "never answers", came)
