"""Sign-in at a third-party provider, and the access tokens that it issues to assistants.

A person who signs in here must be identified as the same person as in their assistant's token,
whatever algorithm the provider signs with.
"""

from collections.abc import AsyncIterator
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Any, TypeVar, cast
from urllib.parse import parse_qsl, urlsplit

import httpx
import pytest
from mcp.server.auth.middleware.auth_context import get_access_token
from starlette.responses import JSONResponse

from flows.elicitation.flow import CallbackParams, Redirect, Talk
from flows.errors import Denied, Failed
from flows.oauth.access_token import BadBearer, Resource, Verified, key_id_of, verify
from flows.oauth.authorization_code import Mixed
from flows.oauth.discovery import Metadata
from flows.oauth.sign_in import SignedIn, SignIn
from tests.oidc.env import (
    OUR_ID,
    Guest,
    Newcomer,
    OpenIdProvider,
    bearer_of,
    real_time,
    registration,
    sign_in_for,
)
from tests.support.account_life import led
from tests.support.clock import Clock
from tests.support.mcp_server import new_browser
from tests.support.oauth_env import changed, parameter
from tests.support.serving import transport_to
from webapp.http.exchange import Receive, Scope, Send
from webapp.identity.access_tokens import IssuerTokens
from webapp.identity.bearer_auth import protected
from webapp.identity.introspection import Introspection
from webapp.identity.issuer import BETWEEN_FETCHES, Issuer

T = TypeVar("T")
HERE = "https://tools.example"
BACK = f"{HERE}/signin/callback"
MCP = f"{HERE}/mcp"
OTHER = "https://others.example/mcp"
KEY = {"kid": "one", "alg": "ES256"}
NEXT = {"kid": "two", "alg": "ES256"}


@dataclass(slots=True)
class Desk:
    """A server's sign-in, and its verification of the tokens that callers send."""

    provider: OpenIdProvider
    http: httpx.AsyncClient
    clock: Clock
    issuer: Issuer

    @property
    def way(self) -> SignIn:
        return SignIn(client=self.provider.client(), redirect_uri=BACK)

    @property
    def resource(self) -> Resource:
        return Resource(url=MCP, issuer=self.provider.issuer)

    async def metadata(self) -> Metadata:
        return await self.issuer.metadata()

    async def leave(self, **options: bool) -> Redirect:
        talk = self.way.begin(await self.metadata(), now=self.clock(), **options)
        return await self.run_talk(talk)

    async def arrive(self, departure: Redirect, back: str, **changes: Any) -> SignedIn:
        """Handle the provider's redirect. `changes` replace values that the browser stored."""
        stored = {**cast("dict[str, Any]", departure.attempt_data), **changes}
        arrival = CallbackParams(parameters=tuple(parse_qsl(urlsplit(back).query)))
        found = await self.metadata()
        return await self.run_talk(
            self.way.finish(arrival, attempt_data=stored, metadata=found, now=self.clock())
        )

    async def sign_in(self, guest: Guest, **options: bool) -> SignedIn:
        departure = await self.leave(**options)
        return await self.arrive(departure, await guest.walk(departure.url))

    async def run_talk(self, talk: Talk[T]) -> T:
        return await led(talk, self.http)

    async def read(self, token: str, resource: Resource | None = None) -> Verified:
        keys = await self.issuer.keys(key_id_of(token))
        return verify(token, resource=resource or self.resource, keys=keys, now=self.clock())

    async def refusal(self, token: str, resource: Resource | None = None) -> str:
        with pytest.raises(BadBearer) as refused:
            await self.read(token, resource)
        return refused.value.reason

    def door(self, *, asks: bool = False) -> httpx.AsyncClient:
        """Return a client of a protected endpoint."""
        about: Any = {"issuer": self.issuer, "resource": self.resource, "clock": self.clock}
        introspection = Introspection(client=self.provider.client(), **about) if asks else None
        tokens = IssuerTokens(
            self.issuer, resource=self.resource, clock=self.clock, introspection=introspection
        )
        app: Any = protected(whose_call, name="tools", tokens=tokens)
        return httpx.AsyncClient(transport=transport_to(app), base_url=HERE)


