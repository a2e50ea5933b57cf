"""People and their assistants sign in at a certified provider, through our complete server."""

import re

import httpx
import pytest

from tests.oidc.connected import WORDS, bearer, known_at, served, sign_in
from tests.oidc.env import Guest, Newcomer, OpenIdProvider, bearer_of
from tests.support.issuer import leave_to_sign_in
from tests.support.mcp_server import (
    LEGACY,
    MODERN,
    server_env,
    soon,
    text_of,
)


@pytest.mark.parametrize("revision", [LEGACY, MODERN])
async def test_only_the_asking_person_can_open_link_and_answer(
    acme: OpenIdProvider, newcomer: Newcomer, revision: str
) -> None:
    async with server_env(served(), who=known_at(acme)) as env:
        alice, bob = await newcomer(acme, "alice"), await newcomer(acme, "bob")
        async with env.caller(revision, headers=await bearer(env, alice)) as caller:
            call = caller.call("visit")
            link = await caller.link()
            stranger, person = await env.person(), await env.person()
            refused = await sign_in(stranger, await stranger.visit(link), bob)
            assert refused.heading == "This link belongs to someone else"
            assert WORDS not in refused.text
            assert WORDS in (await sign_in(person, await person.visit(link), alice)).text
            assert await person.go_on(link) == "https://shop.example/terms"
            await env.complete(link)
            assert text_of(await soon(call)) == "done"


async def test_token_with_scope_named_in_the_401_response_is_accepted(
    acme: OpenIdProvider, newcomer: Newcomer
) -> None:
    # finding: I3
    async with server_env(served(), who=known_at(acme)) as env:
        alice = await newcomer(acme, "alice")
        async with httpx.AsyncClient() as client:
            refused = await client.post(env.mcp_url, json={})
        reported = re.search('scope="(.*?)"', refused.headers["www-authenticate"])
        assert reported is not None
        got = await bearer_of(alice, env.mcp_url, scope=reported[1])
        headers = {"authorization": f"Bearer {got['access_token']}"}
        async with env.caller(MODERN, headers=headers) as caller:
            caller.begin("visit")
            assert await caller.link()


async def test_person_signed_in_as_another_can_sign_in_again(
    acme: OpenIdProvider, newcomer: Newcomer
) -> None:
    async with server_env(served(), who=known_at(acme)) as env:
        alice, bob = await newcomer(acme, "alice"), await newcomer(acme, "bob")
        async with env.caller(MODERN, headers=await bearer(env, alice)) as caller:
            caller.begin("visit")
            link = await caller.link()
            person = await env.person()
            refused = await sign_in(person, await person.visit(link), bob)
            # The browser still has bob's session at the provider: without the prompt, the provider
            # would not ask who signs in.
            now_alice = Guest("alice", at=acme, browser=bob.browser)
            assert WORDS in (await sign_in(person, refused, now_alice)).text


async def test_sign_in_callback_of_another_browser_is_refused(
    acme: OpenIdProvider, newcomer: Newcomer
) -> None:
    async with server_env(served(), who=known_at(acme)) as env:
        alice, mallory = await newcomer(acme, "alice"), await newcomer(acme, "bob")
        async with env.caller(MODERN, headers=await bearer(env, alice)) as caller:
            caller.begin("visit")
            link = await caller.link()
            hers, his = await env.person(), await env.person()
            begun = await leave_to_sign_in(his, await his.visit(link))
            planted = await mallory.walk(begun)
            assert (await hers.visit(planted)).status == 400
            page = await hers.visit(link)
            assert page.heading == "Sign in to see it"
            assert WORDS in (await sign_in(hers, page, alice)).text
