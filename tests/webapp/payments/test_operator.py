"""The operator's commands that list, show and refund payments."""

import asyncio
import json
from datetime import timedelta
from functools import partial
from pathlib import Path

import pytest
from msgspec.structs import replace

from flows import Receipt
from tests.support.checkouts import payment as paid
from tests.support.disputes import claimed
from tests.support.mcp_server import LEGACY, MODERN, eventually, link_in, soon, text_of
from tests.support.paying import paid_in_vain, results_are_noted, two_tabs
from tests.support.shop_env import REFUND, Shop, buying
from webapp.cli.arguments import with_ids
from webapp.cli.main import main, parser_for
from webapp.cli.operator import operate
from webapp.cli.payments import list_payments, refund_payment, show_payment
from webapp.cli.table import Table, lines_of, show_facts, show_table
from webapp.cli.webhooks import list_hooks, show_hook
from webapp.command import CommandRefused
from webapp.limits import CallLimits
from webapp.operations.payment_rows import PaymentRow
from webapp.service import Service
from webapp.sweeper import fall_due

RUDE = "\x1b[2J\r\nspent\u202e" + "x" * 500


async def id_of(shop: Shop) -> str:
    payment = (await shop.payments())[-1]
    return payment.id.removeprefix(payment.owner)


async def listed(shop: Shop, *, only_open: bool = False) -> list[PaymentRow]:
    return [*(await list_payments(shop.service, only_open=only_open)).rows]


async def refund(
    shop: Shop,
    id: str,
    *,
    reason: str | None = None,
    also_spent: bool = False,
    amount: str | None = None,
) -> str:
    (line,) = await refund_payment(
        shop.service, id, reason=reason, also_spent=also_spent, amount=amount
    )
    return line


def taken(words: list[str]) -> str:
    id: str = parser_for(words).parse_args(with_ids(words)).id
    return id


async def test_every_listed_id_is_accepted_by_the_commands(shop: Shop) -> None:
    async with buying(shop) as buy:
        shown = await paid_in_vain(shop, buy)
        (payment,) = await shop.payments()
        stranger = {"id": "evt_stranger", "type": "customer.created", "livemode": False}
        assert (await shop.send(stranger)).status_code == 200
    (row,) = await listed(shop)
    assert row.id == shown
    for start in ("ab", "-a", "--"):
        for id in (start + shown[2:], start + payment.id[2:]):
            assert taken(["payments", "refund", id]) == id[-24:]
            if start != "--":  # a full id
                assert taken(["payments", "refund", id[:9]]) == id[:9]
    hooks = [row.id for row in (await list_hooks(shop.service)).rows if row.id]
    assert hooks
    for id in hooks:
        assert taken(["webhooks", "show", id]) == id
        assert (await show_hook(shop.service, id[:10])).id == id


async def test_listed_payment_shows_price_product_tool_owner_and_date(shop: Shop) -> None:
    async with buying(shop) as buy:
        id = await paid_in_vain(shop, buy)
        (payment,) = await shop.payments()
        for only_open in (False, True):
            (row,) = await listed(shop, only_open=only_open)
            assert (row.id, row.price, row.standing) == (id, "9.00 EUR", "open")
            assert row.note == "will be refunded automatically on 2026-03-08"
            assert row.paid_at == payment.paid_at
            assert (row.what, row.tool) == ("Premium report", "report")
            assert (row.provider, row.is_live) == ("stripe", False)
            assert row.owner == payment.owner[:6]
            # finding: M8
            assert row.question == payment.elicitation_id.removeprefix(payment.owner)
            assert (row.session, row.payment) == (payment.session, payment.payment_intent)
            assert payment.owner not in str(row)


async def test_open_list_contains_only_unused_and_unrefunded_payments(shop: Shop) -> None:
    assert await listed(shop) == []
    async with buying(shop) as buy:
        for tab in await two_tabs(shop, buy):
            await buy.person.press_there(tab, "card")
            shop.clock.tick(minutes=1)
        await shop.send_all()
        await buy.result()
        while sorted(await shop.ledger()) != ["open", "spent"]:  # noqa: ASYNC110
            await asyncio.sleep(0)
        assert len(await listed(shop)) == 2
        (row,) = await listed(shop, only_open=True)
        await refund(shop, row.id)
        assert await listed(shop, only_open=True) == []


async def test_control_characters_in_a_product_name_are_not_printed(shop: Shop) -> None:
    async with buying(shop) as buy:
        await paid_in_vain(shop, buy)
        (payment,) = await shop.payments()
        await shop.service.kinds.payments.ledger.change(
            payment.owner, payment.id, lambda p: replace(p, what=RUDE)
        )
        table = await list_payments(shop.service, only_open=False)
        lines = lines_of(table, width=100, now=shop.clock())
        assert len(lines) == 2
        assert all(line.isprintable() and len(line) <= 100 for line in lines)


