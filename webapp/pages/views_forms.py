"""The pages on which a person answers: a secret, a form, a yes; and what they say afterwards."""

from dataclasses import dataclass
from typing import ClassVar, Literal

from flows.shown import Argument
from webapp.pages.form import PageForm
from webapp.pages.views import Asking, View

Decision = Literal["waiting", "approved", "declined", "withdrawn", "expired"]


@dataclass(frozen=True, slots=True, kw_only=True)
class StartSecret(Asking):
    """With a `name` it is kept for the person; without, it is handed over once."""

    template: ClassVar[str] = "start_secret.html"
    message: str
    form: PageForm
    continue_action: str
    name: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class StartForm(Asking):
    """The fields that a tool asks for."""

    template: ClassVar[str] = "start_form.html"
    message: str
    form: PageForm
    continue_action: str


@dataclass(frozen=True, slots=True, kw_only=True)
class StartConfirm(Asking):
    """A yes is asked for; the arguments say what it would do.

    `is_gate`: the tool has not started; `can_be_kept`: a yes holds for later calls, and the person
    may say for how long.
    """

    template: ClassVar[str] = "start_confirm.html"
    message: str
    arguments: tuple[Argument, ...]
    continue_action: str
    form: PageForm  # without fields: what is wrong with the yes that was given
    is_gate: bool = False
    can_be_kept: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class DoneSecret(View):
    """What was typed has arrived; `kept` beyond this one use or not."""

    template: ClassVar[str] = "done_secret.html"
    kept: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class DoneForm(View):
    """What was answered has arrived; `is_approved`: a yes, and no more than that."""

    template: ClassVar[str] = "done_form.html"
    is_approved: bool
    is_by_model: bool = False  # the person was not the one who answered


@dataclass(frozen=True, slots=True, kw_only=True)
class StartDecision(Asking):
    """Somebody else decides, and whoever asked looks on; `decline_action` withdraws it.

    The page moves on by itself, as every `Live` one.
    """

    template: ClassVar[str] = "start_decision.html"
    message: str
    arguments: tuple[Argument, ...]
    approver: str
    status: str
    live_url: str
    here_url: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Decided(View):
    """How it came out, for whoever asked; a no may have a `reason`, in the words of who decided."""

    template: ClassVar[str] = "decided.html"
    approver: str
    decision: Decision
    reason: str | None = None
