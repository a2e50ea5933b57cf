"""A served tool server with the sandbox, for accounts, payments and secrets in complete calls.

All traffic of /mcp is recorded. A test can search it for secrets that must not occur in it.
"""

from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, replace
from typing import Any, cast
from urllib.parse import urljoin

import httpx
import mcp_types as types

from flows.elicitation.states import Json
from flows.oauth.connection import Connection
from flows.payments.receipt import Payment
from tests.support.clock import Clock
from tests.support.mcp_server import (
    OF_CALLERS,
    TLS,
    Caller,
    Page,
    Person,
    ServerEnv,
    _Posts,
    link_in,
    service_in,
    soon,
    text_of,
)
from tests.support.oauth_env import decide, ends, ground
from tests.support.serving import serving
from tests.support.settings import AT_ONCE
from webapp.app import open_app
from webapp.demo.walker import Page as Forms
from webapp.http.exchange import ASGIApp, Message, Receive, Scope, Send
from webapp.limits import CallLimits
from webapp.sandbox import Sandbox
from webapp.settings.identity import IdentitySettings
from webapp.stores import Store
from webapp.stores.sqlite import MemoryStore
from webapp.sweeper import fall_due

KEY = "an-open-sesame-of-30-letters.."
Act = Callable[[str], Awaitable[object]]


class Guest:
    """A person who uses our pages and the sandbox's. Each action receives the link."""

    def __init__(self, person: Person) -> None:
        self.person = person

    async def connect(self, link: str) -> Page:
        return await self.decide(link, "approve")

    async def deny(self, link: str) -> Page:
        return await self.decide(link, "deny")

    async def decide(self, link: str, decision: str) -> Page:
        back = await decide(self.person, await self.person.go_on(link), decision)
        return await ends(self.person, await self.person.visit(back))

    async def pay(self, link: str) -> Page:
        return await self.press_at_checkout(link, "card")

    async def leave(self, link: str) -> Page:
        return await self.press_at_checkout(link, "cancel")

    async def finish(self, kind: str, link: str) -> Page:
        """Do what a link of this kind asks for."""
        acts = {"oauth": self.connect, "payment": self.pay, "secret": self.type}
        return await acts[kind](link)

    async def press_at_checkout(self, link: str, button: str) -> Page:
        return await self.press_there(await self.at_checkout(link), button)

    async def at_checkout(self, link: str) -> httpx.Response:
        """Return the checkout page before a button is pressed."""
        return await self.person.browser.get(await self.person.go_on(link))

    async def press_there(self, page: httpx.Response, button: str) -> Page:
        (form,) = (f for f in Forms(page.text).forms if f.action.endswith(f"/{button}"))
        return await self._send(str(page.url), form.action, form.fields)

    async def type(self, link: str, **typed: str) -> Page:
        """Type the values and send them. `value` is the only field of a secret without a schema."""
        page = await self.person.browser.get(link)
        (form, *_) = Forms(page.text).forms
        answers = {f"answer.{name}": text for name, text in (typed or {"value": KEY}).items()}
        assert set(answers) <= set(form.asks), page.text
        return await self._send(link, form.action, {**form.fields, **answers})

    async def allow(self, link: str) -> Page:
        page = await self.person.browser.get(link)
        (form, *_) = Forms(page.text).forms
        assert "/allow" in form.action, page.text
        return await self._send(link, form.action, form.fields)

    async def decline(self, link: str) -> Page:
        return await self.person.decline(link)

    async def _send(self, url: str, action: str, fields: dict[str, str]) -> Page:
        sent = await self.person.browser.post(urljoin(url, action), data=fields)
        return await ends(self.person, Page.of(sent))


