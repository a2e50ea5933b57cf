"""Approvals that need several people, comments, delegation, and escalation to other people."""

import dataclasses
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from datetime import timedelta
from typing import Any

import pytest
from msgspec.structs import replace

from flows.elicitation.states import Status
from flows.elicitation.voting import voting_in
from flows.errors import NotAllowed
from tests.support.approving import ApprovalEnv, approving, press, sent, served, shop
from tests.support.clock import Clock
from tests.support.issuer import Issuing, issuing
from tests.support.mcp_server import MODERN
from webapp.identity.approvers import Approver, Deciding, KnownBy
from webapp.kinds.decision import comment_in
from webapp.stores.sqlite import MemoryStore
from webapp.sweeper import fall_due

# finding: XQ3
PEOPLE = frozenset({"frank", "flora", "fred", "alice"})
TWO = Approver(name="finance", subjects=PEOPLE, needs=2, comment="optional", lets_delegate=True)
MANAGERS = Approver(name="managers", subjects=frozenset({"mia", "max"}))
ESCALATED = Approver(
    name="finance",
    subjects=PEOPLE,
    needs=2,
    escalate_after=timedelta(days=1),
    escalate_to="managers",
)


@pytest.mark.parametrize("library", ["mcp", "fastmcp"])
@pytest.mark.parametrize("revision", [MODERN, "legacy"])
async def test_tool_continues_after_two_people_have_approved(library: str, revision: str) -> None:
    ran = list[str]()
    async with (
        approving(shop(library, ran), approvers=(TWO,)) as here,
        here.asking(revision=revision) as caller,
    ):
        assert "Needs 2 approvals, 0 given." in await caller.text("refund", order="o8")
        frank = await here.signed_in("frank")
        address = await here.one(frank)
        page = await press(frank, address, "approve", reason="Checked")
        assert "Needs 2 approvals, 1 given" in page.text
        assert "You approved it." in page.text
        assert "Needs 2 approvals, 1 given." in await caller.text("refund", order="o8")
        await press(frank, address, "approve", page=page)
        assert (await here.asked()).status is Status.PENDING, (
            "two approvals of one person count once"
        )
        assert ran == []
        flora = await here.signed_in("flora")
        shown = await flora.visit(await here.one(flora))
        assert "frank" in shown.text
        assert "Checked" in shown.text
        await press(flora, await here.one(flora), "approve")
        assert await caller.text("refund", order="o8") == "o8 is paid back"
    assert ran == ["o8"]


async def test_one_decline_ends_a_request_that_has_an_approval() -> None:
    async with approving(shop(), approvers=(TWO,)) as here, here.asking() as caller:
        await caller.result("refund", order="o8")
        frank, flora = await here.signed_in("frank"), await here.signed_in("flora")
        await press(frank, await here.one(frank), "approve")
        await press(flora, await here.one(flora), "decline", reason="No receipt")
        assert "No receipt" in await caller.text("refund", order="o8")
        assert await here.waiting(frank) == []


async def test_asker_sees_how_many_have_approved_and_not_who() -> None:
    async with approving(shop(), approvers=(TWO,)) as here, here.asking() as caller:
        result = await caller.result("refund", order="o8")
        frank = await here.signed_in("frank")
        await press(frank, await here.one(frank), "approve", reason="Checked")
        alice = await here.signed_in("alice")
        link = here.env.service.links.of(await here.asked(), now=here.clock())
        page = (await alice.visit(link)).text
        assert "Needs 2 approvals, 1 given." in page
        assert "frank" not in page
        assert "frank" not in str(result)


async def test_required_comment_reaches_the_tool() -> None:
    strict = replace_approver(TWO, needs=1, comment="required")
    async with approving(shop(), approvers=(strict,)) as here, here.asking() as caller:
        await caller.result("ship", order="o8")
        frank = await here.signed_in("frank")
        address = await here.one(frank)
        refused = await press(frank, address, "approve")
        assert (refused.status, "Write a comment" in refused.text) == (422, True)
        assert (await here.asked()).status is Status.PENDING
        await press(frank, address, "approve", reason="Stock is there")
        asked = await here.asked()
        assert asked.status is Status.ACCEPTED
        voting = voting_in(asked.request.terms)
        assert voting is not None
        assert voting.comments == ("Stock is there",)


