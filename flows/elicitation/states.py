"""The states of an elicitation (one question to one person) and the transitions between them.

Everything in this module is pure: a function receives an elicitation and the time, and returns the
changed elicitation or raises NotPossible. The store's compare-and-set decides between two
concurrent changes, not this module. The values are msgspec structs because dataclasses take ten
times as long to change, compare and encode.
"""

import json
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from functools import cached_property
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, cast

from msgspec import Struct, field
from msgspec.structs import replace

from flows.elicitation.tool_call import CallingClient, DescribedTool
from flows.elicitation.traits import ByModel, Decider, Proof, traits_of
from flows.elicitation.user_code import BrowserBinding
from flows.errors import InvalidQuestion, NotPossible
from flows.shown import json_text

if TYPE_CHECKING:
    from collections.abc import Sequence

    Json: TypeAlias = "Mapping[str, Json] | Sequence[Json] | str | int | float | bool | None"
else:
    Json: TypeAlias = Any  # a decoder that reads annotations cannot resolve a recursive alias

LEASE = timedelta(seconds=30)
LEASE_ENDED = datetime.fromtimestamp(0, UTC)
EXCHANGE_AT_MOST = timedelta(seconds=60)
INTERRUPTED = "interrupted"  # the exchange started and was never finished
DOES_NOT_FIT = "the client's answer was invalid"  # reason why a question failed
# a payment page's failure; the person may still pay on another page of the same question
NOT_ARRIVED = "the payment did not arrive"
MONEY_RETURNED = "the payment was refunded or charged back"
RECORD_RETENTION = timedelta(days=30)
CONTENT_BYTES_AT_MOST = 32 * 1024


class Status(StrEnum):
    PENDING = "pending"
    OPENED = "opened"
    EXCHANGING = "exchanging"
    ACCEPTED = "accepted"
    DECLINED = "declined"
    DENIED = "denied"
    CANCELLED = "cancelled"
    EXPIRED = "expired"
    FAILED = "failed"
    SUPERSEDED = "superseded"

    @cached_property
    def is_final(self) -> bool:
        return not TRANSITIONS[self]


_ENDINGS = frozenset(
    {Status.DECLINED, Status.CANCELLED, Status.EXPIRED, Status.FAILED, Status.SUPERSEDED}
)

TRANSITIONS: Mapping[Status, frozenset[Status]] = {
    Status.PENDING: _ENDINGS | {Status.OPENED, Status.ACCEPTED},
    Status.OPENED: _ENDINGS | {Status.OPENED, Status.EXCHANGING, Status.ACCEPTED, Status.DENIED},
    # OPENED: the provider is temporarily unable to exchange the code.
    Status.EXCHANGING: frozenset({Status.OPENED, Status.ACCEPTED, Status.DENIED, Status.FAILED}),
    Status.ACCEPTED: frozenset(),
    Status.DECLINED: frozenset(),
    Status.DENIED: frozenset(),
    Status.CANCELLED: frozenset(),
    Status.EXPIRED: frozenset(),
    Status.FAILED: frozenset(),
    Status.SUPERSEDED: frozenset(),
}

# Transitions that a provider's late proof may cause. The accepted answer is only stored for the
# next call with the same question (see Traits.stored_for). A call that has already received an
# outcome never receives a second one.
LATE: Mapping[Status, frozenset[Status]] = {
    Status.EXPIRED: frozenset({Status.ACCEPTED}),
    Status.CANCELLED: frozenset({Status.ACCEPTED}),
    Status.DECLINED: frozenset({Status.ACCEPTED}),
    # the person left the checkout (denied), then went back to the checkout and paid
    Status.DENIED: frozenset({Status.ACCEPTED}),
    Status.SUPERSEDED: frozenset({Status.ACCEPTED}),
}


