"""What travels: a question as a program writes it, and what it is told of one.

What could go wrong: a token or somebody else's data in an answer. So what is told is written field
by field: of an account its name, and never its key; the link for the program that asked, and not
for one that approves.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Annotated, Any, Final, TypeAlias

from litestar.params import QueryParameter
from msgspec import Meta, Struct

from flows import elicit
from flows.elicitation.states import Json
from flows.errors import InvalidQuestion
from flows.payments.money import Money
from flows.question import DEFAULT_TIMEOUT, TIMEOUT_AT_MOST, Question

USER_CHARACTERS: Final = 256
NAME_CHARACTERS: Final = 255
UserName: TypeAlias = Annotated[str, Meta(min_length=1, max_length=USER_CHARACTERS)]
RunName: TypeAlias = Annotated[str, Meta(min_length=1, max_length=NAME_CHARACTERS)]
Whose: TypeAlias = Annotated[
    str | None, QueryParameter(min_length=1, max_length=USER_CHARACTERS)
]  # a user of the program's
_AMOUNT_CHARACTERS: Final = 32
_REASON_CHARACTERS: Final = 500
_SECONDS_AT_MOST: Final = int(TIMEOUT_AT_MOST.total_seconds())


class AskedKind(StrEnum):
    """What can be asked without code of the program's here."""

    URL = "url"
    OAUTH = "oauth"
    PAYMENT = "payment"
    FORM = "form"
    CONFIRM = "confirm"
    SECRET = "secret"  # noqa: S105 - the name of a kind


