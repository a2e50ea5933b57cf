"""A bank's claims of a payment: how far each is, and what that makes of the payment.

What could go wrong: money that is counted as gone and is not, so that somebody pays again; or a
receipt that is handed out while the bank has the money. A claim goes back and forth: it is lost,
appealed and won. So where the provider says when it said something, the latest counts, whichever
event comes first, and what it says when it is asked counts as said now. Where no time is signed, an
end counts more than a beginning. An inquiry takes nothing, and a claim of a part takes that part.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime

from msgspec.structs import replace

from flows.payments.money import Money
from flows.payments.receipt import ASKED, CLAIM, BankClaim, Dispute, Payment, ReceiptStatus

HEARD_AT_MOST = 50
# Of what is said without a time, or of the same second, the last of these counts.
_RANKS = (
    *(Dispute.INQUIRY, Dispute.CLOSED, Dispute.OPEN, Dispute.LOST, Dispute.APPEALED),
    *(Dispute.LOST_AGAIN, Dispute.WON, Dispute.GONE),
)
_FIRST_WORDS = {
    Dispute.INQUIRY: Dispute.WON,
    Dispute.CLOSED: Dispute.WON,
    Dispute.APPEALED: Dispute.LOST,
    Dispute.LOST_AGAIN: Dispute.LOST,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class ProviderClaim:
    """A bank's claim as its provider tells it; `amount` in minor units of `currency`."""

    id: str
    stage: Dispute
    amount: int | None = None
    currency: str | None = None


def claimed(payment: Payment, told: Iterable[ProviderClaim], *, now: datetime) -> Payment:
    """The provider was asked, and says how far each claim is now."""
    for one in told:
        amount = one.amount if one.currency == payment.currency else None
        payment = disputed(payment, one.id, one.stage, at=now, amount=amount)
    return payment


_CLAIMED: Mapping[Dispute | None, str] = {
    Dispute.LOST: "dispute lost",
    Dispute.LOST_AGAIN: "dispute lost",
    Dispute.GONE: "dispute lost",
    Dispute.APPEALED: "dispute appealed",
}


def disputed(
    payment: Payment,
    id: str,
    stage: Dispute,
    *,
    at: datetime | None = None,
    amount: int | None = None,
    event: str = "",
) -> Payment:
    """A bank claims the payment, or goes on with its claim; `event` is the id of what says so."""
    before = claims_of(payment).get(id)
    is_counted = event and stage in (Dispute.WON, Dispute.LOST_AGAIN)
    heard = (_mark(stage, event),) if is_counted else ()
    said = BankClaim(stage=stage, at=at, amount=amount, heard=heard)
    if before is None:
        claim = said
    elif at is not None:
        claim = max(before, said, key=_said_last)
    else:
        claim = _untimed(before, said)
    return _with_claims(payment, {id: claim})


def charged_back(
    payment: Payment, session: str, *, amount: int, now: datetime | None = None
) -> Payment:
    """A picture of the session says that a bank has taken so much.

    Without `now` it is of another time. That nothing is taken is believed of how it is now, and
    says nothing of claims that have an id. That something is, where such a claim was won, is
    another claim only if it is so now.
    """
    names, claims = (session, ASKED + session), claims_of(payment)
    changed: dict[str, BankClaim] = {}
    if amount > 0:
        taken = None if amount >= payment.amount else amount
        for id in names if now is not None and _is_won(claims) else names[:1]:
            known = claims.get(id)
            is_more = known is None or not known.stage.takes_money or _more(taken, known.amount)
            if now is not None or is_more:
                changed[id] = BankClaim(stage=Dispute.LOST, amount=taken)
    elif now is not None:
        changed = {id: BankClaim(stage=Dispute.WON) for id in names if id in claims}
    return _with_claims(payment, changed)


def restated(payment: Payment) -> Payment:
    """Return the payment with the status that its claims and refunds make."""
    if payment.status is ReceiptStatus.REFUNDED:
        return payment
    claimed = claimed_of(payment)
    if claimed and payment.refunded + claimed >= payment.amount:
        return replace(payment, status=ReceiptStatus.DISPUTED)
    if payment.status is not ReceiptStatus.DISPUTED:
        return payment
    if payment.is_refund_begun:
        return replace(payment, status=ReceiptStatus.REFUNDING)
    status = ReceiptStatus.OPEN if payment.spent_at is None else ReceiptStatus.SPENT
    return replace(payment, status=status)


