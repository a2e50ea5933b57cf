"""Programs that act for a person with the person's access token, and people who act themselves."""

from collections.abc import AsyncIterator
from datetime import timedelta
from typing import Any

import pytest
import pytest_asyncio

from tests.support.api_people import PeopleEnv, people_env, person_client
from tests.support.api_program import ACCOUNT, CONFIRM, PAYMENT, URL, Program, program_at
from tests.support.chains import audit_entries_of
from tests.support.living import living
from tests.support.mcp_sandbox import Guest
from webapp.api.access import PERSON_HEADER
from webapp.api.asking import application_of, owner_of_user
from webapp.identity.api_keys import KeyScope
from webapp.records.ids import tail_of
from webapp.records.values import Approval

pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def env() -> AsyncIterator[PeopleEnv]:
    async with living(people_env()) as env:
        yield env


@pytest_asyncio.fixture(loop_scope="module")
async def shop(env: PeopleEnv) -> AsyncIterator[Program]:
    async with program_at(env.here) as program:
        yield program


async def test_link_opens_in_browser_signed_in_as_asked_person_and_in_no_other(
    env: PeopleEnv, shop: Program
) -> None:
    asked = await shop.acting_for(env.acting("alice")).asked(CONFIRM)
    assert (asked["status"], asked["needs_code"]) == ("pending", False)
    user = await env.here.browser("alice")  # another alice, known only to the application
    assert "Delete it?" not in (await user.visit(asked["url"])).text
    bob = await env.signed_in("bob", asked["url"])
    assert "Delete it?" not in (await bob.visit(asked["url"])).text
    alice = await env.signed_in("alice", asked["url"])
    assert "Delete it?" in (await alice.visit(asked["url"])).text
    await alice.press(asked["url"])
    answer = await shop.acting_for(env.acting("alice")).read(asked["id"], wait=50)
    assert answer["status"] == "accepted"


async def test_question_for_person_is_hidden_without_person_token(
    env: PeopleEnv, shop: Program
) -> None:
    asked = await shop.acting_for(env.acting("alice")).asked(CONFIRM)
    for program in (shop, shop.acting_for(env.acting("bob"))):
        unknown = await program.call("GET", f"/{asked['id']}")
        assert (unknown.status_code, unknown.json()["code"]) == (404, "NO_SUCH_QUESTION")
        assert (await program.post(asked["id"], "cancel")).status_code == 404
    listed = await shop.call("GET", params={"user": "alice"})
    assert listed.json()["questions"] == []


async def test_person_token_replaces_user_parameter(env: PeopleEnv, shop: Program) -> None:
    acting = shop.acting_for(env.acting("alice"))
    twice = await acting.call("POST", json={**CONFIRM, "user": "ann"})
    assert (twice.status_code, "Leave `user` out" in twice.json()["detail"]) == (400, True)
    assert (await acting.call("GET", params={"user": "ann"})).status_code == 400
    nobody = await shop.call("POST", json=CONFIRM)
    assert (nobody.status_code, PERSON_HEADER in nobody.json()["detail"]) == (400, True)


async def test_same_idempotency_key_is_separate_for_each_person_and_program(
    env: PeopleEnv, shop: Program
) -> None:
    alice, bob = (shop.acting_for(env.acting(who)) for who in ("alice", "bob"))
    async with program_at(env.here, program="other") as other:
        programs = (alice, alice, bob, other.acting_for(env.acting("alice")), shop)
        answers = [await each.ask(PAYMENT, name="order 1") for each in programs]
    ids = [answer.json()["id"] for answer in answers]
    assert ids[0] == ids[1]
    assert len(set(ids)) == 4
    reused = await alice.ask({**PAYMENT, "amount": "90.00"}, name="order 1")
    assert (reused.status_code, reused.json()["code"]) == (409, "IDEMPOTENCY_KEY_REUSED")


async def test_account_of_person_is_reused_and_answer_can_be_claimed(
    env: PeopleEnv, shop: Program
) -> None:
    acting = shop.acting_for(env.acting("carol"))
    asked = await acting.asked(ACCOUNT)
    carol = await env.signed_in("carol", asked["url"])
    await Guest(carol).connect(asked["url"])
    answer = await acting.read(asked["id"], wait=50)
    assert answer["account"]["provider"] == "github"
    assert (await acting.post(asked["id"], "taken")).json()["taken_at"] is not None
    assert (await acting.asked(ACCOUNT))["account"] == answer["account"]
    assert (await shop.acting_for(env.acting("dave")).asked(ACCOUNT))["status"] == "pending"


async def test_person_without_key_lists_own_questions_and_cannot_answer(
    env: PeopleEnv, shop: Program
) -> None:
    # parity: T6
    by_program = await shop.acting_for(env.acting("erin")).asked(CONFIRM)
    by_tool = await env.asked_by_a_tool("erin", "visit")
    async with (
        person_client(env, env.own("erin")) as erin,
        person_client(env, env.own("frank")) as frank,
    ):
        listed = (await erin.call("GET", params={"waiting": True})).json()["questions"]
        assert {one["id"]: one["asked_by"] for one in listed} == {
            by_program["id"]: "shop (API)",
            by_tool.id: "visit",
        }
        assert all(one["url"].startswith(env.here.url) for one in listed)
        assert (await frank.call("GET", params={"waiting": True})).json()["questions"] == []
        assert (await frank.call("GET", f"/{by_tool.id}")).status_code == 404
        for verb, body in (("cancel", None), ("taken", None), ("answer", {"accepts": True})):
            refused = await erin.post(by_program["id"], verb, body)
            assert (refused.status_code, refused.json()["code"]) == (401, "API_KEY_REFUSED")
        assert (await erin.call("POST", json=CONFIRM)).status_code == 401
        seen = await shop.acting_for(env.acting("erin")).call("GET", params={"waiting": True})
        assert [one["id"] for one in seen.json()["questions"]] == [by_program["id"]]