class NewQuestion(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A question to one of the program's users; which fields it has depends on its kind.

    Without `user` it is for the person whose access token the header User-Access-Token brings.

    url: message, url. oauth: provider. payment: amount (as text, "9.00"), currency, what.
    form: message. confirm: message. secret: message. The others may be left out.

    `run` names a piece of work of yours that asks several and is ended by `/api/runs/end`; `nth` is
    how many equal questions it asked before this one. `key` makes it the same question in all of
    your runs, and `elicitation_id` is an id of your own.
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
    amount: str | None = None
    currency: str | None = None
    what: str | None = None
    once: bool | None = None
    schema: dict[str, Any] | None = None
    arguments: dict[str, Any] | None = None
    name: str | None = None
    key: Annotated[str, Meta(min_length=1, max_length=NAME_CHARACTERS)] | None = None
    elicitation_id: str | None = None
    run: RunName | None = None
    nth: Annotated[int, Meta(ge=0, lt=1000)] = 0

    def question(self) -> Question[Any]:
        """As a tool would ask it. Raises InvalidQuestion."""
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
        timeout = asked.timeout if seconds is None else timedelta(seconds=seconds)
        return asked.verb(about, timeout)


class ToldAccount(Struct, frozen=True, kw_only=True):
    """An account that the user connected, without its token.

    `status` is `connected`, or `lapsed`: then the user is to connect it again. `api` is where the
    provider's API begins; null where it is declared here no more.
    """

    id: str
    provider: str
    label: str
    scopes: tuple[str, ...]
    api: str | None
    status: str
    connected_at: datetime


class AccountList(Struct, frozen=True, kw_only=True):
    """What the user has connected and lets this program use."""

    accounts: list[ToldAccount]


class AccessToken(Struct, frozen=True, kw_only=True):
    """The token of an account, which works now; `api` is where, and `api_hosts` are its hosts.

    Without `expires_at` the provider has not said how long it works.
    """

    access_token: str
    expires_at: datetime | None
    scopes: tuple[str, ...]
    api: str
    api_hosts: tuple[str, ...]


class ToldDisconnection(Struct, frozen=True, kw_only=True):
    """What became of an account.

    Not `ended`: others of your server use it too, so this program alone has lost it. `revoked` is
    what the provider said; `null` where it takes nothing back. `manage` is where the user can
    remove it by hand.
    """

    ended: bool
    revoked: bool | None = None
    manage: str | None = None


class ToldPayment(Struct, frozen=True, kw_only=True):
    """A payment; amounts are in minor units of ISO 4217, and `refunded` is of it in all.

    `status` is `open`, `spent` once the answer is taken, `refunding`, `refunded`, or `disputed`
    where a bank claims all of it. `is_refund_pending`: the provider has accepted a refund, which
    can still fail; `owed` is what a refund that failed owes. `dispute` is how far a bank's claim
    is: `inquiry`, `open`, `appealed`, `lost`, `lost again` or `gone`, and `disputed` how much.
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
    """Some of the payments, the oldest first; `after` goes on with more."""

    payments: list[ToldPayment]
    after: str | None = None


class WantedRefund(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A refund of all, or of so much in all (`amount`, as text, "3.00").

    `also_spent`: also of a payment whose answer was taken. `reason` is kept, and the provider is
    told it. `run` is the run that refunds what it has in hand itself.
    """

    run: RunName | None = None
    amount: Annotated[str, Meta(max_length=_AMOUNT_CHARACTERS)] | None = None
    reason: Annotated[str, Meta(max_length=_REASON_CHARACTERS)] | None = None
    also_spent: bool = False


class WebhookState(StrEnum):
    """What became of a delivery."""

    APPLIED = "applied"
    WAITING = "waiting"  # about what is not known here yet: the provider is asked
    REPEATED = "repeated"
    REFUSED = "refused"  # its `why` says which fact was another than asked
    UNKNOWN = "unknown"
    IGNORED = "ignored"  # of a kind that nothing follows from


class ToldWebhook(Struct, frozen=True, kw_only=True):
    """A delivery of a payment provider's; its `body` is told by its id alone."""

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
    """Some of the deliveries; `after` goes on with more."""

    webhooks: list[ToldWebhook]
    after: str | None = None


class QuestionState(Struct, frozen=True, kw_only=True):
    """How a question stands.

    `url` is the link for the person, while there is something to do behind it. With `needs_code`
    its page shows letters: ask your user for them, and send them on. `content` is what was
    answered, until it is taken or wiped; an account and a payment have fields of their own.
    `superseded_by` is the same question of before, which was paid late: ask again, and get that.
    `user` is the id of the user who is asked; a person who signs in at an issuer has none.
    """

    id: str | None
    kind: str
    status: str
    message: str
    asked_by: str | None = None
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
    account: ToldAccount | None = None
    payment: ToldPayment | None = None
    settled_at: datetime | None = None
    taken_at: datetime | None = None
    version: int = 0


class QuestionPage(Struct, frozen=True, kw_only=True):
    """Some of the questions; `after` goes on with more.

    They are listed user by user, and those of one user in the order in which they were asked. With
    `waiting`, the questions that nobody has opened come first.
    """

    questions: list[QuestionState]
    after: str | None = None


class ToldApproval(Struct, frozen=True, kw_only=True):
    """What a tool may do without asking again; without `arguments`, whatever those are.

    `client` is whose calls it is for; `null`: every client of the person's.
    """

    id: str
    tool: str
    arguments: str | None
    client: str | None
    given_at: datetime
    expires_at: datetime


class ApprovalPage(Struct, frozen=True, kw_only=True):
    """All that are in force, the latest first."""

    approvals: list[ToldApproval]


class Revoked(Struct, frozen=True, kw_only=True):
    """How many are over now that were in force."""

    revoked: int


class InboxRequest(Struct, frozen=True, kw_only=True):
    """What somebody asks, and this approver may decide.

    `asked_by` is what was verified of whoever asked, `is_own` that this may be the approver, who
    then cannot decide it. `decision` is waiting, approved, declined, withdrawn or expired.
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
    decided_by: str | None = None
    decided_at: datetime | None = None
    reason: str | None = None


class InboxRequests(Struct, frozen=True, kw_only=True):
    """Of one name, the latest first; `after` goes on with what is older."""

    requests: list[InboxRequest]
    after: str | None = None


class InboxAnswer(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A yes, or a no with a reason for whoever asked."""

    accepts: bool
    reason: Annotated[str, Meta(max_length=500)] | None = None


class UserCode(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The letters that the user read on the page, as they typed them."""

    code: Annotated[str, Meta(max_length=64)]


class CodeTold(Struct, frozen=True, kw_only=True):
    """What to tell the user; `null` if nothing more is to be typed."""

    says: str | None


class Completed(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What the visit came to."""

    content: dict[str, Any] = {}


class Resolution(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A yes, with what a form asks for; or a no."""

    accepts: bool
    content: dict[str, Any] = {}


@dataclass(frozen=True, slots=True, kw_only=True)
class _Asked:
    """How one kind is asked: its fields, and its verb with them."""

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


def _account(about: Mapping[str, Any], timeout: timedelta) -> Question[Any]:
    return elicit.oauth(**about, timeout=timeout)


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
        takes=frozenset({"scopes", "account", "reason"}),
        verb=_account,
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
        takes=frozenset({"arguments"}),
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
