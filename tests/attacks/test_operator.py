"""Attacks on the pages for operators: by other people, other sites, and hostile names."""

import csv
from io import StringIO
from urllib.parse import quote

import pytest

from flows.elicitation.states import Elicitation, Status
from tests.support.clock import Clock
from tests.support.issuer import come_back_as, issuing, leave_to_sign_in, sign_in
from tests.support.mcp_server import new_server, server_env
from tests.support.operating import (
    HOSTILE,
    at,
    csrf_at,
    entered,
    filled,
    one_time_link,
    people,
    question,
)
from tests.support.paying import give_up
from tests.support.shop_env import Shop, buying
from tests.support.signed_in_people import signed_in_env
from webapp.operations.catalog import LISTS
from webapp.settings.identity import operators_of

OPS = operators_of("root groups=ops")
SECRETS = ("THE TYPED ANSWER", "THE ACCESS TOKEN", "THE REFRESH TOKEN", "pi_1_secret_abcdefgh")


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


async def test_token_of_other_purpose_opens_no_pages(shop: Shop) -> None:
    person, link = await shop.person(), one_time_link(shop.service)
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


async def test_sign_in_returns_to_the_sought_address_and_to_no_other_site() -> None:
    async with signed_in_env(operators=OPS) as here:
        service = here.env.service
        await filled(service, 1)
        (one,) = await service.elicitations.all(Elicitation)
        for path, heading in (
            (f"/questions/{one.id}", f"Question {one.id.removeprefix(one.owner)}"),
            ("/questions?status=open&x=//evil.example", "Questions"),
        ):
            root = await here.env.person()
            page = await sign_in(root, await at(root, service, path), "root")
            assert (page.status, page.heading) == (200, heading)


async def test_session_of_another_issuer_is_no_operator() -> None:
    async with signed_in_env(operators=OPS) as here:
        root = await here.env.person()
        await sign_in(root, await at(root, here.env.service, ""), "root")
        name = here.env.service.identity.sessions.cookie_name
        cookie = root.browser.cookies[name]
    async with signed_in_env(operators=OPS) as other:
        thief = await other.env.person()
        thief.browser.cookies.set(other.env.service.identity.sessions.cookie_name, cookie)
        assert (await at(thief, other.env.service, "")).status == 403


async def test_operator_pages_return_404_if_no_operators_are_configured() -> None:
    async with signed_in_env() as here:
        person = await here.env.person()
        for path in ("", "/questions", "/enter/x", "/csv/questions"):
            assert (await at(person, here.env.service, path)).status == 404, path


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


async def test_link_of_question_is_sought_by_form_and_not_in_address(shop: Shop) -> None:
    async with buying(shop) as buy:
        await give_up(shop, buy)
    (question,) = await shop.service.elicitations.all(Elicitation)
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


async def test_pages_are_not_stored_and_not_framed(shop: Shop) -> None:
    await filled(shop.service, 1)
    person = await entered(await shop.person(), shop.service)
    for path in ("", "/questions", "/search?q=nothing", "/csv/questions"):
        answer = await person.browser.get(f"{shop.service.public_url}/operator{path}")
        assert answer.headers["cache-control"] == "no-store"
        assert answer.headers["x-frame-options"] == "DENY"