async def whose_call(scope: Scope, receive: Receive, send: Send) -> None:
    """Answer as an MCP endpoint that returns the caller's subject."""
    token = get_access_token()
    subject = None if token is None else token.subject
    await JSONResponse({"subject": subject})(scope, receive, send)


@pytest.fixture
async def desk(acme: OpenIdProvider) -> AsyncIterator[Desk]:
    sign_in_for(acme, HERE)
    async with new_browser() as http:
        clock = real_time()
        issuer = Issuer(acme.declared(), fetch=http.send, clock=clock)
        yield Desk(acme, http, clock, issuer)
        await issuer.aclose()


async def test_person_signs_in_and_is_shown_with_their_name(desk: Desk, newcomer: Newcomer) -> None:
    alice = await newcomer(desk.provider, "alice")
    signed_in = await desk.sign_in(alice)
    issuer = desk.provider.issuer
    person = SignedIn(issuer=issuer, subject="alice", sub="alice", label="alice")
    assert replace(signed_in, id_token="") == person
    again = await desk.leave()
    page = await alice.browser.get(again.url)
    assert page.headers["location"].startswith(BACK)  # nothing is asked the second time
    arrived = await desk.arrive(again, page.headers["location"])
    assert replace(arrived, id_token="") == person


async def test_person_and_assistant_have_same_subject(desk: Desk, newcomer: Newcomer) -> None:
    alice = await newcomer(desk.provider, "alice")
    signed_in = await desk.sign_in(alice)
    verified = await desk.read((await bearer_of(alice, MCP))["access_token"])
    assert verified.subject == signed_in.subject == "alice"
    assert verified.issuer == signed_in.issuer == desk.provider.issuer
    assert (verified.client_id, verified.scopes) == ("an assistant", ("tools",))
    assert abs(verified.expires_at - desk.clock() - timedelta(seconds=120)) < timedelta(seconds=60)


async def test_person_switching_accounts_can_choose_another_user(
    desk: Desk, newcomer: Newcomer
) -> None:
    alice = await newcomer(desk.provider, "alice")
    assert (await desk.sign_in(alice)).subject == "alice"
    bob = Guest("bob", at=desk.provider, browser=alice.browser)
    assert (await desk.sign_in(bob)).subject == "alice"  # the provider asked nothing
    assert (await desk.sign_in(bob, switches=True)).subject == "bob"
    assert (await desk.sign_in(alice)).subject == "bob"


async def test_denied_sign_in_raises_denied(desk: Desk, newcomer: Newcomer) -> None:
    departure = await desk.leave()
    alice = await newcomer(desk.provider, "alice")
    back = await alice.walk(departure.url, says="no")
    assert parameter(back, "error") == "access_denied"
    with pytest.raises(Denied):
        await desk.arrive(departure, back)


async def test_callback_of_another_browser_is_refused(desk: Desk, newcomer: Newcomer) -> None:
    mallory, victim = await desk.leave(), await desk.leave()
    forged = await (await newcomer(desk.provider, "bob")).walk(mallory.url)
    with pytest.raises(Mixed) as mixed:
        await desk.arrive(victim, forged)
    assert mixed.value.reason == "the state is not this browser's"
    assert (await desk.arrive(mallory, forged)).subject == "bob"  # the code is still valid


async def test_code_of_another_browser_is_refused(desk: Desk, newcomer: Newcomer) -> None:
    mallory, victim = await desk.leave(), await desk.leave()
    forged = await (await newcomer(desk.provider, "bob")).walk(mallory.url)
    injected = changed(forged, state=cast("Any", victim.attempt_data)["state"])
    with pytest.raises(Failed, match="invalid_grant"):  # PKCE
        await desk.arrive(victim, injected)


