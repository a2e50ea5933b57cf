"""The request and response bodies of the HTTP API.

Risks: a response contains an access token or another person's data. So responses are built field by
field. An account is described without its token, and only the program that asked a question
receives the link, not a key that approves.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Annotated, Any, Final, Literal, TypeAlias

from litestar.params import QueryParameter
from msgspec import Meta, Struct

from flows import elicit
from flows.elicitation.states import Json
from flows.errors import InvalidQuestion
from flows.kinds.form import timeout_for
from flows.payments.money import Money
from flows.question import DEFAULT_TIMEOUT, TIMEOUT_AT_MOST, Question

USER_CHARACTERS: Final = 256
NAME_CHARACTERS: Final = 255
UserName: TypeAlias = Annotated[str, Meta(min_length=1, max_length=USER_CHARACTERS)]
RunName: TypeAlias = Annotated[str, Meta(min_length=1, max_length=NAME_CHARACTERS)]
Whose: TypeAlias = Annotated[
    str | None, QueryParameter(min_length=1, max_length=USER_CHARACTERS)
]  # one of the program's users
_AMOUNT_CHARACTERS: Final = 32
_REASON_CHARACTERS: Final = 500
_SECONDS_AT_MOST: Final = int(TIMEOUT_AT_MOST.total_seconds())


class AskedKind(StrEnum):
    """The kinds of questions that a program can ask over the HTTP API."""

    URL = "url"
    OAUTH = "oauth"
    API_KEY = "api_key"
    PAYMENT = "payment"
    FORM = "form"
    CONFIRM = "confirm"
    SECRET = "secret"  # noqa: S105 - the name of a kind


class NewQuestion(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A question to one of the program's users. The fields depend on the question's kind.

    An `oauth` question with `again` also asks for scopes that the user did not grant before.

    Without `user`, the question goes to the person whose access token is in the header
    User-Access-Token.

    A `url` question requires `message` and `url`. The kinds `oauth` and `api_key` require
    `provider`. A `payment` question requires `amount` (text, such as "9.00"), `currency` and
    `what`. The kinds `form`, `confirm` and `secret` require `message`. All other fields are
    optional. With `approver`, a name from the operator's settings, other people decide a `confirm`
    question.

    `run` names a unit of work that asks several questions and ends with `/api/runs/end`. `nth` is
    the number of equal questions that the run asked before this one. Questions with the same `key`
    are the same question in all your runs. `elicitation_id` is an id that you choose.
    """

    kind: AskedKind
    user: UserName | None = None
    timeout_seconds: Annotated[int, Meta(ge=1, le=_SECONDS_AT_MOST)] | None = None
    message: str | None = None
    url: str | None = None
    wait_for_completion: bool | None = None
    provider: str | None = None
    scopes: list[str] | None = None
    account: str | None = None
    reason: str | None = None
    tenant: str | None = None
    again: bool | None = None
    amount: str | None = None
    currency: str | None = None
    what: str | None = None
    once: bool | None = None
    schema: dict[str, Any] | None = None
    arguments: dict[str, Any] | None = None
    approver: str | None = None
    name: str | None = None
    key: Annotated[str, Meta(min_length=1, max_length=NAME_CHARACTERS)] | None = None
    elicitation_id: str | None = None
    run: RunName | None = None
    nth: Annotated[int, Meta(ge=0, lt=1000)] = 0

    def question(self) -> Question[Any]:
        """Build the question that a tool would ask. Raises InvalidQuestion."""
        asked = _ASKED[self.kind]
        given = {name for name in _FIELDS if getattr(self, name) is not None}
        if missing := sorted(asked.needs - given):
            raise InvalidQuestion(f"A question of kind {self.kind.value} needs {missing[0]}.")
        if others := sorted(given - asked.needs - asked.takes):
            fields = ", ".join(sorted(asked.needs | asked.takes))
            raise InvalidQuestion(
                f"A question of kind {self.kind.value} has no {others[0]}; it has {fields}."
            )
        about = {name: getattr(self, name) for name in given}
        about |= {} if self.key is None else {"key": self.key}
        seconds = self.timeout_seconds
        timeout = timeout_for(self.approver, default=asked.timeout)
        timeout = timeout if seconds is None else timedelta(seconds=seconds)
        return asked.verb(about, timeout)


