"""Pairing on machines that cannot identify the user of a connecting program."""

import logging
from datetime import timedelta

import pytest

from flows import elicit
from flows.crypto.tokens import Tokens
from flows.elicitation.states import Status
from tests.support.mcp_server import (
    BOTH,
    FORM,
    RING,
    URL,
    Page,
    Person,
    ServerEnv,
    caller_of,
    link_in,
    new_server,
    server_env,
    soon,
    text_of,
)
from webapp.http.exchange import PEER_KEY, Scope
from webapp.identity.local_peer import Peer
from webapp.identity.sessions import address_of, key_of
from webapp.limits import CallLimits
from webapp.settings.identity import IdentitySettings

# Requests with this header came through a proxy, so the program's user cannot be identified.
RELAYED = {"x-forwarded-for": "127.0.0.1"}
WORDS = "Only for the person who runs this"


def shop() -> object:
    server = new_server("mcp")

    @server.tool()
    async def visit() -> str:
        await elicit.url(WORDS, "https://shop.example/terms")
        return "done"

    return server


def address(env: ServerEnv) -> str:
    return address_of(Tokens(RING, origin=env.url), url=env.url, now=env.service.clock())


async def relayed_person(env: ServerEnv) -> Person:
    person = await env.person()
    person.browser.headers.update(RELAYED)
    return person


async def use(person: Person, place: str) -> Page:
    return await person.press(place)


async def test_paired_browser_with_the_key_can_answer(revision):
    headers = {**RELAYED, "authorization": f"Bearer {key_of(RING)}"}
    async with caller_of(shop(), revision, headers=headers) as (env, caller):
        call = caller.call("visit")
        link = await caller.link()
        person = await relayed_person(env)
        page = await person.visit(link)
        assert page.status == 403
        assert "elicit pair" in page.text
        assert WORDS not in page.text
        assert (await use(person, address(env))).status == 200
        assert WORDS in (await person.visit(link)).text
        assert await person.go_on(link) == "https://shop.example/terms"
        await env.complete(link)
        assert text_of(await soon(call)) == "done"


@pytest.mark.parametrize("key", ["none", "elicit_local_", key_of(RING)[:-1], key_of(RING) + "x"])
async def test_call_with_a_wrong_or_missing_key_asks_nobody(revision, key):
    headers = {**RELAYED, "authorization": f"Bearer {key}"}
    async with caller_of(shop(), revision, headers=headers) as (env, caller):
        assert "[ELICITATION_NOT_ALLOWED]" in await caller.text("visit")
        assert not await env.elicitations()


async def test_pairing_address_pairs_a_single_browser():
    async with server_env(shop()) as env:
        place = address(env)
        first, second = await relayed_person(env), await relayed_person(env)
        assert (await second.visit(place)).status == 200
        assert (await use(first, place)).status == 200
        assert (await second.visit(place)).status == 410


async def test_pairing_of_a_browser_is_logged(caplog):
    # finding: S26
    caplog.set_level(logging.INFO, logger="webapp")
    async with server_env(shop()) as env:
        place = address(env)
        await use(await relayed_person(env), place)
        assert (await (await relayed_person(env)).visit(place)).status == 410
        owner = env.service.identity.local_owner
    (logged,) = [one for one in caplog.records if one.getMessage() == "browser.paired"]
    assert vars(logged)["owner"] == owner


async def test_opening_a_pairing_address_pairs_nothing():
    async with server_env(shop()) as env:
        scanner, person = await env.person(), await relayed_person(env)
        place = address(env)
        for _ in range(3):
            await scanner.visit(place)
        assert not any("session" in name for name in scanner.browser.cookies)
        assert (await use(person, place)).status == 200


async def test_pairing_with_a_wrong_csrf_token_is_refused():
    async with server_env(shop()) as env:
        person = await relayed_person(env)
        place = address(env)
        await person.visit(place)
        refused = await person.browser.post(place, data={"csrf": "0" * 64})
        assert refused.status_code == 403
        assert (await use(person, place)).status == 200


