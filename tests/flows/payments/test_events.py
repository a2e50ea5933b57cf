"""Events after a payment: neither order nor repetition changes the resulting payment."""

from dataclasses import dataclass, replace
from itertools import permutations
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from flows.errors import InvalidQuestion
from flows.payments.claims import disputed
from flows.payments.declared.declaration import DeclaredAccount, ProviderDeclaration
from flows.payments.declared.reader import notice_in
from flows.payments.gateway import ProviderSession, with_returns
from flows.payments.receipt import (
    ASKED,
    CLAIM,
    Dispute,
    Payment,
    ReceiptStatus,
    partly_refunded,
)
from flows.payments.session import SessionStatus
from tests.support import gateway_env
from tests.support.clock import NOON

OPEN, SPENT, REFUNDED, DISPUTED = (
    ReceiptStatus.OPEN,
    ReceiptStatus.SPENT,
    ReceiptStatus.REFUNDED,
    ReceiptStatus.DISPUTED,
)
NEWS = {
    "claim.opened": Dispute.OPEN,
    "claim.lost": Dispute.LOST,
    "claim.won": Dispute.WON,
    "claim.again": Dispute.LOST_AGAIN,
    "claim.gone": Dispute.GONE,
    "back": None,
}
OWN = DeclaredAccount(
    declaration=ProviderDeclaration(
        name="acme",
        label="Acme",
        api="https://api.acme.example",
        checkout_origins=("https://pay.acme.example",),
        news=NEWS,
    ),
    secret="a-key",
    is_live=True,
)


def row(**changes: Any) -> Payment:
    return gateway_env.payment(
        "acme", session="co-1", payment_intent="pay-1", is_live=True, **changes
    )


def checkout(**says: Any) -> dict[str, Any]:
    return {
        "id": "co-1",
        "state": "paid",
        "amount": 900,
        "currency": "EUR",
        "reference": gateway_env.ID,
        "live": True,
        "payment": "pay-1",
        "refunded": 0,
        "charged_back": 0,
        **says,
    }


def event(kind: str = "checkout.updated", **says: Any) -> bytes:
    return msgspec.json.encode({"type": kind, "data": checkout(**says)})


def after_notice(payment: Payment, body: bytes) -> Payment:
    """Return the payment after a verified notice with this body."""
    notice = notice_in(body, OWN)
    if notice.session is not None:
        return with_returns(payment, notice.session, now=NOON)
    assert notice.news is not None
    if notice.news.dispute is not None:
        id, stage = notice.subject or "", notice.news.dispute
        return disputed(payment, id, stage, event=notice.id)
    return partly_refunded(payment, NOON, amount=notice.news.returned)


def asked(payment: Payment, **says: Any) -> Payment:
    """Return the payment after a poll that reports it as paid. `says` has more session fields."""
    session = ProviderSession(
        id="co-1",
        state=SessionStatus.PAID,
        amount=900,
        currency="EUR",
        reference=gateway_env.ID,
        is_live=True,
        **says,
    )
    return with_returns(payment, session, now=NOON)


NOTICES = [
    event(),
    event(refunded=100),
    event(refunded=300),
    event(refunded=900),
    event(charged_back=100),
    event(charged_back=900),
    event(refunded=100, charged_back=800),
    *(event(kind, refunded=200) for kind in NEWS),
]
BEFORE = [row(), row(status=SPENT, spent_at=NOON)]


@given(notices=st.lists(st.sampled_from(NOTICES), max_size=6), data=st.data())
def test_notices_in_any_order_and_repeated_lead_to_same_payment(
    notices: list[bytes], data: st.DataObject
) -> None:
    shuffled = data.draw(st.permutations(notices))
    again = data.draw(st.lists(st.sampled_from(notices), max_size=6)) if notices else []
    for before in BEFORE:
        straight = crossed = before
        for one in notices:
            straight = after_notice(straight, one)
        for one in (*shuffled, *again):
            crossed = after_notice(crossed, one)
        assert crossed == straight


@given(notices=st.lists(st.sampled_from(NOTICES[:7]), min_size=1, max_size=4))
def test_older_notice_changes_nothing(notices: list[bytes]) -> None:
    payment = row()
    for one in notices:
        payment = after_notice(payment, one)
    assert after_notice(payment, event()) == payment


def test_older_notice_does_not_undo_chargeback() -> None:
    used = after_notice(row(), event(refunded=100, charged_back=800))
    assert (used.status, used.refunded) == (DISPUTED, 100)
    assert after_notice(used, event(refunded=100)) == used


def test_won_claim_ends_chargeback() -> None:
    used = after_notice(row(), event(charged_back=900))
    assert after_notice(used, event("claim.won")).status is OPEN
    assert (
        after_notice(after_notice(row(), event("claim.won")), event(charged_back=900)).status
        is OPEN
    )


