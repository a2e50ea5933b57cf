"""The types of stored rows, in addition to those of `flows`. Each row belongs to one owner.

Risks: a field changes, and rows in existing stores can no longer be read. So new fields have a
default, and no field changes its name or its meaning.
"""

from collections.abc import Mapping
from datetime import datetime
from typing import TypeAlias, TypeVar

from msgspec import Struct, field
from msgspec.structs import replace

from flows.elicitation.ending import EndingCallback
from flows.elicitation.run import Run
from flows.elicitation.states import Elicitation, Json
from flows.elicitation.tool_call import SeenClient
from flows.oauth.connection import Connection
from flows.payments.gateway import Notice
from flows.payments.receipt import Payment
from flows.payments.session import UnresolvedPayment
from webapp.records.ids import InboxItem, LastingRow, Notification, QueuedRow, StoredRow


class DoneOnce(LastingRow, frozen=True, kw_only=True):
    """The result of a `once` block, as JSON text, which no page shows.

    A result that is too large for a row continues in the rows `pieces`. `fault` is the reason why
    the result cannot be returned, although the work was done. While the status is `doing`, the
    claim expires at `claimed_until`; another process can then do the work.
    """

    result: str
    erase_at: datetime
    pieces: tuple[str, ...] = ()  # ids of the rows with the rest of the result
    fault: str | None = None
    claimed_until: datetime | None = None
    claimed_by: str | None = None  # the name of an API program's process; None for this server
    status: str = "done"


class CallNumber(LastingRow, frozen=True, kw_only=True):
    """The number of a call among the identical calls of a day, from 1, for idempotency keys.

    Each run or receipt with a number has a row. One more row for each call and day stores the last
    number.
    """

    call: str  # the key of the run
    day: str
    number: int
    erase_at: datetime
    status: str = "numbered"


class Alias(LastingRow, frozen=True, kw_only=True):
    """An author's own id for an elicitation."""

    elicitation_id: str
    erase_at: datetime
    status: str = "alias"


class StoredSecret(LastingRow, frozen=True, kw_only=True):
    """A secret that a person typed, stored by its name until it is deleted."""

    content: Json
    status: str = "kept"
    erase_at: datetime | None = None


class Check(LastingRow, frozen=True, kw_only=True):
    """A typed answer to validate. The process with the validator replies with `faults`."""

    elicitation_id: str
    content: Json
    erase_at: datetime
    faults: tuple[tuple[str, str], ...] | None = None  # path and message
    status: str = "check"

    def answered(self, faults: tuple[tuple[str, str], ...]) -> "Check":
        """Return the row with the faults and without the content."""
        return replace(self, content=None, faults=faults)


class Approval(LastingRow, frozen=True, kw_only=True):
    """A person's permission for a tool to run without asking again, valid until `until`.

    `covers` is the digest of the arguments; None means any arguments. `about` describes the
    approval to the person. The approval is valid for calls by `client`, or by all clients of the
    owner if `is_for_all`. A row with neither `client` nor `is_for_all` is from an older version,
    and is valid for no client.
    """

    server: str
    tool: str
    tool_title: str | None = None
    covers: str | None
    about: str
    given_at: datetime
    until: datetime
    erase_at: datetime
    client: SeenClient | None = None
    is_for_all: bool = False
    revoked_by: str | None = None  # the audit name of a key or person of the HTTP API
    status: str = "given"  # or "revoked"


class StoredWebhook(StoredRow, frozen=True, kw_only=True):
    """A verified webhook.

    The status is `applied`, `waiting` (to be reconciled), `repeated` (a known change), `refused`
    (for the reason `why`), `unknown` (not about this server's payments) or `ignored` (an event type
    without consequences). `transition` identifies the payment change. A second webhook of this
    owner with the same `transition` is not applied. `said` is the parsed event if the body is not
    stored completely.
    """

    seller: str
    elicitation_id: str
    session: str
    body: str
    received_at: datetime
    erase_at: datetime
    event: str = ""
    type: str = ""
    transition: str | None = None
    is_whole: bool = True  # False: only the beginning of the body is stored
    status: str = "applied"
    why: str | None = None
    replayed_at: datetime | None = None
    said: Notice | None = None
    again_at: datetime | None = None  # when the webhook is checked again, if it is still waiting

    @property
    def due_at(self) -> datetime | None:
        return (self.again_at or self.received_at) if self.status == "waiting" else None

    @property
    def row_key(self) -> str | None:
        return self.transition if self.status == "applied" else None


class EarlyEvent(LastingRow, frozen=True, kw_only=True):
    """The ids of webhooks about a payment that arrived before the payment was recorded."""

    webhook_ids: tuple[str, ...] = field(name="hooks")
    erase_at: datetime
    status: str = "kept"


class Reconciliation(QueuedRow, frozen=True, kw_only=True):
    """The progress of comparing a provider's sessions since a given time with this store.

    The status is `waiting` (continues at `next_at`) or `done`. `after` is the cursor in the
    provider's list. After the end of the list, `receipt` is the last unused payment that was
    polled.
    """

    seller: str
    since: datetime
    begun_at: datetime
    erase_at: datetime
    after: str | None = None
    is_listed: bool = False  # the end of the list was reached
    receipt: str | None = None
    seen: int = 0  # sessions with an elicitation id
    found: int = 0  # sessions that were unknown and belong to a stored question
    listed: int = 0  # sessions that the operator must check
    tries: int = 0  # consecutive failures


class TurnedAway(LastingRow, frozen=True, kw_only=True):
    """The number of rejected deliveries for a day and reason.

    Reasons: the signature was invalid, the payment is unknown, or the payment differs from what was
    requested.
    """

    day: str
    seller: str
    reason: str
    erase_at: datetime
    count: int = 0
    last_at: datetime | None = None
    status: str = "counted"


