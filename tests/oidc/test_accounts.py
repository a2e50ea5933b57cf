"""Accounts at a third-party provider: connected, refreshed, revoked and mixed up.

The application is the real one. The attacker uses real responses of real providers.
"""

from dataclasses import dataclass, replace
from typing import Any, TypeVar
from urllib.parse import parse_qs, urlsplit

import httpx
import pytest

from flows.elicitation.flow import Talk
from flows.elicitation.states import Status
from flows.errors import Denied, Failed
from flows.oauth import device_flow as oauth_device
from flows.oauth.account import Account
from flows.oauth.authorization_code import Grant
from flows.oauth.connection import Connection
from flows.oauth.device_flow import DeviceCode, Pending
from flows.oauth.provider import Client
from flows.oauth.refresh import RefreshTokenGone, refresh, refreshed
from flows.oauth.revocation import revoke
from tests.oidc.connected import office, our_settings
from tests.oidc.env import Guest, Newcomer, OpenIdProvider, real_time, registration
from tests.support.account_life import led
from tests.support.connections_page import main_text, press
from tests.support.mcp_server import Page, Person, eventually, new_browser
from tests.support.oauth_env import Asking, OAuthEnv, changed, ends, parameter

T = TypeVar("T")
# OpenID Connect Core, 11: without this, a provider ignores offline_access.
LASTING = {"extra": (("prompt", "consent"),)}
DEVICE = [registration(grant_types=[oauth_device.GRANT_TYPE, "refresh_token"], response_types=[])]


@dataclass(frozen=True, slots=True, kw_only=True)
class Visit:
    """A question, the browser that opened it, and the address that its Continue button leads to."""

    asked: Asking
    person: Person
    link: str
    leaves: str

    async def back_with(self, callback: str) -> Page:
        return await self.person.visit(callback)

    async def done_with(self, callback: str) -> Account:
        page = await ends(self.person, await self.back_with(callback))
        assert page.status == 200, page.text
        return await self.asked.account()


async def visit(here: OAuthEnv, *scopes: str, provider: str = "acme", **about: Any) -> Visit:
    """Ask with a tool, and press Continue."""
    asked = here.ask(*scopes, provider=provider, **about)
    person, link = await here.person(), await asked.link()
    return Visit(asked=asked, person=person, link=link, leaves=await person.go_on(link))


async def connected(here: OAuthEnv, guest: Guest, *scopes: str) -> tuple[Client, Connection]:
    """Connect an account. Return our client and the stored connection."""
    trip = await visit(here, *scopes)
    await trip.done_with(await guest.walk(trip.leaves))
    (connection,) = await here.connections()
    id, secret = here.settings.credentials["acme"]
    provider = here.settings.providers["acme"]
    return Client(provider=provider, client_id=id, client_secret=secret), connection


async def run_talk(talk: Talk[T]) -> T:
    async with new_browser() as http:
        return await led(talk, http)


async def userinfo(acme: OpenIdProvider, access_token: str) -> httpx.Response:
    async with new_browser() as http:
        key = {"authorization": f"Bearer {access_token}"}
        return await http.get(f"{acme.issuer}/me", headers=key)


async def is_active(client: Client, acme: OpenIdProvider, token: str) -> bool:
    """Return True if the provider says that the token is active (RFC 7662)."""
    async with new_browser() as http:
        reply = await http.post(
            f"{acme.issuer}/token/introspection",
            data={"token": token},
            auth=(client.client_id, client.client_secret),
        )
    assert reply.status_code == 200
    return reply.json()["active"] is True


async def test_account_is_connected(acme: OpenIdProvider, newcomer: Newcomer) -> None:
    async with office(acme) as here:
        trip = await visit(here, "profile", "email")
        asked = parse_qs(urlsplit(trip.leaves).query)
        assert asked["scope"] == ["openid profile email"]
        assert asked["code_challenge_method"] == ["S256"]
        assert len(asked["nonce"][0]) >= 32
        callback = await (await newcomer(acme, "alice")).walk(trip.leaves)
        assert parameter(callback, "iss") == acme.issuer
        account = await trip.done_with(callback)
        assert (account.id, account.label) == ("alice", "alice@acme.example")
        assert account.scopes == ("openid", "profile", "email")
        async with account.client() as api:
            assert (await api.get("/me")).json()["name"] == "Alice"