async def test_id_token_with_another_nonce_is_refused(desk: Desk, newcomer: Newcomer) -> None:
    departure = await desk.leave()
    back = await (await newcomer(desk.provider, "alice")).walk(departure.url)
    with pytest.raises(Failed, match="issued for another sign-in"):
        await desk.arrive(departure, back, nonce="another")


async def test_code_signs_in_only_once(desk: Desk, newcomer: Newcomer) -> None:
    departure = await desk.leave()
    back = await (await newcomer(desk.provider, "alice")).walk(departure.url)
    assert (await desk.arrive(departure, back)).subject == "alice"
    with pytest.raises(Failed, match="invalid_grant"):
        await desk.arrive(departure, back)


async def test_callback_of_another_issuer_is_refused(
    desk: Desk, rival: OpenIdProvider, newcomer: Newcomer
) -> None:
    rival.configure(clients=[registration(BACK)])
    departure = await desk.leave()
    elsewhere = departure.url.replace(desk.provider.issuer, rival.issuer)
    back = await (await newcomer(rival, "alice")).walk(elsewhere)
    assert parameter(back, "iss") == rival.issuer
    with pytest.raises(Mixed) as mixed:
        await desk.arrive(departure, back)
    assert mixed.value.reason == "another issuer answers"
    with pytest.raises(Mixed) as mixed:
        await desk.arrive(departure, changed(back, iss=None))
    assert mixed.value.reason == "the issuer is missing"
    with pytest.raises(Failed, match="invalid_grant"):
        await desk.arrive(departure, changed(back, iss=desk.provider.issuer))


async def test_token_for_another_server_is_refused(desk: Desk, newcomer: Newcomer) -> None:
    desk.provider.change(
        resources={MCP: {"scope": "tools"}, OTHER: {"scope": "tools"}},
    )
    alice = await newcomer(desk.provider, "alice")
    token = (await bearer_of(alice, OTHER))["access_token"]
    assert await desk.refusal(token) == "audience"
    assert (await desk.read(token, replace(desk.resource, url=OTHER))).subject == "alice"


async def test_token_with_declared_audience_is_accepted(desk: Desk, newcomer: Newcomer) -> None:
    desk.provider.change(resources={MCP: {"scope": "tools", "audience": "our api"}})
    token = (await bearer_of(await newcomer(desk.provider, "bob"), MCP))["access_token"]
    assert await desk.refusal(token) == "audience"
    declared = replace(desk.resource, audiences=("our api",))
    assert (await desk.read(token, declared)).subject == "bob"


async def test_token_is_accepted_until_expiry(desk: Desk, newcomer: Newcomer) -> None:
    token = (await bearer_of(await newcomer(desk.provider, "alice"), MCP))["access_token"]
    desk.clock.tick(seconds=120)
    assert (await desk.read(token)).subject == "alice"  # clocks may differ by a minute
    desk.clock.tick(seconds=120)
    assert await desk.refusal(token) == "time"


async def test_id_token_is_refused_as_access_token(desk: Desk, newcomer: Newcomer) -> None:
    got = await bearer_of(await newcomer(desk.provider, "alice"), MCP)
    everything = replace(desk.resource, audiences=("an assistant", OUR_ID))
    assert await desk.refusal(got["id_token"], everything) == "type"


async def test_token_for_the_provider_itself_is_refused(desk: Desk, newcomer: Newcomer) -> None:
    got = await bearer_of(await newcomer(desk.provider, "alice"), None)
    assert await desk.refusal(got["access_token"]) == "opaque"


