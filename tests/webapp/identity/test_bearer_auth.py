"""The MCP endpoint as a protected resource: its responses, and what tools learn about callers."""

import asyncio
import base64
import gc
import json
import logging
import weakref
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace
from typing import Any

import httpx2
import pytest
from mcp import Client as McpClient
from mcp.client.streamable_http import streamable_http_client
from mcp.server.auth.middleware.auth_context import get_access_token

from flows.errors import Failed
from flows.oauth.access_token import BadBearer, Resource
from flows.oauth.id_token import ALGORITHMS
from flows.providers import openid
from tests.support.access_tokens import HERE, ISSUER, NOW, RESOURCE, token
from tests.support.bearers import FakeIssuer, ProtectedEndpoint, bearer
from tests.support.clock import NOON
from tests.support.mcp_server import LEGACY, LIBRARIES, MODERN, TLS, new_server
from tests.support.serving import serving_at
from webapp.connecting import utc_now
from webapp.http.exchange import ASGIApp
from webapp.identity.access_tokens import IssuerTokens
from webapp.identity.bearer_auth import protected
from webapp.identity.introspection import (
    ASKED_AT_ONCE,
    LINE_AT_MOST,
    REFUSED_AT_ONCE,
)
from webapp.identity.issuer import Issuer
from webapp.logs.events import Events
from webapp.server import HostedServer

ALGORITHMS_LISTED = sorted(ALGORITHMS)
DOCUMENT = "https://tools.example/.well-known/oauth-protected-resource/mcp"


@pytest.fixture
def door() -> ProtectedEndpoint:
    return ProtectedEndpoint()


async def test_caller_with_valid_token_is_passed_on_and_identified(door: ProtectedEndpoint) -> None:
    answer = await door.ask(bearer())
    assert answer.passed is not None
    assert answer.passed["user"].scopes == ["tools", "more"]
    seen = answer.seen
    assert (seen.subject, seen.client_id, seen.claims) == (
        "alice",
        "an assistant",
        {"iss": ISSUER},
    )
    assert seen.resource == HERE
    assert get_access_token() is None


async def test_token_text_is_hidden_from_tools(door: ProtectedEndpoint) -> None:
    answer = await door.ask(bearer(token()))
    assert token().partition(".")[0] not in repr(answer.seen)
    assert answer.seen.token == ""


@pytest.mark.parametrize("scheme", ["Bearer", "bearer", "BEARER"])
async def test_bearer_scheme_is_case_insensitive(door: ProtectedEndpoint, scheme: str) -> None:
    assert (await door.ask(("Authorization", f"{scheme} {token()}"))).seen.subject == "alice"


@pytest.mark.parametrize("headers", [[], [("Authorization", "Basic YTpi")]])
async def test_caller_without_token_is_referred_to_resource_metadata(
    door: ProtectedEndpoint, headers: list[tuple[str, str]]
) -> None:
    answer = await door.ask(*headers)
    assert answer.status == 401
    assert answer.headers["www-authenticate"] == f'Bearer resource_metadata="{DOCUMENT}"'
    assert answer.headers["cache-control"] == "no-store"
    assert answer.problem["code"] == "token_required"


async def test_bad_token_is_refused_with_invalid_token_challenge(door: ProtectedEndpoint) -> None:
    answer = await door.ask(bearer(token(aud="elsewhere")))
    assert answer.status == 401
    assert answer.headers["www-authenticate"] == (
        f'Bearer resource_metadata="{DOCUMENT}", error="invalid_token", error_description="This '
        'access token is expired, damaged, or not issued for this server."'
    )
    assert answer.problem["code"] == "invalid_token"
    assert "audience" not in answer.body.decode() + str(answer.headers)


