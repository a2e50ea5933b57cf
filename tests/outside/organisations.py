"""Accounts of organisations: a team, a service account, an exchange, an import, and a sign-out."""

import json
import re
import tempfile
from collections.abc import AsyncIterator
from pathlib import Path
from urllib.parse import parse_qs, urlencode, urlsplit

import httpx
from joserfc.util import urlsafe_b64decode
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from tests.outside.asked_programs import AskedPrograms, programs_on
from tests.support.issuer import (
    CLIENT_ID,
    CLIENT_SECRET,
    Issuing,
    is_made_up,
    issuing,
    sign_in,
)
from tests.support.mcp_server import LEGACY, CutOffCaller, Person, new_browser
from tests.support.serving import serving

FINDING = "XO9"
TOOLS = """
from flows import elicit
from mcp.server.mcpserver import MCPServer

server = MCPServer("corner shop")


@server.tool()
async def look(provider: str) -> str:
    account = await elicit.oauth(provider)
    async with account.client() as api:
        return f"{account.label} by key {(await api.get('/me')).json()['number']}"
"""
_PROVIDERS = ("hub", "stock", "crm", "shelf")
_TABLES = """
[providers.hub]
{both}
[providers.shelf]
{both}
[providers.stock]
token = "{place}/token"
api = "{place}"
service_account = true
[providers.crm]
{both}
exchange = {{ issuer = "{issuer}", matches = "id" }}
[teams.engineering]
providers = ["hub"]
claims = {{ groups = ["engineering"] }}
"""
MEMBER = {"groups": ["engineering"]}


class Hub:
    """A provider that issues a new key for each grant. `people` are the owners of its keys."""

    def __init__(self) -> None:
        self.people = {"another-product": "ann"}
        self.is_mistaken = False  # True: an exchange returns somebody else's key
        self.app = Starlette(
            routes=[Route("/token", self.token, methods=["POST"]), Route("/me", self.me)]
        )

    async def token(self, request: Request) -> Response:
        sent = {
            name: values[0] for name, values in parse_qs((await request.body()).decode()).items()
        }
        is_trial = sent.get("code", "a-code") != "a-code" or is_made_up(
            sent.get("subject_token", "")
        )
        if is_trial:  # at startup, the server tests its client secret
            return JSONResponse({"error": "invalid_grant"}, status_code=400)
        who = "stock"
        if "code" in sent:
            who = "octocat"
        elif "subject_token" in sent:
            claims = json.loads(urlsafe_b64decode(sent["subject_token"].split(".")[1].encode()))
            who = "eve" if self.is_mistaken else claims["sub"]
        key = f"key-{len(self.people)}"
        self.people[key] = who
        kind = "urn:ietf:params:oauth:token-type:access_token"
        reply = {"access_token": key, "token_type": "bearer", "issued_token_type": kind}
        return JSONResponse({**reply, "expires_in": 600})

    async def me(self, request: Request) -> Response:
        key = request.headers.get("authorization", "").removeprefix("Bearer ")
        if key not in self.people:
            return Response(status_code=401)
        return JSONResponse(
            {"id": self.people[key], "login": self.people[key], "number": [*self.people].index(key)}
        )


async def reproduce(times: int) -> AsyncIterator[tuple[str, bool]]:
    for _ in range(times):
        hub = Hub()
        with tempfile.TemporaryDirectory() as folder:
            async with (
                serving(hub.app) as place,
                issuing() as issuer,
                programs_on(
                    "sqlite", Path(folder), tools=TOOLS, **_set_up(Path(folder), place, issuer)
                ) as served,
            ):
                async for case in _tried(served, hub, issuer):
                    yield case