def replace_approver(approver: Approver, **changes: Any) -> Approver:
    fields = {name: getattr(approver, name) for name in Approver.__dataclass_fields__}
    return Approver(**{**fields, **changes})


async def test_delegation_is_recorded_and_ends_the_delegators_right() -> None:
    async with approving(shop(), approvers=(TWO,)) as here, here.asking() as caller:
        await caller.result("refund", order="o8")
        frank, flora = await here.signed_in("frank"), await here.signed_in("flora")
        address = await here.one(frank)
        page = await frank.visit(address)
        assert 'value="flora"' in page.text
        assert 'value="alice"' not in page.text, "the asker cannot be chosen as a delegate"
        assert 'value="frank"' not in page.text
        data = {"csrf": page.csrf or "", "to": "alice"}
        refused = await frank.browser.post(f"{address}/delegate", data=data)
        assert refused.status_code == 403
        done = await frank.browser.post(f"{address}/delegate", data={**data, "to": "flora"})
        assert done.status_code == 303
        assert "You handed this to somebody else" in (await frank.visit(address)).text
        assert (await press(frank, address, "approve", page=page)).status == 403
        assert (await press(frank, address, "decline", page=page)).status == 403
        shown = await flora.visit(await here.one(flora))
        assert "handed it to" in shown.text
        # Without flora, only fred is left, and two people have to approve.
        again = {"csrf": shown.csrf or "", "to": "fred"}
        assert (
            await flora.browser.post(f"{await here.one(flora)}/delegate", data=again)
        ).status_code == 403
        await press(flora, await here.one(flora), "approve")
        fred = await here.signed_in("fred")
        await press(fred, await here.one(fred), "approve")
        assert await caller.text("refund", order="o8") == "o8 is paid back"


async def test_request_is_escalated_once_and_both_groups_can_decide() -> None:
    async with (
        approving(shop(), approvers=(ESCALATED, MANAGERS)) as here,
        here.asking() as caller,
    ):
        await caller.result("refund", order="o8")
        frank, mia = await here.signed_in("frank"), await here.signed_in("mia")
        await press(frank, await here.one(frank), "approve")
        assert await here.waiting(mia) == []
        here.clock.tick(hours=24)
        await fall_due(here.env.service)
        await fall_due(here.env.service)
        mia = await here.signed_in("mia")
        await press(mia, await here.one(mia), "approve")
        assert await caller.text("refund", order="o8") == "o8 is paid back"


@asynccontextmanager
async def two_processes(*approvers: Approver) -> AsyncGenerator[tuple[ApprovalEnv, ApprovalEnv]]:
    """Serve the shop in two processes with one store, with a request that waits."""
    clock, store = Clock(), Interrupting()
    async with AsyncExitStack() as stack:
        issuer = await stack.enter_async_context(issuing(clock))
        first = await stack.enter_async_context(
            served(shop(), issuer, clock, approvers=approvers, store=store)
        )
        second = await stack.enter_async_context(
            served(shop(), issuer, clock, approvers=approvers, store=store.sibling())
        )
        caller = await stack.enter_async_context(first.asking())
        await caller.result("refund", order="o8")
        yield first, second


class Interrupting(MemoryStore):
    """A store that another process changes directly before the next write of a question."""

    def __init__(self) -> None:
        super().__init__()
        self.before: Callable[[], Awaitable[object]] | None = None

    async def write(self, *records: Any) -> Any:
        before = self.before
        if before is not None and any(record.kind == "elicitation" for record in records):
            self.before = None
            await before()
        return await super().write(*records)