async def test_token_without_scopes_is_refused_with_required_scopes() -> None:
    door = ProtectedEndpoint(replace(RESOURCE, scopes=("tools", "pay")))
    answer = await door.ask(bearer())
    assert answer.status == 403
    assert 'error="insufficient_scope"' in answer.headers["www-authenticate"]
    assert answer.headers["www-authenticate"].endswith(', scope="tools pay"')
    assert (await door.ask(bearer(token(scope="pay tools")))).seen.subject == "alice"
    assert (await door.ask()).headers["www-authenticate"].endswith(', scope="tools pay"')


def of_another_algorithm() -> str:
    header = base64.urlsafe_b64encode(b'{"alg":"HS256"}').decode().rstrip("=")
    return f"{header}.{token().partition('.')[2]}"


@pytest.mark.parametrize(
    ("text", "why", "expected", "came"),
    [
        (token(aud="elsewhere"), "audience", [HERE], "'elsewhere'"),
        ("an-opaque-token", "opaque", "a JWT (RFC 9068)", "'15 characters'"),
        (
            token(iat=NOW + 120, nbf=NOW + 120),
            "time",
            "iat and nbf before now, exp after it",
            "{'iat': '+120 s', 'nbf': '+120 s', 'exp': '+300 s'}",
        ),
        (of_another_algorithm(), "algorithm", ALGORITHMS_LISTED, "'HS256'"),
        (
            token(header={"kid": "another"}),
            "unknown key",
            "a kid that the issuer publishes",
            "'another'",
        ),
        (token(iss="https://evil.example"), "issuer", ISSUER, "'https://evil.example'"),
        (token(nonce="n"), "another kind of token", "an access token", "['nonce']"),
    ],
)
async def test_refused_token_is_logged_with_reason_and_without_text(
    caplog: pytest.LogCaptureFixture, text: str, why: str, expected: Any, came: str
) -> None:
    # finding: I2
    door = ProtectedEndpoint()
    with caplog.at_level(logging.WARNING, logger="webapp.identity.access_tokens"):
        answer = await door.ask(bearer(text))
    assert answer.status == 401
    (line,) = caplog.records
    logged = vars(line)
    assert (line.getMessage(), logged["why"], logged["came"]) == ("bearer.refused", why, came)
    assert logged["expected"] == expected
    written = Events().format(line)
    assert text not in written
    assert text.rpartition(".")[2] not in written or why == "opaque"


async def test_call_without_token_is_not_logged_as_refused(
    door: ProtectedEndpoint, caplog: pytest.LogCaptureFixture
) -> None:
    # finding: I2
    with caplog.at_level(logging.WARNING, logger="webapp.identity.access_tokens"):
        assert (await door.ask()).status == 401
    assert not caplog.records


async def test_scopes_requested_from_clients_are_not_required() -> None:
    # finding: I3
    door = ProtectedEndpoint(replace(RESOURCE, asked=("openid",)))
    assert (await door.ask()).headers["www-authenticate"].endswith(', scope="openid"')
    document = await door.ask(path="/.well-known/oauth-protected-resource/mcp", method="GET")
    assert json.loads(document.body)["scopes_supported"] == ["openid"]
    assert (await door.ask(bearer())).seen.subject == "alice"
    both = ProtectedEndpoint(replace(RESOURCE, asked=("openid", "tools"), scopes=("tools",)))
    assert (await both.ask()).headers["www-authenticate"].endswith(', scope="openid tools"')


async def test_caller_gets_503_with_retry_after_while_issuer_is_down(
    door: ProtectedEndpoint,
) -> None:
    door.there.is_down = True
    answer = await door.ask(bearer())
    assert answer.status == 503
    assert answer.headers["retry-after"] == "30"
    assert "www-authenticate" not in answer.headers
    assert answer.problem["code"] == "issuer_unavailable"
    door.there.is_down = False
    door.clock.tick(seconds=30)
    assert (await door.ask(bearer())).seen.subject == "alice"