class Completion(StrEnum):
    """The result of `complete_elicitation`. Each value is a normal result, none is an error."""

    ACCEPTED = "accepted"
    ALREADY_SETTLED = "already_settled"
    LATE = "late"
    UNKNOWN = "unknown"


class Asked(Struct, frozen=True, kw_only=True):
    """The text that the person sees, and the facts that identify the question."""

    server: str
    tool: str
    client: str | None
    message: str
    digest: str
    version: str | None = None  # the tool's version, if the tool has one
    url: str | None = None
    origins: tuple[str, ...] = ()
    waits: bool = True
    terms: Json = None  # the details of the question; the structure depends on `kind`
    # verified id of the client; None: only the unverified name `client` is known
    client_id: str | None = None
    client_apart: str | None = None  # see `CallingClient.apart`
    # for pages only; the client's title is unverified
    server_title: str | None = None
    client_title: str | None = None
    described: DescribedTool | None = None  # the tool, or the tool behind a gate

    @property
    def calling_client(self) -> CallingClient | None:
        """The client that asked. None if no tool asked, for example for a question from a page."""
        if not self.tool:
            return None
        name, title = self.client, self.client_title
        return CallingClient(name=name, id=self.client_id, apart=self.client_apart, title=title)

    @property
    def tool_title(self) -> str | None:
        return None if self.described is None else self.described.title


# Why an attempt failed: the provider did not answer, it refused, or a setting is missing.
Trouble = Literal["silent", "refused", "not set up"]


class Attempt(Struct, frozen=True, kw_only=True):
    """A press of Continue. A new attempt makes the previous attempt invalid."""

    number: int
    browser: str  # hash of the binding cookie
    started_at: datetime
    # hash of the `state` parameter that the browser brings back; None after its return
    state: str | None = None
    # data that the flow needs later, such as a PKCE verifier or the stored request
    kept: Json = None
    trouble: Trouble | None = None  # why the attempt failed


class Lease(Struct, frozen=True, kw_only=True):
    """A temporary claim on the outcome: one request of one run uses the outcome until `until`."""

    run: str
    leg: str
    until: datetime

    @property
    def is_ended(self) -> bool:
        """True if the request ended the lease itself. No clocks are compared for this."""
        return self.until == LEASE_ENDED


