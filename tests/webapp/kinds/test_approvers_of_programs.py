"""Approvers named by a program, an `asking` block or the client, with the rules of a tool."""

import re
from collections.abc import AsyncIterator
from datetime import datetime
from html import unescape
from typing import Any

import httpx
import pytest

from flows import Declined, NotConfigured, elicit
from flows.elicitation.states import Status
from tests.support.api_people import people_env, person_client
from tests.support.api_program import Program, program_at
from tests.support.approving import FINANCE, press
from tests.support.asking_env import AskingEnv, asking_env
from tests.support.living import living
from tests.support.mcp_server import TLS, Person
from tests.support.runs_env import Programs, programs_at
from webapp.client import Elicit, list_questions
from webapp.identity.api_keys import KeyScope
from webapp.identity.approvers import Approver
from webapp.settings.identity import IdentitySettings

# finding: XQ3
USERS = Approver(name="finance", users=frozenset({"ann", "frank", "flora"}))
REFUND = {"kind": "confirm", "message": "Refund it?", "arguments": {"order": "A-17"}}
FOR_FINANCE = {**REFUND, "approver": "finance"}


@pytest.fixture
async def here() -> AsyncIterator[AskingEnv]:
    async with living(asking_env(identity=IdentitySettings(approvers=(USERS,)))) as here:
        yield here


@pytest.fixture
async def shop(here: AskingEnv) -> AsyncIterator[Program]:
    async with program_at(here) as program:
        yield program


@pytest.fixture
async def programs(here: AskingEnv) -> AsyncIterator[Programs]:
    async with programs_at(here) as programs:
        yield programs


async def request_of(here: AskingEnv, person: Person) -> str:
    """Return the address of the one request that waits in the person's inbox."""
    page = await person.visit(f"{here.url}/inbox")
    waiting = page.text.partition("Decided in the last 30 days")[0]
    (path,) = re.findall(r'<a href="(/inbox/finance/[^"]+)"', waiting)
    return f"{here.url}{unescape(path)}"


async def test_program_receives_the_approval(here: AskingEnv, shop: Program) -> None:
    asked = await shop.asked(FOR_FINANCE)
    assert (asked["kind"], asked["status"]) == ("decision", "pending")
    assert "Waiting for" in (await (await here.browser()).visit(asked["url"])).text
    frank = await here.browser("frank")
    address = await request_of(here, frank)
    shown = (await frank.visit(address)).text
    for word in ("Refund it?", "A-17", "shop", "ann"):
        assert word in shown
    await press(frank, address, "approve")
    assert (await shop.read(asked["id"], wait=50))["status"] == "accepted"
    assert (await shop.post(asked["id"], "taken")).status_code == 200


async def test_program_receives_the_reason_of_a_decline(here: AskingEnv, shop: Program) -> None:
    asked = await shop.asked(FOR_FINANCE)
    frank = await here.browser("frank")
    await press(frank, await request_of(here, frank), "decline", reason="No receipt")
    answer = await shop.read(asked["id"], wait=50)
    assert (answer["status"], answer["why"]) == ("declined", "No receipt")


async def test_asker_cannot_decide_on_page_or_over_the_api(here: AskingEnv, shop: Program) -> None:
    asked = await shop.asked(FOR_FINANCE)
    ann = await here.browser("ann")
    address = await request_of(here, ann)
    assert (await press(ann, address, "approve")).status == 403
    async with program_at(here, program="desk", scope=KeyScope.APPROVE, owners=("ann",)) as desk:
        answer = {"accepts": True, "content": {}}
        assert (await desk.post(asked["id"], "answer", answer)).status_code == 404
    assert (await shop.post(asked["id"], "complete", {"content": {}})).status_code == 403
    assert (await shop.post(asked["id"], "answer", {"accepts": True})).status_code == 403
    assert (await shop.read(asked["id"]))["status"] == "pending"


async def test_unknown_approver_is_refused_at_once(shop: Program) -> None:
    refused = await shop.ask({**REFUND, "approver": "fnance"})
    assert (refused.status_code, refused.json()["code"]) == (422, "ELICITATION_NOT_CONFIGURED")
    assert "[approvers.fnance]" in refused.json()["detail"]
    assert "finance" in refused.json()["detail"]
    invalid = await shop.ask({**REFUND, "approver": "No Name"})
    assert invalid.status_code == 400
    form = await shop.ask({"kind": "form", "message": "City?", "approver": "finance"})
    assert form.status_code == 400
    assert "has no approver" in form.json()["detail"]


async def test_request_of_program_expires_after_a_day_or_its_own_timeout(shop: Program) -> None:
    def seconds(asked: dict[str, Any]) -> float:
        begin, end = (datetime.fromisoformat(asked[name]) for name in ("asked_at", "expires_at"))
        return (end - begin).total_seconds()

    assert seconds(await shop.asked(FOR_FINANCE)) == 24 * 3600
    assert seconds(await shop.asked({**FOR_FINANCE, "timeout_seconds": 60})) == 60


