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
    Mapping,
    Sequence,
)
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace
from datetime import timedelta
from http import HTTPStatus
from typing import Any

import httpx

from flows.hooks import StartedQuestion, after
from webapp.calls.replay import Replays
from webapp.deadline import HandClock
from webapp.http.client import Outbound, Transport
from webapp.http.exchange import PEER_KEY, ASGIApp, Message, Receive, Scope, Send
from webapp.identity.local_peer import Peer
from webapp.sandbox import new_sandbox
from webapp.sandbox.app import SandboxApp
from webapp.settings.approver_tables import read_approvers
from webapp.settings.identity import with_approvers
from webapp.settings.sandboxed import simulated
from webapp.settings.settings import BadSettings, Settings, read_settings
from webapp.sweeper import fall_due
from webapp.testing._acts import Act
from webapp.testing._application import MODERN, URL, PersonClient, TestedApplication, must_be_client
from webapp.testing.person import AskedPerson
from webapp.testing.received import NeverAsked, OutsideReached, ReceivedQuestion, StillOpen
from webapp.testing.webhooks import ProviderWebhooks

SANDBOX_URL = "http://127.0.0.1:8766"
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
# The issuer where people sign in. The server does not check a sandbox's client id at the issuer.
_ISSUER: Mapping[str, str] = {
    "ELICIT_ISSUER": f"{SANDBOX_URL}/oidc",
    "ELICIT_ISSUER_CLIENT_ID": "elicit-sandbox-test",
    "ELICIT_ISSUER_CLIENT_SECRET": "of-a-test-in-which-nobody-types-a-password",
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
    approvers: Mapping[str, Mapping[str, object]] | None = None,
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
        watch: List the calls in `person.replayed` too, but do not run any tool more often than
            usual. The list then shows what ran with this revision and this client.
        approvers: Tables as `[approvers.NAME]` in elicit.toml, by name. The person then signs in,
            as approvers do.

    Raises:
        BadSettings: A setting is invalid.
        TypeError: `server` is neither a server nor a function.
        ValueError: The revision or an elicitation mode is unknown.
        InvalidQuestion: A tool asks for a model that no form can show.
    """
    _must_be_asyncio()
    must_be_client(revision, declares)
    is_made = not hasattr(server, "list_tools") and callable(server)
    read = _settings(settings or {}, approvers=approvers or {})
    clock, failures = HandClock(), list[Exception]()
    failed: BaseException | None = None
    apis = _simulated_apis(read)
    network, server_network = (
        InProcess(outside=outside, fail=failures.append, apis=apis) for _ in range(2)
    )
    responders = Responders()

    def answer_at(origin: str, app: ASGIApp) -> None:
        network.answer_at({origin: app})
        server_network.answer_at({origin: responders.responding_first(app)})

    sandbox = new_sandbox(url=SANDBOX_URL, serves=URL)
    async with AsyncExitStack() as stack:
        http_client = await stack.enter_async_context(httpx.AsyncClient(transport=network))
        sandbox_app = SandboxApp(sandbox, clock=clock, deliver=http_client.send, pause=_at_once)
        answer_at(SANDBOX_URL, sandbox_app)
        server_client = await stack.enter_async_context(httpx.AsyncClient(transport=server_network))
        guard = await stack.enter_async_context(asyncio.TaskGroup())

        async def started(question: StartedQuestion) -> None:
            asked = await app.service.elicitations.get(question.id)
            if asked is not None:
                app.asked_of[asked.id] = ReceivedQuestion.of(asked)
                waiting = guard.create_task(person.is_awaited(asked.id, at_most=patience))
                stack.callback(waiting.cancel)

        def replays() -> Replays:
            return Replays(person.replayed.append, starts_again=replay)

        app = TestedApplication(
            make=server if is_made else lambda: server,
            settings=read,
            clock=clock,
            sandbox=sandbox,
            outbound=Outbound(
                server_client, allow_loopback=True, resolve=_here, transport=server_network
            ),
            transport=network,
            plugins=[_Listener(started), *plugins],
            serve=lambda asgi: answer_at(URL, OwnUsers(asgi, uid=_UID)),
            tasks=guard,
            browsers=stack,
            replays=replays if replay or watch else None,
            failures=failures,
        )
        webhooks = ProviderWebhooks(
            sandbox_app.sales, http_client.send, settle=lambda: fall_due(app.service)
        )
        app.new_person = lambda *who, **client: _SimulatedPerson(
            app, webhooks, *who, **client
        ).join()
        person = _SimulatedPerson(app, webhooks, None, revision=revision, declares=declares)
        try:  # the start is inside too, so that its errors are raised without an ExceptionGroup
            await app.open()
            stack.push_async_callback(app.close)
            stack.push_async_callback(responders.finish)
            await person.join()
            yield person
            person.must_be_done()
        except (GeneratorExit, asyncio.CancelledError, KeyboardInterrupt, SystemExit):
            raise
        except BaseException as raised:  # noqa: BLE001 - the test's own, raised again below
            failed = raised
            if (says := str(app.last_call)) not in str(raised):
                raised.add_note(says.replace(str(raised) or says, "the error above"))
    if failed is not None:
        raise failed


class _SimulatedPerson(AskedPerson):
    """A person, with the methods that only the test kit itself calls."""

    def __init__(
        self,
        app: TestedApplication,
        webhooks: ProviderWebhooks,
        subject: str | None,
        *,
        revision: str,
        declares: Collection[str],
    ) -> None:
        self.clock, self.webhooks = app.clock, webhooks
        self.replayed, self.refused = [], []
        self._app, self._places = app, (URL, SANDBOX_URL)
        self._client = PersonClient(
            app,
            subject="person" if subject is None and app.has_approvers else subject,
            revision=revision,
            declares=declares,
            callback=self.elicitation_callback,
        )
        self._plan, self._later, self._shown = self._client.plan, [], {}
        self._done, self._left, self._unseen, self._acting = set(), set(), set(), set()

    async def join(self) -> AskedPerson:
        """Open the browser and connect the client that `call` uses."""
        self._browser = await self._app.browsers.enter_async_context(self._app.browser())
        await self._client.connect()
        return self

    async def is_awaited(self, id: str, *, at_most: timedelta) -> None:
        """Fail a question that is still open after `at_most`, because nobody acts on it."""
        await asyncio.sleep(at_most.total_seconds())
        asked = await self._get(id)
        if not asked.status.is_final:
            says = str(self._app.last_call)
            is_done = id in self._done
            await self._fail(
                asked, StillOpen(self._received(asked), is_done=is_done, last_call=says)
            )

    def must_be_done(self) -> None:
        """Raise the first failure of the test that was not raised yet.

        Raises:
            NeverAsked: A planned action is left over.
        """
        self._raise_failure()
        plan = [each for client in self._app.clients for each in client.plan]
        if plan:
            says = [each.says if isinstance(each, Act) else each.value for each in plan]
            raise NeverAsked(says, last_call=str(self._app.last_call))


class _Listener:
    """A plugin that receives each started question."""

    def __init__(self, started: Callable[[StartedQuestion], Awaitable[None]]) -> None:
        self._started = started

    @after("start")
    async def on_start(self, question: StartedQuestion) -> None:
        await self._started(question)


def _settings(own: Mapping[str, str], *, approvers: Mapping[str, Mapping[str, object]]) -> Settings:
    # People cannot sign in where this machine's user has to pair a browser.
    basic = _SETTINGS if "ELICIT_LOCAL_YES" in own else {**_SETTINGS, **_ISSUER}
    found = read_settings({**basic, **own})
    problems = list[str]()
    tables = (*found.identity.approvers, *read_approvers(approvers, problems))
    identity = with_approvers(found.identity, tables, problems)
    if problems:
        raise BadSettings(problems)
    # With the uid of `nobody`, as in a container, the person would be an anonymous caller. Errors
    # must not name a file that the test has not passed.
    config = found.config if "ELICIT_CONFIG" in own else None
    return replace(found, uid=_UID, identity=identity, config=config)


def _must_be_asyncio() -> None:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        raise RuntimeError(
            "elicit_person needs a running asyncio event loop. Mark the test, for example with "
            "@pytest.mark.anyio and the fixture anyio_backend = 'asyncio'."
        ) from None


def _simulated_apis(settings: Settings) -> Mapping[str, str]:
    """Map the simulated address of each API in the sandbox to the API's real address."""
    return {
        found.api: provider.api
        for provider in settings.providers.values()
        if (found := simulated(provider, SANDBOX_URL)) is not None
    }


async def _here(_host: str, _port: int) -> Sequence[str]:
    """Return the loopback address for every host, without a DNS lookup."""
    return ("127.0.0.1",)


async def _at_once(_seconds: float) -> None:
    """Return at once, so that the sandbox retries without a pause."""


class InProcess(Transport):
    """A transport that calls an origin's application, and sends all other requests to `outside`.

    `fail` receives the error of a request that no application answers. `apis` are the real
    addresses of the APIs that an application simulates in part.
    """

    def __init__(
        self,
        *,
        outside: httpx.AsyncBaseTransport | None,
        fail: Callable[[AssertionError], None],
        apis: Mapping[str, str],
    ) -> None:
        self._outside = outside
        self._fail = fail
        self._apps: dict[str, httpx.AsyncBaseTransport] = {}
        self._apis = apis
        self._loop = asyncio.get_running_loop()

    def answer_at(self, apps: Mapping[str, ASGIApp]) -> None:
        """Send requests for each origin to its application from now on."""
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
        url = str(request.url)
        # The sandbox does not know the API keys that a test makes up; `outside` does.
        is_key = reply.status_code == HTTPStatus.UNAUTHORIZED and f"{SANDBOX_URL}/apis/" in url
        is_unknown = is_key or reply.status_code == HTTPStatus.NOT_FOUND
        if is_unknown and self._outside is not None:
            for simulated, real in self._apis.items():
                if url.startswith(f"{simulated}/"):
                    # `Host` names the simulated address, so httpx must set it again.
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


class Responders:
    """The applications that answer the server's own requests.

    `httpx.ASGITransport` returns a response only after its background task. The sandbox sends its
    webhooks in that task. A server that holds a lock until the response arrives, and takes the
    same lock for the webhook, would wait for itself.
    """

    def __init__(self) -> None:
        self._running = set[asyncio.Future[None]]()

    def responding_first(self, app: ASGIApp) -> ASGIApp:
        """Return an application that returns after the response and continues in a task."""

        async def respond(scope: Scope, receive: Receive, send: Send) -> None:
            has_responded = asyncio.Event()

            async def forward(message: Message) -> None:
                await send(message)
                if message["type"] == "http.response.body" and not message.get("more_body"):
                    has_responded.set()

            running: asyncio.Future[None] = asyncio.ensure_future(app(scope, receive, forward))
            running.add_done_callback(lambda _: has_responded.set())
            try:
                await has_responded.wait()
            except asyncio.CancelledError:
                running.cancel()
                await asyncio.wait([running])
                raise
            if running.done():
                running.result()
            else:
                self._running.add(running)
                running.add_done_callback(self._running.discard)

        return respond

    async def finish(self) -> None:
        """Wait for all background tasks."""
        await asyncio.gather(*self._running)


class OwnUsers:
    """A wrapper that marks every request as coming from this machine's own user."""

    def __init__(self, app: ASGIApp, *, uid: int) -> None:
        self._app = app
        self._uid = uid

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        scope[PEER_KEY] = Peer(uid=self._uid)
        await self._app(scope, receive, send)