def claims_of(payment: Payment) -> Mapping[str, BankClaim]:
    """Return all claims by their ids; rows of the first version have the word alone."""
    former = {id: BankClaim(stage=word) for id, word in payment.disputes.items()}
    return {**former, **payment.claims}


def claimed_of(payment: Payment) -> int:
    """Return how much of the payment banks have taken or claim, in minor units.

    An old picture tells of no other claim than the events do, and never that it was won.
    """
    claims = claims_of(payment)
    is_won = _is_won(claims)
    taken = [
        payment.amount if claim.amount is None else claim.amount
        for id, claim in claims.items()
        if claim.stage.takes_money and (not is_won or id.startswith((CLAIM, ASKED)))
    ]
    return min(sum(taken), payment.amount)


def stage_of(payment: Payment) -> Dispute | None:
    """Return the word for where its claims stand; None: nobody claims or asks about anything."""
    stages = {claim.stage for claim in claims_of(payment).values()}
    if claimed_of(payment):
        order = (Dispute.OPEN, Dispute.APPEALED, Dispute.LOST_AGAIN, Dispute.LOST, Dispute.GONE)
        return next(stage for stage in order if stage in stages)
    return Dispute.INQUIRY if Dispute.INQUIRY in stages else None


def word_of(payment: Payment) -> str:
    """Return the one word for what became of the payment, after which a colon says more of it.

    The audit and events go by it.
    """
    stage, word = stage_of(payment), state_of(payment)
    if payment.status is ReceiptStatus.DISPUTED:
        return word
    if payment.owed and payment.status is not ReceiptStatus.REFUNDING:
        word = f"refund failed: {payment.owed_price} of it"
    elif payment.is_part_refunded and payment.status is not ReceiptStatus.REFUNDING:
        word = f"refunded in part: {payment.refunded_price}"
    if stage is Dispute.INQUIRY:
        return f"inquiry: {word}"
    if stage is not None and payment.status is not ReceiptStatus.REFUNDED:
        return f"disputed in part: {claimed_price(payment)} of {word}"
    return word


def state_of(payment: Payment) -> str:
    """Return the word for how all of the payment stands, whatever is said of a part of it."""
    match payment.status:
        case ReceiptStatus.DISPUTED:
            return _CLAIMED.get(stage_of(payment), "disputed")
        case ReceiptStatus.OPEN | ReceiptStatus.TAKEN:
            return "paid"
        case ReceiptStatus.REFUNDING if payment.owed:
            return "refund failed"
        case ReceiptStatus.REFUNDED if payment.pending is not None:
            return "refund pending"
        case status:
            return status.value


def claimed_price(payment: Payment) -> Money:
    return Money.from_minor_units(claimed_of(payment), payment.currency)


def _untimed(before: BankClaim, said: BankClaim) -> BankClaim:
    """Return how far the claim is, whichever of its events came first.

    What was taken again had been won before: it is won once more where more events say won.
    """
    heard = tuple(sorted({*before.heard, *said.heard}))[-HEARD_AT_MOST:]
    stage = max(before.stage, said.stage, key=_RANKS.index)
    again = [one for one in heard if one.startswith(_mark(Dispute.LOST_AGAIN))]
    won = [one for one in heard if one.startswith(_mark(Dispute.WON))]
    if again and stage is not Dispute.GONE:
        stage = Dispute.WON if len(won) > len(again) else Dispute.LOST_AGAIN
    return BankClaim(stage=stage, amount=said.amount, heard=heard)


def _mark(stage: Dispute, event: str = "") -> str:
    return f"{stage.value}:{event}"


def _with_claims(payment: Payment, changed: Mapping[str, BankClaim]) -> Payment:
    claims = {**claims_of(payment), **changed}
    if claims == claims_of(payment):
        return payment
    words = {id: _FIRST_WORDS.get(one.stage, one.stage) for id, one in claims.items()}
    return restated(replace(payment, claims=claims, disputes=words))


def _said_last(claim: BankClaim) -> tuple[bool, float, int]:
    said_at = 0.0 if claim.at is None else claim.at.timestamp()
    return claim.at is not None, said_at, _RANKS.index(claim.stage)


def _more(amount: int | None, than: int | None) -> bool:
    return than is not None and (amount is None or amount > than)


def _is_won(claims: Mapping[str, BankClaim]) -> bool:
    return any(id.startswith(CLAIM) and one.stage is Dispute.WON for id, one in claims.items())
