"""What each page is told: one value for each, and its template.

A field that a template does not show is a field too many: what is not here cannot leak into a page.
"""

from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import ClassVar, Literal

from flows.elicitation.traits import PageName

Ending = Literal["declined", "cancelled", "expired", "superseded", "failed", "denied"]


@dataclass(frozen=True, slots=True, kw_only=True)
class View:
    """What every page is told: the name of the server that asks.

    `for_user`: it is an application that asks one of its own users, and no tool of an assistant's.
    `came_late`: the person pressed a button after something else had ended the question.
    """

    template: ClassVar[str]
    server: str
    for_user: bool = False
    came_late: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Asking(View):
    """What every page that asks says: who, where, since when, how long, and how to say no.

    `client` is what the client that asks calls itself, `client_id` what its access token proves.
    """

    host: str
    tool: str
    asked_at: datetime
    now: datetime
    expires_at: datetime
    decline_action: str
    csrf: str
    client: str | None = None
    client_id: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class StartUrl(Asking):
    """Where a tool sends the person, and why; `message` is the tool's."""

    template: ClassVar[str] = "start_url.html"
    message: str
    origins: tuple[str, ...]
    continue_action: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Scope:
    """Something that an account lets a tool do: in words, and as its provider calls it."""

    words: str
    raw: str


@dataclass(frozen=True, slots=True, kw_only=True)
class AccountName:
    """Whose account it is: what the provider calls them, and their own name.

    There is no address of a picture: a browser would ask a third party for it, which then knew who
    looks at which page. The first letter stands in its place; /connections shows our own copy.
    """

    label: str
    name: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class StartAccount(Asking):
    """An account is to be connected; `place` is the origin that comes next, `reason` the tool's.

    `provider` is a label such as GitHub. No scopes: the tool learns only who the person is there.
    `account` is the name of the one that it wants, if it wants no other.
    """

    template: ClassVar[str] = "start_account.html"
    provider: str
    place: str
    scopes: tuple[Scope, ...]
    continue_action: str
    account: str | None = None
    reason: str | None = None
    is_sandbox: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """An account that is connected already: whose, for which tools, and the form that allows it.

    `scopes` are all that whoever is given it may do; `is_kept_to_some` of the person's assistants.
    """

    person: AccountName
    connected_for: tuple[str, ...]
    scopes: tuple[Scope, ...]
    allow_action: str
    is_kept_to_some: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class UseAccount(Asking):
    """A tool wants an account, and one or more that would do are connected already.

    `other_action` leads to another one; None where the tool has asked for this very account.
    """

    template: ClassVar[str] = "use_account.html"
    provider: str
    choices: tuple[Choice, ...]
    other_action: str | None
    reason: str | None = None
    is_sandbox: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class StartPayment(Asking):
    """Something is to be paid at `place`, an origin; `price` is formatted, `what` the tool's.

    `seller` is a label of the service that takes the money, such as Stripe.
    """

    template: ClassVar[str] = "start_payment.html"
    price: str
    what: str
    seller: str
    place: str
    continue_action: str
    is_test: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Live(View):
    """A page that moves on by itself.

    `live_url` answers with server-sent events; the first whose data is not `status` moves the page
    to `here_url`.
    """

    status: str
    now: datetime
    expires_at: datetime
    live_url: str
    here_url: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Waiting(Live):
    """The person has gone on, and nothing has come back yet."""

    template: ClassVar[str] = "waiting.html"
    origins: tuple[str, ...]
    again_action: str
    decline_action: str
    csrf: str


@dataclass(frozen=True, slots=True, kw_only=True)
class NotPaid(Waiting):
    """The person is back from the payment page of `seller` without having paid.

    `is_closed`: nobody can pay on that page any more; a new attempt opens another.
    """

    template: ClassVar[str] = "not_paid.html"
    price: str
    seller: str
    is_test: bool
    is_closed: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Finishing(Live):
    """The person has come back, and the provider's answer is on its way.

    `expires_at` is when we stop waiting for it.
    """

    template: ClassVar[str] = "finishing.html"
    provider: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Done(View):
    """It worked, and the tool goes on."""

    template: ClassVar[str] = "done.html"


