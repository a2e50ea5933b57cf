"""The demo's client: calls a tool over MCP, shows the link, and prints the result."""

import asyncio
import logging
import os
import re
import sys
import webbrowser
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from typing import Any, cast
from urllib.parse import urlsplit

import httpx
import httpx2
import mcp_types as types
from mcp import Client, ClientSession, MCPError
from mcp.client import ClientRequestContext
from mcp.client.client import ConnectMode
from mcp.client.session import ElicitationFnT
from mcp.client.streamable_http import streamable_http_client

from flows.crypto.tokens import Tokens
from flows.errors import StoreUnavailable, Unreadable
from flows.origin import is_loopback
from webapp.command import CommandRefused, opened_store, own_command, quieten, settings_for
from webapp.connecting import utc_now
from webapp.demo.arguments import WrongArguments, arguments_of, command_for, required_by
from webapp.demo.walker import DemoWaiting, WalkFailed, walk
from webapp.http.client import UNPACKED, refuse_packed
from webapp.http.port import is_owned_by_us
from webapp.identity.local_peer import can_tell_users
from webapp.identity.sessions import address_of, key_of
from webapp.mcp.results import PENDING
from webapp.printing import print_text
from webapp.records.owners import open_owners
from webapp.settings.settings import DEFAULT_PORT, DEFAULT_URL

NAMED = types.Implementation(name="elicit demo", version="1")
MAIN_TOOLS = ("list_my_repositories", "buy_report", "use_key")
WALK_SECONDS_AT_MOST = 60
SEEN_AFTER_SECONDS = 1.5  # a faster response does not prove that a person is there
CALL_SECONDS_AT_MOST = 300.0
REVISIONS = ("legacy", "2026-07-28")
# The walker's form values, and the result that each demo tool must then return.
ANSWERS = {"name": "Ada", "line": "I was here.", "answer.value": "k9-0b3f-71dc-48a5-e2"}
EXPECTED = {
    "list_my_repositories": r"octocat has \d+ repositories: .+\.",
    "buy_report": r"The premium report is yours; 9\.00 EUR was paid\.",
    "use_key": r"The station answers to a key of 20 letters\.",
    "sign_guest_book": r"Ada wrote: I was here\.",
    "visit_terms": r"The person has accepted the rules of the house\.",
    "draw_ticket": r"Ticket \d{3} was handed in\.",
}


class Unusable(Exception):
    """The server or its tool does not exist. The message is shown on the terminal."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DemoCall:
    """The options of the demo's command line."""

    mode: str | None = None
    tool: str | None = None
    words: Sequence[str] = ()  # NAME=VALUE
    given: Mapping[str, Any] = field(default_factory=dict[str, Any])
    walks: bool = False


class DeclaringClient(Client):
    """A client that declares only the given elicitation modes.

    The library's client declares both modes or none, with no other option.
    """

    declares: frozenset[str] = frozenset()

    async def _build_session(self, exit_stack: AsyncExitStack) -> ClientSession:
        session = await super()._build_session(exit_stack)
        elicitation = types.ElicitationCapability(
            form=types.FormElicitationCapability() if "form" in self.declares else None,
            url=types.UrlElicitationCapability() if "url" in self.declares else None,
        )
        capabilities = types.ClientCapabilities(elicitation=elicitation if self.declares else None)

        def declared(_version: str) -> types.ClientCapabilities:
            return capabilities

        setattr(session, "_build_capabilities", declared)  # noqa: B010 - there is no public way
        return session


