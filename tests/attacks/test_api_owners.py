"""Tests of every route of the HTTP API with every kind of caller that may not see the object.

The routes are read from the OpenAPI document, so a new route fails until this file declares its
needs.
"""

import dataclasses
import re
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from http import HTTPStatus
from types import MappingProxyType
from typing import Any

import httpx
import pytest
import pytest_asyncio
from msgspec.structs import replace

from flows import elicit
from flows.elicitation.tool_call import client_of
from tests.support.api_people import PeopleEnv, people_env, person_client, shop_tools
from tests.support.api_program import ACCOUNT, CONFIRM, PAYMENT, SECRET, Program, program_at
from tests.support.approving import FINANCE, GROUPS
from tests.support.living import living
from tests.support.mcp_sandbox import Guest
from tests.support.service_env import question_in_store
from tests.support.serving import transport_to
from webapp.api.asking import application_of, owner_of_user
from webapp.api.router import api
from webapp.identity.api_keys import KeyScope, new_text
from webapp.records.values import KINDS, ApiKey, Approval

pytestmark = pytest.mark.asyncio(loop_scope="module")
ALSO = (KeyScope.TOKENS, KeyScope.REFUND)
LONG = timedelta(days=1)


@dataclass(frozen=True, slots=True, kw_only=True)
class Route:
    """The body and query of a request to a route. The id is passed separately."""

    body: dict[str, Any] | None = None
    query: dict[str, str] = field(default_factory=dict[str, str])
    needs_user: bool = True  # the request needs `user` unless an access token names the user


QUESTION, ACCOUNTS = "/api/questions/{question_id}", "/api/accounts/{account_id}"
PAYMENTS, WEBHOOKS = "/api/payments/{payment_id}", "/api/webhooks/{webhook_id}"
APPROVALS, EVENTS = "/api/approvals/{approval_id}", "/api/events/{event_id}"
INBOX = "/api/inbox/{request_id}"
ASKED = Route(needs_user=False)
PROXY = Route(query={"url": "https://api.github.com/user"})
BY_ID = {
    f"GET {QUESTION}": ASKED,
    f"GET {QUESTION}/events": ASKED,
    f"POST {QUESTION}/cancel": ASKED,
    f"POST {QUESTION}/complete": Route(body={}, needs_user=False),
    f"POST {QUESTION}/taken": ASKED,
    f"POST {QUESTION}/user-code": Route(body={"code": "BCDF-GHJK"}, needs_user=False),
    f"POST {QUESTION}/answer": Route(body={"accepts": True}, needs_user=False),
    f"GET {ACCOUNTS}": Route(),
    f"DELETE {ACCOUNTS}": Route(),
    f"GET {ACCOUNTS}/token": Route(),
    **{
        f"{method} {ACCOUNTS}/proxy": PROXY
        for method in ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE")
    },
    f"GET {PAYMENTS}": Route(),
    f"POST {PAYMENTS}/refund": Route(body={"also_spent": True}),
    f"DELETE {APPROVALS}": Route(),
    f"POST {INBOX}/answer": Route(body={"accepts": True}, needs_user=False),
    f"POST {INBOX}/delegate": Route(body={"to": "flora"}, needs_user=False),
    f"POST {EVENTS}/replay": ASKED,
    f"GET {WEBHOOKS}": ASKED,
    f"POST {WEBHOOKS}/replay": ASKED,
}
RUN = {"run": "order 8"}
STEP = {**RUN, "name": "book", "by": "a process"}
BY_NAME = {  # each program has its own names for each user
    "POST /api/runs/end": Route(body=RUN),
    "POST /api/runs/spend": Route(body=RUN),
    "POST /api/runs/once": Route(body=STEP),
    "POST /api/runs/once/done": Route(body={**STEP, "result": "another room"}),
    "DELETE /api/secrets/{name}": Route(),
}
LISTS = {
    "GET /api/questions": "question_id",
    "GET /api/accounts": "account_id",
    "GET /api/payments": "payment_id",
    "GET /api/approvals": "approval_id",
    "GET /api/inbox": "request_id",
}
ANSWERED = "answered"  # ended questions: no request changes them
OPERATORS = {"GET /api/webhooks", "GET /api/events"}
OTHERS = {"POST /api/questions", "POST /api/accounts", "DELETE /api/approvals"}