def _set_up(home: Path, place: str, issuer: Issuing) -> dict[str, str]:
    person = f'person = {{ url = "{place}/me", id = "id", label = "login" }}'
    both = f'authorize = "{place}/authorize"\ntoken = "{place}/token"\napi = "{place}"\n{person}'
    config = home / "elicit.toml"
    config.write_text(_TABLES.format(both=both, place=place, issuer=issuer.url), "utf-8")
    names = [name.upper() for name in _PROVIDERS]
    return {
        "ELICIT_CONFIG": str(config),
        "ELICIT_ISSUER": issuer.url,
        "ELICIT_ISSUER_CLIENT_ID": CLIENT_ID,
        "ELICIT_ISSUER_CLIENT_SECRET": CLIENT_SECRET,
        **{f"ELICIT_{name}_CLIENT_ID": "our-id" for name in names},
        **{f"ELICIT_{name}_CLIENT_SECRET": "a-secret-that-is-long" for name in names},
    }


async def _tried(
    served: AskedPrograms, hub: Hub, issuer: Issuing
) -> AsyncIterator[tuple[str, bool]]:
    async def look(subject: str, provider: str, **claims: object) -> str:
        async with new_browser() as browser:
            caller = CutOffCaller(browser, f"{served.url}/mcp", LEGACY, elicits=False)
            caller.headers |= issuer.bearer(subject, audience=f"{served.url}/mcp", **claims)
            await caller.connect()
            return (await caller.call("look", provider=provider)).text

    async with new_browser() as browser:
        ann = Person(browser)
        asked = await look("ann", "hub", **MEMBER)
        yield "a member of the team is asked once", "/e/" in asked
        await _connect(ann, served, asked)
        reported = [await look(name, "hub", **MEMBER) for name in ("ann", "bob")]
        yield "both members use one account of the team", _is_one(reported, "octocat by key ")
        yield "somebody else is asked", "/e/" in await look("carl", "hub")

        reported = [await look(name, "stock") for name in ("ann", "bob")]
        yield "one service account for all callers", _is_one(reported, "Stock by key ")

        yield "an exchange asks nobody", "dan by key " in await look("dan", "crm")
        hub.is_mistaken = True
        yield "a key of somebody else is not used", "/e/" in await look("fay", "crm")

        token = issuer.logout_token(sub="ann")
        for status in (200, 400):
            reply = await served.http.post("/signin/logout", data={"logout_token": token})
            yield f"a logout token: {status}", reply.status_code == status
        page = await ann.visit(f"{served.url}/connections")
        yield "the browser is signed out", "/signin" in "".join(page.actions)

    importer, asker = await served.key("shop", "import"), await served.key("shop")
    for key, is_right in (("another-product", True), ("made-up", False)):
        body = {"provider": "shelf", "access_token": key}
        reply = await _import(served.http, importer, body)
        yield f"an import of {key}", (reply.json().get("result") == "imported") is is_right
    reply = await _import(served.http, asker, {"provider": "shelf", "access_token": "x"})
    yield "an import needs its own scope", reply.status_code == 403


def _is_one(texts: list[str], words: str) -> bool:
    """Return True if all results have these words and the same number after them."""
    found = [re.findall(re.escape(words) + r"\d+", one) for one in texts]
    return bool(found[0]) and all(one == found[0] for one in found)


async def _import(
    http: httpx.AsyncClient, key: dict[str, str], body: dict[str, str]
) -> httpx.Response:
    return await http.post("/api/accounts?user=ann", json=body, headers=key)


async def _connect(person: Person, served: AskedPrograms, text: str) -> None:
    """Open the link in this text, sign in as ann, and connect the account."""
    found = re.search(re.escape(f"{served.url}/e/") + r"[\w.~-]+", text)
    assert found, text
    link = found[0]
    await sign_in(person, await person.visit(link), "ann")
    away = urlsplit(await person.go_on(link))
    asked = {name: values[0] for name, values in parse_qs(away.query).items()}
    back = urlencode({"code": "a-code", "state": asked["state"]})
    await person.visit(f"{asked['redirect_uri']}?{back}")
