"""The in-process environment of a test: the author's server and all its dependencies.

Requests between the application, the sandbox and a browser are function calls.

Risks: a test reaches the network unnoticed. A request to any other origin is refused, unless the
test passes its own transport.
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
from flows.providers import PROVIDERS
from webapp.app import open_app
from webapp.calls.replay import Replays
from webapp.deadline import HandClock
from webapp.demo.client import DeclaringClient
from webapp.http.client import Outbound, Transport
from webapp.http.exchange import PEER_KEY, ASGIApp, Receive, Scope, Send
from webapp.identity.local_peer import Peer
from webapp.limits import CallLimits
from webapp.sandbox import new_sandbox
from webapp.sandbox.app import SandboxApp
from webapp.settings.settings import Settings, read_settings
from webapp.stores.memory import MemoryStore
from webapp.testing.person import URL, AskedPerson
from webapp.testing.told import LastCall, OutsideReached, Told
from webapp.testing.webhooks import ProviderWebhooks

if TYPE_CHECKING:
    from webapp.service import Service

SANDBOX_URL = "http://127.0.0.1:8766"
MODERN = "2026-07-28"
LEGACY = "2025-11-25"
PATIENCE = timedelta(seconds=60)  # only a call that hangs reaches this limit
_UID = 1000  # any uid: client, browser and server share it
# Use nothing from the machine: no key file, no store and no elicit.toml.
_SETTINGS: Mapping[str, str] = {
    "HOME": "/nonexistent",
    "ELICIT_URL": URL,
    "ELICIT_SECRET": "of-a-test-that-keeps-nothing-by-it",
    "ELICIT_STORE": "memory:",
    "ELICIT_MIN_ANSWER": "0",  # the person of a test answers at once
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
    replay: bool = False,
    watch: bool = False,
) -> AsyncGenerator[AskedPerson]:
    """Serve an author's server to one person, in this process.

    Args:
        server: An MCPServer or a FastMCP server, or a function that makes one.
        revision: The protocol revision, 2026-07-28 or 2025-11-25.
        declares: The elicitation modes of the client that `person.call` uses.
        settings: The operator's settings by name (`ELICIT_GATE`), merged with the kit's own. The
            kit sets ELICIT_MIN_ANSWER to 0, because the person answers at once.
        outside: Answers requests that go neither to the application nor to the sandbox. It also
            answers an API request of `account.client()` that the sandbox does not simulate, under
            the provider's real address (https://api.github.com/...).
        plugins: The same as for `create_app`.
        patience: A question that is open for longer than this, in real time, fails the test.
        replay: Run each tool again after each question, as some clients do. `person.replayed` then
            lists the calls, and says which side effects outside of `once` were repeated.
        watch: Only count. `person.replayed` then lists the calls as well, with what ran on this
            revision and with this client. The tools do not run more often than without it.

    Raises:
        BadSettings: A setting is invalid.
        InvalidQuestion: A tool asks for a model that no form can show.
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
        http_client = await stack.enter_async_context(httpx.AsyncClient(transport=network))
        sandbox_app = SandboxApp(sandbox, clock=clock, deliver=http_client.send, pause=_at_once)
        asked_of: dict[str, Told] = {}
        built: list[Service] = []

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
                limits=CallLimits(link=timedelta()),  # a test cannot act while a call is open
                sandbox=sandbox,
                plugins=[_Listener(started), *plugins],
                built=built.append,
                outbound=Outbound(
                    http_client, allow_loopback=True, resolve=_here, transport=network
                ),
                has_endpoint=False,  # the client enters the server's own lifespan
            )
        )
        # After the application: an error of its start is raised alone, without an ExceptionGroup.
        guard = await stack.enter_async_context(asyncio.TaskGroup())
        last_call = LastCall()
        stack.enter_context(last_call.listening(server))
        network.answer_at(
            {URL: OwnUsers(app, uid=_UID), SANDBOX_URL: sandbox_app}, apis=_simulated_apis()
        )
        browser = await stack.enter_async_context(httpx.AsyncClient(transport=network))
        person = AskedPerson(
            service=built[0],
            clock=clock,
            browser=browser,
            webhooks=ProviderWebhooks(sandbox_app.deliveries, http_client.send),
            places=(URL, SANDBOX_URL),
            failures=failures,
            asked_of=asked_of,
            last_call=last_call,
        )
        if replay or watch:
            replays = Replays(person.replayed.append, starts_again=replay)
            built[0].running_tools.replays = replays
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
        except BaseException as raised:  # noqa: BLE001 - the test's own, raised again below
            failed = raised
    if failed is not None:
        raise failed


