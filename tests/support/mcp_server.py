"""A server that is really served, clients that call it over HTTP, and people with browsers.

Nothing in this module sleeps: it waits for a condition that a request, a write or a client causes.
When a server is closed, no waiter and no task may be left.
"""

import asyncio
import os
import re
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from html import unescape
from typing import Any, cast
from urllib.parse import urljoin

import httpx
import httpx2
import mcp_types as types
from mcp import Client
from mcp.client.streamable_http import streamable_http_client

from flows.crypto.tokens import Purpose, Ring
from flows.elicitation.states import Completion, Elicitation, Json, Status
from flows.kinds.gate import GatePolicy
from flows.question import asking
from tests.support.serving import serving_at
from tests.support.settings import AT_ONCE
from webapp.app import open_app
from webapp.connecting import utc_now
from webapp.http.edge import Edge
from webapp.http.exchange import ASGIApp, Receive, Scope, Send
from webapp.kinds.registry import OwnKind
from webapp.limits import CallLimits
from webapp.mcp.attach import attach
from webapp.notifications.delivery import NotifyTable
from webapp.service import Service, ServiceOptions, open_service
from webapp.settings.identity import IdentitySettings
from webapp.settings.quotas import PolicySettings
from webapp.settings.settings import Settings
from webapp.stores import Store, open_store

# The elicitation capabilities of clients. OLD_FORM is {}, from before the protocol had modes.
FORM = types.ElicitationCapability(form=types.FormElicitationCapability())
URL = types.ElicitationCapability(url=types.UrlElicitationCapability())
BOTH = types.ElicitationCapability(
    form=types.FormElicitationCapability(), url=types.UrlElicitationCapability()
)
OLD_FORM = types.ElicitationCapability()
LEGACY = "legacy"
MODERN = "2026-07-28"
LIBRARIES = ("mcp", "fastmcp")
PATIENCE_SECONDS = 300.0
RING = Ring([b"k" * 32])
UID = os.getuid()
# No TLS is used in tests, and loading the root certificates takes a tenth of a second each time.
TLS = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)


def new_server(library: str, **options: Any) -> Any:
    """Return a server of either library, without tools."""
    if library == "fastmcp":
        from fastmcp import FastMCP

        return FastMCP("shop", **options)
    from mcp.server.mcpserver import MCPServer

    return MCPServer("shop", **options)


def new_browser() -> httpx.AsyncClient:
    return httpx.AsyncClient(timeout=PATIENCE_SECONDS, verify=TLS)


async def eventually(condition: Callable[[], object]) -> None:
    """Run other tasks until the condition is true."""
    async with asyncio.timeout(PATIENCE_SECONDS):
        while not condition():  # noqa: ASYNC110 - whatever it is that makes it true
            await asyncio.sleep(0)


async def soon(awaited: Awaitable[Any]) -> Any:
    """Return the result. Fail if `awaited` takes too long."""
    async with asyncio.timeout(PATIENCE_SECONDS):
        return await awaited


@dataclass(frozen=True, slots=True, kw_only=True)
class Page:
    """The response to a browser's request."""

    status: int
    heading: str
    text: str
    location: str | None
    csrf: str | None
    actions: tuple[str, ...] = ()  # the addresses of its forms

    @classmethod
    def of(cls, response: httpx.Response) -> "Page":
        heading = re.search(r"<h1[^>]*>(.*?)</h1>", response.text, re.DOTALL)
        csrf = re.search(r'name="csrf" value="([^"]+)"', response.text)
        location = response.headers.get("location")
        return cls(
            status=response.status_code,
            heading=unescape(re.sub(r"<[^>]+>", "", heading[1])).strip() if heading else "",
            text=response.text,
            location=urljoin(str(response.url), location) if location else None,
            csrf=csrf[1] if csrf else None,
            actions=tuple(
                urljoin(str(response.url), unescape(action))
                for action in re.findall(r'<form[^>]*action="([^"]+)"', response.text)
            ),
        )

    def leading(self, to: str) -> str:
        """Return the address of the form whose action contains `to`."""
        return next(action for action in self.actions if to in action)


