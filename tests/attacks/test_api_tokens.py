"""Attacks on the HTTP API with people's access tokens, valid or invalid."""

import asyncio
import os
import re
from collections.abc import AsyncIterator, Iterator
from typing import Any

import httpx
import pytest
import pytest_asyncio
from litestar.routes import HTTPRoute

from tests.support.api_people import PeopleEnv, people_env, person_client
from tests.support.api_program import CONFIRM, Program, program_at
from tests.support.guarded_server import guarded_by_tokens
from tests.support.living import living
from tests.support.mcp_server import LEGACY, PATIENCE_SECONDS, eventually, soon
from webapp.api.access import (
    PERSON_HEADER,
    REFUSED_AT_ONCE,
    REQUESTS_AT_ONCE,
    RequiresScope,
)
from webapp.api.router import api, needs_of
from webapp.identity.api_keys import KeyScope
from webapp.identity.sessions import LOCAL_ISSUER

pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def env() -> AsyncIterator[PeopleEnv]:
    async with living(people_env()) as env:
        yield env


@pytest_asyncio.fixture(loop_scope="module")
async def shop(env: PeopleEnv) -> AsyncIterator[Program]:
    async with program_at(env.here) as program:
        yield program


def bad_tokens(env: PeopleEnv) -> dict[str, str]:
    now = int(env.here.clock().timestamp())
    good = env.acting("alice")
    return {
        "expired": env.token("alice", iat=now - 900, exp=now - 300),
        "not yet": env.token("alice", iat=now + 900, exp=now + 1800),
        "for another server": env.token("alice", audience="https://elsewhere.example/mcp"),
        "for the host instead of an endpoint": env.token("alice", audience=env.here.url),
        "of another issuer": env.token("alice", iss="https://evil.example"),
        "an id_token": env.token("alice", nonce="n"),
        "bound to a key, without a proof": env.token("alice", cnf={"jkt": "x"}),
        "changed": good[:-8] + "AAAAAAAA",
        "unsigned": good.rpartition(".")[0] + ".",
        "opaque": "an-opaque-token",
        "too long": "e" * 5000,
        "a scheme before it": f"Bearer {good}",
        "two in one": f"{good}, {good}",
    }


async def test_token_refused_by_mcp_is_also_refused_by_api_with_reason(
    env: PeopleEnv, shop: Program
) -> None:
    for name, text in bad_tokens(env).items():
        response = await shop.acting_for(text).call("POST", json=CONFIRM)
        async with person_client(env, text) as person:
            instead = await person.call("GET")
        at_mcp = await shop.send("POST", "/mcp", headers={"authorization": f"Bearer {text}"})
        assert at_mcp.status_code == 401, name
        data = response.json()
        assert (response.status_code, data["code"]) == (401, "ACCESS_TOKEN_REFUSED"), name
        assert data["detail"].startswith(f"{PERSON_HEADER}: "), name
        assert instead.status_code == 401, name
        assert 'error="invalid_token"' in response.headers["www-authenticate"]
        for answer in (response, instead):
            assert "alice" not in answer.text
            assert text not in answer.text
        env.here.clock.tick(seconds=2)  # so that this address is not rate-limited
    assert not await env.here.service.elicitations.rows.open_of(
        env.owner("alice"), now=env.here.service.clock()
    )


USES = ("mcp", "api", "api/inbox")


@pytest.mark.parametrize("use", USES)
async def test_token_works_only_for_its_audience(env: PeopleEnv, shop: Program, use: str) -> None:
    # finding: XS12
    text, url = env.token("kim", use=use), env.here.url
    response = await shop.acting_for(text).call("POST", json=CONFIRM)
    async with person_client(env, text) as person:
        instead = {
            path: await person.send(method, path)
            for method, path in (
                ("GET", "/api/questions"),
                ("GET", "/api/approvals"),
                ("DELETE", "/api/approvals"),
                ("GET", "/api/inbox"),
            )
        }
    at_mcp = await shop.send("POST", "/mcp", headers={"authorization": f"Bearer {text}"})
    assert (at_mcp.status_code == 401) is (use != "mcp")
    assert (response.status_code == 201) is (use == "api")
    for path, answer in instead.items():
        is_let_in = answer.status_code == 200 or "You are not an approver" in answer.text
        assert is_let_in is (use == "api/inbox"), path
    refused = [
        (response, "api") if use != "api" else None,
        (instead["/api/inbox"], "api/inbox") if use != "api/inbox" else None,
    ]
    for answer, wanted in (each for each in refused if each is not None):
        assert (answer.status_code, answer.json()["code"]) == (403, "ACCESS_TOKEN_REFUSED")
        assert f"make one for {url}/{wanted} " in answer.json()["detail"]
        assert answer.headers["www-authenticate"] == 'Bearer error="insufficient_scope"'


