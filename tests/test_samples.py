"""Tests that the samples in README and docs/ work: their code, commands and files."""

import argparse
import ast
import asyncio
import json
import re
import shlex
import socket
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from urllib.parse import urlsplit

import httpx
import pytest
from mcp import Client
from mcp_types import ElicitRequestParams, ElicitRequestURLParams, ElicitResult

from docs.generated import parser_of, subcommands
from tests.cookbook.servers import EXAMPLES, PLAYS
from tests.support.cli import PROJECT, run, serving
from tests.support.samples import FILES, PAGES, finish_at_the_checkout, one_server, samples
from webapp.cli.arguments import with_ids
from webapp.cli.main import COMMANDS, parser_for
from webapp.demo.client import ANSWERS, text_of
from webapp.demo.walker import Page, walk
from webapp.settings.config_file import read_declarations

# The result of each tool for a person who answers as `_answer` does.
SAYS = {
    "list_my_repositories": r"\W*octocat/hello-sandbox\W+octocat/secret-plans\W+\S+/sand-castle\W*",
    "count_repositories": r"octocat has 3 repositories\.",
    "buy_summary": r"Summary 1, about stars, for octocat\. 9\.00 EUR was paid\.",
    "buy_report": r"Report \S{20,} is yours; 9\.00 EUR was paid\.",
    "check_the_weather": "The service answers to an API key of 20 characters.",
    "order_for_the_team": "Ordered 4 of soup.",
    "open_an_account": "The person has accepted the terms.",
    "star_a_repository": "octocat can star octocat/hello-sandbox.",
    "delete_release": r"v0\.9 is deleted\.",
    "publish_release": r"v1\.0 is published\.",
    "describe_release": "octocat would publish it.",
    **dict.fromkeys(("refund", "ship"), r".*\[approvers\.finance\] in elicit\.toml is not set\..*"),
    "pay_everybody": r"\d payments",
    "draw_tickets": "4 tickets",
    "book_a_free_room": "The garden room is free for 4 nights.",
    "book_seat": r"Seat 14 is yours; 9\.00 EUR was paid\.",
    "book_a_room": "The garden room is booked for 4 nights.",
    "buy_a_chapter": r"Chapter one is on its way; 9\.00 EUR was paid\.",
    "buy_the_book": r"The book is yours; 49\.00 EUR was paid\.",
    "count_contacts": "Ada has 12 contacts.",
    "join_the_lunch_club": "The person has joined.",
    "order_lunch": "The person would like soup.",
    "pay_at_the_till": "Paid by card.",
    "use_key": "The station answers to a key of 20 characters.",
    "greet": "Hello, Ada.",
    "publish_minutes": r"The minutes are published\.",
    "plan_a_party": "The party is on Ada, at Ada.",
}
TYPED = {**ANSWERS, "answer.user": "ada", "answer.token": "a-token-of-20-letters"}
COMMAND = re.compile(r"`(elicit [^`]+)`")
# Third-party programs. Their command lines are not checked.
OTHERS = frozenset(
    {
        *("code", "cp", "createdb", "createuser", "docker", "export", "fastmcp", "gunicorn"),
        *("install", "journalctl", "kubectl", "nginx", "pg_basebackup", "pg_ctl", "pg_rewind"),
        *("pip-compile", "psql", "pytest", "python", "python3", "sudo", "touch"),
        *("systemctl", "useradd", "uvicorn"),
    }
)
FASTMCP = ("from mcp.server.mcpserver import MCPServer", "from fastmcp import FastMCP as MCPServer")
# Pages whose samples are complete programs with their own tests.
HAVE_TESTS = tuple(f"docs/how-to/{name}.md" for name in ("asgi", "client", "testing"))


@pytest.mark.diagonal
@pytest.mark.parametrize("library", ["mcp", "fastmcp"])
@pytest.mark.parametrize("revision", ["legacy", "2026-07-28"])
async def test_every_sample_tool_returns_its_documented_result(tmp_path, library, revision):
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    here = f"http://127.0.0.1:{port}"
    environment = {"ELICIT_URL": here, "ELICIT_MIN_ANSWER": "0"}
    text = one_server().replace(*FASTMCP) if library == "fastmcp" else one_server()
    (tmp_path / "shown.py").write_text(text)
    texts = list[str]()
    async with (
        serving("shown:mcp", "--sandbox", home=tmp_path, port=port, extra=environment) as server,
        httpx.AsyncClient() as browser,
        asyncio.TaskGroup() as group,
    ):
        sandbox = (await browser.get(f"{here}/health")).json()["sandbox"]

        async def be_a_person(link: str) -> None:
            page = Page((await browser.get(link)).text)
            if not page.heading.startswith("Go to "):
                await walk(browser, link, answers=TYPED, also=[sandbox], say=lambda _: None)
                return
            sent = await browser.post(link, data=page.forms[0].fields)
            place = sent.headers["location"]
            if place.startswith("https://example.com/terms?back="):
                back = await browser.get(place.partition("?back=")[2])
                texts.append(Page(back.text).heading)
            elif place.startswith("https://example.com/till/"):
                order = urlsplit(place).path.rpartition("/")[2]
                texts.append(await finish_at_the_checkout(tmp_path, order, environment))
            else:
                texts.append((await browser.post(place)).text)

        async def show(context, params: ElicitRequestParams) -> ElicitResult:
            if isinstance(params, ElicitRequestURLParams):
                group.create_task(be_a_person(params.url))
                return ElicitResult(action="accept")
            asked = params.requested_schema["properties"]
            return ElicitResult(
                action="accept", content={name: _answer(field) for name, field in asked.items()}
            )

        async with Client(f"{server.url}/mcp", mode=revision, elicitation_callback=show) as client:
            listed = {tool.name for tool in (await client.list_tools()).tools}
            received = {tool: text_of(await client.call_tool(tool, {})) for tool in SAYS}
    assert listed == set(SAYS)
    assert [
        (tool, text) for tool, text in received.items() if not re.fullmatch(SAYS[tool], text)
    ] == []
    assert texts == ["Done", "Done", "accepted", "accepted"]