def test_dispute_won_after_a_loss_is_won_but_a_permanent_loss_stays_disputed() -> None:
    for kinds in (["claim.lost", "claim.won"], ["claim.won", "claim.lost"]):
        payment = row()
        for kind in kinds:
            payment = after_notice(payment, event(kind))
        assert payment.status is OPEN
        assert payment.disputes == {f"{CLAIM}pay-1": Dispute.WON}
        assert after_notice(payment, event("claim.gone")).status is DISPUTED
        assert (
            after_notice(after_notice(row(), event("claim.gone")), event(kinds[1])).status
            is DISPUTED
        )


# Answers of the provider.


def test_fetch_without_claim_data_ends_no_claim() -> None:
    for before in (
        after_notice(row(), event("claim.lost")),
        after_notice(row(), event(charged_back=900)),
        asked(row(), charged_back=900),
    ):
        assert asked(before) == before


def test_fetch_with_claim_data_ends_only_fetched_claims() -> None:
    for before in (after_notice(row(), event(charged_back=900)), asked(row(), charged_back=900)):
        back = asked(before, charged_back=0)
        assert (back.status, back.disputes) == (OPEN, {"co-1": Dispute.WON})
        assert asked(back, charged_back=900).status is DISPUTED
        assert after_notice(back, event(charged_back=900)).status is DISPUTED
    for kind in ("claim.opened", "claim.lost"):
        claimed = after_notice(row(), event(kind))
        assert asked(claimed, charged_back=0) == claimed


def test_claim_found_by_fetch_is_ended_by_its_event() -> None:
    assert after_notice(asked(row(), charged_back=900), event("claim.won")).status is OPEN


def test_second_claim_found_by_fetch_is_ended_by_later_fetch() -> None:
    won = after_notice(after_notice(row(), event("claim.opened")), event("claim.won"))
    second = asked(won, charged_back=900)
    assert second.status is DISPUTED
    assert second.disputes[f"{ASKED}co-1"] is Dispute.LOST
    assert after_notice(second, event("claim.won")) == second
    assert asked(second, charged_back=0).status is OPEN


def test_reply_without_refunds_or_disputes_changes_nothing() -> None:
    assert asked(row(), charged_back=0) == row()
    assert after_notice(row(), event()) == row()


# Disputes that go back and forth.


@pytest.mark.parametrize(
    ("kinds", "status"),
    [
        (["lost", "won", "again"], DISPUTED),
        (["lost", "won", "again", "won"], OPEN),
        (["won", "opened"], OPEN),
        (["gone", "won"], DISPUTED),
    ],
)
def test_claim_that_goes_back_and_forth_ends_the_same_in_any_order(
    kinds: list[str], status: ReceiptStatus
) -> None:
    # finding: XM3
    events = [event(f"claim.{kind}", number=number) for number, kind in enumerate(kinds)]
    for order in permutations(events):
        payment = row()
        for one in (*order, *order):  # each event arrives twice
            payment = after_notice(payment, one)
        assert payment.status is status
        assert [*payment.disputes] == [f"{CLAIM}pay-1"]


def test_claim_at_another_account_names_that_account() -> None:
    declaration = replace(
        OWN.declaration,
        needs=("shop",),
        account="shop",
        told=replace(OWN.declaration.told, account="data.shop"),
    )
    seller = replace(OWN, declaration=declaration, own={"shop": "s-1"})
    assert notice_in(event("claim.lost"), seller).account == "s-1"
    assert notice_in(event("claim.lost", shop="s-2"), seller).account == "s-2"


# A repeated refund request.


@dataclass(frozen=True, kw_only=True)
class Refunds:
    """The fields of a provider's declaration that decide if a repeated refund is safe."""

    idempotency: str | None = None
    fetch: str = "GET /checkouts/{session}"
    is_reported: bool = False
    body: str = "{reason}"

    def declare(self) -> ProviderDeclaration:
        own = OWN.declaration
        fetched = replace(own.fetched, refunded="refunded" if self.is_reported else None)
        return replace(
            own,
            idempotency=self.idempotency,
            fetch=self.fetch,
            fetched=fetched,
            refund_body={"amount": "{minor}", "a": self.body},
        )


@pytest.mark.parametrize(
    "refunds",
    [
        Refunds(),
        Refunds(is_reported=True, fetch="GET /checkouts/{handle}"),
        Refunds(body="{payment}"),
    ],
)
def test_declaration_whose_repeated_refund_could_pay_twice_is_refused(refunds: Refunds) -> None:
    with pytest.raises(
        InvalidQuestion, match=r"^refund: a repeated refund request must not refund twice"
    ):
        refunds.declare()


@pytest.mark.parametrize(
    "refunds",
    [
        Refunds(idempotency="X-Key"),
        Refunds(body="{digest}"),
        Refunds(body="{key}"),
        Refunds(is_reported=True),
    ],
)
def test_declaration_with_idempotent_or_reported_refund_is_accepted(refunds: Refunds) -> None:
    assert refunds.declare().refund is not None


def test_declaration_without_refund_needs_no_idempotency() -> None:
    own = OWN.declaration
    fetched = replace(own.fetched, refunded=None)
    assert replace(own, idempotency=None, fetched=fetched, refund=None).refund is None
