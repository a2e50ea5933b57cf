"""The stored row of a notification; see `webapp.notifications`."""

from datetime import datetime

from msgspec import Struct


class Notification(Struct, frozen=True, kw_only=True):
    """The messages about a question to one address of a table `[notify.NAME]`.

    `address` is the position in the table's list, because the address itself may contain a
    password. `messages` is the number of messages that were sent or given up, and `tries` counts
    the attempts of the next one. While a process sends it, `next_at` is the end of its claim.
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