async def test_paired_browser_of_another_user_is_not_the_local_owner():
    async with server_env(shop()) as env:
        person = await env.person()
        await use(person, address(env))
        cookies = dict(person.browser.cookies)
        identity = env.service.identity
        found = await identity.viewer(here(env, uid=None), cookies)
        assert found is not None
        assert found.owner == identity.local_owner
        assert await identity.viewer(here(env, uid=4242), cookies) is None


def here(env: ServerEnv, *, uid: int | None) -> Scope:
    """Build a request scope for a machine that reports this user id for the connection."""
    port = int(env.url.rsplit(":", 1)[1])
    return {
        "type": "http",
        "http_version": "1.1",
        "headers": [(b"host", f"127.0.0.1:{port}".encode())],
        "client": ("127.0.0.1", 1),
        "server": ("127.0.0.1", port),
        PEER_KEY: Peer(uid=uid),
    }


@pytest.mark.parametrize(
    ("uid", "advice"),
    [
        (None, "Give the client the key that `elicit pair` prints, or set ELICIT_ISSUER"),
        (4242, "If this user runs your proxy, run the proxy as the server's user, and give"),
    ],
)
async def test_refusal_advises_the_key_only_where_it_works(uid: int | None, advice: str):
    # finding: XV8
    async with server_env(shop()) as env:
        scope = here(env, uid=uid)
        refusal = env.service.identity.caller(scope, subject=None, client="a client").refusal
        key = (b"authorization", f"Bearer {key_of(RING)}".encode())
        paired = {**scope, "headers": [*scope["headers"], key]}
        works = env.service.identity.caller(paired, subject=None, client="a client").refusal is None
    assert refusal is not None
    assert advice in refusal
    assert works is (uid is None)


PAIRED = IdentitySettings(pairs_for_yes=True)


def shop_with_a_gate(ran: list[str]) -> object:
    server = new_server("mcp")

    @server.tool()
    @elicit.gate
    async def wipe(place: str) -> str:
        ran.append(place)
        return "wiped"

    @server.tool()
    async def ask() -> str:
        return f"sure: {await elicit.confirm('Sure?')}"

    return server


@pytest.mark.parametrize("tick", [{}, {"remember": "1", "all_clients": "1"}])
async def test_unpaired_program_cannot_press_approve_on_the_gate_page(revision, tick):
    # finding: S20
    ran: list[str] = []
    server = shop_with_a_gate(ran)
    async with caller_of(server, revision, who=PAIRED, declares=URL) as (env, caller):
        call = caller.call("wipe", place="home")
        link = await caller.link()
        program, person = await env.person(), await env.person()
        page = await program.visit(link)
        assert page.status == 403
        assert "elicit pair" in page.text
        assert "home" not in page.text
        cookie = env.service.browser.cookie_of(dict(program.browser.cookies)) or ""
        csrf = env.service.browser.csrf(cookie, subject=env.id_of(link))
        for action in ("", "/decline"):
            pressed = await program.browser.post(link + action, data={"csrf": csrf, **tick})
            assert pressed.status_code == 403
        assert await env.status(link) is Status.PENDING
        assert not ran
        await use(person, address(env))
        assert "home" in (await person.visit(link)).text
        await person.press(link)
        assert text_of(await soon(call)) == "wiped"
    assert ran == ["home"]


@pytest.mark.parametrize("declares", [FORM, BOTH, None], ids=["form", "both", "none"])
async def test_clients_form_cannot_open_a_gate_if_pairing_is_required(revision, declares):
    # finding: S20
    ran: list[str] = []
    async with caller_of(
        shop_with_a_gate(ran),
        revision,
        who=PAIRED,
        limits=CallLimits(link=timedelta()),
        declares=declares,
        fills=["accept"],
    ) as (env, caller):
        call = caller.call("wipe", place="home")
        link = await caller.link() if declares is BOTH else link_in(await soon(call))
        person = await env.person()
        await use(person, address(env))
        await person.press(link)
        if declares is not BOTH:
            call = caller.call("wipe", place="home")
        assert text_of(await soon(call)) == "wiped"
        assert not caller.forms
        if declares in (FORM, BOTH):  # a question that is not a gate is asked as usual
            assert await caller.text("ask") == "sure: True"
