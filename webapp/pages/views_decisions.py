"""The views of an approver's inbox, each with its template.

Leave out every field that the template does not show: a value that is not here cannot leak.
"""

from dataclasses import dataclass
from datetime import datetime
from typing import ClassVar, Literal

from flows.elicitation.tool_call import DescribedTool
from flows.shown import Argument
from webapp.pages.views import View
from webapp.pages.views_forms import Decision
from webapp.pages.views_openers import OwnPage


@dataclass(frozen=True, slots=True, kw_only=True)
class Delegation:
    """The names of the approver who handed a question on, and of the person who got it."""

    by: str
    to: str


@dataclass(frozen=True, slots=True, kw_only=True)
class InboxEntry:
    """A question for an approver: its text, who asked, with which tool, and its state.

    `asker` is the verified identity of the asker and `decided_by` that of the approver, as people
    read them. `question` is the question as a heading, or None if it is too long for one.
    `described` is the tool in its author's words. `is_own`: the viewer is the asker, or may be, and
    so cannot decide. `needs` is the number of approvals that the question needs, and `approved_by`
    names the people who have approved. `may_have_approved`: the viewer may be one of them, because
    they are identified by another method or issuer, and so cannot approve. In a list, `arguments`
    is filled only if the arguments are short; otherwise `has_more` is set.
    """

    url: str
    message: str
    question: str | None = None
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
    client_title: str | None = None
    described: DescribedTool | None = None
    is_gate: bool = False
    needs: int = 1
    approved_by: tuple[str, ...] = ()
    delegated: tuple[Delegation, ...] = ()
    has_approved: bool = False
    may_have_approved: bool = False
    has_delegated: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class InboxList:
    """The open and the decided questions of one approver name, with links to older ones."""

    approver: str
    waiting: tuple[InboxEntry, ...] = ()
    decided: tuple[InboxEntry, ...] = ()
    more_waiting: str | None = None
    more_decided: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class StandingYes:
    """An approval of the viewer for their own calls, and how long it lasts."""

    tool: str
    tool_title: str | None
    about: str
    until: datetime
    action: str


@dataclass(frozen=True, slots=True, kw_only=True)
class InboxPage(OwnPage):
    """The page of questions that the viewer may decide, and of their own approvals.

    `hidden` says why the page shows no questions: the viewer signed in too long ago, or the browser
    is not paired.
    """

    template: ClassVar[str] = "inbox.html"
    lists: tuple[InboxList, ...]
    approvals: tuple[StandingYes, ...] = ()
    hidden: Literal["stale", "unpaired"] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ActivityEntry:
    """A question that the viewer was asked, and how it ended. `url` is set while it is open.

    `says` is the question of its author. A payment has a formatted `price` instead, and says what
    it is for; an account has the label of its `provider`. `server` is the name that pages show.
    """

    says: str
    tool: str
    server: str
    tool_title: str | None = None
    client_title: str | None = None
    price: str | None = None
    provider: str | None = None
    client: str | None
    client_id: str | None
    asked_at: datetime
    outcome: Literal["waiting", "done", "declined", "expired", "failed", "cancelled"]
    url: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ActivityPage(OwnPage):
    """The page of what the viewer was asked, the latest first."""

    template: ClassVar[str] = "activity.html"
    asked: tuple[ActivityEntry, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Decide(View):
    """The page of one question to approve or decline, or of its outcome if it has ended.

    `reason` is the approver's reason for declining, and `comments` are those of approvals.
    `comment` says if the viewer can or has to write a comment. `colleagues` are the people to whom
    the viewer can hand the question. `typed_comment` and `typed_reason` were sent and are too long.
    """

    template: ClassVar[str] = "decide.html"
    approver: str
    entry: InboxEntry
    arguments: tuple[Argument, ...]
    approve_action: str
    decline_action: str
    csrf: str
    now: datetime
    delegate_action: str
    comment: Literal["none", "optional", "required"] = "none"
    comments: tuple[str, ...] = ()
    colleagues: tuple[str, ...] = ()
    needs_comment: bool = False
    typed_comment: str = ""
    typed_reason: str = ""
    reason: str | None = None
