"""`elicit payments` and `elicit webhooks`: what an operator sees, and refunds or replays.

What could go wrong: a terminal that obeys what a tool or a provider wrote, or a list that shows
whose it is. So signs that are no letters are shown as such, owners are cut short, and no key of a
provider's is in what is printed. What a provider calls a payment and its page is: by that it is
found in its dashboard and on a bank's statement.
"""

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import AsyncExitStack

import msgspec

from flows.elicitation.states import Elicitation, Status
from flows.errors import ElicitError, InvalidQuestion, NotPossible, StoreUnavailable, Unreadable
from flows.payments.money import Money
from flows.payments.receipt import Payment, ReceiptStatus, Refund
from flows.payments.session import sessions_of, terms_of
from flows.payments.unresolved import UnresolvedPayment, UnresolvedStatus
from webapp.command import LOOPBACK, CommandRefused, quieten, settings_for, under_another_secret
from webapp.connecting import connect
from webapp.payments.refunds import NoRefunds
from webapp.payments.verification import ON_ITS_WAY
from webapp.printing import printed
from webapp.records.ids import tail_of
from webapp.records.rows import StoredWebhook, TurnedAway
from webapp.service import Service
from webapp.settings.settings import DEFAULT_PORT, Settings
from webapp.stores import Record

OWNER_CHARACTERS = 6
WHAT_CHARACTERS = 60
REASON_CHARACTERS = 500
NAMED_AT_MOST = 5
OPEN = (ReceiptStatus.OPEN, ReceiptStatus.REFUNDING, ReceiptStatus.DISPUTED)
_AGAIN_WHOLE = "It is not used by any call any more, and giving it back is tried again."
_AGAIN_PART = "Run the command again: what has gone back by then is not given twice."
Work = Callable[[Service], Awaitable[Sequence[str]]]


def operate(environment: Mapping[str, str], work: Work, *, say: Callable[[str], object]) -> int:
    """Do the work on the store of that environment; the exit status."""
    quieten()
    try:
        settings = settings_for(environment, host=LOOPBACK, port=DEFAULT_PORT)
        lines, left_out = asyncio.run(_operate(settings, work))
        for line in lines:
            say(line)
        if left_out:
            raise _not_all(left_out)
    except CommandRefused as refusal:
        return refusal.tell()
    return 0


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


async def list_hooks(service: Service) -> list[str]:
    """What providers told in the last 30 days, the latest first, and what was turned away."""
    hooks = await service.inbox.hooks()
    lines = [_heard(hook) for hook in hooks] or ["Nothing verified has come in 30 days."]
    return [*lines, *map(_turned_away, await service.inbox.unverified())]


async def show_hook(service: Service, id: str) -> list[str]:
    """One delivery, with its body as it came. Raises Refused."""
    hook = await _hook(service, id)
    lines = [
        _heard(hook),
        f"  event     {hook.event}",
        f"  about     {'nothing of ours' if not hook.elicitation_id else 'a payment of ours'}",
        f"  kept to   {hook.erase_at:%Y-%m-%d}",
    ]
    if hook.replayed_at is not None:
        lines.append(f"  replayed  {hook.replayed_at:%Y-%m-%d %H:%M:%S}")
    return [*lines, "", *map(printed, hook.body.splitlines()), *([] if hook.is_whole else ["..."])]


async def replay_hook(service: Service, id: str) -> list[str]:
    """Take it as if it came now. Raises Refused."""
    hook = await _hook(service, id)
    try:
        replayed = await service.hooks.replay(hook)
    except StoreUnavailable:
        raise
    except ElicitError as error:
        raise CommandRefused(str(error)) from error
    return [_heard(replayed)]


async def _operate(settings: Settings, work: Work) -> tuple[Sequence[str], Sequence[Record]]:
    """What it says, and what it could not read."""
    async with AsyncExitStack() as stack:
        try:
            service = await stack.enter_async_context(connect(settings))
        except ValueError as error:
            raise CommandRefused(f"ELICIT_STORE: {error}", status=2) from error
        except Unreadable as error:
            raise under_another_secret(settings) from error
        except StoreUnavailable as error:
            raise CommandRefused(error.why) from error
        try:
            left_out = service.elicitations.rows.left_out = []
            return await work(service), left_out
        except Unreadable as error:
            raise CommandRefused(f"The store cannot be read: {error}") from error
        except StoreUnavailable as error:
            raise CommandRefused(f"The store cannot be read: {error.why}") from error


async def _payments(service: Service) -> list[Payment]:
    return sorted(
        await service.kinds.payments.ledger.all(), key=lambda p: (p.paid_at, p.id), reverse=True
    )


