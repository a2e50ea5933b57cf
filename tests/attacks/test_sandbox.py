"""Attacks on the sandbox by a stranger, a thief of codes and a page of another site."""

import dataclasses
from collections.abc import AsyncIterator
from itertools import product

import httpx
import pytest

from tests.support.clock import Clock
from tests.support.sandbox import (
    CALLBACK,
    GITHUB,
    MAIN,
    SLACK,
    URL,
    Person,
    nobody_listens,
    person_at,
    redirect_parameters,
)
from webapp.sandbox import Sandbox, new_sandbox
from webapp.sandbox.app import SandboxApp

FOREIGN_ADDRESSES = [
    "https://evil.example/callback",
    "http://127.0.0.1:8765.evil.example/callback",
    "http://127.0.0.1:8765@evil.example/callback",
    "http://evil.example\\@127.0.0.1:8765/callback",
    "http://127.0.0.1:8765\\@evil.example/callback",
    "http://127.0.0.1:8766/callback",
    "http://localhost:8765/callback",
    "https://127.0.0.1:8765/callback",
    "http://127.0.0.1:8765/callback#fragment",
    "http://127.0.0.1:8765/call back",
    "http://127.0.0.1:8765/\r\nset-cookie:x",
    "//127.0.0.1:8765/callback",
    "javascript:alert(1)//http://127.0.0.1:8765",
    "http://127.0.0.1:87650/callback",
    "http://[::1]:8765/callback",
    "",
]


@pytest.fixture
def sandbox() -> Sandbox:
    return new_sandbox(url=URL, serves=MAIN)


@pytest.fixture
async def person(sandbox: Sandbox) -> AsyncIterator[Person]:
    async with person_at(sandbox, clock=Clock()) as person:
        yield person


def made(sandbox: Sandbox) -> SandboxApp:
    return SandboxApp(sandbox, clock=Clock(), deliver=nobody_listens)


async def test_foreign_redirect_uri_ends_on_error_page(person: Person):
    for address in FOREIGN_ADDRESSES:
        page = await person.open(redirect_uri=address)
        assert page.status_code == 400, address
        assert "location" not in page.headers
        assert "an address that is not its own" in page.text


async def test_foreign_redirect_uri_is_not_used_for_error_redirect(person: Person):
    page = await person.open(redirect_uri=FOREIGN_ADDRESSES[0], response_type="token")
    assert page.status_code == 400
    assert "location" not in page.headers


async def test_post_with_changed_redirect_uri_gives_no_code(person: Person):
    page = await person.open()
    evil = str(httpx.QueryParams(person.query(redirect_uri=f"{MAIN}/elsewhere")))
    good = str(httpx.QueryParams(person.query()))
    changed = httpx.Response(200, text=page.text.replace(good.replace("&", "&amp;"), evil))
    assert changed.text != page.text
    assert (await person.press(changed)).status_code == 403


async def test_foreign_host_header_is_refused_everywhere(person: Person):
    hosts = ("evil.example", "evil.example:8766", "127.0.0.1", "127.0.0.1:80", "")
    paths = ("/oidc/authorize", "/oidc/jwks", "/github/api/user", "/stripe/v1/refunds", "/nothing")
    for host, path, method in product(hosts, paths, ("GET", "POST")):
        answer = await person.http.request(method, path, headers={"host": host})
        assert answer.status_code == (421 if host else 400), (host, path, method)


async def test_form_from_another_site_is_refused(person: Person):
    await person.open()
    answer = await person.http.post(
        "/oidc/authorize",
        params=person.query(),
        data={"decision": "approve", "person": "octocat"},
        headers={"origin": "https://evil.example"},
    )
    assert answer.status_code == 403


@pytest.mark.parametrize(
    "url",
    [
        "http://192.168.1.5:8766",
        "http://0.0.0.0:8766",
        "https://127.0.0.1:8766",
        "http://127.0.0.1:8766/",
        "http://127.0.0.1:8766/path",
        "http://user@127.0.0.1:8766",
        "http://127.0.0.1.evil.example:8766",
        "http://tools.example.com",
        "127.0.0.1:8766",
        "http://127.0.0.1:99999",
        "http://127.0.0.1:x",
        "http://[::1",
        "",
    ],
)
async def test_sandbox_is_refused_on_non_loopback_address(url):
    good = new_sandbox(url=URL, serves=MAIN)
    with pytest.raises(ValueError, match="only on this machine"):
        new_sandbox(url=url, serves=MAIN)
    if url != "http://127.0.0.1:8766/path":  # allowed for a server, but not for a sandbox
        with pytest.raises(ValueError, match=r"only on this machine|with a plain path"):
            new_sandbox(url=URL, serves=url)
    for changes in ({"url": url}, {"redirect_origins": (MAIN, url)}):
        with pytest.raises(ValueError, match="only on this machine"):
            made(dataclasses.replace(good, **changes))