def person_named(here: ApprovalEnv, name: str, *, known_by: KnownBy = KnownBy.ISSUER) -> Deciding:
    owners = here.env.service.elicitations.owners
    owner = owners.tag(issuer=here.issuer.url, subject=name)
    return Deciding(owner=owner, known_by=known_by, name=f"{here.issuer.url}#{name}", label=name)


async def decide(here: ApprovalEnv, name: str, *, accepts: bool, of: str = "finance") -> Any:
    decisions = here.env.service.kinds.decisions
    (waiting,), _ = await decisions.inbox(of)
    return await decisions.decide(waiting, person_named(here, name), accepts=accepts)


async def delegate(here: ApprovalEnv, name: str, to: str) -> Any:
    decisions = here.env.service.kinds.decisions
    (waiting,), _ = await decisions.inbox("finance")
    return await decisions.delegate(waiting, person_named(here, name), to)


async def racing(
    first: ApprovalEnv, work: Awaitable[Any], meanwhile: Callable[[], Awaitable[object]]
) -> Any:
    """Do `work` in the first process, and `meanwhile` directly before its first write."""
    interrupting = find_store(first.env.service.elicitations.store)
    interrupting.before = meanwhile
    return await work


def find_store(store: Any) -> Interrupting:
    while not isinstance(store, Interrupting):
        store = store._store
    return store


async def test_two_approvals_at_the_same_moment_both_count() -> None:
    async with two_processes(TWO) as (first, second):
        await racing(
            first,
            decide(first, "frank", accepts=True),
            lambda: decide(second, "flora", accepts=True),
        )
        asked = await second.asked()
        voting = voting_in(asked.request.terms)
        assert voting is not None
        assert [vote.label for vote in voting.approvals] == ["flora", "frank"]
        assert asked.status is Status.ACCEPTED


async def test_same_person_twice_at_the_same_moment_counts_once() -> None:
    async with two_processes(TWO) as (first, second):
        await racing(
            first,
            decide(first, "frank", accepts=True),
            lambda: decide(second, "frank", accepts=True),
        )
        asked = await second.asked()
        voting = voting_in(asked.request.terms)
        assert voting is not None
        assert [vote.label for vote in voting.approvals] == ["frank"]
        assert asked.status is Status.PENDING


@pytest.mark.parametrize("last", ["approve", "decline"])
async def test_approval_and_decline_at_the_same_moment_have_one_winner(last: str) -> None:
    async with two_processes(TWO) as (first, second):
        await decide(second, "fred", accepts=True)
        await racing(
            first,
            decide(first, "frank", accepts=last == "approve"),
            lambda: decide(second, "flora", accepts=last != "approve"),
        )
        asked = await second.asked()
        wanted = Status.DECLINED if last == "approve" else Status.ACCEPTED
        assert asked.status is wanted, "the decision that is written first wins"
        assert asked.decided_by is not None
        assert asked.decided_by.label == "flora"


async def test_delegation_during_an_approval_of_the_same_person_counts_first() -> None:
    async with two_processes(TWO) as (first, second):
        with pytest.raises(NotAllowed, match="handed this request"):
            await racing(
                first,
                decide(first, "frank", accepts=True),
                lambda: delegate(second, "frank", "flora"),
            )
        voting = voting_in((await second.asked()).request.terms)
        assert voting is not None
        assert voting.approvals == ()


async def test_nobody_is_offered_for_a_delegation_that_leaves_too_few_people() -> None:
    for people, offered in (
        ({"frank", "flora"}, []),
        ({"frank", "flora", "fred"}, ["flora", "fred"]),
    ):
        finance = dataclasses.replace(TWO, subjects=frozenset(people))
        async with approving(shop(), approvers=(finance,)) as here, here.asking() as caller:
            await caller.result("refund", order="o8")
            approvers = here.env.service.kinds.decisions.approvers
            found = approvers.colleagues(person_named(here, "frank"), await here.asked())
            assert sorted(found.values()) == offered


async def test_two_delegations_at_the_same_moment_leave_enough_people() -> None:
    async with two_processes(TWO) as (first, second):
        with pytest.raises(NotAllowed, match="Too few people"):
            await racing(
                first,
                delegate(first, "frank", "fred"),
                lambda: delegate(second, "flora", "fred"),
            )


