"""`elicit payments`: what an operator sees, and refunds.

What could go wrong: a terminal that obeys what a tool or a provider wrote, or a list that shows
whose it is. So signs that are no letters are shown as such, owners are cut short, and no key of a
provider's is in what is printed. What a provider calls a payment and its page is: by that it is
found in its dashboard and on a bank's statement.
"""

import argparse

import msgspec

from flows.elicitation.states import Elicitation, Status
from flows.errors import ElicitError, InvalidQuestion, NotPossible, StoreUnavailable
from flows.payments.money import Money
from flows.payments.receipt import Payment, ReceiptStatus, Refund
from flows.payments.session import CheckoutTerms, sessions_of, terms_of
from flows.payments.unresolved import UnresolvedPayment, UnresolvedStatus
from webapp.cli.arguments import add_id, commands_of
from webapp.cli.operator import OWNER_CHARACTERS, WHAT_CHARACTERS, does
from webapp.command import CommandRefused
from webapp.payments.refunds import NoRefunds
from webapp.payments.verification import ON_ITS_WAY
from webapp.printing import printed
from webapp.records.ids import tail_of
from webapp.service import Service

REASON_CHARACTERS = 500
OPEN = (ReceiptStatus.OPEN, ReceiptStatus.REFUNDING, ReceiptStatus.DISPUTED)
_AGAIN_WHOLE = "It is not used by any call any more, and giving it back is tried again."
_AGAIN_PART = "Run the command again: what has gone back by then is not given twice."


def declare(parser: argparse.ArgumentParser) -> None:
    commands = commands_of(parser)
    listing = commands.add_parser("list", help="list what was paid, the latest first")
    listing.add_argument(
        "--open",
        dest="only_open",
        action="store_true",
        help="only what no call has used and nobody has back, or a bank has claimed",
    )
    listing.add_argument(
        "--json", dest="as_json", action="store_true", help="one JSON object a line"
    )
    does(listing, list_payments)
    showing = commands.add_parser("show", help="show one, with all that is known of it")
    refund = commands.add_parser("refund", help="give one payment back; again does nothing more")
    done = commands.add_parser("done", help="take off the list what somebody has looked at")
    for command, work in ((showing, show_payment), (refund, refund_payment), (done, end_payment)):
        add_id(command, shown_by="payments")
        does(command, work)
    refund.add_argument(
        "--amount",
        metavar="AMOUNT",
        help="only so much of it in all, as 3.00: the rest can be used; again gives no more",
    )
    refund.add_argument("--reason", metavar="WORDS", help="kept with it, here and at the provider")
    refund.add_argument(
        "--spent", dest="also_spent", action="store_true", help="also if a call has used it"
    )


async def list_payments(service: Service, *, only_open: bool, as_json: bool = False) -> list[str]:
    """What was paid, the latest first; `only_open`: what nobody has used and nobody has back.

    What a bank has claimed is open, too. `as_json`: one object a line.
    """
    payments = [p for p in await _payments(service) if not only_open or p.status in OPEN]
    loose = await service.kinds.payments.loose_ends.open()
    pending = await _on_their_way(service)
    if as_json:
        told = [
            *map(_of_unresolved, loose),
            *map(_of_pending, pending),
            *map(_of_payment, payments),
        ]
        return [msgspec.json.encode(one).decode() for one in told]
    if not payments and not loose and not pending:
        return ["Nothing is open." if only_open else "Nothing was paid."]
    lines = [line for one in loose for line in _left_open(one)]
    lines += [line for one in pending for line in _on_its_way(one)]
    return [*lines, *(line for payment in payments for line in _told(payment))]


async def show_payment(service: Service, id: str) -> list[str]:
    """One of the list, with all that is known of it. Raises Refused."""
    loose = await service.kinds.payments.loose_ends.open()
    there = {
        **{tail_of(one): _of_unresolved(one) for one in loose},
        **{tail_of(one): _of_pending(one) for one in await _on_their_way(service)},
        **{tail_of(one): _of_payment(one) for one in await _payments(service)},
    }
    if id not in there:
        raise _unknown(id)
    facts = {name: fact for name, fact in there[id].items() if fact not in (None, {})}
    width = max(map(len, facts))
    return [f"{name:{width}}  {printed(str(fact))}" for name, fact in facts.items()]


