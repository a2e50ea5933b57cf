"""Accounts without a question: the person's own access token is exchanged.

The tests call over MCP and over the HTTP API. The issuer and the provider are local servers.
"""

import json
from asyncio import Event, Task, create_task
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs

import pytest
from mcp.server.auth.middleware.auth_context import get_access_token
from msgspec import to_builtins

from flows import elicit
from flows.elicitation.run import Run
from flows.elicitation.states import Elicitation
from flows.errors import InvalidQuestion
from flows.oauth.connection import Connection, allow
from flows.oauth.provider import PersonProbe, Provider, Revocation, TokenExchange
from flows.providers.openid import on_behalf_of
from flows.requests import AccountRequest
from tests.support.api_people import PeopleEnv
from tests.support.api_program import program_at
from tests.support.approving import AT_ONCE
from tests.support.asking_env import asking_env
from tests.support.clock import Clock
from tests.support.issuer import Issuing, is_made_up, issuing
from tests.support.living import living
from tests.support.mcp_server import LEGACY, MODERN, CutOffCaller, new_server
from tests.support.serving import serving_at
from tests.support.shared_stores import STORES
from webapp.elicitations.question_kind import AskedBy
from webapp.http.exchange import Receive, Scope, Send
from webapp.identity.api_keys import KeyScope
from webapp.stores.opening import open_store

GRANT = "urn:ietf:params:oauth:grant-type:"
TYPE = "urn:ietf:params:oauth:token-type:"
CRM = "https://crm.example"
Reply = Callable[[dict[str, str]], tuple[int, Any]]


@dataclass
class Crm:
    """A provider that exchanges tokens as `reply` says, and knows each token's person."""

    url: str
    reply: Reply | None = None
    asked: list[dict[str, str]] = field(default_factory=list)
    people: dict[str, str] = field(default_factory=dict)
    seen: list[str] = field(default_factory=list)  # everything that arrived, as text
    # runs before the reply of a path
    meanwhile: dict[str, Callable[[], Awaitable[Any]]] = field(
        default_factory=dict[str, Callable[[], Awaitable[Any]]]
    )

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        body = (await receive())["body"].decode()
        headers = dict(scope["headers"])
        self.seen.append(f"{scope['path']} {headers!r} {body}")
        token = headers.get(b"authorization", b"").decode().removeprefix("Bearer ")
        status, content = 200, {}
        if scope["path"] == "/token":
            sent = {name: values[0] for name, values in parse_qs(body).items()}
            if "code" in sent or is_made_up(
                subject_in(sent)
            ):  # the server tries its registration at start
                status, content = 400, {"error": "invalid_grant"}
            else:
                self.asked.append(sent)
                await self._meanwhile(scope["path"])
                assert self.reply is not None
                status, content = self.reply(sent)
        elif scope["path"] == "/revoke":
            await self._meanwhile(scope["path"])
        elif token in self.people:
            content = {"id": self.people[token], "email": f"{self.people[token]}@crm.example"}
        else:
            status = 401
        answer = [(b"content-type", b"application/json")]
        await send({"type": "http.response.start", "status": status, "headers": answer})
        await send({"type": "http.response.body", "body": json.dumps(content).encode()})

    async def _meanwhile(self, path: str) -> None:
        in_between = self.meanwhile.pop(path, None)
        if in_between is not None:
            await in_between()

    def issues(self, token: str, subject: str, **more: Any) -> tuple[int, Any]:
        self.people[token] = subject
        reply = {"access_token": token, "token_type": "Bearer", "expires_in": 600}
        return 200, {**reply, "issued_token_type": f"{TYPE}access_token", **more}


class ExchangeEnv(PeopleEnv):
    crm: Crm

    async def call_tool(
        self, subject: str, revision: str = LEGACY, scope: str = "read", **claims: Any
    ) -> str:
        browser = await self.here.browser(None)
        caller = CutOffCaller(browser.browser, f"{self.here.url}/mcp", revision, elicits=False)
        caller.headers |= {"authorization": f"Bearer {self.token(subject, **claims)}"}
        await caller.connect()
        return (await caller.call("customers", scope=scope)).text


