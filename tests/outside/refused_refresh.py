"""A vendor refuses a refresh in its own words: calls ask the person, and no refresh is repeated."""

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from itertools import count
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from urllib.parse import parse_qs, urlencode, urlsplit

import httpx
from mcp import Client
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from tests.support.cli import run, serving
from tests.support.mcp_server import Person, link_in, new_browser, text_of
from tests.support.postgres_server import fresh_database
from tests.support.refusals import ENDED, OPERATORS
from tests.support.serving import serving as serving_app

FINDING = "XO1"
CALLS = 5
_BY_TIME = "a plain 403"  # a refusal only if it is repeated two minutes later
_numbers = count()  # a different argument for each call: an equal call would be resumed
TOOLS = """
from flows import elicit
from mcp.server.mcpserver import MCPServer

mcp = MCPServer("tools")


@mcp.tool()
async def look(number: int) -> str:
    return (await elicit.oauth("hub")).label
"""


class Hub:
    """A provider whose access tokens live for a second, and that can refuse to refresh them."""

    def __init__(self) -> None:
        self.refusal: httpx.Response | None = None
        self.refused = 0
        self._pairs = count()
        self.app = Starlette(
            routes=[Route("/token", self.token, methods=["POST"]), Route("/me", self.me)]
        )

    async def token(self, request: Request) -> Response:
        given = parse_qs((await request.body()).decode())
        if given["grant_type"] == ["refresh_token"] and self.refusal is not None:
            self.refused += 1
            return Response(
                self.refusal.content,
                status_code=self.refusal.status_code,
                headers=dict(self.refusal.headers),
            )
        key = f"key-{next(self._pairs)}"
        pair = {"access_token": key, "refresh_token": f"more-{key}", "token_type": "bearer"}
        return JSONResponse({**pair, "expires_in": 1})

    async def me(self, request: Request) -> Response:
        if self.refusal is not None:
            return Response(status_code=401)
        return JSONResponse({"id": "1", "login": "ada"})


async def reproduce(times: int) -> AsyncIterator[tuple[str, bool]]:
    for _ in range(times):
        for name, store in (("SQLite", _sqlite()), ("PostgreSQL", fresh_database())):
            async with store as address:
                async for case, is_right in _tried(address):
                    yield f"{case} ({name})", is_right


@asynccontextmanager
async def _sqlite() -> AsyncIterator[str | None]:
    yield None


async def _tried(store: str | None) -> AsyncIterator[tuple[str, bool]]:
    hub = Hub()
    with TemporaryDirectory() as folder:
        home = Path(folder)
        async with serving_app(hub.app) as place:
            extra = _set_up(home, place, store)
            async with (
                serving("tools:mcp", home=home, extra=extra) as here,
                Client(f"{here.url}/mcp") as client,
                new_browser() as browser,
            ):
                person = Person(browser)
                for vendor in sorted(ENDED.keys() - {_BY_TIME}):
                    yield vendor, await _is_asked_again(hub, client, person, ENDED[vendor])
                wrong = OPERATORS["a wrong secret"]
                yield "the operator's", await _is_the_operators(hub, client, person, wrong)
                result = await run("doctor", home=home, extra=extra)
                yield "doctor names it", "ELICIT_HUB_CLIENT_SECRET" in result.out


def _set_up(home: Path, place: str, store: str | None) -> Mapping[str, str]:
    (home / "tools.py").write_text(TOOLS, "utf-8")
    config = home / "elicit.toml"
    person = f'{{ url = "{place}/me", id = "id", label = "login" }}'
    config.write_text(
        f'[providers.hub]\nlabel = "Hub"\nauthorize = "{place}/authorize"\n'
        f'token = "{place}/token"\napi = "{place}"\nperson = {person}\n',
        "utf-8",
    )
    return {
        "ELICIT_CONFIG": str(config),
        "ELICIT_HUB_CLIENT_ID": "our-id",
        "ELICIT_HUB_CLIENT_SECRET": "a-secret-that-is-long",
        **({} if store is None else {"ELICIT_STORE": store}),
    }


async def _is_asked_again(hub: Hub, client: Client, person: Person, reply: httpx.Response) -> bool:
    if not await _connect(hub, client, person):
        return False
    texts = await _texts_when_refused(hub, client, reply)
    return all("/e/" in each for each in texts) and hub.refused == 1


async def _is_the_operators(
    hub: Hub, client: Client, person: Person, reply: httpx.Response
) -> bool:
    if not await _connect(hub, client, person):
        return False
    texts = await _texts_when_refused(hub, client, reply)
    are_reported = all("operator" in each and "moment" not in each for each in texts)
    return are_reported and not any("/e/" in each for each in texts) and hub.refused == 1


async def _connect(hub: Hub, client: Client, person: Person) -> bool:
    """Connect the account. Return False if the call does not ask for the account."""
    hub.refusal, hub.refused = None, 0
    number = next(_numbers)
    result: Any = await client.call_tool("look", {"number": number})
    if "/e/" not in text_of(result):
        return False
    away = urlsplit(await person.go_on(link_in(result)))
    asked = {key: value[0] for key, value in parse_qs(away.query).items()}
    back = urlencode({"code": "a-code", "state": asked["state"]})
    await person.visit(f"{asked['redirect_uri']}?{back}")
    return text_of(await client.call_tool("look", {"number": number})) == "ada"


async def _texts_when_refused(hub: Hub, client: Client, reply: httpx.Response) -> list[str]:
    """Return the results of CALLS calls, starting with the first whose refresh was refused."""
    hub.refusal = reply
    text = await _look(client)
    while not hub.refused or text == "ada":  # the access token is still valid
        await asyncio.sleep(0.01)
        text = await _look(client)
    return [text, *[await _look(client) for _ in range(CALLS - 1)]]


async def _look(client: Client) -> str:
    return text_of(await client.call_tool("look", {"number": next(_numbers)}))
