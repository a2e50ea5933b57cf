"""The rows that lead people to a question that waits for them: inbox items and notifications."""

from datetime import datetime

from msgspec import Struct


class InboxItem(Struct, frozen=True, kw_only=True):
    """A link to a question that waits for an approver, without the question's content.

    The owner is the tag of the approver's name, and ids sort the newest first. The question's own
    status decides whether it still waits; the status `decided` only saves reading the question.
    `opens_at` is set in the inbox of the people to whom the question will be escalated.
    """

    id: str
    owner: str
    elicitation_id: str
    expires_at: datetime
    erase_at: datetime
    opens_at: datetime | None = None
    version: int = 0
    status: str = "waiting"  # or decided

    @property
    def due_at(self) -> datetime | None:
        return (self.opens_at or self.expires_at) if self.status == "waiting" else None


class Notification(Struct, frozen=True, kw_only=True):
    """The messages about a question to one address of a table `[notify.NAME]`.

    `address` is the position in the table's list, because the address itself may contain a
    password. `messages` is the number of messages that were sent or given up, and `tries` counts
    the attempts of the next message. While a process sends a message, its claim ends at `next_at`.
    """

    id: str
    owner: str
    elicitation_id: str
    table: str
    address: int
    next_at: datetime
    erase_at: datetime
    is_escalation: bool = False
    messages: int = 0
    tries: int = 0
    sent_at: datetime | None = None  # the last message that was sent
    why: str | None = None  # the reason why the last attempt failed
    status: str = "waiting"  # or ended
    version: int = 0

    @property
    def due_at(self) -> datetime | None:
        return self.next_at if self.status == "waiting" else None