async def refund_payment(
    service: Service,
    id: str,
    *,
    reason: str | None,
    also_spent: bool,
    amount: str | None = None,
) -> list[str]:
    """Refund it; what was refunded already is only told. Raises Refused.

    `amount`: only so much of it in all, in its currency, such as "3.00".
    """
    payment = next((p for p in await _payments(service) if tail_of(p) == id), None)
    if payment is None:
        raise _unknown(id)
    if payment.status is ReceiptStatus.REFUNDED:
        return [f"{payment.price} was refunded on {payment.refunded_at:%Y-%m-%d}."]
    part = payment.price if amount is None else _part(payment, amount)
    if 0 < part.minor_units <= payment.refunded:
        return [f"{payment.refunded_price} of {payment.price} was refunded already."]
    is_whole = part == payment.price
    refunds, up_to = service.kinds.payments.refunds, None if is_whole else part.minor_units
    try:
        refund = await refunds.refund(
            payment.owner,
            payment.id,
            reason=None if reason is None else reason[:REASON_CHARACTERS],
            also_spent=also_spent,
            up_to=up_to,
        )
    except NotPossible as error:
        raise CommandRefused(_why_not(error)) from error
    except NoRefunds as error:
        raise CommandRefused(str(error)) from error
    except StoreUnavailable:
        raise
    except ElicitError as error:
        raise CommandRefused(f"{error} {_AGAIN_WHOLE if is_whole else _AGAIN_PART}") from error
    if is_whole:
        return [_given(part, refund)]
    return [f"{_given(part, refund)} That is all that was refunded of {payment.price}."]


async def end_payment(service: Service, id: str) -> list[str]:
    """Somebody has looked at it, at the provider: it is listed no more. Raises Refused."""
    loose_ends = service.kinds.payments.loose_ends
    loose = next((one for one in await loose_ends.open() if tail_of(one) == id), None)
    if loose is None:
        raise CommandRefused(
            f"There is nothing to look at as {printed(id)}: elicit payments list --open"
        )
    await loose_ends.done(loose)
    return [f"{printed(loose.session)} at {loose.seller} is listed no more."]


async def _payments(service: Service) -> list[Payment]:
    return sorted(
        await service.kinds.payments.ledger.all(), key=lambda p: (p.paid_at, p.id), reverse=True
    )


def _told(payment: Payment) -> list[str]:
    when = f"{payment.paid_at:%Y-%m-%d %H:%M}"
    charge = printed(payment.payment_intent or "-")
    question = payment.elicitation_id.removeprefix(payment.owner)
    return [
        f"{tail_of(payment)}  {when}  {payment.price}  {_standing(payment)}",
        _about(payment, tool=payment.tool, owner=payment.owner),
        f"  session {printed(payment.session)}, payment {charge}, question {question}",
    ]


def _of_payment(payment: Payment) -> dict[str, object]:
    """As JSON; amounts in minor units of ISO 4217."""
    return {
        **_of_either(payment, payment.status.value),
        "payment": payment.payment_intent,
        "paid_at": payment.paid_at,
        "spent_at": payment.spent_at,
        "refunded": payment.refunded,
        "refunded_at": payment.refunded_at,
        "refund": payment.refund_id,
        "reason": payment.reason,
        "given_back_by_itself_at": payment.due_at,
        "disputes": {id: dispute.value for id, dispute in payment.disputes.items()},
    }


def _of_unresolved(loose: UnresolvedPayment) -> dict[str, object]:
    return {
        **_of_either(loose, f"look: {loose.status.value}"),
        "paid": loose.paid,
        "paid_currency": loose.paid_currency,
        "found_at": loose.found_at,
    }


def _of_either(row: Payment | UnresolvedPayment, standing: str) -> dict[str, object]:
    return {
        "id": tail_of(row),
        "standing": standing,
        "question": row.elicitation_id.removeprefix(row.owner),
        "owner": row.owner[:OWNER_CHARACTERS],
        "tool": row.tool,
        "what": row.what,
        "seller": row.seller,
        "is_live": row.is_live,
        "session": row.session,
        "amount": row.amount,
        "currency": row.currency,
    }


