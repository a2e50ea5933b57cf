"""An elicitation: one question to one person, from its start to what became of the answer.

Everything here is pure: a function takes an elicitation and the time and returns the next one, or
raises NotPossible. Two racing changes are decided by the store's compare-and-set, not here. The
values are msgspec structs: to change, compare and encode a dataclass takes ten times as long.
"""

import json
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from functools import cached_property
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from msgspec import Struct
from msgspec.structs import replace

from flows.elicitation.calling_client import CallingClient
from flows.elicitation.proof import ByModel, Decider, Proof
from flows.elicitation.traits import traits_of
from flows.elicitation.user_code import BrowserBinding
from flows.errors import InvalidQuestion, NotPossible

if TYPE_CHECKING:
    from collections.abc import Sequence

    Json: TypeAlias = "Mapping[str, Json] | Sequence[Json] | str | int | float | bool | None"
else:
    Json: TypeAlias = Any  # a decoder that reads annotations cannot follow a recursive one

LEASE = timedelta(seconds=30)
LEASE_ENDED = datetime.fromtimestamp(0, UTC)
EXCHANGE_AT_MOST = timedelta(seconds=60)
INTERRUPTED = "interrupted"  # an exchange that nobody ended
DOES_NOT_FIT = "the client's answer did not fit"  # why a question ended
NOT_ARRIVED = "the payment did not arrive"  # from one page; another one may still be paid
RECORD_KEPT = timedelta(days=30)
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
    Status.EXCHANGING: frozenset({Status.ACCEPTED, Status.DENIED, Status.FAILED}),
    Status.ACCEPTED: frozenset(),
    Status.DECLINED: frozenset(),
    Status.DENIED: frozenset(),
    Status.CANCELLED: frozenset(),
    Status.EXPIRED: frozenset(),
    Status.FAILED: frozenset(),
    Status.SUPERSEDED: frozenset(),
}

# What a provider's proof may still turn into a yes, only to be kept (see Traits.kept), never to
# undo what a call was told.
LATE: Mapping[Status, frozenset[Status]] = {
    Status.EXPIRED: frozenset({Status.ACCEPTED}),
    Status.CANCELLED: frozenset({Status.ACCEPTED}),
    Status.DECLINED: frozenset({Status.ACCEPTED}),
    Status.DENIED: frozenset({Status.ACCEPTED}),  # back from the checkout, and on again
    Status.SUPERSEDED: frozenset({Status.ACCEPTED}),
}


class Completion(StrEnum):
    """What `complete_elicitation` did: each is a different answer, none is an error."""

    ACCEPTED = "accepted"
    ALREADY_SETTLED = "already_settled"
    LATE = "late"
    UNKNOWN = "unknown"


class Asked(Struct, frozen=True, kw_only=True):
    """What the person is shown, and what the question is recognised by."""

    server: str
    tool: str
    client: str | None
    message: str
    digest: str
    version: str | None = None  # of the tool, if it has one
    url: str | None = None
    origins: tuple[str, ...] = ()
    waits: bool = True
    terms: Json = None  # what is asked for, in the words of its kind
    client_id: str | None = None  # verified; None: `client` is only what it calls itself
    client_apart: str | None = None  # see `CallingClient.apart`

    @property
    def calling_client(self) -> CallingClient | None:
        """Through which it was asked; None where the person asked on a page."""
        if not self.tool:
            return None
        return CallingClient(name=self.client, id=self.client_id, apart=self.client_apart)


# What became of a press that led nowhere: no answer, a no, or settings that are missing here.
Trouble = Literal["silent", "refused", "not set up"]


class Attempt(Struct, frozen=True, kw_only=True):
    """One press of Continue: the one before is void."""

    number: int
    browser: str  # hash of the binding cookie
    started_at: datetime
    state: str | None = None  # hash of what comes back with the browser; None once it did
    kept: Json = None  # what its flow needs again: a verifier, a request as it was sent
    trouble: Trouble | None = None  # why it led nowhere


class Lease(Struct, frozen=True, kw_only=True):
    """Who uses the outcome: one leg of one run, until the lease is out."""

    run: str
    leg: str
    until: datetime

    @property
    def is_ended(self) -> bool:
        """By its leg itself: no doubt of any clock keeps the next one waiting."""
        return self.until == LEASE_ENDED


