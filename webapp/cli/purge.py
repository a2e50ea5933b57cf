"""`elicit purge`: erase one person's data, except payments, which accounting needs.

Risks:

- A call uses data that is being erased. Nothing is therefore erased before that call has ended.
- Money is lost together with its row: a late payment, a refund in progress, a dispute. Payments and
  questions that can still be paid therefore stay until they expire, and the report says so. The
  facts about money in webhooks stay, too.
- A resource that a call holds, such as a seat, is never released. The callbacks of `on_end`
  therefore run first. If no server has run them within an hour, they are erased, too.
- A provider keeps a grant after the record of the account is erased here. Accounts are therefore
  disconnected first. If an account is in use, nothing is erased. If a provider cannot revoke its
  grant, the report says where the person can remove it.
"""

import argparse
from collections import Counter
from collections.abc import Sequence
from datetime import timedelta

from msgspec.structs import replace

from flows.elicitation import run as runs
from flows.elicitation.ending import EndingCallback
from flows.elicitation.run import Run, wipe
from flows.elicitation.states import Elicitation, Status
from flows.errors import Failed
from flows.oauth.connection import Connection
from flows.payments.receipt import Payment
from flows.payments.session import UnresolvedPayment
from flows.shown import counted
from webapp.calls.once import DOING
from webapp.cli.operator import add_owner, does, owner_of, records_of
from webapp.cli.resealing import destroy_purged, renew_purged
from webapp.command import CommandRefused
from webapp.operations.rows import OWNER_CHARACTERS, kind_word
from webapp.records.chain import AUDIT
from webapp.records.owners import DATA_KEY
from webapp.records.values import KINDS, DoneOnce, EarlyEvent, StoredWebhook
from webapp.service import Service
from webapp.stores import Conflict, Record

# Kinds of records that are not erased. The data key is needed to decrypt the other kinds.
_STAYS = {
    DATA_KEY,
    AUDIT,
    *(KINDS[one] for one in (Payment, UnresolvedPayment, StoredWebhook, EarlyEvent)),
}
_UNENCRYPTED = (AUDIT, DATA_KEY)
_AT_ONCE = 100
_ROUNDS_AT_MOST = 20
_CALLBACKS_WAIT = timedelta(hours=1)
_OPEN = (Status.PENDING, Status.OPENED)


def declare(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        "Erase one person's data, and disconnect their accounts at the providers. Payments stay, "
        "for accounting and for late webhooks. Without --yes, the command only says what it would "
        "erase."
    )
    add_owner(parser)
    parser.add_argument("--yes", dest="is_sure", action="store_true", help="erase the data")
    does(parser, purge_owner)


async def purge_owner(service: Service, owner: str, *, is_sure: bool) -> list[str]:
    """Erase the person's data, or report what would be erased. Raises CommandRefused."""
    tag = await owner_of(service, owner)
    there = [each async for page in records_of(service, tag) for each in page]
    paid = await _asked_for_money(service, tag)
    erased = [each for each in there if not _stays(each, paid)]
    lines = [f"{counted(len(erased), 'record')} of {tag[:OWNER_CHARACTERS]}: {_kinds(erased)}"]
    if stays := [each for each in there if _stays(each, paid) and each.kind not in _UNENCRYPTED]:
        lines.append(
            f"{counted(len(stays), 'record')} of payments will stay, without a name: "
            f"{_kinds(stays)}. Payments are erased after ten years, the others 30 days after they "
            "have ended."
        )
    if not is_sure:
        return [*lines, "Nothing was erased. Add --yes to erase the first list."]
    if at_work := await _at_work(service, tag):
        raise CommandRefused(
            f"A call of this person is running at the moment, in {', '.join(at_work)}, so nothing "
            "was erased. Run the command again when the call has ended; if its process is dead, in "
            "half a minute."
        )
    if callbacks := await _callbacks(service, tag):
        raise CommandRefused(
            f"Callbacks of on_end have to run first: {', '.join(callbacks)}. They may release what "
            "a call of this person holds. The calls were ended, and nothing was erased. A server "
            "that has these functions runs them in a few seconds: run the command again after "
            "that. After an hour, it erases the callbacks that could not run."
        )
    owners, now = service.elicitations.owners, service.clock()
    if erased:
        await renew_purged(owners, tag, now=now)
    lines += await _disconnect(service, tag)
    for asked in await service.elicitations.rows.all(Elicitation, owner=tag, skips_unreadable=True):
        if asked.status in _OPEN:
            await service.elicitations.end(asked, Status.CANCELLED)
    await service.elicitations.rows.record_action(tag, "erased")
    await _erase(service, tag)
    if waiting := await _forget_payers(service, tag):
        lines.append(
            f"Data of the payer is still in {counted(waiting, 'record')} of waiting webhooks. Run "
            "this command again when elicit webhooks list shows none that waits."
        )
    remaining = [
        each async for page in records_of(service, tag) for each in page if _is_sealed(each)
    ]
    until = await destroy_purged(owners, tag, remaining, now=now)
    lines.append("The data is erased. Earlier backups still contain it until you delete them.")
    if until is not None:
        lines.append(
            "The database and its disks may still hold copies, which only the person's old data "
            "key decrypts. A process that has not loaded the new key can still use the old one. "
            f"Run this command again after {until:%Y-%m-%d %H:%M:%S} UTC: it destroys the old key."
        )
    return lines


