"""A run: one wish of a caller, which is one tool call with all its legs.

A leg is one request that carried the run on: the first call, a retry, the same call made again.
The run remembers which elicitation stands at which place, and for a while what came out of it.
"""

from collections.abc import Collection
from datetime import datetime, timedelta

from msgspec import Struct
from msgspec.structs import replace

from flows.elicitation.states import RECORD_KEPT
from flows.errors import QuestionChanged

RESULT_KEPT = timedelta(minutes=10)
# After a result that used a payment or `once` went out: the same call is its repetition so long.
REPEATED_FOR = timedelta(minutes=2)


class Step(Struct, frozen=True, kw_only=True):
    """Where in a run a question stands: its digest and how many equal ones came before it."""

    kind: str
    digest: str
    nth: int

    def __str__(self) -> str:
        return f"{self.kind}:{self.digest}:{self.nth}"


class AskedStep(Struct, frozen=True, kw_only=True):
    """An elicitation at a place. Order is checked only for what the tool's own task asked."""

    place: Step
    elicitation_id: str
    is_ordered: bool
    says: str
    is_used: bool = False  # a leg used the outcome, and the run went on to another leg
    # The rounds in which the client was asked before this one in the same call, if its engine
    # replays the call: each has the indexes of its questions in the run, such as "0" or "1+2".
    after: tuple[str, ...] = ()
    is_unused: bool = False  # by the leg whose result is kept: it had a no there, or nothing


class Called(Struct, frozen=True, kw_only=True):
    """What the client called, so that it can be called again by the id of a question."""

    server: str
    tool: str
    client: str
    arguments: str | None  # JSON; None: too long to be kept
    version: str | None = None  # of the tool, if it has one

    def __repr__(self) -> str:
        return f"Called({self.tool!r})"


class Run(Struct, frozen=True, kw_only=True):
    id: str
    owner: str
    key: str
    created_at: datetime
    open_until: datetime  # the same call joins the run until then
    called: Called | None = None
    asked: tuple[AskedStep, ...] = ()
    responses: str | None = None  # what the client answered to the tool's own requests, as JSON
    result: str | None = None
    finished_at: datetime | None = None
    is_delivered: bool = False
    # Whether its result used a payment or `once`; False: with `again=True`. None: neither.
    is_repeatable: bool | None = None
    repeated_until: datetime | None = None  # by the same call, since its result went out
    is_cancelled: bool = False  # the client no longer wants it as a task
    version: int = 0

    @property
    def status(self) -> str:
        if self.finished_at is None:
            return "open"
        return "delivered" if self.is_delivered else "finished"

    @property
    def holds_key(self) -> bool:
        """Whether the same call made again finds this wish, which may be over by then."""
        return not self.is_delivered or self.repeated_until is not None

    @property
    def row_key(self) -> str | None:
        return self.key if self.holds_key else None

    @property
    def kept_until(self) -> datetime:
        if self.finished_at is None:
            return self.open_until
        kept_until = self.finished_at + RESULT_KEPT
        return max(kept_until, self.repeated_until or kept_until)

    @property
    def due_at(self) -> datetime | None:
        return self.kept_until if self.finished_at is None or self.result is not None else None

    @property
    def erase_at(self) -> datetime:
        return self.kept_until + RECORD_KEPT

    def __repr__(self) -> str:
        return f"Run({self.id!r}, {self.status!r})"

    def answers(self, now: datetime, *, is_named: bool) -> bool:
        """Whether its result is the call's: one that is lost, or one that may have been lost.

        `is_named`: the client says by its token that it goes on with this very run.
        """
        if self.result is None or now >= self.kept_until:
            return False
        is_repeated = self.repeated_until is not None and now < self.repeated_until
        return is_named or not self.is_delivered or is_repeated

    def at(self, place: Step) -> AskedStep | None:
        return next((asking for asking in self.asked if asking.place == place), None)

    def alike(self, place: Step) -> list[Step]:
        """Where the same was asked."""
        places = (asking.place for asking in self.asked)
        return [one for one in places if (one.kind, one.digest) == (place.kind, place.digest)]


def check_order(run: Run, place: Step, *, seen: Collection[Step], says: str) -> None:
    """A leg that goes on with the run asks something new: what was asked must have come before.

    Raises QuestionChanged. Order is only a check, and only for what the tool's own task asks:
    siblings of a gather may come in any order.
    """
    if run.at(place) is not None:
        return
    for asking in run.asked:
        if asking.is_ordered and asking.place not in seen:
            raise QuestionChanged(expected=asking.says, asked=says)


def ask(run: Run, asking: AskedStep, *, open_until: datetime) -> Run:
    """The run asks something new, or asks again at a place it knows."""
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
    """A leg used these outcomes and went on to another leg by the tool's own means."""
    asked = tuple(
        replace(asking, is_used=True) if asking.elicitation_id in ids else asking
        for asking in run.asked
    )
    return replace(run, asked=asked)


def note_use(run: Run, *, again: bool) -> Run:
    """A payment or `once` was used; `again`: the same call made again is another wish."""
    return replace(run, is_repeatable=not again and run.is_repeatable is not False)


def keep_responses(run: Run, responses: str) -> Run:
    """The client sends its answers to the tool's own requests once; later legs need them too."""
    return replace(run, responses=responses)


def put(run: Run, place: Step, elicitation_id: str) -> Run:
    """This elicitation stands at a place of this run from now on."""
    asked = tuple(
        replace(asking, elicitation_id=elicitation_id) if asking.place == place else asking
        for asking in run.asked
    )
    return replace(run, asked=asked)


def finish(run: Run, *, result: str, now: datetime, unused: Collection[str] = ()) -> Run:
    """The body came to its end; what it returned is kept until it is known to have arrived.

    Of several legs of one run the first result is kept: it may have been sent already. `unused` are
    the elicitations of which the leg that it is of had no yes.
    """
    if run.finished_at is not None:
        return run
    asked = tuple(
        replace(asking, is_unused=True) if asking.elicitation_id in unused else asking
        for asking in run.asked
    )
    return replace(run, asked=asked, result=result, finished_at=now)


def deliver(run: Run, *, now: datetime, is_error: bool = False) -> Run:
    """The result went out: the same run may have it again, an identical call is a new wish.

    Written is not received: what was bought or done is not bought again by a call that may have
    lost it, for a while from the first time that it went out. An error has used up nothing. One
    that was too long to be kept ends its run here: nobody goes on with that.
    """
    if run.result is None:
        return replace(wipe(run), finished_at=run.finished_at or now)
    if run.is_delivered:
        return run
    until = now + REPEATED_FOR if run.is_repeatable and not is_error else None
    return replace(run, is_delivered=True, repeated_until=until)


def cancel(run: Run, *, now: datetime) -> Run:
    """The client no longer wants what it asked for as a task; one that is over stays as it is.

    The same call made again is another run, and joins the questions that are still open.
    """
    if run.finished_at is not None:
        return run
    called = None if run.called is None else replace(run.called, arguments=None)
    ended = replace(wipe(run), called=called, finished_at=now)
    return replace(ended, is_cancelled=True)


def make_way(run: Run) -> Run:
    """The same call is a new wish; a leg that names the run may still have its result."""
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
