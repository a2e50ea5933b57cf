"""Runs: the order and identity of their questions, and how long their results are stored."""

from datetime import timedelta

from msgspec.structs import replace

from flows.elicitation import run as runs
from flows.elicitation.run import RESULT_RETENTION, AskedStep, Run, Step
from flows.elicitation.states import RECORD_RETENTION
from tests.support.clock import NOON

OPEN_UNTIL = NOON + timedelta(minutes=10)


def run() -> Run:
    return Run(id="r", owner="o", key="k", created_at=NOON, open_until=OPEN_UNTIL)


def asking(nth: int, *, id: str | None = None, digest: str = "d") -> AskedStep:
    place = Step(kind="url", digest=digest, nth=nth)
    return AskedStep(
        place=place, elicitation_id=id or f"{digest}{nth}", is_ordered=True, says="Please."
    )


def ids(of: Run) -> list[str]:
    return [each.elicitation_id for each in of.asked]


def test_questions_stay_in_order_asked() -> None:
    current = run()
    for nth in range(4):
        current = runs.ask(current, asking(nth), open_until=OPEN_UNTIL)
    assert ids(current) == ["d0", "d1", "d2", "d3"]


def test_asking_same_step_again_replaces_its_elicitation_in_place() -> None:
    current = run()
    for nth in range(3):
        current = runs.ask(current, asking(nth), open_until=OPEN_UNTIL)
    for nth, expected in (
        (0, ["new", "d1", "d2"]),
        (1, ["d0", "new", "d2"]),
        (2, ["d0", "d1", "new"]),
    ):
        assert ids(runs.ask(current, asking(nth, id="new"), open_until=OPEN_UNTIL)) == expected


def test_step_is_found_by_kind_digest_and_number() -> None:
    current = runs.ask(run(), asking(0), open_until=OPEN_UNTIL)
    assert current.at(Step(kind="url", digest="d", nth=0)) == asking(0)
    for other in (
        Step(kind="form", digest="d", nth=0),
        Step(kind="url", digest="e", nth=0),
        Step(kind="url", digest="d", nth=1),
    ):
        assert current.at(other) is None


def test_different_steps_have_different_text() -> None:
    places = [
        Step(kind=kind, digest=digest, nth=nth)
        for kind in ("url", "form")
        for digest in ("1", "11")
        for nth in (1, 11, 111)
    ]
    assert len({str(place) for place in places}) == len(places)


def test_question_extends_but_never_shortens_open_time_of_run() -> None:
    longer = runs.ask(run(), asking(0), open_until=OPEN_UNTIL + timedelta(hours=1))
    assert longer.open_until == OPEN_UNTIL + timedelta(hours=1)
    assert runs.ask(longer, asking(1), open_until=NOON).open_until == longer.open_until


def test_elicitation_of_a_question_can_be_replaced() -> None:
    current = runs.ask(run(), asking(0), open_until=OPEN_UNTIL)
    current = runs.ask(current, asking(1), open_until=OPEN_UNTIL)
    assert ids(runs.put(current, asking(0).place, "late")) == ["late", "d1"]
    assert runs.put(current, asking(2).place, "late") == current


def test_open_run_is_due_when_no_call_can_join_it_any_more() -> None:
    assert run().due_at == OPEN_UNTIL
    assert run().erase_at == OPEN_UNTIL + RECORD_RETENTION
    assert (run().status, run().holds_key) == ("open", True)


def test_result_is_stored_for_ten_minutes() -> None:
    done = runs.finish(run(), result="{}", now=NOON)
    assert timedelta(minutes=10) == RESULT_RETENTION
    assert (done.status, done.result, done.due_at) == ("finished", "{}", NOON + RESULT_RETENTION)
    assert done.holds_key


def test_delivered_run_releases_key_for_new_call() -> None:
    over = runs.deliver(runs.finish(run(), result="{}", now=NOON), now=NOON)
    assert (over.status, over.result, over.holds_key) == ("delivered", "{}", False)
    assert over.due_at == NOON + RESULT_RETENTION


def test_wiped_run_is_never_due_again() -> None:
    for before in (run(), runs.finish(run(), result="{}", now=NOON)):
        wiped = runs.wipe(before)
        assert (wiped.result, wiped.holds_key, wiped.due_at) == (None, False, None)
        assert runs.wipe(wiped) == wiped


def test_run_without_stored_result_ends_at_delivery() -> None:
    over = runs.deliver(run(), now=NOON)
    assert (over.status, over.called, over.finished_at) == ("delivered", None, NOON)
    assert (over.holds_key, over.due_at) == (False, None)
    assert runs.deliver(over, now=OPEN_UNTIL) == over


def test_run_without_result_is_not_due_for_wiping() -> None:
    assert replace(run(), finished_at=NOON).due_at is None