class _Listener:
    """A plugin that receives each started question."""

    def __init__(self, started: Callable[[StartedQuestion], Awaitable[None]]) -> None:
        self._started = started

    @after("start")
    async def hear(self, question: StartedQuestion) -> None:
        await self._started(question)


@contextmanager
def _unchanged(server: Any) -> Generator[None]:
    """Restore the server's middleware at the end: other tests may use the same server."""
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
    # With the uid of `nobody`, as in a container, the person would be an anonymous caller.
    return replace(read_settings(given), uid=_UID)


def _must_be_asyncio() -> None:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        raise RuntimeError(
            "elicit_person needs a running asyncio event loop. Mark the test, for example with "
            "@pytest.mark.anyio and the fixture anyio_backend = 'asyncio'."
        ) from None


def _simulated_apis() -> Mapping[str, str]:
    """Return the real address of each API that the sandbox simulates, by the simulated address."""
    return {
        provider.at(SANDBOX_URL).api: provider.api
        for provider in PROVIDERS.values()
        if provider.sandbox is not None
    }


async def _here(_host: str, _port: int) -> Sequence[str]:
    """Return the loopback address for every host, without a DNS lookup."""
    return ("127.0.0.1",)


async def _at_once(_seconds: float) -> None:
    """Return at once, so that the sandbox retries without a pause."""


class InProcess(Transport):
    """A transport that calls the application of an origin directly and sends the rest `outside`.

    `fail` receives the error of a request that no application answers.
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
        self._apis: Mapping[str, str] = {}
        self._loop = asyncio.get_running_loop()

    def answer_at(self, apps: Mapping[str, ASGIApp], *, apis: Mapping[str, str]) -> None:
        """Send requests for each origin to its application from now on.

        `apis` are the real addresses of the APIs that an application simulates in part.
        """
        self._apis = apis
        for origin, app in apps.items():
            self._apps[origin] = httpx.ASGITransport(app, client=_BROWSER)

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        origin = f"{request.url.scheme}://{request.url.netloc.decode('ascii')}"
        to = self._apps.get(origin, self._outside)
        if to is None:
            error = OutsideReached(request.method, str(request.url.copy_with(query=None)))
            self._fail(error)
            raise error
        reply = await to.handle_async_request(request)
        if reply.status_code == httpx.codes.NOT_FOUND and self._outside is not None:
            url = str(request.url)
            for simulated, real in self._apis.items():
                if url.startswith(f"{simulated}/"):
                    # `Host` is the simulated one, so httpx must set it again.
                    headers = [one for one in request.headers.raw if one[0].lower() != b"host"]
                    return await self._outside.handle_async_request(
                        httpx.Request(
                            request.method,
                            real + url.removeprefix(simulated),
                            headers=headers,
                            content=await request.aread(),
                        )
                    )
        return reply

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        """Send a synchronous client's request from a worker thread to the event loop."""
        copy = httpx.Request(
            request.method, request.url, headers=request.headers, content=request.read()
        )
        return asyncio.run_coroutine_threadsafe(self._read_response(copy), self._loop).result()

    async def _read_response(self, request: httpx.Request) -> httpx.Response:
        reply = await self.handle_async_request(request)
        body = await reply.aread()
        return httpx.Response(
            reply.status_code, headers=reply.headers, content=body, extensions=reply.extensions
        )


class OwnUsers:
    """A wrapper that marks every request as coming from this machine's own user."""

    def __init__(self, app: ASGIApp, *, uid: int) -> None:
        self._app = app
        self._uid = uid

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        scope[PEER_KEY] = Peer(uid=self._uid)
        await self._app(scope, receive, send)