class Elicitation(Struct, frozen=True, kw_only=True):
    id: str
    owner: str
    kind: str
    asked: Asked
    join: str
    created_at: datetime
    expires_at: datetime
    status: Status = Status.PENDING
    holds_key: bool = True
    waiter: str | None = None  # the leg that waits; a newer one takes over
    run: str | None = None  # of that leg
    attempt: Attempt | None = None
    former: tuple[Attempt, ...] = ()  # where a provider may still come back with an earlier one
    led_nowhere: int = 0  # how many attempts did, which cost nothing
    settled_at: datetime | None = None
    is_late: bool = False
    content: Json = None
    why: str | None = None
    proof: str | None = None  # what an answer was believed for: the name of its class
    settled_by: str | None = None  # over the HTTP API: as the audit names a key, or a person
    decided_by: Decider | None = None  # where somebody else than who asked decided
    take: Lease | None = None
    delivered_at: datetime | None = None
    look_at: datetime | None = None  # when the sweeper looks again, at what nobody used or closed
    is_open_there: bool = False  # the provider holds something open that must end with this
    ask_at: datetime | None = None  # when its provider is asked about it, while it is open there
    progress: str | None = None  # what the provider has said on the way, for the page
    is_by_code: bool = False  # whoever asked gives letters from the page to the chat
    binding: BrowserBinding | None = None  # which browser was shown letters, and whether they came
    is_for_page: bool = False  # the client's answer to this question was not valid before
    is_for_user: bool = False  # one of the application's own users, whom its `who` knows
    user: str | None = None  # that user's id, for the program that asked
    is_of_task: bool = False  # whose client looks in: its answer stays while it might have taken
    is_shared: bool = False  # calls with other arguments, or of other clients, wait for it too
    answered_by: str | None = None  # the payment that answers it, made for another question
    trace: str | None = None  # the call that asked, where traces are collected: W3C's traceparent
    version: int = 0

    def __repr__(self) -> str:
        return f"Elicitation({self.id!r}, {self.status.value!r})"

    @property
    def row_key(self) -> str | None:
        """What no other record of its owner holds: it stands for this question."""
        return self.join if self.holds_key else None

    @property
    def kept_until(self) -> datetime:
        """Until when an outcome that nobody used is there for the same question."""
        if self.status is not Status.ACCEPTED:
            return self.expires_at
        traits = traits_of(self.kind)
        if traits.kept_from_answer is not None and self.settled_at is not None:
            kept_until = self.settled_at + traits.kept_from_answer
            is_for_task = self.is_of_task and not traits.is_secret
            return max(kept_until, self.expires_at) if is_for_task else kept_until
        return self.expires_at + traits.kept

    @property
    def joined_until(self) -> datetime:
        """Until when a later call of the same question may have an outcome that nobody used."""
        if self.status is not Status.ACCEPTED or self.settled_at is None:
            return self.kept_until
        joined = traits_of(self.kind).joined_from_answer
        return self.kept_until if joined is None else min(self.kept_until, self.settled_at + joined)

    @property
    def is_by_model(self) -> bool:
        return self.why == ByModel.why

    @property
    def due_at(self) -> datetime | None:
        """When the sweeper has to look at it; None = never again."""
        if self.status is Status.EXCHANGING and self.attempt is not None:
            return self.attempt.started_at + EXCHANGE_AT_MOST
        if not self.status.is_final:
            return self.expires_at if self.ask_at is None else min(self.ask_at, self.expires_at)
        is_own_answer = self.status is Status.ACCEPTED and self.answered_by is None
        if self.is_open_there and (self.former or not is_own_answer):
            # Also where one attempt was answered and another is open.
            return self.look_at or self.settled_at
        if self.delivered_at is None and (self.holds_key or self.content is not None):
            # An end leaves it where it was: to move it would cost more than all the rest.
            return self.look_at or min(self.expires_at, self.kept_until)
        return None

    @property
    def erase_at(self) -> datetime:
        return max(self.settled_at or self.expires_at, self.expires_at) + RECORD_KEPT