class Person:
    """A person with one browser, which has its own cookie jar and follows no redirect."""

    def __init__(self, browser: httpx.AsyncClient) -> None:
        self.browser = browser

    async def visit(self, url: str) -> Page:
        return Page.of(await self.browser.get(url))

    async def press(self, url: str, *, to: str = "") -> Page:
        """Press a button of the page, or of a page that it links to if only that page has it."""
        page = await self.visit(url)
        leading = re.search(rf'<a class="button[^>]*href="([^"]*{re.escape(to)})"', page.text)
        if to and leading and not any(to in action for action in page.actions):
            page = await self.visit(urljoin(url, unescape(leading[1])))
        assert page.csrf is not None, f"{page.status} {page.heading}"
        place = page.leading(to) if to else url
        return Page.of(await self.browser.post(place, data={"csrf": page.csrf}))

    async def go_on(self, url: str) -> str:
        """Press Continue, and return the address of the redirect."""
        page = await self.press(url)
        assert page.status == 303
        assert page.location is not None
        return page.location

    async def decline(self, url: str) -> Page:
        page = await self.press(url, to="/decline")
        assert page.location is not None
        return await self.visit(page.location)


class Caller:
    """A simulated MCP client. It records the links that the server asks it to show."""

    def __init__(self, client: Client, shown: asyncio.Queue[str], completed: list[str]) -> None:
        self.client = client
        self.completed = completed  # ids of the complete notifications
        self.list_changes = 0  # number of list_changed notifications
        self.code_prompts: list[str] = []  # messages of the forms in which somebody typed a code
        self.forms: list[Any] = []  # the tools' own forms that the client was asked to show
        self._shown = shown
        self._calls: set[asyncio.Task[types.CallToolResult]] = set()

    async def link(self) -> str:
        """Return the next link that the client was asked to show."""
        return cast("str", await soon(self._shown.get()))

    @property
    def has_links_left(self) -> bool:
        return not self._shown.empty()

    def call(self, tool: str, **arguments: Json) -> asyncio.Task[types.CallToolResult]:
        """Call a tool. The client answers what the server asks during the call."""
        task = asyncio.create_task(self.client.call_tool(tool, dict(arguments)))
        self._calls.add(task)
        return task

    def begin(self, tool: str, **arguments: Json) -> None:
        """Call a tool and ignore its result."""
        self._calls.add(self.call(tool, **arguments))

    async def result(self, tool: str, **arguments: Json) -> Any:
        """Call a tool and return its result."""
        return await soon(self.call(tool, **arguments))

    async def text(self, tool: str, **arguments: Json) -> str:
        """Call a tool and return its result's text."""
        return text_of(await self.result(tool, **arguments))

    async def send_call(
        self,
        tool: str,
        *,
        after: types.InputRequiredResult | None = None,
        action: str = "accept",
        **arguments: Json,
    ) -> types.CallToolResult | types.InputRequiredResult:
        """Send one request of a call (2026-07-28).

        `after` is the result of the previous request.
        """
        asked = (after.input_requests or {}) if after is not None else {}
        answer = types.ElicitResult(action=cast("Any", action))
        return cast(
            "types.CallToolResult | types.InputRequiredResult",
            await soon(
                self.client.session.call_tool(
                    tool,
                    dict(arguments),
                    input_responses=dict.fromkeys(asked, answer) if asked else None,
                    request_state=after.request_state if after is not None else None,
                    allow_input_required=True,
                )
            ),
        )

    async def asked(self, tool: str, **options: Any) -> types.InputRequiredResult:
        """Send a request that is not the last, and return what the server asks."""
        return asked_in(await self.send_call(tool, **options))

    async def answered(self, tool: str, **options: Any) -> types.CallToolResult:
        """Send the last request, and return the result."""
        return answered_in(await self.send_call(tool, **options))

    async def last_text(self, tool: str, **options: Any) -> str:
        """Send the last request, and return the result's text."""
        return text_of(await self.answered(tool, **options))

    async def link_in_result(self, tool: str, **arguments: Json) -> str:
        """Call a tool, and return the link in its result, for a client without URL mode."""
        return link_in(await self.result(tool, **arguments))

    def start_request(
        self, tool: str, *, after: types.InputRequiredResult
    ) -> "asyncio.Task[types.CallToolResult | types.InputRequiredResult]":
        """Send one request in a task, because it can stay open."""
        task = asyncio.create_task(self.send_call(tool, after=after))
        self._calls.add(cast("Any", task))
        return task

    async def hang_up(self) -> None:
        """Cancel every call that is still open."""
        for task in self._calls:
            task.cancel()
        await asyncio.gather(*self._calls, return_exceptions=True)


