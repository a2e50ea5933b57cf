"""Attacks on sign-in with planted cookies, redirected browsers and namesakes, on real pages."""

from urllib.parse import urlsplit

import httpx
import pytest

from flows.elicitation.states import Status
from tests.support.issuer import Issuing, come_back_as, issuing, leave_to_sign_in, sign_in
from tests.support.mcp_server import Page, Person
from tests.support.oauth_env import changed
from tests.support.signed_in_people import HER_WORDS, SignedInEnv, asked_by_alice, signed_in_env

PING = {"jsonrpc": "2.0", "id": 1, "method": "ping"}
ACCEPT = {"accept": "application/json, text/event-stream"}


async def way_back(here: SignedInEnv, person: Person, link: str, subject: str) -> str:
    """Leave to sign in as `subject`, and return the address of the redirect back."""
    place = await leave_to_sign_in(person, await person.visit(link))
    return await come_back_as(person, place, subject)


async def is_known(person: Person, link: str) -> bool:
    return HER_WORDS in (await person.visit(link)).text


def session_of(here: SignedInEnv, person: Person) -> str | None:
    return person.browser.cookies.get(here.env.service.identity.sessions.cookie_name)


async def test_cookie_of_bound_browser_is_refused_for_another_signed_in_person():
    async with asked_by_alice() as (here, link):
        alice, mallory = await here.env.person(), await here.env.person()
        page = await sign_in(alice, await alice.visit(link), "alice")
        await alice.go_on(link)
        await sign_in(mallory, await mallory.visit(link), "mallory")
        name = here.env.service.browser.cookie_name
        mallory.browser.cookies.delete(name)
        mallory.browser.cookies.set(name, alice.browser.cookies[name])
        for action in ("", "/decline"):
            pressed = await mallory.browser.post(link + action, data={"csrf": page.csrf})
            assert pressed.status_code == 403
        assert not await is_known(mallory, link)
        assert await here.env.status(link) is Status.OPENED


async def test_link_scanner_before_the_person_starts_no_sign_in_and_leaves_link_usable():
    async with asked_by_alice() as (here, link):
        robot, alice = await here.env.person(), await here.env.person()
        for address in (link, f"{here.env.url}/signin", f"{here.env.url}/signin/callback"):
            for method in ("GET", "HEAD", "OPTIONS"):
                answer = await robot.browser.request(method, address)
                assert answer.status_code < 500
                assert HER_WORDS not in answer.text
                assert "location" not in answer.headers
        assert here.issuer.exchanges == 0
        assert await here.env.status(link) is Status.PENDING
        await sign_in(alice, await alice.visit(link), "alice")
        assert await is_known(alice, link)


async def test_attackers_sign_in_callback_signs_in_no_other_browser():
    async with asked_by_alice() as (here, link):
        mallory, alice, fresh = [await here.env.person() for _ in range(3)]
        mallorys = await way_back(here, mallory, link, "mallory")
        alices = await way_back(here, alice, link, "alice")
        for victim in (fresh, alice):
            page = await victim.visit(mallorys)
            assert page.status == 400
            assert session_of(here, victim) is None
        assert here.issuer.exchanges == 0
        # Her own sign-in continues.
        await alice.visit(alices)
        assert await is_known(alice, link)


async def test_planted_session_is_replaced_at_sign_in():
    async with asked_by_alice() as (here, link):
        mallory, alice = await here.env.person(), await here.env.person()
        await sign_in(mallory, await mallory.visit(link), "mallory")
        planted = session_of(here, mallory)
        assert planted is not None
        alice.browser.cookies.set(here.env.service.identity.sessions.cookie_name, planted)
        refused = await alice.visit(link)
        assert refused.status == 403
        place = await leave_to_sign_in(alice, refused)
        returned = Page.of(await alice.browser.get(await come_back_as(alice, place, "alice")))
        assert returned.status == 303
        values = {c.value for c in alice.browser.cookies.jar if "session" in c.name}
        assert values - {planted}
        assert not await is_known(mallory, link)  # the planted session has ended
        assert (await mallory.visit(link)).heading == "Sign in to see it"


async def test_sign_in_callback_works_once_and_only_in_its_browser():
    async with asked_by_alice() as (here, link):
        alice, thief = await here.env.person(), await here.env.person()
        back = await way_back(here, alice, link, "alice")
        assert (await alice.visit(back)).status == 303
        for person in (alice, thief):
            assert (await person.visit(back)).status == 400
        assert here.issuer.exchanges == 1
        assert session_of(here, thief) is None
        assert await is_known(alice, link)


@pytest.mark.parametrize(
    "changes",
    [
        {"iss": None},
        {"iss": "https://evil.example"},
        {"iss": ""},
        {"state": None},
        {"state": "x"},
        {"code": None},
        {"error": "access_denied"},
    ],
)
async def test_callback_not_from_issuer_is_refused(changes):
    async with asked_by_alice() as (here, link):
        alice = await here.env.person()
        back = await way_back(here, alice, link, "alice")
        assert (await alice.visit(changed(back, **changes))).status == 400
        assert (await alice.visit(f"{back}&code=another")).status == 400
        assert here.issuer.exchanges == 0
        assert session_of(here, alice) is None
        assert (await alice.visit(back)).status == 303
        assert await is_known(alice, link)


