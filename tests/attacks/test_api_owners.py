"""Every route of the HTTP API, as everybody but the owner tries it.

The routes are read off the document, so that a new one fails until it says here what it needs.
"""

from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from typing import Any

import httpx
import pytest
import pytest_asyncio

from tests.support.api_people import PeopleEnv, alone, people_env
from tests.support.api_program import ACCOUNT, CONFIRM, PAYMENT, Program, program_at
from tests.support.living import living
from tests.support.mcp_sandbox import Guest
from webapp.api.router import api
from webapp.identity.api_keys import KeyScope
from webapp.records.values import KINDS, ApiKey

pytestmark = pytest.mark.asyncio(loop_scope="module")
ALSO = (KeyScope.TOKENS, KeyScope.REFUND)


@dataclass(frozen=True, slots=True, kw_only=True)
class Route:
    """What a request of it brings besides an id; `scope` is what its key needs."""

    scope: KeyScope = KeyScope.ASK
    body: dict[str, Any] | None = None
    query: dict[str, str] = field(default_factory=dict[str, str])


QUESTION, ACCOUNTS = "/api/questions/{question_id}", "/api/accounts/{account_id}"
PAYMENTS, WEBHOOKS = "/api/payments/{payment_id}", "/api/webhooks/{webhook_id}"
OPERATE = Route(scope=KeyScope.OPERATE)
PROXY = Route(query={"url": "https://api.github.com/user"})
BY_ID = {
    f"GET {QUESTION}": Route(),
    f"GET {QUESTION}/events": Route(),
    f"POST {QUESTION}/cancel": Route(),
    f"POST {QUESTION}/complete": Route(body={}),
    f"POST {QUESTION}/taken": Route(),
    f"POST {QUESTION}/user-code": Route(body={"code": "BCDF-GHJK"}),
    f"POST {QUESTION}/answer": Route(scope=KeyScope.APPROVE, body={"accepts": True}),
    f"GET {ACCOUNTS}": Route(),
    f"DELETE {ACCOUNTS}": Route(),
    f"GET {ACCOUNTS}/token": Route(),
    **{
        f"{method} {ACCOUNTS}/proxy": PROXY
        for method in ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE")
    },
    f"GET {PAYMENTS}": Route(),
    f"POST {PAYMENTS}/refund": Route(body={"also_spent": True}),
}
LISTS = {"GET /api/questions", "GET /api/accounts", "GET /api/payments"}
NEW = {"POST /api/questions"}
# By a name of its program's own, for a user or a person: another one's name is another thing.
OWN_NAMES: dict[str, dict[str, Any]] = {
    "POST /api/runs/end": {"is_error": True},
    "POST /api/runs/spend": {"payment": "of-somebody-else"},
    "POST /api/runs/once": {"name": "book", "by": "a-process"},
    "POST /api/runs/once/done": {"name": "book", "by": "a-process", "result": "stolen"},
}
FORGET = "DELETE /api/secrets/{name}"
OF_THE_OPERATOR = {
    "GET /api/webhooks": OPERATE,
    f"GET {WEBHOOKS}": OPERATE,
    f"POST {WEBHOOKS}/replay": OPERATE,
}


@dataclass(slots=True, kw_only=True)
class Owned:
    """What ann, a user, and alice, who signs in at the issuer, have by the shop."""

    env: PeopleEnv
    shop: Program
    anns: dict[str, str]
    alices: dict[str, str]
    webhook_id: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Stranger:
    """Somebody with a key or a token that is good for something else."""

    program: Program
    approves: Program  # the same, where a key that approves is needed
    victim: dict[str, str]
    query: dict[str, str] = field(default_factory=dict[str, str])


async def belongings(shop: Program, guest: Guest, *, user: str) -> dict[str, str]:
    """The ids of a question that waits, an account and a payment."""
    asked = [await shop.asked(body, user=user) for body in (CONFIRM, ACCOUNT, PAYMENT)]
    await guest.connect(asked[1]["url"])
    await guest.pay(asked[2]["url"])
    _, connected, paid = [await shop.read(one["id"]) for one in asked]
    return {
        "question_id": asked[0]["id"],
        "account_id": connected["account"]["id"],
        "payment_id": paid["payment"]["id"],
    }


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def owned() -> AsyncIterator[Owned]:
    async with living(people_env()) as env, program_at(env.here, also=ALSO) as shop:
        anns = await belongings(shop, await env.here.guest(), user="ann")
        acting = shop.acting_for(env.token("alice"))
        first = await acting.asked(CONFIRM)
        alice = await env.signed_in("alice", first["url"])
        alices = await belongings(acting, Guest(alice), user="")
        hooks = await env.here.service.inbox.hooks()
        yield Owned(env=env, shop=shop, anns=anns, alices=alices, webhook_id=hooks[0].id)


def routes() -> Iterator[str]:
    for path, item in (api().openapi_schema.to_schema()["paths"]).items():
        yield from (f"{method.upper()} {path}" for method in item)


async def sent(program: Program, route: str, about: Route, **ids: str) -> httpx.Response:
    method, _, path = route.partition(" ")
    body = {} if about.body is None else {"json": about.body}
    return await program.send(method, path.format(**ids), params=about.query, **body)


async def rows(env: PeopleEnv) -> dict[str, int]:
    """The version of each row, but of what notes that a key was used."""
    found = dict[str, int]()
    async for page in env.here.service.elicitations.store.scan():
        found |= {f"{row.kind} {row.id}": row.version for row in page if row.kind != KINDS[ApiKey]}
    return found


async def test_every_route_of_the_document_says_here_what_it_needs() -> None:
    assert set(routes()) == {
        *(*BY_ID, *LISTS, *NEW, *OF_THE_OPERATOR),
        *(*OWN_NAMES, FORGET),
    }


