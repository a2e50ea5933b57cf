"""The application of a test: it serves the author's server in this process, and can restart.

The store, the sandbox and the clock stay when the application restarts. All that its process has in
memory is lost: connections, running tools, caches and rate limits.

Risks: two tests share a server, and one of them changes it. The server's middleware is therefore
restored when the application closes.
"""

import asyncio
from collections import deque
from collections.abc import (
    AsyncGenerator,
    Awaitable,
    Callable,
    Collection,
    Generator,
    Iterable,
    Sequence,
)
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from dataclasses import dataclass, field, replace
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import httpx
from mcp.client.session import ElicitationFnT
from mcp.server.auth.middleware.auth_context import auth_context_var
from mcp.server.auth.middleware.bearer_auth import AuthenticatedUser
from mcp.server.auth.provider import AccessToken

from flows.oauth.access_token import claim_mark
from flows.oauth.sign_in import SignedIn
from webapp.app import open_app
from webapp.calls.replay import Replays
from webapp.deadline import HandClock
from webapp.demo.client import DeclaringClient
from webapp.http.client import Outbound, Transport
from webapp.http.exchange import ASGIApp
from webapp.limits import CallLimits
from webapp.records.values import KINDS, Alias
from webapp.sandbox.settings import Sandbox
from webapp.settings.settings import Settings
from webapp.stores.sqlite import MemoryStore
from webapp.testing.received import LastCall, ReceivedQuestion

if TYPE_CHECKING:
    from webapp.service import Service

URL = "http://127.0.0.1:8765"
MODERN = "2026-07-28"
LEGACY = "2025-11-25"
MODES = ("form", "url")
# A test cannot act while a call is open, so a repeated call without URL mode returns at once.
LIMITS = CallLimits(link=timedelta())


@dataclass(kw_only=True)
class TestedApplication:
    """The application, and the objects that all people of a test share.

    `make` returns the author's server, a new one each time if the test passed a function.
    `serve` receives the running application. `tasks` and `browsers` live until the test ends.
    """

    __test__ = False  # pytest must not collect this class

    make: Callable[[], Any]
    settings: Settings
    clock: HandClock
    sandbox: Sandbox
    outbound: Outbound
    transport: Transport
    plugins: Sequence[object]
    serve: Callable[[ASGIApp], None]
    tasks: asyncio.TaskGroup
    browsers: AsyncExitStack
    replays: Callable[[], Replays] | None
    failures: list[Exception] = field(default_factory=list[Exception])
    asked_of: dict[str, ReceivedQuestion] = field(default_factory=dict[str, ReceivedQuestion])
    last_call: LastCall = field(default_factory=LastCall)
    store: MemoryStore = field(default_factory=MemoryStore)
    server: Any = None
    clients: "list[PersonClient]" = field(default_factory=list["PersonClient"])

    new_person: Callable[..., Awaitable[Any]] = field(init=False)  # returns an AskedPerson
    asgi: ASGIApp = field(init=False)
    service: "Service" = field(init=False)
    _running: AsyncExitStack = field(init=False)

    async def open(self) -> None:
        """Open the application on the test's store."""
        self._running = stack = AsyncExitStack()
        self.server = server = self.make()
        stack.enter_context(_unchanged(server))
        app = await stack.enter_async_context(
            open_app(
                self.settings,
                server,
                store=self.store,
                clock=self.clock,
                limits=LIMITS,
                sandbox=self.sandbox,
                plugins=self.plugins,
                built=self._built,
                outbound=self.outbound,
                has_endpoint=False,  # the client enters the server's own lifespan
            )
        )
        stack.enter_context(self.last_call.listening(server))
        self.asgi = app
        self.serve(app)

    async def close(self) -> None:
        """Close the clients, then the application."""
        for client in self.clients:
            await client.close()
        await self._running.aclose()

    def _built(self, service: "Service") -> None:
        self.service = service
        if self.replays is not None:
            service.running_tools.replays = self.replays()

    async def learn_ids(self) -> None:
        """Note the ids that the author gave to questions. An id is stored after its question."""
        for record in await self.store.list(KINDS[Alias]):
            alias = await self.service.elicitations.rows.open(record, Alias)
            if (question := self.asked_of.get(alias.elicitation_id)) is not None:
                name = alias.id.partition("::")[0]
                self.asked_of[question.id] = replace(question, elicitation_id=name)

    def hold(self, *, nothing: bool) -> None:
        """Hold requests while a person answers, or end them at once if `nothing` is True."""
        none = timedelta()
        held = replace(LIMITS, call=none, retry=none, request_at_least=none) if nothing else LIMITS
        self.service.clients.limits = held

    @property
    def has_approvers(self) -> bool:
        """True if the settings declare approvers. All people of the test then have to sign in."""
        return any(one.subjects or one.claims for one in self.settings.identity.approvers)

    def owner_of(self, subject: str | None) -> str:
        """Return the owner tag of a person. None is the user of this machine."""
        identity = self.service.identity
        if subject is None:
            return identity.local_owner
        return self.service.elicitations.owners.tag(issuer=self.issuer, subject=subject)

    @property
    def issuer(self) -> str:
        """The issuer where the people of the test sign in."""
        issuer = self.settings.identity.issuer
        if issuer is None:
            raise AssertionError(
                "Nobody can sign in with these settings, so the test has only one person: remove "
                "ELICIT_LOCAL_YES from the settings of elicit_person."
            )
        return issuer

    @asynccontextmanager
    async def browser(self) -> AsyncGenerator[httpx.AsyncClient]:
        """Yield a browser. `last_call` records each page that it shows."""
        hooks = {"response": [self.last_call.see]}
        async with httpx.AsyncClient(transport=self.transport, event_hooks=hooks) as browser:
            yield browser

    async def sign_in(
        self, browser: httpx.AsyncClient, subject: str, *, claims: Iterable[tuple[str, str]] = ()
    ) -> None:
        """Sign the browser in without the issuer's page. The session has these claims."""
        marks = tuple(claim_mark(*pair) for pair in claims)
        signed_in = SignedIn(issuer=self.issuer, subject=subject, label=subject, claims=marks)
        sessions = self.service.identity.sessions
        session = await sessions.start(signed_in, cookies={})
        name, _, rest = sessions.set_cookie(session).partition("=")
        browser.cookies.set(name, rest.partition(";")[0], domain="127.0.0.1", path="/")


