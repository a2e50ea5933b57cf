"""Avatars from our own origin: for the connected person only, and only valid images."""

import asyncio
from dataclasses import dataclass, field

import httpx
import pytest
from msgspec.structs import replace

from tests.support.connections_page import city, look, press, tail, the_one
from tests.support.mcp_server import Person
from tests.support.oauth_env import Gate, OAuthEnv, oauth_env
from webapp.http.browser import page_headers
from webapp.http.connection import ASGIApp, Message, Receive, Scope, Send
from webapp.oauth.avatars import KEPT_FOR, NOT_ASKED_AGAIN_FOR
from webapp.sandbox.authorization.people import person_of

FORWARDED = "203.0.113.9"


@dataclass(slots=True, kw_only=True)
class Looks:
    """An app wrapper that records the requests to the sandbox."""

    app: ASGIApp
    paths: list[str] = field(default_factory=list)
    headers: list[list[tuple[bytes, bytes]]] = field(default_factory=list)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self.paths.append(scope["path"])
        self.headers.append(scope["headers"])
        await self.app(scope, receive, send)


def looks_at(gate: Gate) -> Looks:
    gate._app = looks = Looks(app=gate._app)
    return looks


async def picture(person: Person, here: OAuthEnv, id: str) -> httpx.Response:
    return await person.browser.get(f"{here.url}/connections/{id}/picture")


async def point(here: OAuthEnv, address: str | None) -> str:
    """Give the only connection another avatar URL, and return the connection's short id."""
    kept = await the_one(here)
    await here.service.elicitations.write(replace(kept, picture=address))
    return tail(kept)


async def test_the_page_shows_a_picture_that_we_serve() -> None:
    async with oauth_env() as here:
        await here.connect("repo")
        kept, person = await the_one(here), await here.person()
        page = await person.browser.get(f"{here.url}/connections")
        assert f'src="/connections/{tail(kept)}/picture" alt=""' in page.text
        assert str(kept.picture) not in page.text
        assert "img-src 'self';" in page.headers["content-security-policy"]
        answer = await picture(person, here, tail(kept))
        octocat = person_of("octocat")
        assert octocat is not None
        assert (answer.status_code, answer.content) == (200, octocat.picture)


async def test_it_can_be_shown_and_nothing_else_and_is_kept_nowhere() -> None:
    async with oauth_env() as here:
        await here.connect("repo")
        answer = await picture(await here.person(), here, tail(await the_one(here)))
        assert {name: answer.headers[name] for name in answer.headers if name != "date"} == {
            "content-type": "image/png",
            "content-length": str(len(answer.content)),
            "content-disposition": "inline",
            "content-security-policy": "default-src 'none'; frame-ancestors 'none'; sandbox",
            "cache-control": "no-store",
            "cross-origin-opener-policy": "same-origin",
            "cross-origin-resource-policy": "same-origin",
            "permissions-policy": page_headers()["permissions-policy"],
            "referrer-policy": "no-referrer",
            "server": "uvicorn",
            "x-content-type-options": "nosniff",
            "x-frame-options": "DENY",
            "x-robots-tag": "noindex",
        }


async def test_a_look_is_not_a_request_to_the_provider_each() -> None:
    async with oauth_env() as here:
        await here.connect("repo")
        id, person, looks = tail(await the_one(here)), await here.person(), looks_at(here.gate)
        answers = await asyncio.gather(*[picture(person, here, id) for _ in range(5)])
        assert {answer.status_code for answer in answers} == {200}
        assert looks.paths == ["/people/octocat.png"]
        names = {name for name, _ in looks.headers[0]}
        assert names == {b"host", b"accept", b"accept-encoding", b"user-agent"}
        here.clock.now += KEPT_FOR
        await picture(person, here, id)
        assert looks.paths == ["/people/octocat.png"] * 2


@pytest.mark.parametrize(
    "path", ["/sandbox.svg", "/sandbox.css", "/people/nobody.png", "/oidc/jwks"]
)
async def test_what_is_no_picture_is_nothing_and_is_not_asked_for_again_soon(path: str) -> None:
    async with oauth_env() as here:
        await here.connect("repo")
        id, person = await point(here, here.sandbox.url + path), await here.person()
        looks = looks_at(here.gate)
        for _ in range(2):
            answer = await picture(person, here, id)
            assert (answer.status_code, answer.content) == (204, b"")
            assert answer.headers["cache-control"] == "no-store"
        here.clock.now += NOT_ASKED_AGAIN_FOR
        await picture(person, here, id)
        assert looks.paths == [path] * 2
        assert 'class="letter" aria-hidden="true">O<img' in (await look(person, here)).text


