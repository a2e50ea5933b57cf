"""Banks' claims on a payment (disputes): the stage of each, and the payment's resulting status.

Risks: a payment counts as lost although the bank took no money, so a person pays again. Another
risk: a tool gets a receipt while the bank has the money. A claim can be lost, appealed and won. If
the provider's events have a time, the latest stage counts, in whichever order the events arrive.
The result of a poll counts as stated when the server asked, because its reply may be delayed.
Without signed times, the stage that is later in `_RANKS` counts. An inquiry takes no money, and a
claim on a part of the amount takes that part.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime

from msgspec.structs import replace

from flows.payments.money import Money
from flows.payments.receipt import ASKED, CLAIM, BankClaim, Dispute, Payment, ReceiptStatus

CLAIM_EVENTS_AT_MOST = 50  # stored events of one claim; see `_untimed`
# If two stages have no time or the same second, the stage that is later in this tuple counts.
_RANKS = (
    *(Dispute.INQUIRY, Dispute.CLOSED, Dispute.OPEN, Dispute.LOST, Dispute.APPEALED),
    *(Dispute.LOST_AGAIN, Dispute.WON, Dispute.GONE),
)
# Older code reads `Payment.disputes` and does not know the stages on the left. So the stages on the
# right are written there instead.
_FIRST_WORDS = {
    Dispute.INQUIRY: Dispute.WON,
    Dispute.CLOSED: Dispute.WON,
    Dispute.APPEALED: Dispute.LOST,
    Dispute.LOST_AGAIN: Dispute.LOST,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class ProviderClaim:
    """A bank's claim as the provider reports it; `amount` in minor units of `currency`."""

    id: str
    stage: Dispute
    amount: int | None = None
    currency: str | None = None


def claimed(payment: Payment, reported: Iterable[ProviderClaim], *, asked_at: datetime) -> Payment:
    """Apply the stages of a payment's claims, as the provider reported them to a poll."""
    at = asked_at.replace(microsecond=0)  # like the times of events, so that `_RANKS` can decide
    for one in reported:
        amount = one.amount if one.currency == payment.currency else None
        payment = disputed(payment, one.id, one.stage, at=at, amount=amount)
    return payment


_CLAIMED: Mapping[Dispute | None, str] = {
    Dispute.LOST: "dispute lost",
    Dispute.LOST_AGAIN: "dispute lost",
    Dispute.GONE: "dispute lost",
    Dispute.APPEALED: "dispute appealed",
}
# The states of a payment whose full amount banks have taken or claim.
DISPUTED = frozenset({"disputed", *_CLAIMED.values()})


def disputed(
    payment: Payment,
    id: str,
    stage: Dispute,
    *,
    at: datetime | None = None,
    amount: int | None = None,
    event: str = "",
    received_at: datetime | None = None,
) -> Payment:
    """Apply a stage of a bank's claim, which the event with the id `event` reports.

    `at` is the provider's time of the stage, and `received_at` the time when the event arrived.
    """
    before = claims_of(payment).get(id)
    is_counted = event and stage in (Dispute.WON, Dispute.LOST_AGAIN)
    events = (_mark(stage, event),) if is_counted else ()
    stated = BankClaim(stage=stage, at=at or received_at, amount=amount, heard=events)
    if before is None:
        claim = stated
    elif at is not None:
        claim = max(before, stated, key=_stated_last)
    else:
        claim = _untimed(before, stated)
    return _with_claims(payment, {id: claim})


def charged_back(
    payment: Payment, session: str, *, amount: int, at: datetime, is_answer: bool
) -> Payment:
    """Apply the amount that banks have taken, from a snapshot of the session.

    The snapshot is the answer to a question that was asked at `at`, or it is in a notice that
    arrived then and may be older.

    - An amount of 0 in an answer ends the claims that earlier snapshots reported. It does not
      change claims that events reported.
    - If an event has reported a claim as won, an amount above 0 in an answer counts as a new claim.
      In a snapshot that may be older than that event, the amount is stored but not counted.
    - An answer changes no claim that was reported after the question was asked. It can only add to
      the amount of such a claim.
    """
    names, claims = (session, ASKED + session), claims_of(payment)
    is_latest = is_answer and not _later(claims, at)
    changed: dict[str, BankClaim] = {}
    if amount > 0:
        partial_amount = None if amount >= payment.amount else amount
        for id in names if is_latest and _is_won(claims) else names[:1]:
            known = claims.get(id)
            has_ended = known is not None and not known.stage.takes_money
            if is_answer and has_ended and id in _later(claims, at):
                continue
            is_more = known is None or has_ended or _more(partial_amount, known.amount)
            if is_latest or is_more:
                changed[id] = BankClaim(stage=Dispute.LOST, at=at, amount=partial_amount)
    elif is_answer:
        ended = [id for id in names if id in claims and id not in _later(claims, at)]
        changed = {id: BankClaim(stage=Dispute.WON, at=at) for id in ended}
    return _with_claims(payment, changed)


