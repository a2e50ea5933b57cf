"""Attacks on the HTTP API by a program with a key, one without, and a page of another site."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from datetime import timedelta
from typing import Any

import httpx
import pytest
from msgspec.structs import replace

from flows import elicit
from tests.support.api_program import CONFIRM, FORM, PAYMENT, URL, Program, program_at
from tests.support.asking_env import COOKIE, AskingEnv, asking_env
from tests.support.living import living
from tests.support.mcp_server import TLS, eventually
from tests.support.service_env import question_in_store
from webapp.api.access import BETWEEN_REQUESTS, OPEN_AT_ONCE, REFUSED_AT_ONCE, REQUESTS_AT_ONCE
from webapp.identity.api_keys import ApiKeys, KeyScope, new_text
from webapp.logs.events import extras_of
from webapp.logs.lines import Counted
from webapp.records.owners import SERVICE
from webapp.records.values import KINDS, ApiKey
from webapp.stores import Record
from webapp.stores.sqlite import MemoryStore

READING = (("GET", ""), ("GET", "/events"))
CHANGING = (
    ("POST", "/cancel"),
    ("POST", "/complete"),
    ("POST", "/taken"),
    ("POST", "/user-code"),
    ("POST", "/answer"),
)
BODIES: dict[str, dict[str, Any]] = {
    "/complete": {},
    "/user-code": {"code": "BCDF-GHJK"},
    "/answer": {"accepts": True},
}


class Counting:
    """A store that counts the reads of API keys."""

    def __init__(self, store: Any) -> None:
        self._store = store
        self.key_reads = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    async def read(self, owner: str, kind: str, id: str) -> Record | None:
        self.key_reads += kind == KINDS[ApiKey]
        found: Record | None = await self._store.read(owner, kind, id)
        return found


@pytest.fixture
async def here() -> AsyncIterator[AskingEnv]:
    async with living(asking_env()) as here:
        yield here


@pytest.fixture
async def shop(here: AskingEnv) -> AsyncIterator[Program]:
    async with program_at(here) as program:
        yield program


async def at_every_route(program: Program, id: str) -> dict[str, int]:
    """Return the status of each route of a question."""
    found = {}
    for method, verb in (*READING, *CHANGING):
        more = {"json": BODIES[verb]} if verb in BODIES else {}
        found[verb] = (await program.call(method, f"/{id}{verb}", **more)).status_code
    return found


async def test_key_for_one_user_cannot_reach_other_users(here: AskingEnv, shop: Program) -> None:
    asked = await shop.asked(CONFIRM, user="bob")
    async with program_at(here, owners=("ann",)) as anns:
        statuses = await at_every_route(anns, asked["id"])
        assert set(statuses.values()) == {403, 404}
        assert statuses[""] == 404
        assert (await anns.call("GET", params={"user": "bob"})).status_code == 403
        assert (await anns.ask(URL, user="bob")).status_code == 403


async def test_no_key_can_answer_gates_or_questions_of_local_user(here: AskingEnv) -> None:
    owner = here.service.identity.local_owner
    names = ("uid:0", "local", owner)
    approving = program_at(here, program="desk", scope=KeyScope.APPROVE, owners=names)
    async with approving as desk:
        for kind, whose in (("confirm", owner), ("gate", owner)):
            fresh = question_in_store(here.service, kind=kind, join=kind)
            id = here.service.elicitations.new_id(whose)
            await here.service.elicitations.write(replace(fresh, id=id, owner=whose))
            assert set((await at_every_route(desk, id)).values()) == {403, 404}
            found = await here.service.elicitations.get(id)
            assert found is not None
            assert not found.status.is_final


async def test_key_with_ask_and_approve_scopes_is_refused(here: AskingEnv) -> None:
    with pytest.raises(ValueError, match="create two keys"):
        await here.service.identity.api_keys.new(
            program="shop",
            scopes=[KeyScope.ASK, KeyScope.APPROVE],
            owners=["ann"],
            expires_at=here.clock() + timedelta(days=1),
        )


@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"authorization": "Bearer"},
        {"authorization": f"Bearer {new_text()}"},
        {"authorization": "Basic {key}"},
        {"authorization": "{key}"},
        {"cookie": f"{COOKIE}=ann; key={{key}}"},
        {"x-api-key": "{key}"},
    ],
)
async def test_only_key_in_authorization_header_is_accepted(
    here: AskingEnv, shop: Program, headers: dict[str, str]
) -> None:
    sent = {name: text.replace("{key}", shop.key) for name, text in headers.items()}
    async with httpx.AsyncClient(base_url=here.url, headers=sent) as client:
        for path in ("", f"?access_token={shop.key}&api_key={shop.key}"):
            answer = await client.post(f"/api/questions{path}", json={"user": "ann", **CONFIRM})
            assert (answer.status_code, answer.json()["code"]) == (401, "API_KEY_REFUSED")
            assert answer.headers["www-authenticate"] == "Bearer"
    twice = [("authorization", f"Bearer {shop.key}"), ("authorization", "Bearer x")]
    async with httpx.AsyncClient(base_url=here.url, headers=twice) as client:
        assert (await client.get("/api/questions?user=ann")).status_code == 401


async def test_revoked_or_expired_key_is_refused_on_next_request(
    here: AskingEnv, shop: Program
) -> None:
    asked = await shop.asked(CONFIRM)
    (key,) = await here.service.identity.api_keys.all()
    async with program_at(here, lasts=timedelta(minutes=1)) as short:
        here.clock.tick(minutes=1)
        assert (await short.call("GET", f"/{asked['id']}")).status_code == 401
    await here.service.identity.api_keys.revoke(key.id)
    assert set((await at_every_route(shop, asked["id"])).values()) == {401}


async def guessed(here: AskingEnv, times: int = REFUSED_AT_ONCE + 1) -> list[httpx.Response]:
    """Send this many invalid keys from the address of all test clients."""
    async with httpx.AsyncClient(base_url=here.url) as client:
        return [
            await client.get(
                "/api/questions?user=ann", headers={"authorization": f"Bearer {new_text()}"}
            )
            for _ in range(times)
        ]


async def test_guessed_keys_are_rate_limited_before_store_is_read() -> None:
    # finding: XS5
    store = Counting(MemoryStore())
    async with living(asking_env(store=store)) as here:
        answers = await guessed(here)
        assert {one.status_code for one in answers[:-1]} == {401}
        assert answers[-1].status_code == 429
        assert answers[-1].headers["retry-after"] == "1"
        before = store.key_reads
        assert {one.status_code for one in await guessed(here, 50)} == {429}
        assert store.key_reads - before == 0


async def test_working_key_is_not_limited_by_guesses_from_same_address(
    here: AskingEnv, shop: Program
) -> None:
    # finding: XS5
    await guessed(here, REFUSED_AT_ONCE + 20)
    for _ in range(60):
        assert (await shop.call("GET", params={"user": "ann"})).status_code == 200
        assert (await guessed(here, 1))[0].status_code == 429
    async with program_at(here, program="new") as new:  # the key is created during the flood
        assert (await new.call("GET", params={"user": "ann"})).status_code == 200


async def test_key_created_by_another_process_works_during_flood(
    here: AskingEnv,
) -> None:
    # finding: XS5
    await guessed(here, REFUSED_AT_ONCE + 20)
    elsewhere = ApiKeys(here.service.elicitations)
    text, _ = await elsewhere.new(
        program="late", scopes=[KeyScope.ASK], expires_at=here.clock() + timedelta(days=1)
    )
    here.clock.tick(seconds=0.25)
    await guessed(here, REFUSED_AT_ONCE)
    about = {"authorization": f"Bearer {text}"}
    async with httpx.AsyncClient(base_url=here.url, headers=about) as client:
        assert (await client.get("/api/questions?user=ann")).status_code == 200


async def test_refused_key_is_logged_with_address_and_id_of_known_key(
    here: AskingEnv, shop: Program, caplog: pytest.LogCaptureFixture
) -> None:
    # finding: XS6
    (key,) = await here.service.identity.api_keys.all()
    await here.service.identity.api_keys.revoke(key.id)
    with caplog.at_level("WARNING", logger="webapp.api.access"):
        await shop.call("GET", params={"user": "ann"})
        await guessed(here, REFUSED_AT_ONCE)
    lines = [(one.getMessage(), extras_of(one)) for one in caplog.records]
    known = {"address": "127.0.0.1", "why": "revoked", "key": key.id[len(SERVICE) :]}
    guess = {"address": "127.0.0.1", "why": "unknown"}
    assert lines == [
        ("api.refused", known),
        *[("api.refused", guess)] * (REFUSED_AT_ONCE - 1),
        ("api.held_back", {"address": "127.0.0.1", "why": "held_back"}),
    ]
    counted, written = Counted(), 0  # counts repetitions, as the log of a served process does
    for record in caplog.records:
        written += counted.is_first(record, 0.0)
    assert written == 3
    assert [vars(one)["repeated"] for one in counted.due(61.0)] == [REFUSED_AT_ONCE - 2]


async def test_keys_of_same_program_share_rate_limit(here: AskingEnv, shop: Program) -> None:
    # finding: XS7
    async with program_at(here) as second, program_at(here, program="calm") as calm:
        for number in range(REQUESTS_AT_ONCE):
            program = (shop, second)[number % 2]
            assert (await program.call("GET", params={"user": "ann"})).status_code == 200
        for program in (shop, second):
            assert (await program.call("GET", params={"user": "ann"})).status_code == 429
        assert (await calm.call("GET", params={"user": "ann"})).status_code == 200


async def test_program_over_its_rate_limit_does_not_limit_other_programs(
    here: AskingEnv, shop: Program
) -> None:
    async with program_at(here, program="calm") as calm:
        for _ in range(REQUESTS_AT_ONCE):
            assert (await shop.call("GET", params={"user": "ann"})).status_code == 200
        wild = await shop.call("GET", params={"user": "ann"})
        assert (wild.status_code, wild.headers["retry-after"]) == (429, "1")
        assert (await calm.call("GET", params={"user": "ann"})).status_code == 200
    here.clock.tick(seconds=1)
    assert (await shop.call("GET", params={"user": "ann"})).status_code == 200


@pytest.mark.parametrize(
    ("body", "status"),
    [
        (b"", 400),
        (b"{", 400),
        (b"[]", 400),
        (b'"text"', 400),
        (b"\xff\xfe", 400),
        (b"null", 400),
        (b'{"kind": "gate", "user": "ann", "message": "x"}', 400),
        (b'{"kind": "confirm", "user": "", "message": "x"}', 400),
        (b'{"kind": "confirm", "user": "ann", "message": ""}', 400),
        (b'{"kind": "confirm", "user": "ann", "message": "x", "owner": "bob"}', 400),
        (b'{"kind": "confirm", "user": "ann", "message": "x", "url": "https://a.example/"}', 400),
        (b'{"kind": "confirm", "user": "ann", "message": "\\ud800"}', 400),
        (b'{"kind": "url", "user": "ann", "message": "x", "url": "javascript:alert(1)"}', 400),
        (b'{"kind": "form", "user": "ann", "message": "Your password?"}', 400),
        (b'{"kind": "confirm", "user": "ann", "message": "x", "timeout_seconds": 1e99}', 400),
        (
            b'{"kind": "payment", "user": "ann", "amount": "-9", "currency": "EUR", "what": "x"}',
            400,
        ),
        (b'{"kind": "oauth", "user": "ann", "provider": "nobody"}', 422),
        (b'{"kind": "form", "user": "ann", "message": "x", "schema": ' + b'{"a":' * 5000, 400),
        (
            b'{"kind": "form", "user": "ann", "message": "x", "schema": '
            + b'{"a":' * 5000
            + b"1"
            + b"}" * 5001,
            400,
        ),
        (b'{"kind": "confirm", "user": "ann", "message": "' + b"x" * 70_000 + b'"}', 413),
    ],
)
async def test_hostile_body_is_answered_with_problem_json(
    shop: Program, body: bytes, status: int
) -> None:
    answer = await shop.call("POST", content=body, headers={"content-type": "application/json"})
    assert answer.status_code == status, answer.text
    assert answer.headers["content-type"] == "application/problem+json"
    assert (await shop.call("GET", params={"user": "ann"})).json()["questions"] == []


@pytest.mark.parametrize("body", [b'{"kind": NaN}', b'{"user": "\\ud800"}', b"{"])
async def test_error_for_invalid_json_body_mentions_json(shop: Program, body: bytes) -> None:
    answer = await shop.call("POST", content=body, headers={"content-type": "application/json"})
    assert "JSON" in answer.json()["detail"]


async def test_program_with_many_open_streams_does_not_block_other_programs(
    here: AskingEnv, shop: Program
) -> None:
    asked = await shop.asked(CONFIRM)
    about = {"authorization": f"Bearer {shop.key}"}
    many = httpx.Limits(max_connections=OPEN_AT_ONCE)
    async with (
        program_at(here, program="calm") as calm,
        program_at(here) as second,
        httpx.AsyncClient(base_url=here.url, headers=about, verify=TLS, limits=many) as client,
        AsyncExitStack() as streams,
    ):
        for _ in range(OPEN_AT_ONCE):
            here.clock.tick(seconds=BETWEEN_REQUESTS.total_seconds())
            events = client.stream("GET", f"/api/questions/{asked['id']}/events")
            assert (await streams.enter_async_context(events)).status_code == 200
        here.clock.tick(seconds=1)
        refused = await shop.call("GET", f"/{asked['id']}")
        assert (refused.status_code, refused.json()["code"]) == (429, "TOO_MANY_OPEN")
        for spelling in (f"bearer {shop.key}", f"Bearer   {shop.key}"):
            other = {"authorization": spelling}
            refused = await shop.call("GET", f"/{asked['id']}", headers=other)
            assert refused.status_code == 429, spelling
        # finding: XS7
        refused = await second.call("GET", f"/{asked['id']}")  # another key of the same program
        assert (refused.status_code, refused.json()["code"]) == (429, "TOO_MANY_OPEN")
        assert (await calm.call("GET", params={"user": "ann"})).status_code == 200
        await streams.aclose()
        await eventually(lambda: not here.service.elicitations.waiters.has(asked["id"]))
        assert (await shop.call("GET", f"/{asked['id']}")).status_code == 200


async def test_too_long_idempotency_key_or_id_is_refused(shop: Program) -> None:
    assert (await shop.ask(CONFIRM, name="x" * 256)).status_code == 400
    assert (await shop.ask(CONFIRM, name="x" * 255)).status_code == 201
    assert (await shop.call("GET", f"/{'A' * 2000}")).status_code == 404
    assert (await shop.call("GET", f"/{'A' * 5000}")).status_code == 414


async def test_replayed_idempotency_key_does_not_pay_twice(here: AskingEnv, shop: Program) -> None:
    answers = await asyncio.gather(*(shop.ask(PAYMENT, name="order 8") for _ in range(8)))
    assert {answer.status_code for answer in answers} == {201}
    (id,) = {answer.json()["id"] for answer in answers}
    await (await here.guest()).pay(answers[0].json()["url"])
    assert (await shop.read(id, wait=50))["status"] == "accepted"
    assert (await shop.ask(PAYMENT, name="order 8")).json()["id"] == id
    async with program_at(here, program="other") as other:
        stolen = await other.ask(PAYMENT, name="order 8")
        assert stolen.json()["id"] != id
        assert stolen.json()["status"] == "pending"


async def test_concurrent_questions_with_same_idempotency_key_ask_once() -> None:
    both_look = asyncio.Barrier(2)

    class Slow(MemoryStore):
        looks = 0

        async def find(self, owner: str, kind: str, key: str) -> Record | None:
            found = await super().find(owner, kind, key)
            self.looks += kind == "run"
            if kind == "run" and self.looks <= both_look.parties:
                await both_look.wait()
            return found

    async with living(asking_env(store=Slow())) as here, program_at(here) as shop:
        bodies = [CONFIRM, {**CONFIRM, "message": "Delete that?"}]
        asked = await asyncio.gather(*(shop.ask(body, name="order 8") for body in bodies))
        assert sorted(one.status_code for one in asked) == [201, 409]
        for body, first in zip(bodies, asked, strict=True):
            again = await shop.ask(body, name="order 8")
            assert (again.status_code, again.json().get("id")) == (
                first.status_code,
                first.json().get("id"),
            )
        assert len((await shop.call("GET", params={"user": "ann"})).json()["questions"]) == 1


async def test_concurrent_claims_of_same_answer_spend_payment_once(
    here: AskingEnv, shop: Program
) -> None:
    asked = await shop.asked(PAYMENT)
    await (await here.guest()).pay(asked["url"])
    await shop.read(asked["id"], wait=50)
    claimed = await asyncio.gather(*(shop.post(asked["id"], "taken") for _ in range(4)))
    assert {one.status_code for one in claimed} <= {200, 409}
    last = await shop.post(asked["id"], "taken")
    assert last.json()["payment"]["status"] == "spent"


@pytest.mark.parametrize("origin", ["https://evil.example", "http://127.0.0.1:1"])
async def test_request_from_foreign_origin_or_host_is_refused_even_with_key(
    shop: Program, origin: str
) -> None:
    refused = await shop.call("POST", json={"user": "ann", **CONFIRM}, headers={"origin": origin})
    assert refused.status_code == 403
    foreign = await shop.call("GET", params={"user": "ann"}, headers={"host": "evil.example"})
    assert foreign.status_code == 421


async def test_api_responses_are_not_cached_and_not_sniffed(shop: Program) -> None:
    asked = await shop.ask(FORM)
    unknown = await shop.call("GET", "/nothing")
    for answer in (asked, unknown):
        assert answer.headers["cache-control"] == "no-store"
        assert answer.headers["x-content-type-options"] == "nosniff"
        assert "set-cookie" not in answer.headers


async def test_tool_and_program_with_same_name_share_no_question(
    here: AskingEnv, shop: Program
) -> None:
    async def sure() -> bool:
        return await elicit.confirm(str(CONFIRM["message"]), arguments=CONFIRM["arguments"])  # type: ignore[arg-type]  # as JSON

    link = await here.begin(sure).link()
    asked = await shop.asked(CONFIRM)
    assert asked["id"] != link.elicitation_id
