"""`elicit payments`: list payments, refund them, and close those that an operator has checked.

Risks: a payment is refunded twice, or a refund that failed is reported as made. The command
therefore checks the state of an earlier refund before it reports that refund.
"""

import argparse
from collections.abc import Collection, Mapping
from datetime import UTC, datetime, timedelta
from typing import TypeVar

from flows.elicitation.states import Elicitation, Status
from flows.payments.events import ON_ITS_WAY
from flows.payments.receipt import Payment
from flows.payments.refunds import repaid_manually
from flows.payments.session import UnresolvedPayment
from webapp.cli.arguments import add_id, commands_of
from webapp.cli.operator import does, lists, shows
from webapp.cli.table import Table, find_by_prefix
from webapp.command import CommandRefused
from webapp.operations.acts import IN_HAND, refund
from webapp.operations.payment_rows import PaymentRow, of_payment, of_pending, of_unresolved
from webapp.operations.rows import CANDIDATES_NAMED
from webapp.printing import printed
from webapp.records.ids import tail_of
from webapp.records.values import Reconciliation
from webapp.service import Service
from webapp.settings.parsers import with_unit

COLUMNS = ("id", "price", "standing", "paid_at", "tool", "what", "provider", "is_live", "note")
T = TypeVar("T")


def declare(parser: argparse.ArgumentParser) -> None:
    add_command = commands_of(parser)
    listing = add_command("list", help="list payments, newest first")
    listing.add_argument(
        "--open",
        dest="only_open",
        action="store_true",
        help="only payments that are not finished: paid but neither used nor refunded, still on "
        "their way, without a known outcome, disputed, inquired about by a bank, or with an "
        "unfinished or failed refund",
    )
    lists(listing, list_payments, of=PaymentRow)
    showing = add_command("show", help="show one payment in full")
    refund = add_command("refund", help="refund a payment; running it again does not refund twice")
    done = add_command(
        "done", help="remove a payment from what list --open shows, after you have checked it"
    )
    for command in (showing, refund, done):
        add_id(command, shown_by="payments")
    shows(showing, show_payment, of=PaymentRow)
    does(refund, refund_payment)
    does(done, end_payment)
    comparing = add_command(
        "reconcile",
        help="compare the payments at the providers since a time with those in this store",
    )
    comparing.add_argument(
        "--since",
        required=True,
        metavar="WHEN",
        type=_since,
        help="a time, such as 2026-03-01 or 2026-03-01T12:00 (UTC), or an age, such as 12h or 3d",
    )
    does(comparing, reconcile_payments)
    refund.add_argument(
        "--amount",
        metavar="AMOUNT",
        help="the total to refund, such as 3.00; the rest can still be used. Running it again does "
        "not refund more",
    )
    refund.add_argument(
        "--reason", metavar="WORDS", help="stored with the refund, here and at the provider"
    )
    refund.add_argument(
        "--spent",
        dest="also_spent",
        action="store_true",
        help="refund the payment even if a call has used it",
    )


async def list_payments(service: Service, *, only_open: bool) -> Table[PaymentRow]:
    """List payments. With `only_open`, list only payments that are not finished.

    A payment is not finished if it is neither used nor refunded, or if it has an open dispute, a
    bank's inquiry or a failed refund. The order is: payments that an operator has to check, pending
    payments, then all others, the latest first.
    """
    there = await _all(service)
    rows = [row for row in there.values() if row.is_open or not only_open]
    nothing = "Nothing is open." if only_open else "Nothing was paid."
    return Table(rows=rows, columns=COLUMNS, nothing=nothing, ids=[*there])


async def show_payment(service: Service, id: str) -> PaymentRow:
    """Return a payment by its id, or by the id of its question. Raises CommandRefused."""
    there = await _all(service)
    of_question = [row for row in there.values() if row.question.startswith(id)]
    if not of_question or any(one.startswith(id) for one in there):
        return _meant(id, there)
    if len({row.id for row in of_question}) > 1:
        named = ", ".join(row.id for row in of_question[:CANDIDATES_NAMED])
        raise CommandRefused(f"Several payments match: {named}. Name one of them.")
    return of_question[0]


async def refund_payment(
    service: Service,
    id: str,
    *,
    reason: str | None,
    also_spent: bool,
    amount: str | None = None,
) -> list[str]:
    """Refund a payment, or report an earlier refund. Raises CommandRefused.

    With `amount`, refund only up to that total, in the payment's currency, for example "3.00".
    """
    payment = _meant(id, {tail_of(one): one for one in await _payments(service)})
    line = await refund(service, payment, reason=reason, also_spent=also_spent, amount=amount)
    return [line]


