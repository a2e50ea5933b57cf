"""The views: one class for each page, with its template and the values that the template shows.

Leave out every field that the template does not show: a value that is not here cannot leak.
"""

from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import ClassVar, Literal

from flows.elicitation.traits import PageName
from webapp.pages.form import PageForm

Ending = Literal["declined", "cancelled", "expired", "superseded", "failed", "denied"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Updates:
    """The fields with which a page updates itself. The page shows the state `status`.

    `url` sends server-sent events; None if the state does not change any more. The page loads
    `here` again when another status arrives. `has_continued`: the assistant received the answer.
    `step` is the question's place among the `steps` questions of its call. `next_url` leads to
    another open question of the call, and `next_kind` is the kind of its page.
    """

    url: str | None
    here: str
    status: str
    has_continued: bool = False
    step: int = 1
    steps: int = 1
    next_url: str | None = None
    next_kind: PageName | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class View:
    """The fields of every page. `server` is the name of the server that asks.

    `for_user`: an application asks one of its own users, without a tool or an assistant.
    `came_late`: the person pressed a button after the question had ended. `updates` is set if the
    page can become outdated while it is open. `is_translated` is False on pages for operators.
    """

    template: ClassVar[str]
    is_translated: ClassVar[bool] = True
    server: str
    for_user: bool = False
    came_late: bool = False
    updates: Updates | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Asking(View):
    """The fields of every page that asks: who, where, since when, how long, and how to decline.

    `phone_url` is the page's address, for a phone; None if a phone cannot reach this server.
    `client` is the name that the client gives itself, `client_id` the id in its access token. The
    titles are MCP's `title` fields; the client's title is unverified.
    """

    host: str
    tool: str
    asked_at: datetime
    now: datetime
    expires_at: datetime
    decline_action: str
    csrf: str
    phone_url: str | None = None
    client: str | None = None
    client_id: str | None = None
    tool_title: str | None = None
    client_title: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class StartUrl(Asking):
    """The page before the person goes to a tool's own URL. `message` is the tool's text."""

    template: ClassVar[str] = "start_url.html"
    message: str
    origins: tuple[str, ...]
    continue_action: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Scope:
    """A permission of an account: in words, as its provider calls it, and what it can do."""

    words: str
    raw: str
    risk: Literal["read", "write", "delete"] = "read"


@dataclass(frozen=True, slots=True, kw_only=True)
class AccountName:
    """The person of an account: the provider's label and their own name.

    There is no URL of a picture: the browser would request it from a third party, which then learns
    who looks at which page. The page shows the first letter instead.
    """

    label: str
    name: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class StartAccount(Asking):
    """The page that asks for an account. `place` is the next origin, `reason` the tool's text.

    `places` are the possible next origins, if there are several. With `tenant_label`, the person
    types their address at the provider; `tenant` is what they typed before, and `tenant_fault` what
    is wrong with it.

    With `key_form`, the person types a key (or a user name and a password). `key_label` names
    the key, and `key_page` is the provider's page where the person creates the key.

    `provider` is a label such as GitHub. Without scopes, the tool learns only who the person is.
    `account` is the name of the account if the tool wants one in particular. `team` is the label of
    the team that will own the account.
    """

    template: ClassVar[str] = "start_account.html"
    provider: str
    place: str
    scopes: tuple[Scope, ...]
    continue_action: str
    places: tuple[str, ...] = ()
    key_form: PageForm | None = None
    key_label: str | None = None
    key_page: str | None = None
    tenant_label: str | None = None
    tenant: str = ""
    tenant_fault: str | None = None
    account: str | None = None
    team: str | None = None
    reason: str | None = None
    is_sandbox: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolName:
    """A tool by its name, and by its title if the title is known."""

    tool: str
    tool_title: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """A connected account to choose: its person, its tools, and the form that allows it.

    `scopes` are all permissions of the account. `is_limited_to_some`: only some of the person's
    assistants may use it.
    """

    person: AccountName
    connected_for: tuple[ToolName, ...]
    scopes: tuple[Scope, ...]
    allow_action: str
    is_limited_to_some: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class UseAccount(Asking):
    """The page that offers connected accounts that the tool could use.

    `other_action` leads to another account; None if the tool asked for this particular account.
    `team` is the label of the team that owns the accounts.
    """

    template: ClassVar[str] = "use_account.html"
    provider: str
    choices: tuple[Choice, ...]
    other_action: str | None
    team: str | None = None
    reason: str | None = None
    is_sandbox: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class StartPayment(Asking):
    """The page before a payment at the origin `place`. `what` is the tool's text.

    `price` is formatted. `seller` is the label of the payment service, such as Stripe. If
    `refunded_after` is set, a payment that no call uses is refunded after that time. `statement` is
    the text on the person's bank statement, if the operator has set it.
    """

    template: ClassVar[str] = "start_payment.html"
    refunded_after: timedelta | None = None
    statement: str | None = None
    price: str
    what: str
    seller: str
    place: str
    continue_action: str
    is_test: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Live(View):
    """A page that updates itself.

    `live_url` sends server-sent events. The first event whose data is not `status` moves the page
    to `here_url`.
    """

    status: str
    now: datetime
    expires_at: datetime
    live_url: str
    here_url: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Waiting(Live):
    """The page while the person is at the provider. `provider` is its label, if it has one."""

    template: ClassVar[str] = "waiting.html"
    provider: str | None = None
    origins: tuple[str, ...]
    again_action: str
    decline_action: str
    csrf: str


@dataclass(frozen=True, slots=True, kw_only=True)
class NotPaid(Waiting):
    """The page after the person came back from the payment page of `seller` without paying.

    `is_closed`: that payment page has closed, and a new attempt opens another.
    """

    template: ClassVar[str] = "not_paid.html"
    price: str
    seller: str
    is_test: bool
    is_closed: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Finishing(Live):
    """The page while we wait for the provider's response, until `expires_at`."""

    template: ClassVar[str] = "finishing.html"
    provider: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Done(View):
    """The page of an accepted question: the tool continues."""

    template: ClassVar[str] = "done.html"


@dataclass(frozen=True, slots=True, kw_only=True)
class SwitchBack:
    """A notice that the new account replaced the account `former`, with a button to undo that.

    `is_done`: the account `former` is in use again. `action` is None if it cannot be used again.
    """

    former: AccountName
    is_done: bool = False
    action: str | None = None
    csrf: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class DoneAccount(View):
    """The page of an account that was connected, or allowed for one more tool.

    `left_out` are scopes that were requested but not granted. `is_late`: the question had ended.
    `is_for_a_tool`: a tool asked for the account, not the person.
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
    """The page of a payment that arrived.

    `receipt` is the receipt's id, `returned` a part that was refunded.
    """

    template: ClassVar[str] = "done_payment.html"
    price: str
    what: str
    receipt: str
    is_test: bool
    returned: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class PaymentPending(View):
    """The page of a payment that takes days, or differs from what was asked (`is_otherwise`)."""

    template: ClassVar[str] = "payment_pending.html"
    price: str
    seller: str
    is_test: bool
    is_otherwise: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Late(View):
    """The page of an answer that arrived after the question ended. A payment has a `price`."""

    template: ClassVar[str] = "late.html"
    kind: PageName = "url"
    price: str | None = None
    is_test: bool = False
    returned: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Ended(View):
    """The page of a question that ended without an answer.

    `provider` is a label. `remove_at` is the provider's list of connected apps, set if an exchange
    was interrupted and may have added us there. `problem` is one of our sentences, without its full
    stop. `question` is the question's text, and `price` a payment's price: only the person who was
    asked sees them.
    """

    template: ClassVar[str] = "ended.html"
    ending: Ending
    question: str | None = None
    price: str | None = None
    kind: PageName = "url"
    provider: str | None = None
    problem: str | None = None
    remove_at: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Used(View):
    """The page of a question that was already answered. `here_url` shows its current state."""

    template: ClassVar[str] = "used.html"
    provider: str | None = None
    here_url: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Unknown(View):
    """The page of a damaged or unknown link.

    `is_our_link`: this server made the link, but the question is not stored any more.
    """

    template: ClassVar[str] = "unknown.html"
    is_our_link: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class TooMany(View):
    """The page of a link with no attempts left."""

    template: ClassVar[str] = "too_many.html"


@dataclass(frozen=True, slots=True, kw_only=True)
class TooFast(View):
    """The page of a rate limit: the person can try again after `wait`."""

    template: ClassVar[str] = "too_fast.html"
    wait: timedelta


@dataclass(frozen=True, slots=True, kw_only=True)
class Trouble(View):
    """The page of an error, in this server or in another server. `again_url` is a GET."""

    template: ClassVar[str] = "trouble.html"
    error_id: str
    again_url: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ProviderTrouble(View):
    """The page of a provider that did not respond, responded with nonsense, or was not reached.

    The person tries again with `again_action` and its `csrf`, or with `again_url`, a GET.
    `error_id` is set when the error occurs, and not when the page is loaded again.
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
    """The page of an unknown address."""

    template: ClassVar[str] = "not_found.html"


@dataclass(frozen=True, slots=True, kw_only=True)
class BadRequest(View):
    """The page of an invalid request. `problem` is one of our sentences."""

    template: ClassVar[str] = "bad_request.html"
    problem: str


@dataclass(frozen=True, slots=True, kw_only=True)
class NoCookie(View):
    """The page of a form that was sent without its cookie, or with a wrong one (`has_cookie`).

    `again_url` is the page of the form.
    """

    template: ClassVar[str] = "no_cookie.html"
    again_url: str | None = None
    has_cookie: bool = False