def checked_content(content: Json) -> Json:
    """What a completion brought, as it comes back from the store: through JSON.

    Raises InvalidQuestion if it is no JSON, or more than 32 KiB of it.
    """
    try:
        text = json.dumps(content, allow_nan=False, ensure_ascii=False)
        size = len(text.encode())
    except (TypeError, ValueError, RecursionError) as err:
        raise InvalidQuestion(f"The content is no JSON: {type(err).__name__}.") from err
    if size > CONTENT_BYTES_AT_MOST:
        raise InvalidQuestion(f"The content has {size} bytes, {CONTENT_BYTES_AT_MOST} at most.")
    kept: Json = json.loads(text)
    return kept


def join(elicitation: Elicitation, *, leg: str, run: str, is_of_task: bool = False) -> Elicitation:
    """The leg waits from now on; the one that waited before is told so."""
    _require_open(elicitation, wanted="waited for")
    is_of_task = is_of_task or elicitation.is_of_task
    return replace(elicitation, waiter=leg, run=run, is_of_task=is_of_task)


def settle(
    elicitation: Elicitation,
    status: Status,
    *,
    now: datetime,
    content: Json = None,
    why: str | None = None,
    proof: Proof | None = None,
    by: str | None = None,
    take: Lease | None = None,
) -> Elicitation:
    """End it; `by` is who did. `take` hands the outcome to the waiting leg in the same change.

    Raises NotPossible when it has ended already.
    """
    if not status.is_final:
        raise NotPossible(status=elicitation.status, wanted=status)
    require(elicitation, status)
    return replace(
        elicitation,
        status=status,
        settled_at=now,
        content=content if status is Status.ACCEPTED else None,
        why=why or (elicitation.progress if status is Status.EXPIRED else None),
        proof=_name_of(proof),
        settled_by=by if proof is None else proof.by,
        decided_by=None if proof is None else proof.decider,
        take=take,
        progress=elicitation.progress if status is Status.EXPIRED else None,
    )


def accept(
    elicitation: Elicitation,
    proof: Proof,
    *,
    now: datetime,
    content: Json,
    take: Lease | None = None,
) -> Elicitation:
    """A yes, with its answer; where its time was over, it expires instead.

    Raises NotPossible when it has ended already, ValueError for what its kind does not go by.
    """
    if not traits_of(elicitation.kind).goes_by(proof):
        raise ValueError(f"{type(proof).__name__} completes no question of kind {elicitation.kind}")
    # An exchange that began in time may end a little later.
    is_over = now >= elicitation.expires_at and elicitation.status is not Status.EXCHANGING
    if is_over and not elicitation.status.is_final:
        return settle(elicitation, Status.EXPIRED, now=now, take=take)
    return settle(
        elicitation,
        Status.ACCEPTED,
        now=now,
        content=content,
        why=proof.why,
        proof=proof,
        take=take,
    )


def settle_late(
    elicitation: Elicitation,
    *,
    now: datetime,
    content: Json,
    holds_key: bool,
    proof: Proof | None = None,
) -> Elicitation:
    """Turn a no into a kept yes, on a provider's proof.

    Raises NotPossible where LATE has no such row. Of the failures, only that of a delayed payment
    may be followed by another one: which of two tabs ends first is not for us to say.
    """
    is_unpaid = elicitation.status is Status.FAILED and elicitation.why == NOT_ARRIVED
    if not is_unpaid and Status.ACCEPTED not in LATE.get(elicitation.status, frozenset()):
        raise NotPossible(status=elicitation.status, wanted=Status.ACCEPTED)
    can_be_kept = is_kept(elicitation, now)
    return replace(
        elicitation,
        status=Status.ACCEPTED,
        settled_at=now,
        is_late=True,
        content=content if can_be_kept else None,
        why=None,
        proof=_name_of(proof),
        settled_by=None if proof is None else proof.by,
        take=None,
        delivered_at=None,
        holds_key=holds_key and can_be_kept,
    )


def is_kept(elicitation: Elicitation, now: datetime) -> bool:
    """Whether a yes that comes now is still kept for the same question."""
    return now < elicitation.expires_at + traits_of(elicitation.kind).kept


