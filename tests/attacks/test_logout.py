"""Attacks on sign-outs: forged, replayed and misdirected logout tokens, and false returns."""

import hmac
import json
import re
from base64 import urlsafe_b64encode
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import timedelta
from html import unescape
from pathlib import Path
from typing import Any

import httpx
import pytest
from joserfc import jwt
from joserfc.jwk import ECKey, OctKey

from tests.support.approving import ApprovalEnv, served, shop
from tests.support.clock import Clock
from tests.support.issuer import CLIENT_ID, CLIENT_SECRET, Issuing, issuing
from tests.support.mcp_server import Person
from tests.support.shared_stores import STORES
from webapp.identity.sign_in import ID_TOKEN
from webapp.stores.opening import open_store
from webapp.stores.sqlite import MemoryStore

EVENT = "http://schemas.openid.net/event/backchannel-logout"
SID = "s-1"


@dataclass(frozen=True, slots=True, kw_only=True)
class Leaving:
    """A served shop with the issuer of ELICIT_ISSUER, and a second issuer, `partner`."""

    here: ApprovalEnv
    issuer: Issuing
    partner: Issuing

    async def post(self, body: Any, *, at: str = "") -> httpx.Response:
        person = await self.here.env.person()
        url = f"{self.here.env.url}/signin/logout{at}"
        sent = {"data": body} if isinstance(body, dict) else {"content": body}
        return await person.browser.post(url, **sent)

    async def report(self, token: str, *, at: str = "") -> int:
        """Send a logout token, as an issuer does, and return the status."""
        response = await self.post({"logout_token": token}, at=at)
        assert response.headers["cache-control"] == "no-store"
        assert response.status_code == 200 or response.json()["error"] == "invalid_request"
        assert not token or token not in response.text
        return response.status_code

    async def is_signed_in(self, person: Person) -> bool:
        page = await person.visit(self.here.inbox)
        assert page.heading == "Your inbox"
        return "/signin" not in "".join(page.actions)


@asynccontextmanager
async def leaving(**options: Any) -> AsyncIterator[Leaving]:
    clock = Clock()
    async with issuing(clock) as issuer, issuing(clock) as partner:
        issuer.end_session = f"{issuer.url}/logout"
        further = (partner.further(),)
        async with served(shop(), issuer, clock, further_issuers=further, **options) as here:
            yield Leaving(here=here, issuer=issuer, partner=partner)


def at_a_site(test: Callable[[Leaving], Coroutine[Any, Any, None]]) -> Callable[[], Any]:
    """Run the test with its own site. A fixture would fail the check for leaked tasks."""

    async def run() -> None:
        async with leaving() as site:
            await test(site)

    run.__name__ = test.__name__
    return run


def unsigned(site: Leaving, **claims: Any) -> str:
    """Return a logout token with the algorithm `none`."""
    _, payload, _ = site.issuer.logout_token(sub="frank", **claims).split(".")
    return f"eyJhbGciOiJub25lIiwidHlwIjoibG9nb3V0K2p3dCJ9.{payload}."


def authenticated(header: dict[str, Any], claims: dict[str, Any], key: bytes) -> str:
    """Return a token whose HMAC has a public key as its secret. joserfc refuses to make one."""
    parts = [urlsafe_b64encode(json.dumps(part).encode()).rstrip(b"=") for part in (header, claims)]
    signature = hmac.digest(key, b".".join(parts), "sha256")
    return b".".join([*parts, urlsafe_b64encode(signature).rstrip(b"=")]).decode()


