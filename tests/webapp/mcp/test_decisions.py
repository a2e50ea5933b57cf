"""Approvals by other people: they can take days, and only an allowed approver can decide."""

from datetime import timedelta
from typing import Any

import pytest

from flows import elicit
from flows.elicitation.states import Completion, Status
from flows.errors import InvalidQuestion
from tests.support.approving import (
    AT_ONCE,
    FINANCE,
    GROUPS,
    WAITS,
    approving,
    press,
    served,
    shop,
)
from tests.support.clock import Clock
from tests.support.issuer import issuing
from tests.support.mcp_server import (
    FORM,
    LEGACY,
    MODERN,
    URL,
    caller_of,
    link_in,
    new_server,
    server_env,
    text_of,
)
from webapp.identity.approvers import Approver
from webapp.settings.identity import IdentitySettings
from webapp.stores.sqlite import MemoryStore
from webapp.sweeper import fall_due


@pytest.mark.parametrize("declares", [URL, FORM, None])
async def test_tool_waits_for_days_until_another_person_approves(revision, declares):
    ran: list[str] = []
    async with approving(shop(ran=ran)) as here:
        async with here.asking(revision=revision, declares=declares) as caller:
            text = await caller.text("refund", order="o8")
            assert WAITS in text
            assert "Pay it back? (refund)" in text
            assert not caller.has_links_left, (
                "the client is not asked, because nobody in it can approve"
            )
        frank = await here.signed_in("frank")
        here.clock.tick(hours=2)
        assert "sign in again" in (await frank.visit(here.inbox)).text
        here.clock.tick(hours=45)
        await fall_due(here.env.service)
        frank = await here.signed_in("frank")
        page = await frank.visit(await here.one(frank))
        for words in ("alice", "refund", "Pay it back?", "o8", "finance"):
            assert words in page.text
        assert (await press(frank, await here.one(frank), "approve")).status == 200
        here.clock.tick(hours=1)
        async with here.asking(revision=revision, declares=declares) as caller:
            assert await caller.text("refund", order="o8") == "o8 is paid back"
            assert ran == ["o8"]
            assert WAITS in await caller.text("refund", order="o8"), (
                "an approval covers only one run"
            )
        assert ran == ["o8"]


async def test_waiting_call_resumes_after_approval(revision):
    async with approving(shop(), limits=None) as here, here.asking(revision=revision) as caller:
        call = caller.call("ship", order="o8")
        (asked,) = await here.env.pending()
        flora = await here.signed_in("flora")
        await press(flora, await here.one(flora), "approve")
        assert text_of(await call) == "accepted: shipped"
        row = await here.asked()
        assert (row.proof, row.id) == ("ByApprover", asked.id)
        assert row.decided_by is not None
        assert row.decided_by.name == f"{here.issuer.url}#flora"


async def test_asker_and_approver_read_the_same_question(revision):
    # finding: XP4
    server = new_server("mcp")

    @server.tool(title="Refund an order")
    @elicit.gate(approver="finance")
    async def refund(order: str) -> str:
        return order

    async with approving(server) as here, here.asking(revision=revision) as caller:
        link = link_in(await caller.result("refund", order="o8"))
        alice, frank = await here.signed_in("alice"), await here.signed_in("frank")
        for page in (await alice.visit(link), await frank.visit(await here.one(frank))):
            assert "Refund an order?" in page.text
            assert "Run refund?" not in page.text


async def test_declined_approval_includes_the_reason():
    ran: list[str] = []
    async with approving(shop(ran=ran)) as here, here.asking() as caller:
        for tool in ("refund", "ship"):
            link = link_in(await caller.result(tool, order="o8"))
            frank = await here.signed_in("frank")
            page = await press(frank, await here.one(frank), "decline", reason="No  receipt\nthere")
            assert "Declined" in page.text
            alice = await here.signed_in("alice")
            assert "No receipt there" in (await alice.visit(link)).text
            result = await caller.result(tool, order="o8")
            assert "No receipt there" in text_of(result)
            assert ("ELICITATION_DECLINED" in text_of(result)) == (tool == "refund")
            assert (await here.env.status(link)) is Status.DECLINED
        assert not ran


async def test_asker_cannot_approve_their_own_request():
    ran: list[str] = []
    async with approving(shop(ran=ran)) as here, here.asking("frank") as caller:
        await caller.result("refund", order="o8")
        frank, flora = await here.signed_in("frank"), await here.signed_in("flora")
        address = await here.one(frank)
        page = await frank.visit(address)
        assert "Approve</button>" not in page.text
        # Frank asked, so he cannot approve. He submits the form of his own page, then Flora's form.
        for person_page in (page, await flora.visit(address)):
            pressed = await press(frank, address, "approve", page=person_page)
            assert pressed.status == 403
        assert (await here.asked()).status is Status.PENDING
        await press(flora, address, "approve")
        assert await caller.text("refund", order="o8") == "o8 is paid back"


