"""A run: one tool call of a caller, with all requests that belong to it.

The requests of a run are the first call, its retries, and repetitions of the same call. The run
records which elicitation was asked at which step, and stores its result for a while.
"""

from collections.abc import Collection
from datetime import datetime, timedelta

from msgspec import Struct
from msgspec.structs import replace

from flows.elicitation.states import RECORD_RETENTION

RESULT_RETENTION = timedelta(minutes=10)
# If a result used a payment or `once`, the same call gets the result again within this time.
REPEATED_FOR = timedelta(minutes=2)


class Step(Struct, frozen=True, kw_only=True):
    """The place of a question in a run: its digest and the number of equal questions before it."""

    kind: str
    digest: str
    nth: int

    def __str__(self) -> str:
        return f"{self.kind}:{self.digest}:{self.nth}"


class AskedStep(Struct, frozen=True, kw_only=True):
    """An elicitation at a step of the run.

    `is_ordered` is True for a question of the tool's own task: a resumed run has to repeat that
    question before it asks a new one. Siblings in a gather have no order.
    """

    place: Step
    elicitation_id: str
    is_ordered: bool
    says: str
    is_used: bool = False  # a request used the outcome; the run then continued in another request
    # The rounds before this question, for a client that sends answers by replaying the call. A
    # round is the questions that one result sends together, written as their indexes in
    # `Run.asked`, such as "0" or "1+2".
    after: tuple[str, ...] = ()
    is_unused: bool = False  # the request with the stored result did not use this answer


class Called(Struct, frozen=True, kw_only=True):
    """The call that the client made, stored so that it can be repeated by a question's id."""

    server: str
    tool: str
    client: str
    arguments: str | None  # JSON; None: too long to store
    version: str | None = None  # the tool's version, if the tool has one

    def __repr__(self) -> str:
        return f"Called({self.tool!r})"


class Run(Struct, frozen=True, kw_only=True):
    id: str
    owner: str
    key: str
    created_at: datetime
    open_until: datetime  # until then, the same call joins this run
    called: Called | None = None
    asked: tuple[AskedStep, ...] = ()
    responses: str | None = None  # the client's answers to the tool's own requests, as JSON
    result: str | None = None
    finished_at: datetime | None = None
    is_delivered: bool = False
    # None if the result used no payment and no `once`. Otherwise True, or False with `again=True`.
    is_repeatable: bool | None = None
    repeated_until: datetime | None = None  # until then, the same call gets this result again
    is_cancelled: bool = False  # the client cancelled the task
    sent: str | None = None  # "result" or "error", once it was sent to the client
    endings: tuple[str, ...] = ()  # ids of the callbacks that run when the call has ended
    version: int = 0

    @property
    def status(self) -> str:
        if self.finished_at is None:
            return "open"
        return "delivered" if self.is_delivered else "finished"

    @property
    def holds_key(self) -> bool:
        """True if the same call, made again, finds this run. The run may have finished by then."""
        return not self.is_delivered or self.repeated_until is not None

    @property
    def row_key(self) -> str | None:
        return self.key if self.holds_key else None

    @property
    def expires_at(self) -> datetime:
        if self.finished_at is None:
            return self.open_until
        expires_at = self.finished_at + RESULT_RETENTION
        return max(expires_at, self.repeated_until or expires_at)

    @property
    def due_at(self) -> datetime | None:
        return self.expires_at if self.finished_at is None or self.result is not None else None

    @property
    def erase_at(self) -> datetime:
        return self.expires_at + RECORD_RETENTION

    def __repr__(self) -> str:
        return f"Run({self.id!r}, {self.status!r})"

    def answers(self, now: datetime, *, is_named: bool) -> bool:
        """Return True if this call gets the stored result, which the client may not have received.

        `is_named`: the client's token names this run.
        """
        if self.result is None or now >= self.expires_at:
            return False
        is_repeated = self.repeated_until is not None and now < self.repeated_until
        return is_named or not self.is_delivered or is_repeated

    def at(self, step: Step) -> AskedStep | None:
        return next((asking for asking in self.asked if asking.place == step), None)

    def alike(self, step: Step) -> list[Step]:
        """Return all steps at which the same question was asked."""
        steps = (asking.place for asking in self.asked)
        return [one for one in steps if (one.kind, one.digest) == (step.kind, step.digest)]