SHOP, DESK, OPERATOR = "its program", "a key that approves for ann", "the operator's key"
OF_ALICE, ALICE = "its program for alice", "alice alone"
APPROVER = "an approver alone"
NAMES_BOB, NAMES_NOBODY = "its program, naming bob", "its program's key for bob, naming nobody"
NAMED = {NAMES_BOB: {"user": "bob"}, NAMES_NOBODY: dict[str, str]()}  # all other callers name ann


@dataclass(frozen=True, slots=True, kw_only=True)
class Thing:
    """An object with its id, and the callers that may see it."""

    name: str
    parameter: str
    id: str
    seen_by: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True, kw_only=True)
class Everybody:
    env: PeopleEnv
    requesters: Mapping[str, Program]
    things: tuple[Thing, ...]

    async def sent(
        self,
        who: str,
        name: str,
        about: Route,
        *,
        ids: Mapping[str, str] = MappingProxyType({}),
        user: str = "ann",
    ) -> httpx.Response:
        self.env.here.clock.tick(milliseconds=100)  # so that no request is rate-limited
        program, (method, _, path) = self.requesters[who], name.partition(" ")
        is_by_user = about.needs_user and program.token is None and "alone" not in who
        whose = NAMED.get(who, {"user": user}) if is_by_user else {}
        is_in_body = path.startswith("/api/runs/")
        query = about.query if is_in_body else {**about.query, **whose}
        sent = {**about.body, **whose} if is_in_body and about.body else about.body
        body = {} if sent is None else {"json": sent}
        answer = await program.send(method, path.format(**ids), params=query, **body)
        if answer.status_code == HTTPStatus.UNAUTHORIZED:
            self.env.here.clock.tick(seconds=1)
        return answer

    @property
    def soon(self) -> datetime:
        return self.env.here.clock() + timedelta(minutes=25)

    async def rows(self, *, due_after: datetime) -> dict[str, int]:
        """Return the version of each row that the sweeper does not change before `due_after`.

        API keys are left out, because each request updates them.
        """
        found = dict[str, int]()
        async for page in self.env.here.service.elicitations.store.scan():
            rows = [row for row in page if row.kind != KINDS[ApiKey]]
            rows = [row for row in rows if row.due_at is None or row.due_at > due_after]
            found |= {f"{row.kind} {row.id}": row.version for row in rows}
        return found


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def everybody() -> AsyncIterator[Everybody]:
    opening = people_env(_tools(), approvers=(FINANCE,))
    async with living(opening) as env, AsyncExitStack() as stack:
        requesters = await _requesters(env, stack)
        things = [
            *await _for_an_approver(env, requesters),
            *await _belongings(env, requesters),
            *await _without_program(env),
        ]
        yield Everybody(env=env, requesters=requesters, things=tuple(things))


def _tools() -> Any:
    server = shop_tools()

    @server.tool()
    @elicit.gate(approver="finance")
    async def pay_out() -> str:
        return "paid"

    return server


async def _for_an_approver(env: PeopleEnv, requesters: Mapping[str, Program]) -> list[Thing]:
    asked = await env.asked_by_a_tool("alice", "pay_out")
    inbox = await requesters[APPROVER].send("GET", "/api/inbox")
    (request,) = inbox.json()["requests"]
    return [
        thing("question_id", "alice's, which others decide", asked.id, ALICE),
        thing("request_id", "alice's request", request["id"], APPROVER),
    ]