async def test_denial_at_provider_ends_question(acme: OpenIdProvider, newcomer: Newcomer) -> None:
    async with office(acme) as here:
        trip = await visit(here)
        callback = await (await newcomer(acme, "alice")).walk(trip.leaves, says="no")
        await ends(trip.person, await trip.back_with(callback))
        with pytest.raises(Denied):
            await trip.asked.account()
        assert (await here.row(trip.link)).status is Status.DENIED


@pytest.mark.parametrize("issuer", [None, "https://evil.example", "acme/"])
async def test_callback_with_wrong_or_missing_issuer_is_refused(
    acme: OpenIdProvider, newcomer: Newcomer, issuer: str | None
) -> None:
    async with office(acme) as here:
        trip = await visit(here)
        callback = await (await newcomer(acme, "alice")).walk(trip.leaves)
        named = f"{acme.issuer}/" if issuer == "acme/" else issuer
        assert (await trip.back_with(changed(callback, iss=named))).status == 400
        assert not await here.connections()
        assert (await trip.done_with(callback)).id == "alice"  # the code is still valid


async def test_callback_of_one_provider_is_refused_at_path_of_another(
    acme: OpenIdProvider, rival: OpenIdProvider, newcomer: Newcomer
) -> None:
    async with office(acme, rival) as here:
        trip = await visit(here, provider="rival")
        callback = await (await newcomer(rival, "alice")).walk(trip.leaves)
        page = await trip.back_with(callback.replace("/callback/rival", "/callback/acme"))
        assert page.status == 404
        assert not await here.connections()
        assert (await trip.done_with(callback)).provider == "rival"


async def test_provider_redirecting_to_another_provider_gets_no_code(
    acme: OpenIdProvider, rival: OpenIdProvider, newcomer: Newcomer
) -> None:
    """Check the mix-up attack of RFC 9700, 4.4: the rival sends the browser on to acme."""
    async with office(acme, rival) as here:
        trip = await visit(here, provider="rival")
        alice = await newcomer(acme, "alice")
        handed_on = trip.leaves.replace(rival.issuer, acme.issuer)
        assert "redirect_uri" in await alice.enter(handed_on)  # acme knows only our callback/acme
        to_acme = changed(handed_on, redirect_uri=f"{here.url}/callback/acme")
        page = await trip.back_with(await alice.walk(to_acme))
        assert page.status == 404
        # Even if both addresses are registered, the `iss` parameter reveals the attack.
        acme.configure(clients=[our_settings(here, "/callback/acme", "/callback/rival")])
        callback = await (await newcomer(acme, "alice")).walk(handed_on)
        assert (await trip.back_with(callback)).status == 400
        assert not await here.connections()
        assert (await here.row(trip.link)).status is Status.OPENED


async def test_code_of_another_question_is_refused(
    acme: OpenIdProvider, newcomer: Newcomer
) -> None:
    async with office(acme) as here:
        one, other = await visit(here, arguments=1), await visit(here, arguments=2)
        mallory = await newcomer(acme, "bob")
        code = parameter(await mallory.walk(one.leaves), "code")
        callback = await (await newcomer(acme, "alice")).walk(other.leaves)
        await ends(other.person, await other.back_with(changed(callback, code=code)))
        with pytest.raises(Failed, match="invalid_grant"):  # PKCE
            await other.asked.account()
        assert not await here.connections()


async def test_state_of_another_question_is_refused_in_this_browser(
    acme: OpenIdProvider, newcomer: Newcomer
) -> None:
    async with office(acme) as here:
        victim, mallory = await visit(here, arguments=1), await visit(here, arguments=2)
        forged = await (await newcomer(acme, "bob")).walk(mallory.leaves)
        page = await victim.back_with(forged)  # mallory's account in the victim's browser
        assert page.status == 403
        mixed = changed(forged, state=parameter(victim.leaves, "state"))
        await ends(victim.person, await victim.back_with(mixed))
        with pytest.raises(Failed):
            await victim.asked.account()
        assert not await here.connections()


