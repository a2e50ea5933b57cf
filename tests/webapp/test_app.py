"""The application with its own lifespan, as an ASGI server runs it."""

import asyncio
import logging
import re
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import httpx
import pytest
from mcp.server.mcpserver import MCPServer
from starlette.requests import Request

from flows import elicit
from flows.crypto.tokens import Ring
from flows.elicitation.shown_link import ShownLink
from flows.providers import github
from tests.support import event_env
from tests.support.issuer import issuing
from tests.support.mcp_server import Page, eventually
from tests.support.service_env import asked
from tests.support.serving import transport_to
from webapp.app import App, NotRunning, create_app, open_app
from webapp.coroutines import asking
from webapp.http.exchange import Message
from webapp.service import Service
from webapp.settings.settings import Settings

URL = "http://127.0.0.1:8765"
ADDRESSES = "(?:href|src|action|data-live|data-here)"


def application(**changes: Any) -> App:
    settings = Settings(url=URL, ring=Ring([b"k" * 32]), store="memory:", uid=0)
    return create_app(replace(settings, **changes), MCPServer("my tools"))


async def test_application_starts_responds_and_stops_with_lifespan() -> None:
    settings = Settings(url=URL, ring=Ring([b"k" * 32]), store="memory:", uid=0)
    app = create_app(settings, MCPServer("my tools"))
    reported = asyncio.Queue[Message]()
    sent = asyncio.Queue[Message]()
    async with asyncio.timeout(300):
        living = asyncio.create_task(app({"type": "lifespan"}, reported.get, sent.put))
        await reported.put({"type": "lifespan.startup"})
        assert (await sent.get())["type"] == "lifespan.startup.complete"
        async with httpx.AsyncClient(transport=transport_to(app), base_url=URL) as client:
            assert (await client.get("/health")).json() == {"status": "ok"}
        await reported.put({"type": "lifespan.shutdown"})
        assert (await sent.get())["type"] == "lifespan.shutdown.complete"
        await living


async def test_events_are_sent_to_configured_addresses() -> None:
    settings = Settings(
        url=URL, ring=Ring([b"k" * 32]), store="memory:", uid=0, events=(event_env.CRM,)
    )
    receiver, services = event_env.Receiver(), list[Service]()
    async with event_env.outbound_to(receiver) as outbound:
        server = MCPServer("my tools")
        async with open_app(settings, server, outbound=outbound, built=services.append):
            await asked(services[0])
            await eventually(lambda: receiver.types == ["question.asked"])


async def test_every_response_has_hsts_header_if_configured() -> None:
    # finding: S26
    url, name = "https://elicit.example", "strict-transport-security"
    settings = Settings(url=url, ring=Ring([b"k" * 32]), store="memory:", uid=0)
    for hsts, expected in ((None, None), (timedelta(days=1), "max-age=86400")):
        async with (
            open_app(replace(settings, hsts=hsts), MCPServer("my tools")) as app,
            httpx.AsyncClient(transport=transport_to(app), base_url=url) as client,
        ):
            for path in ("/", "/health", "/e/none", "/static/elicit.css", "/mcp", "//crooked"):
                assert (await client.get(path)).headers.get(name) == expected, path
            elsewhere = await client.get("/", headers={"host": "evil.example"})
            assert elsewhere.headers.get(name) == expected


async def test_request_before_lifespan_explains_how_to_start_application(
    caplog: pytest.LogCaptureFixture,
) -> None:
    app = application()
    async with httpx.AsyncClient(transport=transport_to(app), base_url=URL) as client:
        for _ in range(2):
            answer = await client.get("/")
            assert answer.status_code == 500
            assert "Starlette(lifespan=app.lifespan)" in answer.text
            assert "without --lifespan off" in answer.text
        (record,) = (each for each in caplog.records if each.name == "webapp.app")
        assert record.getMessage().startswith("app.not_running: ")
        assert "async with app.lifespan()" in record.getMessage()
        async with app.lifespan():
            assert (await client.get("/health")).status_code == 200
        late = await client.get("/")
        assert (late.status_code, "its lifespan has ended" in late.text) == (500, True)
        async with app.lifespan():  # as a test client does repeatedly
            assert (await client.get("/health")).status_code == 200


