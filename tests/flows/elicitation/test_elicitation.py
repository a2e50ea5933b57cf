"""The tables of an elicitation's statuses, and every change that the tables allow or refuse."""

from datetime import datetime, timedelta

import pytest
from msgspec.structs import replace

from flows.elicitation import flow as attempts
from flows.elicitation import states, traits
from flows.elicitation.states import (
    EXCHANGE_AT_MOST,
    LATE,
    LEASE,
    MONEY_RETURNED,
    NOT_ARRIVED,
    RECORD_RETENTION,
    TRANSITIONS,
    Asked,
    Attempt,
    Elicitation,
    Lease,
    Status,
)
from flows.elicitation.traits import traits_of
from flows.elicitation.voting import Vote
from flows.errors import NotPossible, TooManyAttempts
from tests.support.clock import NOON, Clock

LIFE = timedelta(minutes=5)
OPEN = {Status.PENDING, Status.OPENED, Status.EXCHANGING}
FINAL = set(Status) - OPEN
ENDS_FROM_OPEN = {
    Status.ACCEPTED,
    Status.DECLINED,
    Status.CANCELLED,
    Status.EXPIRED,
    Status.FAILED,
    Status.SUPERSEDED,
}
# A second copy of `states.TRANSITIONS`, so that an accidental change of a row fails a test.
ALLOWED = {
    Status.PENDING: ENDS_FROM_OPEN | {Status.OPENED},
    Status.OPENED: ENDS_FROM_OPEN | {Status.OPENED, Status.EXCHANGING, Status.DENIED},
    Status.EXCHANGING: {Status.OPENED, Status.ACCEPTED, Status.DENIED, Status.FAILED},
}


def elicitation(
    status: Status = Status.PENDING,
    *,
    kind: str = "url",
    attempt: Attempt | None = None,
    lease: Lease | None = None,
    content: states.Json = None,
) -> Elicitation:
    return Elicitation(
        id="o" * 20 + "1",
        owner="o" * 20,
        kind=kind,
        request=Asked(server="s", tool="t", client=None, message="m", digest="d"),
        dedupe_key="j",
        created_at=NOON,
        expires_at=NOON + LIFE,
        status=status,
        waiter="leg-1",
        attempt=attempt,
        take=lease,
        content=content,
        settled_at=NOON if status in FINAL else None,
    )


def accepted(*, run: str = "run-1", request_id: str | None = None) -> Elicitation:
    lease = None if request_id is None else Lease(run=run, leg=request_id, until=NOON + LEASE)
    return elicitation(Status.ACCEPTED, content={"n": 1}, lease=lease)


def swept(before: Elicitation, *, until: datetime) -> tuple[Elicitation, datetime | None]:
    """Apply each sweep that is due up to `until`. Return the elicitation and its next due time."""
    while before.due_at is not None and before.due_at <= until:
        after = states.fall_due(before, now=before.due_at)
        assert after != before, "each due sweep changes the elicitation, so sweeping ends"
        before = after
    return before, before.due_at


def pairs() -> list[tuple[Status, Status]]:
    return [(before, after) for before in Status for after in Status]


@pytest.mark.parametrize(("before", "after"), pairs())
def test_each_status_transition_is_allowed_or_raises_not_possible(
    before: Status, after: Status
) -> None:
    is_allowed = after in ALLOWED.get(before, set())
    assert (after in TRANSITIONS[before]) == is_allowed
    if after not in FINAL:
        return
    if is_allowed:
        settled = states.settle(elicitation(before), after, now=NOON, content={"n": 1})
        assert settled.status is after
        assert settled.settled_at == NOON
    else:
        with pytest.raises(NotPossible) as refused:
            states.settle(elicitation(before), after, now=NOON)
        assert (refused.value.status, refused.value.wanted) == (before, after)


@pytest.mark.parametrize("status", Status)
def test_only_final_statuses_have_no_transitions(status: Status) -> None:
    assert status.is_final == (status in FINAL) == (TRANSITIONS[status] == frozenset())