def must_be_client(revision: str, declares: Collection[str]) -> None:
    """Raise ValueError for a revision or an elicitation mode that no client of a test can have."""
    if revision not in (MODERN, LEGACY):
        raise ValueError(f"revision must be {MODERN!r} or {LEGACY!r}, not {revision!r}.")
    if isinstance(declares, str) or not set(declares) <= {*MODES}:
        raise ValueError(
            f"declares must be a collection of {' and '.join(map(repr, MODES))}, such as "
            f"('url',), or () for a client that shows no questions. It is {declares!r}."
        )


@contextmanager
def calling_as(token: AccessToken | None) -> Generator[None]:
    """Make the calls in the block with this access token. If it is None, send no token."""
    before = auth_context_var.set(None if token is None else AuthenticatedUser(token))
    try:
        yield
    finally:
        auth_context_var.reset(before)


class PersonClient:
    """The client of one person, with its planned actions. `subject` None: this machine's user.

    Each connection is in a task of its own, so that it can end at any time.
    """

    def __init__(
        self,
        app: TestedApplication,
        *,
        subject: str | None,
        revision: str,
        declares: Collection[str],
        callback: ElicitationFnT,
    ) -> None:
        must_be_client(revision, declares)
        self.subject, self.revision, self.declares = subject, revision, frozenset(declares)
        self.plan: deque[Any] = deque()  # of _acts.Act and _acts.Pause
        self._app = app
        self._callback = callback
        self._connected: DeclaringClient | None = None
        self._ends = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        app.clients.append(self)

    @property
    def connected(self) -> DeclaringClient:
        assert self._connected is not None
        return self._connected

    @property
    def owner(self) -> str:
        """The owner tag of this person's data in the store."""
        return self._app.owner_of(self.subject)

    @property
    def token(self) -> AccessToken | None:
        """The access token of this person's calls. Its client id is empty."""
        if self.subject is None:
            return None
        claims = {"iss": self._app.issuer}
        return AccessToken(
            token=self.subject, client_id="", scopes=[], subject=self.subject, claims=claims
        )

    async def connect(self) -> None:
        """Connect. An earlier connection is closed first."""
        await self.close()
        server = self._app.server
        client = DeclaringClient(
            getattr(server, "_mcp_server", server),
            mode="legacy" if self.revision == LEGACY else self.revision,
            elicitation_callback=self._callback if self.declares else None,
        )
        client.declares = self.declares
        self._connected, self._ends = client, asyncio.Event()
        is_open: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._task = self._app.tasks.create_task(self._run(client, is_open))
        await is_open

    async def _run(self, client: DeclaringClient, is_open: asyncio.Future[None]) -> None:
        try:
            with calling_as(self.token):
                async with client:
                    is_open.set_result(None)
                    await self._ends.wait()
        except Exception as error:
            if is_open.done():
                raise
            is_open.set_exception(error)

    async def close(self) -> None:
        self._ends.set()
        if self._task is not None:
            await asyncio.wait({self._task})


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