async def _requesters(env: PeopleEnv, stack: AsyncExitStack) -> dict[str, Program]:
    now = int(env.here.clock().timestamp())
    day = int(LONG.total_seconds())

    async def near(opening: AbstractAsyncContextManager[Program]) -> Program:
        """Return the program with a client that calls the application without a network."""
        program = await stack.enter_async_context(opening)
        client = httpx.AsyncClient(
            transport=transport_to(env.here.asgi),
            base_url=env.here.url,
            headers=program.client.headers,
        )
        return dataclasses.replace(program, client=await stack.enter_async_context(client))

    async def program(name: str = "shop", **about: Any) -> Program:
        return await near(program_at(env.here, program=name, **about))

    async def person(text: str) -> Program:
        return await near(person_client(env, text))

    shop, other = await program(also=ALSO), await program("other", also=ALSO)
    approving = {"name": "desk", "scope": KeyScope.APPROVE}
    desk = await program(**approving, owners=("ann",))
    bobs_key = await program(owners=("bob",), also=ALSO)
    alices, bobs = (env.acting(who, exp=now + day) for who in ("alice", "bob"))
    early = {"iat": now - 2 * day, "exp": now - day}
    elsewhere = env.token("alice", exp=now + day, audience="https://elsewhere.example/api")
    calls = env.token("alice", exp=now + day)  # the token that she gave to her assistant
    nobody = await person("")
    del nobody.client.headers["authorization"]
    return {
        SHOP: shop,
        DESK: desk,
        OF_ALICE: shop.acting_for(alices),
        ALICE: await person(env.own("alice", exp=now + day)),
        APPROVER: await person(env.own("erin", exp=now + day, **GROUPS)),
        OPERATOR: await program("operator", scope=KeyScope.OPERATE),
        "nobody": nobody,
        "a key that was never made": await person(new_text()),
        "another program": other,
        NAMES_BOB: shop,
        NAMES_NOBODY: bobs_key,
        "its program's key for bob, naming ann": bobs_key,
        "a key that approves for bob": await program(**approving, owners=("bob",)),
        "its program for bob": shop.acting_for(bobs),
        "another program for alice": other.acting_for(alices),
        "a key that approves, for alice": desk.acting_for(alices),
        "its program by an old token": shop.acting_for(env.acting("alice", **early)),
        "its program by a token for elsewhere": shop.acting_for(elsewhere),
        "its program with nobody's token": shop.acting_for(env.acting(None, exp=now + day)),
        "its program by a token for calls": shop.acting_for(calls),
        "its program with alice's own token": shop.acting_for(env.own("alice", exp=now + day)),
        "bob alone": await person(env.own("bob", exp=now + day)),
        "an old token alone": await person(env.own("alice", **early)),
        "a token for calls alone": await person(calls),
        "an approver's for calls alone": await person(
            env.token("erin", use="mcp", exp=now + day, groups=GROUPS["groups"])
        ),
        "a token for programs alone": await person(alices),
    }


async def _belongings(env: PeopleEnv, requesters: Mapping[str, Program]) -> list[Thing]:
    """Create objects through the shop, for its user ann and for alice, who has a token."""
    found = list[Thing]()
    long = {**CONFIRM, "timeout_seconds": int(LONG.total_seconds())}
    for who, other in ((SHOP, DESK), (OF_ALICE, ALICE)):
        program = requesters[who]
        waits, account, payment = [await program.asked(body) for body in (long, ACCOUNT, PAYMENT)]
        guest = await env.here.guest()
        if who == OF_ALICE:
            guest = Guest(await env.signed_in("alice", waits["url"]))
        await guest.connect(account["url"])
        await guest.pay(payment["url"])
        answer = {each["kind"]: await program.read(each["id"]) for each in (account, payment)}
        found += [
            thing("question_id", f"{who}: a question", waits["id"], who, other),
            thing("account_id", f"{who}: an account", answer["oauth"]["account"]["id"], who),
            thing("payment_id", f"{who}: a payment", answer["payment"]["payment"]["id"], who),
            *(
                thing(ANSWERED, f"{who}: {kind}", one["id"], who, *({other} - {DESK}))
                for kind, one in answer.items()
            ),
        ]
    hooks = await env.here.service.webhooks.log.webhooks()
    return [*found, thing("webhook_id", "a webhook", hooks[0].id, OPERATOR)]