def not_repeated(run: Run, step: Step, *, seen: Collection[Step]) -> AskedStep | None:
    """Return the first earlier question that a resumed run skipped before this new question.

    Return None if the run skipped no question. Only questions of the tool's own task are checked,
    because siblings in a gather may come in any order.
    """
    left_out = (each for each in run.asked if each.is_ordered and each.place not in seen)
    return next(left_out, None) if run.at(step) is None else None


def ask(run: Run, asking: AskedStep, *, open_until: datetime) -> Run:
    """Add a question to the run, or replace the elicitation at a known step."""
    known = run.at(asking.place)
    if run.finished_at is not None:
        asking = replace(asking, is_unused=True)
    asked = (
        (*run.asked, asking)
        if known is None
        else tuple(asking if a is known else a for a in run.asked)
    )
    return replace(run, asked=asked, open_until=max(run.open_until, open_until))


def keep_open(run: Run, *, until: datetime) -> Run:
    return replace(run, open_until=max(run.open_until, until))


def use(run: Run, ids: Collection[str]) -> Run:
    """Mark these outcomes as used by a request, before the run continues in another request."""
    asked = tuple(
        replace(asking, is_used=True) if asking.elicitation_id in ids else asking
        for asking in run.asked
    )
    return replace(run, asked=asked)


def note_use(run: Run, *, again: bool) -> Run:
    """Record that a payment or `once` was used. With `again`, the same call starts a new run."""
    return replace(run, is_repeatable=not again and run.is_repeatable is not False)


def store_responses(run: Run, responses: str) -> Run:
    """Store the client's answers to the tool's own requests: the client sends them only once."""
    return replace(run, responses=responses)


def put(run: Run, step: Step, elicitation_id: str) -> Run:
    """Set the elicitation at a step of the run."""
    asked = tuple(
        replace(asking, elicitation_id=elicitation_id) if asking.place == step else asking
        for asking in run.asked
    )
    return replace(run, asked=asked)


def finish(run: Run, *, result: str, now: datetime, unused: Collection[str] = ()) -> Run:
    """Finish the run and store its result until delivery is confirmed.

    If several requests of a run finish, the first result stays: it may have been sent already.
    `unused` are the ids of elicitations whose acceptance the request with this result did not use.
    """
    if run.finished_at is not None:
        return run
    asked = tuple(
        replace(asking, is_unused=True) if asking.elicitation_id in unused else asking
        for asking in run.asked
    )
    return replace(run, asked=asked, result=result, finished_at=now)


def deliver(run: Run, *, now: datetime, is_error: bool = False) -> Run:
    """Mark the result as sent. Requests that name this run can still read the result.

    The same call without the run's name starts a new run. If the result used a payment or `once`,
    the same call instead gets this result again during `REPEATED_FOR`: the sent result may be lost,
    and nothing may be bought or done twice. Errors are not repeated. If the result was too long to
    store, the run ends.
    """
    sent = run.sent or ("error" if is_error else "result")
    if run.is_delivered:
        return run
    if run.result is None:
        return replace(wipe(run), sent=sent, finished_at=run.finished_at or now)
    until = now + REPEATED_FOR if run.is_repeatable and not is_error else None
    return replace(run, is_delivered=True, sent=sent, repeated_until=until)


def cancel(run: Run, *, now: datetime) -> Run:
    """Cancel the run of a task.

    A finished run does not change.

    Repeating the same call starts a new run, which joins the questions that are still open.
    """
    if run.finished_at is not None:
        return run
    called = None if run.called is None else replace(run.called, arguments=None)
    ended = replace(wipe(run), called=called, finished_at=now)
    return replace(ended, is_cancelled=True)


def free_key(run: Run) -> Run:
    """Release the run's key for a new run.

    A request that names this run can still read a delivered result. An undelivered result is
    erased.
    """
    return replace(run, repeated_until=None) if run.is_delivered else wipe(run)


def wipe(run: Run) -> Run:
    return replace(
        run,
        called=None,
        result=None,
        is_delivered=True,
        repeated_until=None,
        finished_at=run.finished_at or run.open_until,
    )
