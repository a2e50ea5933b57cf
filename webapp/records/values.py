"""What is kept, beside the values of `flows`: a row each, all of one owner.

What could go wrong: a field that is renamed, and a store of before that opens no more. So a field
that comes has a default, and none changes its meaning.
"""

from collections.abc import Mapping
from datetime import datetime
from typing import TypeAlias, TypeVar

from msgspec import Struct
from msgspec.structs import replace

from flows.elicitation.calling_client import SeenClient
from flows.elicitation.run import Run
from flows.elicitation.states import Elicitation, Json
from flows.oauth.connection import Connection
from flows.payments.gateway import Notice
from flows.payments.receipt import Payment
from flows.payments.unresolved import UnresolvedPayment


class DoneOnce(Struct, frozen=True, kw_only=True):
    """What `once` did, as JSON text; a result is never shown.

    One that does not fit into a row goes on in `pieces` others. `fault` says why it cannot be
    handed on: the work is done all the same. While somebody is `doing` it, `claimed_until` is when
    that is not believed any more.
    """

    id: str
    owner: str
    result: str
    erase_at: datetime
    pieces: tuple[str, ...] = ()  # their ids
    fault: str | None = None
    claimed_until: datetime | None = None
    claimed_by: str | None = None  # by which process of a program; None: by this server
    version: int = 0
    status: str = "done"
    due_at: None = None

    def __repr__(self) -> str:
        return f"Done({self.id!r})"


class CallNumber(Struct, frozen=True, kw_only=True):
    """Which one of the identical calls of a day it is, from 1; idempotency keys are made from it.

    There is a row for the run or receipt that has the number, and one for the last number given.
    """

    id: str
    owner: str
    call: str  # the key of the run
    day: str
    number: int
    erase_at: datetime
    version: int = 0
    status: str = "numbered"
    due_at: None = None


class Alias(Struct, frozen=True, kw_only=True):
    """An author's own id for an elicitation."""

    id: str
    owner: str
    elicitation_id: str
    erase_at: datetime
    version: int = 0
    status: str = "alias"
    due_at: None = None


class KeptSecret(Struct, frozen=True, kw_only=True):
    """What a person typed for a name, until it is forgotten."""

    id: str
    owner: str
    content: Json
    version: int = 0
    status: str = "kept"
    due_at: None = None
    erase_at: datetime | None = None

    def __repr__(self) -> str:
        return f"KeptSecret({self.id!r})"


class Check(Struct, frozen=True, kw_only=True):
    """What was typed on a page, for the process that can validate it; `faults` is its answer."""

    id: str
    owner: str
    elicitation_id: str
    content: Json
    erase_at: datetime
    faults: tuple[tuple[str, str], ...] | None = None  # path and message
    version: int = 0
    status: str = "check"
    due_at: None = None

    def __repr__(self) -> str:
        return f"Check({self.id!r})"

    def answered(self, faults: tuple[tuple[str, str], ...]) -> "Check":
        """Without the content."""
        return replace(self, content=None, faults=faults)


class Approval(Struct, frozen=True, kw_only=True):
    """What a person allowed a tool to do without being asked again, until then.

    `covers` is the digest of the arguments; None: whatever they are. `about` tells a person.
    `client` is whose calls it opens for, unless it `is_for_all` clients of its owner; one that has
    neither was kept before clients were told apart, and opens for none.
    """

    id: str
    owner: str
    server: str
    tool: str
    covers: str | None
    about: str
    given_at: datetime
    until: datetime
    erase_at: datetime
    client: SeenClient | None = None
    is_for_all: bool = False
    revoked_by: str | None = None  # over the HTTP API: as the audit names a key, or a person
    version: int = 0
    status: str = "given"  # or revoked
    due_at: None = None

    def __repr__(self) -> str:
        return f"Approval({self.id!r}, {self.status!r})"


class InboxItem(Struct, frozen=True, kw_only=True):
    """That a question waits for an approver: no word of it, only where it is.

    Its owner is the tag of the approver's name, and its id puts the newest first. The question says
    itself whether it still waits; `decided` is a hint that it need not be looked at for that.
    """

    id: str
    owner: str
    elicitation_id: str
    expires_at: datetime
    erase_at: datetime
    version: int = 0
    status: str = "waiting"  # or decided

    @property
    def due_at(self) -> datetime | None:
        return self.expires_at if self.status == "waiting" else None


