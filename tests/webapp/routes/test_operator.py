"""The pages for operators: who may see them, lists, search, timelines, and changes."""

import csv
import logging
import re
from io import StringIO
from urllib.parse import quote

import pytest

from flows.elicitation.states import Elicitation, Status
from tests.support.clock import Clock
from tests.support.issuer import come_back_as, issuing, leave_to_sign_in, sign_in
from tests.support.mcp_server import new_server, server_env, soon
from tests.support.operating import (
    HOSTILE,
    act,
    at,
    counting,
    csrf_at,
    entered,
    filled,
    one_time_link,
    people,
    question,
)
from tests.support.paying import give_up
from tests.support.shop_env import REFUND, Shop, buying
from tests.support.signed_in_people import signed_in_env
from webapp.operations.catalog import LISTS
from webapp.records.ids import tail_of
from webapp.records.values import StoredWebhook
from webapp.settings.identity import _operators

OPS = _operators("root groups=ops")
SECRETS = ("THE TYPED ANSWER", "THE ACCESS TOKEN", "THE REFRESH TOKEN", "pi_1_secret_abcdefgh")


async def paid(shop: Shop) -> Elicitation:
    async with buying(shop) as buy:
        await buy.person.pay(buy.link)
        await shop.tell_all()
        await soon(buy.call)
    (question,) = await shop.service.elicitations.all(Elicitation)
    return question


async def test_local_browser_without_one_time_link_sees_nothing(shop: Shop) -> None:
    await filled(shop.service, 3)
    person = await shop.person()
    for path in ("", "/questions", "/csv/questions", "/search?q=cs_test_1", "/payments/x/refund"):
        page = await at(person, shop.service, path)
        assert page.status == 403, path
        assert "elicit operator" in page.text
        assert "octocat" not in page.text


async def test_one_time_link_works_once_and_only_in_the_browser_that_pressed(shop: Shop) -> None:
    first, second = await shop.person(), await shop.person()
    link = one_time_link(shop.service)
    other = await second.visit(link)
    await first.visit(link)  # looking at the page uses nothing
    page = await first.visit(link)
    assert (await first.browser.post(link, data={"csrf": page.csrf})).status_code == 303
    assert (await at(first, shop.service, "/questions")).status == 200
    assert (await first.visit(link)).status == 410
    assert (await second.browser.post(link, data={"csrf": other.csrf})).status_code == 410
    assert (await at(second, shop.service, "/questions")).status == 403
    name = shop.service.operators.cookie_name
    second.browser.cookies.set(name, first.browser.cookies[name])
    assert (await at(second, shop.service, "/questions")).status == 403
    third = await shop.person()
    stolen = await third.browser.post(one_time_link(shop.service), data={"csrf": page.csrf})
    assert stolen.status_code == 403


async def test_one_time_link_and_its_session_expire(shop: Shop) -> None:
    link, person = one_time_link(shop.service), await shop.person()
    shop.clock.tick(minutes=11)
    assert (await person.visit(link)).status == 410
    await entered(person, shop.service)
    shop.clock.tick(minutes=61)
    assert (await at(person, shop.service, "/questions")).status == 403


async def test_link_of_forwarded_request_or_other_purpose_is_refused(shop: Shop) -> None:
    person = await shop.person()
    person.browser.headers["x-forwarded-for"] = "203.0.113.9"
    link = one_time_link(shop.service)
    page = await person.visit(link)
    assert page.status in (200, 410)
    pairing = link.replace("/operator/enter/", "/pair/")
    assert (await person.visit(pairing)).status == 410
    async with buying(shop) as buy:
        token = buy.link.rsplit("/", 1)[1]
        entry = f"{shop.service.public_url}/operator/enter/{token}"
        assert (await person.visit(entry)).status == 410


