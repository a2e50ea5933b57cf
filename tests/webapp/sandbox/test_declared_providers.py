"""Declared providers that the sandbox simulates: API keys, service accounts and exchanges."""

import json
from base64 import urlsafe_b64encode
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx
import pytest

from flows import elicit
from flows.errors import Failed
from flows.oauth.provider import Client, PersonProbe, Provider, ProviderKey, TokenExchange
from flows.oauth.token_exchange import SubjectToken, exchanged
from tests.support.clock import Clock
from tests.support.mcp_server import new_server
from tests.support.sandbox import URL, Person
from webapp.http.client import Outbound
from webapp.sandbox import Sandbox
from webapp.settings.sandboxed import simulated
from webapp.testing.in_process import elicit_person

TABLES = """
[providers.acme]
label = "Acme"
api = "https://api.acme.example/v1"
key = { page = "https://acme.example/keys", header = "X-Acme-Key" }
person = { url = "https://api.acme.example/v1/me", id = "id", label = "email" }

[providers.basic]
label = "Basic"
api = "https://api.basic.example"
key = { page = "https://basic.example/keys", user = "User name", label = "Password" }
person = { url = "https://api.basic.example/me", id = "id", label = "email" }

[providers.robot]
label = "Robot"
token = "https://robot.example/token"
api = "https://api.robot.example"
service_account = true
"""
ISSUER = "https://people.example"
CRM = Provider(
    name="crm",
    label="CRM",
    authorize="https://crm.example/authorize",
    token="https://crm.example/token",
    api="https://api.crm.example",
    person=PersonProbe(url="https://api.crm.example/me", id="id", label="email"),
    exchange=TokenExchange(issuer=ISSUER, audience="https://crm.example"),
)


@pytest.fixture
def settings(tmp_path: Path) -> dict[str, str]:
    path = tmp_path / "elicit.toml"
    path.write_text(TABLES)
    return {"ELICIT_CONFIG": str(path)}


def tools() -> Any:
    server = new_server("mcp")

    @server.tool()
    async def items(provider: str) -> str:
        account = await elicit.api_key(provider)
        async with account.client() as api:
            return f"{account.label}: {(await api.get('/items')).status_code}"

    @server.tool()
    async def report() -> str:
        account = await elicit.oauth("robot", scopes=["read"])
        async with account.client() as api:
            return f"{account.scopes}: {(await api.get('/items')).status_code}"

    return server


class Outside(httpx.AsyncBaseTransport):
    """A transport for requests to a provider's API. Its `/me` accepts only the key `own-key`."""

    def __init__(self) -> None:
        self.seen: list[str] = []

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        self.seen.append(str(request.url))
        is_test = request.url.path.endswith("/me")
        if is_test and request.headers.get("x-acme-key") != "own-key":
            return httpx.Response(401)
        return httpx.Response(200, json={"id": 1, "login": "ada"})


@pytest.mark.parametrize("provider", ["acme", "basic"])
async def test_tool_runs_with_a_key_of_the_sandbox(settings: dict[str, str], provider: str) -> None:
    # finding: XO9
    outside = Outside()
    async with elicit_person(tools(), settings=settings, outside=outside) as person:
        user = {"user": "ada"} if provider == "basic" else {}
        person.types_key("sandbox-key-octocat", **user)
        assert (await person.call("items", provider=provider)).text == "octocat: 200"
        (account,) = await person.accounts()
        assert account.person_id == "583231"
    assert {urlsplit(url).path.rpartition("/")[2] for url in outside.seen} == {"items"}
    assert urlsplit(outside.seen[0]).hostname == f"api.{provider}.example"


async def test_key_that_sandbox_does_not_know_is_tested_by_outside_transport(
    settings: dict[str, str],
) -> None:
    outside = Outside()
    async with elicit_person(tools(), settings=settings, outside=outside) as person:
        person.types_key("own-key")
        assert (await person.call("items", provider="acme")).text == "ada: 200"
    assert outside.seen[0] == "https://api.acme.example/v1/me"


async def test_key_that_sandbox_does_not_know_is_refused_without_outside(
    settings: dict[str, str],
) -> None:
    async with elicit_person(tools(), settings=settings) as person:
        person.types_key("sk-live-real")
        with pytest.raises(AssertionError, match="did not accept the key"):
            await person.call("items", provider="acme")


async def test_tool_runs_with_a_service_account_and_asks_nobody(settings: dict[str, str]) -> None:
    async with elicit_person(tools(), settings=settings, outside=Outside()) as person:
        assert (await person.call("report")).text == "('read',): 200"
        assert person.asked == ()


async def test_page_shows_the_keys(person: Person) -> None:
    page = await person.http.get("/keys")
    assert "sandbox-key-octocat" in page.text
    assert "Never enter a real key" in page.text


async def resolve(host: str, port: int) -> Sequence[str]:
    return ["127.0.0.1"]


def token_of(**claims: Any) -> str:
    parts = [json.dumps(one).encode() for one in ({"alg": "RS256"}, claims)]
    return ".".join(urlsafe_b64encode(one).rstrip(b"=").decode() for one in (*parts, b"signed"))


@pytest.mark.parametrize("kind", ["token_exchange", "jwt_bearer", "id_jag"])
@pytest.mark.parametrize("claim", [("sub",), ("oid", "tid")])
async def test_exchanged_token_must_belong_to_person_of_subject_token(
    person: Person, sandbox: Sandbox, clock: Clock, kind: Any, claim: tuple[str, ...]
) -> None:
    assert CRM.exchange is not None
    declared = replace(CRM, exchange=replace(CRM.exchange, kind=kind))
    provider = simulated(declared, URL)
    assert provider is not None
    claims = {"iss": ISSUER, "sub": "ann", "oid": "1", "tid": "2"}
    named = json.dumps({"oid": "1", "tid": "2"}, separators=(",", ":"))
    subject = SubjectToken(
        text=token_of(**claims),
        issuer=ISSUER,
        subject="ann" if claim == ("sub",) else named,
        claim=claim,
    )
    client = Client(
        provider=provider, client_id=sandbox.client_id, client_secret=sandbox.client_secret
    )
    outbound = Outbound(person.http, allow_loopback=True, resolve=resolve)
    talk = exchanged(client, subject, scopes=(), issuer_client=None, now=clock())
    grant = await outbound.run(talk)
    assert grant.person.id == "ann"
    other = replace(subject, text=token_of(**{**claims, "sub": "eve", "oid": "3"}))
    with pytest.raises(Failed, match="another person"):
        await outbound.run(exchanged(client, other, scopes=(), issuer_client=None, now=clock()))


@pytest.mark.parametrize(
    "provider",
    [
        replace(CRM, exchange=None),
        Provider(
            name="shop",
            label="Shop",
            tenants=("*.shop.example",),
            api="https://{tenant}/api",
            key=ProviderKey(page="https://{tenant}/keys"),
            person=PersonProbe(url="https://{tenant}/me", id="id", label="id"),
        ),
    ],
)
def test_declared_oauth_provider_or_tenant_provider_is_not_simulated(provider: Provider) -> None:
    assert simulated(provider, URL) is None


def test_simulated_provider_has_only_addresses_of_the_sandbox() -> None:
    robot = Provider(
        name="robot",
        label="Robot",
        token="https://robot.example/token",
        resource="https://robot.example",
        api="https://api.robot.example",
        service_account=True,
        token_extra=(("audience", "https://robot.example"),),
    )
    for provider in (CRM, robot):
        found = simulated(provider, URL)
        assert found is not None
        addresses = repr(replace(found, exchange=None))
        assert "example" not in addresses