class StoredWebhook(Struct, frozen=True, kw_only=True):
    """A verified webhook, as it came.

    It is `applied`, `waiting` to be reconciled, `repeated` (what it says was known), `refused`
    for `why`, `unknown` (about nothing of ours) or `ignored` (a kind that nothing follows from).
    `transition` is what no second one of this owner is applied for. `said` is what the whole body
    said, where only the beginning of it is kept.
    """

    id: str
    owner: str
    seller: str
    elicitation_id: str
    session: str
    body: str
    received_at: datetime
    erase_at: datetime
    event: str = ""
    type: str = ""
    transition: str | None = None
    is_whole: bool = True  # else the end of the body is missing
    status: str = "applied"
    why: str | None = None
    replayed_at: datetime | None = None
    said: Notice | None = None
    again_at: datetime | None = None  # when it is looked into again, if it waits on
    version: int = 0

    @property
    def due_at(self) -> datetime | None:
        return (self.again_at or self.received_at) if self.status == "waiting" else None

    @property
    def row_key(self) -> str | None:
        return self.transition if self.status == "applied" else None

    def __repr__(self) -> str:
        return f"Hook({self.id!r}, {self.status!r})"


class EarlyEvent(Struct, frozen=True, kw_only=True):
    """The webhooks, by their ids, that told of a payment before it was in the ledger."""

    id: str
    owner: str
    hooks: tuple[str, ...]
    erase_at: datetime
    version: int = 0
    status: str = "kept"
    due_at: None = None


class Reconciliation(Struct, frozen=True, kw_only=True):
    """How far one provider's sessions are compared with this store, since a time.

    It is `waiting` to go on at `next_at`, or `done`. `after` is where the provider's list goes on;
    once that is at its end, `receipt` is the payment up to which unused ones are asked about.
    """

    id: str
    owner: str
    seller: str
    since: datetime
    begun_at: datetime
    erase_at: datetime
    next_at: datetime
    after: str | None = None
    is_listed: bool = False  # the list is at its end
    receipt: str | None = None
    seen: int = 0  # sessions that name a question of ours
    found: int = 0  # that the store did not know, and that belong to a question it has
    listed: int = 0  # that somebody has to look at
    tries: int = 0  # in a row that failed
    version: int = 0
    status: str = "waiting"

    @property
    def due_at(self) -> datetime | None:
        return self.next_at if self.status == "waiting" else None


class TurnedAway(Struct, frozen=True, kw_only=True):
    """How many deliveries of one day were turned away, for one reason.

    They could not be verified, or hinted at nothing of ours, or at what is not as it was asked.
    """

    id: str
    owner: str
    day: str
    seller: str
    reason: str
    erase_at: datetime
    count: int = 0
    last_at: datetime | None = None
    version: int = 0
    status: str = "counted"
    due_at: None = None


class KeptCertificate(Struct, frozen=True, kw_only=True):
    """What a sender of webhooks signs with, as it was fetched; nobody is believed for it."""

    id: str
    owner: str
    pem: bytes
    erase_at: datetime
    version: int = 0
    status: str = "kept"
    due_at: None = None


class KnownServer(Struct, frozen=True, kw_only=True):
    """A served server: what it calls itself, and the one place that it is served from."""

    id: str
    owner: str
    name: str
    place: str
    since: datetime
    version: int = 0
    status: str = "known"
    due_at: None = None
    erase_at: datetime | None = None


class ApiKey(Struct, frozen=True, kw_only=True):
    """What is kept of an API key: its id is a keyed hash of its text, which is nowhere.

    `owners` are the users that it is for; none: all of its program's.
    """

    id: str
    owner: str
    program: str
    scopes: tuple[str, ...]
    owners: tuple[str, ...]
    made_at: datetime
    expires_at: datetime
    erase_at: datetime
    used_at: datetime | None = None
    version: int = 0
    status: str = "made"  # or revoked
    due_at: None = None


class OutgoingEvent(Struct, frozen=True, kw_only=True):
    """What one address is told of one change: `facts` of its question, payment or account.

    `id` has the place in which it is told (`webapp.events.outbox`), `webhook_id` is what the
    receiver knows it by. While somebody sends it, `next_at` is when that is not believed any more.
    """

    id: str
    owner: str
    address: str  # its name in the settings
    webhook_id: str
    type: str
    facts: Mapping[str, str | bool]
    happened_at: datetime
    erase_at: datetime
    next_at: datetime
    tries: int = 0
    why: str | None = None  # the last try was none
    sent_at: datetime | None = None
    status: str = "waiting"  # or sent, or given up
    version: int = 0

    @property
    def due_at(self) -> datetime | None:
        return self.next_at if self.status == "waiting" else None

    @property
    def row_key(self) -> str:
        return self.webhook_id