def requests_to_all_routes() -> Iterator[tuple[str, str, RequiresScope]]:
    """Yield the method, a path and the needs of each route of the HTTP API."""
    for route in api().routes:
        for handler in route.route_handlers if isinstance(route, HTTPRoute) else ():
            is_public = route.path.startswith("/api/reference")
            if not is_public and "OPTIONS" not in handler.http_methods:
                path = re.sub(r"\{[^}]+\}", "A" * 43, route.path)
                yield from ((method, path, needs_of(handler)) for method in handler.http_methods)


@pytest.mark.parametrize("use", USES)
async def test_token_opens_no_route_that_needs_another_audience(
    env: PeopleEnv, shop: Program, use: str
) -> None:
    # finding: XS12
    text, number = env.token("mia", use=use), 0
    for method, path, needs in requests_to_all_routes():
        env.here.clock.tick(seconds=3)  # so that this address is not rate-limited
        response = await shop.acting_for(text).send(method, path)
        async with person_client(env, text) as person:
            instead = await person.send(method, path)
        if use != "api/inbox" or not needs.or_person:
            assert instead.status_code in (401, 403), (method, path, instead.text)
            assert instead.headers.get("www-authenticate"), (method, path, instead.text)
            number += 1
        if use != "api":
            assert response.status_code == 403, (method, path, response.text)
    assert number > 20


@pytest.mark.parametrize("use", ["api", "api/inbox", "key"])
async def test_credentials_of_the_api_open_no_mcp_session(
    env: PeopleEnv, shop: Program, use: str, revision: str
) -> None:
    # finding: XS12
    text = shop.key if use == "key" else env.token("mia", use=use)
    headers = {
        "authorization": f"Bearer {text}",
        "accept": "application/json, text/event-stream",
        "mcp-protocol-version": "2025-06-18" if revision == LEGACY else revision,
    }
    asked = {"jsonrpc": "2.0", "id": 1, "method": "tools/list", "params": {}}
    refused = await shop.send("POST", "/mcp", headers=headers, json=asked)
    assert refused.status_code == 401
    assert "resource_metadata=" in refused.headers["www-authenticate"]


async def test_token_for_two_audiences_works_for_both(env: PeopleEnv, shop: Program) -> None:
    # finding: XS12
    both = env.token("lou", audience=[f"{env.here.url}/mcp", f"{env.here.url}/api/"])
    assert (await shop.acting_for(both).call("POST", json=CONFIRM)).status_code == 201
    at_mcp = await shop.send("POST", "/mcp", headers={"authorization": f"Bearer {both}"})
    assert at_mcp.status_code != 401
    async with person_client(env, both) as person:
        assert (await person.call("GET")).status_code == 403


async def test_configured_scope_opens_only_its_own_routes() -> None:
    # finding: XS12
    opening = people_env(act_scope="elicit.act", own_scope="elicit.decide", scopes=("call",))
    async with living(opening) as own, program_at(own.here) as shop:
        statuses = {}
        for scopes in ("call", "call elicit.act", "call elicit.decide", "elicit.act elicit.decide"):
            text = own.token("kim", scope=scopes)
            response = await shop.acting_for(text).call("POST", json=CONFIRM)
            async with person_client(own, text) as person:
                instead = await person.call("GET")
            statuses[scopes] = response.status_code, instead.status_code
            if scopes == "call":
                assert 'scope="elicit.act"' in response.headers["www-authenticate"]
                assert 'scope="elicit.decide"' in instead.headers["www-authenticate"]
                assert "or with elicit.decide." in instead.json()["detail"]
        assert list(statuses.values()) == [(403, 403), (201, 403), (403, 200), (403, 403)]


async def test_token_outside_its_header_is_not_accepted(env: PeopleEnv, shop: Program) -> None:
    good = env.acting("alice")
    about = {"authorization": f"Bearer {shop.key}"}
    async with httpx.AsyncClient(base_url=env.here.url) as client:
        without = (await client.get("/api/questions", headers=about)).json()
        for query in (f"?{PERSON_HEADER}={good}", f"?user_access_token={good}"):
            ignored = await client.get(f"/api/questions{query}", headers=about)
            assert (ignored.status_code, ignored.json()) == (200, without)
        leaked = await client.get(f"/api/questions?access_token={good}", headers=about)
        assert (leaked.status_code, leaked.json()["code"]) == (400, "ACCESS_TOKEN_REFUSED")
        cookie = {**about, "cookie": f"{PERSON_HEADER}={good}"}
        assert (await client.get("/api/questions", headers=cookie)).json() == without
        key, mine, others = (
            ("authorization", f"Bearer {shop.key}"),
            (PERSON_HEADER, good),
            (PERSON_HEADER, env.acting("bob")),
        )
        for headers, status in (
            ([key, mine, mine], 400),
            ([key, mine, others], 400),
            ([("authorization", f"Bearer {good}"), mine], 400),
            ([key, ("authorization", f"Bearer {good}")], 401),
            ([mine], 401),
        ):
            answer = await client.get("/api/questions", headers=headers)
            assert answer.status_code == status, answer.text