async def test_two_readme_commands_call_the_tool_of_first_screen(tmp_path):
    (block,) = (text for text in samples("README.md", "console") if "elicit serve" in text)
    serve, demo = (line.partition("  #")[0].split() for line in block.splitlines())
    (tmp_path / "github_tools.py").write_text(samples("README.md", "python")[0])
    async with serving(*serve[2:], home=tmp_path) as server:
        at = ("--url", server.url, "--no-browser", "--mode", "legacy")
        called = await run(*demo[1:], *at, home=tmp_path)
    assert "The tool says: octocat/hello-sandbox" in called.out
    assert called.status == 0, called.err


def test_samples_and_cookbook_examples_pass_strict_type_check(tmp_path):
    # finding: H5
    for name, text in FILES.items():
        (tmp_path / name).write_text(text)
    # Check as `make check` does, with its cache. `custom_route` has no types in its library. In
    # this process, mypy would undo `gc.freeze` and set thresholds of its own.
    about = ("--config-file", str(PROJECT / "pyproject.toml"), "--allow-untyped-decorators")
    cache = ("--cache-dir", str(PROJECT / ".mypy_cache"))
    files = [*(tmp_path / name for name in FILES), *(EXAMPLES / f"{name}.py" for name in PLAYS)]
    command = [sys.executable, "-m", "mypy", *about, *cache, *map(str, files)]
    ran = subprocess.run(command, capture_output=True, check=False, text=True)
    assert (ran.returncode, ran.stderr) == (0, ""), ran.stdout
    assert ran.stdout.startswith("Success")


def test_every_python_sample_is_part_of_a_tested_file():
    for page in PAGES:
        for text in samples(page, "python"):
            ast.parse(text)
            if page not in HAVE_TESTS:
                assert any(text in file for file in FILES.values()), (
                    f"{page}: the sample is in no file: name its file\n{text}"
                )


def test_every_shown_command_is_valid():
    shown = [(page, line) for page in PAGES for line in _commands(page)]
    assert len(shown) > 30
    wrong = [f"{page}: {line}" for page, line in shown if not _is_right(line)]
    assert wrong == []


def test_every_client_configuration_starts_this_server():
    started = 0
    for page in PAGES:
        for text in samples(page, "json"):
            for each in _servers_in(json.loads(text)):
                if "url" in each:
                    assert urlsplit(each["url"]).path.endswith("/mcp"), f"{page}: {text}"
                else:
                    assert each["command"].rpartition("/")[2] == "elicit", f"{page}: {text}"
                    assert _is_right(shlex.join(["elicit", *each["args"]])), f"{page}: {text}"
                    started += 1
    assert started >= 1


def test_every_toml_sample_is_valid_configuration():
    tables = [text for page in PAGES for text in samples(page, "toml")]
    assert tables
    nothing = read_declarations("", source="elicit.toml")
    for text in tables:
        assert tomllib.loads(text)
        assert read_declarations(text, source="elicit.toml") != nothing


def _answer(field: dict[str, object]) -> str | int:
    if "enum" in field:
        assert isinstance(field["enum"], list)
        return str(field["enum"][0])
    return 4 if field["type"] == "integer" else "Ada"


def _lines_of(page: str) -> list[str]:
    return [line for text in samples(page, "console") for line in text.splitlines()]


def _commands(page: str) -> Iterator[str]:
    for line in _lines_of(page):
        yield line.partition("  #")[0].removeprefix("$ ").strip()
    yield from COMMAND.findall(PAGES[page])


def _is_right(line: str) -> bool:
    words = shlex.split(line)
    program = words[0].removeprefix("$(which ").removesuffix(")")  # its full path
    match program.rpartition("/")[2]:
        case "elicit":
            return _is_our_command(words[1:])
        case "make":
            makefile = (PROJECT / "Makefile").read_text("utf-8")
            return all(re.search(rf"(?m)^{name}:", makefile) for name in words[1:])
        case "pip":
            extras = re.findall(r"\[(.+?)\]", line)
            settings = tomllib.loads((PROJECT / "pyproject.toml").read_text("utf-8"))
            known = settings["project"]["optional-dependencies"]
            return words[1] == "install" and all(extra in known for extra in extras)
        case ".":
            return words[1:] == [".venv/bin/activate"]
        case "claude" | "codex":
            is_local = "--" not in words or _is_right(shlex.join(words[words.index("--") + 1 :]))
            return words[1:3] == ["mcp", "add"] and is_local
        case program:
            return program in OTHERS


def _is_our_command(words: list[str]) -> bool:
    """Return True if this command line is valid. A mention may omit required arguments."""
    if words[0].startswith("-"):
        return words == ["--version"]
    if words[0] not in COMMANDS:
        return False
    inner = subcommands(parser_of(words[0]))
    if inner and len(words) > 1 and words[1] not in inner[0].choices:
        return False
    needed = ["x" * 24 if word == "ID" else word for word in words]
    try:
        parser_for(needed).parse_args(with_ids(needed))
    except (argparse.ArgumentError, SystemExit):
        return all(word.replace("-", "").isalpha() and word.islower() for word in words)
    return True


def _servers_in(settings: dict[str, dict[str, dict[str, str]]]) -> Iterator[dict[str, str]]:
    for key in ("mcpServers", "servers"):
        yield from settings.get(key, {}).values()