async def test_only_operators_of_the_issuer_see_the_pages() -> None:
    async with signed_in_env(operators=OPS) as here:
        service = here.env.service
        await filled(service, 3)
        anonymous = await here.env.person()
        page = await at(anonymous, service, "")
        assert (page.status, page.heading) == (403, "Sign in to see the operator's pages")
        alice = await here.env.person()
        returned = await sign_in(alice, await at(alice, service, ""), "alice")
        assert returned.status == 404
        for path in (
            "/questions",
            "/csv/payments",
            "/search?q=x",
            "/enter/x",
            "/payments/x/refund",
        ):
            assert (await at(alice, service, path)).status == 404, path
        root = await here.env.person()
        assert (await sign_in(root, await at(root, service, ""), "root")).heading == "Questions"
        here.issuer.claims = {"groups": ["staff", "ops"]}
        carol = await here.env.person()
        assert (await sign_in(carol, await at(carol, service, ""), "carol")).heading == "Questions"


async def test_person_who_lost_the_claim_is_refused_after_an_hour() -> None:
    clock = Clock()
    async with (
        issuing(clock) as issuer,
        server_env(new_server("mcp"), who=issuer.who(operators=OPS), clock=clock) as env,
    ):
        issuer.claims = {"groups": "ops"}
        carol = await env.person()
        assert (await sign_in(carol, await at(carol, env.service, ""), "carol")).status == 200
        issuer.claims = {}
        clock.tick(minutes=61)
        page = await at(carol, env.service, "/payments")
        assert page.status == 403
        back = await come_back_as(carol, await leave_to_sign_in(carol, page), "carol")
        assert (await carol.visit((await carol.visit(back)).location or "")).status == 404


async def test_session_of_application_user_or_other_issuer_is_no_operator() -> None:
    async with signed_in_env(operators=OPS) as here:
        root = await here.env.person()
        await sign_in(root, await at(root, here.env.service, ""), "root")
        name = here.env.service.sessions.cookie_name
        cookie = root.browser.cookies[name]
    async with signed_in_env(operators=OPS) as other:
        thief = await other.env.person()
        thief.browser.cookies.set(other.env.service.sessions.cookie_name, cookie)
        assert (await at(thief, other.env.service, "")).status == 403


async def test_pages_are_unknown_without_operators() -> None:
    async with signed_in_env() as here:
        person = await here.env.person()
        for path in ("", "/questions", "/enter/x", "/csv/questions"):
            assert (await at(person, here.env.service, path)).status == 404, path


@pytest.mark.parametrize("name", LISTS)
async def test_list_makes_three_reads_of_store_with_5000_questions(shop: Shop, name: str) -> None:
    count = 5000 if name == "questions" else 400
    await filled(shop.service, count, owners=500 if name == "questions" else 100)
    person = await entered(await shop.person(), shop.service)
    shop.service.elicitations.owners.forget(None)
    counted = counting(shop.service)
    page = await at(person, shop.service, f"/{name}?page=3")
    assert page.status == 200
    total = min(count, 300) if name == "rejected" else count
    assert f"41 to 60 of {total}" in page.text
    assert 0 < counted.reads <= 3
    for secret in SECRETS:
        assert secret not in page.text


async def test_signed_in_list_makes_three_reads() -> None:
    async with signed_in_env(operators=OPS) as here:
        service = here.env.service
        await filled(service, 60)
        root = await here.env.person()
        await sign_in(root, await at(root, service, ""), "root")
        service.elicitations.owners.forget(None)
        counted = counting(service)
        assert (await at(root, service, "/questions")).status == 200
        assert 0 < counted.reads <= 3


async def test_filters_of_address_choose_rows_and_stay_in_links(shop: Shop) -> None:
    await filled(shop.service, 120, owners=4)
    person = await entered(await shop.person(), shop.service)
    service = shop.service
    page = await at(person, service, "/questions?status=open&kind=oauth")
    assert "<p>5 to" not in page.text
    assert "oauth ·" in page.text
    assert "payment ·" not in page.text
    who = people(service, 4)[1]
    page = await at(person, service, f"/payments?person={who}&page=2")
    assert "21 to 30 of 30" in page.text
    assert f"/operator/csv/payments?person={who}" in page.text
    page = await at(person, service, f"/payments?person={quote('https://i.example#p1')}")
    assert "1 to 20 of 30" in page.text
    page = await at(person, service, "/questions?since=45min&until=30min")
    assert "1 to 15 of 15" in page.text or "15 in all" in page.text
    page = await at(person, service, "/accounts?status=lapsed&label=octocat1*")
    assert "the person has to connect it again" in page.text
    for wrong in ("since=yesterday", "until=999999d", "since=9999-99-99"):
        page = await at(person, service, f"/questions?{wrong}")
        assert (page.status, "Nothing is listed" in page.text) == (400, True), wrong
        assert (await at(person, service, f"/csv/questions?{wrong}")).status == 400