def test_every_status_has_a_row_and_can_be_reached() -> None:
    assert set(TRANSITIONS) == set(Status)
    assert {Status.PENDING}.union(*TRANSITIONS.values()) == set(Status)


@pytest.mark.parametrize("status", sorted(OPEN))
def test_settling_with_open_status_is_refused(status: Status) -> None:
    for before in Status:
        with pytest.raises(NotPossible):
            states.settle(elicitation(before), status, now=NOON)


def test_late_acceptance_is_allowed_only_after_five_statuses() -> None:
    assert {
        Status.EXPIRED: {Status.ACCEPTED},
        Status.CANCELLED: {Status.ACCEPTED},
        Status.DECLINED: {Status.ACCEPTED},
        Status.DENIED: {Status.ACCEPTED},
        Status.SUPERSEDED: {Status.ACCEPTED},
    } == LATE
    for status in Status:
        before = elicitation(status)
        if status in LATE:
            late = states.settle_late(before, now=NOON, content={"n": 1}, holds_key=True)
            assert (late.status, late.is_late, late.content) == (Status.ACCEPTED, True, {"n": 1})
        else:
            with pytest.raises(NotPossible):
                states.settle_late(before, now=NOON, content={}, holds_key=True)


@pytest.mark.parametrize(
    "why", [NOT_ARRIVED, MONEY_RETURNED, states.INTERRUPTED, "no such letters", None]
)
def test_late_acceptance_after_failure_is_allowed_only_for_delayed_payment(why: str | None) -> None:
    failed = states.settle(elicitation(kind="payment"), Status.FAILED, now=NOON, why=why)
    if why in (NOT_ARRIVED, MONEY_RETURNED):
        paid = states.settle_late(failed, now=NOON, content={"payment": "p"}, holds_key=True)
        assert (paid.status, paid.is_late, paid.why) == (Status.ACCEPTED, True, None)
        assert (paid.holds_key, paid.content) == (True, {"payment": "p"})
    else:
        with pytest.raises(NotPossible):
            states.settle_late(failed, now=NOON, content={}, holds_key=True)


def test_late_acceptance_never_replaces_accepted_or_open_status() -> None:
    assert not set(LATE) & {Status.ACCEPTED, *OPEN}


def test_only_acceptance_stores_content() -> None:
    for status in ENDS_FROM_OPEN - {Status.ACCEPTED}:
        assert states.settle(elicitation(), status, now=NOON, content={"n": 1}).content is None


def test_settled_question_stores_its_reason() -> None:
    failed = states.settle(elicitation(), Status.FAILED, now=NOON, why="interrupted")
    assert failed.why == "interrupted"


@pytest.mark.parametrize("kind", ["url", "oauth", "form"])
def test_late_answer_is_stored_for_the_period_of_its_kind(kind: str) -> None:
    stored_until = NOON + LIFE + traits_of(kind).stored_for
    before = elicitation(Status.EXPIRED, kind=kind)
    in_time = states.settle_late(
        before, now=stored_until - timedelta(microseconds=1), content={"n": 1}, holds_key=True
    )
    too_late = states.settle_late(before, now=stored_until, content={"n": 1}, holds_key=True)
    assert (in_time.content, in_time.holds_key) == ({"n": 1}, True)
    assert (too_late.content, too_late.holds_key) == (None, False)
    assert too_late.status is Status.ACCEPTED


def test_late_acceptance_clears_claim_on_earlier_outcome() -> None:
    no = replace(
        elicitation(Status.SUPERSEDED, lease=Lease(run="r", leg="l", until=NOON + LEASE)),
        delivered_at=NOON,
        why="newer",
    )
    late = states.settle_late(no, now=NOON, content={}, holds_key=True)
    assert (late.take, late.delivered_at, late.why) == (None, None, None)
    assert states.claim(late, run="other", request_id="other", now=NOON).take is not None