async def test_second_lifespan_of_running_application_is_refused() -> None:
    app = application()
    async with app.lifespan():
        with pytest.raises(NotRunning, match="remove one of the"):
            async with app.lifespan():
                pass
        async with httpx.AsyncClient(transport=transport_to(app), base_url=URL) as client:
            assert (await client.get("/health")).status_code == 200


async def test_request_from_another_event_loop_is_refused_with_reason() -> None:
    app = application()

    async def elsewhere() -> httpx.Response:
        async with httpx.AsyncClient(transport=transport_to(app), base_url=URL) as client:
            return await client.get("/health")

    async with app.lifespan():
        answer = await asyncio.to_thread(lambda: asyncio.run(elsewhere()))
    assert answer.status_code == 500
    assert "in another event loop" in answer.text


async def test_two_running_applications_of_same_server_are_refused() -> None:
    settings = Settings(url=URL, ring=Ring([b"k" * 32]), store="memory:", uid=0)
    server = MCPServer("my tools")
    first, second = (create_app(settings, server) for _ in range(2))
    async with first.lifespan():
        with pytest.raises(NotRunning, match="Another application"):
            async with second.lifespan():
                pass


async def test_exception_of_host_passes_through_lifespan_unchanged() -> None:
    with pytest.raises(LookupError, match="of the host"):
        async with application().lifespan():
            raise LookupError("of the host")


async def test_two_applications_under_different_paths_are_separate() -> None:
    apps = [application(url=f"{URL}/{name}") for name in ("a", "b")]
    async with apps[0].lifespan(), apps[1].lifespan():
        for app, mine, other in zip(apps, "ab", "ba", strict=True):
            async with httpx.AsyncClient(transport=transport_to(app), base_url=URL) as client:
                assert (await client.get(f"/{mine}/health")).status_code == 200
                assert (await client.get(f"/{other}/health")).status_code == 404


async def test_addresses_on_pages_include_root_path() -> None:
    app = application(url=f"{URL}/tools")
    async with (
        app.lifespan(),
        httpx.AsyncClient(transport=transport_to(app), base_url=URL) as client,
    ):
        for path in ("", "/", "/connections", "/payments", "/e/none", "/nothing"):
            page = await client.get(f"/tools{path}", headers={"accept": "text/html"})
            addresses = re.findall(f'{ADDRESSES}="(/[^"]*)"', page.text)
            assert addresses, path
            for address in addresses:
                assert address.startswith("/tools/"), (path, address)
                assert (await client.get(address)).status_code in (200, 403), address


def test_every_template_address_uses_root_path_filter() -> None:
    for template in (Path("templates"), Path("webapp/demo/templates")):
        for page in template.glob("*.html"):
            for address in re.findall(f'{ADDRESSES}="([^"]+)"', page.read_text()):
                is_away = address in ("{{ url }}", "{{ view.action }}") or address.startswith(
                    ("#", "mailto:")
                )
                assert is_away or address.endswith("|at }}"), (page, address)


async def test_unstripped_proxy_path_is_logged_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    app = application()
    async with (
        app.lifespan(),
        httpx.AsyncClient(transport=transport_to(app), base_url=URL) as client,
    ):
        for path in ("/elsewhere", "/tools/e/token", "/tools/mcp"):
            assert (await client.get(path)).status_code == 404
        ready = await client.get("/tools/ready")
        assert (ready.status_code, ready.json()["code"]) == (503, "path-unknown")
        assert f"Set ELICIT_URL to {URL}/tools" in ready.json()["detail"]
    (message,) = (r.getMessage() for r in caplog.records if "path.unknown" in r.getMessage())
    assert f"Set ELICIT_URL to {URL}/tools, or make" in message