@dataclass(frozen=True, slots=True, kw_only=True)
class Demo:
    """A demo of one server in one terminal."""

    url: str
    browser: httpx.AsyncClient
    walks: bool
    sandbox_url: str | None = None
    key: str | None = None  # identifies the client on a machine that cannot distinguish its users

    @property
    def command(self) -> list[str]:
        """The words before `--tool` in a command for the same server."""
        walks = ["--no-browser"] if self.walks else []
        return ["demo", *walks, *([] if self.url == DEFAULT_URL else ["--url", self.url])]

    async def tools(self) -> list[types.Tool]:
        """Return the tools that the server lists, on all pages of the list."""
        found, cursor = list[types.Tool](), None
        async with self._client(None) as client:
            while True:
                page = await client.list_tools(cursor=cursor)
                found += page.tools
                if page.next_cursor in (None, cursor):
                    return found
                cursor = page.next_cursor

    async def call(
        self, tool: str, *, mode: str, arguments: Mapping[str, Any], is_known: bool
    ) -> bool | None:
        """Call the tool, help the person through the pages, and print the result.

        Return True if the result is as expected, and None if the tool still waits for a person.
        """
        print_text(f"Calling {tool} ({'2025-11-25' if mode == 'legacy' else mode}).")
        messages = list[str]()
        tasks = list[asyncio.Task[None]]()
        async with asyncio.TaskGroup() as group:

            async def show(
                context: ClientRequestContext,  # noqa: ARG001 - the SDK's protocol names it
                params: types.ElicitRequestParams,
            ) -> types.ElicitResult | types.ErrorData:
                if not isinstance(params, types.ElicitRequestURLParams) or not _is_http(params.url):
                    return types.ElicitResult(action="cancel")
                messages.append(params.message)
                print_text(f"{params.message}\n\n  {params.url}\n", links=[params.url])
                tasks.append(group.create_task(self._see_through(params.url)))
                if not self.walks or tool not in EXPECTED:
                    await asyncio.sleep(SEEN_AFTER_SECONDS)
                # "accept" means "I will open it", not "it is done": the server waits for the end.
                return types.ElicitResult(action="accept")

            async with self._client(show, mode=mode) as client:
                result = await client.call_tool(tool, dict(arguments))
            for task in tasks:
                # The last page may still be loading, and there is no more status to print.
                await asyncio.wait({task}, timeout=5)
                task.cancel()
        text = text_of(result)
        if PENDING in (result.meta or {}):  # the client was not sent the link, so the result has it
            print_text(f"The tool waits: {text}\n")
            return False if is_known else None
        if not messages and not result.is_error:
            print_text("The tool asked no question: it has everything that it needs.")
        print_text(f"The tool {'failed' if result.is_error else 'says'}: {text}\n")
        return not result.is_error and (not is_known or _is_right(tool, text, messages))

    def _client(
        self, show: ElicitationFnT | None, *, mode: ConnectMode = "auto"
    ) -> DeclaringClient:
        client = DeclaringClient(
            self._transport(), mode=mode, elicitation_callback=show, client_info=NAMED
        )
        client.declares = frozenset({"url"})  # the demo shows no forms: the server's pages do
        return client

    def _transport(self) -> Any:
        url = f"{self.url}/mcp"
        if self.key is None:
            return url
        client = httpx2.AsyncClient(
            headers={"authorization": f"Bearer {self.key}"}, timeout=CALL_SECONDS_AT_MOST
        )
        return streamable_http_client(url, http_client=client)

    async def _see_through(self, link: str) -> None:
        if self.walks:
            async with asyncio.timeout(WALK_SECONDS_AT_MOST):
                await walk(
                    self.browser,
                    link,
                    answers=ANSWERS,
                    also=[self.sandbox_url] if self.sandbox_url else [],
                    say=lambda step: print_text(f"  {step}"),
                )
            return
        await asyncio.to_thread(webbrowser.open, link)
        await DemoWaiting(self.browser, link, out=sys.stdout).show()


def demonstrate(url: str, asked: DemoCall) -> int:
    """Run the demo against the server at `url` and return the exit status."""
    url = url.rstrip("/").removesuffix("/mcp")  # accept the MCP endpoint too
    host = urlsplit(url).hostname
    if not _is_http(url) or host is None:
        print_text(f"elicit: --url {url!r} is not an address like {DEFAULT_URL}", out=sys.stderr)
        return 2
    if is_loopback(host):
        # A system-wide proxy would look for 127.0.0.1 on another machine.
        given = os.environ.get("no_proxy") or os.environ.get("NO_PROXY")
        os.environ["no_proxy"] = f"{given},{host}" if given else host
    quieten(logging.CRITICAL)
    try:
        is_right = asyncio.run(_demonstrate(url, asked))
    except Exception as error:
        known = [cause for cause in _causes(error) if _sentence(cause, url)]
        if not known:
            raise
        print_text(f"elicit: {_sentence(known[0], url)}", out=sys.stderr)
        return 1
    return 0 if is_right else 1