class AccountData(Struct, frozen=True, kw_only=True):
    """An account that the user connected, without its access token.

    `status` is `connected`, or `lapsed` if the user has to connect the account again. `api` is the
    base URL of the provider's API. It is null if this server no longer declares the provider.
    `missing` are the scopes that the question asked for and that were not granted; a list of
    accounts leaves it empty. `tenant` is the account's host at a provider with a host for each
    customer, and `details` are the values that the provider's declaration stores with the account.
    `ends_at` is set if the account ends soon and only the user can prevent it, by connecting it
    again. `team` is the name of the team that owns the account, or null for the user's own.
    """

    id: str
    provider: str
    label: str
    scopes: tuple[str, ...]
    missing: tuple[str, ...] = ()
    tenant: str | None = None
    details: Mapping[str, str] = {}
    api: str | None
    status: str
    connected_at: datetime
    ends_at: datetime | None = None
    team: str | None = None


class AccountList(Struct, frozen=True, kw_only=True):
    """The accounts that the user connected and shares with this program."""

    accounts: list[AccountData]


class AccessToken(Struct, frozen=True, kw_only=True):
    """A valid access token of an account. `api` is the base URL of the provider's API.

    `api_hosts` are the hosts that accept the token. It is sent in `header` after `token_type`,
    which is empty for some API keys, or in the query parameter `query`. `expires_at` is null if the
    provider did not say when the token expires. With the `token_type` `DPoP`, the token is bound to
    a key that never leaves the server, so only the proxy can use it.
    """

    access_token: str
    token_type: str
    header: str = "Authorization"
    query: str | None = None
    expires_at: datetime | None
    scopes: tuple[str, ...]
    api: str
    api_hosts: tuple[str, ...]


class DisconnectionResult(Struct, frozen=True, kw_only=True):
    """The result of disconnecting an account.

    If `ended` is false, other programs or tools of your server still use the account, and only
    this program lost access. `revoked` says whether the provider revoked the token; null means that
    the provider has no way to revoke tokens. At `manage` the user can remove the access themselves.
    """

    ended: bool
    revoked: bool | None = None
    manage: str | None = None


class PaymentData(Struct, frozen=True, kw_only=True):
    """A payment. Amounts are in minor units of ISO 4217; `refunded` is the total refunded so far.

    `status` is `open`, `spent` after the answer was used, `refunding`, `refunded`, or `disputed`
    if a bank disputes the full amount. `is_refund_pending` means that the provider accepted a
    refund that can still fail. `owed` is the amount of failed refunds. `dispute` is the stage of a
    bank dispute: `inquiry`, `open`, `appealed`, `lost`, `lost again` or `gone`. `disputed` is the
    disputed amount.
    """

    id: str
    question_id: str
    provider: str
    status: str
    amount: int
    currency: str
    what: str
    is_live: bool
    paid_at: datetime
    refunded: int
    refunded_at: datetime | None
    is_refund_pending: bool
    owed: int
    dispute: str | None
    disputed: int


class PaymentPage(Struct, frozen=True, kw_only=True):
    """A page of payments, oldest first. Pass `after` to get the next page."""

    payments: list[PaymentData]
    after: str | None = None