async def test_csv_has_no_formula_and_no_secret(shop: Shop) -> None:
    await filled(shop.service, 12, text='=HYPERLINK("https://evil.example","x")')
    person = await entered(await shop.person(), shop.service)
    for name in LISTS:
        answer = await person.browser.get(f"{shop.service.public_url}/operator/csv/{name}")
        assert answer.status_code == 200
        assert answer.headers["content-type"] == "text/csv; charset=utf-8"
        assert answer.headers["cache-control"] == "no-store"
        assert answer.headers["content-disposition"] == f'attachment; filename="{name}.csv"'
        heads, *rows = csv.reader(StringIO(answer.text))
        assert heads == [*LISTS[name].of.__struct_fields__]
        assert len(rows) == 12
        cells = [cell for row in rows for cell in row]
        assert not [cell for cell in cells if cell.startswith(("=", "+", "-", "@", "\t", "\r"))]
        assert any(cell.startswith("'=HYPERLINK") for cell in cells)
        for secret in SECRETS:
            assert secret not in answer.text


async def test_hostile_names_are_escaped_on_every_page(shop: Shop) -> None:
    await filled(shop.service, 4, owners=1, text=HOSTILE)
    person, service = await entered(await shop.person(), shop.service), shop.service
    for name, kind in LISTS.items():
        page = await at(person, service, f"/{name}?status={quote(HOSTILE)}")
        assert page.status == 200
        texts = [page.text, (await at(person, service, f"/{name}")).text]
        if kind.has_page:
            (row, *_) = await service.elicitations.all(kind.kind)
            id = getattr(row, "webhook_id", row.id)
            shown = await at(person, service, f"/{name}/{id}")
            assert shown.status == 200, name
            texts.append(shown.text)
        for text in texts:
            assert "<script>alert" not in text
            assert "\u202e" not in text
            for secret in SECRETS:
                assert secret not in text, name


@pytest.mark.parametrize(
    "path",
    [
        *("/nothing", "/questions/..%2fpayments", "/questions/%00", "/payments/x/cancel"),
        *("/questions/" + "A" * 3000, "/calls", "/csv/calls", "/questions/a/b/c", "/%2e%2e/home"),
        *("/events/evt_x", "/webhooks/~x", "/questions/x/refund", "/search/x", "/enter"),
    ],
)
async def test_unknown_addresses_are_not_found(shop: Shop, path: str) -> None:
    person = await entered(await shop.person(), shop.service)
    assert (await at(person, shop.service, path)).status in (400, 404)


async def test_every_id_of_a_purchase_leads_to_its_timeline(shop: Shop) -> None:
    question = await paid(shop)
    (payment,) = await shop.payments()
    hooks = await shop.service.elicitations.all(StoredWebhook)
    person = await entered(await shop.person(), shop.service)
    ids = [question.id, tail_of(question), payment.id, tail_of(payment), payment.session]
    for id in [*ids, payment.payment_intent, hooks[0].event, hooks[0].id]:
        found = await at(person, shop.service, f"/search?q={quote(str(id))}")
        assert found.status == 303, id
        page = await person.visit(found.location or "")
        for stage in ("Asked", "Shown", "Opened", "Sent to the provider", "Returned", "Settled"):
            assert f"<dt>{stage}</dt>" in page.text, id
        for words in ("Continue pressed (1)", "paid 9.00 EUR", "Claimed", "Delivered"):
            assert words in page.text
        assert "not recorded" in page.text
    nothing = await at(person, shop.service, "/search?q=cs_unknown")
    assert (nothing.status, nothing.heading) == (404, "Nothing was found")
    empty = await at(person, shop.service, "/search?q=%20")
    assert empty.location == f"{shop.service.public_url}/operator/questions"


