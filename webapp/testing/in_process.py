"""An author's server as a test has it: all that stands behind a question, in one process.

The ways between the application, the sandbox and a browser are calls. What could go wrong: a test
that reaches the network unnoticed. What goes to neither is refused, unless the test gives a way of
its own.
"""

import asyncio
from collections.abc import (
    AsyncGenerator,
    Awaitable,
    Callable,
    Collection,
    Generator,
    Mapping,
    Sequence,
)
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from dataclasses import replace
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import httpx

from flows.hooks import StartedQuestion, after
from webapp.app import open_app
from webapp.deadline import HandClock
from webapp.demo.client import DeclaringClient
from webapp.http.client import Outbound, Transport
from webapp.http.connection import ASGIApp, Receive, Scope, Send
from webapp.identity.local_peer import PEER_KEY, Peer
from webapp.limits import CallLimits
from webapp.sandbox import new_sandbox
from webapp.sandbox.app import SandboxApp
from webapp.settings.settings import Settings, read_settings
from webapp.stores.memory import MemoryStore
from webapp.testing.last_call import LastCall
from webapp.testing.person import URL, AskedPerson
from webapp.testing.told import OutsideReached, Told
from webapp.testing.webhooks import ProviderWebhooks

if TYPE_CHECKING:
    from webapp.service import Service

SANDBOX_URL = "http://127.0.0.1:8766"
MODERN = "2026-07-28"
LEGACY = "2025-11-25"
PATIENCE = timedelta(seconds=60)  # nothing takes as long but what hangs
_UID = 1000  # of whom does not matter: client, browser and server are of the same
# Nothing of the machine's own: neither its key file nor its store, nor somebody's elicit.toml.
_SETTINGS: Mapping[str, str] = {
    "HOME": "/nonexistent",
    "ELICIT_URL": URL,
    "ELICIT_SECRET": "of-a-test-that-keeps-nothing-by-it",
    "ELICIT_STORE": "memory:",
    "ELICIT_MIN_ANSWER": "0",  # a person of a test answers at once
}
_BROWSER = ("127.0.0.1", 49152)


@asynccontextmanager
async def elicit_person(
    server: Any,
    *,
    revision: str = MODERN,
    declares: Collection[str] = ("form", "url"),
    settings: Mapping[str, str] | None = None,
    outside: httpx.AsyncBaseTransport | None = None,
    plugins: Sequence[object] = (),
    patience: timedelta = PATIENCE,
) -> AsyncGenerator[AskedPerson]:
    """Serve an author's server to one person, in this process.

    `server` is an MCPServer or a FastMCP server, or a function that makes one. `revision` of the
    protocol is 2026-07-28 or 2025-11-25, and `declares` the elicitation modes of the client that
    `person.call` uses. `settings` are the operator's, by their names (`ELICIT_GATE`), beside those
    of the kit: a person of a test answers at once, so ELICIT_MIN_ANSWER is 0. `outside` answers
    what is neither the application nor the sandbox. `plugins` are as for `create_app`. A question
    that is open for longer than `patience`, by the machine's own clock, fails the test: nobody acts
    on it. Raises BadSettings.
    """
    _must_be_asyncio()
    if not hasattr(server, "list_tools") and callable(server):
        server = server()
    clock, failures = HandClock(), list[AssertionError]()
    failed: BaseException | None = None
    network = InProcess(outside=outside, fail=failures.append)
    sandbox = new_sandbox(url=SANDBOX_URL, serves=URL)
    async with AsyncExitStack() as stack:
        stack.enter_context(_unchanged(server))
        wire = await stack.enter_async_context(httpx.AsyncClient(transport=network))
        sandbox_app = SandboxApp(sandbox, clock=clock, deliver=wire.send, pause=_at_once)
        asked_of: dict[str, Told] = {}
        built: list[Service] = []

        guard = await stack.enter_async_context(asyncio.TaskGroup())

        async def started(question: StartedQuestion) -> None:
            asked = await built[0].elicitations.get(question.id)
            if asked is not None:
                asked_of[asked.id] = Told.of(asked)
                waiting = guard.create_task(person.is_awaited(asked.id, at_most=patience))
                stack.callback(waiting.cancel)

        app = await stack.enter_async_context(
            open_app(
                _settings(settings or {}),
                server,
                store=MemoryStore(),
                clock=clock,
                limits=CallLimits(link=timedelta()),  # nobody acts while such a call is held
                sandbox=sandbox,
                plugins=[_Listener(started), *plugins],
                built=built.append,
                outbound=Outbound(wire, allow_loopback=True, resolve=_here, transport=network),
                has_endpoint=False,  # the client enters the server's own lifespan
            )
        )
        last_call = LastCall()
        stack.enter_context(last_call.listening(server))
        network.answer_at({URL: OwnUsers(app, uid=_UID), SANDBOX_URL: sandbox_app})
        browser = await stack.enter_async_context(httpx.AsyncClient(transport=network))
        person = AskedPerson(
            service=built[0],
            clock=clock,
            browser=browser,
            webhooks=ProviderWebhooks(sandbox_app.deliveries, wire.send),
            places=(URL, SANDBOX_URL),
            failures=failures,
            asked_of=asked_of,
            last_call=last_call,
        )
        client = DeclaringClient(
            getattr(server, "_mcp_server", server),
            mode="legacy" if revision == LEGACY else revision,
            elicitation_callback=person.elicitation_callback if declares else None,
        )
        client.declares = frozenset(declares)
        person.meet(await stack.enter_async_context(client))
        try:
            yield person
            person.must_be_done()
        except (GeneratorExit, asyncio.CancelledError, KeyboardInterrupt, SystemExit):
            raise
        except BaseException as raised:  # noqa: BLE001 - a test's own, raised again below
            failed = raised
    if failed is not None:
        raise failed