@pytest.mark.diagonal
@pytest.mark.parametrize("store", ["memory", *STORES])
@pytest.mark.parametrize(
    ("named", "ends"),
    [
        ({"sid": SID}, True),
        ({"sub": "frank"}, True),
        ({"sid": SID, "sub": "frank"}, True),
        ({"sid": SID, "sub": "alice"}, False),
        ({"sid": "s-2", "sub": "frank"}, False),
        ({"sid": "s-2"}, False),
        ({"sub": "alice"}, False),
    ],
)
async def test_reported_logout_ends_sessions_of_its_sid_or_sub_only(
    store: str, named: dict[str, Any], ends: bool, tmp_path: Path
) -> None:
    async def check(opened: Any) -> None:
        async with leaving(store=opened) as site:
            frank = await site.here.signed_in("frank", sid=SID)
            again = await site.here.signed_in("frank", sid=SID)
            site.here.clock.now += timedelta(seconds=5)
            token = site.issuer.logout_token(**named)
            assert await site.report(token) == 200
            assert await site.report(token) == 400  # replay
            assert [await site.is_signed_in(each) for each in (frank, again)] == [not ends] * 2
            site.here.clock.now += timedelta(seconds=5)
            later = await site.here.signed_in("frank", sid="s-3")
            assert await site.is_signed_in(later)

    if store == "memory":
        await check(MemoryStore())
        return
    async with STORES[store](tmp_path) as url:
        opened = await open_store(url)
        try:
            await check(opened)
        finally:
            await opened.aclose()


@at_a_site
async def test_session_without_sid_ends_with_any_session_of_its_person(site: Leaving) -> None:
    frank, alice = await site.here.signed_in("frank"), await site.here.signed_in("alice")
    assert await site.report(site.issuer.logout_token(sub="frank", sid="unknown here")) == 200
    assert not await site.is_signed_in(frank)
    assert await site.is_signed_in(alice)


@at_a_site
async def test_second_logout_of_a_person_ends_the_sessions_since_the_first(site: Leaving) -> None:
    for _ in range(3):
        frank = await site.here.signed_in("frank")
        site.here.clock.now += timedelta(minutes=1)
        assert await site.is_signed_in(frank)
        assert await site.report(site.issuer.logout_token(sub="frank")) == 200
        assert not await site.is_signed_in(frank)
        site.here.clock.now += timedelta(minutes=1)


@at_a_site
async def test_forged_logout_tokens_end_nothing(site: Leaving) -> None:
    frank = await site.here.signed_in("frank", sid=SID)
    now = int(site.here.clock().timestamp())
    make, partner = site.issuer.logout_token, site.partner
    stranger = ECKey.generate_key("P-256", {"kid": "one"})
    secret = OctKey.import_key(CLIENT_SECRET)
    public = site.issuer.key.as_pem(private=False)
    with_hmac = {"alg": "HS256", "kid": "one", "typ": "logout+jwt"}
    claims = jwt.decode(make(sub="frank", sid=SID), site.issuer.key).claims
    tokens = {
        "key": make(sub="frank", key=stranger),
        "none": unsigned(site),
        "secret": jwt.encode(with_hmac, claims, secret, algorithms=["HS256"]),
        "public": authenticated(with_hmac, claims, public),
        "cut": make(sub="frank")[:-4],
        "other issuer": make(sub="frank", iss=partner.url),
        "other issuer's": partner.logout_token(sub="frank"),
        "other issuer's with our name": partner.logout_token(sub="frank", iss=site.issuer.url),
        "issuer as a list": make(sub="frank", iss=[site.issuer.url]),
        "no issuer": make(sub="frank", iss=None),
        "audience": make(sub="frank", aud="another client"),
        "audiences": make(sub="frank", aud=[CLIENT_ID, "another client"]),
        "audience of calls": make(sub="frank", aud=site.here.env.mcp_url),
        "no audience": make(sub="frank", aud=None),
        "party": make(sub="frank", azp="another client"),
        "expired": make(sub="frank", exp=now - 61),
        "no exp": make(sub="frank", exp=None),
        "no iat": make(sub="frank", iat=None),
        "future": make(sub="frank", iat=now + 120),
        "old": make(sub="frank", iat=now - 601, exp=now + 3600),
        "before the year 1": make(sub="frank", iat=-(10**12)),
        "before all times": make(sub="frank", iat=-(10**400)),
        "iat as text": make(sub="frank", iat=str(now)),
        "no jti": make(sub="frank", jti=None),
        "empty jti": make(sub="frank", jti=""),
        "long jti": make(sub="frank", jti="j" * 1025),
        "number as jti": make(sub="frank", jti=1),
        "nobody": make(),
        "empty sub": make(sub="", sid=SID),
        "list as sub": make(sub=["frank"]),
        "empty sid": make(sub="frank", sid=""),
        "no events": make(sub="frank", events=None),
        "other event": make(sub="frank", events={"https://example.com/event": {}}),
        "event as text": make(sub="frank", events=EVENT),
        "list as events": make(sub="frank", events=[EVENT]),
        "true as event": make(sub="frank", events={EVENT: True}),
        "nonce": make(sub="frank", nonce="n"),
        "empty nonce": make(sub="frank", nonce=""),
        "id token": site.issuer._signed({**claims, "nonce": "n"}),
        "access token": site.issuer.token("frank", audience=CLIENT_ID),
        "access token with event": make(sub="frank", header={"typ": "at+jwt"}),
        "no token": "x",
        "empty": "",
        "three dots": "...",
        "control": "a\0b.c.d",
    }
    for name, token in tokens.items():
        assert await site.report(token) == 400, name
        assert await site.is_signed_in(frank), name
    assert await site.report(site.partner.logout_token(sub="frank"), at="/partner") == 200
    assert await site.is_signed_in(frank)  # the partner's frank is another person
    assert await site.report(make(sub="frank"), at="/partner") == 400
    person = await site.here.env.person()
    for path in ("/nobody", "/partner/x", "/PARTNER"):
        url = f"{site.here.env.url}/signin/logout{path}"
        response = await person.browser.post(url, data={"logout_token": make(sub="frank")})
        assert response.status_code == 404, path
    assert await site.is_signed_in(frank)
    assert await site.report(make(sub="frank")) == 200
    assert not await site.is_signed_in(frank)