async def strangers(owned: Owned, stack: AsyncExitStack) -> dict[str, Stranger]:
    env, shop = owned.env, owned.shop

    async def program(**about: Any) -> Program:
        return await stack.enter_async_context(program_at(env.here, **about))

    approves: dict[str, Any] = {"scope": KeyScope.APPROVE, "owners": ("bob",)}
    desk = await program(program="desk", **approves)
    other = await program(program="other", also=ALSO)
    bobs = await program(also=ALSO, owners=("bob",))
    bob = await stack.enter_async_context(alone(env, env.token("bob")))
    anns, alices = owned.anns, owned.alices
    ann, is_bob, is_alice = {"user": "ann"}, {"user": "bob"}, {"user": "alice"}
    return {
        "another program": Stranger(program=other, approves=desk, victim=anns, query=ann),
        "another user's key": Stranger(program=bobs, approves=desk, victim=anns),
        "another user's key that names ann": Stranger(
            program=bobs, approves=desk, victim=anns, query=ann
        ),
        "another user": Stranger(program=shop, approves=desk, victim=anns, query=is_bob),
        "another person": Stranger(
            program=shop.acting_for(env.token("bob")), approves=desk, victim=alices
        ),
        "no person": Stranger(program=shop, approves=desk, victim=alices, query=is_alice),
        "another program for the person": Stranger(
            program=other.acting_for(env.token("alice")), approves=desk, victim=alices
        ),
        "another person alone": Stranger(program=bob, approves=bob, victim=alices),
    }


async def test_what_is_somebody_elses_is_told_as_what_never_was_and_nothing_changes(
    owned: Owned,
) -> None:
    async with AsyncExitStack() as stack:
        everybody = await strangers(owned, stack)
        before = await rows(owned.env)
        for name, one in everybody.items():
            for route, about in BY_ID.items():
                if name == "another user" and QUESTION in route:
                    continue  # a question is the program's, whichever user it names
                owned.env.here.clock.tick(seconds=1)  # nobody is too fast
                program = one.approves if about.scope is KeyScope.APPROVE else one.program
                wanted = Route(body=about.body, query={**about.query, **one.query})
                foreign = await sent(program, route, wanted, **one.victim)
                ids = {kind: f"{id[:-4]}AAAA" for kind, id in one.victim.items()}
                never = await sent(program, route, wanted, **ids)
                assert foreign.status_code in (401, 403, 404), (name, route, foreign.text)
                assert (foreign.status_code, foreign.text) == (never.status_code, never.text)
                if program is not one.approves and "ann" not in one.query.values():
                    assert foreign.status_code == 404, (name, route, foreign.text)
            for route in LISTS:
                listed = await sent(one.program, route, Route(query=one.query))
                assert listed.status_code in (200, 401, 403), (name, route, listed.text)
                if listed.status_code == 200:
                    (found,) = [rest for rest in listed.json().values() if isinstance(rest, list)]
                    assert found == [], (name, route)
        assert await rows(owned.env) == before


async def test_a_run_of_the_same_name_is_another_ones(owned: Owned) -> None:
    run, step = {"run": "order 8"}, OWN_NAMES["POST /api/runs/once"]
    whose = [(owned.shop, {"user": "ann"}), (owned.shop.acting_for(owned.env.token("alice")), {})]
    victims = list[tuple[Program, dict[str, str], str]]()
    for program, user in whose:
        claimed = await program.send("POST", "/api/runs/once", json={**user, **run, **step})
        victims.append((program, user, claimed.json()["idempotency_key"]))
    async with AsyncExitStack() as stack:
        for name, one in (await strangers(owned, stack)).items():
            for route, body in OWN_NAMES.items():
                owned.env.here.clock.tick(seconds=1)
                mine = {**body, **run, **one.query}
                answer = await sent(one.program, route, Route(body=mine))
                assert answer.status_code < 500, (name, route, answer.text)
                assert all(key not in answer.text for _, _, key in victims), (name, route)
            gone = await sent(one.program, FORGET, Route(query=one.query), name="key")
            assert gone.status_code in (401, 403, 404), (name, gone.text)
    for program, user, key in victims:
        done = {**user, **run, **step, "by": "another"}
        state = (await program.send("POST", "/api/runs/once", json=done)).json()
        assert (state["idempotency_key"], state["result"]) == (key, None)


async def test_what_is_the_operators_no_program_sees(owned: Owned) -> None:
    before = await rows(owned.env)
    for route, about in OF_THE_OPERATOR.items():
        refused = await sent(owned.shop, route, about, webhook_id=owned.webhook_id)
        assert refused.status_code == 403, route
    assert await rows(owned.env) == before


async def test_the_owner_reaches_all_of_it(owned: Owned) -> None:
    """Else the tests above would show nothing."""
    token = owned.env.token("alice")
    for program, ids in ((owned.shop, owned.anns), (owned.shop.acting_for(token), owned.alices)):
        query = {} if program.token else {"user": "ann"}
        for path in (QUESTION, ACCOUNTS, f"{ACCOUNTS}/token", PAYMENTS):
            assert (await sent(program, f"GET {path}", Route(query=query), **ids)).is_success
        url = {"url": f"{owned.env.here.sandbox.url}/github/api/user", **query}
        called = await sent(program, f"GET {ACCOUNTS}/proxy", Route(query=url), **ids)
        assert called.json()["login"] == "octocat"
        refund = Route(query=query, body={})
        given = await sent(program, f"POST {PAYMENTS}/refund", refund, **ids)
        assert given.json()["status"] == "refunded"