def tools() -> Any:
    server = new_server("mcp")

    @server.tool()
    async def customers(scope: str = "read") -> str:
        account = await elicit.oauth("crm", scopes=[scope])
        token = get_access_token()
        assert token is not None
        assert token.token == ""
        assert "subject_token" not in repr(token) + token.model_dump_json()
        async with account.client() as api:
            status = (await api.get("/customers")).status_code
        return f"{account.label}: {status}"

    return server


def provider_at(crm: Crm, exchange: TokenExchange) -> Provider:
    return Provider(
        name="crm",
        label="CRM",
        authorize=f"{crm.url}/authorize",
        token=f"{crm.url}/token",
        api=crm.url,
        person=PersonProbe(url=f"{crm.url}/me", id="id", label="email"),
        exchange=exchange,
        revoke=Revocation(url=f"{crm.url}/revoke"),
    )


@asynccontextmanager
async def exchange_env(
    *, store: Any = None, claim: tuple[str, ...] = ("sub",), **how: Any
) -> AsyncIterator[tuple[ExchangeEnv, Crm]]:
    clock, found = Clock(), list[Crm]()

    def make(url: str) -> Any:
        found.append(Crm(url=url))
        return found[0]

    async with issuing(clock) as issuer, serving_at(make):
        exchange = TokenExchange(**{"issuer": issuer.url, **how})
        async with asking_env(
            server=tools(),
            identity=issuer.who(claim=claim),
            limits=AT_ONCE,
            clock=clock,
            store=store,
            providers={"crm": provider_at(found[0], exchange)},
        ) as here:
            yield ExchangeEnv(here=here, issuer=issuer), found[0]


def by_token(crm: Crm, issuer: Issuing, **claims: Any) -> Reply:
    """Return a reply with a token that names the person of the subject token."""

    def reply(sent: dict[str, str]) -> tuple[int, Any]:
        subject = claims_in(subject_in(sent))["sub"]
        token = issuer.signed(
            **{"iss": issuer.url, "sub": subject, "aud": CRM, "n": len(crm.asked), **claims}
        )
        return crm.issues(token, claims.get("sub", subject))

    return reply


def subject_in(sent: dict[str, str]) -> str:
    return sent.get("subject_token") or sent.get("assertion", "")


def claims_in(token: str) -> dict[str, Any]:
    from joserfc.util import urlsafe_b64decode

    found: dict[str, Any] = json.loads(urlsafe_b64decode(token.split(".")[1].encode()))
    return found


@asynccontextmanager
async def env_on(name: str, folder: Path) -> AsyncIterator[tuple[ExchangeEnv, Crm]]:
    async with STORES[name](folder) as url:
        store = await open_store(url)
        try:
            async with exchange_env(store=store, audience=CRM) as found:
                yield found
        finally:
            await store.aclose()


@pytest.mark.parametrize("store", ["sqlite", "postgres"])
async def test_token_is_exchanged_once_and_nobody_is_asked(store: str, tmp_path: Path) -> None:
    # finding: XO9
    async with living(env_on(store, tmp_path)) as (env, crm):
        crm.reply = by_token(crm, env.issuer)
        for revision in (LEGACY, MODERN, LEGACY):
            assert "ann@crm.example: 200" in await env.call_tool("ann", revision)
        (sent,) = crm.asked
        assert sent["grant_type"] == f"{GRANT}token-exchange"
        assert sent["subject_token_type"] == f"{TYPE}access_token"
        assert (sent["audience"], sent["scope"]) == (CRM, "read")
        assert claims_in(sent["subject_token"])["sub"] == "ann"
        assert "bob@crm.example: 200" in await env.call_tool("bob")
        (ann, bob) = sorted(await env.here.connections(), key=lambda one: one.label)
        assert (ann.owner, bob.owner) == (env.owner("ann"), env.owner("bob"))
        assert ann.refresh_token is None
        env.here.clock.tick(minutes=11)  # the token has expired
        assert "ann@crm.example: 200" in await env.call_tool("ann")
        assert len(crm.asked) == 3
        # The person's own token went to the token endpoint only, and is stored nowhere.
        own = [sent["subject_token"] for sent in crm.asked]
        others = [text for text in crm.seen if not text.startswith("/token")]
        assert not any(token in text for token in own for text in others)
        rows = env.here.service.elicitations
        for kind in (Connection, Run, Elicitation):
            stored = to_builtins(await rows.all(kind, owner=env.owner("ann")))
            assert not any(token in repr(stored) for token in own)