async def test_escalation_at_the_moment_of_an_approval_counts_both() -> None:
    async with two_processes(ESCALATED, MANAGERS) as (first, second):

        async def escalated() -> None:
            first.clock.tick(hours=24)
            await fall_due(second.env.service)
            await decide(second, "mia", accepts=True, of="managers")

        await racing(first, decide(first, "frank", accepts=True), escalated)
        assert (await second.asked()).status is Status.ACCEPTED


async def test_people_identified_by_different_methods_do_not_count_together() -> None:
    # finding: XQ3
    async with (
        approving(shop(), approvers=(TWO,), askers_decide=True) as here,
        here.asking() as caller,
    ):
        await caller.result("refund", order="o8")
        await decide(here, "frank", accepts=True)
        decisions = here.env.service.kinds.decisions
        (waiting,), _ = await decisions.inbox("finance")
        other = person_named(here, "flora", known_by=KnownBy.APPLICATION)
        with pytest.raises(NotAllowed, match="another method"):
            await decisions.decide(waiting, other, accepts=True)


async def test_second_approval_counts_after_the_first_process_was_killed() -> None:
    clock, store = Clock(), MemoryStore()
    async with issuing(clock) as issuer:
        async with served_with(store, issuer, clock) as here, here.asking() as caller:
            await caller.result("refund", order="o8")
            await decide(here, "frank", accepts=True)
        clock.tick(hours=23)
        async with served_with(store, issuer, clock) as here:
            await decide(here, "flora", accepts=True)
            async with here.asking() as caller:
                assert await caller.text("refund", order="o8") == "o8 is paid back"


def served_with(store: MemoryStore, issuer: Issuing, clock: Clock) -> Any:
    return served(shop(), issuer, clock, approvers=(TWO,), store=store)


async def test_request_of_an_earlier_version_needs_one_approval() -> None:
    async with approving(shop(), approvers=(TWO,)) as here, here.asking() as caller:
        await caller.result("refund", order="o8")

        def as_before(asked: Any) -> Any:
            terms = {name: each for name, each in asked.request.terms.items() if name != "voting"}
            terms["approver"] = "finance"
            return replace(asked, request=replace(asked.request, terms=terms))

        elicitations = here.env.service.elicitations
        await elicitations.change((await here.asked()).id, as_before)
        await decide(here, "frank", accepts=True)
        assert await caller.text("refund", order="o8") == "o8 is paid back"


async def test_earlier_version_finds_no_approver_in_a_request_with_settings() -> None:
    async with approving(shop(), approvers=(TWO,)) as here, here.asking() as caller:
        await caller.result("refund", order="o8")
        terms = (await here.asked()).request.terms
        assert isinstance(terms, dict)
        assert "approver" not in terms


async def test_too_few_people_are_refused_before_anybody_is_asked() -> None:
    few = replace_approver(TWO, subjects=frozenset({"alice", "frank"}))
    async with approving(shop(), approvers=(few,)) as here, here.asking() as caller:
        text = await caller.text("refund", order="o8")
        assert "finance needs 2 approvals, and nobody approves their own request" in text


async def test_inbox_over_the_api_shows_votes_and_delegates() -> None:
    async with approving(shop(), approvers=(TWO,)) as here, here.asking() as caller:
        await caller.result("refund", order="o8")
        token = here.own("frank")
        (request,) = (await sent(here, "/api/inbox", token)).json()["requests"]
        assert request["can_delegate_to"] == ["flora", "fred"]
        path = f"/api/inbox/{request['id']}"
        done = await sent(here, f"{path}/answer", token, {"accepts": True, "reason": "Checked"})
        assert done.status_code == 200
        answer = done.json()
        assert (answer["decision"], answer["approved_by"]) == ("waiting", ["frank"])
        assert (answer["has_approved"], answer["comments"]) == (True, ["Checked"])
        flora = here.own("flora")
        refused = await sent(here, f"{path}/delegate", token, {"to": "fred"})
        assert refused.status_code == 403
        refused = await sent(here, f"{path}/delegate", flora, {"to": "nobody"})
        assert refused.status_code == 403
        done = await sent(here, f"{path}/delegate", flora, {"to": "fred"})
        assert done.status_code == 200, done.text
        delegation = done.json()["delegations"][0]
        assert (delegation["by"], delegation["to"]) == ("flora", "fred")
        done = await sent(here, f"{path}/answer", here.own("fred"), {"accepts": True})
        assert done.json()["decision"] == "approved"