async def test_one_without_a_picture_has_none() -> None:
    async with oauth_env() as here:
        await here.connect("repo")
        id, looks = await point(here, None), looks_at(here.gate)
        assert (await picture(await here.person(), here, id)).status_code == 204
        assert looks.paths == []


async def test_nobody_on_this_machine_is_asked_but_the_provider_itself() -> None:
    async with oauth_env() as here:
        await here.connect("repo")
        person, looks = await here.person(), looks_at(here.gate)
        port = here.sandbox.url.rpartition(":")[2]
        for address in (
            f"{here.url}/people/octocat.png",
            f"http://localhost:{port}/people/octocat.png",
            f"https://127.0.0.1:{port}/people/octocat.png",
        ):
            id = await point(here, address)
            assert (await picture(person, here, id)).status_code == 204
        assert looks.paths == []
    # The sandbox is not asked either if the account comes from another provider.
    async with oauth_env() as here:
        await here.connect("repo")
        kept, person, looks = await the_one(here), await here.person(), looks_at(here.gate)
        await here.service.elicitations.write(replace(kept, provider="google"))
        assert (await picture(person, here, tail(kept))).status_code == 204
        assert looks.paths == []


async def test_it_is_gone_with_the_account() -> None:
    async with oauth_env() as here:
        await here.connect("repo")
        id, person = tail(await the_one(here)), await here.person()
        assert (await picture(person, here, id)).status_code == 200
        await press(person, here, "/disconnect")
        assert (await picture(person, here, id)).status_code == 404


async def test_somebody_elses_is_not_there_and_nothing_is_told_of_it() -> None:
    async with city() as here:
        alice, bob = await here.citizen("alice"), await here.citizen("bob")
        await here.oauth_env.connect("repo", owner=here.owner("alice"), person=alice)
        hers, looks = await the_one(here.oauth_env), looks_at(here.oauth_env.gate)
        stranger = await here.oauth_env.person(**{"x-forwarded-for": FORWARDED})
        tried = [
            await picture(person, here.oauth_env, id)
            for person in (bob, stranger)
            for id in (tail(hers), hers.id, "unknown", "x" * 500, "%F0%9F%9A%80", "~")
        ]
        assert {answer.status_code for answer in tried} == {404}
        assert len({(answer.text, *answer.headers) for answer in tried}) == 1
        assert looks.paths == []
        assert (await picture(alice, here.oauth_env, tail(hers))).status_code == 200
        assert (await picture(bob, here.oauth_env, tail(hers))).status_code == 404


async def test_after_signing_out_it_is_not_there() -> None:
    async with city() as here:
        alice = await here.citizen("alice")
        await here.oauth_env.connect("repo", owner=here.owner("alice"), person=alice)
        id = tail(await the_one(here.oauth_env))
        assert (await picture(alice, here.oauth_env, id)).status_code == 200
        await press(alice, here.oauth_env, "/signout")
        assert (await picture(alice, here.oauth_env, id)).status_code == 404


async def test_after_a_disconnect_nothing_of_the_picture_stays() -> None:
    async with oauth_env() as here:
        await here.connect("repo")
        kept, person = await the_one(here), await here.person()
        assert (await picture(person, here, tail(kept))).status_code == 200
        assert here.service.avatars._kept
        await look(person, here)
        await press(person, here, "/disconnect")
        assert not here.service.avatars._kept
        assert here.service.avatars._kept_bytes == 0


async def test_no_cookie_of_others_is_kept_for_the_life_of_the_process() -> None:
    class Baker:
        def __init__(self, app: ASGIApp) -> None:
            self.app = app

        async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
            async def baked(message: Message) -> None:
                if message["type"] == "http.response.start":
                    message["headers"] = [*message["headers"], (b"set-cookie", b"a=b; Max-Age=999")]
                await send(message)

            await self.app(scope, receive, baked)

    async with oauth_env() as here:
        await here.connect("repo")
        here.gate._app = Baker(here.gate._app)
        person, id = await here.person(), tail(await the_one(here))
        assert (await picture(person, here, id)).status_code == 200
        client = here.service.outbound._client
        assert client is not None
        assert not list(client.cookies.jar)
