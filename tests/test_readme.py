"""What README shows is true: its code runs on both revisions, its settings are what is read."""

import asyncio
import re
import socket
from urllib.parse import urlsplit

import httpx
import mypy.api as mypy
import pytest
from mcp import Client
from mcp_types import ElicitRequestParams, ElicitRequestURLParams, ElicitResult

from tests.support.cli import HOUSE, serving
from tests.support.readme import BLOCKS, PROGRAM, README, finish_at_the_checkout
from webapp.demo.client import ANSWERS, text_of
from webapp.demo.walker import Page, walk
from webapp.settings.settings import TABLE

TOOL_NAMES = (
    "list_my_repositories",
    "buy_report",
    "check_the_weather",
    "order_for_the_team",
    "open_an_account",
    "order_lunch",
    "pay_at_the_till",
)
TOOLS = "\n".join(block for block in BLOCKS if block is not PROGRAM)


@pytest.mark.parametrize("revision", ["legacy", "2026-07-28"])
async def test_the_code_of_the_readme_does_what_it_says(tmp_path, revision):
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    here = f"http://127.0.0.1:{port}"
    environment = {"ELICIT_URL": here, "ELICIT_MIN_ANSWER": "0"}
    (tmp_path / "my_tools.py").write_text(TOOLS.replace("http://127.0.0.1:8765", here))
    said = list[str]()
    async with (
        serving("my_tools:mcp", "--sandbox", home=tmp_path, port=port, extra=environment) as server,
        httpx.AsyncClient() as browser,
        asyncio.TaskGroup() as group,
    ):
        sandbox = (await browser.get(f"{here}/health")).json()["sandbox"]

        async def be_a_person(link: str) -> None:
            page = Page((await browser.get(link)).text)
            if "asks you to open" not in page.heading:
                await walk(browser, link, answers=ANSWERS, also=[sandbox], say=lambda _: None)
                return
            sent = await browser.post(link, data=page.forms[0].fields)
            place = sent.headers["location"]
            if place.startswith("https://example.com/terms?back="):
                back = await browser.get(place.partition("?back=")[2])
                said.append(Page(back.text).heading)
            elif place.startswith("https://example.com/till/"):
                order = urlsplit(place).path.rpartition("/")[2]
                said.append(await finish_at_the_checkout(tmp_path, order, environment))
            else:
                said.append((await browser.post(place)).text)

        async def show(context, params: ElicitRequestParams) -> ElicitResult:
            if not isinstance(params, ElicitRequestURLParams):
                asked = params.requested_schema["properties"]
                filled: dict[str, str | int] = {"dish": "soup", "portions": 4} if asked else {}
                return ElicitResult(action="accept", content=dict(filled))
            group.create_task(be_a_person(params.url))
            return ElicitResult(action="accept")

        async with Client(f"{server.url}/mcp", mode=revision, elicitation_callback=show) as client:
            results = [text_of(await client.call_tool(tool, {})) for tool in TOOL_NAMES]
    report = results.pop(1)
    assert re.fullmatch(r"Report \S{20,} is yours; 9\.00 EUR was paid\.", report)
    assert results == [
        "octocat/hello-sandbox\noctocat/secret-plans\noctocat/sand-castle",
        "The service answers to an API key of 20 characters.",
        "Ordered 4 of soup.",
        "The person has accepted the terms.",
        "The person would like soup.",
        "Paid by card.",
    ]
    assert said == ["Done", "accepted", "accepted"]


def test_the_first_screen_has_the_tool_and_the_two_commands():
    first_screen = "\n".join(README.splitlines()[:35])
    assert BLOCKS[0] in first_screen
    assert "make run " in first_screen
    assert ".venv/bin/elicit demo " in first_screen


def test_the_settings_of_the_readme_are_those_that_are_read():
    section = README.partition("\n## Settings\n")[2].partition("\n## ")[0]
    told = [line for line in section.splitlines() if line.startswith("| `")]
    assert told == [f"| `{row.name}` | {row.shown_default} | {row.says} |" for row in TABLE]


def test_every_file_that_the_readme_links_is_there():
    links = re.findall(r"\]\((?!https?:)([^)#]+)\)", README)
    assert links
    assert [link for link in links if not (HOUSE / link).exists()] == []


def test_the_samples_are_typed(tmp_path):
    # finding: H5
    for name, text in {"my_tools.py": TOOLS, "finish.py": PROGRAM}.items():
        (tmp_path / name).write_text(text)
    # As `make check` does, whose cache it finds; `custom_route` has no types in its library.
    about = ("--config-file", str(HOUSE / "pyproject.toml"), "--allow-untyped-decorators")
    samples = [str(tmp_path / name) for name in ("my_tools.py", "finish.py")]
    found, wrong, _ = mypy.run([*about, "--cache-dir", str(HOUSE / ".mypy_cache"), *samples])
    assert (found.startswith("Success"), wrong) == (True, ""), found