@at_a_site
async def test_bodies_without_exactly_one_token_are_refused(site: Leaving) -> None:
    frank, token = await site.here.signed_in("frank"), site.issuer.logout_token(sub="frank")
    bodies: dict[str, Any] = {
        "empty": b"",
        "json": f'{{"logout_token": "{token}"}}'.encode(),
        "twice": f"logout_token={token}&logout_token={token}".encode(),
        "bytes": b"logout_token=\xff\xfe",
        "many": b"&".join(b"a=1" for _ in range(50)) + f"&logout_token={token}".encode(),
        "long": b"logout_token=" + b"a" * (18 * 1024),
    }
    for name, body in bodies.items():
        response = await site.post(body)
        assert response.status_code == 400, name
        assert response.headers["cache-control"] == "no-store"
    huge = await site.post(b"logout_token=" + b"a" * 1024 * 1024)
    assert huge.status_code == 413
    assert (await site.here.env.person()).browser.cookies == {}
    assert await site.is_signed_in(frank)
    query = f"{site.here.env.url}/signin/logout?logout_token={token}"
    assert (await (await site.here.env.person()).browser.post(query)).status_code == 400
    assert (await (await site.here.env.person()).browser.get(query)).status_code == 405
    assert await site.is_signed_in(frank)


@at_a_site
async def test_logout_token_gives_no_access_and_no_session(site: Leaving) -> None:
    token = site.issuer.logout_token(sub="frank", aud=site.here.env.mcp_url)
    person = await site.here.env.person()
    ping = {"jsonrpc": "2.0", "id": 1, "method": "ping"}
    headers = {"authorization": f"Bearer {token}", "accept": "application/json"}
    response = await person.browser.post(site.here.env.mcp_url, json=ping, headers=headers)
    assert response.status_code == 401


@at_a_site
async def test_report_is_refused_while_the_keys_are_unknown(site: Leaving) -> None:
    site.issuer.is_down = True
    response = await site.post({"logout_token": site.issuer.logout_token(sub="frank")})
    site.issuer.is_down = False
    assert response.status_code == 400
    assert response.json()["error"] == "temporarily_unavailable"
    assert response.headers["cache-control"] == "no-store"
    header = {"kid": "new"}
    key = ECKey.generate_key("P-256", {"kid": "new"})
    token = site.issuer.logout_token(sub="frank", header=header, key=key)
    response = await site.post({"logout_token": token})
    assert response.status_code == 400
    assert response.headers["cache-control"] == "no-store"


def form_of(text: str) -> tuple[str, dict[str, str]]:
    """Return the address and the fields of the form that ends the session at the issuer."""
    form = re.search(
        r'<form class="away" method="post" action="(http[^"]*/logout)">(.*?)</form>',
        text,
        re.DOTALL,
    )
    assert form is not None, text
    fields = re.findall(r'<input type="hidden" name="([^"]+)" value="([^"]*)"', form[2])
    return unescape(form[1]), {unescape(name): unescape(value) for name, value in fields}