def test_eleventh_attempt_is_refused() -> None:
    current = elicitation()
    for number in range(1, attempts.ATTEMPTS_AT_MOST + 1):
        current = attempts.open_attempt(current, browser=f"b{number}", state="s", now=NOON)
        assert current.status is Status.OPENED
        assert current.attempt is not None
        assert (current.attempt.number, current.attempt.browser) == (number, f"b{number}")
    assert attempts.ATTEMPTS_AT_MOST == 10
    with pytest.raises(TooManyAttempts) as refused:
        attempts.open_attempt(current, browser="b11", now=NOON)
    assert refused.value.limit == 10


def test_new_attempt_replaces_previous_attempt() -> None:
    first = attempts.open_attempt(elicitation(), browser="b1", state="s1", now=NOON)
    second = attempts.open_attempt(first, browser="b2", now=NOON + timedelta(seconds=1))
    assert second.attempt == Attempt(
        number=2, browser="b2", started_at=NOON + timedelta(seconds=1), state=None
    )


@pytest.mark.parametrize("status", sorted(set(Status) - {Status.PENDING, Status.OPENED}))
def test_ended_or_exchanging_question_cannot_be_opened(status: Status) -> None:
    with pytest.raises(NotPossible):
        attempts.open_attempt(elicitation(status), browser="b", now=NOON)


def test_question_cannot_be_opened_from_expiry_on() -> None:
    last = NOON + LIFE - timedelta(microseconds=1)
    assert attempts.open_attempt(elicitation(), browser="b", now=last).status is Status.OPENED
    with pytest.raises(NotPossible) as refused:
        attempts.open_attempt(elicitation(), browser="b", now=NOON + LIFE)
    assert refused.value.status == Status.EXPIRED


@pytest.mark.parametrize("status", sorted(OPEN))
def test_newer_request_replaces_waiting_request(status: Status) -> None:
    joined = states.register_waiter(elicitation(status), request_id="leg-2", run="run-2")
    assert (joined.waiter, joined.status) == ("leg-2", status)


@pytest.mark.parametrize("status", sorted(FINAL))
def test_waiting_for_ended_question_is_refused(status: Status) -> None:
    with pytest.raises(NotPossible):
        states.register_waiter(elicitation(status), request_id="leg-2", run="run-2")


@pytest.mark.parametrize("status", sorted(OPEN))
def test_open_question_cannot_be_claimed_or_released(status: Status) -> None:
    with pytest.raises(NotPossible):
        states.claim(elicitation(status), run="r", request_id="l", now=NOON)
    with pytest.raises(NotPossible):
        states.release_key(elicitation(status))


@pytest.mark.parametrize("status", sorted(FINAL))
def test_outcome_is_claimed_by_a_single_request_at_a_time(status: Status) -> None:
    claimed = states.claim(elicitation(status), run="r1", request_id="l1", now=NOON)
    assert claimed.take == Lease(run="r1", leg="l1", until=NOON + LEASE)
    for run in ("r1", "r2"):
        with pytest.raises(NotPossible):
            states.claim(
                claimed, run=run, request_id="l2", now=NOON + LEASE - timedelta(microseconds=1)
            )


def test_settling_can_claim_outcome_for_waiting_request() -> None:
    lease = Lease(run="r1", leg="leg-1", until=NOON + LEASE)
    settled = states.settle(elicitation(), Status.ACCEPTED, now=NOON, content={}, lease=lease)
    assert settled.take == lease
    with pytest.raises(NotPossible):
        states.claim(settled, run="r2", request_id="l2", now=NOON)


def test_expired_lease_frees_the_outcome() -> None:
    other = states.claim(accepted(request_id="l1"), run="r2", request_id="l2", now=NOON + LEASE)
    assert other.take == Lease(run="r2", leg="l2", until=NOON + 2 * LEASE)
    with pytest.raises(NotPossible):
        states.renew(other, request_id="l1", now=NOON + LEASE)
    with pytest.raises(NotPossible):
        states.release(other, request_id="l1")


def test_renewed_lease_lasts_from_its_renewal() -> None:
    renewed = states.renew(accepted(request_id="l1"), request_id="l1", now=NOON + LEASE / 2)
    assert renewed.take is not None
    assert renewed.take.until == NOON + LEASE / 2 + LEASE
    with pytest.raises(NotPossible):
        states.claim(renewed, run="r2", request_id="l2", now=NOON + LEASE)