async def test_token_without_subject_is_refused(env: PeopleEnv, shop: Program) -> None:
    for subject in (None, ""):
        refused = await shop.acting_for(env.acting(subject)).call("POST", json=CONFIRM)
        assert (refused.status_code, refused.json()["code"]) == (403, "ELICITATION_NOT_ALLOWED")
        async with person_client(env, env.own(subject)) as person:
            assert (await person.call("GET")).status_code == 403


async def test_token_with_key_of_another_program_opens_nothing(
    env: PeopleEnv, shop: Program
) -> None:
    asked = await shop.acting_for(env.acting("carol")).asked(CONFIRM)
    async with program_at(env.here, program="other") as other:
        acting = other.acting_for(env.acting("carol"))
        assert (await acting.call("GET", f"/{asked['id']}")).status_code == 404
        assert (await acting.post(asked["id"], "cancel")).status_code == 404
        assert (await acting.call("GET")).json()["questions"] == []


@pytest.mark.parametrize(
    "about",
    [
        {"scope": KeyScope.APPROVE, "owners": ("carol",)},
        {"scope": KeyScope.ASK, "owners": ("carol",)},
    ],
)
async def test_key_for_named_users_cannot_act_with_user_token(
    env: PeopleEnv, shop: Program, about: dict[str, Any]
) -> None:
    asked = await shop.acting_for(env.acting("carol")).asked(CONFIRM)
    async with program_at(env.here, **about) as named:
        acting = named.acting_for(env.acting("carol"))
        for answer in (
            await acting.call("GET"),
            await acting.call("GET", f"/{asked['id']}"),
            await acting.post(asked["id"], "answer", {"accepts": True}),
        ):
            assert answer.status_code == 403
        assert (await named.call("GET", f"/{asked['id']}")).status_code == 404


async def test_stolen_token_works_only_until_expiry(env: PeopleEnv, shop: Program) -> None:
    acting = shop.acting_for(env.acting("dora", exp=int(env.here.clock().timestamp()) + 60))
    asked = await acting.asked(CONFIRM)
    assert (await acting.read(asked["id"]))["status"] == "pending"
    env.here.clock.tick(minutes=3)
    assert (await acting.call("GET", f"/{asked['id']}")).status_code == 401


async def test_server_with_custom_auth_identifies_token_owner(library: str) -> None:
    tokens = {
        "good": {"sub": "alice"},
        "of another user": {"sub": "bob"},
        "without a user": {},
        "of the local user": {"iss": LOCAL_ISSUER, "sub": f"uid:{os.getuid()}"},
    }
    scopes = {text: ["act"] for text in tokens}
    server = guarded_by_tokens(library, {**tokens, "for calls": {"sub": "alice"}}, scopes=scopes)
    opening = people_env(server, binds_by_code=True, act_scope="act")
    async with living(opening) as own, program_at(own.here) as shop:
        asked = await shop.acting_for("good").asked(CONFIRM)
        assert asked["needs_code"]  # people cannot sign in at that server's issuer
        assert (await shop.acting_for("good").read(asked["id"]))["status"] == "pending"
        statuses = {
            text: (await shop.acting_for(text).call("GET", f"/{asked['id']}")).status_code
            for text in (*tokens, "made-up", own.acting("alice"), "for calls")
        }
    assert list(statuses.values()) == [200, 404, 403, 403, 401, 401, 403]


async def until_waited_for(env: PeopleEnv, id: str) -> None:
    await eventually(lambda: env.here.service.elicitations.waiters.has(id))


@pytest.mark.parametrize("what", ["key", "token"])
async def test_waiting_request_is_refused_when_its_key_or_token_ends(
    env: PeopleEnv, shop: Program, what: str
) -> None:
    acting = shop.acting_for(env.acting("eve", exp=int(env.here.clock().timestamp()) + 60))
    asked = await acting.asked(CONFIRM)
    waiting = asyncio.create_task(acting.call("GET", f"/{asked['id']}", params={"wait": 50}))
    await until_waited_for(env, asked["id"])
    await end(env, shop, what)
    async with program_at(env.here) as same:
        await same.acting_for(env.acting("eve")).post(asked["id"], "cancel")
    refused = await soon(waiting)
    codes = {"key": "API_KEY_REFUSED", "token": "ACCESS_TOKEN_REFUSED"}
    assert (refused.status_code, refused.json()["code"]) == (401, codes[what])