def restated(payment: Payment) -> Payment:
    """Return the payment with the status that follows from its claims and refunds."""
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
    """Return all claims by their keys. Claims in rows of the first version have only a stage."""
    from_disputes = {id: BankClaim(stage=word) for id, word in payment.disputes.items()}
    return {**from_disputes, **payment.claims}


def claimed_of(payment: Payment) -> int:
    """Return how much of the payment banks have taken or claim, in minor units.

    After an event reported a claim as won, amounts from possibly old snapshots are not counted:
    they are about the same claim, and an old snapshot does not show that the claim was won.
    """
    claims = claims_of(payment)
    is_won = _is_won(claims)
    amounts = [
        payment.amount if claim.amount is None else claim.amount
        for id, claim in claims.items()
        if claim.stage.takes_money and (not is_won or id.startswith((CLAIM, ASKED)))
    ]
    return min(sum(amounts), payment.amount)


def stage_of(payment: Payment) -> Dispute | None:
    """Return the stage of the payment's claims, or None without a claim or inquiry."""
    stages = {claim.stage for claim in claims_of(payment).values()}
    if claimed_of(payment):
        order = (Dispute.OPEN, Dispute.APPEALED, Dispute.LOST_AGAIN, Dispute.LOST, Dispute.GONE)
        return next(stage for stage in order if stage in stages)
    return Dispute.INQUIRY if Dispute.INQUIRY in stages else None


def audit_state_of(payment: Payment) -> str:
    """Return the payment's state for the audit and events; details follow after a colon."""
    stage, word, refund = stage_of(payment), state_of(payment), None
    if payment.owed and payment.status is not ReceiptStatus.REFUNDING:
        refund = f"refund failed: {payment.owed_price} of it"
    elif payment.is_part_refunded and payment.status is not ReceiptStatus.REFUNDING:
        refund = f"refunded in part: {payment.refunded_price}"
    if payment.status is ReceiptStatus.DISPUTED:
        return word if refund is None else f"{word}: {refund}"
    word = refund or word
    if stage is Dispute.INQUIRY:
        return f"inquiry: {word}"
    if stage is not None and payment.status is not ReceiptStatus.REFUNDED:
        return f"disputed in part: {claimed_price(payment)} of {word}"
    return word


def state_of(payment: Payment) -> str:
    """Return the state of the whole payment; refunds and claims of a part are not mentioned."""
    match payment.status:
        case ReceiptStatus.DISPUTED:
            return _CLAIMED.get(stage_of(payment), "disputed")
        case ReceiptStatus.OPEN | ReceiptStatus.TAKEN:
            return "paid"
        case ReceiptStatus.REFUNDING if payment.owed:
            return "refund failed"
        case ReceiptStatus.REFUNDED if payment.is_refund_pending:
            return "refund pending"
        case status:
            return status.value


def claimed_price(payment: Payment) -> Money:
    return Money.from_minor_units(claimed_of(payment), payment.currency)


def _untimed(before: BankClaim, stated: BankClaim) -> BankClaim:
    """Merge two stages of a claim without times. The order in which they arrived has no effect.

    A claim can be lost again only after it was won. So the claim counts as won if more events
    reported "won" than "lost again".
    """
    events = tuple(sorted({*before.heard, *stated.heard}))[-CLAIM_EVENTS_AT_MOST:]
    stage = max(before.stage, stated.stage, key=_RANKS.index)
    again = [one for one in events if one.startswith(_mark(Dispute.LOST_AGAIN))]
    won = [one for one in events if one.startswith(_mark(Dispute.WON))]
    if again and stage is not Dispute.GONE:
        stage = Dispute.WON if len(won) > len(again) else Dispute.LOST_AGAIN
    at = before.at if stage is before.stage else stated.at
    return BankClaim(stage=stage, at=at, amount=stated.amount, heard=events)


def _mark(stage: Dispute, event: str = "") -> str:
    return f"{stage.value}:{event}"


def _with_claims(payment: Payment, changed: Mapping[str, BankClaim]) -> Payment:
    claims = {**claims_of(payment), **changed}
    if claims == claims_of(payment):
        return payment
    words = {id: _FIRST_WORDS.get(one.stage, one.stage) for id, one in claims.items()}
    return restated(replace(payment, claims=claims, disputes=words))


def _stated_last(claim: BankClaim) -> tuple[bool, float, int]:
    stated_at = 0.0 if claim.at is None else claim.at.timestamp()
    return claim.at is not None, stated_at, _RANKS.index(claim.stage)


def _more(amount: int | None, than: int | None) -> bool:
    return than is not None and (amount is None or amount > than)


def _later(claims: Mapping[str, BankClaim], at: datetime) -> frozenset[str]:
    """Return the keys of the claims whose stage was reported after `at`."""
    return frozenset(id for id, one in claims.items() if one.at is not None and one.at > at)


def _is_won(claims: Mapping[str, BankClaim]) -> bool:
    return any(id.startswith(CLAIM) and one.stage is Dispute.WON for id, one in claims.items())