async def end_payment(service: Service, id: str) -> list[str]:
    """Stop listing a payment as open, because an operator has checked it. Raises CommandRefused."""
    unresolved, ledger = service.kinds.payments.unresolved, service.kinds.payments.ledger
    paid = [one for one in await _payments(service) if one.may_be_delivered or one.owed]
    open_rows: list[UnresolvedPayment | Payment] = [*await unresolved.list_to_check(), *paid]
    there = {tail_of(one): one for one in open_rows}
    await _must_be_open(service, id, there)
    found = find_by_prefix(id, there, what="payment to check", shown_by="payments list --open")
    if isinstance(found, UnresolvedPayment):
        await unresolved.close_checked(found)
        return [f"{found.session} at {found.seller} is no longer listed."]
    if found.owed:
        now = service.clock()
        await ledger.change(found.owner, found.id, lambda one: repaid_manually(one, now))
        return [f"{found.owed_price} counts as refunded, and is no longer listed."]
    if await ledger.is_in_hand(found):
        raise CommandRefused(IN_HAND)
    await ledger.spend(found.owner, found.id, run=None)
    return [f"{found.price} counts as used, and is no longer listed."]


async def reconcile_payments(service: Service, *, since: datetime | timedelta) -> list[str]:
    """Compare the providers' checkouts since the time `since` with this store.

    Return after all checkouts are compared. Raises CommandRefused if a provider does not answer;
    the server then continues the comparison automatically.
    """
    reconciling, now = service.kinds.payments.reconciling, service.clock()
    start = now - since if isinstance(since, timedelta) else since
    if start > now:
        raise CommandRefused(
            "--since is in the future: write the time when the store began to lose data."
        )
    lines = [
        f"{name} cannot list payment pages, so they cannot be compared: check at the provider."
        for name in reconciling.unlisted
    ]
    for row in await reconciling.reconcile(start):
        current = row
        while current.status != "done":
            current = await reconciling.compare_part(current)
            if current.tries:
                raise CommandRefused(
                    f"{row.seller} does not answer. The server retries automatically, or run the "
                    "command again."
                )
        lines.append(_compared(current))
    if not lines:
        raise CommandRefused(
            "No payment provider is set up here, so nothing was compared. Run the command with the "
            "server's settings, for example with its ELICIT_STRIPE_KEY."
        )
    return lines


async def _must_be_open(service: Service, id: str, there: Collection[str]) -> None:
    """Raise CommandRefused if the id names a payment that needs no check by an operator."""
    ended = {tail_of(one): one.status.value for one in await _payments(service)}
    meant = [each for each in ended if each.startswith(id)]
    if id and len(meant) == 1 and not any(each.startswith(id) for each in there):
        raise CommandRefused(f"{printed(id)} is {ended[meant[0]]}: there is nothing to check.")


def _compared(row: Reconciliation) -> str:
    return (
        f"{row.seller}: {row.seen} payment pages of this server since {row.since:%Y-%m-%d %H:%M} "
        f"UTC. {row.found} were lost here and belong to a stored question. {row.listed} are paid "
        "and need a check (elicit payments list --open)."
    )


async def _payments(service: Service) -> list[Payment]:
    return sorted(
        await service.kinds.payments.ledger.all(), key=lambda p: (p.paid_at, p.id), reverse=True
    )


async def _all(service: Service) -> dict[str, PaymentRow]:
    """Return the rows by their ids: payments to check, pending payments, then paid ones."""
    paid, ledger = await _payments(service), service.kinds.payments.ledger
    rows = [
        *map(of_unresolved, await service.kinds.payments.unresolved.list_to_check()),
        *map(of_pending, await _pending(service)),
        *[of_payment(one, is_claimed=await ledger.is_in_hand(one)) for one in paid],
    ]
    return {row.id: row for row in rows}


async def _pending(service: Service) -> list[Elicitation]:
    """Return the questions whose payment is still being processed, the latest first.

    The result includes questions that have expired.
    """
    rows = service.elicitations
    found = {
        one.id: one
        for status in (Status.OPENED, Status.EXPIRED)
        for one in await rows.all(Elicitation, status=status, skips_unreadable=True)
        if one.kind == "payment" and one.progress == ON_ITS_WAY
    }
    return sorted(found.values(), key=lambda one: (one.created_at, one.id), reverse=True)


def _since(text: str) -> datetime | timedelta:
    duration = with_unit(text)
    if duration is not None:
        return duration
    try:
        found = datetime.fromisoformat(text)
        return found.replace(tzinfo=UTC) if found.tzinfo is None else found.astimezone(UTC)
    except (ValueError, OverflowError):  # a year that UTC does not have
        raise argparse.ArgumentTypeError(
            f"{text!r} is not a time: write 2026-03-01, 2026-03-01T12:00, 12h or 3d"
        ) from None


def _meant(id: str, there: Mapping[str, T]) -> T:
    return find_by_prefix(id, there, what="payment", shown_by="payments list")