async def signed_out(site: Leaving, person: Person) -> httpx.Response:
    page = await person.visit(site.here.inbox)
    cookie = person.browser.cookies[site.here.env.service.browser.cookie_name]
    csrf = site.here.env.service.browser.csrf(cookie, subject="signin")
    assert page.heading == "Your inbox"
    return await person.browser.post(f"{site.here.env.url}/signout", data={"csrf": csrf})


@at_a_site
async def test_sign_out_ends_session_at_issuer_with_its_id_token(site: Leaving) -> None:
    person = await site.here.signed_in("frank", sid=SID)
    response = await signed_out(site, person)
    address, fields = form_of(response.text)
    assert address == f"{site.issuer.url}/logout"
    claims = jwt.decode(fields.pop("id_token_hint"), site.issuer.key).claims
    assert (claims["sub"], claims["sid"], claims["aud"]) == ("frank", SID, CLIENT_ID)
    state = fields.pop("state")
    done = f"{site.here.env.url}/signout/done"
    assert fields == {"client_id": CLIENT_ID, "post_logout_redirect_uri": done}
    assert "form-action" in response.headers["content-security-policy"]
    assert not await site.is_signed_in(person)
    for wrong in ("", "?state=", "?state=x", f"?state={state}&state={state}", f"?state={state}x"):
        page = await person.visit(done + wrong)
        assert (page.status, page.location) == (303, f"{site.here.env.url}/"), wrong
    page = await person.visit(f"{done}?state={state}")
    assert page.heading == "You are signed out"
    assert "still be signed in" not in page.text
    assert (await person.visit(f"{done}?state={state}")).status == 303  # works once
    stranger = await site.here.env.person()
    assert (await stranger.visit(f"{done}?state={state}")).status == 303


@at_a_site
async def test_return_after_logout_does_not_claim_that_a_new_session_ended(site: Leaving) -> None:
    person = await site.here.signed_in("frank")
    _, fields = form_of((await signed_out(site, person)).text)
    copy = dict(person.browser.cookies)
    await site.here.signed_in("frank")
    other = await site.here.signed_in("alice")
    for name, value in copy.items():
        if name == site.here.env.service.identity.sessions.sign_in_cookie_name:
            other.browser.cookies.set(name, value)
    page = await other.visit(f"{site.here.env.url}/signout/done?state={fields['state']}")
    assert page.status == 303
    assert await site.is_signed_in(other)


@at_a_site
async def test_state_of_a_sign_out_completes_no_sign_in(site: Leaving) -> None:
    person = await site.here.signed_in("frank")
    _, fields = form_of((await signed_out(site, person)).text)
    url = f"{site.here.env.url}/signin/callback?code=c&state={fields['state']}"
    assert (await person.visit(url)).status == 400
    assert not await site.is_signed_in(person)


async def test_issuer_without_end_session_endpoint_gets_no_form() -> None:
    async with leaving() as site:
        for address in (None, "javascript:alert(1)", "data:text/html,x", "http://evil.example/x"):
            site.issuer.end_session = address
            person = await site.here.signed_in("frank")
            response = await signed_out(site, person)
            assert "id_token_hint" not in response.text, address
            assert "You may still be signed in" in response.text, address


@at_a_site
async def test_id_token_is_stored_sealed_until_the_sign_out(site: Leaving) -> None:
    person = await site.here.signed_in("frank", sid=SID)
    store = site.here.env.service.elicitations.store
    owners = site.here.env.service.elicitations.owners
    owner = owners.tag(issuer=site.issuer.url, subject="frank")
    (record,) = await store.list(ID_TOKEN)
    assert record.owner == owner
    assert record.erase_at == site.here.clock() + timedelta(days=7)
    assert b"eyJ" not in record.sealed
    await signed_out(site, person)
    (record,) = await store.list(ID_TOKEN)
    assert record.status == "used"
    assert record.erase_at == site.here.clock()
    cookies = " ".join(str(cookie.value) for cookie in person.browser.cookies.jar)
    assert "id_token" not in cookies