async def test_opaque_token_is_checked_by_introspection(desk: Desk, newcomer: Newcomer) -> None:
    # finding: I2
    both = {url: {"scope": "tools", "format": "opaque"} for url in (MCP, OTHER)}
    desk.provider.change(resources=both)
    alice = await newcomer(desk.provider, "alice")
    own_token, other_token = [(await bearer_of(alice, url))["access_token"] for url in (MCP, OTHER)]
    async with desk.door(asks=True) as door:
        for token, status in [(own_token, 200), (other_token, 401), ("made up", 401)]:
            answer = await door.post("/mcp", headers={"authorization": f"Bearer {token}"})
            assert answer.status_code == status
            assert status == 401 or answer.json() == {"subject": "alice"}
    async with desk.door() as door:
        answer = await door.post("/mcp", headers={"authorization": f"Bearer {own_token}"})
        assert answer.status_code == 401


async def test_endpoint_accepts_caller_with_token_of_issuer(desk: Desk, newcomer: Newcomer) -> None:
    alice = await newcomer(desk.provider, "alice")
    got = await bearer_of(alice, MCP)
    async with desk.door() as caller:
        refused = await caller.post("/mcp")
        assert refused.status_code == 401
        place = refused.headers["www-authenticate"].partition('resource_metadata="')[2].strip('"')
        document = (await caller.get(urlsplit(place).path)).json()
        assert document["resource"] == MCP
        assert document["authorization_servers"] == [desk.provider.issuer]
        mistaken = await caller.post("/mcp", headers=bearer(got["id_token"]))
        assert (mistaken.status_code, mistaken.json()["code"]) == (401, "invalid_token")
        welcome = await caller.post("/mcp", headers=bearer(got["access_token"]))
        assert welcome.json() == {"subject": "alice"}


async def test_key_rotation_of_issuer_does_not_interrupt_access(
    desk: Desk, newcomer: Newcomer
) -> None:
    alice = await newcomer(desk.provider, "alice")
    before = (await bearer_of(alice, MCP))["access_token"]
    async with desk.door() as caller:
        assert (await caller.post("/mcp", headers=bearer(before))).status_code == 200
        desk.provider.change(keys=[NEXT, KEY])  # the old key is still published
        bob = await newcomer(desk.provider, "bob")
        after = (await bearer_of(bob, MCP))["access_token"]
        early = await caller.post("/mcp", headers=bearer(after))
        # finding: XO11
        assert early.status_code == 503  # the keys are fetched at most once in 30 seconds
        assert int(early.headers["retry-after"]) >= 30
        desk.clock.tick(seconds=BETWEEN_FETCHES.total_seconds())
        for token, subject in ((after, "bob"), (before, "alice")):
            reply = await caller.post("/mcp", headers=bearer(token))
            assert reply.json() == {"subject": subject}
        assert (await desk.sign_in(bob)).subject == "bob"


async def test_token_signed_with_withdrawn_key_is_refused(desk: Desk, newcomer: Newcomer) -> None:
    alice = await newcomer(desk.provider, "alice")
    before = (await bearer_of(alice, MCP))["access_token"]
    assert (await desk.read(before)).subject == "alice"
    desk.provider.change(keys=[NEXT])
    desk.clock.tick(seconds=BETWEEN_FETCHES.total_seconds())
    after = (await bearer_of(await newcomer(desk.provider, "bob"), MCP))["access_token"]
    assert (await desk.read(after)).subject == "bob"
    assert await desk.refusal(before) == "unknown key"


async def test_same_subject_at_another_issuer_is_refused(
    desk: Desk, rival: OpenIdProvider, newcomer: Newcomer
) -> None:
    sign_in_for(rival, HERE)
    token = (await bearer_of(await newcomer(rival, "alice"), MCP))["access_token"]
    assert await desk.refusal(token) == "signature"  # the other issuer's key has the same id
    other_resource = replace(desk.resource, issuer=rival.issuer)
    assert await desk.refusal(token, other_resource) == "signature"


def bearer(token: str) -> dict[str, str]:
    return {"authorization": f"Bearer {token}"}