class CutOffCaller:
    """A client without a library.

    It shows and answers nothing, and a test can cut its connection.
    """

    def __init__(
        self,
        http: httpx.AsyncClient,
        url: str,
        revision: str,
        *,
        elicits: bool = True,
        name: str = "mcp",
    ) -> None:
        self.http = http
        self.url = url
        modes: dict[str, Any] = {"elicitation": {"form": {}, "url": {}}}
        self._capabilities = modes if elicits else {}
        self._info = {"name": name, "version": "1"}
        self._is_modern = revision == MODERN
        self.headers = {"accept": "application/json, text/event-stream"}

    async def connect(self) -> None:
        if self._is_modern:
            self.headers["mcp-protocol-version"] = MODERN
            return
        opening = {
            "protocolVersion": "2025-11-25",
            "capabilities": self._capabilities,
            "clientInfo": self._info,
        }
        answer = await self._post({"id": 0, "method": "initialize", "params": opening})
        assert answer.status_code == 200
        self.headers["mcp-session-id"] = answer.headers["mcp-session-id"]
        self.headers["mcp-protocol-version"] = "2025-11-25"
        await self._post({"method": "notifications/initialized"})

    def call(
        self, tool: str, *, state: str | None = None, **arguments: Json
    ) -> asyncio.Task[httpx.Response]:
        """Send one request. Cancel the task to cut the connection."""
        params: dict[str, Any] = {"name": tool, "arguments": arguments}
        headers = {}
        if state is not None:
            params["requestState"] = state
        if self._is_modern:
            headers = {"mcp-method": "tools/call", "mcp-name": tool}
            params["_meta"] = {
                types.PROTOCOL_VERSION_META_KEY: MODERN,
                types.CLIENT_INFO_META_KEY: self._info,
                types.CLIENT_CAPABILITIES_META_KEY: self._capabilities,
            }
        request = {"id": 1, "method": "tools/call", "params": params}
        return asyncio.create_task(self._post(request, headers))

    async def cancel(self) -> None:
        """Send notifications/cancelled, as clients do at their time limit.

        The connection stays open.
        """
        gone = {"requestId": 1, "reason": "timeout"}
        await self._post({"method": "notifications/cancelled", "params": gone})

    async def post_raw(self, body: str, headers: Mapping[str, str]) -> str:
        """Send this body unchanged, and return the response's text."""
        own = {"content-type": "application/json", **self.headers, **headers}
        return (await self.http.post(self.url, content=body, headers=own)).text

    async def _post(
        self, message: dict[str, Any], headers: Mapping[str, str] | None = None
    ) -> httpx.Response:
        return await self.http.post(
            self.url,
            json={"jsonrpc": "2.0", **message},
            headers={**self.headers, **(headers or {})},
        )


async def cut(call: asyncio.Task[Any]) -> None:
    """Cut the connection, or cancel the call."""
    call.cancel()
    await asyncio.gather(call, return_exceptions=True)


