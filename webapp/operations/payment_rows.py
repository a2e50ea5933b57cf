"""The rows of `elicit payments list`: what an operator sees of each payment.

Risks: a list shows who paid, or reports money as lost that is not lost. Owners are therefore
shortened, and no API key of a provider is printed. The provider's ids of the payment and of its
page are included: the operator uses these ids to find the payment in the provider's dashboard and
on a bank statement.
"""

from datetime import datetime
from typing import Any

from msgspec import Struct

from flows.elicitation.states import Elicitation
from flows.payments.claims import claimed_of, claimed_price, claims_of, stage_of, state_of
from flows.payments.money import Money
from flows.payments.receipt import Dispute, Payment, ReceiptStatus
from flows.payments.session import UnresolvedPayment, UnresolvedStatus, sessions_of, terms_of
from webapp.operations.rows import OWNER_CHARACTERS
from webapp.records.ids import tail_of

_OPEN = (ReceiptStatus.OPEN, ReceiptStatus.REFUNDING, ReceiptStatus.DISPUTED)
_DONE = "run elicit payments done"


class PaymentRow(Struct, frozen=True, kw_only=True):
    """A payment, a pending payment, or a payment that an operator has to check at its provider.

    Amounts are in minor units of ISO 4217. `amount` is the amount that was requested. `paid` is the
    amount that was paid, and is only set if the payment differs from the request. If it is unknown
    whether the payment was made, `paid_at` is when the payment was requested or last checked.
    `disputed` is the amount that a bank claims or has taken back, `disputes` is the stage of
    each dispute, and `owed` is the amount that the person has not received because a refund failed.
    """

    id: str
    standing: str
    note: str | None = None
    is_open: bool
    question: str
    owner: str
    tool: str
    what: str
    provider: str
    is_live: bool
    session: str | None
    payment: str | None = None
    price: str
    amount: int
    currency: str
    paid_at: datetime
    spent_at: datetime | None = None
    refunded: int = 0
    refunded_at: datetime | None = None
    refund: str | None = None
    reason: str | None = None
    given_back_by_itself_at: datetime | None = None  # see FORMER_FIELDS
    claimed: int = 0  # see FORMER_FIELDS
    disputes: dict[str, str] = {}
    owed: int = 0
    paid: int | None = None
    paid_currency: str | None = None
    refund_due_at: datetime | None = None
    disputed: int = 0


def of_payment(payment: Payment, *, is_claimed: bool) -> PaymentRow:
    return PaymentRow(
        **_of_either(payment),
        standing=_standing(payment, is_claimed=is_claimed),
        note=_note(payment, is_claimed=is_claimed),
        is_open=_is_open(payment),
        payment=payment.payment_intent,
        paid_at=payment.paid_at,
        spent_at=payment.spent_at,
        refunded=payment.refunded,
        refunded_at=payment.refunded_at,
        refund=payment.refund_id,
        reason=payment.reason,
        given_back_by_itself_at=payment.refund_due_at,
        claimed=claimed_of(payment),
        disputes={id: claim.stage.value for id, claim in claims_of(payment).items()},
        owed=payment.owed,
        refund_due_at=payment.refund_due_at,
        disputed=claimed_of(payment),
    )


def of_unresolved(payment: UnresolvedPayment) -> PaymentRow:
    words = f"requested {payment.price}, and the provider has not said whether it was paid"
    if payment.status is UnresolvedStatus.OTHERWISE and payment.paid is None:
        words = "this server lost a payment page of this question"
    elif payment.status is UnresolvedStatus.OTHERWISE:
        mode = "" if payment.paid_live == payment.is_live else ", in another mode"
        words = f"paid {payment.paid_price}{mode}, requested {payment.price}"
    return PaymentRow(
        **_of_either(payment),
        standing=payment.status.value,
        note=f"{words}: check {payment.session} at the provider",
        is_open=True,
        paid_at=payment.found_at,
        paid=payment.paid,
        paid_currency=payment.paid_currency,
    )