async def test_repeated_refund_command_refunds_once(shop: Shop) -> None:
    async with buying(shop) as buy:
        id = await paid_in_vain(shop, buy)
        assert (await refund(shop, id, reason="sorry")).startswith("9.00 EUR is refunded (re_")
        (payment,) = await shop.payments()
        assert (payment.status, payment.reason) == ("refunded", "sorry")
        assert await refund(shop, id) == "9.00 EUR was refunded on 2026-03-01."
        assert shop.line.count(REFUND) == 1
        assert "refunded in the meantime" in await buy.again()
        await buy.is_asked_again()


async def test_used_payment_is_refunded_only_with_the_spent_option(shop: Shop) -> None:
    async with buying(shop) as buy:
        await buy.pay()
        await buy.result()
        await results_are_noted(shop)
        id = await id_of(shop)
        with pytest.raises(CommandRefused, match="--spent"):
            await refund(shop, id)
        assert (await shop.ledger(), shop.line.count(REFUND)) == (["spent"], 0)
        await refund(shop, id, also_spent=True)
        assert (await shop.ledger(), len(await shop.refunds())) == (["refunded"], 1)


@pytest.mark.parametrize("also_spent", [False, True])
async def test_payment_that_a_call_is_using_cannot_be_refunded(
    shop: Shop, also_spent: bool
) -> None:
    gate = asyncio.Event()

    async def slowly(receipt: Receipt) -> str:
        await gate.wait()
        return f"paid {receipt.price}"

    shop.body = slowly
    async with buying(shop) as buy:
        await buy.pay()
        await eventually(lambda: shop.bodies)
        with pytest.raises(CommandRefused, match="is using the payment at the moment"):
            await refund(shop, await id_of(shop), also_spent=also_spent)
        assert [(row.standing, row.is_open) for row in await listed(shop)] == [("taken", True)]
        gate.set()
        assert await buy.result() == "paid 9.00 EUR"
        await results_are_noted(shop)
        assert [row.standing for row in await listed(shop)] == ["spent"]


async def test_payment_is_shown_by_payment_id_or_question_id(shop: Shop) -> None:
    async with buying(shop) as buy:
        id = await paid_in_vain(shop, buy)
    (row,) = await listed(shop)
    for given in (row.question, row.question[:10], id):
        assert (await show_payment(shop.service, given)).id == id
    with pytest.raises(CommandRefused, match="There is no payment"):
        await show_payment(shop.service, "nothing")


async def test_concurrent_refunds_by_operator_and_sweeper_refund_once(shop: Shop) -> None:
    async with buying(shop) as buy:
        id = await paid_in_vain(shop, buy)
        shop.clock.tick(days=7)
        await asyncio.gather(refund(shop, id), fall_due(shop.service), refund(shop, id))
        assert (await shop.ledger(), len(await shop.refunds())) == (["refunded"], 1)


async def test_refund_command_is_retried_automatically_when_the_provider_was_down(
    shop: Shop,
) -> None:
    async with buying(shop) as buy:
        id = await paid_in_vain(shop, buy)
        shop.line.is_down = True
        with pytest.raises(CommandRefused, match="retried automatically"):
            await refund(shop, id)
        (row,) = await listed(shop, only_open=True)
        assert row.standing == "refunding"
        shop.line.is_down = False
        shop.clock.tick(minutes=5)
        await shop.sweep()
        assert await shop.ledger() == ["refunded"]


async def test_refund_command_refuses_a_disputed_payment(shop: Shop) -> None:
    async with buying(shop) as buy:
        id = await paid_in_vain(shop, buy)
        await claimed(shop, (await shop.payments())[0])
        with pytest.raises(CommandRefused, match="disputed"):
            await refund(shop, id, also_spent=True)
        assert shop.line.count(REFUND) == 0