def test_released_outcome_can_be_claimed_at_once() -> None:
    released = states.release(accepted(request_id="l1"), request_id="l1")
    assert states.claim(released, run="r2", request_id="l2", now=NOON).take is not None
    with pytest.raises(NotPossible):
        states.renew(released, request_id="l1", now=NOON)
    with pytest.raises(NotPossible):
        states.release(released, request_id="l1")


def test_only_claiming_run_can_deliver_outcome() -> None:
    for other in (accepted(), accepted(request_id="l1", run="r1")):
        with pytest.raises(NotPossible):
            states.deliver(other, run="r2", now=NOON)


def test_delivered_outcome_cannot_be_claimed_again() -> None:
    delivered = states.deliver(accepted(request_id="l1", run="r1"), run="r1", now=NOON)
    assert delivered.delivered_at == NOON
    assert (delivered.content, delivered.holds_key, delivered.due_at) == (None, False, None)
    for request_id in ("l1", "l2"):
        with pytest.raises(NotPossible):
            states.claim(delivered, run="r1", request_id=request_id, now=NOON + 2 * LEASE)


def test_releasing_key_also_wipes_answer() -> None:
    gone = states.release_key(accepted())
    assert (gone.holds_key, gone.content, gone.due_at) == (False, None, None)


@pytest.mark.parametrize("status", [Status.PENDING, Status.OPENED])
def test_open_question_expires_when_its_time_is_up(status: Status) -> None:
    before = elicitation(status)
    assert before.due_at == NOON + LIFE
    just = NOON + LIFE - timedelta(microseconds=1)
    assert states.fall_due(before, now=just) is before
    assert states.fall_due(before, now=NOON + LIFE).status is Status.EXPIRED


def test_interrupted_exchange_fails_after_its_own_time_limit() -> None:
    started = NOON + LIFE - timedelta(seconds=1)
    before = elicitation(
        Status.EXCHANGING, attempt=Attempt(number=1, browser="b", started_at=started)
    )
    assert states.fall_due(before, now=NOON + LIFE) is before
    failed = states.fall_due(before, now=started + EXCHANGE_AT_MOST)
    assert (failed.status, failed.why) == (Status.FAILED, "interrupted")


@pytest.mark.parametrize("status", sorted(FINAL))
def test_unused_outcome_is_wiped_when_its_time_is_up(status: Status) -> None:
    before = elicitation(status, content={"n": 1} if status is Status.ACCEPTED else None)
    stored_until = (
        NOON + LIFE + (traits_of("url").stored_for if status is Status.ACCEPTED else timedelta())
    )
    stored, last = swept(before, until=stored_until - timedelta(microseconds=1))
    assert (stored.content, stored.holds_key, last) == (before.content, True, stored_until)
    after, last = swept(before, until=stored_until)
    assert (after.content, after.holds_key, after.status, last) == (None, False, status, None)


def test_claimed_outcome_is_not_wiped() -> None:
    until = NOON + LIFE + traits_of("url").stored_for + LEASE
    before = elicitation(
        Status.ACCEPTED, content={"n": 1}, lease=Lease(run="r", leg="l", until=until)
    )
    assert swept(before, until=until - timedelta(microseconds=1))[0].content == {"n": 1}
    assert swept(before, until=until)[0].content is None


def test_renewed_lease_delays_wiping() -> None:
    out = NOON + LIFE + traits_of("url").stored_for
    before = elicitation(
        Status.ACCEPTED, content={"n": 1}, lease=Lease(run="r", leg="l", until=NOON)
    )
    looked, _ = swept(before, until=out - timedelta(seconds=1))
    renewed = states.renew(looked, request_id="l", now=out - timedelta(seconds=1))
    assert swept(renewed, until=out + LEASE - timedelta(seconds=2))[0].content == {"n": 1}
    assert swept(renewed, until=out + LEASE)[0].content is None