async def test_asker_can_approve_if_the_operator_allows_self_approval():
    async with approving(shop(), askers_decide=True) as here, here.asking("frank") as caller:
        await caller.result("refund", order="o8")
        frank = await here.signed_in("frank")
        await press(frank, await here.one(frank), "approve")
        assert await caller.text("refund", order="o8") == "o8 is paid back"


async def test_issuer_group_can_approve_only_with_a_recent_sign_in():
    async with approving(shop()) as here, here.asking() as caller:
        await caller.result("refund", order="o8")
        carol = await here.signed_in("carol", **GROUPS)
        address = await here.one(carol)
        page = await carol.visit(address)
        here.clock.tick(hours=1)
        pressed = await press(carol, address, "approve", page=page)
        assert pressed.status == 403
        assert pressed.heading == "Sign in to see your inbox"
        # In the meantime Carol has left the group.
        carol = await here.signed_in("carol", groups=["staff"])
        assert await here.waiting(carol) == []
        assert (await press(carol, address, "approve", page=page)).status == 404
        assert (await here.asked()).status is Status.PENDING
        carol = await here.signed_in("carol", groups="finance-approvers")
        await press(carol, address, "approve")
        assert await caller.text("refund", order="o8") == "o8 is paid back"


async def test_second_of_two_concurrent_approvals_sees_who_decided():
    async with approving(shop()) as here, here.asking() as caller:
        await caller.result("refund", order="o8")
        frank, flora = await here.signed_in("frank"), await here.signed_in("flora")
        address = await here.one(frank)
        hers = await flora.visit(address)
        await press(frank, address, "approve")
        late = await press(flora, address, "decline", page=hers)
        assert late.status == 409
        assert "This had ended before you pressed the button." in late.text
        assert "by <bdi>frank" in late.text
        assert (await here.asked()).status is Status.ACCEPTED
        assert await here.inboxes(flora) == ([], [address])
        again = await press(frank, address, "approve", page=await frank.visit(address))
        assert again.status != 409


async def test_asker_can_withdraw_an_approval_request():
    async with approving(shop()) as here, here.asking() as caller:
        link = link_in(await caller.result("ship", order="o8"))
        frank, alice = await here.signed_in("frank"), await here.signed_in("alice")
        address = await here.one(frank)
        before = await frank.visit(address)
        page = await alice.visit(link)
        assert page.heading == "Waiting for finance"
        assert (await alice.decline(link)).heading == "Withdrawn"
        assert (await here.asked()).status is Status.CANCELLED
        late = await press(frank, address, "approve", page=before)
        assert (late.status, "Withdrawn" in late.text) == (409, True)
        assert await here.inboxes(frank) == ([], [address])


async def test_askers_link_cannot_approve():
    async with approving(shop()) as here, here.asking() as caller:
        link = link_in(await caller.result("refund", order="o8"))
        alice, frank = await here.signed_in("alice"), await here.signed_in("frank")
        page = await alice.visit(link)
        assert (await alice.browser.post(link, data={"csrf": page.csrf})).status_code == 303
        assert (await frank.visit(link)).status == 403, "only the asker can open the asker's link"
        assert await here.env.complete(link) is Completion.UNKNOWN
        assert (await here.asked()).status is Status.PENDING


async def test_undecided_approval_expires():
    async with approving(shop()) as here, here.asking() as caller:
        link = link_in(await caller.result("refund", order="o8"))
        here.clock.tick(days=2, hours=23, minutes=30)
        frank = await here.signed_in("frank")
        address = await here.one(frank)
        page = await frank.visit(address)
        here.clock.tick(minutes=40)
        late = await press(frank, address, "decline", page=page)
        assert "Not decided in time" in late.text
        assert (await here.env.status(link)) in (Status.PENDING, Status.EXPIRED)
        while await fall_due(here.env.service):
            here.clock.tick(minutes=1)
        assert (await here.env.status(link)) is Status.EXPIRED
        assert WAITS in await caller.text("refund", order="o8"), (
            "the call asks again after the approval expired"
        )


