"""Disputes at a declared provider: notices in any order, and no refund of disputed money.

A notice shows the state at the time when it was made, so a notice can only add claims. A claim ends
with an answer from the provider, or with a notice about its end.
"""

from collections.abc import AsyncIterator
from itertools import permutations
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from flows.elicitation.states import Elicitation, Status
from flows.errors import Failed, NotPossible
from flows.payments.claims import claimed_of
from flows.payments.money import Money
from flows.payments.receipt import Payment, ReceiptStatus, Refund
from flows.payments.refunds import NoRefunds
from tests.support import own_provider as own
from tests.support.acme import (
    DECLARED,
    Acme,
    begun,
    declared,
    ledger,
    paid,
    send,
)
from tests.support.own_provider import Orchard
from tests.support.payment_env import Interrupted, PaymentEnv, selling
from webapp.cli.webhooks import replay_hook
from webapp.records.ids import tail_of

OPEN, REFUNDED, DISPUTED = ReceiptStatus.OPEN, ReceiptStatus.REFUNDED, ReceiptStatus.DISPUTED
NEWS = """
[sellers.acme.news]
"claim.opened" = "open"
"claim.lost" = "lost"
"claim.won" = "won"
"claim.gone" = "gone"
"""


@pytest.fixture
async def payment_env(acme: Acme, tmp_path: Path) -> AsyncIterator[PaymentEnv]:
    async with selling(declared(DECLARED + NEWS, folder=tmp_path), acme) as payment_env:
        yield payment_env


async def asked_about(payment_env: PaymentEnv, asked: Elicitation) -> list[ReceiptStatus]:
    """Ask the provider as if the person had come back, and return the statuses in the ledger."""
    await payment_env.service.kinds.payments.checkouts.ask_provider(await payment_env.now(asked))
    return await ledger(payment_env)


# Disputes at the author's own provider.


@pytest.mark.parametrize("order", list(permutations(range(3))))
async def test_older_notice_does_not_end_a_dispute(
    payment_env: PaymentEnv, acme: Acme, order: tuple[int, ...]
) -> None:
    await begun(payment_env)
    events = [acme.pay(), acme.event(refunded=100), acme.event(refunded=100, charged_back=800)]
    acme.checkouts["co-1"] |= {"refunded": 100, "charged_back": 800}
    for number in order:
        assert (await send(payment_env, events[number], id=f"msg_{number}")).status_code == 200
    assert await ledger(payment_env) == [DISPUTED]
    await payment_env.sweep(days=8)
    assert (await ledger(payment_env), acme.refunds) == ([DISPUTED], {})


@pytest.mark.parametrize("is_gone_first", [False, True])
@pytest.mark.parametrize(
    ("gone", "status"), [({"refunded": 900}, REFUNDED), ({"charged_back": 900}, DISPUTED)]
)
async def test_refund_or_chargeback_gets_the_same_ledger_status_in_any_event_order(
    payment_env: PaymentEnv,
    acme: Acme,
    gone: dict[str, Any],
    status: ReceiptStatus,
    *,
    is_gone_first: bool,
) -> None:
    asked = await begun(payment_env)
    events = [acme.pay(), acme.pay(**gone)]
    acme.checkouts["co-1"] |= gone
    for number, event in enumerate(reversed(events) if is_gone_first else events):
        await send(payment_env, event, id=f"msg_{number}")
        assert await ledger(payment_env) == [status if number or is_gone_first else OPEN]
        if number == 0:
            ends = Status.FAILED if is_gone_first else Status.ACCEPTED
            assert (await payment_env.now(asked)).status is ends
    await payment_env.sweep(days=8)
    assert (await ledger(payment_env), acme.refunds) == ([status], {})


