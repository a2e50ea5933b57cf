"""`elicit show`: finds any id from a page, log line, list or provider, and shows its timeline."""

import json
from datetime import timedelta
from typing import Any

import pytest

from flows.elicitation.states import Elicitation
from flows.oauth.connection import Connection
from tests.support.account_env import connect, serving_accounts, stored
from tests.support.clock import Clock
from tests.support.mcp_server import soon
from tests.support.paying import give_up
from tests.support.renewing import Renewing
from tests.support.service_env import asked, process
from tests.support.shop_env import Shop, buying
from webapp.cli.arguments import with_ids
from webapp.cli.filters import Filters, filtered
from webapp.cli.main import parser_for
from webapp.cli.payments import end_payment, list_payments
from webapp.cli.questions import list_questions, show_history
from webapp.command import CommandRefused
from webapp.operations.history import show
from webapp.operations.payment_rows import PaymentRow
from webapp.records.ids import tail_of
from webapp.records.values import StoredWebhook
from webapp.settings.quotas import PolicySettings
from webapp.stores.sqlite import MemoryStore


async def test_every_id_of_a_purchase_leads_to_its_timeline(shop: Shop) -> None:
    # finding: XV5
    async with buying(shop) as buy:
        link = buy.link
        await buy.person.pay(link)
        await shop.send_all()
        await soon(buy.call)
    rows = shop.service.elicitations
    (question,) = await rows.all(Elicitation)
    (payment,) = await shop.payments()
    hooks = await rows.all(StoredWebhook)
    assert hooks
    ids = [
        *(question.id, tail_of(question), tail_of(question)[:8], link, question.waiter),
        *(payment.id, tail_of(payment), payment.session, payment.session[:9]),
        *(payment.payment_intent, *map(tail_of, hooks), *(hook.event for hook in hooks)),
    ]
    for id in ids:
        assert id is not None
        shown = await show(shop.service, id)
        assert shown.question == tail_of(question), id
        assert shown.payments == [tail_of(payment)]
        happened = [each.what for each in shown.timeline]
        assert happened[0] == "asked: payment"
        for word in ("Continue pressed (1)", "accepted", f"paid {payment.price}"):
            assert word in happened, happened
        assert any(word.startswith("webhook ") for word in happened)
        assert question.request.message not in str(shown)
    shop.clock.tick(days=20)
    assert (await show(shop.service, link)).question == tail_of(question)


async def test_timeline_says_when_an_unused_payment_is_refunded(shop: Shop) -> None:
    async with buying(shop) as buy:
        await give_up(shop, buy)
        await buy.person.pay(buy.link)
        await shop.send_all()
    (payment,) = await shop.payments()
    (last,) = (await show(shop.service, payment.id)).timeline[-1:]
    assert (last.what, last.at) == (
        "is refunded automatically if no call uses it",
        payment.refund_due_at,
    )


@pytest.mark.parametrize(
    ("id", "says"),
    [
        ("0123456789ab", "error_id="),
        ("cs_test_unknown", "ELICIT_KEEP_RECORDS"),
        (
            "http://127.0.0.1:8765/e/AQ-no-token.of-ours",
            "No server of this store created this link",
        ),
    ],
)
async def test_unknown_id_error_says_where_to_look(shop: Shop, id: str, says: str) -> None:
    # finding: XV5
    with pytest.raises(CommandRefused, match=says):
        await show(shop.service, id)


async def test_link_finds_its_question_for_as_long_as_the_question_is_stored() -> None:
    clock, policies = Clock(), PolicySettings(keep_records=timedelta(days=90))
    async with process(MemoryStore(), clock, policies=policies) as service:
        question = await asked(service)
        link = service.links.of(question, now=clock())
        clock.tick(days=80)
        assert (await show(service, link)).question == tail_of(question)
        clock.tick(days=11)
        await service.elicitations.store.erase(before=clock(), owner=question.owner)
        with pytest.raises(CommandRefused, match="ELICIT_KEEP_RECORDS"):
            await show(service, link)


async def test_account_is_shown_with_its_status_and_timeline() -> None:
    # finding: XV5
    async with serving_accounts(Renewing(), clock=Clock()) as service:
        await connect(service, "repo")
        (account,) = await stored(service)
        shown = await show(service, tail_of(account))
        assert (shown.kind, shown.status, shown.provider) == ("account", "connected", "github")
        assert "account connected at github" in [each.what for each in shown.timeline]
        assert shown.question is not None
        assert account.label not in str(shown)
        assert isinstance(account, Connection)