class EventAddressState(Struct, frozen=True, kw_only=True):
    """What is known of an address that events are sent to; `ended`: it has said that it is gone.

    `not_kept` is how many events were not even kept for it, as too many waited.
    """

    id: str
    owner: str
    ended_at: datetime | None = None
    not_kept: int = 0
    not_kept_at: datetime | None = None
    version: int = 0
    due_at: None = None
    erase_at: datetime | None = None

    @property
    def status(self) -> str:
        return "used" if self.ended_at is None else "ended"


class RefusedRegistration(Struct, frozen=True, kw_only=True):
    """A provider's refusal of this server's client id or secret, or of its redirect address.

    `registration` stands for the provider, its place, and our client id and secret there. `fault`
    is `client`, `refresh` (we may not use that grant type) or `redirect`. Until `until` nobody is
    sent to the provider. `status` is `accepted` once the provider has accepted us again, and
    `suspected` if the provider may have meant the account of `by` alone (a hash of its owner).
    """

    id: str
    owner: str  # the service, or the one person for whom it stands
    provider: str
    registration: str
    fault: str
    last_at: datetime
    until: datetime
    erase_at: datetime
    error: str | None = None
    http_status: int = 400
    count: int = 1
    version: int = 0
    status: str = "refused"
    by: str | None = None
    due_at: None = None

    @property
    def is_refused(self) -> bool:
        return self.status == "refused"


class ClientDeed(Struct, frozen=True, kw_only=True):
    """What a client did last with what it was sent in one mode, and how long that counts."""

    what: str
    at: datetime
    until: datetime
    unanswered: tuple[str, ...] = ()  # the questions that stayed unanswered since it let one answer


class ClientRecord(Struct, frozen=True, kw_only=True):
    """A person's client, and what it did with forms, confirmations and links.

    A confirmation is a form without fields, which some clients draw and cannot send. `release` is
    the client's own version.
    """

    id: str
    owner: str
    name: str
    release: str
    erase_at: datetime
    forms: ClientDeed | None = None
    links: ClientDeed | None = None
    confirms: ClientDeed | None = None
    version: int = 0
    status: str = "kept"
    due_at: None = None


class Open(Struct, frozen=True, kw_only=True):
    """A question that was open when its owner's row was written."""

    id: str
    session: str
    expires_at: datetime


class Standing(Struct, frozen=True, kw_only=True):
    """What an owner is asked: one row, written with each new question. Its status is a count."""

    id: str
    owner: str
    open: tuple[Open, ...] = ()
    version: int = 0
    due_at: None = None
    erase_at: datetime | None = None

    @property
    def status(self) -> str:
        return str(len(self.open))


Value: TypeAlias = (
    Elicitation
    | Run
    | DoneOnce
    | CallNumber
    | Alias
    | Connection
    | Payment
    | UnresolvedPayment
    | KeptSecret
    | Approval
    | InboxItem
    | StoredWebhook
    | EarlyEvent
    | Reconciliation
    | TurnedAway
    | KeptCertificate
    | KnownServer
    | Standing
    | Check
    | ClientRecord
    | ApiKey
    | OutgoingEvent
    | EventAddressState
    | RefusedRegistration
)
ValueT = TypeVar("ValueT", bound=Value)

KINDS: Mapping[type[Struct], str] = {
    Elicitation: "elicitation",
    Run: "run",
    DoneOnce: "once",
    CallNumber: "call number",
    Alias: "alias",
    Connection: "account",
    Payment: "payment",
    UnresolvedPayment: "loose end",
    KeptSecret: "secret",
    Approval: "approval",
    InboxItem: "inbox",
    StoredWebhook: "hook",
    EarlyEvent: "early news",
    Reconciliation: "reconciliation",
    TurnedAway: "unverified",
    KeptCertificate: "certificate",
    KnownServer: "server",
    Standing: "standing",
    Check: "check",
    ClientRecord: "client",
    ApiKey: "api key",
    OutgoingEvent: "event",
    EventAddressState: "event address",
    RefusedRegistration: "registration",
}
