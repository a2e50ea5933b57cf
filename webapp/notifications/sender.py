"""The sender: sends due notifications, and schedules reminders and retries.

A process claims a row by compare-and-set. The claim counts the try, and while the claim lasts, no
other process sends the message. Then the process reads the question, sends the message if the
question is still open, and stores the result.

Risks: a tool asks hundreds of questions, and each becomes an e-mail. Each address therefore gets
some messages at once and then one a minute; the others wait, and are dropped when their question
has ended. An address that is down must not delay the others, so each address has its own queue.
"""

import asyncio
import logging
from collections.abc import Callable
from datetime import timedelta
from typing import Final

from msgspec.structs import replace

from flows.elicitation.states import Elicitation, Status
from flows.errors import Unreadable
from flows.kinds.form import approver_of
from webapp.elicitations.service import Elicitations
from webapp.events.sender import JITTER, SCHEDULE, SendQueue
from webapp.http.rate_limit import Rates
from webapp.languages import languages_of
from webapp.notifications.delivery import Deliver, Message, NotifyTable, NotifyTables, message_for
from webapp.records.ids import Notification
from webapp.stores import Conflict

CLAIMED: Final = timedelta(seconds=60)  # sending takes at most 20 seconds
MESSAGES_AT_ONCE: Final = 20  # messages to one address from one process
BETWEEN_MESSAGES: Final = timedelta(minutes=1)
# The pause while a person is answering, or if this process's settings lack the row's address.
LATER: Final = timedelta(minutes=1)
_PROCESSES: Final = 4  # processes of Apprise that run at the same time
_log = logging.getLogger(__name__)