class ServerEnv:
    def __init__(self, *, url: str, service: Service, settings: Settings, posts: "_Posts") -> None:
        self.url = url
        self.service = service
        self.settings = settings
        self._posts = posts
        self._exit_stack = AsyncExitStack()

    @property
    def begun_posts(self) -> int:
        """The number of POST requests that have arrived."""
        return self._posts.begun

    @property
    def mcp_url(self) -> str:
        return f"{self.url}/mcp"

    @asynccontextmanager
    async def caller(
        self,
        revision: str,
        *,
        answers: Sequence[str] = (),
        declares: types.ElicitationCapability | str | None = "all",
        headers: Mapping[str, str] | None = None,
        typed: asyncio.Queue[str] | None = None,
        fills: Sequence[Mapping[str, Json] | str] = (),
        slow: Callable[[], Awaitable[tuple[str, Any]]] | None = None,
        name: str = "mcp",
        title: str | None = None,
        version: str = "1",
    ) -> AsyncIterator[Caller]:
        """Connect a client that gives the `answers` one by one, and then accepts everything.

        `typed` has the codes that somebody types into a form that asks for one. `fills` has the
        answers to the tool's own forms: contents, or actions that do not accept. `slow` is a
        coroutine function that the client awaits to answer each question.
        """
        shown: asyncio.Queue[str] = asyncio.Queue()
        completed: list[str] = []
        pending, filled = iter(answers), iter(fills)

        async def answer(_: Any, question: Any) -> types.ElicitResult:
            if slow is not None:
                action, content = await slow()
                return types.ElicitResult(action=cast("Any", action), content=content)
            if typed is not None and getattr(question, "url", None) is None:
                caller.code_prompts.append(question.message)
                return types.ElicitResult(action="accept", content={"code": await typed.get()})
            if fills and getattr(question, "url", None) is None:
                caller.forms.append(question)
                fill = next(filled)
                if isinstance(fill, str):
                    return types.ElicitResult(action=cast("Any", fill))
                return types.ElicitResult(action="accept", content=cast("Any", fill))
            shown.put_nowait(getattr(question, "url", question.message))
            return types.ElicitResult(action=cast("Any", next(pending, "accept")))

        async def note(message: Any) -> None:
            if isinstance(message, types.ElicitCompleteNotification):
                completed.append(message.params.elicitation_id)
            elif isinstance(message, types.ToolListChangedNotification):
                caller.list_changes += 1

        async with AsyncExitStack() as stack:
            http = await stack.enter_async_context(
                httpx2.AsyncClient(headers=dict(headers or {}), timeout=300, verify=TLS)
            )
            client = _Declaring(
                streamable_http_client(self.mcp_url, http_client=http),
                mode=revision,
                elicitation_callback=None if declares is None else cast("Any", answer),
                message_handler=note,
                client_info=types.Implementation(name=name, title=title, version=version),
            )
            if isinstance(declares, types.ElicitationCapability):
                client.declares = declares
            await stack.enter_async_context(client)
            caller = Caller(client, shown, completed)
            try:
                yield caller
            finally:
                await caller.hang_up()

    async def person(self) -> Person:
        """Return a person with a new browser."""
        return Person(await self._exit_stack.enter_async_context(new_browser()))

    async def cut_off_caller(self, revision: str) -> "CutOffCaller":
        """Return a client whose connection a test can cut during a call."""
        caller = CutOffCaller(
            await self._exit_stack.enter_async_context(new_browser()), self.mcp_url, revision
        )
        await caller.connect()
        return caller

    def id_of(self, link: str) -> str:
        token = link.rsplit("/", 1)[1]
        claims = self.service.links.read(token, purpose=Purpose.LINK, now=self.service.clock())
        return claims.id

    def link_of(self, elicitation: Elicitation) -> str:
        return self.service.links.of(elicitation, now=self.service.clock())

    async def elicitations(self) -> list[Elicitation]:
        """Return all elicitations, oldest first."""
        service = self.service.elicitations
        rows = [
            await service.rows.open(record, Elicitation)
            for record in await service.store.list("elicitation")
        ]
        return sorted(rows, key=lambda elicitation: elicitation.created_at)

    async def status(self, link: str) -> Status:
        found = await self.service.elicitations.get(self.id_of(link))
        assert found is not None
        return found.status

    async def pending(self, count: int = 1) -> list[Elicitation]:
        """Return all elicitations, once `count` exist and a request waits for each open one."""
        waiters = self.service.elicitations.waiters
        async with asyncio.timeout(PATIENCE_SECONDS):
            while True:
                rows = await self.elicitations()
                if len(rows) >= count and all(
                    waiters.of_request(row.id, row.waiter)
                    for row in rows
                    if not row.status.is_final
                ):
                    return rows
                await asyncio.sleep(0)

    async def waited_for_by_another(self, link: str, than: str | None) -> str:
        """Wait until a request other than `than` waits for the answer. Return its id."""
        id = self.id_of(link)
        async with asyncio.timeout(PATIENCE_SECONDS):
            while True:
                row = await self.service.elicitations.get(id)
                assert row is not None
                if (
                    row.waiter is not None
                    and row.waiter != than
                    and self.service.elicitations.waiters.of_request(id, row.waiter)
                ):
                    return row.waiter
                await asyncio.sleep(0)

    async def complete(self, link: str, content: Mapping[str, Json] | None = None) -> Completion:
        """Complete the link as the author's trusted code does when its service reports success."""
        return await self.service.completing.complete(self.id_of(link), content or {})

    async def text_after_visit(
        self,
        caller: Caller,
        tool: str,
        content: Mapping[str, Json] | None = None,
        **arguments: Json,
    ) -> str:
        """Call a tool, complete the visit that it asks for, and return the result's text."""
        call = caller.call(tool, **arguments)
        await self.complete(await caller.link(), content)
        return text_of(await soon(call))

    async def posts_are_over(self) -> None:
        """Wait until the server has noticed the end of every POST request."""
        await eventually(lambda: not self._posts.running)

    async def aclose(self) -> None:
        """Close the browsers, and wait until no waiter and no tool is left."""
        await self._exit_stack.aclose()
        await eventually(lambda: not len(self.service.elicitations.waiters))
        await eventually(lambda: not len(self.service.running_tools))


