"""The views of pages on which a person or an approver answers, and of their results.

Leave out every field that the template does not show: a value that is not here cannot leak.
"""

from dataclasses import dataclass
from datetime import datetime
from typing import ClassVar, Literal

from flows.elicitation.tool_call import DescribedTool
from flows.shown import Argument
from webapp.pages.form import PageForm
from webapp.pages.views import Asking, View
from webapp.pages.views_openers import OwnPage

Decision = Literal["waiting", "approved", "declined", "withdrawn", "expired"]


@dataclass(frozen=True, slots=True, kw_only=True)
class StartSecret(Asking):
    """The page that asks for a secret.

    With a `name`, the secret is stored for the person. Without a name, it is used once. `label`
    names what the person enters, such as "API key".
    """

    template: ClassVar[str] = "start_secret.html"
    message: str
    label: str = ""
    form: PageForm
    continue_action: str
    name: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class StartForm(Asking):
    """The page of a form that a tool asks for. `question` is its message if it fits a heading.

    A question of a custom kind can have `arguments`, for example the text that the person signs.
    """

    template: ClassVar[str] = "start_form.html"
    message: str
    question: str | None = None
    arguments: tuple[Argument, ...] = ()
    form: PageForm
    continue_action: str


@dataclass(frozen=True, slots=True, kw_only=True)
class StartConfirm(Asking):
    """The page that asks for an approval. The arguments say what the tool would do.

    `question` is the question as a heading, or None if it is too long for one. `is_gate`: the tool
    has not started. `can_be_stored`: the approval can apply to later calls, and the person can say
    for how long. `described` is the tool in its author's words.
    """

    template: ClassVar[str] = "start_confirm.html"
    message: str
    question: str | None = None
    arguments: tuple[Argument, ...]
    continue_action: str
    form: PageForm  # has no fields, only the faults of the approval that was sent
    is_gate: bool = False
    can_be_stored: bool = False
    described: DescribedTool | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class DoneSecret(View):
    """The page of a secret that has arrived. `is_stored`: the secret is stored for later use."""

    template: ClassVar[str] = "done_secret.html"
    is_stored: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class DoneForm(View):
    """The page of an answer that has arrived. `is_approved`: an approval without fields."""

    template: ClassVar[str] = "done_form.html"
    is_approved: bool
    is_by_model: bool = False  # the model answered, not the person


@dataclass(frozen=True, slots=True, kw_only=True)
class StartDecision(Asking):
    """The asker's page while another person decides. `decline_action` withdraws the question.

    `needs` is the number of approvals that the question needs, and `given` how many it has.

    The page updates itself, as every `Live` page does.
    """

    template: ClassVar[str] = "start_decision.html"
    message: str
    question: str | None = None
    arguments: tuple[Argument, ...]
    approver: str
    needs: int = 1
    given: int = 0
    status: str
    live_url: str
    here_url: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Decided(View):
    """The asker's page of another person's decision. `reason` is why they declined.

    `question` is the question as a heading, or None if it is too long for one.
    """

    template: ClassVar[str] = "decided.html"
    question: str | None = None
    approver: str
    decision: Decision
    reason: str | None = None


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
    `described` is the tool in its author's words. `is_own`: the viewer cannot decide, because they
    are or may be the asker. `needs` is the number of approvals that the question needs, and
    `approved_by` names the people who have approved. `may_have_approved`: the viewer cannot
    approve, because they may be one of these people, identified by another method or issuer. In a
    list, `arguments` is filled only if the arguments are short; otherwise `has_more` is set.
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
    """The page of the viewer's questions, the latest first."""

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
