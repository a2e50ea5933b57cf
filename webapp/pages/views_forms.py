"""The views of pages on which a person answers (secret, form, approval), and of their results."""

from dataclasses import dataclass
from typing import ClassVar, Literal

from flows.elicitation.tool_call import DescribedTool
from flows.shown import Argument
from webapp.pages.form import PageForm
from webapp.pages.views import Asking, View

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

    A kind of the application's own can have `arguments`: the text that the person signs, for
    example.
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