async def test_repeated_callback_is_not_exchanged_again(
    acme: OpenIdProvider, newcomer: Newcomer
) -> None:
    async with office(acme) as here:
        trip = await visit(here)
        callback = await (await newcomer(acme, "alice")).walk(trip.leaves)
        account = await trip.done_with(callback)
        page = await ends(trip.person, await trip.back_with(callback))
        assert "is connected" in page.heading
        # A second exchange of the code would have made the provider revoke the token.
        assert (await userinfo(acme, account.access_token)).status_code == 200


async def test_refresh_replaces_both_tokens(acme: OpenIdProvider, newcomer: Newcomer) -> None:
    async with office(acme, **LASTING) as here:
        alice = await newcomer(acme, "alice")
        client, first = await connected(here, alice, "offline_access", "email")
        assert first.refresh_token is not None
        now = here.clock()
        renewed = await run_talk(refresh(client, first, now=now))
        second = refreshed(first, renewed, now=now)
        assert second.refresh_token not in (None, first.refresh_token)
        assert second.access_token != first.access_token
        assert second.scopes == first.scopes == ("openid", "offline_access", "email")
        assert (await userinfo(acme, second.access_token)).json()["email"] == "alice@acme.example"
        third = refreshed(second, await run_talk(refresh(client, second, now=now)), now=now)
        assert (await userinfo(acme, third.access_token)).status_code == 200


async def test_reused_refresh_token_revokes_whole_token_family(
    acme: OpenIdProvider, newcomer: Newcomer
) -> None:
    async with office(acme, **LASTING) as here:
        client, first = await connected(here, await newcomer(acme, "alice"), "offline_access")
        now = here.clock()
        second = refreshed(first, await run_talk(refresh(client, first, now=now)), now=now)
        for dead in (first, second):
            with pytest.raises(RefreshTokenGone) as gone:
                await run_talk(refresh(client, dead, now=now))
            assert gone.value.reason == "invalid_grant"
        assert (await userinfo(acme, second.access_token)).status_code == 401


async def test_grant_revoked_at_provider_ends_account(
    acme: OpenIdProvider, newcomer: Newcomer
) -> None:
    async with office(acme, **LASTING) as here:
        client, connection = await connected(here, await newcomer(acme, "alice"), "offline_access")
        acme.change()  # the provider forgets all state
        with pytest.raises(RefreshTokenGone):
            await run_talk(refresh(client, connection, now=here.clock()))
        assert await run_talk(revoke(client, connection, now=here.clock()))


async def test_wrong_client_secret_does_not_lose_account(
    acme: OpenIdProvider, newcomer: Newcomer
) -> None:
    async with office(acme, **LASTING) as here:
        client, connection = await connected(here, await newcomer(acme, "alice"), "offline_access")
        stale = replace(client, client_secret="another secret than the registered one")
        with pytest.raises(Failed, match="invalid_client"):
            await run_talk(refresh(stale, connection, now=here.clock()))
        assert not await run_talk(revoke(stale, connection, now=here.clock()))
        await run_talk(refresh(client, connection, now=here.clock()))


async def test_revoked_connection_cannot_be_used(acme: OpenIdProvider, newcomer: Newcomer) -> None:
    async with office(acme, **LASTING) as here:
        client, connection = await connected(here, await newcomer(acme, "alice"), "offline_access")
        assert connection.refresh_token is not None
        keys = (connection.access_token, connection.refresh_token)
        assert [await is_active(client, acme, key) for key in keys] == [True, True]
        assert await run_talk(revoke(client, connection, now=here.clock()))
        assert [await is_active(client, acme, key) for key in keys] == [False, False]
        assert (await userinfo(acme, connection.access_token)).status_code == 401
        with pytest.raises(RefreshTokenGone):
            await run_talk(refresh(client, connection, now=here.clock()))
        # The tokens are already revoked, and a second revocation succeeds too.
        assert await run_talk(revoke(client, connection, now=here.clock()))


async def test_connection_without_refresh_token_can_be_revoked(
    acme: OpenIdProvider, newcomer: Newcomer
) -> None:
    async with office(acme) as here:
        client, connection = await connected(here, await newcomer(acme, "alice"), "email")
        assert connection.refresh_token is None
        assert await run_talk(revoke(client, connection, now=here.clock()))
        assert (await userinfo(acme, connection.access_token)).status_code == 401