class _Listener:
    """A plugin that is told of each question."""

    def __init__(self, started: Callable[[StartedQuestion], Awaitable[None]]) -> None:
        self._started = started

    @after("start")
    async def hear(self, question: StartedQuestion) -> None:
        await self._started(question)


@contextmanager
def _unchanged(server: Any) -> Generator[None]:
    """Afterwards its middleware is what it was: it may be a module's, which other tests use."""
    holders: list[Any] = [server, getattr(server, "_mcp_server", server)]
    lists: list[list[Any]] = [
        one.middleware for one in holders if isinstance(getattr(one, "middleware", None), list)
    ]
    before = [list(parts) for parts in lists]
    try:
        yield
    finally:
        for parts, were in zip(lists, before, strict=True):
            parts[:] = were


def _settings(own: Mapping[str, str]) -> Settings:
    given = {**_SETTINGS, **own}
    # A person of no account at all (the user `nobody` of a container) would be a stranger.
    return replace(read_settings(given), uid=_UID)


def _must_be_asyncio() -> None:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        raise RuntimeError(
            "elicit_person runs under asyncio: mark the test so, as by "
            "@pytest.mark.anyio with the fixture anyio_backend = 'asyncio'."
        ) from None


async def _here(_host: str, _port: int) -> Sequence[str]:
    """No name is looked up: what is asked for stands in this process or in none."""
    return ("127.0.0.1",)


async def _at_once(_seconds: float) -> None:
    """The sandbox tries again without a pause."""


class InProcess(Transport):
    """Requests to an origin that an application stands for are calls; others go `outside`.

    `fail` is told of a request that nobody answers.
    """

    def __init__(
        self,
        *,
        outside: httpx.AsyncBaseTransport | None,
        fail: Callable[[AssertionError], None],
    ) -> None:
        self._outside = outside
        self._fail = fail
        self._apps: dict[str, httpx.AsyncBaseTransport] = {}
        self._loop = asyncio.get_running_loop()

    def answer_at(self, apps: Mapping[str, ASGIApp]) -> None:
        """Each app answers at an origin from now on."""
        for origin, app in apps.items():
            self._apps[origin] = httpx.ASGITransport(app, client=_BROWSER)

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        origin = f"{request.url.scheme}://{request.url.netloc.decode('ascii')}"
        to = self._apps.get(origin, self._outside)
        if to is None:
            error = OutsideReached(request.method, str(request.url.copy_with(query=None)))
            self._fail(error)
            raise error
        return await to.handle_async_request(request)

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        """Of a client in a worker thread."""
        whole = httpx.Request(
            request.method, request.url, headers=request.headers, content=request.read()
        )
        return asyncio.run_coroutine_threadsafe(self._whole(whole), self._loop).result()

    async def _whole(self, request: httpx.Request) -> httpx.Response:
        reply = await self.handle_async_request(request)
        body = await reply.aread()
        return httpx.Response(
            reply.status_code, headers=reply.headers, content=body, extensions=reply.extensions
        )


class OwnUsers:
    """The application, whose every browser is one of this machine's own user."""

    def __init__(self, app: ASGIApp, *, uid: int) -> None:
        self._app = app
        self._uid = uid

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        scope[PEER_KEY] = Peer(uid=self._uid)
        await self._app(scope, receive, send)