@pytest.mark.parametrize("is_asked", [False, True])
@pytest.mark.parametrize("gone", [{"refunded": 300}, {"refunded": 900}, {"charged_back": 100}])
async def test_refund_or_chargeback_known_at_payment_is_in_the_first_ledger_row(
    payment_env: PaymentEnv, acme: Acme, gone: dict[str, Any], *, is_asked: bool
) -> None:
    # finding: M1
    asked = await begun(payment_env)
    event = acme.pay(**gone)
    acme.checkouts["co-1"] |= gone
    if is_asked:
        await asked_about(payment_env, asked)
    else:
        await send(payment_env, event)
    (payment,) = await payment_env.service.kinds.payments.ledger.all()
    assert payment.version == 1  # the payment was written only once
    assert payment.refunded == gone.get("refunded", 0)
    assert payment.status is (REFUNDED if payment.refunded == 900 else OPEN)
    # A claim on part of the amount counts with that part only.
    assert claimed_of(payment) == gone.get("charged_back", 0)


async def test_an_older_event_that_is_replayed_changes_nothing(
    payment_env: PaymentEnv, acme: Acme
) -> None:
    await begun(payment_env)
    await send(payment_env, acme.pay(), id="msg_1")
    await send(payment_env, acme.event(refunded=100), id="msg_2")
    await send(payment_env, acme.event(refunded=100, charged_back=800), id="msg_3")
    before = await payment_env.service.kinds.payments.ledger.all()
    for hook in await payment_env.webhooks():
        await replay_hook(payment_env.service, tail_of(hook))
        assert await payment_env.service.kinds.payments.ledger.all() == before
    assert await ledger(payment_env) == [DISPUTED]


async def test_dispute_opened_by_an_event_is_ended_only_by_an_event(
    payment_env: PaymentEnv, acme: Acme
) -> None:
    asked = await begun(payment_env)
    await send(payment_env, acme.pay(), id="msg_1")
    for number, kind in enumerate(("claim.opened", "claim.lost")):
        reported = acme.event().replace(b"checkout.updated", kind.encode())
        await send(payment_env, reported, id=f"msg_{number}_2")
        assert await asked_about(payment_env, asked) == [DISPUTED]
    won = acme.event().replace(b"checkout.updated", b"claim.won")
    await send(payment_env, won, id="msg_3")
    assert await ledger(payment_env) == [OPEN]


async def test_dispute_arriving_as_a_refund_starts_stops_the_refund(
    acme: Acme, tmp_path: Path
) -> None:
    store = Interrupted()
    async with selling(
        declared(DECLARED + NEWS, folder=tmp_path), acme, store=store
    ) as payment_env:
        asked = await begun(payment_env)
        await send(payment_env, acme.pay())
        payment = await payment_env.receipt(asked)
        opened = acme.event().replace(b"checkout.updated", b"claim.opened")
        store.meanwhile.append(lambda: send(payment_env, opened, id="msg_2"))
        refund = payment_env.service.kinds.payments.refunds.refund
        with pytest.raises(NotPossible, match="disputed"):
            await refund(payment.owner, payment.id, reason=None)
        assert not store.meanwhile
        await payment_env.sweep(days=8)
        assert (await ledger(payment_env), acme.refunds) == ([DISPUTED], {})
        # The bank took nothing, so the refund that had begun continues.
        won = acme.event().replace(b"checkout.updated", b"claim.won")
        await send(payment_env, won, id="msg_3")
        await payment_env.sweep(days=8)
        assert (await ledger(payment_env), len(acme.refunds)) == ([REFUNDED], 1)


KINDS: list[dict[str, Any]] = [
    {},
    {"refunded": 100},
    {"refunded": 400},
    {"charged_back": 300},
    {"charged_back": 900},
    {"refunded": 900},
    {"kind": "claim.opened"},
    {"kind": "claim.lost"},
    {"kind": "claim.won"},
]