class Elicitation(Struct, frozen=True, kw_only=True):
    id: str
    owner: str
    kind: str
    request: Asked = field(name="asked")
    dedupe_key: str = field(name="join")
    created_at: datetime
    expires_at: datetime
    status: Status = Status.PENDING
    holds_key: bool = True
    waiter: str | None = None  # the request that waits for the answer; a newer request replaces it
    run: str | None = None  # the run of that request
    attempt: Attempt | None = None
    # attempts that the provider may still answer
    earlier_attempts: tuple[Attempt, ...] = field(default=(), name="former")
    led_nowhere: int = 0  # how many attempts failed without counting towards the limit
    settled_at: datetime | None = None
    is_late: bool = False
    content: Json = None
    why: str | None = None
    proof: str | None = None  # class name of the proof with which the answer was accepted
    # who answered over the HTTP API: the audit name of an API key, or a person
    settled_by: str | None = None
    decided_by: Decider | None = None  # who decided, if that was not the person who asked
    take: Lease | None = None
    delivered_at: datetime | None = None
    # when the sweeper checks an unused or still open elicitation again
    next_check_at: datetime | None = field(default=None, name="look_at")
    is_open_there: bool = False  # the provider has an open page or device code that must be closed
    ask_at: datetime | None = None  # when to poll the provider while its page is open
    progress: str | None = None  # the provider's status so far, shown on the page
    is_by_code: bool = False  # the page shows a user code that the person types into the chat
    # which browser saw the user code, and whether the code was entered
    binding: BrowserBinding | None = None
    # the client's answer to an earlier elicitation of this question was invalid, so our page asks
    is_for_page: bool = False
    # for one of the application's own users, identified by the application's `who`
    is_for_user: bool = False
    user: str | None = None  # that user's id, for the program that asked
    # asked by a task: the client polls, so the answer stays until the task can read it
    is_of_task: bool = False
    # calls with other arguments or from other clients also wait for the answer
    is_shared: bool = False
    # id of the payment that answers this question; it was made for another question
    answered_by: str | None = None
    trace: str | None = None  # W3C traceparent of the call that asked, if tracing is on
    version: int = 0

    def __repr__(self) -> str:
        return f"Elicitation({self.id!r}, {self.status.value!r})"

    @property
    def row_key(self) -> str | None:
        """The unique key of this question within the owner's records. None if released."""
        return self.dedupe_key if self.holds_key else None

    @property
    def stored_until(self) -> datetime:
        """The time until which an unused outcome is stored for the same question."""
        if self.status is not Status.ACCEPTED:
            return self.expires_at
        traits = traits_of(self.kind)
        if traits.stored_for_after_answer is not None and self.settled_at is not None:
            stored_until = self.settled_at + traits.stored_for_after_answer
            is_for_task = self.is_of_task and not traits.is_secret
            return max(stored_until, self.expires_at) if is_for_task else stored_until
        return self.expires_at + traits.stored_for

    @property
    def joined_until(self) -> datetime:
        """The time until which a later call with the same question can use the stored outcome."""
        if self.status is not Status.ACCEPTED or self.settled_at is None:
            return self.stored_until
        joined = traits_of(self.kind).joined_from_answer
        return (
            self.stored_until
            if joined is None
            else min(self.stored_until, self.settled_at + joined)
        )

    @property
    def is_by_model(self) -> bool:
        return self.why == ByModel.why

    @property
    def due_at(self) -> datetime | None:
        """The time at which the sweeper has to process the elicitation. None means never again."""
        if self.status is Status.EXCHANGING and self.attempt is not None:
            return self.attempt.started_at + EXCHANGE_AT_MOST
        if not self.status.is_final:
            return self.expires_at if self.ask_at is None else min(self.ask_at, self.expires_at)
        is_own_answer = self.status is Status.ACCEPTED and self.answered_by is None
        if self.is_open_there and (self.earlier_attempts or not is_own_answer):
            # This also applies if one attempt was answered while another is still open.
            return self.next_check_at or self.settled_at
        if self.delivered_at is None and (self.holds_key or self.content is not None):
            # This time does not change when the elicitation ends: a changed time would need
            # another index write, which costs more than the rest of the change.
            return self.next_check_at or min(self.expires_at, self.stored_until)
        return None

    @property
    def erase_at(self) -> datetime:
        return max(self.settled_at or self.expires_at, self.expires_at) + RECORD_RETENTION


def checked_content(content: Json) -> Json:
    """Return the content of a completion as the store will return it, after a JSON round trip.

    Raises InvalidQuestion if the content is not JSON or is larger than 32 KiB.
    """
    text = json_text(content, "content")
    if (size := len(text.encode())) > CONTENT_BYTES_AT_MOST:
        raise InvalidQuestion(f"The content has {size} bytes (at most {CONTENT_BYTES_AT_MOST}).")
    return cast("Json", json.loads(text))


def register_waiter(
    elicitation: Elicitation, *, request_id: str, run: str, is_of_task: bool = False
) -> Elicitation:
    """Register the request that waits for the answer, in place of the previous one."""
    _require_open(elicitation, wanted="waited for")
    is_of_task = is_of_task or elicitation.is_of_task
    return replace(elicitation, waiter=request_id, run=run, is_of_task=is_of_task)