async def test_program_gets_the_account_of_the_person_who_sent_their_token() -> None:
    async with living(exchange_env(audience=CRM)) as (env, crm):
        crm.reply = by_token(crm, env.issuer)
        async with program_at(env.here, also=(KeyScope.TOKENS,)) as shop:
            ann = shop.acting_for(env.acting("ann"))
            asks = {"kind": "oauth", "provider": "crm", "scopes": ["read"]}
            answer = (await ann.ask(asks)).json()
            assert answer["status"] == "accepted", answer
            where = f"accounts/{answer['account']['id']}"
            proxied = await ann.at(f"{where}/proxy", params={"url": f"{crm.url}/customers"})
            assert proxied.status_code == 200
            assert (await shop.acting_for(env.acting("bob")).at(where)).status_code == 404
            # Without the person's own token there is nothing to exchange.
            asked = (await shop.ask({**asks, "user": "ann"})).json()
            assert asked["status"] == "pending"


async def test_assertion_of_the_issuer_is_redeemed_at_the_provider() -> None:
    async with living(exchange_env(kind="id_jag", audience=CRM)) as (env, crm):
        sent = list[dict[str, str]]()

        def asserts(asked: dict[str, str]) -> tuple[int, Any]:
            sent.append(asked)
            subject = claims_in(asked["subject_token"])["sub"]
            jag = env.issuer.signed(iss=env.issuer.url, sub=subject, aud=CRM)
            reply = {"access_token": jag, "issued_token_type": f"{TYPE}id-jag"}
            return 200, {**reply, "token_type": "N_A", "expires_in": 300}

        env.issuer.token_exchange = asserts
        crm.reply = lambda asked: crm.issues("opaque", claims_in(asked["assertion"])["sub"])
        assert "ann@crm.example: 200" in await env.call_tool("ann")
        assert sent[0]["requested_token_type"] == f"{TYPE}id-jag"
        assert sent[0]["audience"] == CRM
        assert crm.asked[0]["grant_type"] == f"{GRANT}jwt-bearer"
        assert sent[0]["subject_token"] not in " ".join(crm.seen)  # only the assertion went there


async def test_token_is_redeemed_on_behalf_of_its_person() -> None:
    how = on_behalf_of("https://issuer.example", matches="id")
    more = {"kind": how.kind, "extra": how.extra, "matches": how.matches}
    async with living(exchange_env(claim=("oid", "tid"), **more)) as (env, crm):
        crm.reply = lambda sent: crm.issues("opaque", claims_in(sent["assertion"])["oid"])
        assert "o-1@crm.example: 200" in await env.call_tool("ann", oid="o-1", tid="t")
        assert crm.asked[0]["requested_token_use"] == "on_behalf_of"
        crm.reply = lambda _sent: crm.issues("another", "o-1")
        assert "crm.example: 200" not in await env.call_tool("bob", oid="o-2", tid="t")


def refuses(error: str, status: int = 400) -> Callable[[Crm, Issuing], Reply]:
    return lambda _crm, _issuer: lambda _sent: (status, {"error": error})


def opaque(crm: Crm, issuer: Issuing) -> Reply:
    return lambda _sent: crm.issues("opaque", "ann")


def another_kind(crm: Crm, issuer: Issuing) -> Reply:
    def reply(sent: dict[str, str]) -> tuple[int, Any]:
        status, says = by_token(crm, issuer)(sent)
        return status, {**says, "issued_token_type": f"{TYPE}refresh_token"}

    return reply


@pytest.mark.parametrize(
    "reply",
    [
        refuses("interaction_required"),
        refuses("consent_required"),
        refuses("invalid_target"),
        refuses("invalid_grant"),
        refuses("temporarily_unavailable", 503),
        lambda crm, issuer: by_token(crm, issuer, sub="bob"),
        lambda crm, issuer: by_token(crm, issuer, iss="https://another.example"),
        lambda crm, issuer: by_token(crm, issuer, aud="https://another.example"),
        opaque,
        another_kind,
    ],
)
async def test_refused_or_unproven_exchange_asks_the_person(reply: Any) -> None:
    async with living(exchange_env(audience=CRM)) as (env, crm):
        crm.reply = reply(crm, env.issuer)
        text = await env.call_tool("ann")
        assert f"{env.here.url}/e/" in text
        assert "crm.example: 200" not in text
        assert await env.here.connections() == []