@pytest.mark.parametrize("path", ["/mcp", "/mcp/", "/mcp/anything"])
async def test_whole_endpoint_is_protected(door: ProtectedEndpoint, path: str) -> None:
    assert (await door.ask(path=path)).status == 401
    for method in ("GET", "DELETE", "OPTIONS", "HEAD"):
        assert (await door.ask(path=path, method=method)).status == 401


@pytest.mark.parametrize("path", ["/", "/e/token", "/mcpx", "/webhooks/stripe", "/health"])
async def test_other_paths_are_not_protected(door: ProtectedEndpoint, path: str) -> None:
    answer = await door.ask(path=path)
    assert answer.passed is not None
    assert answer.seen is None
    assert "user" not in answer.passed


async def test_websocket_without_token_is_refused(door: ProtectedEndpoint) -> None:
    assert (await door.ask(type="websocket")).status == 1008


async def test_lifespan_is_passed_through(door: ProtectedEndpoint) -> None:
    assert (await door.ask(type="lifespan")).passed is not None


@pytest.mark.parametrize("path", ["", "/mcp"])
async def test_resource_metadata_names_issuer_and_scopes(path: str) -> None:
    door = ProtectedEndpoint(replace(RESOURCE, scopes=("tools",)))
    place = f"/.well-known/oauth-protected-resource{path}"
    answer = await door.ask(path=place, method="GET")
    assert (answer.status, answer.headers["content-type"]) == (200, "application/json")
    assert json.loads(answer.body) == {
        "resource": HERE,
        "authorization_servers": [ISSUER],
        "bearer_methods_supported": ["header"],
        "resource_name": "my tools",
        "scopes_supported": ["tools"],
    }
    head = await door.ask(path=place, method="HEAD")
    assert head.body == b""
    assert head.headers == answer.headers
    posted = await door.ask(path=place)
    assert (posted.status, posted.headers["allow"]) == (405, "GET, HEAD")


async def test_other_well_known_documents_are_passed_on(door: ProtectedEndpoint) -> None:
    for path in ("/.well-known/oauth-protected-resource/other", "/.well-known/security.txt"):
        assert (await door.ask(path=path, method="GET")).passed is not None


@pytest.mark.parametrize(
    "resource",
    [
        replace(RESOURCE, issuer="https://other.example"),
        replace(RESOURCE, url="https://tools.example"),
        replace(RESOURCE, url="https://tools.example/"),
    ],
)
def test_resource_of_other_issuer_or_without_path_is_refused(
    door: ProtectedEndpoint, resource: Resource
) -> None:
    def endpoint() -> ASGIApp:
        tokens = IssuerTokens(door.issuer, resource=resource, clock=door.clock)
        return protected(door.app, tokens=tokens, name="x")

    with pytest.raises(ValueError, match="cannot be protected"):
        endpoint()


@asynccontextmanager
async def client_of(url: str, revision: str, **claims: Any) -> AsyncIterator[McpClient]:
    """Open a real client that sends a token with these claims."""
    text = token(aud=f"{url}/mcp", **claims)
    headers = {"Authorization": f"Bearer {text}"}
    async with AsyncExitStack() as stack:
        http = await stack.enter_async_context(
            httpx2.AsyncClient(headers=headers, timeout=300, verify=TLS)
        )
        transport = streamable_http_client(f"{url}/mcp", http_client=http)
        yield await stack.enter_async_context(McpClient(transport, mode=revision))


