"""Access tokens of people at the HTTP API, as whoever holds a wrong one, or a right one, tries."""

from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest
import pytest_asyncio

from tests.support.api_people import PeopleEnv, alone, people_env
from tests.support.api_program import CONFIRM, Program, program_at
from tests.support.guarded_server import guarded_by_tokens
from tests.support.living import living
from webapp.api.access import PERSON_HEADER
from webapp.identity.api_keys import KeyScope

pytestmark = pytest.mark.asyncio(loop_scope="module")
ALONE = "Authorization"


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
    good = env.token("alice")
    return {
        "expired": env.token("alice", iat=now - 900, exp=now - 300),
        "not yet": env.token("alice", iat=now + 900, exp=now + 1800),
        "for another server": env.token("alice", audience="https://elsewhere.example/mcp"),
        "for the host and no endpoint": env.token("alice", audience=env.here.url),
        "of another issuer": env.token("alice", iss="https://evil.example"),
        "an id_token": env.token("alice", nonce="n"),
        "bound to a key that nobody proves": env.token("alice", cnf={"jkt": "x"}),
        "changed": good[:-8] + "AAAAAAAA",
        "unsigned": good.rpartition(".")[0] + ".",
        "opaque": "an-opaque-token",
        "too long": "e" * 5000,
        "a scheme before it": f"Bearer {good}",
        "two in one": f"{good}, {good}",
    }


async def test_a_token_that_mcp_would_refuse_is_refused_in_both_places_and_named(
    env: PeopleEnv, shop: Program
) -> None:
    for name, text in bad_tokens(env).items():
        beside = await shop.acting_for(text).call("POST", json=CONFIRM)
        async with alone(env, text) as person:
            instead = await person.call("GET")
        at_mcp = await shop.send("POST", "/mcp", headers={"authorization": f"Bearer {text}"})
        assert at_mcp.status_code == 401, name
        told = beside.json()
        assert (beside.status_code, told["code"]) == (401, "ACCESS_TOKEN_REFUSED"), name
        assert told["detail"].startswith(f"{PERSON_HEADER}: "), name
        assert instead.status_code == 401, name
        assert 'error="invalid_token"' in beside.headers["www-authenticate"]
        for answer in (beside, instead):
            assert "alice" not in answer.text
            assert text not in answer.text
        env.here.clock.tick(seconds=2)  # or this address would be held back
    assert not await env.here.service.elicitations.open_of(env.owner("alice"))


async def test_a_token_elsewhere_than_in_its_one_header_is_none(
    env: PeopleEnv, shop: Program
) -> None:
    good = env.token("alice")
    about = {"authorization": f"Bearer {shop.key}"}
    async with httpx.AsyncClient(base_url=env.here.url) as client:
        for query in (f"?{PERSON_HEADER}={good}", f"?user_access_token={good}"):
            ignored = await client.get(f"/api/questions{query}", headers=about)
            assert ignored.status_code == 400  # it does not say whose
        leaked = await client.get(f"/api/questions?access_token={good}", headers=about)
        assert (leaked.status_code, leaked.json()["code"]) == (400, "ACCESS_TOKEN_REFUSED")
        cookie = {**about, "cookie": f"{PERSON_HEADER}={good}"}
        assert (await client.get("/api/questions", headers=cookie)).status_code == 400
        key, mine, others = (
            ("authorization", f"Bearer {shop.key}"),
            (PERSON_HEADER, good),
            (PERSON_HEADER, env.token("bob")),
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


async def test_a_token_that_names_nobody_is_nobodys(env: PeopleEnv, shop: Program) -> None:
    for text in (env.token(None), env.token("")):
        refused = await shop.acting_for(text).call("POST", json=CONFIRM)
        assert (refused.status_code, refused.json()["code"]) == (403, "ELICITATION_NOT_ALLOWED")
        async with alone(env, text) as person:
            assert (await person.call("GET")).status_code == 403


async def test_the_right_token_with_another_programs_key_opens_nothing(
    env: PeopleEnv, shop: Program
) -> None:
    asked = await shop.acting_for(env.token("carol")).asked(CONFIRM)
    async with program_at(env.here, program="other") as other:
        acting = other.acting_for(env.token("carol"))
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
async def test_a_key_for_named_users_acts_for_no_person(
    env: PeopleEnv, shop: Program, about: dict[str, Any]
) -> None:
    asked = await shop.acting_for(env.token("carol")).asked(CONFIRM)
    async with program_at(env.here, **about) as named:
        acting = named.acting_for(env.token("carol"))
        for answer in (
            await acting.call("GET"),
            await acting.call("GET", f"/{asked['id']}"),
            await acting.post(asked["id"], "answer", {"accepts": True}),
        ):
            assert answer.status_code == 403
        assert (await named.call("GET", f"/{asked['id']}")).status_code == 404


async def test_a_stolen_token_is_good_until_it_expires_and_no_longer(
    env: PeopleEnv, shop: Program
) -> None:
    acting = shop.acting_for(env.token("dora", exp=int(env.here.clock().timestamp()) + 60))
    asked = await acting.asked(CONFIRM)
    assert (await acting.read(asked["id"]))["status"] == "pending"
    env.here.clock.tick(minutes=3)
    assert (await acting.call("GET", f"/{asked['id']}")).status_code == 401


async def test_a_server_with_a_sign_in_of_its_own_is_asked_whose_a_token_is(library: str) -> None:
    tokens = {"good": {"sub": "alice"}, "hers": {"sub": "bob"}, "nobodys": {}}
    server = guarded_by_tokens(library, tokens)
    opening = people_env(server, binds_by_code=True)
    async with living(opening) as own, program_at(own.here) as shop:
        asked = await shop.acting_for("good").asked(CONFIRM)
        assert asked["needs_code"]  # people cannot sign in at that server's issuer
        assert (await shop.acting_for("good").read(asked["id"]))["status"] == "pending"
        statuses = {
            text: (await shop.acting_for(text).call("GET", f"/{asked['id']}")).status_code
            for text in ("hers", "nobodys", "made-up", own.token("alice"))
        }
    assert list(statuses.values()) == [404, 403, 401, 401]
