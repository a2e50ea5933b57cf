"""The pages for operators: lists, search, timelines, and changes."""

import logging
import re
from dataclasses import replace
from urllib.parse import quote

import pytest
from msgspec.structs import replace as replace_record
from starlette.requests import Request
from starlette.responses import Response

from flows.elicitation.states import Elicitation, Status
from flows.payments.receipt import Payment
from tests.support.issuer import issuing, sign_in
from tests.support.mcp_server import new_server, server_env, soon
from tests.support.operating import (
    act,
    at,
    counting,
    csrf_at,
    entered,
    filled,
    people,
)
from tests.support.paying import give_up, two_tabs
from tests.support.service_env import plain_settings
from tests.support.shop_env import REFUND, Shop, buying
from tests.support.signed_in_people import signed_in_env
from webapp.identity.operators import OperatorRules
from webapp.operations.catalog import LISTS
from webapp.operations.rows import OWNER_CHARACTERS, each_row, listed
from webapp.records.ids import tail_of
from webapp.records.values import KINDS, StoredWebhook
from webapp.settings.identity import operators_of
from webapp.settings.settings import BadSettings, read_settings

OPS = operators_of("root groups=ops")
SECRETS = ("THE TYPED ANSWER", "THE ACCESS TOKEN", "THE REFRESH TOKEN", "pi_1_secret_abcdefgh")


async def paid(shop: Shop) -> Elicitation:
    async with buying(shop) as buy:
        await buy.person.pay(buy.link)
        await shop.send_all()
        await soon(buy.call)
    (question,) = await shop.service.elicitations.all(Elicitation)
    return question


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


async def test_search_for_person_leads_to_their_questions(shop: Shop) -> None:
    await filled(shop.service, 3, owners=1)
    person = await entered(await shop.person(), shop.service)
    (who,) = people(shop.service, 1)
    for sought in (who, who[:OWNER_CHARACTERS], "https://i.example#p0"):
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
    assert "journalctl -u elicit | grep ba9876543210</code>" in unknown.text


async def test_search_that_finds_many_records_says_how_many_are_listed(shop: Shop) -> None:
    await filled(shop.service, 30, owners=1)
    person = await entered(await shop.person(), shop.service)
    (who,) = people(shop.service, 1)
    found = await at(person, shop.service, f"/search?q={who[: OWNER_CHARACTERS + 1]}")
    assert (found.status, found.heading.endswith(" records")) == (200, True)
    assert "Here are 20 of them: search for a longer part of the id." in found.text


async def test_operator_cancels_a_question_once(shop: Shop) -> None:
    person, service = await entered(await shop.person(), shop.service), shop.service
    async with buying(shop) as buy:
        (asked,) = await service.elicitations.all(Elicitation)
        url = f"{service.public_url}/operator/questions/{asked.id}/cancel"
        late = {"csrf": await csrf_at(person, url)}
        assert (await act(person, url)).headers["location"].endswith(asked.id)
        assert "cancelled" in str(await soon(buy.call))
    current = await service.elicitations.get(asked.id)
    assert current is not None
    assert (current.status, current.settled_by) == (Status.CANCELLED, "operator")
    assert (await person.browser.post(url, data=late)).status_code == 303
    assert str((await person.visit(url)).location).endswith(f"/questions/{asked.id}")
    assert "…</a>" not in (await at(person, service, f"/questions/{asked.id}")).text