@pytest.mark.parametrize("library", LIBRARIES)
@pytest.mark.parametrize("revision", [LEGACY, MODERN])
async def test_tools_of_both_libraries_see_caller(library: str, revision: str) -> None:
    server = new_server(library)

    def who() -> str:
        found = get_access_token()
        assert found is not None
        return f"{(found.claims or {})['iss']} {found.subject} {found.client_id}"

    server.tool()(who)
    served = HostedServer(server, clock=utc_now)
    there = FakeIssuer()
    issuers: list[Issuer] = []

    def endpoint(url: str) -> ASGIApp:
        resource = Resource(url=f"{url}/mcp", issuer=ISSUER)
        provider = openid("signin", ISSUER)
        issuers.append(Issuer(provider, fetch=there, clock=lambda: NOON))
        tokens = IssuerTokens(issuers[0], resource=resource, clock=lambda: NOON)
        return protected(served, tokens=tokens, name="shop")

    async with serving_at(endpoint) as url:  # this runs the lifespan
        for name in ("alice", "bob"):
            async with client_of(url, revision, sub=name) as client:
                result = await client.call_tool("who", {})
                text: Any = result.content[0]
                assert text.text == f"{ISSUER} {name} an assistant"
    assert there.fetches == 1
    await issuers[0].aclose()


ACTIVE = {"active": True, "sub": "alice", "aud": HERE, "client_id": "an assistant"}