class WantedRefund(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A full refund, or a refund up to a total of `amount` (text, such as "3.00").

    `also_spent` also refunds a payment whose answer was used. `reason` is stored and sent to the
    provider. `run` is the run that refunds a payment it has claimed.
    """

    run: RunName | None = None
    amount: Annotated[str, Meta(max_length=_AMOUNT_CHARACTERS)] | None = None
    reason: Annotated[str, Meta(max_length=_REASON_CHARACTERS)] | None = None
    also_spent: bool = False


class WebhookState(StrEnum):
    """The result of a webhook delivery."""

    APPLIED = "applied"
    WAITING = "waiting"  # about an unknown payment: the provider is polled
    REPEATED = "repeated"
    REFUSED = "refused"  # `why` names the fact that differs from the request
    UNKNOWN = "unknown"
    IGNORED = "ignored"  # a kind of event that has no effect


class WebhookData(Struct, frozen=True, kw_only=True):
    """A webhook delivery of a payment provider. Only reading a single delivery returns `body`."""

    id: str
    provider: str
    event: str | None
    event_id: str
    question_id: str | None
    status: WebhookState
    why: str | None
    received_at: datetime
    replayed_at: datetime | None
    erased_at: datetime
    is_whole: bool
    body: str | None = None


class WebhookPage(Struct, frozen=True, kw_only=True):
    """A page of webhook deliveries. Pass `after` to get the next page."""

    webhooks: list[WebhookData]
    after: str | None = None


class QuestionState(Struct, frozen=True, kw_only=True):
    """The current state of a question.

    `url` is the person's link, as long as the person can still act there. If `needs_code` is true,
    the linked page shows a one-time code: ask your user for the code and send it to the server.
    `content` is the answer until the answer is used or erased. Accounts and payments have their own
    fields. `superseded_by` is the id of an earlier, equal question that was paid late: ask again to
    get that payment. `user` is the id of the user who is asked, or null for a person who signs in
    at an issuer. For a question with an `approver`, `approvals` of `approvals_needed` people have
    approved, and `comments` are what they wrote. `tool_title` and `server_title` are the titles
    from MCP of the tool that asks and of its server.
    """

    id: str | None
    kind: str
    status: str
    message: str
    asked_by: str | None = None
    tool_title: str | None = None
    server_title: str | None = None
    user: str | None = None
    asked_at: datetime | None = None
    expires_at: datetime | None = None
    url: str | None = None
    needs_code: bool = False
    progress: str | None = None
    why: str | None = None
    superseded_by: str | None = None
    is_late: bool = False
    schema: Json = None
    arguments: Json = None
    content: Json = None
    account: AccountData | None = None
    payment: PaymentData | None = None
    approver: str | None = None
    approvals: int = 0
    approvals_needed: int | None = None
    comments: tuple[str, ...] = ()
    settled_at: datetime | None = None
    taken_at: datetime | None = None
    version: int = 0


class QuestionPage(Struct, frozen=True, kw_only=True):
    """A page of questions. Pass `after` to get the next page.

    Questions are listed user by user, and those of one user in the order they were asked. With
    `waiting`, questions that have not been opened come first.
    """

    questions: list[QuestionState]
    after: str | None = None


class DelegationData(Struct, frozen=True, kw_only=True):
    """A request that an approver handed to another one."""

    by: str
    to: str
    at: datetime


class InboxRequest(Struct, frozen=True, kw_only=True):
    """A request for approval that this approver can decide.

    `asked_by` is the verified identity of the person who asked. `is_own` is true if that person may
    be the approver, who then cannot decide the request. `decision` is waiting, approved, declined,
    withdrawn or expired. The people in `approved_by` have approved the request so far, and
    `has_approved` says if this approver has. `can_delegate_to` are the names of the people to whom
    this approver can hand the request.

    The titles and `tool_description` are the words of the server's author; `client_title` is the
    client's own and unverified. `is_destructive` is the tool's annotation destructiveHint.
    """

    id: str
    approver: str
    decision: str
    message: str
    arguments: Json
    tool: str
    asked_by: str | None
    client: str | None
    client_id: str | None
    asked_at: datetime
    expires_at: datetime
    is_own: bool
    approvals_needed: int = 1
    approved_by: tuple[str, ...] = ()
    has_approved: bool = False
    comment: Literal["none", "optional", "required"] = "none"
    comments: tuple[str, ...] = ()
    delegations: list[DelegationData] = []
    can_delegate_to: tuple[str, ...] = ()
    decided_by: str | None = None
    decided_at: datetime | None = None
    reason: str | None = None
    server_title: str | None = None
    tool_title: str | None = None
    tool_description: str | None = None
    is_destructive: bool = False
    client_title: str | None = None


class InboxRequests(Struct, frozen=True, kw_only=True):
    """A page of requests to one approver name, newest first. Pass `after` for older requests."""

    requests: list[InboxRequest]
    after: str | None = None


class InboxAnswer(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """An approval or a refusal, with a comment or a reason for the person who asked."""

    accepts: bool
    reason: Annotated[str, Meta(max_length=500)] | None = None


class InboxDelegation(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The person to whom the approver hands the request, as `can_delegate_to` names them."""

    to: UserName


class UserCode(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The one-time code that the user read on the page, as they typed it."""

    code: Annotated[str, Meta(max_length=64)]


class CodeCheck(Struct, frozen=True, kw_only=True):
    """The message to show to the user, or `null` if the user has nothing more to type."""

    says: str | None


class Completed(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The result of a visit to a URL."""

    content: dict[str, Any] = {}


class Resolution(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """An acceptance with the fields of a form, or a decline."""

    accepts: bool
    content: dict[str, Any] = {}


@dataclass(frozen=True, slots=True, kw_only=True)
class _Asked:
    """The fields of a kind of question, and the function that builds a question from them."""

    needs: frozenset[str]
    takes: frozenset[str] = frozenset()
    timeout: timedelta = DEFAULT_TIMEOUT
    verb: Callable[[Mapping[str, Any], timedelta], Question[Any]]


def _with_message(
    verb: Callable[..., Question[Any]],
) -> Callable[[Mapping[str, Any], timedelta], Question[Any]]:
    def ask(about: Mapping[str, Any], timeout: timedelta) -> Question[Any]:
        rest = {name: value for name, value in about.items() if name != "message"}
        return verb(about["message"], timeout=timeout, **rest)

    return ask


def _payment(about: Mapping[str, Any], timeout: timedelta) -> Question[Any]:
    price = Money(about["amount"], about["currency"])
    rest = {name: about[name] for name in ("provider", "once", "key") if name in about}
    return elicit.payment(price, about["what"], timeout=timeout, **rest)


_ASKED: Final[Mapping[AskedKind, _Asked]] = {
    AskedKind.URL: _Asked(
        needs=frozenset({"message", "url"}),
        takes=frozenset({"wait_for_completion", "elicitation_id"}),
        verb=_with_message(elicit.url),
    ),
    AskedKind.OAUTH: _Asked(
        needs=frozenset({"provider"}),
        takes=frozenset({"scopes", "account", "tenant", "reason", "again"}),
        verb=lambda about, timeout: elicit.oauth(**about, timeout=timeout),
    ),
    AskedKind.API_KEY: _Asked(
        needs=frozenset({"provider"}),
        takes=frozenset({"account", "tenant", "reason"}),
        verb=lambda about, timeout: elicit.api_key(**about, timeout=timeout),
    ),
    AskedKind.PAYMENT: _Asked(
        needs=frozenset({"amount", "currency", "what"}),
        takes=frozenset({"provider", "once"}),
        timeout=elicit.PAYMENT_TIMEOUT,
        verb=_payment,
    ),
    AskedKind.FORM: _Asked(
        needs=frozenset({"message"}),
        takes=frozenset({"schema", "elicitation_id"}),
        verb=_with_message(elicit.form),
    ),
    AskedKind.CONFIRM: _Asked(
        needs=frozenset({"message"}),
        takes=frozenset({"arguments", "approver"}),
        verb=_with_message(elicit.confirm),
    ),
    AskedKind.SECRET: _Asked(
        needs=frozenset({"message"}),
        takes=frozenset({"schema", "name"}),
        verb=_with_message(elicit.secret),
    ),
}
_FIELDS: Final = frozenset(
    name for asked in _ASKED.values() for name in (*asked.needs, *asked.takes)
)