async def test_operator_refunds_an_unused_payment_once(shop: Shop) -> None:
    async with buying(shop) as buy:
        await give_up(shop, buy)
        await buy.person.pay(buy.link)
        await shop.send_all()
    (payment,) = await shop.payments()
    person = await entered(await shop.person(), shop.service)
    place = f"/payments/{payment.id}"
    url = f"{shop.service.public_url}/operator{place}/refund"
    assert f"{place}/refund" in (await at(person, shop.service, place)).text
    late = {"csrf": await csrf_at(person, url)}
    assert (await act(person, url)).status_code == 303
    assert (await person.browser.post(url, data=late)).status_code == 303
    assert str((await person.visit(url)).location).endswith(place)
    record = (await at(person, shop.service, place)).text
    assert f"{place}/refund" not in record
    facts = dict(re.findall(r"<dt>([^<]+)</dt><dd[^>]*>(?:<[^>]+>)*([^<]*)", record))
    assert facts["Amount refunded"].strip() == "9.00 EUR"
    assert facts.keys().isdisjoint({"Amount", "Currency", "Amount owed to the person"})
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
        assert (refused.status_code, "Nothing was changed" in refused.text) == (409, True), name


async def test_event_is_sent_again(shop: Shop) -> None:
    await filled(shop.service, 1)
    person, service = await entered(await shop.person(), shop.service), shop.service
    kind = LISTS["events"].kind
    (event,) = await service.elicitations.all(kind)
    url = f"{service.public_url}/operator/events/{event.webhook_id}/resend"
    assert (await act(person, url)).status_code == 303
    (after,) = await service.elicitations.all(kind)
    assert (after.status, after.tries) == ("waiting", 0)


async def test_list_makes_three_reads_of_store_with_800_rows_of_each_kind(shop: Shop) -> None:
    await filled(shop.service, 800, owners=100)
    person = await entered(await shop.person(), shop.service)
    counted = counting(shop.service)
    for name in LISTS:
        shop.service.elicitations.owners.forget(None)
        before = counted.reads
        page = await at(person, shop.service, f"/{name}?page=3")
        total = 300 if name == "rejected" else 800
        assert (page.status, f"41 to 60 of {total}" in page.text) == (200, True), name
        assert 0 < counted.reads - before <= 3, name
        for secret in SECRETS:
            assert secret not in page.text, name


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
    assert "15 in all" in page.text
    page = await at(person, service, "/accounts?status=lapsed&label=octocat1*")
    assert "the person has to connect it again" in page.text
    for wrong in ("since=yesterday", "until=999999d", "since=9999-99-99"):
        page = await at(person, service, f"/questions?{wrong}")
        assert (page.status, "This filter is not valid" in page.text) == (400, True), wrong
        assert (await at(person, service, f"/csv/questions?{wrong}")).status == 400


@pytest.mark.parametrize(
    ("text", "subjects", "claims"),
    [
        ("", [], []),
        ("ann, auth0|42", ["ann", "auth0|42"], []),
        ("groups=ops roles=a,b", ["b"], [("groups", "ops"), ("roles", "a")]),
        ("sub=abc==", ["abc=="], []),
    ],
)
def test_operators_are_subjects_and_claims(
    text: str, subjects: list[str], claims: list[tuple[str, str]]
) -> None:
    rules = operators_of(text)
    assert rules.subjects == frozenset(subjects)
    assert rules.claims == frozenset(claims)
    assert rules.names_somebody == bool(text)


@pytest.mark.parametrize(
    "text",
    [
        *("email=a@example.com", "Name=ann", "groups=", "=ops", "abc==", "sub=", "scope=admin"),
        " ".join(f"groups=g{number}" for number in range(21)),
    ],
)
def test_operators_by_claims_that_prove_nothing_are_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"claim|sub="):
        operators_of(text)


def test_operators_without_issuer_are_refused() -> None:
    with pytest.raises(BadSettings, match="ELICIT_OPERATORS: set, but ELICIT_ISSUER is not"):
        read_settings({"ELICIT_OPERATORS": "groups=ops"})


def test_log_has_search_links_only_with_operators() -> None:
    settings = plain_settings()
    assert settings.log.search_url is None
    named = replace(settings, identity=replace(settings.identity, operators=OPS))
    assert named.log.search_url == "http://127.0.0.1:8765/operator/search"