async def test_link_of_question_is_sought_by_form_and_not_in_address(shop: Shop) -> None:
    question = await paid(shop)
    person = await entered(await shop.person(), shop.service)
    link = shop.service.links.of(question, now=shop.service.clock())
    home = f"{shop.service.public_url}/operator/questions"
    page = await person.visit(home)
    url = page.leading("/search")
    for sought, where in (
        (link, f"/operator/questions/{question.id}"),
        ("cs_1&x=2", "/operator/search?q=cs_1%26x%3D2"),
        ("//evil.example", "/operator/search?q=%2F%2Fevil.example"),
    ):
        answer = await person.browser.post(url, data={"csrf": page.csrf, "q": sought})
        assert answer.headers["location"] == where
    broken = await person.browser.post(url, data={"csrf": page.csrf, "q": f"{link}x"})
    assert (broken.status_code, link in broken.text) == (404, False)
    assert (await person.browser.post(url, data={"q": link})).status_code == 403
    assert (await person.visit(f"{url}?q={quote(link)}")).location == home


async def test_search_for_person_leads_to_their_questions(shop: Shop) -> None:
    await filled(shop.service, 3, owners=1)
    person = await entered(await shop.person(), shop.service)
    (who,) = people(shop.service, 1)
    for sought in (who, "https://i.example#p0"):
        found = await at(person, shop.service, f"/search?q={quote(sought)}")
        assert (found.location or "").endswith(f"/operator/questions?person={who}")
    for stranger in ("https://i.example#nobody", "//evil.example#x", "https://evil.example"):
        found = await at(person, shop.service, f"/search?q={quote(stranger)}")
        assert (found.status, found.location) == (404, None)


async def test_error_number_leads_to_log_lines_of_this_process(shop: Shop) -> None:
    await filled(shop.service, 1)
    (one,) = await shop.service.elicitations.all(Elicitation)
    person = await entered(await shop.person(), shop.service)
    log = logging.getLogger("webapp.tests")
    log.warning("provider.failed", extra={"id": one.id, "error_id": "0123456789ab"})
    found = await at(person, shop.service, "/search?q=0123456789ab")
    assert (found.status, found.heading) == (200, "Error 0123456789ab")
    assert f"/operator/questions/{one.id}" in found.text
    assert "provider.failed" in found.text
    page = await at(person, shop.service, f"/questions/{one.id}")
    assert "provider.failed" in page.text
    unknown = await at(person, shop.service, "/search?q=ba9876543210")
    assert unknown.status == 404
    assert "error_id=" in unknown.text


async def test_get_and_cross_site_post_change_nothing(shop: Shop) -> None:
    person = await entered(await shop.person(), shop.service)
    service = shop.service
    (owner,) = people(service, 1)
    asked = question(service, owner, status=Status.PENDING, settled_at=None, content=None)
    await service.elicitations.write(asked)
    url = f"{service.public_url}/operator/questions/{asked.id}/cancel"
    assert (await person.visit(url)).heading == "Cancel this question?"
    field = await csrf_at(person, url)
    other = service.browser.csrf("x" * 32, subject=f"operator cancel {asked.id}")
    mixed = (await at(person, service, "/questions")).csrf
    for data in ({}, {"csrf": ""}, {"csrf": other}, {"csrf": mixed or "x"}):
        assert (await person.browser.post(url, data=data)).status_code == 403
    cross = {"origin": "https://evil.example"}
    sent = await person.browser.post(url, data={"csrf": field}, headers=cross)
    assert sent.status_code == 403
    stranger = await shop.person()
    assert (await stranger.browser.post(url, data={"csrf": field})).status_code == 403
    current = await service.elicitations.get(asked.id)
    assert current is not None
    assert current.status is Status.PENDING


