"""Attacks from this machine: by another user, another port, and files in the working directory.

Tests that need root or nginx are in the tests of local connections.
"""

import json
from typing import Any

import httpx

from flows.oauth.account import BearerAuth, KeyTransport
from flows.providers import github
from tests.support.callers import is_untouched, sent_out
from tests.support.mcp_server import Page
from tests.support.oauth_env import oauth_env
from tests.support.serving import serving
from webapp.http.client import Outbound
from webapp.http.exchange import Receive, Scope, Send
from webapp.settings.settings import read_settings

EVIL = '[providers.evil]\nissuer = "https://evil.example"\n'
KEY = "gho_the-key"


async def test_stolen_cookie_opens_nothing_on_another_users_connection(here):
    _, person, link, callback = await sent_out(here)
    page = await person.visit(link)
    name = here.service.browser.cookie_name
    # The thief sends the cookie over a connection of another user.
    thief = await here.person(
        cookie=f"{name}={person.browser.cookies[name]}", **{"x-forwarded-for": "203.0.113.9"}
    )
    for address in (link, callback):
        assert (await thief.visit(address)).status == 403
    csrf = here.service.browser.csrf(
        person.browser.cookies[name], subject=(await here.row(link)).id
    )
    for path in ("", "/allow", "/decline"):
        pressed = Page.of(await thief.browser.post(link + path, data={"csrf": csrf}))
        assert pressed.status == 403
        assert pressed.csrf is None
    assert page.status == 200
    assert await is_untouched(here, link)


async def test_planted_cookie_validates_no_forged_form(here):
    _, person, link, _ = await sent_out(here)
    browser, planted = here.service.browser, "p" * len(here.service.browser.fresh())
    person.browser.cookies.clear()
    person.browser.cookies.set(browser.cookie_name, planted)
    before = await here.row(link)
    # The attacker knows the planted cookie, but not the server's key.
    for field in ("", planted, "0" * 64, browser.hash(planted)):
        for headers in ({}, {"origin": "http://127.0.0.1:1"}, {"origin": "null"}):
            answer = await person.browser.post(link, data={"csrf": field}, headers=headers)
            assert answer.status_code == 403
    assert await here.row(link) == before


async def test_two_servers_on_one_machine_use_separate_cookies(here):
    async with oauth_env() as there:
        asked = here.ask("repo")
        person, link = await here.person(), await asked.link()
        await person.visit(link)
        await person.visit(await there.ask("repo").link())
        cookies = person.browser.cookies
        assert len({here.service.browser.cookie_name, there.service.browser.cookie_name}) == 2
        names = {name.split("_")[1] for name in cookies}
        assert (len(cookies), len(names)) == (6, 2), (
            "each server sets three cookies under its own name"
        )


async def test_files_in_working_directory_are_not_read_as_settings(tmp_path, monkeypatch):
    home, work = tmp_path / "home", tmp_path / "unpacked"
    for name in (
        "elicit.toml",
        ".elicit.toml",
        "elicit-url/elicit.toml",
        ".config/elicit-url/elicit.toml",
        "config/elicit.toml",
    ):
        (work / name).parent.mkdir(parents=True, exist_ok=True)
        (work / name).write_text(EVIL)
    (work / ".env").write_text("ELICIT_CONFIG=elicit.toml\nELICIT_EXPOSE=1\n")
    (work / "templates").mkdir()
    (work / "templates" / "start_url.html").write_text("planted")
    (work / ".local/share/elicit-url").mkdir(parents=True)
    (work / ".local/share/elicit-url/key").write_text("a key that somebody else knows " * 2)
    monkeypatch.chdir(work)
    settings = read_settings({"HOME": str(home)})
    assert "evil" not in settings.providers
    assert not settings.templates
    assert str(work) not in settings.store
    assert (home / ".local/share/elicit-url/key").exists()
    assert not any("evil" in repr(each) for each in settings.providers.values())


async def test_access_token_is_sent_only_to_provider_origin():
    seen: list[tuple[str, str | None]] = []

    def answer(request: httpx.Request) -> httpx.Response:
        seen.append((str(request.url), request.headers.get("Authorization")))
        return httpx.Response(200)

    auth = BearerAuth(KEY, origins=github.api_hosts)
    async with httpx.AsyncClient(
        base_url=github.api,
        transport=KeyTransport(httpx.MockTransport(answer), auth.on_wire),
        auth=auth,
    ) as client:
        await client.get("/user")
        for address in (
            "https://api.github.com.evil.example/user",
            "https://evil.example/https://api.github.com/user",
            "https://evil.example#@api.github.com/user",
            "https://api.github.com:8443/user",
            "http://api.github.com/user",
            "https://xapi.github.com/user",
            "https://api.github.co/user",
            "https://github.com.evil.example/",
            "https://\u0430pi.github.com/user",
        ):
            await client.get(address)
    ((first, key), *others) = seen
    assert (first, key) == (f"{github.api}/user", f"Bearer {KEY}")
    assert len(others) == 9
    for address, sent in others:
        assert sent is None, address


async def test_access_token_is_not_sent_to_host_after_user_name_in_url():
    seen: list[tuple[str, str]] = []

    def answer(request: httpx.Request) -> httpx.Response:
        seen.append((request.url.host, request.headers.get("Authorization", "")))
        return httpx.Response(200)

    auth = BearerAuth(KEY, origins=github.api_hosts)
    transport = KeyTransport(httpx.MockTransport(answer), auth.on_wire)
    async with httpx.AsyncClient(transport=transport, auth=auth) as client:
        await client.get("https://api.github.com@evil.example/user")
        await client.get("https://api.github.com:443@evil.example/user")
    assert [host for host, _ in seen] == ["evil.example"] * 2
    assert not any(KEY in sent for _, sent in seen)


def client_of(auth: BearerAuth) -> httpx.AsyncClient:
    outbound = Outbound(None, allow_loopback=True)
    return outbound.client(base_url="", auth=auth, on_wire=auth.on_wire)


async def test_redirect_to_another_port_does_not_receive_access_token():
    received: dict[str, list[str]] = {"ours": [], "other": []}

    def recorder(name: str, location: str | None) -> Any:
        async def app(scope: Scope, receive: Receive, send: Send) -> None:
            if scope["type"] != "http":
                return
            sent = dict(scope["headers"]).get(b"authorization", b"").decode()
            received[name].append(sent)
            headers = [(b"location", location.encode())] if location else []
            status = 307 if location else 200
            await send({"type": "http.response.start", "status": status, "headers": headers})
            await send({"type": "http.response.body", "body": json.dumps(name).encode()})

        return app

    async with (
        serving(recorder("other", None)) as other,
        serving(recorder("ours", f"{other}/steal")) as provider_url,
        client_of(BearerAuth(KEY, origins=(provider_url,))) as client,
    ):
        client.follow_redirects = True
        answer = await client.post(f"{provider_url}/user", json={})
        assert answer.json() == "other"
    assert received == {"ours": [f"Bearer {KEY}"], "other": [""]}