async def _without_program(env: PeopleEnv) -> list[Thing]:
    """Create objects that no program owns, such as questions of tools and of the application."""
    service = env.here.service
    ann, alice = owner_of_user(service, "ann"), env.owner("alice")
    machine, server = service.identity.local_owner, application_of(service)

    async def question(owner: str, *, kind: str = "confirm", is_for_user: bool = False) -> str:
        fresh = question_in_store(service, join=f"{owner} {kind}", kind=kind, timeout=LONG)
        id = service.elicitations.new_id(owner)
        asked = replace(fresh.request, server=server, terms={"schema": {"type": "object"}})
        await service.elicitations.write(
            replace(fresh, id=id, owner=owner, request=asked, is_for_user=is_for_user)
        )
        return id

    async def approval(owner: str, tool: str) -> str:
        now, id = env.here.clock(), service.elicitations.new_id(owner)
        await service.elicitations.write(
            Approval(
                id=id,
                owner=owner,
                server=server,
                tool=tool,
                covers=None,
                about="whatever it is given",
                given_at=now,
                until=now + LONG,
                erase_at=now + LONG,
                is_for_all=True,
            )
        )
        return id

    return [
        thing("question_id", "a tool's question to alice", await question(alice), ALICE),
        thing("question_id", "the application's", await question(ann, is_for_user=True), DESK),
        thing("question_id", "this machine's user's", await question(machine)),
        thing("approval_id", "a person's, to a tool", await approval(alice, "wipe"), ALICE),
        thing("approval_id", "a user's", await approval(ann, client_of("shop")), SHOP),
        thing("approval_id", "this machine's user's", await approval(machine, "wipe")),
        thing("event_id", "an event", f"{alice}{'A' * 24}"),
    ]


def thing(parameter: str, name: str, id: str, *seen_by: str) -> Thing:
    return Thing(name=name, parameter=parameter, id=id, seen_by=frozenset(seen_by))


def routes() -> Iterator[str]:
    for path, item in (api().openapi_schema.to_schema()["paths"]).items():
        yield from (f"{method.upper()} {path}" for method in item)


def without_date(answer: httpx.Response) -> object:
    headers = {name: text for name, text in answer.headers.items() if name != "date"}
    return answer.status_code, headers, answer.text


async def test_every_api_route_has_an_owner_case() -> None:
    assert set(routes()) == {*BY_ID, *BY_NAME, *LISTS, *OPERATORS, *OTHERS}


async def test_objects_of_other_callers_look_like_missing_objects_and_stay_unchanged(
    everybody: Everybody,
) -> None:
    soon = everybody.soon
    before = await everybody.rows(due_after=soon)
    for name, about in BY_ID.items():
        (parameter,) = re.findall(r"\{(\w+)\}", name)
        things = [one for one in everybody.things if one.parameter == parameter]
        for who in everybody.requesters:
            if who == NAMES_BOB and not about.needs_user:
                continue  # a question belongs to the program, whichever user the request names
            none = {parameter: f"{things[0].id[:-4]}AAAA"}
            never = await everybody.sent(who, name, about, ids=none)
            assert never.status_code in (401, 403, 404), (who, name, never.text)
            for one in things:
                if who in one.seen_by:
                    continue
                foreign = await everybody.sent(who, name, about, ids={parameter: one.id})
                assert without_date(foreign) == without_date(never), (who, name, one.name)
    assert await everybody.rows(due_after=soon) == before


async def test_list_contains_only_objects_of_its_caller(everybody: Everybody) -> None:
    for name, parameter in LISTS.items():
        for who in everybody.requesters:
            answer = await everybody.sent(who, name, Route())
            listed = set[str]()
            if answer.status_code == 200:
                (found,) = [rest for rest in answer.json().values() if isinstance(rest, list)]
                listed = {one["id"] for one in found}
            kinds = {parameter, ANSWERED} if parameter == "question_id" else {parameter}
            things = [one for one in everybody.things if one.parameter in kinds]
            assert listed == {one.id for one in things if who in one.seen_by}, (who, name)


async def test_list_without_user_contains_only_objects_of_its_caller(everybody: Everybody) -> None:
    # finding: XQ5
    questions = [one for one in everybody.things if one.parameter in ("question_id", ANSWERED)]
    for who in everybody.requesters:
        sees = SHOP if who == NAMES_BOB else who
        if who == "its program's key for bob, naming ann":
            sees = NAMES_NOBODY
        texts, listed, after = list[str](), set[str](), None
        while True:
            query = {"limit": "1"} if after is None else {"limit": "1", "after": after}
            route = Route(query=query, needs_user=False)
            answer = await everybody.sent(who, "GET /api/questions", route)
            texts.append(answer.text)
            if answer.status_code != HTTPStatus.OK:
                break
            page = answer.json()
            listed |= {one["id"] for one in page["questions"]}
            if (after := page["after"]) is None:
                break
        assert listed == {one.id for one in questions if sees in one.seen_by}, who
        hidden = [one for one in questions if sees not in one.seen_by]
        assert not [one for one in hidden if one.id in "".join(texts)], who