@pytest.mark.parametrize(
    "back",
    [
        "https://evil.example/",
        "//evil.example",
        "/\\evil.example",
        "\\\\evil.example",
        "javascript:alert(1)",
        "/\r\nset-cookie: planted=1",
        "/%0d%0aset-cookie:planted=1",
        "/\tevil",
        "evil.example",
        "/" + "x" * 2000,
        "",
    ],
)
async def test_redirect_after_sign_in_stays_on_our_site(back):
    async with signed_in_env() as here:
        person = await here.env.person()
        service = here.env.service
        cookie = service.browser.fresh()
        person.browser.cookies.set(service.browser.cookie_name, cookie)
        fields = {"csrf": service.browser.csrf(cookie, subject="signin"), "back": back}
        left = await person.browser.post(f"{here.env.url}/signin", data=fields)
        assert left.status_code == 303
        place = left.headers["location"]
        assert urlsplit(place).netloc == urlsplit(here.issuer.url).netloc
        assert "evil" not in place
        returned = await person.browser.get(await come_back_as(person, place, "alice"))
        assert returned.status_code == 303
        location = returned.headers["location"]
        assert location == "/" or location == back == "/%0d%0aset-cookie:planted=1"
        assert "planted" not in person.browser.cookies


async def test_error_text_from_callback_is_not_shown():
    async with asked_by_alice() as (here, link):
        alice = await here.env.person()
        back = await way_back(here, alice, link, "alice")
        error = {
            "error": "<b>call</b>",
            "error_description": "Call us to unlock <script>",
            "error_uri": "https://evil.example",
        }
        for address in (changed(back, code=None, **error), changed(back, state="x", **error)):
            page = await alice.visit(address)
            assert page.status >= 400
            for words in ("to unlock", "<b>", "<script>", "evil.example"):
                assert words not in page.text


async def test_only_token_of_this_issuer_for_this_server_reaches_tool():
    async with signed_in_env() as here, issuing() as other, httpx.AsyncClient() as client:
        mcp_url = here.env.mcp_url
        tokens = {
            "another audience": here.issuer.token("alice", audience="https://other.example/mcp"),
            "audience of the pages": here.issuer.token("alice", audience="the pages"),
            "origin as audience": here.issuer.token("alice", audience=here.env.url),
            "another issuer": other.token("alice", audience=mcp_url),
            "our issuer's name, another issuer's key": other.token(
                "alice", audience=mcp_url, iss=here.issuer.url
            ),
            "expired": here.issuer.token("alice", audience=mcp_url, exp=1),
            "ID token with a nonce": here.issuer.token("alice", audience=mcp_url, nonce="n"),
            "three parts that are not a JWT": "x.y.z",
            "one character": "x",
        }
        for name, token in tokens.items():
            headers = {**ACCEPT, "authorization": f"Bearer {token}"}
            answer = await client.post(mcp_url, json=PING, headers=headers)
            assert answer.status_code == 401, name
        # A local connection does not help either.
        assert (await client.post(mcp_url, json=PING, headers=ACCEPT)).status_code == 401
        assert await here.env.elicitations() == []


async def test_namesake_at_our_issuer_cannot_open_link():
    async with asked_by_alice() as (here, link):
        namesake = await here.env.person()
        here.issuer.claims = {"preferred_username": "alice", "name": "Alice"}  # self-chosen
        page = await sign_in(namesake, await namesake.visit(link), "alice-2")
        assert page.status == 403
        assert HER_WORDS not in page.text


async def pages_of(here: SignedInEnv, issuer: Issuing, link: str) -> list[httpx.Response]:
    """Return the pages and redirects of sign-in, sign-out, pairing and codes."""
    person, url = (await here.env.person()).browser, here.env.url
    service = here.env.service
    answers = [await person.get(link), await person.get(f"{url}/signin/callback?code=c&state=s")]
    cookie = person.cookies[service.browser.cookie_name]
    csrf = {"csrf": service.browser.csrf(cookie, subject="signin")}
    for path in ("/signin", "/signout", "/pair/x", f"{urlsplit(link).path}/code"):
        answers += [await person.post(url + path, data=data) for data in ({}, csrf)]
        answers.append(await person.get(url + path))
    return answers


async def test_sign_in_pages_cannot_be_framed_or_cached():
    async with asked_by_alice() as (here, link):
        answers = await pages_of(here, here.issuer, link)
    assert {answer.status_code for answer in answers} >= {200, 303, 400, 403, 405, 410}
    for answer in answers:
        assert answer.headers["cache-control"] == "no-store", answer
        if answer.has_redirect_location:
            assert answer.headers["referrer-policy"] == "no-referrer", answer
        if "html" in answer.headers.get("content-type", ""):
            assert answer.headers["referrer-policy"] == "no-referrer", answer
            assert "frame-ancestors 'none'" in answer.headers["content-security-policy"]
            assert "unsafe" not in answer.headers["content-security-policy"]