async def test_operator_cancels_a_question_once(shop: Shop) -> None:
    person, service = await entered(await shop.person(), shop.service), shop.service
    async with buying(shop) as buy:
        (asked,) = await service.elicitations.all(Elicitation)
        url = f"{service.public_url}/operator/questions/{asked.id}/cancel"
        assert (await act(person, url)).headers["location"].endswith(asked.id)
        assert "cancelled" in str(await soon(buy.call))
    current = await service.elicitations.get(asked.id)
    assert current is not None
    assert (current.status, current.settled_by) == (Status.CANCELLED, "operator")
    assert (await act(person, url)).status_code == 303
    assert "…</a>" not in (await at(person, service, f"/questions/{asked.id}")).text


async def test_operator_refunds_an_unused_payment_once(shop: Shop) -> None:
    async with buying(shop) as buy:
        await give_up(shop, buy)
        await buy.person.pay(buy.link)
        await shop.tell_all()
    (payment,) = await shop.payments()
    person = await entered(await shop.person(), shop.service)
    url = f"{shop.service.public_url}/operator/payments/{payment.id}/refund"
    assert (await act(person, url)).status_code == 303
    assert (await act(person, url)).status_code == 303
    (after,) = await shop.payments()
    assert (after.status, after.refund_asked_by) == ("refunded", "operator")
    assert shop.line.count(REFUND) == 1


async def test_used_payment_needs_a_tick_before_refund(shop: Shop) -> None:
    await paid(shop)
    (payment,) = await shop.payments()
    person = await entered(await shop.person(), shop.service)
    url = f"{shop.service.public_url}/operator/payments/{payment.id}/refund"
    refused = await act(person, url)
    assert refused.status_code == 409
    assert "A call has used" in refused.text
    assert (await act(person, url, spent="1")).status_code == 303
    (after,) = await shop.payments()
    assert after.status == "refunded"


async def test_operator_replays_a_webhook_and_reads_its_payload(shop: Shop) -> None:
    await paid(shop)
    hook = (await shop.service.elicitations.all(StoredWebhook))[0]
    person = await entered(await shop.person(), shop.service)
    page = await at(person, shop.service, f"/webhooks/{hook.id}")
    assert "checkout.session" in page.text
    assert "/return/stripe?state=***" in page.text
    assert not re.search(r"[\w-]{40,}\.[\w-]{43}", page.text)
    url = f"{shop.service.public_url}/operator/webhooks/{hook.id}/replay"
    assert (await act(person, url)).status_code == 303
    read = shop.service.elicitations.read
    after = await read(StoredWebhook, owner=hook.owner, id=hook.id)
    assert after is not None
    assert after.replayed_at is not None
    (payment,) = await shop.payments()
    assert payment.amount == 900


async def test_failed_change_says_why_and_nothing_is_done(shop: Shop) -> None:
    await filled(shop.service, 2, owners=1, text="no such provider")
    person = await entered(await shop.person(), shop.service)
    for name in ("webhooks/replay", "payments/refund"):
        where, _, what = name.partition("/")
        row = (await shop.service.elicitations.all(LISTS[where].kind))[0]
        refused = await act(person, f"{shop.service.public_url}/operator/{where}/{row.id}/{what}")
        assert (refused.status_code, "This was not done" in refused.text) == (409, True), name


async def test_event_is_sent_again(shop: Shop) -> None:
    await filled(shop.service, 1)
    person, service = await entered(await shop.person(), shop.service), shop.service
    kind = LISTS["events"].kind
    (event,) = await service.elicitations.all(kind)
    url = f"{service.public_url}/operator/events/{event.webhook_id}/resend"
    assert (await act(person, url)).status_code == 303
    (after,) = await service.elicitations.all(kind)
    assert (after.status, after.tries) == ("waiting", 0)


async def test_pages_are_not_stored_and_not_framed(shop: Shop) -> None:
    await filled(shop.service, 1)
    person = await entered(await shop.person(), shop.service)
    for path in ("", "/questions", "/search?q=nothing", "/csv/questions"):
        answer = await person.browser.get(f"{shop.service.public_url}/operator{path}")
        assert answer.headers["cache-control"] == "no-store"
        assert answer.headers["x-frame-options"] == "DENY"