def text_of(result: types.CallToolResult) -> str:
    return "\n".join(part.text for part in result.content if isinstance(part, types.TextContent))


async def _demonstrate(url: str, asked: DemoCall) -> bool:
    # This client acts as the person's browser: it stores cookies between pages.
    async with httpx.AsyncClient(
        timeout=10, headers=UNPACKED, event_hooks={"response": [refuse_packed]}
    ) as browser:
        sandbox_url = await _find_server(browser, url)
        pairing = await pairing_of(url)
        if pairing is not None:
            await _pair(browser, pairing[1], walks=asked.walks)
        key = None if pairing is None else pairing[0]
        demo = Demo(url=url, browser=browser, walks=asked.walks, sandbox_url=sandbox_url, key=key)
        tools = {tool.name: tool for tool in await demo.tools()}
        is_the_demos = EXPECTED.keys() <= tools.keys()
        if asked.tool is not None:
            calls = {asked.tool: _arguments(demo, asked, tools)}
        elif is_the_demos:
            calls = {name: dict[str, Any]() for name in (EXPECTED if asked.walks else MAIN_TOOLS)}
        else:
            calls = _calls_without_arguments(demo, tools.values())
        results = [
            (
                each,
                name,
                await demo.call(
                    name,
                    mode=each,
                    arguments=arguments,
                    is_known=is_the_demos and asked.walks,
                ),
            )
            for each in _revisions(asked)
            for name, arguments in calls.items()
        ]
    if asked.walks:
        for each, name, is_right in results:
            revision = "2025-11-25" if each == "legacy" else each
            words = "waits" if is_right is None else "right" if is_right else "WRONG"
            print_text(f"{words}  {revision}  {name}")
    return all(is_right is not False for _, _, is_right in results)


def _revisions(asked: DemoCall) -> Sequence[str]:
    if asked.mode is not None:
        return (asked.mode,)
    return REVISIONS if asked.walks else ("auto",)


def _arguments(demo: Demo, asked: DemoCall, tools: Mapping[str, types.Tool]) -> dict[str, Any]:
    """Return the arguments of the named tool.

    Raises:
        Unusable: The server has no such tool.
        WrongArguments: The arguments are invalid.
    """
    tool = tools.get(asked.tool or "")
    if tool is None:
        raise Unusable(
            f"The server at {demo.url} has no tool {asked.tool!r}. "
            f"Name one of its tools with --tool: {', '.join(tools) or 'it has none'}."
        )
    return arguments_of(tool, asked.words, asked.given, command=demo.command)


def _calls_without_arguments(demo: Demo, tools: Iterable[types.Tool]) -> dict[str, dict[str, Any]]:
    """Return the calls that need no arguments, and print how to call the other tools.

    Raises:
        Unusable: Every tool needs arguments or destroys something.
    """
    calls, others = dict[str, dict[str, Any]](), list[str]()
    for tool in tools:
        destroys = tool.annotations is not None and tool.annotations.destructive_hint
        if destroys or required_by(tool):
            others.append(f"  {command_for(tool, command=demo.command)}")
        else:
            calls[tool.name] = {}
    if not calls:
        raise Unusable(
            f"The server at {demo.url} has no tool that can be called without arguments"
            + "\n".join([". Call one with:" if others else ".", *others])
        )
    if others:
        opening = "These need arguments, or destroy something. Call them with:"
        print_text("\n".join([opening, *others, ""]))
    return calls


