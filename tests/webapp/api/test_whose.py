"""Every route of the API by whoever may come to it: what is not theirs is as what never was.

The routes are those of the document, so that a new one is tried here, or has no case and fails.
"""

import re
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import httpx
import pytest
import pytest_asyncio
from msgspec.structs import replace

from tests.support.api_people import PeopleEnv, alone, people_env
from tests.support.api_program import CONFIRM, Program, program_at
from tests.support.living import living
from tests.support.service_env import question_in_store
from webapp.api.asking import application_of, client_of, owner_of_user
from webapp.identity.api_keys import KeyScope, new_text
from webapp.records.owners import SERVICE
from webapp.records.values import Approval

pytestmark = pytest.mark.asyncio(loop_scope="module")
LONG = timedelta(days=1)
BODIES: Mapping[str, Any] = {
    "/api/questions/{question_id}/complete": {},
    "/api/questions/{question_id}/user-code": {"code": "BCDF-GHJK"},
    "/api/questions/{question_id}/answer": {"accepts": True},
}
SHOP, DESK = "its program", "a key that approves for ann"
OF_ALICE, ALICE = "its program for alice", "alice alone"


@dataclass(frozen=True, slots=True, kw_only=True)
class Thing:
    """What an id of the API leads to, and who may see it."""

    name: str
    parameter: str
    id: str
    seen_by: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True, kw_only=True)
class Everybody:
    env: PeopleEnv
    requesters: Mapping[str, Program]
    things: tuple[Thing, ...]
    routes: tuple[tuple[str, str, bool], ...]  # method, path, whether it says whose

    async def send(self, who: str, method: str, path: str, *, says_whose: bool) -> httpx.Response:
        self.env.here.clock.tick(seconds=1)  # nobody comes to their rate
        program = self.requesters[who]
        is_for_user = says_whose and program.token is None and not who.endswith("alone")
        about: dict[str, Any] = {"params": {"user": "ann"}} if is_for_user else {}
        template = re.sub(r"(questions|approvals)/[^/]+", r"\1/{question_id}", path)
        if template in BODIES:
            about["json"] = BODIES[template]
        return await program.send(method, path, **about)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def everybody() -> AsyncIterator[Everybody]:
    async with living(people_env()) as env, AsyncExitStack() as stack:
        requesters = await _requesters(env, stack)
        document = (await requesters[SHOP].send("GET", "/api/reference/openapi.json")).json()
        yield Everybody(
            env=env,
            requesters=requesters,
            things=tuple(await _things(env, requesters)),
            routes=tuple(
                (method.upper(), path, "user" in _queries(operation))
                for path, item in document["paths"].items()
                for method, operation in item.items()
            ),
        )


def _queries(operation: Mapping[str, Any]) -> set[str]:
    return {one["name"] for one in operation.get("parameters", ()) if one["in"] == "query"}


async def _requesters(env: PeopleEnv, stack: AsyncExitStack) -> dict[str, Program]:
    until = int((env.here.clock() + LONG).timestamp())

    async def program(name: str = "shop", **about: Any) -> Program:
        return await stack.enter_async_context(program_at(env.here, program=name, **about))

    async def person(text: str) -> Program:
        return await stack.enter_async_context(alone(env, text))

    shop, other = await program(), await program("other")
    approving = {"name": "desk", "scope": KeyScope.APPROVE}
    desk = await program(**approving, owners=("ann",))
    alices, bobs = (env.token(who, exp=until) for who in ("alice", "bob"))
    early = env.token("alice", iat=until - 3 * 86400, exp=until - 2 * 86400)
    elsewhere = env.token("alice", exp=until, audience="https://elsewhere.example/mcp")
    nobody = await person("")
    del nobody.client.headers["authorization"]
    return {
        SHOP: shop,
        DESK: desk,
        OF_ALICE: shop.acting_for(alices),
        ALICE: await person(alices),
        "nobody": nobody,
        "a key that was never made": await person(new_text()),
        "another program": other,
        "its program, for other users": await program(owners=("bob",)),
        "a key that approves for bob": await program(**approving, owners=("bob",)),
        "its program for bob": shop.acting_for(bobs),
        "another program for alice": other.acting_for(alices),
        "a key that approves, for alice": desk.acting_for(alices),
        "its program by an old token": shop.acting_for(early),
        "its program by a token for elsewhere": shop.acting_for(elsewhere),
        "its program by a token of nobody's": shop.acting_for(env.token(None, exp=until)),
        "bob alone": await person(bobs),
        "an old token alone": await person(early),
    }