class TestOpaqueToken:
    """Token introspection (RFC 7662), which the operator can turn on."""

    async def test_opaque_token_is_introspected_once_per_minute(self) -> None:
        # finding: I2
        door = ProtectedEndpoint(asks=True)
        door.there.says = {**ACTIVE, "exp": NOW + 90}
        for _ in range(3):
            answer = await door.ask(("Authorization", "Bearer opaque"))
            assert answer.seen.subject == "alice"
        assert door.there.introspected == ["token=opaque&token_type_hint=access_token"]
        door.clock.tick(seconds=61)
        door.there.says = {"active": False}
        assert (await door.ask(("Authorization", "Bearer opaque"))).status == 401
        assert len(door.there.introspected) == 2

    @pytest.mark.parametrize(
        "changes",
        [
            {"active": False},
            {"active": "true"},
            {"aud": "https://another.example/mcp"},
            {"aud": None},
            {"iss": "https://another.example"},
            {"exp": 1},
            {"nbf": NOW + 3600},
            {"token_type": "DPoP"},
            {"cnf": {"jkt": "a key"}},
        ],
    )
    async def test_every_introspected_claim_has_to_be_valid(self, changes: dict[str, Any]) -> None:
        door = ProtectedEndpoint(asks=True)
        door.there.says = {**ACTIVE, **changes}
        for _ in range(2):
            answer = await door.ask(("Authorization", "Bearer opaque"))
            assert (answer.status, answer.passed) == (401, None)
        assert len(door.there.introspected) == 1  # a rejection is cached as long as an acceptance

    async def test_null_members_of_an_introspection_count_as_missing(self) -> None:
        door = ProtectedEndpoint(asks=True)
        names = ("iss", "exp", "iat", "nbf", "token_type", "cnf", "scope")
        door.there.says = {**ACTIVE, **dict.fromkeys(names)}
        assert (await door.ask(("Authorization", "Bearer opaque"))).seen.subject == "alice"

    async def test_caller_gets_503_while_introspection_is_unavailable(self) -> None:
        door = ProtectedEndpoint(asks=True)
        await door.issuer.metadata()
        door.there.is_down = True
        answer = await door.ask(("Authorization", "Bearer opaque"))
        assert (answer.status, answer.headers["retry-after"]) == (503, "30")
        door.there.is_down, door.there.says = False, ACTIVE
        assert (await door.ask(("Authorization", "Bearer opaque"))).seen.subject == "alice"

    async def test_repeated_token_retains_nothing_of_its_requests(self) -> None:
        # finding: S29
        class Sent:
            """A request's object whose deletion can be observed."""

        door = ProtectedEndpoint(asks=True)
        door.there.says = {**ACTIVE, "aud": "https://another.example/mcp"}
        stored = weakref.WeakSet[Sent]()
        for _ in range(5):
            door.clock.tick(seconds=10)
            stored.add(sent := Sent())
            answer = await door.ask(("Authorization", "Bearer opaque"), sent=sent)
            assert answer.status == 401
            del sent
        gc.collect()
        assert not stored

    async def test_introspection_result_is_forgotten_after_its_time(self) -> None:
        # finding: S29
        door = ProtectedEndpoint(asks=True)
        door.there.says = {"active": False}
        for number in range(5):
            await door.ask(("Authorization", f"Bearer made-up-{number}"))
        assert len(door.introspection) == 5
        door.clock.tick(seconds=61)
        await door.ask(("Authorization", "Bearer another"))
        assert len(door.introspection) == 1

    async def test_unknown_tokens_of_same_address_are_introspected_up_to_limit(self) -> None:
        # finding: I2
        door = ProtectedEndpoint(asks=True)
        for number in range(REFUSED_AT_ONCE):
            await door.ask(("Authorization", f"Bearer made-up-{number}"))
        door.there.most_at_once = 0
        asks = [door.introspection.verified(f"made-up-at-once-{n}", sender="") for n in range(200)]
        ends = await asyncio.gather(*asks, return_exceptions=True)
        kinds = [type(end) for end in ends]
        assert (kinds.count(BadBearer), kinds.count(Failed)) == (LINE_AT_MOST, 200 - LINE_AT_MOST)
        assert len(door.there.introspected) == REFUSED_AT_ONCE + LINE_AT_MOST
        assert door.there.most_at_once == 1

    async def test_unknown_tokens_are_introspected_few_at_once(self) -> None:
        # finding: I2
        door = ProtectedEndpoint(asks=True)
        asks = [
            door.introspection.verified(f"made-up-{number}", sender=f"10.0.0.{number % 40}")
            for number in range(400)
        ]
        ends = await asyncio.gather(*asks, return_exceptions=True)
        assert {type(end) for end in ends} == {BadBearer}
        assert door.there.most_at_once == ASKED_AT_ONCE

    async def test_token_without_expiry_is_valid_until_next_introspection(self) -> None:
        # finding: I2
        door = ProtectedEndpoint(asks=True)
        door.there.says = ACTIVE
        door.clock.tick(seconds=0.9)
        for _ in range(2):
            assert (await door.ask(("Authorization", "Bearer opaque"))).seen.subject == "alice"
            door.clock.tick(seconds=59.8)

    async def test_all_callers_behind_same_address_are_accepted_at_once(self) -> None:
        # finding: I2
        door = ProtectedEndpoint(asks=True)
        door.there.says = ACTIVE
        for _ in range(2):
            asks = [door.introspection.verified(f"good-{n}", sender="") for n in range(200)]
            assert {known.subject for known in await asyncio.gather(*asks)} == {"alice"}
            door.clock.tick(seconds=61)

    async def test_invented_tokens_do_not_block_others_at_same_address(self) -> None:
        # finding: I2
        door = ProtectedEndpoint(asks=True)
        door.there.says = ACTIVE
        for number in range(600):
            door.clock.tick(seconds=0.5)
            await door.ask(("Authorization", f"Bearer made-up-{number}"))
            if number % 20 == 0:
                answer = await door.ask(("Authorization", f"Bearer good-{number}"))
                assert answer.seen.subject == "alice"

    async def test_formerly_valid_token_is_introspected_again_during_flood(self) -> None:
        # finding: I2
        door = ProtectedEndpoint(asks=True)
        door.there.says = ACTIVE
        await door.ask(("Authorization", "Bearer good"))
        door.clock.tick(minutes=59)
        for number in range(REFUSED_AT_ONCE):
            await door.ask(("Authorization", f"Bearer made-up-{number}"))
        flood = [
            asyncio.ensure_future(door.introspection.verified(f"made-up-at-once-{n}", sender=""))
            for n in range(LINE_AT_MOST)
        ]
        assert (await door.ask(("Authorization", "Bearer good"))).seen.subject == "alice"
        assert not flood[-1].done()
        await asyncio.gather(*flood, return_exceptions=True)
        door.clock.tick(minutes=2)
        door.there.says = {"active": False}
        assert (await door.ask(("Authorization", "Bearer good"))).status == 401