async def test_same_name_of_two_callers_refers_to_separate_objects(
    everybody: Everybody,
) -> None:
    shop, guest = everybody.requesters[SHOP], await everybody.env.here.guest("cleo")
    payment = await shop.asked({**PAYMENT, **RUN}, user="cleo")
    await guest.pay(payment["url"])
    await guest.type((await shop.asked({**SECRET, "name": "key"}, user="cleo"))["url"])
    paid = (await shop.read(payment["id"]))["payment"]

    async def sent(who: str, name: str, **more: Any) -> httpx.Response:
        asked = BY_NAME[name].body
        route = Route(body=None if asked is None else {**asked, **more})
        ids = {"name": "key"}
        return await everybody.sent(who, name, route, user="cleo", ids=ids)

    await sent(SHOP, "POST /api/runs/once")
    await sent(SHOP, "POST /api/runs/once/done", result="room 7")
    soon = everybody.soon
    before = await everybody.rows(due_after=soon)
    ids = {"spend": {"payment": paid["id"]}, "end": {"questions": [payment["id"]]}}
    for who in everybody.requesters.keys() - {SHOP}:
        for name in BY_NAME:
            answer = await sent(who, name, **ids.get(name.rpartition("/")[2], {}))
            assert "room 7" not in answer.text, (who, name)
    assert before.items() <= (await everybody.rows(due_after=soon)).items()
    done = (await sent(SHOP, "POST /api/runs/once")).json()
    assert (done["status"], done["result"]) == ("done", "room 7")
    spent = await sent(SHOP, "POST /api/runs/spend", payment=paid["id"])
    forgotten = await sent(SHOP, "DELETE /api/secrets/{name}")
    assert (spent.status_code, forgotten.status_code) == (204, 204)


async def test_operator_routes_are_refused_for_programs(everybody: Everybody) -> None:
    for name in OPERATORS:
        for who in everybody.requesters.keys() - {OPERATOR}:
            refused = await everybody.sent(who, name, ASKED)
            assert refused.status_code in (400, 401, 403), (who, name)


async def test_owner_can_reach_all_objects(everybody: Everybody) -> None:
    """Check that the tests above can see objects at all."""
    called = Route(query={"url": f"{everybody.env.here.sandbox.url}/github/api/user"})
    for one in everybody.things:
        for who in one.seen_by:

            async def fetched(
                name: str, about: Route | None = None, one: Thing = one, who: str = who
            ) -> Any:
                ids = {one.parameter: one.id}
                answer = await everybody.sent(who, name, about or BY_ID[name], ids=ids)
                assert answer.is_success, (who, name, one.name, answer.text)
                return answer.json()

            match one.parameter:
                case "question_id":
                    assert (await fetched(f"GET {QUESTION}"))["id"] == one.id
                case "account_id":
                    assert (await fetched(f"GET {ACCOUNTS}"))["id"] == one.id
                    assert (await fetched(f"GET {ACCOUNTS}/token"))["access_token"]
                    assert (await fetched(f"GET {ACCOUNTS}/proxy", called))["login"] == "octocat"
                case "payment_id":
                    assert (await fetched(f"GET {PAYMENTS}"))["id"] == one.id
                    refunded = await fetched(f"POST {PAYMENTS}/refund", Route(body={}))
                    assert refunded["status"] == "refunded"
                case "webhook_id":
                    assert (await fetched(f"GET {WEBHOOKS}"))["id"] == one.id
                case "request_id":
                    decided = await fetched(f"POST {INBOX}/answer")
                    assert decided["decision"] == "approved"
                case "approval_id":
                    assert await fetched(f"DELETE {APPROVALS}") == {"revoked": 1}