async def rows_of(notices: list[dict[str, Any]], *, folder: Path) -> list[Payment]:
    """Return the ledger's rows after these notices. The provider's answers never mention claims."""
    acme = Acme()
    text = DECLARED + NEWS + "[sellers.acme.fetched]\ncharged_back = false\n"
    async with selling(declared(text, folder=folder), acme) as payment_env:
        await begun(payment_env)
        acme.pay()
        for number, says in enumerate(notices):
            kind = says.get("kind", "checkout.updated")
            event = acme.event(**{key: value for key, value in says.items() if key != "kind"})
            event = event.replace(b"checkout.updated", kind.encode())
            assert (await send(payment_env, event, id=f"msg_{number}")).status_code == 200
        await payment_env.sweep()
        rows = await payment_env.service.kinds.payments.ledger.all()
    # Ids, owners, versions and event ids differ in each run, so leave them out.
    same = {"id": "", "owner": "", "elicitation_id": "", "dedupe_key": "", "version": 0}
    unheard = [{id: replace(claim, heard=()) for id, claim in row.claims.items()} for row in rows]
    return [replace(row, claims=claims, **same) for row, claims in zip(rows, unheard, strict=True)]


@settings(
    max_examples=100, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(notices=st.lists(st.sampled_from(KINDS), max_size=4), data=st.data())
async def test_repeated_notices_in_any_order_lead_to_the_same_ledger_row(
    tmp_path: Path, notices: list[dict[str, Any]], data: st.DataObject
) -> None:
    straight = [KINDS[0], *notices]
    again = data.draw(st.lists(st.sampled_from(straight), max_size=2))
    crossed = [*data.draw(st.permutations(straight)), *again]
    assert await rows_of(crossed, folder=tmp_path) == await rows_of(straight, folder=tmp_path)


# A provider that reports claims in notices only, and not when it is asked.


@pytest.mark.parametrize("kind", ["claim.opened", "claim.lost"])
async def test_provider_reply_without_dispute_data_does_not_end_a_dispute(
    other: PaymentEnv, orchard: Orchard, kind: str
) -> None:
    asked = await other.begun()
    orchard.pay()
    await own.say(other, orchard.event())
    assert await own.say(other, orchard.event(kind, "e-2")) == "disputed"
    assert await asked_about(other, asked) == [DISPUTED]
    await other.sweep(days=8)
    assert (await ledger(other), orchard.refunded) == ([DISPUTED], [])


@pytest.mark.parametrize("kinds", [("claim.lost", "claim.won"), ("claim.won", "claim.lost")])
async def test_won_dispute_is_closed_in_either_event_order(
    payment_env: PaymentEnv, acme: Acme, kinds: tuple[str, str]
) -> None:
    await begun(payment_env)
    await send(payment_env, acme.pay())
    for kind in kinds:
        reported = acme.event().replace(b"checkout.updated", kind.encode())
        await send(payment_env, reported, id=f"msg_{kind}".replace(".", "_"))
    assert await ledger(payment_env) == [OPEN]


async def test_payment_withdrawn_by_a_dispute_event_is_not_refunded(
    payment_env: PaymentEnv, acme: Acme
) -> None:
    asked = await begun(payment_env)
    await send(payment_env, acme.pay())
    gone = acme.event().replace(b"checkout.updated", b"claim.gone")
    await send(payment_env, gone, id="msg_2")
    for days in (1, 7, 20):
        assert await asked_about(payment_env, asked) == [DISPUTED]
        await payment_env.sweep(days=days)
        assert (await ledger(payment_env), acme.refunds) == ([DISPUTED], {})


# Refunds of a payment that a bank claims in part.


async def refunded(payment_env: PaymentEnv, asked: Elicitation, **terms: Any) -> Refund:
    payment = await payment_env.receipt(asked)
    refunds = payment_env.service.kinds.payments.refunds
    return await refunds.refund(payment.owner, payment.id, reason=None, **terms)


async def test_refund_of_partly_claimed_payment_refunds_only_the_rest(
    payment_env: PaymentEnv, acme: Acme
) -> None:
    asked = await paid(payment_env, acme)
    acme.checkouts["co-1"]["charged_back"] = 300
    await send(payment_env, acme.event(), id="msg_2")
    assert (await refunded(payment_env, asked)).price == Money("6.00", "EUR")
    assert acme.checkouts["co-1"]["refunded"] == 600
    payment = await payment_env.receipt(asked)
    assert (payment.status, payment.refunded) == (DISPUTED, 600)
    await payment_env.sweep(days=8)
    assert len(acme.refunds) == 1


async def test_started_refund_is_retried_without_the_part_that_a_bank_claims(
    payment_env: PaymentEnv, acme: Acme
) -> None:
    asked = await paid(payment_env, acme)
    acme.checkouts["co-1"]["charged_back"] = 300
    with pytest.raises(Failed):
        await refunded(payment_env, asked)
    await send(payment_env, acme.event(), id="msg_2")
    await payment_env.sweep(minutes=31)
    payment = await payment_env.receipt(asked)
    assert (payment.status, payment.refunded) == (DISPUTED, 600)


async def test_rest_of_refund_follows_after_the_bank_gave_its_part_back(
    payment_env: PaymentEnv, acme: Acme
) -> None:
    asked = await paid(payment_env, acme)
    acme.checkouts["co-1"]["charged_back"] = 300
    await send(payment_env, acme.event(), id="msg_2")
    await refunded(payment_env, asked)
    acme.checkouts["co-1"]["charged_back"] = 0
    assert await asked_about(payment_env, asked) == [ReceiptStatus.REFUNDING]
    await payment_env.sweep(days=2)
    assert (await ledger(payment_env), acme.checkouts["co-1"]["refunded"]) == ([REFUNDED], 900)


async def test_repeated_refund_of_partly_claimed_payment_refunds_once(
    payment_env: PaymentEnv, acme: Acme
) -> None:
    asked = await paid(payment_env, acme)
    acme.checkouts["co-1"]["charged_back"] = 300
    await send(payment_env, acme.event(), id="msg_2")
    for _ in range(2):
        assert (await refunded(payment_env, asked)).price == Money("6.00", "EUR")
    acme.checkouts["co-1"]["charged_back"] = 900
    await send(payment_env, acme.event(), id="msg_3")
    with pytest.raises(NotPossible):
        await refunded(payment_env, asked)
    assert len(acme.refunds) == 1


async def test_repeated_refund_of_refunded_payment_is_not_changed_by_a_claim(
    payment_env: PaymentEnv, acme: Acme
) -> None:
    asked = await paid(payment_env, acme)
    await refunded(payment_env, asked)
    acme.checkouts["co-1"]["charged_back"] = 300
    await send(payment_env, acme.event(), id="msg_2")
    assert (await refunded(payment_env, asked)).price == Money("9.00", "EUR")
    assert len(acme.refunds) == 1


async def test_part_refund_above_the_unclaimed_rest_is_refused(
    payment_env: PaymentEnv, acme: Acme
) -> None:
    asked = await paid(payment_env, acme)
    acme.checkouts["co-1"]["charged_back"] = 300
    await send(payment_env, acme.event(), id="msg_2")
    with pytest.raises(NoRefunds, match="so at most 6"):
        await refunded(payment_env, asked, up_to=601)
    assert acme.refunds == {}
    await refunded(payment_env, asked, up_to=600)
    payment = await payment_env.receipt(asked)
    assert (payment.status, payment.refunded) == (DISPUTED, 600)


async def test_claim_stops_refund_at_a_provider_without_partial_refunds(
    acme: Acme, tmp_path: Path
) -> None:
    whole = DECLARED + '[sellers.acme.refund_body]\nreason = "{reason}"\n'
    async with selling(declared(whole, folder=tmp_path), acme) as payment_env:
        asked = await paid(payment_env, acme)
        acme.checkouts["co-1"]["charged_back"] = 300
        await send(payment_env, acme.event(), id="msg_2")
        with pytest.raises(NoRefunds, match="refund the rest at the provider"):
            await refunded(payment_env, asked)
        assert (await ledger(payment_env), acme.refunds) == ([OPEN], {})