@pytest.mark.parametrize(
    "wrong", [{"sub": "bob"}, {"aud": "https://another.example"}, {"iss": "x"}]
)
async def test_assertion_about_somebody_else_is_not_redeemed(wrong: dict[str, str]) -> None:
    async with living(exchange_env(kind="id_jag", audience=CRM)) as (env, crm):

        def asserts(asked: dict[str, str]) -> tuple[int, Any]:
            claims = {"iss": env.issuer.url, "sub": "ann", "aud": CRM, **wrong}
            jag = env.issuer.signed(**claims)
            return 200, {"access_token": jag, "issued_token_type": f"{TYPE}id-jag"}

        env.issuer.token_exchange = asserts
        assert f"{env.here.url}/e/" in await env.call_tool("ann")
        assert crm.asked == []


async def test_token_of_another_issuer_is_not_exchanged() -> None:
    async with living(exchange_env(issuer="https://another.example", audience=CRM)) as (env, crm):
        assert f"{env.here.url}/e/" in await env.call_tool("ann")
        assert crm.asked == []


async def test_disconnected_account_is_not_exchanged_again() -> None:
    async with living(exchange_env(audience=CRM)) as (env, crm):
        crm.reply = by_token(crm, env.issuer)
        assert "ann@crm.example: 200" in await env.call_tool("ann")
        ann = await env.signed_in("ann", f"{env.here.url}/connections")
        assert "ann@crm.example" in (await ann.visit(f"{env.here.url}/connections")).text
        (row,) = await env.here.connections()
        accounts = env.here.service.kinds.accounts
        by = AskedBy(owner=row.owner, server=row.server, tool="customers", issuer=env.issuer.url)
        request = AccountRequest(provider="crm", scopes=("read",))
        assert await accounts.is_connected(request, by)
        assert not await accounts.is_connected(replace(request, account="eve"), by)
        await accounts.keys.disconnect(row.owner, row.id)
        assert not await accounts.is_connected(request, by)
        env.here.clock.tick(days=3)
        for scope in ("read", "write"):
            assert f"{env.here.url}/e/" in await env.call_tool("ann", scope=scope)
        assert len(crm.asked) == 1


@pytest.mark.parametrize("scope", ["read", "write"])
async def test_call_during_a_disconnection_does_not_exchange_the_account_again(scope: str) -> None:
    texts = list[str]()
    async with living(exchange_env(audience=CRM)) as (env, crm):
        crm.reply = by_token(crm, env.issuer)
        assert "ann@crm.example: 200" in await env.call_tool("ann")
        (row,) = await env.here.connections()

        async def calls() -> None:
            texts.append(await env.call_tool("ann", scope=scope))

        crm.meanwhile["/revoke"] = calls
        await env.here.service.kinds.accounts.keys.disconnect(row.owner, row.id)
        assert f"{env.here.url}/e/" in texts[0]
        assert f"{env.here.url}/e/" in await env.call_tool("ann", scope=scope)
        assert len(crm.asked) == 1
        assert await env.here.service.kinds.accounts.connections.all_of(row.owner) == ()


async def test_exchange_that_ends_during_the_disconnection_stores_nothing() -> None:
    async with living(exchange_env(audience=CRM)) as (env, crm):
        crm.reply = by_token(crm, env.issuer)
        assert "ann@crm.example: 200" in await env.call_tool("ann")
        (row,) = await env.here.connections()
        keys, exchanged, revoked = env.here.service.kinds.accounts.keys, Event(), Event()

        async def until_exchanged() -> None:
            revoked.set()
            await exchanged.wait()

        async def disconnects() -> None:
            crm.meanwhile["/revoke"] = until_exchanged
            ending.append(create_task(keys.disconnect(row.owner, row.id)))
            await revoked.wait()

        ending = list[Task[Any]]()
        crm.meanwhile["/token"] = disconnects
        env.here.clock.tick(minutes=11)  # the token has expired
        assert f"{env.here.url}/e/" in await env.call_tool("ann")
        exchanged.set()
        await ending[0]
        assert await env.here.service.kinds.accounts.connections.all_of(row.owner) == ()