def test_repeated_fall_due_ends_with_no_due_time() -> None:
    clock = Clock()
    current = elicitation()
    seen: list[datetime] = []
    while current.due_at is not None:
        clock.now = current.due_at
        seen.append(clock.now)
        current = states.fall_due(current, now=clock())
        assert len(seen) < 5
    assert current.status is Status.EXPIRED


def test_record_is_erased_thirty_days_after_its_end() -> None:
    assert timedelta(days=30) == RECORD_RETENTION
    assert elicitation().erase_at == NOON + LIFE + RECORD_RETENTION
    late = states.settle_late(
        elicitation(Status.EXPIRED), now=NOON + timedelta(days=2), content={}, holds_key=True
    )
    assert late.erase_at == NOON + timedelta(days=2) + RECORD_RETENTION


def test_changes_leave_unrelated_fields_unchanged() -> None:
    before = accepted(request_id="l1", run="r1")
    stored = {"id", "owner", "kind", "request", "dedupe_key", "created_at", "expires_at", "version"}
    for after in (
        states.renew(before, request_id="l1", now=NOON),
        states.release(before, request_id="l1"),
        states.deliver(before, run="r1", now=NOON),
        states.release_key(before),
    ):
        assert {name: getattr(after, name) for name in stored} == {
            name: getattr(before, name) for name in stored
        }


def test_open_checkout_is_due_as_soon_as_question_ends() -> None:
    opened = attempts.hold_open(attempts.open_attempt(elicitation(), browser="b", now=NOON))
    later = NOON + timedelta(seconds=9)
    assert states.settle(opened, Status.DECLINED, now=later).due_at == later
    assert states.settle(opened, Status.ACCEPTED, now=later).due_at != later
    twice = attempts.open_attempt(opened, browser="b", attempt_data={"n": 2}, now=NOON)
    paid = states.settle(twice, Status.ACCEPTED, now=later)
    assert paid.due_at == later, "the checkout of the other attempt is due to be closed"
    assert attempts.close(paid).due_at != later


GOES_BY = {
    "url": {"OnPage", "InClient", "TrustedCode", "NamedByAuthor"},
    "oauth": {"Exchanged", "ConnectedBefore"},
    "api_key": {"Exchanged", "ConnectedBefore"},
    "payment": {"PaidSession"},
    "secret": {"OnPage"},
    "form": {"OnPage", "InClient", "NamedByAuthor", "ByModel"},
    "confirm": {"OnPage", "InClient"},
    "gate": {"OnPage", "InClient"},
    "decision": {"ByApprover"},
    "of another version": set[str](),
}
PROOFS = (
    traits.Exchanged(account="a"),
    traits.ConnectedBefore(account="a"),
    traits.PaidSession(session="s"),
    traits.OnPage(),
    traits.InClient(),
    traits.TrustedCode(),
    traits.NamedByAuthor(),
    traits.ByModel(),
    traits.ByApprover(
        approver="finance",
        vote=Vote(owner="ann", known_by="issuer", name="ann", label="Ann", at=NOON),
    ),
)


def test_each_kind_is_completed_only_by_its_own_proofs() -> None:
    # finding: C1
    for kind, goes_by in GOES_BY.items():
        for shown in PROOFS:
            asked = elicitation(kind=kind)
            if type(shown).__name__ in goes_by:
                accepted = states.accept(asked, shown, now=NOON, content={"n": 1})
                assert (accepted.status, accepted.content) == (Status.ACCEPTED, {"n": 1})
            else:
                with pytest.raises(ValueError, match=f"cannot complete a question of kind {kind}"):
                    states.accept(asked, shown, now=NOON, content={})


def test_late_answer_expires_question_unless_exchange_is_running() -> None:
    late = NOON + LIFE
    ended = states.accept(elicitation(), traits.OnPage(), now=late, content={})
    assert (ended.status, ended.content) == (Status.EXPIRED, None)
    exchanging = elicitation(Status.EXCHANGING, kind="oauth")
    shown = traits.Exchanged(account="a")
    assert states.accept(exchanging, shown, now=late, content={}).status is Status.ACCEPTED
    with pytest.raises(NotPossible):
        states.accept(elicitation(Status.DECLINED), traits.OnPage(), now=late, content={})