def test_sandbox_for_server_under_path_uses_its_path_and_origin():
    sandbox = new_sandbox(url=URL, serves=f"{MAIN}/tools")
    assert sandbox.redirect_origins == (MAIN,)
    assert sandbox.webhook_url == f"{MAIN}/tools/webhooks/stripe"
    assert sandbox.paypal_webhook_url == f"{MAIN}/tools/webhooks/paypal"


@pytest.mark.parametrize("url", ["https://evil.example/webhooks/stripe", "http://[::1/", ""])
async def test_webhook_url_outside_this_machine_is_refused(url, sandbox: Sandbox):
    with pytest.raises(ValueError, match="only on this machine"):
        made(dataclasses.replace(sandbox, webhook_url=url))


async def test_localhost_and_ipv6_loopback_are_accepted():
    for url in ("http://localhost:8766", "http://[::1]:8766", "http://127.0.0.2:8766"):
        made(new_sandbox(url=url, serves=MAIN))


async def test_stolen_code_revokes_its_access_token(person: Person):
    code = (await person.approve())["code"]
    given = (await person.exchange(code)).json()["access_token"]
    stolen = await person.exchange(code, code_verifier="a" * 43)
    assert stolen.json()["error"] == "invalid_grant"
    assert (await person.get("/oidc/userinfo", given)).status_code == 401


async def test_code_without_client_secret_is_refused(person: Person):
    code = (await person.approve())["code"]
    assert (await person.exchange(code, client_secret="guess")).status_code == 401
    assert (await person.exchange(code)).status_code == 200


async def test_code_of_one_provider_is_refused_by_another(person: Person):
    code = (await person.approve())["code"]
    assert (await person.exchange(code, GITHUB)).json()["error"] == "bad_verification_code"
    assert (await person.exchange(code, SLACK)).json()["error"] == "invalid_code"


async def test_reused_refresh_token_revokes_whole_token_family(person: Person):
    first = await person.connect()
    thiefs = (await person.refresh(first["refresh_token"])).json()
    owners = await person.refresh(first["refresh_token"])
    assert owners.json()["error"] == "invalid_grant"
    assert (await person.refresh(thiefs["refresh_token"])).json()["error"] == "invalid_grant"
    assert (await person.get("/oidc/userinfo", thiefs["access_token"])).status_code == 401


async def test_access_token_is_refused_as_refresh_token(person: Person):
    reply = await person.connect()
    assert (await person.refresh(reply["access_token"])).json()["error"] == "invalid_grant"
    assert (await person.get("/oidc/userinfo", reply["access_token"])).status_code == 200
    assert (await person.get("/oidc/userinfo", reply["refresh_token"])).status_code == 401


@pytest.mark.parametrize(
    "changes",
    [
        {"code_challenge": None, "code_challenge_method": None},
        {"code_challenge_method": "plain"},
        {"code_challenge_method": None},
        {"code_challenge": None},
        {"code_challenge": "a" * 44},
        {"code_challenge_method": "s256"},
    ],
)
async def test_missing_or_weak_pkce_is_refused(changes, person: Person):
    for provider, scope in ((GITHUB, "repo"), (SLACK, "chat:write")):
        got = redirect_parameters(await person.open(provider, scope=scope, **changes))
        assert got["error"] == "invalid_request"
    assert redirect_parameters(await person.open(**changes))["error"] == "invalid_request"


async def test_text_from_request_is_escaped_on_page(person: Person):
    text = '"><script>alert(1)</script>'
    page = await person.open(state=text, nonce=text, redirect_uri=CALLBACK)
    assert "<script" not in page.text
    query = httpx.QueryParams(person.query())
    raw = await person.http.get(f"/oidc/authorize?{query}&x=%22%3E%3Cscript>'\"<b>")
    assert "<script" not in raw.text
    assert "<b>" not in raw.text


async def test_overlong_state_is_not_echoed(person: Person):
    got = await person.approve(state="s" * 5000)
    assert "state" not in got


async def test_each_sandbox_has_new_secrets(sandbox: Sandbox):
    other = new_sandbox(url=URL, serves=MAIN)
    assert other.client_secret != sandbox.client_secret
    assert other.stripe_key != sandbox.stripe_key
    assert other.webhook_secret != sandbox.webhook_secret