@dataclass(slots=True, kw_only=True)
class SandboxEnv:
    env: ServerEnv
    sandbox: Sandbox
    clock: Clock
    tap: "Tap"
    guest: Guest

    async def pass_time(self, **amount: float) -> None:
        """Wait until a call waits for the person, move the clock, and do the work that is due."""
        await self.env.pending()
        self.clock.tick(**amount)
        await fall_due(self.env.service)

    async def payments(self) -> list[Payment]:
        rows = self.env.service.elicitations
        return [await rows.rows.open(r, Payment) for r in await rows.store.list("payment")]

    async def connections(self) -> list[Connection]:
        rows = self.env.service.elicitations
        return [await rows.rows.open(r, Connection) for r in await rows.store.list("account")]

    async def control(self, **wishes: Any) -> None:
        """Set how the sandbox delivers its webhooks."""
        await self._post("/stripe/control", self.sandbox.stripe_key, wishes)

    async def plan(self, **wish: Any) -> None:
        """Set the next failures of the sandbox's authorization server."""
        await self._post("/control", self.sandbox.client_secret, wish)

    async def _post(self, path: str, key: str, wish: dict[str, Any]) -> None:
        headers = {"authorization": f"Bearer {key}"}
        async with httpx.AsyncClient(verify=TLS) as client:
            reply = await client.post(self.sandbox.url + path, json=wish, headers=headers)
        assert reply.status_code == 200, reply.text

    async def check_traffic(self) -> None:
        """Check that no secret, token or key occurred in any message."""
        reported = bytes(self.tap.received)
        account = [token for c in await self.connections() for token in (c.access_token,) if token]
        for secret in (KEY, *account, self.sandbox.client_secret, self.sandbox.stripe_key):
            assert secret.encode() not in reported, secret


class Tap:
    """An ASGI wrapper that records all traffic of /mcp."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app
        self.received = bytearray()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope.get("path") != "/mcp":
            await self._app(scope, receive, send)
            return

        async def receiving() -> Message:
            message = await receive()
            self.received.extend(message.get("body", b""))
            return message

        async def sending(message: Message) -> None:
            self.received.extend(message.get("body", b""))
            await send(message)

        await self._app(scope, receiving, sending)


@asynccontextmanager
async def sandbox_env(
    server: Any,
    *,
    store: Store | None = None,
    limits: CallLimits | None = None,
    plays: bool = True,
    who: IdentitySettings | None = None,
) -> AsyncIterator[SandboxEnv]:
    """Serve the tools with the sandbox.

    Without `plays`, the sandbox does not replace missing settings.
    """
    clock = Clock()
    async with AsyncExitStack() as stack:
        post = await stack.enter_async_context(httpx.AsyncClient(verify=TLS))
        on = await stack.enter_async_context(ground(clock, deliver=post.send))
        settings = replace(on.settings, identity=who or IdentitySettings(), policies=AT_ONCE)
        app = await stack.enter_async_context(
            open_app(
                settings,
                server,
                store=store or MemoryStore(),
                clock=clock,
                limits=limits,
                sandbox=on.sandbox if plays else None,
            )
        )
        tap = Tap(app)
        posts = _Posts(tap)
        await stack.enter_async_context(serving(posts, port=on.port))
        service = service_in(app)
        env = ServerEnv(url=settings.url, service=service, settings=settings, posts=posts)
        guest = Guest(await env.person())
        here = SandboxEnv(env=env, sandbox=on.sandbox, clock=clock, tap=tap, guest=guest)
        try:
            yield here
        finally:
            await env.aclose()
        await here.check_traffic()


@asynccontextmanager
async def caller_at_sandbox(
    server: Any, revision: str, **options: Any
) -> AsyncIterator[tuple[SandboxEnv, Caller]]:
    """Serve the tools with the sandbox and connect a client. `options` go to both."""
    own = {name: options.pop(name) for name in OF_CALLERS & options.keys()}
    async with sandbox_env(server, **options) as at, at.env.caller(revision, **own) as caller:
        yield at, caller


async def went_through(
    caller: Caller, tool: str, acts: Sequence[Act], *, by_url: bool = True, **arguments: Json
) -> types.CallToolResult:
    """Call a tool, do what each link asks for, and return the result.

    Without URL mode the link is in a result, and the same call continues the run.
    """
    if by_url:
        call = caller.call(tool, **arguments)
        for act in acts:
            await act(await caller.link())
        return cast("types.CallToolResult", await soon(call))
    for act in acts:
        await act(link_in(await soon(caller.call(tool, **arguments))))
    result = cast("types.CallToolResult", await soon(caller.call(tool, **arguments)))
    assert "/e/" not in text_of(result)
    return result
