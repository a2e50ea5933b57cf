"""The sweeper: run the work that has become due, each row in only one of all processes."""

import asyncio
import logging
from contextlib import suppress
from datetime import datetime, timedelta
from functools import partial
from typing import TYPE_CHECKING, Any

from flows.elicitation import states
from flows.elicitation.ending import EndingCallback
from flows.elicitation.run import Run, wipe
from flows.elicitation.states import Elicitation, Status
from flows.errors import ElicitError, NotPossible, StoreUnavailable, Unreadable
from flows.oauth.connection import Connection
from flows.payments.receipt import Payment
from flows.payments.session import UnresolvedPayment
from webapp.records.heads import BadHead
from webapp.records.high_water import STEP_BACK, step_back_of
from webapp.records.ids import InboxItem, Notification
from webapp.records.values import (
    KINDS,
    OutgoingEvent,
    Reconciliation,
    StoredWebhook,
)
from webapp.service import Service
from webapp.stores import Conflict, Record
from webapp.telemetry.work import note, working

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping

EVERY_SECONDS = 5.0
HOLD = timedelta(seconds=30)
DUE_AT_ONCE = 100
# rows that do not count for the lag, because their receivers may be down for long
_SENT = frozenset({KINDS[OutgoingEvent], KINDS[Notification]})
_log = logging.getLogger(__name__)


async def sweep(service: Service) -> None:
    """Sweep every five seconds, and whenever a checkout can be polled; runs until cancelled.

    A failed round is logged, and the next round follows.
    """
    while True:
        try:
            await service.elicitations.high_water.make_mark()
            while await fall_due(service) >= DUE_AT_ONCE:
                _log.info("sweeper.has_more")
        except StoreUnavailable as error:
            service.elicitations.high_water.reconnected()
            _log.warning("store.unavailable", extra={"why": error.why})
        except Exception:  # noqa: BLE001 - end of a task
            _log.exception("sweeper.failed")
        await service.kinds.payments.checkouts.wait_for_turn(within=EVERY_SECONDS)


async def fall_due(service: Service) -> int:
    """Run one round: expire, close, reconcile, wipe and erase.

    Return the number of processed rows.
    """
    elicitations = service.elicitations
    now = elicitations.clock()
    await service.webhooks.log.write_counts()
    await service.events.look()
    records = await elicitations.store.due(now, hold=HOLD, limit=DUE_AT_ONCE)
    due = [each.due_at for each in records if each.due_at and each.kind not in _SENT]
    lag = max([(now - due_at).total_seconds() for due_at in due] or [0])
    service.elicitations.telemetry.observer.swept(at=now, lag_seconds=lag)
    # All at once, so that a provider that does not answer delays no other record.
    async with asyncio.TaskGroup() as group:
        for record in records:
            group.create_task(_process(service, record, now))
        if elicitations.rows.chain is not None:
            group.create_task(_make_head(service))
    return len(records) + await elicitations.store.erase(before=now)


async def _make_head(service: Service) -> None:
    try:
        await service.heads.make_in_time()
    except BadHead as error:
        _log.error("audit.head_damaged", extra={"why": str(error)})
    except OSError as error:
        _log.error(
            "audit.head_not_exported",
            extra={"why": f"The server cannot write to the folder of ELICIT_AUDIT_HEADS: {error}"},
        )


async def _process(service: Service, record: Record, now: datetime) -> None:
    with working(f"sweep {record.kind}", tracer=service.elicitations.telemetry.tracer):
        await _process_safely(service, record, now)


async def _process_safely(service: Service, record: Record, now: datetime) -> None:
    try:
        await _falls_due(service, record, now)
    except Unreadable:
        _log.exception("record.unreadable", extra={"kind": record.kind})
    except Conflict:
        _log.info("sweeper.conflict", extra={"kind": record.kind})  # the record stays due
    except StoreUnavailable as error:
        _log.warning("store.unavailable", extra={"why": error.why})
    except ElicitError as error:
        # The provider is unavailable or refuses: the row stays due.
        _log.warning("provider.failed", extra={"id": record.id, "why": str(error)})
    except Exception:  # noqa: BLE001 - end of the task
        # An error of one record must not stop the others of the round.
        _log.exception("sweeper.row_failed", extra={"kind": record.kind})


async def _falls_due(service: Service, record: Record, now: datetime) -> None:
    payments = service.kinds.payments
    acts: Mapping[type[Any], Callable[[Any], Awaitable[object]]] = {
        Elicitation: partial(_elicitation_falls_due, service, now=now),
        Run: partial(_run_falls_due, service),
        StoredWebhook: service.webhooks.reconcile,
        Payment: payments.refunds.fall_due,
        Connection: service.kinds.accounts.keep_alive.fall_due,
        UnresolvedPayment: payments.checkouts.ask_again,
        Reconciliation: payments.reconciling.compare_part,
        OutgoingEvent: service.events.sender.fall_due,
        Notification: service.notifier.fall_due,
        InboxItem: service.kinds.decisions.fall_due,
        EndingCallback: service.endings.fall_due,
    }
    if record.kind == STEP_BACK and (back := step_back_of(record)) is not None:
        await service.store_stepped_back(back)
        await service.elicitations.high_water.settle(record, back)
    for value, act in acts.items():
        if record.kind == KINDS[value]:
            await act(await service.elicitations.rows.open(record, value))


async def _run_falls_due(service: Service, run: Run) -> None:
    with suppress(Conflict):
        await service.elicitations.write(wipe(run))


async def _elicitation_falls_due(service: Service, current: Elicitation, *, now: datetime) -> None:
    note(current)
    elicitations = service.elicitations
    if current.is_open_there and current.status.is_final:
        await service.kinds.payments.checkouts.close(current)
    elif current.status.is_final or current.status is Status.EXCHANGING:
        await elicitations.change(current.id, lambda e: states.fall_due(e, now=now))
    elif now < current.expires_at:
        await service.kinds.payments.checkouts.ask_in_turn(current)
    else:
        with suppress(NotPossible):
            await elicitations.settle(current.id, Status.EXPIRED)