@dataclass(frozen=True, slots=True, kw_only=True)
class SwitchBack:
    """Another person came back than the time before: `former`, who can be in use again.

    `action` is None where that is not possible, or `is_done` already.
    """

    former: AccountName
    is_done: bool = False
    action: str | None = None
    csrf: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class DoneAccount(View):
    """An account is connected, or was allowed to one more tool.

    `left_out` was asked for and not granted; `is_late`: nobody waited any more; `is_for_a_tool`:
    the person did not ask for it themselves.
    """

    template: ClassVar[str] = "done_account.html"
    provider: str
    person: AccountName
    left_out: tuple[Scope, ...] = ()
    is_late: bool = False
    is_for_a_tool: bool = True
    switch_back: SwitchBack | None = None
    is_sandbox: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class DonePayment(View):
    """It is paid; `receipt` is our id of the receipt, `returned` a part that was given back."""

    template: ClassVar[str] = "done_payment.html"
    price: str
    what: str
    receipt: str
    is_test: bool
    returned: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class PaymentPending(View):
    """It was paid in a way that takes days, or otherwise than asked: `is_otherwise`."""

    template: ClassVar[str] = "payment_pending.html"
    price: str
    seller: str
    is_test: bool
    is_otherwise: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Late(View):
    """It worked when nobody waited any more; of a payment, how much, as for DonePayment."""

    template: ClassVar[str] = "late.html"
    kind: PageName = "url"
    price: str | None = None
    is_test: bool = False
    returned: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Ended(View):
    """It is over without an answer.

    `provider` is a label. `remove_at` is where it lists connected apps, if an exchange broke off
    and may have left us among them. `again_action`, with its `csrf`, is there where a new attempt
    is possible. `problem` is a sentence of ours, without its full stop.
    """

    template: ClassVar[str] = "ended.html"
    ending: Ending
    kind: PageName = "url"
    provider: str | None = None
    problem: str | None = None
    remove_at: str | None = None
    again_action: str | None = None
    csrf: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Used(View):
    """The answer was given before; `here_url` is where it stands now."""

    template: ClassVar[str] = "used.html"
    provider: str | None = None
    here_url: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Unknown(View):
    """A link that is damaged, or that we never made; `is_ours`: its question is not stored."""

    template: ClassVar[str] = "unknown.html"
    is_ours: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class TooMany(View):
    """No attempt is left for this link."""

    template: ClassVar[str] = "too_many.html"


@dataclass(frozen=True, slots=True, kw_only=True)
class TooFast(View):
    """Somebody asks faster than a person does, for `wait` at least."""

    template: ClassVar[str] = "too_fast.html"
    wait: timedelta


@dataclass(frozen=True, slots=True, kw_only=True)
class Trouble(View):
    """A fault of ours or of the other side; `again_url` is a GET."""

    template: ClassVar[str] = "trouble.html"
    error_id: str
    again_url: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ProviderTrouble(View):
    """A provider did not answer, or not so that it could be understood; or it was never asked.

    The way on is a new attempt, `again_action` with its `csrf`, or `again_url`, a GET. `error_id`
    is there the first time.
    """

    template: ClassVar[str] = "provider_trouble.html"
    provider: str
    error_id: str | None = None
    again_action: str | None = None
    csrf: str | None = None
    again_url: str | None = None
    trouble: Literal["silent", "refused", "not set up"] = "silent"
    is_payment: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class NotFound(View):
    """No such page."""

    template: ClassVar[str] = "not_found.html"


@dataclass(frozen=True, slots=True, kw_only=True)
class BadRequest(View):
    """The browser sent what we cannot take; `problem` is a sentence of ours."""

    template: ClassVar[str] = "bad_request.html"
    problem: str


@dataclass(frozen=True, slots=True, kw_only=True)
class NoCookie(View):
    """A form that came without the cookie of its page."""

    template: ClassVar[str] = "no_cookie.html"