@asynccontextmanager
async def server_env(
    server: Any,
    *,
    store: str | Store = "memory:",
    public_url: str | None = None,
    limits: CallLimits | None = None,
    who: IdentitySettings | Callable[[str], IdentitySettings] | None = None,
    gate: GatePolicy | None = None,
    policies: PolicySettings | None = None,
    min_answer: timedelta = AT_ONCE.min_answer,
    plugins: Sequence[object] = (),
    kinds: Sequence[type[OwnKind]] = (),
    clock: Callable[[], datetime] = utc_now,
    notify: Sequence[NotifyTable] = (),
    is_alone: bool = True,
) -> AsyncIterator[ServerEnv]:
    """Serve the server as `elicit serve` does, with its lifespan, under uvicorn.

    `who` can be a function of the server's address. Clients in tests answer immediately, and such
    answers count as a person's. Set `is_alone=False` if another environment outlives this one: then
    the check for leftover tasks is skipped.
    """
    before = _tasks()
    apps: list[_Lived] = []

    def make(url: str) -> ASGIApp:
        address, opened = (store, None) if isinstance(store, str) else ("memory:", store)
        settings = Settings(
            url=public_url or url,
            ring=RING,
            store=address,
            uid=UID,
            identity=who(url) if callable(who) else who or IdentitySettings(),
            gate=gate or GatePolicy(),
            policies=replace(policies or PolicySettings(), min_answer=min_answer),
            notify=tuple(notify),
        )
        more = {"limits": limits, "plugins": plugins, "kinds": kinds, "clock": clock}
        apps.append(_Lived(settings, server, store=opened, **more))
        return apps[0]

    async with serving_at(make, lifespan="on") as url:
        (app,) = apps
        env = ServerEnv(url=url, service=app.service, settings=app.settings, posts=app.posts)
        with asking(env.service.completing, is_tool=None):
            try:
                yield env
            finally:
                await env.aclose()
    left = _tasks() - before
    if not isinstance(store, str):  # the test's own store stays open and polls its hosts
        left = {task for task in left if _name_of(task) != "Connector._ask_host"}
    assert not left or not is_alone, left


OF_CALLERS = {"answers", "declares", "headers", "typed", "fills", "slow", "name"}


@asynccontextmanager
async def caller_of(
    server: Any, revision: str, **options: Any
) -> AsyncIterator[tuple["ServerEnv", Caller]]:
    """Serve the server and connect a client. `options` are for `server_env` and `caller`."""
    own = {name: options.pop(name) for name in OF_CALLERS & options.keys()}
    async with server_env(server, **options) as env, env.caller(revision, **own) as caller:
        yield env, caller


