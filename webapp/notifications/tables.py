"""The tables `[notify.NAME]`: who is notified, where and when, and the rows of a new question.

A table applies to the approvers of the same name, or to the people whom it lists itself. Each
address of a table has a row of its own for each question, so that an address that is down delays
no other one.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Final

from flows.elicitation.states import RECORD_RETENTION, Elicitation, Status
from flows.kinds.form import voting_of
from webapp.records.ids import RowIds
from webapp.records.values import Value
from webapp.records.waiting import Notification

ADDRESSES_AT_MOST: Final = 8  # addresses of one table, and as many for its escalation
# People look at their assistant when it asks: they are notified only if they do not answer soon.
AFTER_FOR_PEOPLE: Final = timedelta(minutes=1)


@dataclass(frozen=True, slots=True, kw_only=True)
class NotifyTable:
    """A table of the operator. The addresses are those of Apprise, and may contain passwords.

    The people to notify are its `subjects`, its `users`, and this machine's own user if `is_local`.
    If it lists none of these, they are the approvers of its name. `remind_after` is the time
    between two messages to the same address. `remind_at_most` is the number of reminders.
    `language` is the tag of the messages' language; None is the first language of the pages.
    """

    name: str
    to: tuple[str, ...] = field(default=(), repr=False)
    escalate_to: tuple[str, ...] = field(default=(), repr=False)
    after: timedelta = timedelta()
    remind_after: timedelta | None = None
    remind_at_most: int = 1
    escalate_after: timedelta | None = None
    with_question: bool = False
    language: str | None = None
    subjects: frozenset[str] = frozenset()
    issuers: frozenset[str] = frozenset()  # who signs them in; empty: ELICIT_ISSUER
    users: frozenset[str] = frozenset()
    is_local: bool = False

    @property
    def lists_people(self) -> bool:
        """True if the table is about people, False if it is about the approvers of its name."""
        return bool(self.subjects or self.users or self.is_local)

    def address_of(self, row: Notification) -> str | None:
        """Return the row's address from the current settings, or None if they no longer have it."""
        addresses = self.escalate_to if row.is_escalation else self.to
        return addresses[row.address] if row.address < len(addresses) else None

    def reminds_after(self, row: Notification) -> timedelta | None:
        """Return the time until the next message to the row's address, or None if there is none."""
        is_last = row.is_escalation or row.messages > self.remind_at_most
        return None if is_last else self.remind_after


class NotifyTables:
    """The tables of a server, by the people to whom they apply.

    `owners` are the owner tags of the people of each table.
    """

    def __init__(
        self,
        tables: Iterable[NotifyTable],
        *,
        owners: Mapping[str, Iterable[str]],
        ids: RowIds,
    ) -> None:
        self.by_name: Mapping[str, NotifyTable] = {table.name: table for table in tables}
        self._ids = ids
        self._of_owners: dict[str, list[NotifyTable]] = {}
        for name, tags in owners.items():
            for tag in tags:
                self._of_owners.setdefault(tag, []).append(self.by_name[name])

    def rows(self, values: Sequence[Value]) -> list[Notification]:
        """Return the rows to write together with `values`: those of each new question."""
        return [
            row
            for value in values
            if isinstance(value, Elicitation)
            if value.version == 0 and value.status is Status.PENDING
            for table, since in self._tables_for(value)
            for row in self._rows(value, table, since=since)
        ]

    def _tables_for(self, asked: Elicitation) -> Iterator[tuple[NotifyTable, datetime]]:
        """Yield the tables about a new question, with the time from which each one counts."""
        voting = voting_of(asked)
        if voting is None:
            yield from ((table, asked.created_at) for table in self._of_owners.get(asked.owner, ()))
            return
        names = [(voting.approver, asked.created_at)]
        if voting.escalates_to is not None and voting.escalates_at is not None:
            names.append((voting.escalates_to, voting.escalates_at))
        for name, since in names:
            table = self.by_name.get(name)
            if table is not None and not table.lists_people and since < asked.expires_at:
                yield table, since

    def _rows(
        self, asked: Elicitation, table: NotifyTable, *, since: datetime
    ) -> Iterator[Notification]:
        plan = [(False, table.after, table.to)]
        if table.escalate_after is not None:
            plan.append((True, table.escalate_after, table.escalate_to))
        for is_escalation, after, addresses in plan:
            for number in range(len(addresses)):
                yield Notification(
                    id=self._ids.notification(
                        asked.id, table=table.name, is_escalation=is_escalation, address=number
                    ),
                    owner=asked.owner,
                    elicitation_id=asked.id,
                    table=table.name,
                    address=number,
                    is_escalation=is_escalation,
                    next_at=since + after,
                    erase_at=asked.expires_at + RECORD_RETENTION,
                )