async def _hook(service: Service, id: str) -> StoredWebhook:
    found = await service.inbox.find(id)
    if found is None:
        raise CommandRefused(
            f"There is no delivery {printed(id)}: elicit webhooks list shows them."
        )
    return found


def _told(payment: Payment) -> list[str]:
    when = f"{payment.paid_at:%Y-%m-%d %H:%M}"
    where = payment.seller if payment.is_live else f"{payment.seller}, a test"
    who = payment.owner[:OWNER_CHARACTERS]
    charge = printed(payment.payment_intent or "-")
    question = payment.elicitation_id.removeprefix(payment.owner)
    return [
        f"{tail_of(payment)}  {when}  {payment.price}  {_standing(payment)}",
        f"  {_quoted(payment.what)} for {_quoted(payment.tool)}, at {where}, by {who}",
        f"  session {printed(payment.session)}, payment {charge}, question {question}",
    ]


def _of_payment(payment: Payment) -> dict[str, object]:
    """As JSON; amounts in minor units of ISO 4217."""
    return {
        "id": tail_of(payment),
        "standing": payment.status.value,
        "question": payment.elicitation_id.removeprefix(payment.owner),
        "owner": payment.owner[:OWNER_CHARACTERS],
        "tool": payment.tool,
        "what": payment.what,
        "seller": payment.seller,
        "is_live": payment.is_live,
        "session": payment.session,
        "payment": payment.payment_intent,
        "amount": payment.amount,
        "currency": payment.currency,
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
        "id": tail_of(loose),
        "standing": f"look: {loose.status.value}",
        "question": loose.elicitation_id.removeprefix(loose.owner),
        "owner": loose.owner[:OWNER_CHARACTERS],
        "tool": loose.tool,
        "what": loose.what,
        "seller": loose.seller,
        "is_live": loose.is_live,
        "session": loose.session,
        "amount": loose.amount,
        "currency": loose.currency,
        "paid": loose.paid,
        "paid_currency": loose.paid_currency,
        "found_at": loose.found_at,
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
    where = loose.seller if loose.is_live else f"{loose.seller}, a test"
    words = f"asked {loose.price}, and the provider has not said whether it was paid"
    if loose.status is UnresolvedStatus.OTHERWISE:
        mode = "" if loose.paid_live == loose.is_live else ", in another mode"
        words = f"paid {printed(loose.paid_price)}{mode}, asked {loose.price}"
    who, session = loose.owner[:OWNER_CHARACTERS], printed(loose.session)
    return [
        f"{tail_of(loose)}  {when}  {words}: look at {session} there",
        f"  {_quoted(loose.what)} for {_quoted(loose.tool)}, at {where}, by {who}",
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
    where = terms.seller if terms.is_live else f"{terms.seller}, a test"
    session, who = printed(next(iter(sessions), "-")), asked.owner[:OWNER_CHARACTERS]
    return [
        f"{tail_of(asked)}  {asked.created_at:%Y-%m-%d %H:%M}  {terms.price}  on its way",
        f"  {_quoted(terms.what)} for {_quoted(asked.asked.tool)}, at {where}, by {who}",
        f"  session {session}, question {tail_of(asked)}",
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


def _not_all(left_out: Sequence[Record]) -> CommandRefused:
    """Rows that were damaged, or put there by somebody else: the others are listed."""
    kinds = sorted({record.kind for record in left_out})
    ids = ", ".join(record.id.removeprefix(record.owner) for record in left_out[:NAMED_AT_MOST])
    more = ", ..." if len(left_out) > NAMED_AT_MOST else ""
    count = "1 record" if len(left_out) == 1 else f"{len(left_out)} records"
    return CommandRefused(
        f"{count} of the store cannot be read ({', '.join(kinds)}: {printed(ids)}{more}); what can "
        "be read stands above. A backup from before has them: elicit restore"
    )


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


def _heard(hook: StoredWebhook) -> str:
    why = "" if hook.why is None else f" ({hook.why})"
    when = f"{hook.received_at:%Y-%m-%d %H:%M:%S}"
    return f"{tail_of(hook)}  {when}  {hook.seller}  {hook.type or 'event'}  {hook.status}{why}"


def _turned_away(row: TurnedAway) -> str:
    times = "once" if row.count == 1 else f"{row.count} times"
    what = row.reason.removeprefix("other_")
    if row.reason == "unknown":
        words = f"said something about a payment that is not ours, {times}"
    elif what != row.reason:
        words = f"told of a payment whose {what} is not what was asked for, {times}"
    else:
        words = f"could not be verified, {times}: {row.reason}"
    return f"{row.day}  {row.seller}  {words}"


def _quoted(text: str) -> str:
    return f'"{printed(text[:WHAT_CHARACTERS])}"'