async def end(env: PeopleEnv, program: Program, what: str) -> None:
    if what == "token":
        env.here.clock.tick(minutes=3)
        return
    api_keys = env.here.service.identity.api_keys
    await api_keys.revoke((await api_keys.of(program.key)).id)


@pytest.mark.parametrize("what", ["key", "token"])
@pytest.mark.parametrize("then", ["question changed", "nothing"])
async def test_stream_ends_without_new_data_when_its_key_or_token_ends(
    env: PeopleEnv, shop: Program, what: str, then: str
) -> None:
    acting = shop.acting_for(env.acting("fay", exp=int(env.here.clock().timestamp()) + 60))
    asked = await acting.asked(CONFIRM)
    reported = list[str]()
    path = f"/api/questions/{asked['id']}/events"
    headers = {PERSON_HEADER: str(acting.token)}
    async with (
        asyncio.timeout(PATIENCE_SECONDS),
        shop.client.stream("GET", path, headers=headers) as stream,
    ):
        async for line in stream.aiter_lines():
            if not line.startswith("id: "):
                continue
            reported.append(line)
            await end(env, shop, what)
            if then == "nothing":  # the server does this every 15 seconds
                env.here.service.elicitations.waiters.wake_all()
            else:
                async with program_at(env.here) as same:
                    await same.acting_for(env.acting("fay")).post(asked["id"], "cancel")
    assert len(reported) == 1
    assert (await acting.call("GET", f"/{asked['id']}/events")).status_code == 401


async def test_unavailable_issuer_causes_503_instead_of_401(env: PeopleEnv, shop: Program) -> None:
    env.here.clock.tick(days=2)  # the cached keys of the issuer are now too old
    env.issuer.is_down = True
    try:
        for answer in (
            await shop.acting_for(env.acting("gus")).call("POST", json=CONFIRM),
            await shop.acting_for(env.acting("gus")).call("GET"),
        ):
            assert (answer.status_code, answer.json()["code"]) == (503, "ISSUER_UNAVAILABLE")
            assert int(answer.headers["retry-after"]) > 0
        assert (await shop.call("GET", params={"user": "ann"})).status_code == 200
    finally:
        env.issuer.is_down = False
    env.here.clock.tick(minutes=1)
    assert (await shop.acting_for(env.acting("gus")).ask(CONFIRM)).status_code == 201


async def test_made_up_tokens_limit_only_the_sending_program(env: PeopleEnv, shop: Program) -> None:
    statuses = [
        (await shop.acting_for("made-up").call("GET")).status_code
        for _ in range(REQUESTS_AT_ONCE + 1)
    ]
    assert statuses.count(401) > REFUSED_AT_ONCE  # expired tokens of a busy program are no attack
    assert statuses[-1] == 429
    async with program_at(env.here, program="calm") as calm:
        assert (await calm.acting_for(env.acting("hugo")).call("GET")).status_code == 200
    async with person_client(env, "made-up") as person:
        statuses = [(await person.call("GET")).status_code for _ in range(REFUSED_AT_ONCE + 1)]
    assert set(statuses[:-1]) == {401}
    assert statuses[-1] == 429
    # finding: XS5
    async with (
        person_client(env, env.own("hugo")) as hugo,
        program_at(env.here, program="new") as new,
    ):
        assert (await hugo.call("GET")).status_code == 200
        assert (await new.acting_for(env.acting("hugo")).call("GET")).status_code == 200
    env.here.clock.tick(seconds=REFUSED_AT_ONCE)


async def test_tokens_of_same_person_share_rate_limit(env: PeopleEnv) -> None:
    # finding: XS7
    ivy, jack = "ivy", "jack"
    tokens = [env.own(ivy, jti=str(number)) for number in range(5)]
    statuses = []
    for number in range(REQUESTS_AT_ONCE + 10):
        async with person_client(env, tokens[number % 5]) as person:
            statuses.append((await person.call("GET")).status_code)
    assert set(statuses[:90]) == {200}
    assert set(statuses[REQUESTS_AT_ONCE:]) == {429}
    async with person_client(env, env.own(jack)) as person:
        assert (await person.call("GET")).status_code == 200
    env.here.clock.tick(seconds=REQUESTS_AT_ONCE)