class Notifier:
    """The sender of a process. Without tables, it sends nothing."""

    def __init__(
        self,
        elicitations: Elicitations,
        *,
        tables: NotifyTables,
        deliver: Deliver,
        headline: Callable[[Elicitation], str],
        name: str | None,
        public_url: str,
        languages: tuple[str, ...],
    ) -> None:
        """`headline` returns the text of a question for people.

        `name` is the operator's name for this server; without it, messages name the server that
        asks. `languages` are the tags of the pages' languages; without any, messages are in
        English.
        """
        self.tables = tables.by_name
        self._elicitations = elicitations
        self._deliver = deliver
        self._headline = headline
        self._name = name
        self._public_url = public_url
        self._languages = languages
        self._rates = Rates(
            burst=MESSAGES_AT_ONCE, every=BETWEEN_MESSAGES, clock=elicitations.clock
        )
        self._processes = asyncio.Semaphore(_PROCESSES)
        self._queues = {
            (table.name, is_escalation, number): SendQueue(
                self._send, on_error="notification.not_processed"
            )
            for table in self.tables.values()
            for is_escalation in (False, True)
            for number in range(len(table.escalate_to if is_escalation else table.to))
        }
        if self._queues:
            elicitations.rows.add_rows = tables.rows

    async def fall_due(self, row: Notification) -> None:
        """Queue a row that is due."""
        queue = self._queues.get((row.table, row.is_escalation, row.address))
        if queue is not None:
            queue.put(row.id, row)
        elif await self._open_question(row) is None:
            await self._write(replace(row, status="ended"))
        else:
            await self._write(replace(row, next_at=self._elicitations.clock() + LATER))

    async def run(self) -> None:
        """Send due messages. Runs until cancelled."""
        async with asyncio.TaskGroup() as group:
            for queue in self._queues.values():
                group.create_task(queue.work(_log))

    async def send_all(self) -> None:
        """Send all queued messages, one after another."""
        for queue in self._queues.values():
            await queue.send_all()

    async def test(self, table: NotifyTable) -> list[tuple[str, str | None]]:
        """Send a test message to each address. Return each place, and why it failed or None."""
        server = self._name or self._public_url
        message = Message(
            title=f"Test message of {server}",
            body=f"This is a test message of {server}. Nothing waits for you.",
        )
        found = list[tuple[str, str | None]]()
        for key, addresses in (("to", table.to), ("escalate_to", table.escalate_to)):
            for number, address in enumerate(addresses, 1):
                found.append((f"{key}, address {number}", await self._deliver(address, message)))
        return found

    async def _send(self, _: str, row: Notification) -> None:
        queue = self._queues[row.table, row.is_escalation, row.address]
        async with self._processes:
            # Run to completion even during shutdown; otherwise the message would be sent twice.
            await self._elicitations.run_to_completion(self._attempt(row, behind=len(queue.rows)))

    async def _attempt(self, row: Notification, *, behind: int) -> None:
        """Send the row's message. `behind` is the number of rows that wait for the same address."""
        table, now = self.tables[row.table], self._elicitations.clock()
        address, asked = table.address_of(row), await self._open_question(row)
        if asked is None or address is None:
            await self._write(replace(row, status="ended"))
            return
        if _is_being_answered(asked):
            await self._write(replace(row, next_at=now + LATER))
            return
        wait = self._rates.consume(f"{row.table} {row.is_escalation} {row.address}")
        if wait:
            # Spread the rows that wait, so that not all of them become due again at once.
            pause = timedelta(seconds=wait) + BETWEEN_MESSAGES * behind * self._random_fraction()
            await self._write(replace(row, next_at=now + pause))
            return
        # The row is due after its last try: each process ended before it stored the result.
        if row.tries > len(SCHEDULE):
            await self._note(row, table, asked, result="given_up")
            return
        claim = await self._write(replace(row, tries=row.tries + 1, next_at=now + CLAIMED))
        # The question may have ended while the claim was written.
        if claim is None or (asked := await self._open_question(row)) is None:
            return
        message = message_for(
            row,
            asked,
            table,
            headline=self._headline(asked),
            name=self._name,
            public_url=self._public_url,
            language=languages_of((table.language,) if table.language else self._languages)[0],
        )
        why = await self._deliver(address, message)
        if why is None:
            await self._note(claim, table, asked, result="sent")
        else:
            is_last = claim.tries > len(SCHEDULE)
            result = "given_up" if is_last else "failed"
            await self._note(replace(claim, why=why), table, asked, result=result)

    async def _note(
        self, row: Notification, table: NotifyTable, asked: Elicitation, *, result: str
    ) -> None:
        """Schedule the next try, or the next message, or end the row."""
        now = self._elicitations.clock()
        if result == "failed":
            pause = SCHEDULE[row.tries - 1] * (1 + JITTER * self._random_fraction())
            noted = replace(row, next_at=now + pause)
        else:
            noted = replace(row, messages=row.messages + 1, tries=0)
            if result == "sent":
                noted = replace(noted, why=None, sent_at=now)
            pause_or_none = table.reminds_after(noted)
            if pause_or_none is None or now + pause_or_none >= asked.expires_at:
                noted = replace(noted, status="ended")
            else:
                noted = replace(noted, next_at=now + pause_or_none)
        await self._write(noted)
        about = {"id": row.elicitation_id, "table": row.table, "address": row.address + 1}
        if row.is_escalation:
            about["escalates"] = True
        match result:
            case "sent":
                _log.info("notification.sent", extra=about)
            case "failed":
                _log.warning("notification.not_sent", extra={**about, "why": row.why})
            case _:
                _log.error("notification.given_up", extra={**about, "why": row.why})
        self._elicitations.observer.notified(row.table, result)

    def _random_fraction(self) -> float:
        return self._elicitations.owners.random(1)[0] / 255

    async def _open_question(self, row: Notification) -> Elicitation | None:
        try:
            asked = await self._elicitations.get(row.elicitation_id)
        except Unreadable:
            return None
        if asked is None or asked.status.is_final:
            return None
        return asked if self._elicitations.clock() < asked.expires_at else None

    async def _write(self, row: Notification) -> Notification | None:
        """Write the row and return it with its new version, or None if another write was first."""
        try:
            await self._elicitations.write(row)
        except Conflict:  # another process sends the message, or the owner was erased
            return None
        return replace(row, version=row.version + 1)


def _is_being_answered(asked: Elicitation) -> bool:
    """Return True if a person has opened the page of their own question and may be answering."""
    return approver_of(asked) is None and asked.status is not Status.PENDING
