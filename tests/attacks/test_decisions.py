"""Attacks on approvals by a requester, a former approver and another site."""

from flows.elicitation.states import Elicitation, Status
from tests.support.approving import (
    FINANCE,
    GROUPS,
    ApprovalEnv,
    approving,
    press,
    shop,
)
from tests.support.mcp_server import Person, link_in
from webapp.identity.approvers import Approver
from webapp.records.ids import InboxItem

LEGAL = Approver(name="legal", subjects=frozenset({"lea"}))


async def is_open(here: ApprovalEnv) -> bool:
    return (await here.asked()).status is Status.PENDING


async def copied(person: Person, of: Person) -> Person:
    """Return the browser of `person`, after adding the session cookies of `of`."""
    for cookie in of.browser.cookies.jar:
        if "session" in cookie.name:
            person.browser.cookies.set(cookie.name, cookie.value or "")
    return person


async def test_requester_with_approver_role_cannot_answer_own_request():
    async with approving(shop()) as here, here.asking("frank") as caller:
        link = link_in(await caller.result("refund", order="o8"))
        frank, flora = await here.signed_in("frank"), await here.signed_in("flora")
        address = await here.one(frank)
        page = await flora.visit(address)
        for answer in ("approve", "decline"):
            assert (await press(frank, address, answer, page=page)).status == 403
            own = await frank.visit(address)
            assert (await press(frank, address, answer, page=own)).status == 403
        asking = await frank.visit(link)
        for path in ("", "/allow", "/approve"):
            await frank.browser.post(link + path, data={"csrf": asking.csrf, "answer": "approve"})
        assert await is_open(here)


async def test_similar_subject_or_group_claim_does_not_make_an_approver():
    async with approving(shop()) as here, here.asking() as caller:
        await caller.result("refund", order="o8")
        frank = await here.signed_in("frank")
        address = await here.one(frank)
        for subject, claims in (
            ("Frank", {}),
            ("mallory", {"preferred_username": "frank", "name": "frank", "email": "frank"}),
            ("mallory", {"groups": ["finance-approvers2", "Finance-Approvers", "finance"]}),
            ("mallory", {"groups": "x finance-approvers"}),
            ("mallory", {"groups": {"finance-approvers": True}}),
            ("mallory", {"group": ["finance-approvers"]}),
            ("mallory", {"groups": [["finance-approvers"]]}),
        ):
            mallory = await here.signed_in(subject, **claims)
            assert await here.waiting(mallory) == []
            assert (await mallory.visit(address)).status == 404
            assert (await press(mallory, address, "approve")).status in (403, 404)
        assert await is_open(here)


async def test_approver_with_old_sign_in_cannot_decide_from_old_page():
    async with approving(shop()) as here, here.asking() as caller:
        await caller.result("refund", order="o8")
        carol = await here.signed_in("carol", **GROUPS)
        address = await here.one(carol)
        page = await carol.visit(address)
        for _ in range(4):  # requests keep the session alive, but its sign-in gets old
            here.clock.tick(minutes=15)
            await carol.visit(here.inbox)
        assert (await press(carol, address, "approve", page=page)).status == 403
        assert "Pay it back" not in (await carol.visit(address)).text
        assert await is_open(here)


async def test_requester_cannot_approve_with_hand_made_form():
    async with approving(shop()) as here, here.asking("frank") as caller:
        await caller.result("refund", order="o8")
        frank = await here.signed_in("frank")
        address = await here.one(frank)
        assert (await frank.visit(address)).csrf is None
        browser, id = here.env.service.browser, address.rpartition("/")[2]
        cookie = frank.browser.cookies[browser.cookie_name]
        data = {"csrf": browser.csrf(cookie, subject=f"decision of finance on {id}")}
        for answer in ("approve", "decline"):
            tried = await frank.browser.post(f"{address}/{answer}", data=data)
            assert tried.status_code == 403
            assert "Somebody else has to decide it" in tried.text
        assert await is_open(here)


