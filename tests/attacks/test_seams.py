"""Seams: places where two parsers of one request, or two kinds of caller, could disagree."""

from types import SimpleNamespace
from typing import Any, cast

import httpx
import pytest

from flows import elicit
from tests.support.issuer import issuing
from tests.support.mcp_server import MODERN, RING, UID, caller_of, new_server, soon, text_of
from tests.support.serving import transport_to
from webapp.app import open_app
from webapp.http.rate_limit import TooOften
from webapp.routes.openers import pace
from webapp.settings.identity import IdentitySettings
from webapp.settings.settings import Settings

URL = "http://127.0.0.1:8765"
FROM_AFAR = {"x-forwarded-for": "203.0.113.7"}


def shop(library: str = "mcp") -> Any:
    server = new_server(library)

    @server.tool()
    async def visit() -> str:
        content = await elicit.url("Look", "https://shop.example/terms")
        return f"done: {content.get('card')}"

    return server


async def test_ambiguous_path_reaches_no_tool(library):
    async with issuing() as issuer:
        settings = Settings(url=URL, ring=RING, store="memory:", uid=UID, identity=issuer.who())
        async with open_app(settings, shop(library)) as app:
            transport = transport_to(app, root_path="/tools")
            async with httpx.AsyncClient(transport=transport, base_url=URL) as client:
                for path, status in {"/mcp": 404, "/tools/mcp": 400, "/": 404}.items():
                    refused = await client.post(path, json={"jsonrpc": "2.0", "id": 1})
                    assert refused.status_code == status, path


async def test_state_of_known_person_is_worthless_to_anonymous_caller(library):
    who = IdentitySettings(asks_anonymous=True)
    async with (
        caller_of(shop(library), MODERN, who=who) as (env, hers),
        env.caller(MODERN, headers=FROM_AFAR) as afar,
    ):
        first = await hers.asked("visit")
        found = await afar.asked("visit", after=first)
        (before, after) = await env.elicitations()
        assert before.owner != after.owner
        await env.service.completing.complete(before.id, {"card": "hers"})
        result = await hers.answered("visit", after=first)
        assert text_of(result) == "done: hers"
        again = await soon(afar.send_call("visit", after=found))
        assert "hers" not in str(again)


async def test_rate_limit_of_another_address_does_not_limit_the_asker():
    async with caller_of(shop(), MODERN) as (env, caller):
        caller.begin("visit")
        await caller.link()
        (elicitation,) = await env.elicitations()

        def asks(address: str, *, is_open: bool, times: int = 1) -> None:
            request = cast("Any", SimpleNamespace(scope={"client": (address, 1)}))
            for _ in range(times):
                pace(elicitation, request, env.service, is_open=is_open)

        with pytest.raises(TooOften):
            asks("203.0.113.66", is_open=False, times=200)
        # another address is not limited: it may be the asker's
        asks("203.0.113.7", is_open=False)
        asks("203.0.113.66", is_open=True)