async def pair_of(here: OAuthEnv) -> tuple[str, str]:
    """Return the access token and the refresh token of the only stored account."""
    (account,) = await here.connections()
    assert account.refresh_token is not None
    return account.access_token, account.refresh_token


async def test_fifty_calls_with_expired_token_refresh_once_without_question(
    acme: OpenIdProvider, newcomer: Newcomer
) -> None:
    async with office(acme, **LASTING) as here:
        scopes = ("offline_access", "email")
        client, _ = await connected(here, await newcomer(acme, "alice"), *scopes)
        before = await pair_of(here)
        here.clock.tick(hours=2)
        asked = [here.ask(*scopes, provider="acme", arguments=n) for n in range(50)]
        await eventually(lambda: all(each.task.done() or each.has_asked for each in asked))
        assert not any(each.has_asked for each in asked)
        keys = {(await each.account()).access_token for each in asked}
        after = await pair_of(here)
        assert keys == {after[0]}
        assert not set(before) & set(after)
        # Reuse of the old refresh token would have revoked the complete token family.
        assert [await is_active(client, acme, key) for key in after] == [True, True]
        assert not await is_active(client, acme, before[1])
        assert (await userinfo(acme, after[0])).json()["email"] == "alice@acme.example"


async def test_disconnect_on_page_revokes_both_tokens_at_provider(
    acme: OpenIdProvider, newcomer: Newcomer
) -> None:
    async with office(acme, **LASTING) as here:
        alice = await newcomer(acme, "alice")
        client, _ = await connected(here, alice, "offline_access", "email")
        keys = await pair_of(here)
        assert [await is_active(client, acme, key) for key in keys] == [True, True]
        page = await press(await here.person(), here, "/disconnect")
        assert "has confirmed that access is revoked" in main_text(page)
        assert [await is_active(client, acme, key) for key in keys] == [False, False]
        assert (await userinfo(acme, keys[0])).status_code == 401
        (left,) = await here.connections()
        assert (left.access_token, left.refresh_token) == ("", None)
        again = here.ask("offline_access", "email", provider="acme")
        assert await again.link()


async def device_code(acme: OpenIdProvider, *scopes: str) -> DeviceCode:
    acme.configure(clients=DEVICE)
    now = real_time()()
    return await run_talk(oauth_device.start(acme.client(), scopes, now=now))


async def poll(acme: OpenIdProvider, code: DeviceCode) -> Grant | Pending:
    return await run_talk(oauth_device.poll(acme.client(), code, now=real_time()()))


async def test_person_can_approve_device_code_on_another_device(
    acme: OpenIdProvider, newcomer: Newcomer
) -> None:
    code = await device_code(acme, "email", "offline_access")
    assert await poll(acme, code) == Pending(interval=code.interval)
    bob = await newcomer(acme, "bob")
    await bob.enter(code.verification_uri, user_code=code.user_code)
    grant = await poll(acme, code)
    assert isinstance(grant, Grant)
    assert (grant.person.id, grant.person.label) == ("bob", "bob@acme.example")
    assert (grant.issuer, grant.scopes) == (acme.issuer, ("openid", "email", "offline_access"))
    assert grant.tokens.refresh_token is not None
    assert (await userinfo(acme, grant.tokens.access_token)).json()["sub"] == "bob"
    with pytest.raises(Failed, match="invalid_grant"):
        await poll(acme, code)


async def test_device_code_is_approved_at_address_that_contains_it(
    acme: OpenIdProvider, newcomer: Newcomer
) -> None:
    code = await device_code(acme)
    assert code.verification_uri_complete is not None
    await (await newcomer(acme, "alice")).enter(code.verification_uri_complete)
    grant = await poll(acme, code)
    assert isinstance(grant, Grant)
    assert grant.person.id == "alice"


async def test_denied_device_code_raises_denied(acme: OpenIdProvider, newcomer: Newcomer) -> None:
    code = await device_code(acme)
    bob = await newcomer(acme, "bob")
    await bob.enter(code.verification_uri, user_code=code.user_code, says="no")
    with pytest.raises(Denied):
        await poll(acme, code)