async def _at_work(service: Service, owner: str) -> list[str]:
    """Return the tools that use an answer of this person now, or that run `once` for them."""
    elicitations = service.elicitations
    rows, now = elicitations.rows, service.clock()
    asked = await rows.all(Elicitation, owner=owner, skips_unreadable=True)
    tools = {
        one.request.tool
        for one in asked
        if one.delivered_at is None and await elicitations.is_in_hand(one)
    }
    done = await rows.all(DoneOnce, owner=owner, skips_unreadable=True)
    if any(one.status == DOING and one.claimed_until and now < one.claimed_until for one in done):
        tools.add("once()")
    return sorted(tools)


async def _callbacks(service: Service, owner: str) -> list[str]:
    """End the person's calls that have callbacks, and return the callbacks that have to run."""
    elicitations, now = service.elicitations, service.clock()
    for run in await elicitations.rows.all(Run, owner=owner, skips_unreadable=True):
        if not run.endings or run.is_delivered:
            continue
        for step in run.asked:
            asked = await elicitations.get(step.elicitation_id)
            if asked is not None and asked.status in _OPEN:
                await elicitations.end(asked, Status.CANCELLED)
        try:
            await elicitations.write(runs.cancel(run, now=now) if run.result is None else wipe(run))
        except Conflict:
            raise CommandRefused(
                "A call of this person is running at the moment. Run the command again."
            ) from None
    rows = await elicitations.rows.all(EndingCallback, owner=owner, skips_unreadable=True)
    return sorted(
        {
            one.callback
            for one in rows
            if one.status == "due" and one.ended_at and now < one.ended_at + _CALLBACKS_WAIT
        }
    )


async def _disconnect(service: Service, owner: str) -> list[str]:
    lines = list[str]()
    rows = await service.elicitations.rows.all(Connection, owner=owner, skips_unreadable=True)
    accounts = service.kinds.accounts.connections
    for team in accounts.teams:  # the team must not use the person's grants any more
        found = await accounts.all_of(accounts.holder(owner, team))
        rows = [*rows, *(one for one in found if one.connected_by == owner)]
    for one in rows:
        if one.status == "disconnected":
            continue
        try:
            done = await service.kinds.accounts.keys.disconnect(one.owner, one.id)
        except Failed as error:
            raise CommandRefused(
                f"{one.label} at {one.provider} is in use at the moment ({error}), so the command "
                "stopped: run it again."
            ) from error
        where = f"at {done.manage}" if done.manage else "there"
        lines.append(
            f"{one.label} at {one.provider} is disconnected."
            if done.revoked
            else f"{one.provider} could not be asked to disconnect {one.label}: the person can "
            f"remove the access {where}."
        )
    return lines


async def _erase(service: Service, owner: str) -> None:
    """Mark all erasable records as expired and erase them, until none is left."""
    store, now = service.elicitations.store, service.clock()
    for _ in range(_ROUNDS_AT_MOST):
        paid = await _asked_for_money(service, owner)
        remaining = [
            replace(each, key=None, due_at=None, erase_at=now)
            async for page in records_of(service, owner)
            for each in page
            if not _stays(each, paid)
        ]
        if not remaining:
            return
        for start in range(0, len(remaining), _AT_ONCE):
            try:
                await store.write(*remaining[start : start + _AT_ONCE])
            except Conflict:
                continue  # another process wrote one of these records: try again in the next round
        while await store.erase(owner=owner, before=now):
            pass
    raise CommandRefused(
        "This person's calls are still writing data: stop the calls, and run the command again."
    )


async def _forget_payers(service: Service, owner: str) -> int:
    """Erase the payer's data from webhook bodies, and return how many still need their body."""
    hooks = await service.elicitations.rows.all(StoredWebhook, owner=owner, skips_unreadable=True)
    waiting = 0
    for hook in hooks:
        try:
            waiting += not await service.webhooks.forget_body(hook)
        except Conflict:  # another process is using this webhook
            waiting += 1
    return waiting


async def _asked_for_money(service: Service, owner: str) -> set[str]:
    """Return the ids of payment questions, which are needed to check late payments."""
    rows = await service.elicitations.rows.all(Elicitation, owner=owner, skips_unreadable=True)
    return {each.id for each in rows if each.kind == "payment"}


def _is_sealed(record: Record) -> bool:
    """Return True if the person's data key encrypts the record.

    It encrypts all records except the audit and the data key itself.
    """
    return record.kind not in _UNENCRYPTED


def _stays(record: Record, paid: set[str]) -> bool:
    return record.kind in _STAYS or record.id in paid


def _kinds(records: Sequence[Record]) -> str:
    kinds = Counter(kind_word(each.kind) for each in records)
    return ", ".join(f"{number} {kind}" for kind, number in sorted(kinds.items())) or "none"