async def test_repeated_partial_refund_is_made_once_and_the_payment_stays_usable(
    shop: Shop,
) -> None:
    # finding: M8
    async with buying(shop) as buy:
        id = await paid_in_vain(shop, buy)
        reported = await refund(shop, id, amount="3.00", reason="sorry")
        assert reported.startswith("3.00 EUR is refunded (re_")
        assert reported.endswith("Nothing else of 9.00 EUR was refunded.")
        assert await refund(shop, id, amount="3.00") == "3.00 EUR of 9.00 EUR was refunded already."
        await shop.send_all()
        await refund(shop, id, amount="6.00")
        assert [one["amount"] for one in await shop.refunds()] == [300, 300]
        assert await shop.ledger() == ["open"]
        assert await buy.again() == "paid 9.00 EUR"
        await results_are_noted(shop)
    with pytest.raises(CommandRefused, match="--spent"):
        await refund(shop, id, amount="7.00")
    assert await refund(shop, id, also_spent=True) != ""
    assert sorted(one["amount"] for one in await shop.refunds()) == [300, 300, 300]
    assert await shop.ledger() == ["refunded"]


async def test_failed_partial_refund_says_that_repeating_does_not_refund_twice(shop: Shop) -> None:
    async with buying(shop) as buy:
        id = await paid_in_vain(shop, buy)
    shop.line.is_down = True
    with pytest.raises(CommandRefused, match="does not refund twice"):
        await refund(shop, id, amount="3.00")
    assert await shop.ledger() == ["open"]


async def test_partial_refund_whose_reply_was_lost_is_made_once(shop: Shop) -> None:
    async with buying(shop) as buy:
        id = await paid_in_vain(shop, buy)
    shop.line.lost.append(REFUND)
    assert (await refund(shop, id, amount="3.00")).startswith("3.00 EUR is refunded (re_")
    await shop.restart()
    await asyncio.gather(*(refund(shop, id, amount="3.00") for _ in range(2)))
    (payment,) = await shop.payments()
    assert (payment.refunded, len(await shop.refunds())) == (300, 1)


@pytest.mark.parametrize("amount", ["9.01", "3.005", "-1.00", "three", "3 EUR"])
async def test_invalid_refund_amount_is_rejected(shop: Shop, amount: str) -> None:
    async with buying(shop) as buy:
        id = await paid_in_vain(shop, buy)
    with pytest.raises(CommandRefused, match="--amount"):
        await refund(shop, id, amount=amount)
    assert shop.line.count(REFUND) == 0


async def test_partial_refund_made_at_the_provider_is_shown_in_the_payments_note(
    shop: Shop,
) -> None:
    async with buying(shop) as buy:
        await paid_in_vain(shop, buy)
        await shop.refund_by_hand(amount="300")
        await shop.send_all()
        (row,) = await listed(shop, only_open=True)
        assert str(row.note).endswith(", 3.00 EUR of it refunded")


async def test_refund_of_an_unknown_id_says_that_no_payment_exists(shop: Shop) -> None:
    with pytest.raises(CommandRefused, match="There is no payment"):
        await refund(shop, "x" * 24)


# The command line.


def command(home: Path, **settings: str) -> tuple[int, list[Table[PaymentRow]]]:
    """Run the command on its own store. Return the exit status and the tables that it shows."""
    shown: list[Table[PaymentRow]] = []
    environment = {"HOME": str(home), **settings}
    try:
        operate(environment, partial(list_payments, only_open=True), show=shown.append)
    except CommandRefused as refusal:
        return refusal.print_sentences(), shown
    return 0, shown


def test_empty_store_lists_no_open_payments(tmp_path: Path) -> None:
    status, (table,) = command(tmp_path)
    assert (status, table.rows, table.nothing) == (0, [], "Nothing is open.")