def settle(
    elicitation: Elicitation,
    status: Status,
    *,
    now: datetime,
    content: Json = None,
    why: str | None = None,
    proof: Proof | None = None,
    by: str | None = None,
    lease: Lease | None = None,
) -> Elicitation:
    """End the elicitation with `status`.

    `by` names who ended it. With `lease`, the same change also assigns the outcome to the waiting
    request. Raises NotPossible if the elicitation has already ended.
    """
    if not status.is_final:
        raise NotPossible(status=elicitation.status, wanted=status)
    require(elicitation, status)
    request = elicitation.request
    if status is Status.ACCEPTED and proof is not None:
        request = proof.counted(request)
    return replace(
        elicitation,
        request=request,
        status=status,
        settled_at=now,
        content=content if status is Status.ACCEPTED else None,
        why=why or (elicitation.progress if status is Status.EXPIRED else None),
        proof=None if proof is None else type(proof).__name__,
        settled_by=by if proof is None else proof.by,
        decided_by=None if proof is None else proof.decider,
        take=lease,
        progress=elicitation.progress if status is Status.EXPIRED else None,
    )


def accept(
    elicitation: Elicitation,
    proof: Proof,
    *,
    now: datetime,
    content: Json,
    lease: Lease | None = None,
) -> Elicitation:
    """Accept the answer, or expire the elicitation if its time has run out.

    Raises:
        NotPossible: The elicitation has already ended.
        ValueError: This kind of question cannot be answered with this class of proof.
    """
    if not traits_of(elicitation.kind).accepts_proof(proof):
        raise ValueError(
            f"{type(proof).__name__} cannot complete a question of kind {elicitation.kind}"
        )
    # An exchange that started before `expires_at` may finish a little later.
    has_expired = now >= elicitation.expires_at and elicitation.status is not Status.EXCHANGING
    if has_expired and not elicitation.status.is_final:
        return settle(elicitation, Status.EXPIRED, now=now, lease=lease)
    return settle(
        elicitation,
        Status.ACCEPTED,
        now=now,
        content=content,
        why=proof.why,
        proof=proof,
        lease=lease,
    )


def settle_late(
    elicitation: Elicitation,
    *,
    now: datetime,
    content: Json,
    holds_key: bool,
    proof: Proof | None = None,
) -> Elicitation:
    """Change a negative outcome to accepted, because the provider proves that the person answered.

    Raises NotPossible if LATE has no such transition. A failed elicitation can only be accepted if
    it failed because a payment did not arrive or was refunded: another tab may still pay.
    """
    is_failed = elicitation.status is Status.FAILED
    is_unpaid = is_failed and elicitation.why in (NOT_ARRIVED, MONEY_RETURNED)
    if not is_unpaid and Status.ACCEPTED not in LATE.get(elicitation.status, frozenset()):
        raise NotPossible(status=elicitation.status, wanted=Status.ACCEPTED)
    can_be_stored = can_still_be_stored(elicitation, now)
    return replace(
        elicitation,
        status=Status.ACCEPTED,
        settled_at=now,
        is_late=True,
        content=content if can_be_stored else None,
        why=None,
        proof=None if proof is None else type(proof).__name__,
        settled_by=None if proof is None else proof.by,
        take=None,
        delivered_at=None,
        holds_key=holds_key and can_be_stored,
    )


def can_still_be_stored(elicitation: Elicitation, now: datetime) -> bool:
    """Return True if an answer that arrives now can still be stored for the same question."""
    return now < elicitation.expires_at + traits_of(elicitation.kind).stored_for


def is_free(elicitation: Elicitation, *, request_id: str, now: datetime) -> bool:
    """Return True if this request may claim the outcome.

    The outcome is free if no request claims it, if this request claims it, or if the lease has
    expired. A delivered outcome is never free.
    """
    lease = elicitation.take
    if elicitation.delivered_at is not None:
        return False
    return lease is None or lease.leg == request_id or now >= lease.until


def claim(elicitation: Elicitation, *, run: str, request_id: str, now: datetime) -> Elicitation:
    """Claim the outcome for a request. Raises NotPossible if another request claims it."""
    if not elicitation.status.is_final or not is_free(elicitation, request_id=request_id, now=now):
        raise NotPossible(status=elicitation.status, wanted="taken")
    return replace(elicitation, take=Lease(run=run, leg=request_id, until=now + LEASE))