class StoredCertificate(LastingRow, frozen=True, kw_only=True):
    """A fetched certificate of a webhook sender. It is verified again at each use."""

    pem: bytes
    erase_at: datetime
    status: str = "kept"


class KnownServer(LastingRow, frozen=True, kw_only=True):
    """The name of a served server. `place` is its origin: a module or file, and an attribute."""

    name: str
    place: str
    since: datetime
    status: str = "known"
    erase_at: datetime | None = None


class ApiKey(LastingRow, frozen=True, kw_only=True):
    """An API key. Its id is a keyed hash of its text, which is not stored.

    `owners` are the users for whom the key is valid; empty means all users of the key's program.
    """

    program: str
    scopes: tuple[str, ...]
    owners: tuple[str, ...]
    made_at: datetime
    expires_at: datetime
    erase_at: datetime
    used_at: datetime | None = None
    status: str = "made"  # or "revoked"


class OutgoingEvent(QueuedRow, frozen=True, kw_only=True):
    """An outgoing event for one address, with `facts` about a question, payment or account.

    The ids of one record's events for one address sort in the order of the events
    (`webapp.events.outbox`). `webhook_id` is the id that the receiver sees. While a process sends
    the event, `next_at` is the end of that process's claim.
    """

    address: str  # the address's name in the settings
    webhook_id: str
    type: str
    facts: Mapping[str, str | bool]
    happened_at: datetime
    erase_at: datetime
    tries: int = 0
    why: str | None = None  # the reason why the last try failed
    sent_at: datetime | None = None

    @property
    def row_key(self) -> str:
        return self.webhook_id


class EventAddressState(LastingRow, frozen=True, kw_only=True):
    """The state of an address for outgoing events. Status `ended`: the address replied 410 Gone.

    `not_kept` is the number of events that were not stored because too many were waiting.
    """

    ended_at: datetime | None = None
    not_kept: int = 0
    not_kept_at: datetime | None = None
    erase_at: datetime | None = None

    @property
    def status(self) -> str:
        return "used" if self.ended_at is None else "ended"


class RefusedRegistration(LastingRow, frozen=True, kw_only=True):
    """A provider's refusal of this server's client id or secret, or of its redirect address.

    `registration` is a hash of the provider, its address, and the client id and secret. `fault` is
    `client`, `refresh` (the grant type is not allowed) or `redirect`. Before `until`, the server
    does not redirect the affected people to the provider. `status` is `accepted` once the provider
    has accepted the registration again. `status` is `suspected` while the refusal may be about one
    person's account alone; `by` is a hash of that person's owner tag.
    """

    owner: str  # the service, or the one person that the refusal applies to
    provider: str
    registration: str
    fault: str
    last_at: datetime
    until: datetime
    erase_at: datetime
    error: str | None = None
    http_status: int = 400
    count: int = 1
    status: str = "refused"
    by: str | None = None

    @property
    def is_refused(self) -> bool:
        return self.status == "refused"


class ClientReaction(Struct, frozen=True, kw_only=True):
    """A client's latest reaction to questions of one mode. It is remembered until `until`."""

    what: str
    at: datetime
    until: datetime
    unanswered: tuple[str, ...] = ()  # ids of questions left unanswered since the last answer


class ClientRecord(LastingRow, frozen=True, kw_only=True):
    """A person's client, and how it reacted to forms, confirmations and links.

    A confirmation is a form without fields, which some clients show but cannot send. `release` is
    the client's own version.
    """

    name: str
    release: str
    erase_at: datetime
    forms: ClientReaction | None = None
    links: ClientReaction | None = None
    confirms: ClientReaction | None = None
    status: str = "kept"


class Open(Struct, frozen=True, kw_only=True):
    """A question that was open when the Standing of its owner was written."""

    id: str
    session: str
    expires_at: datetime


class Standing(LastingRow, frozen=True, kw_only=True):
    """An owner's open questions, written with each new question. The status is their number."""

    open: tuple[Open, ...] = ()
    erase_at: datetime | None = None

    @property
    def status(self) -> str:
        return str(len(self.open))


Value: TypeAlias = (
    Elicitation
    | Run
    | DoneOnce
    | CallNumber
    | EndingCallback
    | Alias
    | Connection
    | Payment
    | UnresolvedPayment
    | StoredSecret
    | Approval
    | InboxItem
    | StoredWebhook
    | EarlyEvent
    | Reconciliation
    | TurnedAway
    | StoredCertificate
    | KnownServer
    | Standing
    | Check
    | ClientRecord
    | ApiKey
    | OutgoingEvent
    | EventAddressState
    | Notification
    | RefusedRegistration
)
ValueT = TypeVar("ValueT", bound=Value)

KINDS: Mapping[type[Struct], str] = {
    Elicitation: "elicitation",
    Run: "run",
    DoneOnce: "once",
    CallNumber: "call number",
    EndingCallback: "ending",
    Alias: "alias",
    Connection: "account",
    Payment: "payment",
    UnresolvedPayment: "loose end",
    StoredSecret: "secret",
    Approval: "approval",
    InboxItem: "inbox",
    StoredWebhook: "hook",
    EarlyEvent: "early news",
    Reconciliation: "reconciliation",
    TurnedAway: "unverified",
    StoredCertificate: "certificate",
    KnownServer: "server",
    Standing: "standing",
    Check: "check",
    ClientRecord: "client",
    ApiKey: "api key",
    OutgoingEvent: "event",
    EventAddressState: "event address",
    Notification: "notification",
    RefusedRegistration: "registration",
}