async def test_decline_after_handing_the_request_on_is_refused_in_the_same_moment() -> None:
    async with two_processes(TWO) as (first, second):
        with pytest.raises(NotAllowed, match="handed this request"):
            await racing(
                first,
                decide(first, "frank", accepts=False),
                lambda: delegate(second, "frank", "flora"),
            )
        assert (await second.asked()).status is Status.PENDING


async def test_people_of_different_issuers_do_not_count_together() -> None:
    async with (
        approving(shop(), approvers=(TWO,), askers_decide=True) as here,
        here.asking() as caller,
    ):
        await caller.result("refund", order="o8")
        decisions = here.env.service.kinds.decisions
        (waiting,), _ = await decisions.inbox("finance")
        frank, flora = person_named(here, "frank"), person_named(here, "flora")
        await decisions.decide(waiting, of_issuer(frank, "https://one.example"), accepts=True)
        elsewhere = of_issuer(flora, "https://two.example")
        with pytest.raises(NotAllowed, match="another issuer"):
            await decisions.decide(waiting, elsewhere, accepts=True)
        await decisions.decide(waiting, of_issuer(flora, "https://one.example"), accepts=True)
        assert (await here.asked()).status is Status.ACCEPTED


def of_issuer(person: Deciding, issuer: str) -> Deciding:
    return dataclasses.replace(person, issuer=issuer)


@pytest.mark.parametrize(
    ("typed", "shown"),
    [
        ("\u202eevil\u2066\x00\x1b[31m", "evil[31m"),
        ("\u0646\u0645\u06cc\u200c\u062e", "\u0646\u0645\u06cc\u200c\u062e"),
        ("Fine\n\n for  me", "Fine for me"),
        ("\u200b\u2060\u202e", None),
        ("\u3164\ufe0f", None),
    ],
)
def test_comment_is_one_visible_line(typed: str, shown: str | None) -> None:
    assert comment_in(typed) == shown


async def test_invisible_comment_does_not_count_as_the_required_comment() -> None:
    strict = replace_approver(TWO, needs=1, comment="required")
    async with approving(shop(), approvers=(strict,)) as here, here.asking() as caller:
        await caller.result("ship", order="o8")
        frank = await here.signed_in("frank")
        refused = await press(frank, await here.one(frank), "approve", reason="\u200b \u202e")
        assert (refused.status, "Write a comment" in refused.text) == (422, True)
        assert (await here.asked()).status is Status.PENDING


async def test_too_long_comment_is_refused_and_stays_in_its_field() -> None:
    strict = replace_approver(TWO, needs=1, comment="required")
    async with approving(shop(), approvers=(strict,)) as here, here.asking() as caller:
        await caller.result("ship", order="o8")
        frank = await here.signed_in("frank")
        link = await here.one(frank)
        for act, field in (("approve", "comment"), ("decline", "reason")):
            typed = f"{act} because " + "x" * 500
            refused = await press(frank, link, act, reason=typed)
            assert refused.status == 422
            assert refused.text.count("Use at most 500 characters.") == 1
            assert f'id="{field}-error"' in refused.text
            assert refused.text.count(typed) == 1
            assert (await here.asked()).status is Status.PENDING
        # A browser sends each line break as two characters. The limit of 500 counts it as one.
        await press(frank, link, "approve", reason="\r\n".join(["y" * 249] * 2) + "\r\n")
        assert (await here.asked()).status is Status.ACCEPTED