async def test_approval_older_than_a_day_is_requested_again():
    ran: list[str] = []
    async with approving(shop(ran=ran)) as here, here.asking() as caller:
        await caller.result("refund", order="o8")
        frank = await here.signed_in("frank")
        await press(frank, await here.one(frank), "approve")
        assert WAITS in await caller.text("refund", order="o9"), (
            "an approval does not cover other arguments"
        )
        here.clock.tick(hours=25)
        assert WAITS in await caller.text("refund", order="o8")
        assert not ran


async def test_approval_survives_restarts_before_and_after_the_decision(revision):
    clock, store, ran = Clock(), MemoryStore(), list[str]()
    async with issuing(clock) as issuer:

        def process() -> Any:
            return served(shop(ran=ran), issuer, clock, store=store.sibling())

        async with process() as here, here.asking(revision=revision) as caller:
            assert WAITS in await caller.text("refund", order="o8")
        clock.tick(days=2)
        async with process() as here:
            frank = await here.signed_in("frank")
            await press(frank, await here.one(frank), "approve")
        assert not ran
        async with process() as here, here.asking(revision=revision) as caller:
            assert await caller.text("refund", order="o8") == "o8 is paid back"
        assert ran == ["o8"]


@pytest.mark.parametrize("tool", ["refund", "ship"])
async def test_unknown_approver_error_names_the_setting(tool):
    async with approving(shop(), approvers=()) as here, here.asking() as caller:
        result = await caller.result(tool, order="o8")
        assert result.is_error
        assert "[approvers.finance] in elicit.toml" in text_of(result)
        assert await here.env.elicitations() == []


async def test_self_approval_on_own_machine_requires_a_setting():
    me = Approver(name="finance", is_local=True)
    async with caller_of(shop(), MODERN, who=IdentitySettings(approvers=(me,))) as (_, caller):
        assert "ELICIT_APPROVERS_ASKER" in await caller.text("refund", order="o8")
    who = IdentitySettings(approvers=(me,), askers_decide=True)
    async with server_env(shop(), who=who, limits=AT_ONCE) as env, env.caller(LEGACY) as caller:
        await caller.result("refund", order="o8")
        person = await env.person()
        page = await person.visit(f"{env.url}/inbox")
        assert "Pay it back?" in page.text
        (item,) = (await env.service.kinds.decisions.inbox("finance"))[0]
        await press(person, f"{env.url}/inbox/finance/{item.id}", "approve")
        assert await caller.text("refund", order="o8") == "o8 is paid back"


async def test_approval_with_incompatible_identification_is_refused():
    users = Approver(name="finance", users=frozenset({"ann"}))
    async with approving(shop(), approvers=(users,)) as here, here.asking() as caller:
        text = await caller.text("refund", order="o8")
        assert "[approvers.finance]" in text
        assert await here.env.elicitations() == []


async def test_two_questions_of_a_call_wait_for_two_approvers(library: Any):
    legal = Approver(name="legal", subjects=frozenset({"lea"}))
    server = new_server(library)

    @server.tool()
    async def sign() -> str:
        both = await elicit.together(
            elicit.confirm("Pay?", approver="finance"), elicit.confirm("Sign?", approver="legal")
        )
        return str(both)

    async with approving(server, approvers=(FINANCE, legal)) as here, here.asking() as caller:
        text = await caller.text("sign")
        assert "Waiting for finance and legal." in text
        frank, lea = await here.signed_in("frank"), await here.signed_in("lea")
        await press(frank, await here.one(frank), "approve")
        assert "Waiting for legal." in await caller.text("sign")
        await press(lea, await here.one(lea), "decline")
        assert await caller.text("sign") == "(True, False)"


async def test_model_can_withdraw_but_not_approve(revision):
    async with approving(shop()) as here, here.asking(revision=revision, declares=None) as caller:
        link = link_in(await caller.result("refund", order="o8"))
        id = here.env.id_of(link)
        attempts: list[dict[str, Any]] = [{"action": "accept"}, {"content": {}}]
        for attempt in attempts:
            result = await caller.result("elicitation_result", elicitId=id, **attempt)
            assert result.is_error
            assert (await here.env.status(link)) is Status.PENDING
        assert WAITS in await caller.text("elicitation_result", elicitId=id)
        await caller.result("elicitation_result", elicitId=id, action="decline")
        assert (await here.env.status(link)) is Status.CANCELLED


def test_approval_timeout_is_a_day_and_bad_approver_names_are_refused():
    assert elicit.confirm("Pay?", approver="finance").timeout == timedelta(days=1)
    assert elicit.confirm("Pay?").timeout == timedelta(minutes=5)
    for wrong in ("", "Finance", "a b", "x" * 33):
        with pytest.raises(InvalidQuestion):
            _ = elicit.confirm("Pay?", approver=wrong)