async def _pair(browser: httpx.AsyncClient, address: str, *, walks: bool) -> None:
    """Pair the browser with the server, on a machine that cannot distinguish its users."""
    print_text("The server cannot see which user opens the browser. So pair the browser first.\n")
    if walks:
        await walk(browser, address, answers={}, say=lambda step: print_text(f"  {step}"))
        return
    print_text(f"  {address}\n", links=[address])
    await asyncio.to_thread(webbrowser.open, address)


def _start_of(url: str) -> str:
    """Return the command that starts the demo server at this address."""
    port = urlsplit(url).port
    return f"{own_command()} serve{'' if port in (None, DEFAULT_PORT) else f' --port {port}'}"


async def _find_server(browser: httpx.AsyncClient, url: str) -> str | None:
    """Check that our server responds at `url`, and return its sandbox's address if it has one.

    Raises:
        Unusable: No server responds, or another program does.
    """
    health: dict[str, str] = {}
    try:
        response = await browser.get(f"{url}/health")
        health = response.json()
        is_this_server = response.status_code == 200 and health.get("status") == "ok"
    except httpx.TransportError:
        raise Unusable(
            f"No server answers at {url}. Start one in another terminal: {_start_of(url)}"
        ) from None
    except (ValueError, AttributeError, httpx.DecodingError):
        is_this_server = False
    if not is_this_server:
        raise Unusable(
            f"Another program than `elicit serve` answers at {url}. Check the address, "
            f"or start the demo server with: {_start_of(url)}"
        )
    return health.get("sandbox")


def _sentence(error: BaseException, url: str) -> str | None:
    """Return the message for an error that the demo expects, or None for a bug."""
    match error:
        case Unusable() | WalkFailed() | WrongArguments():
            return str(error)
        case TimeoutError():
            return f"The pages at {url} did not finish in time."
        case httpx.DecodingError():
            return (
                f"The responses from {url} are compressed. `elicit serve` never does so. Check "
                "the address."
            )
        case httpx.TransportError() | httpx2.TransportError() | ConnectionError():
            return f"The server at {url} closed the connection. Check that it runs."
        case MCPError():
            return (
                f"The call ended without a result: {error}. Nothing is lost: call the tool again."
            )
        case _:
            return None


def _causes(error: BaseException) -> Iterator[BaseException]:
    yield error
    if isinstance(error, BaseExceptionGroup):
        for inner in cast("BaseExceptionGroup[BaseException]", error).exceptions:
            yield from _causes(inner)


def _is_right(tool: str, text: str, messages: list[str]) -> bool:
    expected = EXPECTED.get(tool)
    if expected is None:
        return True
    ticket = re.findall(r"\d+", text) if tool == "draw_ticket" else []
    is_same = all(re.findall(r"\d+", message) == ticket for message in messages if ticket)
    # An account that is already connected is used without asking.
    is_asked = bool(messages) or tool == "list_my_repositories"
    return is_asked and is_same and re.fullmatch(expected, text) is not None


def _is_http(url: str) -> bool:
    return url.startswith(("http://", "https://"))


# The demo's client and browser on a machine that cannot distinguish its users.
#
# Risks: another program uses the server's port and receives the key. The client therefore sends the
# key only after the program on that port has proved that it uses this user's own store.
async def pairing_of(url: str) -> tuple[str, str] | None:
    """Return the client's key and the address that pairs a browser, or None if not needed."""
    parts = urlsplit(url)
    host, port = parts.hostname or "", parts.port or 80
    if can_tell_users() or not is_loopback(host):
        return None
    try:
        settings = settings_for({**os.environ, "ELICIT_URL": url}, host=host, port=port)
        async with opened_store(settings) as store:
            owners = await open_owners(store=store, ring=settings.ring)
    except (CommandRefused, Unreadable, StoreUnavailable):
        return None  # another user's server, which identifies callers by itself
    if settings.identity.issuer is not None:
        return None
    if not await is_owned_by_us(host, port, url=settings.url, pepper=owners.pepper):
        return None
    tokens = Tokens(settings.ring, origin=settings.url)
    return key_of(settings.ring), address_of(tokens, url=settings.url, now=utc_now())