@asynccontextmanager
async def attached(
    server: Any,
    *,
    clock: Callable[[], datetime] = utc_now,
    policies: PolicySettings | None = None,
    min_answer: timedelta = AT_ONCE.min_answer,
    **options: bool,
) -> AsyncIterator[ServerEnv]:
    """Attach to a server that its own library serves, without our pages and middleware.

    `options` are passed to the library's `http_app` or `streamable_http_app`.
    """
    before = _tasks()
    is_fastmcp = hasattr(server, "_mcp_server")
    application: ASGIApp = (
        server.http_app(path="/mcp", **options)
        if is_fastmcp
        else server.streamable_http_app(**options)
    )
    async with AsyncExitStack() as stack:
        posts = _Posts(application)
        url = await stack.enter_async_context(serving_at(lambda _: posts))
        policies = replace(policies or PolicySettings(), min_answer=min_answer)
        settings = Settings(url=url, ring=RING, store="memory:", uid=UID, policies=policies)
        store = await open_store(settings.store)
        stack.push_async_callback(store.aclose)
        service = await stack.enter_async_context(
            open_service(settings, ServiceOptions(clock=clock), store=store)
        )
        attach(server, service)
        env = ServerEnv(url=url, service=service, settings=settings, posts=posts)
        stack.push_async_callback(env.aclose)
        yield env
    assert not (left := _tasks() - before), left


def text_of(result: types.CallToolResult) -> str:
    (content,) = result.content
    assert isinstance(content, types.TextContent)
    return content.text


def link_in(result: types.CallToolResult) -> str:
    """Return the link in a result for a client without URL mode."""
    link = re.search(r"http://\S+/e/\S+", text_of(result))
    assert link is not None, text_of(result)
    return link[0]


def asked_in(result: object) -> types.InputRequiredResult:
    assert isinstance(result, types.InputRequiredResult), result
    return result


def answered_in(result: object) -> types.CallToolResult:
    assert isinstance(result, types.CallToolResult), result
    return result


def links_asked(result: object) -> list[str]:
    """Return the links in an InputRequiredResult."""
    requests = asked_in(result).input_requests or {}
    return [cast("Any", request).params.url for request in requests.values()]


def _tasks() -> set[asyncio.Task[Any]]:
    """Return every task except the one that sse-starlette runs in each loop."""
    return {task for task in asyncio.all_tasks() if _name_of(task) != "_shutdown_watcher"}


def _name_of(task: asyncio.Task[Any]) -> str:
    """Return the name of the function that the task runs."""
    return getattr(task.get_coro(), "__qualname__", "")


class _Lived:
    """An ASGI application that opens `open_app` in its lifespan, as `elicit serve` does."""

    def __init__(
        self,
        settings: Settings,
        server: Any,
        **more: Any,
    ) -> None:
        self.settings = settings
        self._server = server
        self._more = more
        self.posts: _Posts
        self.service: Service

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "lifespan":
            await self.posts(scope, receive, send)
            return
        await receive()
        async with open_app(self.settings, self._server, **self._more) as app:
            self.service = service_in(app)
            self.posts = _Posts(app)
            await send({"type": "lifespan.startup.complete"})
            await receive()
        await send({"type": "lifespan.shutdown.complete"})


def service_in(app: ASGIApp) -> Service:
    """Return the service of an app. The app's `Edge` has it, to read a request's credential."""
    layer: Any = app
    while not isinstance(layer, Edge):
        layer = layer._app
    credential: Any = layer._credential
    return cast("Service", credential.args[0])


class _Posts:
    """An app wrapper that counts the POST requests inside the app."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app
        self.running = 0
        self.begun = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        is_post = scope.get("method") == "POST"
        self.running += is_post
        self.begun += is_post
        try:
            await self._app(scope, receive, send)
        finally:
            self.running -= is_post


class _Declaring(Client):
    """A client that can declare fewer capabilities than it has."""

    declares: types.ElicitationCapability | None = None

    async def _build_session(self, exit_stack: AsyncExitStack) -> Any:
        session = await super()._build_session(exit_stack)
        if self.declares is not None:
            capabilities = types.ClientCapabilities(elicitation=self.declares)
            setattr(session, "_build_capabilities", lambda _: capabilities)  # noqa: B010
        return session