async def test_show_prints_text_with_exact_times_or_a_json_object(
    shop: Shop, capsys: pytest.CaptureFixture[str]
) -> None:
    # finding: XV5
    async with buying(shop) as buy:
        await buy.person.pay(buy.link)
    (question,) = await shop.service.elicitations.all(Elicitation)
    shown = await show(shop.service, question.id)
    show_history(shown, as_json=False)
    text = capsys.readouterr().out
    assert f"{question.created_at:%Y-%m-%dT%H:%M:%SZ}\tasked: payment" in text
    show_history(shown, as_json=True)
    answer = json.loads(capsys.readouterr().out)
    assert answer["question"] == tail_of(question)
    assert answer["timeline"][0]["what"] == "asked: payment"


async def test_ended_questions_are_listed(shop: Shop) -> None:
    # finding: XV5
    async with buying(shop) as buy:
        await buy.person.decline(buy.link)
        await soon(buy.call)
    (row,) = (await list_questions(shop.service)).rows
    assert (row.kind, row.status) == ("payment", "declined")
    assert row.ended_at is not None


@pytest.mark.parametrize("words", [["show"], ["questions", "show"]])
def test_show_command_accepts_an_id_that_starts_with_a_dash(words: list[str]) -> None:
    # finding: XV5
    given = with_ids([*words, "-ab9"])
    assert parser_for(given).parse_args(given).id in ("-ab9", "id:-ab9")


def test_owner_option_accepts_a_value_that_starts_with_a_dash() -> None:
    given = with_ids(["pending", "list", "--owner", "-ab9x"])
    assert parser_for(given).parse_args(given).owner == "-ab9x"


@pytest.mark.parametrize(
    "words",
    [
        *(["payments", "list"], ["pending", "list"], ["questions", "list"], ["webhooks", "list"]),
        *(["events", "list"], ["approvals", "list"], ["clients", "list"], ["servers", "list"]),
        *(["api-keys", "list"], ["keys", "list"], ["settings"], ["connect", "--list"]),
        ["audit", "export", "--owner", "x"],
    ],
    ids=" ".join,
)
def test_every_list_has_filters_and_a_limit(words: list[str]) -> None:
    # finding: XV5
    given = [*words, "--where", "id=a*", "--since", "7d", "--until", "2026-03-01", "--limit", "5"]
    options = parser_for(given).parse_args(given)
    assert (options.where, options.limit) == ([("id", "a*")], 5)
    assert options.since > options.until


async def test_rows_are_filtered_by_field_time_and_limit(
    shop: Shop, capsys: pytest.CaptureFixture[str]
) -> None:
    # finding: XV5
    for _ in range(3):
        async with buying(shop) as buy:
            await buy.person.come_back(await buy.person.pay(buy.link))
            await soon(buy.call)
        shop.clock.tick(hours=1)
    table = await list_payments(shop.service, only_open=False)

    def chosen(**by: Any) -> int:
        found = filtered(table, Filters(**by), of=PaymentRow, as_json=True)
        return len(found.rows)

    (first, *_) = table.rows
    assert chosen() == len(table.rows) == 3
    assert chosen(where=(("provider", "STRIPE"), ("price", "9.00*"))) == 3
    assert chosen(where=(("session", first.session or ""),)) == 1
    assert chosen(where=(("provider", "paypal"),)) == 0
    by = Filters(where=(("provider", "paypal"),))
    none = filtered(table, by, of=PaymentRow, as_json=True)
    assert none.nothing == "No row matches these filters."
    with pytest.raises(CommandRefused, match="is spent: there is nothing to check"):
        await end_payment(shop.service, first.id)
    assert chosen(since=first.paid_at) == 1
    assert chosen(until=first.paid_at - timedelta(minutes=90)) == 1
    assert capsys.readouterr().err == ""
    assert chosen(limit=2) == 2
    assert "2 of 3 are shown" in capsys.readouterr().err
    with pytest.raises(CommandRefused, match="no field colour"):
        chosen(where=(("colour", "red"),))