def _of_pending(asked: Elicitation) -> dict[str, object]:
    terms = terms_of(asked)
    return {
        "id": tail_of(asked),
        "standing": "on its way",
        "question": tail_of(asked),
        "owner": asked.owner[:OWNER_CHARACTERS],
        "tool": asked.asked.tool,
        "what": terms.what,
        "seller": terms.seller,
        "is_live": terms.is_live,
        "session": next(iter(sessions_of(asked)), None),
        "amount": terms.amount,
        "currency": terms.currency,
        "asked_at": asked.created_at,
    }


def _left_open(loose: UnresolvedPayment) -> list[str]:
    """What no row of the ledger is about; its session is what to look for at the provider."""
    when = f"{loose.found_at:%Y-%m-%d %H:%M}"
    words = f"asked {loose.price}, and the provider has not said whether it was paid"
    if loose.status is UnresolvedStatus.OTHERWISE:
        mode = "" if loose.paid_live == loose.is_live else ", in another mode"
        words = f"paid {printed(loose.paid_price)}{mode}, asked {loose.price}"
    return [
        f"{tail_of(loose)}  {when}  {words}: look at {printed(loose.session)} there",
        _about(loose, tool=loose.tool, owner=loose.owner),
    ]


async def _on_their_way(service: Service) -> list[Elicitation]:
    """Whose payer chose a way that takes time, also where their question is over, latest first."""
    rows = service.elicitations
    found = {
        one.id: one
        for status in (Status.OPENED, Status.EXPIRED)
        for one in await rows.all(Elicitation, status=status, skips_unreadable=True)
        if one.kind == "payment" and one.progress == ON_ITS_WAY
    }
    return sorted(found.values(), key=lambda one: (one.created_at, one.id), reverse=True)


def _on_its_way(asked: Elicitation) -> list[str]:
    terms, sessions = terms_of(asked), sessions_of(asked)
    return [
        f"{tail_of(asked)}  {asked.created_at:%Y-%m-%d %H:%M}  {terms.price}  on its way",
        _about(terms, tool=asked.asked.tool, owner=asked.owner),
        f"  session {printed(next(iter(sessions), '-'))}, question {tail_of(asked)}",
    ]


def _standing(payment: Payment) -> str:
    words = str(payment.status)
    if payment.status is ReceiptStatus.OPEN and payment.refund_at is not None:
        words = f"open, refunded by itself on {payment.refund_at:%Y-%m-%d}"
        if payment.surplus_to is not None:
            words = "paid twice: refunded as soon as the provider shows both"
    elif payment.status is ReceiptStatus.REFUNDING:
        words = "being refunded"
        if payment.refund_at is None:
            words = "could not be refunded: look at the provider"
    if payment.is_part_refunded:
        words += f", {payment.refunded_price} of it refunded there"
    return words


def _given(price: Money, refund: Refund) -> str:
    is_on_its_way = refund.status != "succeeded"
    return f"{price} {'is being refunded' if is_on_its_way else 'is refunded'} ({refund.id})."


def _part(payment: Payment, amount: str) -> Money:
    try:
        part = Money(amount, payment.currency)
    except InvalidQuestion as error:
        raise CommandRefused(f"--amount: {error}") from error
    if part.minor_units > payment.amount:
        raise CommandRefused(f"--amount: {payment.price} was paid, and {part} is more.")
    return part


def _unknown(id: str) -> CommandRefused:
    return CommandRefused(f"There is no payment {printed(id)}: elicit payments list shows them.")


def _why_not(error: NotPossible) -> str:
    match error.status:
        case ReceiptStatus.SPENT:
            return "A call has used it: with --spent it is refunded all the same."
        case ReceiptStatus.TAKEN:
            return "A call uses it at the moment: try again in a minute."
        case ReceiptStatus.DISPUTED:
            return "A bank has claimed it back: answer that at the provider."
        case _:
            return str(error)


def _about(sold: Payment | UnresolvedPayment | CheckoutTerms, *, tool: str, owner: str) -> str:
    where = sold.seller if sold.is_live else f"{sold.seller}, a test"
    who = owner[:OWNER_CHARACTERS]
    return f"  {_quoted(sold.what)} for {_quoted(tool)}, at {where}, by {who}"


def _quoted(text: str) -> str:
    return f'"{printed(text[:WHAT_CHARACTERS])}"'