async def test_person_lists_and_revokes_approvals_of_tool(env: PeopleEnv, shop: Program) -> None:
    # parity: T7
    async with (
        person_client(env, env.own("gwen")) as gwen,
        person_client(env, env.own("hal")) as hal,
    ):
        for end in ("one", "all"):
            asked = await env.asked_by_a_tool("gwen", "wipe", folder="tmp")
            url = env.here.service.links.of(asked, now=env.here.clock())
            await (await env.signed_in("gwen", url)).press(url)
            assert await env.call("gwen", "wipe", folder="tmp") == "tmp is empty"
            (given,) = (await gwen.send("GET", "/api/approvals")).json()["approvals"]
            assert (given["tool"], given["arguments"]) == ("wipe", "folder: tmp")
            assert (await hal.send("GET", "/api/approvals")).json() == {"approvals": []}
            path = f"/api/approvals/{given['id']}"
            stranger = await hal.send("DELETE", path)
            assert (stranger.status_code, stranger.json()["code"]) == (404, "NO_SUCH_APPROVAL")
            # A program sees only approvals of its own questions. This approval was given to a tool.
            acting = shop.acting_for(env.acting("gwen"))
            assert (await acting.send("GET", "/api/approvals")).json() == {"approvals": []}
            assert (await acting.send("DELETE", path)).status_code == 404
            assert (await acting.send("DELETE", "/api/approvals")).json() == {"revoked": 0}
            ended = await gwen.send("DELETE", path if end == "one" else "/api/approvals")
            assert ended.json() == {"revoked": 1}
            assert (await gwen.send("DELETE", path)).status_code == 404
        again = await env.asked_by_a_tool("gwen", "wipe", folder="tmp")
        assert again.kind == "gate"


async def test_program_lists_and_revokes_approvals_of_user(env: PeopleEnv, shop: Program) -> None:
    rows = env.here.service.elicitations
    owner, now = owner_of_user(env.here.service, "ann"), env.here.clock()
    for tool in ("shop (API)", "other (API)"):
        given = Approval(
            id=rows.new_id(owner),
            owner=owner,
            server=application_of(env.here.service),
            tool=tool,
            covers=None,
            about="whatever it is given",
            given_at=now,
            until=now + timedelta(hours=1),
            erase_at=now + timedelta(days=30),
            is_for_all=True,
        )
        await rows.write(given)
    listed = (await shop.send("GET", "/api/approvals", params={"user": "ann"})).json()
    assert [one["tool"] for one in listed["approvals"]] == ["shop (API)"]
    assert (await shop.send("GET", "/api/approvals")).status_code == 400
    assert (await shop.send("DELETE", "/api/approvals?user=bob")).json() == {"revoked": 0}
    assert (await shop.send("DELETE", "/api/approvals?user=ann")).json() == {"revoked": 1}
    left = await env.here.service.kinds.gates.approvals.all(owner=owner)
    assert [one.tool for one in left] == ["other (API)"]


async def test_audit_names_key_or_person(env: PeopleEnv, shop: Program) -> None:
    service = env.here.service
    key = await service.identity.api_keys.of(shop.key)
    acting = shop.acting_for(env.acting("ivy"))
    for verb, body in (("cancel", CONFIRM), ("complete", URL)):
        asked = await acting.asked(body)
        given: dict[str, Any] | None = {} if verb == "complete" else None
        assert (await acting.post(asked["id"], verb, given)).status_code == 200
    gate = await env.asked_by_a_tool("ivy", "wipe", folder="tmp")
    url = service.links.of(gate, now=env.here.clock())
    await (await env.signed_in("ivy", url)).press(url)
    async with person_client(env, env.own("ivy")) as ivy:
        await ivy.send("DELETE", "/api/approvals")
    entries = [(one.what, one.by) for one in await audit_entries_of(service, env.owner("ivy"))]
    by_key = f"key {tail_of(key)}"
    assert ("cancelled", by_key) in entries
    assert ("revoked", f"person {env.owner('ivy')}") in entries
    assert [by for what, by in entries if what == "accepted"] == [by_key, "service"]
    assert {by for what, by in entries if what in ("asked", "opened", "given")} == {"service"}


async def test_audit_names_key_which_approved_or_declined(env: PeopleEnv, shop: Program) -> None:
    about: dict[str, Any] = {"scope": KeyScope.APPROVE, "owners": ("jo",)}
    async with program_at(env.here, program="desk", **about) as desk:
        for accepts in (True, False):
            asked = await shop.asked(CONFIRM, user="jo")
            await desk.post(asked["id"], "answer", {"accepts": accepts})
    service = env.here.service
    entries = await audit_entries_of(service, owner_of_user(service, "jo"))
    (key,) = [one for one in await service.identity.api_keys.all() if one.program == "desk"]
    ends = [(one.what, one.by) for one in entries if one.what in ("accepted", "declined")]
    assert ends == [("accepted", f"key {tail_of(key)}"), ("declined", f"key {tail_of(key)}")]
