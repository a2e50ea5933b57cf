"""What the pages of an approver's inbox are told: one value for each, and its template.

A field that a template does not show is a field too many: what is not here cannot leak into a page.
"""

from dataclasses import dataclass
from datetime import datetime
from typing import ClassVar, Literal

from flows.shown import Argument
from webapp.pages.views import View
from webapp.pages.views_forms import Decision
from webapp.pages.views_openers import OwnPage


@dataclass(frozen=True, slots=True, kw_only=True)
class InboxEntry:
    """A question that others decide: what it says, who asked, by what, and how it stands.

    `asker` is what was verified of whoever asked, `decided_by` who decided, as people read them.
    `is_own`: whoever looks asked it, or may have, and so cannot decide it. In a list `arguments`
    are those of a short request; of another one there are none, and it `has_more`.
    """

    url: str
    message: str
    arguments: tuple[Argument, ...]
    tool: str
    asker: str | None
    client: str | None
    client_id: str | None
    asked_at: datetime
    expires_at: datetime
    decision: Decision
    decided_by: str | None = None
    decided_at: datetime | None = None
    is_own: bool = False
    has_more: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class InboxList:
    """What waits for one name, and what was decided; the addresses lead to what is older."""

    approver: str
    waiting: tuple[InboxEntry, ...] = ()
    decided: tuple[InboxEntry, ...] = ()
    more_waiting: str | None = None
    more_decided: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class StandingYes:
    """What whoever looks has approved for themselves, and for how long it holds."""

    tool: str
    about: str
    until: datetime
    action: str
    csrf: str


@dataclass(frozen=True, slots=True, kw_only=True)
class InboxPage(OwnPage):
    """All that whoever looks may decide for others, and what they let stand themselves.

    `hidden` says why nothing of the former is shown: they signed in too long ago, or this browser
    was not paired.
    """

    template: ClassVar[str] = "inbox.html"
    lists: tuple[InboxList, ...]
    approvals: tuple[StandingYes, ...] = ()
    hidden: Literal["stale", "unpaired"] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Decide(View):
    """One question, to be approved or declined; where it is over, how it came out.

    `reason` is the approver's reason for declining.
    """

    template: ClassVar[str] = "decide.html"
    approver: str
    entry: InboxEntry
    arguments: tuple[Argument, ...]
    approve_action: str
    decline_action: str
    csrf: str
    now: datetime
    reason: str | None = None