def renew(elicitation: Elicitation, *, request_id: str, now: datetime) -> Elicitation:
    """Extend the lease while the tool body runs."""
    lease = _lease_of(elicitation, request_id=request_id)
    return replace(elicitation, take=replace(lease, until=now + LEASE))


def shorten(elicitation: Elicitation, *, now: datetime) -> Elicitation:
    """Shorten a lease that ends later than a new lease would.

    Such a lease was made before the clock was set back. A request that still runs renews it.
    """
    lease = elicitation.take
    if lease is None or lease.until <= now + LEASE:
        return elicitation
    return replace(elicitation, take=replace(lease, until=now + LEASE))


def release(elicitation: Elicitation, *, request_id: str) -> Elicitation:
    """Release the claim of a request that ended without a result, for the next request."""
    _lease_of(elicitation, request_id=request_id)
    return replace(elicitation, take=None)


def end_lease(elicitation: Elicitation, *, request_id: str) -> Elicitation:
    """End the lease of a request that used the outcome; the run goes on in another request."""
    lease = _lease_of(elicitation, request_id=request_id)
    return replace(elicitation, take=replace(lease, until=LEASE_ENDED))


def deliver(elicitation: Elicitation, *, run: str, now: datetime) -> Elicitation:
    """Mark the outcome as used and erase its content: the run's result was sent."""
    if elicitation.take is None or elicitation.take.run != run:
        raise NotPossible(status=elicitation.status, wanted="delivered")
    # Keep the key if the answer was invalid: the question's next elicitation needs that reason.
    is_read = elicitation.why == DOES_NOT_FIT
    return replace(elicitation, delivered_at=now, content=None, holds_key=is_read)


def set_url(elicitation: Elicitation, url: str) -> Elicitation:
    """Set the question's URL, unless it has a URL already or has ended."""
    if elicitation.request.url is not None or elicitation.status.is_final:
        return elicitation
    return replace(elicitation, request=replace(elicitation.request, url=url))


def release_key(elicitation: Elicitation) -> Elicitation:
    """Release the question's key for a new elicitation, and erase the content."""
    if not elicitation.status.is_final:
        raise NotPossible(status=elicitation.status, wanted="released")
    return replace(elicitation, holds_key=False, content=None)


def fall_due(elicitation: Elicitation, *, now: datetime) -> Elicitation:
    """Apply the changes that are due: expire, fail an interrupted exchange, or erase the content.

    A page that is open at a provider does not end by time alone: it must be closed first.
    """
    if elicitation.due_at is None or now < elicitation.due_at:
        return elicitation
    if elicitation.status is Status.EXCHANGING:
        return settle(elicitation, Status.FAILED, now=now, why=INTERRUPTED)
    if not elicitation.status.is_final:
        return settle(elicitation, Status.EXPIRED, now=now)
    lease = elicitation.take.until if elicitation.take is not None else now
    until = max(elicitation.stored_until, lease)
    return replace(elicitation, next_check_at=until) if now < until else release_key(elicitation)


def require(elicitation: Elicitation, wanted: Status) -> None:
    """Raise NotPossible if TRANSITIONS does not allow the change to `wanted`."""
    if wanted not in TRANSITIONS[elicitation.status]:
        raise NotPossible(status=elicitation.status, wanted=wanted)


def _require_open(elicitation: Elicitation, *, wanted: str) -> None:
    if elicitation.status.is_final:
        raise NotPossible(status=elicitation.status, wanted=wanted)


def _lease_of(elicitation: Elicitation, *, request_id: str) -> Lease:
    if elicitation.take is None or elicitation.take.leg != request_id:
        raise NotPossible(status=elicitation.status, wanted="used")
    return elicitation.take