async def _things(env: PeopleEnv, requesters: Mapping[str, Program]) -> list[Thing]:
    service = env.here.service
    long = {**CONFIRM, "timeout_seconds": int(LONG.total_seconds())}
    anns = await requesters[SHOP].asked(long)
    alices = await requesters[OF_ALICE].asked(long)
    server, program = application_of(service), client_of("shop")
    ann, alice, machine = (
        owner_of_user(service, "ann"),
        env.owner("alice"),
        service.identity.local_owner,
    )

    async def question(owner: str, *, kind: str = "confirm", is_for_user: bool = False) -> str:
        fresh = question_in_store(service, join=f"{owner} {kind}", kind=kind, timeout=LONG)
        id = service.elicitations.new_id(owner)
        asked = replace(fresh.asked, server=server, terms={"schema": {"type": "object"}})
        await service.elicitations.write(
            replace(fresh, id=id, owner=owner, asked=asked, is_for_user=is_for_user)
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

    def thing(parameter: str, name: str, id: str, *seen_by: str) -> Thing:
        return Thing(name=name, parameter=parameter, id=id, seen_by=frozenset(seen_by))

    asked, allowed = "question_id", "approval_id"
    return [
        thing(asked, "a user's", anns["id"], SHOP, DESK),
        thing(asked, "a person's", alices["id"], OF_ALICE, ALICE),
        thing(asked, "a tool's of a person", await question(alice), ALICE),
        thing(asked, "a gate of a person", await question(alice, kind="gate"), ALICE),
        thing(asked, "the application's own", await question(ann, is_for_user=True), DESK),
        thing(asked, "this machine's user's", await question(machine)),
        thing(asked, "the service's", SERVICE + "A" * 40),
        thing(allowed, "a person's, to a tool", await approval(alice, "wipe"), ALICE),
        thing(allowed, "a user's, to the program", await approval(ann, program), SHOP),
        thing(allowed, "this machine's user's", await approval(machine, "wipe")),
    ]


def _told(answer: httpx.Response) -> object:
    headers = {name: text for name, text in answer.headers.items() if name != "date"}
    return answer.status_code, headers, answer.text


async def test_what_is_not_theirs_is_told_as_what_never_was(everybody: Everybody) -> None:
    env = everybody.env
    rows = env.here.service.elicitations
    before = [await rows.store.read(one.id[:20], kind, one.id) for one, kind in _rows(everybody)]
    assert {path for _, path, _ in everybody.routes if "{" in path} >= set(BODIES)
    for method, template, says_whose in everybody.routes:
        named = re.findall(r"\{(\w+)\}", template)
        if not named:
            continue
        things = [one for one in everybody.things if one.parameter == named[0]]
        assert things, f"{template}: whose is what it leads to?"
        for who in everybody.requesters:

            async def told(
                id: str,
                who: str = who,
                method: str = method,
                template: str = template,
                says_whose: bool = says_whose,
            ) -> httpx.Response:
                path = re.sub(r"\{\w+\}", id, template)
                return await everybody.send(who, method, path, says_whose=says_whose)

            never = await told(things[0].id[:-4] + "AAAA")
            assert never.status_code in (401, 403, 404), (who, method, template)
            for thing in things:
                if who not in thing.seen_by:
                    about = (who, method, template, thing.name)
                    assert _told(await told(thing.id)) == _told(never), about
                elif method == "GET" and not template.endswith("/events"):
                    assert (await told(thing.id)).status_code == 200, (who, thing.name)
    after = [await rows.store.read(one.id[:20], kind, one.id) for one, kind in _rows(everybody)]
    assert after == before


def _rows(everybody: Everybody) -> list[tuple[Thing, str]]:
    kinds = {"question_id": "elicitation", "approval_id": "approval"}
    return [(one, kinds[one.parameter]) for one in everybody.things]


async def test_a_list_has_what_is_theirs_and_no_more(everybody: Everybody) -> None:
    lists = [
        (path, says_whose)
        for method, path, says_whose in everybody.routes
        if method == "GET" and "{" not in path
    ]
    assert sorted(path for path, _ in lists) == ["/api/approvals", "/api/questions"]
    for path, says_whose in lists:
        name = path.removeprefix("/api/")
        for who in everybody.requesters:
            answer = await everybody.send(who, "GET", path, says_whose=says_whose)
            listed = {one["id"] for one in answer.json().get(name, ())}
            theirs = {
                one.id
                for one in everybody.things
                if one.parameter == f"{name[:-1]}_id" and who in one.seen_by
            }
            assert answer.status_code == 200 or not theirs, (who, path)
            assert listed == theirs, (who, path)