async def test_program_cancels_its_request(here: AskingEnv, shop: Program) -> None:
    asked = await shop.asked(FOR_FINANCE)
    frank = await here.browser("frank")
    address = await request_of(here, frank)
    assert (await shop.post(asked["id"], "cancel")).json()["status"] == "cancelled"
    assert "Withdrawn" in (await frank.visit(f"{here.url}/inbox")).text
    assert (await frank.visit(address)).csrf is None
    async with program_at(here, program="other") as other:
        again = await shop.asked({**FOR_FINANCE, "message": "And this?"})
        assert (await other.post(again["id"], "cancel")).status_code == 404


async def test_approval_is_refused_if_no_approver_can_be_identified() -> None:
    by_code = IdentitySettings(approvers=(USERS,), binds_by_code=True)
    async with asking_env(who=None, identity=by_code) as here, program_at(here) as shop:
        refused = await shop.ask(FOR_FINANCE)
        assert (refused.status_code, refused.json()["code"]) == (422, "ELICITATION_NOT_CONFIGURED")
        assert "same method" in refused.json()["detail"]


@pytest.mark.parametrize("answer", ["approve", "decline"])
async def test_client_and_block_receive_the_decision(
    here: AskingEnv, programs: Programs, answer: str
) -> None:
    async def work(_: Elicit | None = None) -> object:
        asked = elicit.confirm("Refund it?", arguments={"order": "A-17"}, approver="finance")
        return await asked.outcome()

    frank = await here.browser("frank")
    for begin in (programs.begin, here.begin):
        block = begin(work)
        await block.link()
        await press(frank, await request_of(here, frank), answer, reason="No receipt")
        outcome: Any = await block
        if answer == "approve":
            assert outcome.content is True
        else:
            assert outcome.status is Status.DECLINED
            assert isinstance(outcome.error, Declined)
            assert "finance declined: 'Refund it?' (No receipt)" in str(outcome.error)


async def test_unknown_approver_raises_in_client_and_block(
    here: AskingEnv, programs: Programs
) -> None:
    async def work(_: Elicit | None = None) -> object:
        return await elicit.confirm("Refund it?", approver="fnance")

    for block in (programs.begin(work), here.begin(work)):
        with pytest.raises(NotConfigured, match=r"\[approvers.fnance\]"):
            await block


async def test_program_asks_approver_on_behalf_of_a_signed_in_person() -> None:
    async with people_env(approvers=(FINANCE,)) as env, program_at(env.here) as shop:
        acting = shop.acting_for(env.acting("alice"))
        asked = await acting.asked(FOR_FINANCE)
        async with (
            person_client(env, env.own("alice")) as alice,
            person_client(env, env.own("frank")) as frank,
        ):
            assert (await alice.at("inbox")).status_code == 403
            (request,) = (await frank.at("inbox")).json()["requests"]
            assert (request["asked_by"], request["arguments"]) == ("alice", {"order": "A-17"})
            path = f"inbox/{request['id']}/answer"
            done = await frank.at(path, method="POST", json={"accepts": True})
            assert done.json()["decision"] == "approved"
        assert (await acting.read(asked["id"]))["status"] == "accepted"


async def test_comments_reach_program_client_and_block() -> None:
    commented = Approver(name="finance", users=frozenset({"ann", "frank"}), comment="required")
    identity = IdentitySettings(approvers=(commented,))

    async def work(_: Elicit | None = None) -> object:
        return await elicit.confirm("Refund it?", approver="finance").outcome()

    async with (
        asking_env(identity=identity) as here,
        program_at(here) as shop,
        programs_at(here) as programs,
    ):
        frank = await here.browser("frank")
        for begin in (programs.begin, here.begin):
            block = begin(work)
            await block.link()
            await press(frank, await request_of(here, frank), "approve", reason="Checked")
            outcome: Any = await block
            assert outcome.comments == ("Checked",)
        asked = await shop.asked(FOR_FINANCE)
        await press(frank, await request_of(here, frank), "approve", reason="Fine")
        assert (await shop.read(asked["id"], wait=50))["comments"] == ["Fine"]


async def test_list_of_waiting_questions_contains_approvals(
    here: AskingEnv, shop: Program, programs: Programs
) -> None:
    # finding: XQ5
    for user in ("ann", "bob"):
        await shop.asked(FOR_FINANCE, user=user)
    await shop.asked({"kind": "form", "message": "Which city?"})
    listed = (await shop.call("GET", params={"waiting": "true", "limit": 2})).json()
    rest = {"waiting": "true", "limit": 2, "after": listed["after"]}
    more = (await shop.call("GET", params=rest)).json()
    found = [*listed["questions"], *more["questions"]]
    assert sorted(one["kind"] for one in found) == ["decision", "decision", "form"]
    assert {one["approver"] for one in found} == {"finance", None}

    async def kinds() -> list[str]:
        transport = httpx.AsyncHTTPTransport(verify=TLS)
        found = list_questions(here.url, api_key=programs.key, waiting=True, transport=transport)
        return sorted([one.kind async for one in found])

    assert await kinds() == ["decision", "decision", "form"]
    frank = await here.browser("frank")
    page = await frank.visit(f"{here.url}/inbox")
    address = re.findall(r'<a href="(/inbox/finance/[^"]+)"', page.text)[0]
    await press(frank, f"{here.url}{unescape(address)}", "approve")
    assert await kinds() == ["decision", "form"]