def test_unusable_store_or_invalid_setting_is_reported_with_exit_status_2(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert command(tmp_path)[0] == 0
    assert command(tmp_path, ELICIT_SECRET="of somebody else and long enough too")[0] == 2
    assert "another secret" in capsys.readouterr().err
    assert command(tmp_path, ELICIT_STORE="nowhere://")[0] == 2
    assert "ELICIT_STORE" in capsys.readouterr().err
    assert command(tmp_path, ELICIT_REFUND_UNUSED="soon")[0] == 2
    assert "ELICIT_REFUND_UNUSED" in capsys.readouterr().err


@pytest.mark.parametrize(
    "words",
    [
        ["payments"],
        ["payments", "refund"],
        ["payments", "refund", "no id"],
        ["payments", "refund", "a" * 24, "--reason"],
        ["webhooks", "show", "a" * 25],
        ["webhooks", "replay"],
        ["webhooks", "forget", "a" * 24],
    ],
)
def test_invalid_command_line_exits_with_status_2(words: list[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(words)
    assert ended.value.code == 2


@pytest.mark.parametrize(
    "words",
    [
        ["payments", "refund", "-" + "a" * 23],
        ["payments", "refund", "-short"],
        ["payments", "refund", "short"],
        ["payments", "refund", "--" + "a" * 22, "--spent", "--reason", "sorry"],
        ["webhooks", "show", "a" * 24],
        ["webhooks", "replay", "-" + "a" * 23],
    ],
)
def test_unknown_id_exits_with_status_1_even_if_it_starts_with_a_dash(
    words: list[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("XDG_DATA_HOME", raising=False)
    assert main(words) == 1
    output = capsys.readouterr()
    assert output.err.startswith("elicit: There is no ")
    assert output.out == ""


async def test_payments_are_listed_as_json_and_shown_with_all_details(
    shop: Shop, capsys: pytest.CaptureFixture[str]
) -> None:
    # finding: M8
    async with buying(shop) as buy:
        id = await paid_in_vain(shop, buy)
        (payment,) = await shop.payments()
    table = await list_payments(shop.service, only_open=True)
    show_table(table, as_json=True, now=shop.clock())
    text = capsys.readouterr().out
    (answer,) = json.loads(text)
    question = payment.elicitation_id.removeprefix(payment.owner)
    assert (answer["id"], answer["question"]) == (id, question)
    assert (answer["session"], answer["payment"]) == (payment.session, payment.payment_intent)
    assert (answer["amount"], answer["currency"], answer["standing"]) == (900, "EUR", "open")
    assert answer["paid_at"] == "2026-03-01T12:00:00Z"
    assert answer["refund_due_at"] == answer["given_back_by_itself_at"] is not None
    assert answer["disputed"] == answer["claimed"] == 0
    assert payment.owner not in text
    show_facts(await show_payment(shop.service, id), as_json=False)
    shown = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert ["session", payment.session] in shown
    assert ["payment", payment.payment_intent] in shown
    assert {line[0] for line in shown if line} & {"claimed", "given_back_by_itself_at"} == set()
    with pytest.raises(CommandRefused, match="There is no payment"):
        await show_payment(shop.service, "x" * 24)


async def test_disputed_payment_is_listed_as_open(shop: Shop) -> None:
    # finding: M8
    async with buying(shop) as buy:
        await paid_in_vain(shop, buy)
        (payment,) = await shop.payments()
        assert await claimed(shop, payment) == "disputed"
    (row,) = await listed(shop, only_open=True)
    assert row.standing == "disputed"


@pytest.mark.parametrize("revision", [LEGACY, MODERN])
async def test_pending_bank_transfer_is_shown_to_the_model_and_the_operator(
    shop: Shop, revision: str
) -> None:
    # finding: M5
    shop.limits = CallLimits(link=timedelta())
    await shop.restart()
    async with shop.env.caller(revision, declares=None) as caller:
        link = link_in(await soon(caller.call("report")))
        person = await shop.person()
        await person.press_there(await person.go_on(link), "bank")
        await shop.send_all()
        text = text_of(await soon(caller.call("report")))
        assert "the payment is on its way" in text
        assert "must not pay again" in text
        assert link not in text
        (row,) = await listed(shop, only_open=True)
        assert (row.price, row.standing) == ("9.00 EUR", "on its way")
        assert str(row.session).startswith("cs_")
        # finding: M8
        assert await show_payment(shop.service, row.id) == row


async def test_waiting_call_reports_a_bank_transfer_that_starts_during_the_wait(shop: Shop) -> None:
    async with shop.env.caller(LEGACY) as caller:
        call = caller.call("report")
        link = await caller.link()
        person = await shop.person()
        await person.press_there(await person.go_on(link), "bank")
        await shop.send_all()
        shop.clock.tick(minutes=1)
        shop.service.elicitations.waiters.wake_all()
        text = text_of(await soon(call))
        assert "must not pay again" in text
        assert link not in text


def test_unreadable_record_does_not_hide_the_other_payments(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    # finding: R19
    home = {"HOME": str(tmp_path)}
    owner = "o" * 20
    rows = [
        paid(
            id=f"{owner}{number:024}",
            owner=owner,
            dedupe_key=f"j{number}",
            elicitation_id=f"{owner}e",
        )
        for number in range(3)
    ]

    async def put(service: Service) -> None:
        await service.elicitations.write(*rows)
        (record, *_) = await service.elicitations.store.list("payment")
        await service.elicitations.store.write(replace(record, sealed=b"of somebody else"))

    operate(home, put, show=lambda _: None)
    for only_open in (True, False):
        tables: list[Table[PaymentRow]] = []
        work = partial(list_payments, only_open=only_open)
        with pytest.raises(CommandRefused) as refused:
            operate(home, work, show=tables.append)
        assert [row.id for row in tables[0].rows] == [f"{number:024}" for number in (2, 1)]
        message = str(refused.value)
        assert f"1 record of the store cannot be read (payment: {0:024})" in message