@pytest.mark.parametrize("root_path", ["", "/tools"])
async def test_trailing_slash_redirects_client_to_endpoint(
    root_path: str, caplog: pytest.LogCaptureFixture
) -> None:
    app = application(url=f"{URL}{root_path}")
    async with (
        app.lifespan(),
        httpx.AsyncClient(transport=transport_to(app), base_url=URL) as client,
    ):
        answer = await client.post(f"{root_path}/mcp/", json={})
        assert (answer.status_code, answer.headers["location"]) == (307, f"{root_path}/mcp")
        assert (await client.get(f"{root_path}/blog/")).status_code == 404
    assert not [record for record in caplog.records if "path.unknown" in record.getMessage()]


async def test_stripped_proxy_path_is_reported_by_ready_check(
    caplog: pytest.LogCaptureFixture,
) -> None:
    app = application(url=f"{URL}/tools")
    async with (
        app.lifespan(),
        httpx.AsyncClient(transport=transport_to(app), base_url=URL) as client,
    ):
        caplog.set_level(logging.WARNING)
        ready = await client.get("/ready")
        assert (ready.status_code, ready.json()["code"]) == (503, "path-elsewhere")
        assert f"{URL}/tools" in ready.json()["detail"]
        assert (await client.get("/e/token")).status_code == 404
    (message,) = (r.getMessage() for r in caplog.records if r.name == "webapp.http.guard")
    assert "ELICIT_ROOT_PATH=/tools" in message


async def test_who_receives_request_with_complete_url_under_root_path() -> None:
    seen = list[str]()

    def who(request: Request) -> None:
        seen.append(str(request.url))

    settings = Settings(url=f"{URL}/tools", ring=Ring([b"k" * 32]), store="memory:", uid=0)
    app = create_app(settings, name="Corner shop", who=who)
    async with (
        app.lifespan(),
        httpx.AsyncClient(transport=transport_to(app), base_url=URL) as client,
    ):
        await client.get("/tools/connections?a=b")
    assert set(seen) == {f"{URL}/tools/connections?a=b"}


async def test_sandbox_setting_simulates_unconfigured_providers() -> None:
    settings = Settings(url=URL, ring=Ring([b"k" * 32]), store="memory:", uid=0, has_sandbox=True)

    def show(link: ShownLink) -> None:
        raise LookupError(link.kind)

    app = create_app(settings, name="Corner shop", who=lambda _: None)
    async with app.lifespan():
        with pytest.raises(LookupError, match="oauth"):
            async with asking("ann", show=show, app=app):
                await elicit.oauth(github)


async def test_resource_metadata_is_found_under_root_path() -> None:
    async with issuing() as issuer:
        app = application(url=f"{URL}/tools", identity=issuer.who())
        async with (
            app.lifespan(),
            httpx.AsyncClient(transport=transport_to(app), base_url=URL) as client,
        ):
            refused = await client.post("/tools/mcp", json={})
            named = f"{URL}/tools/.well-known/oauth-protected-resource/mcp"
            assert refused.status_code == 401
            assert f'resource_metadata="{named}"' in refused.headers["www-authenticate"]
            for address in (named, f"{URL}/.well-known/oauth-protected-resource/tools/mcp"):
                assert (await client.get(address)).json()["resource"] == f"{URL}/tools/mcp"


async def test_sign_in_returns_under_root_path() -> None:
    async with issuing() as issuer:
        app = application(url=f"{URL}/tools", identity=issuer.who())
        async with (
            app.lifespan(),
            httpx.AsyncClient(transport=transport_to(app), base_url=URL) as client,
        ):
            page = Page.of(await client.get("/tools/connections"))
            fields = {"csrf": page.csrf, "back": "/connections"}
            gone = await client.post(page.leading("/signin"), data=fields)
            assert page.leading("/signin") == f"{URL}/tools/signin"
            assert gone.status_code == 303
            query = parse_qs(urlsplit(gone.headers["location"]).query)
            assert query["redirect_uri"] == [f"{URL}/tools/signin/callback"]
            names = {cookie.name for cookie in client.cookies.jar}
            assert all(re.fullmatch(r"elicit_(\w+_)?8765-\w{8}(_\w+)?", name) for name in names)