def _of_either(row: Payment | UnresolvedPayment) -> dict[str, Any]:
    return {
        "id": tail_of(row),
        "question": row.elicitation_id.removeprefix(row.owner),
        "owner": row.owner[:OWNER_CHARACTERS],
        "tool": row.tool,
        "what": row.what,
        "provider": row.seller,
        "is_live": row.is_live,
        "session": row.session,
        "price": str(row.price),
        "amount": row.amount,
        "currency": row.currency,
    }


def of_pending(asked: Elicitation) -> PaymentRow:
    terms = terms_of(asked)
    return PaymentRow(
        id=tail_of(asked),
        standing="on its way",
        is_open=True,
        question=tail_of(asked),
        owner=asked.owner[:OWNER_CHARACTERS],
        tool=asked.request.tool,
        what=terms.what,
        provider=terms.seller,
        is_live=terms.is_live,
        session=next(iter(sessions_of(asked)), None),
        price=str(terms.price),
        amount=terms.amount,
        currency=terms.currency,
        paid_at=asked.created_at,
    )


def _is_open(payment: Payment) -> bool:
    is_asked = stage_of(payment) in (Dispute.INQUIRY, Dispute.OPEN, Dispute.APPEALED)
    return payment.status in _OPEN or payment.part is not None or payment.owed > 0 or is_asked


def _standing(payment: Payment, *, is_claimed: bool) -> str:
    if is_claimed:
        return ReceiptStatus.TAKEN.value
    if payment.status is ReceiptStatus.OPEN:
        return "made" if payment.may_be_delivered else payment.status.value
    return state_of(payment)


def _note(payment: Payment, *, is_claimed: bool) -> str | None:
    words = list[str]()
    if payment.status is ReceiptStatus.OPEN and payment.surplus_to is not None:
        words.append("paid twice: will be refunded once the provider shows both")
    elif payment.may_be_delivered:
        if not is_claimed:
            words.append(_why_not_by_itself(payment))
    elif payment.status is ReceiptStatus.OPEN and payment.refund_at is not None:
        words.append(f"will be refunded automatically on {payment.refund_at:%Y-%m-%d}")
    elif payment.status is ReceiptStatus.REFUNDING and not (payment.refund_at or payment.owed):
        words.append("could not be refunded: check at the provider")
    if payment.part is not None:
        price = Money.from_minor_units(payment.part.up_to, payment.currency)
        goes_on = "is under way" if payment.part.again_at else "failed: check at the provider"
        words.append(f"a refund of {price} in all {goes_on}")
    if payment.is_part_refunded:
        words.append(f"{payment.refunded_price} of it refunded")
    if payment.owed:
        words.append(f"a refund of {payment.owed_price} failed: refund it again, or {_DONE}")
    if payment.is_refund_pending:
        words.append("the provider has not confirmed a refund yet")
    words += _of_claims(payment)
    return ", ".join(words) or None


def _why_not_by_itself(payment: Payment) -> str:
    """Return why an apparently unused payment is not refunded automatically."""
    if payment.made_at is None and payment.is_perhaps_used:
        return (
            f"may have been used by a call that the store lost: check, then refund it, or {_DONE}"
        )
    what = "result made" if payment.made_at is not None else "work done by once()"
    return f"{what}, delivery not confirmed: refund it, or {_DONE}"


def _of_claims(payment: Payment) -> list[str]:
    """Return a note for the operator about disputes and what to do, or no note."""
    is_part = claimed_of(payment) < payment.amount
    much = f"{claimed_price(payment)} of it" if is_part else "it"
    match stage_of(payment):
        case None:
            return []
        case Dispute.INQUIRY:
            return ["a bank inquiry, nothing withdrawn yet: answer at the provider"]
        case Dispute.OPEN:
            return [f"{much} is disputed: answer at the provider"]
        case Dispute.APPEALED:
            return [f"a dispute withdrew {much}, and the appeal is not decided"]
        case _:
            return [f"a dispute withdrew {much}"]