def is_free(elicitation: Elicitation, *, leg: str, now: datetime) -> bool:
    """Whether this leg may take the outcome: nobody has it, it is ours, or the lease is out."""
    take = elicitation.take
    if elicitation.delivered_at is not None:
        return False
    return take is None or take.leg == leg or now >= take.until


def take(elicitation: Elicitation, *, run: str, leg: str, now: datetime) -> Elicitation:
    """The leg uses the outcome. Raises NotPossible if another one does."""
    if not elicitation.status.is_final or not is_free(elicitation, leg=leg, now=now):
        raise NotPossible(status=elicitation.status, wanted="taken")
    return replace(elicitation, take=Lease(run=run, leg=leg, until=now + LEASE))


def renew(elicitation: Elicitation, *, leg: str, now: datetime) -> Elicitation:
    """Lengthen the lease while the body runs."""
    return replace(elicitation, take=replace(_taken(elicitation, leg=leg), until=now + LEASE))


def shorten(elicitation: Elicitation, *, now: datetime) -> Elicitation:
    """A lease longer than any is of before the clock was set back: whoever lives renews it."""
    lease = elicitation.take
    if lease is None or lease.until <= now + LEASE:
        return elicitation
    return replace(elicitation, take=replace(lease, until=now + LEASE))


def release(elicitation: Elicitation, *, leg: str) -> Elicitation:
    """The leg ended without a result; the next one may take the outcome at once."""
    _taken(elicitation, leg=leg)
    return replace(elicitation, take=None)


def end_lease(elicitation: Elicitation, *, leg: str) -> Elicitation:
    """The leg used it and the run goes on: only its lease is over."""
    return replace(elicitation, take=replace(_taken(elicitation, leg=leg), until=LEASE_ENDED))


def deliver(elicitation: Elicitation, *, run: str, now: datetime) -> Elicitation:
    """The run's result that used the outcome went out: it is used up, and its content is gone."""
    if elicitation.take is None or elicitation.take.run != run:
        raise NotPossible(status=elicitation.status, wanted="delivered")
    # The next elicitation of the same question reads why this one failed.
    is_read = elicitation.why == DOES_NOT_FIT
    return replace(elicitation, delivered_at=now, content=None, holds_key=is_read)


def lead_to(elicitation: Elicitation, url: str) -> Elicitation:
    """With the address, unless there is one or nobody is to go there any more."""
    if elicitation.asked.url is not None or elicitation.status.is_final:
        return elicitation
    return replace(elicitation, asked=replace(elicitation.asked, url=url))


def let_go(elicitation: Elicitation) -> Elicitation:
    """Free the question for a new elicitation and wipe what was kept for it."""
    if not elicitation.status.is_final:
        raise NotPossible(status=elicitation.status, wanted="let go")
    return replace(elicitation, holds_key=False, content=None)


def fall_due(elicitation: Elicitation, *, now: datetime) -> Elicitation:
    """What time alone does to it: expire, fail an exchange that was cut off, wipe, or nothing.

    What a provider holds open is not ended by time alone: `close` comes first.
    """
    if elicitation.due_at is None or now < elicitation.due_at:
        return elicitation
    if elicitation.status is Status.EXCHANGING:
        return settle(elicitation, Status.FAILED, now=now, why=INTERRUPTED)
    if not elicitation.status.is_final:
        return settle(elicitation, Status.EXPIRED, now=now)
    lease = elicitation.take.until if elicitation.take is not None else now
    until = max(elicitation.kept_until, lease)
    return replace(elicitation, look_at=until) if now < until else let_go(elicitation)


def require(elicitation: Elicitation, wanted: Status) -> None:
    """Raises NotPossible where TRANSITIONS has no such row."""
    if wanted not in TRANSITIONS[elicitation.status]:
        raise NotPossible(status=elicitation.status, wanted=wanted)


def _require_open(elicitation: Elicitation, *, wanted: str) -> None:
    if elicitation.status.is_final:
        raise NotPossible(status=elicitation.status, wanted=wanted)


def _taken(elicitation: Elicitation, *, leg: str) -> Lease:
    if elicitation.take is None or elicitation.take.leg != leg:
        raise NotPossible(status=elicitation.status, wanted="used")
    return elicitation.take


def _name_of(proof: Proof | None) -> str | None:
    return None if proof is None else type(proof).__name__