async def test_tool_that_is_stopped_during_the_exchange_does_not_get_the_account() -> None:
    async with living(exchange_env(audience=CRM)) as (env, crm):
        crm.reply = by_token(crm, env.issuer)
        connections = env.here.service.kinds.accounts.connections
        assert "ann@crm.example: 200" in await env.call_tool("ann")
        (row,) = await env.here.connections()
        crm.meanwhile["/token"] = partial(connections.unshare, row.owner, row.id, row.tools[0])
        env.here.clock.tick(minutes=11)  # the token has expired
        assert f"{env.here.url}/e/" in await env.call_tool("ann")


async def test_tool_without_permission_does_not_get_the_exchanged_account() -> None:
    async with living(exchange_env(audience=CRM)) as (env, crm):
        crm.reply = by_token(crm, env.issuer)
        connections = env.here.service.kinds.accounts.connections
        assert "ann@crm.example: 200" in await env.call_tool("ann")
        (row,) = await env.here.connections()
        await connections.unshare(row.owner, row.id, row.tools[0])
        for scope in ("read", "write"):
            assert f"{env.here.url}/e/" in await env.call_tool("ann", scope=scope)
        (stopped,) = await env.here.connections()
        assert stopped.tools == ()
        assert len(crm.asked) == 1
        # A call of the unshared tool does not share the account again.
        await connections.share_exchanged(stopped, row.tools[0], None)
        (stopped,) = await env.here.connections()
        assert stopped.tools == ()
        # The person allows it on the page.
        await env.here.service.elicitations.write(allow(stopped, row.tools[0], None))
        assert "ann@crm.example: 200" in await env.call_tool("ann", scope="list")


async def test_client_without_permission_does_not_get_the_exchanged_account() -> None:
    async with living(exchange_env(audience=CRM)) as (env, crm):
        crm.reply = by_token(crm, env.issuer)
        connections = env.here.service.kinds.accounts.connections
        assert "ann@crm.example: 200" in await env.call_tool("ann")
        (row,) = await env.here.connections()
        await connections.limit_to(row.owner, row.id, [])
        for scope in ("read", "write"):
            assert f"{env.here.url}/e/" in await env.call_tool("ann", scope=scope)
        await connections.limit_to(row.owner, row.id, None)
        assert "ann@crm.example: 200" in await env.call_tool("ann", scope="list")


async def test_exchanged_token_without_an_end_is_exchanged_again_after_an_hour() -> None:
    async with living(exchange_env(audience=CRM)) as (env, crm):

        def endless(sent: dict[str, str]) -> tuple[int, Any]:
            status, says = by_token(crm, env.issuer)(sent)
            return status, {name: value for name, value in says.items() if name != "expires_in"}

        crm.reply = endless
        assert "ann@crm.example: 200" in await env.call_tool("ann")
        assert "ann@crm.example: 200" in await env.call_tool("ann")
        assert len(crm.asked) == 1
        env.here.clock.tick(hours=1)
        assert "ann@crm.example: 200" in await env.call_tool("ann")
        assert len(crm.asked) == 2


async def test_subject_that_reads_like_several_claims_is_compared_whole() -> None:
    mallory = '{"sub":"ann"}'
    async with living(exchange_env(kind="jwt_bearer", matches="id")) as (env, crm):
        crm.reply = lambda _sent: crm.issues("opaque", "ann")
        assert f"{env.here.url}/e/" in await env.call_tool(mallory)
        assert await env.here.connections() == []


async def test_exchange_that_a_tool_declares_is_not_used() -> None:
    async with living(exchange_env(audience=CRM)) as (env, crm):
        clients = env.here.service.kinds.accounts
        declared = replace(provider_at(crm, TokenExchange(issuer=env.issuer.url)), name="mine")
        assert clients.label_of("mine") == "mine"
        with pytest.raises(Exception, match="ELICIT_MINE_CLIENT_ID"):
            clients.facts(AccountRequest(provider=declared, scopes=()))


@pytest.mark.parametrize(
    ("more", "says"),
    [
        ({"extra": (("subject_token", "x"),)}, "the flow sets subject_token"),
        ({"issuer": "http://login.example"}, "exchange.issuer"),
    ],
)
def test_wrong_exchange_is_refused(more: dict[str, Any], says: str) -> None:
    about = {"issuer": "https://login.example", **more}
    with pytest.raises(InvalidQuestion, match=says):
        provider_at(Crm(url="https://crm.example"), TokenExchange(**about))