async def test_list_reads_a_limited_number_of_rows(shop: Shop) -> None:
    await filled(shop.service, 30)
    part = await listed(shop.service, Elicitation, at_most=20)
    assert (len(part.rows), part.more_after) == (20, part.rows[-1].id)
    whole = await listed(shop.service, Elicitation)
    assert (len(whole.rows), whole.more_after) == (30, None)
    parts = [row async for row in each_row(shop.service, Elicitation, at_most=7)]
    assert [row.id for row in parts] == [row.id for row in whole.rows]


async def test_search_reads_each_kind_at_once_in_store_with_800_questions(shop: Shop) -> None:
    await filled(shop.service, 800, owners=100)
    person = await entered(await shop.person(), shop.service)
    (one, *_) = (await listed(shop.service, Payment, at_most=1)).rows
    counted = counting(shop.service)
    known = (tail_of(one), one.session, str(one.payment_intent))
    for sought in (*known, "cs_unknown", "0123456789ab"):
        shop.service.elicitations.owners.forget(None)
        counted.reads = 0
        found = await at(person, shop.service, f"/search?q={quote(sought)}")
        assert found.status == (303 if sought in known else 404), sought
        assert 0 < counted.reads <= 20, sought


async def test_row_that_cannot_be_read_is_counted(shop: Shop) -> None:
    await filled(shop.service, 3)
    record = (await shop.service.elicitations.store.list(KINDS[Elicitation]))[0]
    await shop.service.elicitations.store.write(replace_record(record, sealed=b"broken"))
    person = await entered(await shop.person(), shop.service)
    assert "Rows that cannot be read: 1." in (await at(person, shop.service, "/questions")).text


async def test_data_keys_of_a_list_are_read_at_once(shop: Shop) -> None:
    await filled(shop.service, 20, owners=20)
    owners, wanted = shop.service.elicitations.owners, people(shop.service, 20)
    owners.forget(None)
    await owners.cache(wanted, at_most=100)
    assert all(owners.lockers.get(owner) for owner in wanted)
    owners.forget(None)
    await owners.cache(wanted[:1], at_most=100)  # does not prefetch the key of a single owner
    assert owners.lockers.get(wanted[0]) is None


async def test_timeline_shows_payment_that_came_late_and_twice_and_was_refunded(shop: Shop) -> None:
    async with buying(shop) as buy:
        earlier, latest = await two_tabs(shop, buy)
        await give_up(shop, buy)
        shop.line.is_down = True  # so that no checkout is closed when the question expires
        shop.clock.tick(minutes=30)
        await shop.sweep()
        for tab in (earlier, latest):
            await buy.person.press_there(tab, "card")
        shop.line.is_down = False
        await shop.send_all()
        shop.clock.tick(days=1)
        await shop.sweep()
    payments = await shop.payments()
    assert len(payments) == 2
    person = await entered(await shop.person(), shop.service)
    (unused,) = [one for one in payments if one.status == "open"]
    url = f"{shop.service.public_url}/operator/payments/{unused.id}/refund"
    assert (await act(person, url)).status_code == 303
    for sought in (payments[0].session, payments[1].payment_intent):
        found = await at(person, shop.service, f"/search?q={sought}")
        page = await person.visit(found.location or "")
        timeline = page.text.partition("<h2>Timeline</h2>")[2].partition("<h2>Log</h2>")[0]
        words = ("Continue pressed (2)", "accepted late", "webhook checkout.session.completed")
        for entry in (*words, "refunded 9.00 EUR", "paid twice"):
            assert entry in timeline, entry
        assert timeline.count("paid 9.00 EUR") == 2
        assert "accepted, late" in page.text


@pytest.mark.parametrize("operators", [None, OPS])
async def test_authors_own_operator_route_is_served_only_without_operators(
    operators: OperatorRules | None,
) -> None:
    server = new_server("mcp")

    @server.custom_route("/operator", methods=["GET"])
    async def own(_: Request) -> Response:
        return Response("the author's page")

    options = {} if operators is None else {"operators": operators}
    async with issuing() as issuer, server_env(server, who=issuer.who(**options)) as env:
        page = await at(await env.person(), env.service, "")
        assert (page.text == "the author's page") == (operators is None)