async def test_form_of_another_site_browser_or_request_is_refused():
    async with approving(shop()) as here, here.asking() as caller:
        await caller.result("refund", order="o8")
        frank, other = await here.signed_in("frank"), await here.signed_in("frank")
        address = await here.one(frank)
        page = await frank.visit(address)
        bare = await frank.browser.post(f"{address}/approve", data={})
        assert bare.status_code == 403
        strange = await frank.browser.post(
            f"{address}/approve",
            data={"csrf": page.csrf},
            headers={"origin": "https://evil.example"},
        )
        assert strange.status_code == 403
        assert (await press(other, address, "approve", page=page)).status == 403
        await caller.result("refund", order="o9")
        another = next(each for each in await here.waiting(frank) if each != address)
        assert (await press(frank, another, "approve", page=page)).status == 403
        rows = await here.env.elicitations()
        assert {row.status for row in rows} == {Status.PENDING}


async def test_link_scanner_decides_nothing():
    async with approving(shop()) as here, here.asking() as caller:
        await caller.result("refund", order="o8")
        frank = await here.signed_in("frank")
        address = await here.one(frank)
        before = await here.env.service.elicitations.store.list("inbox")
        for path in ("", "/approve", "/decline", "?answer=approve"):
            for method in ("GET", "HEAD", "OPTIONS"):
                answer = await frank.browser.request(method, address + path)
                assert answer.status_code < 500
        assert await is_open(here)
        assert await here.env.service.elicitations.store.list("inbox") == before


async def test_approver_cannot_open_request_of_another_group_by_address_or_forged_item():
    async with approving(shop(), approvers=(FINANCE, LEGAL)) as here, here.asking() as caller:
        await caller.result("refund", order="o8")
        frank, lea = await here.signed_in("frank"), await here.signed_in("lea")
        address = await here.one(frank)
        for tried in (address, address.replace("/finance/", "/legal/"), here.inbox + "?of=finance"):
            page = await lea.visit(tried)
            assert "o8" not in page.text
            assert "Pay it back" not in page.text
        # An attacker who can write to the store puts the request into the inbox of `legal`.
        rows = here.env.service.elicitations
        asked = await here.asked()
        legal = rows.rows.ids.approver("legal")
        forged = InboxItem(
            id=legal + "7" * 12 + "x" * 16,
            owner=legal,
            elicitation_id=asked.id,
            expires_at=asked.expires_at,
            erase_at=asked.erase_at,
        )
        await rows.write(forged)
        assert await here.waiting(lea) == []
        assert await is_open(here)


async def test_next_person_in_same_browser_cannot_approve_with_page_of_previous_person():
    async with approving(shop()) as here, here.asking() as caller:
        await caller.result("refund", order="o8")
        frank = await here.signed_in("frank")
        address = await here.one(frank)
        page = await frank.visit(address)
        mallory = await here.signed_in("mallory")
        shared = await copied(frank, mallory)
        assert (await press(shared, address, "approve", page=page)).status == 404
        assert await is_open(here)


async def test_requesters_text_is_escaped_on_approvers_page():
    async with approving(shop()) as here, here.asking() as caller:
        await caller.result("refund", order="<b>approve</b> https://evil.example/?a=1")
        frank = await here.signed_in("frank")
        text = (await frank.visit(await here.one(frank))).text
        assert "<b>approve" not in text
        assert 'href="https://evil.example' not in text


async def test_trusted_code_or_client_answer_cannot_settle_an_approval():
    async with approving(shop()) as here, here.asking() as caller:
        link = link_in(await caller.result("refund", order="o8"))
        service, id = here.env.service, here.env.id_of(link)
        asked = await service.elicitations.get(id)
        assert isinstance(asked, Elicitation)
        assert service.kinds.on_page(asked.kind) is None
        await here.env.complete(link)
        result = await caller.result("elicitation_result", elicitId=id, content={}, action="accept")
        assert result.is_error
        assert await is_open(here)
