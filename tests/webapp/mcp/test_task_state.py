"""The state of a task, computed from its run and the run's questions."""

import json
from datetime import timedelta

from msgspec.structs import replace

from flows.elicitation.run import Run
from flows.elicitation.states import Asked, Elicitation
from flows.payments.events import ON_ITS_WAY
from tests.support.clock import NOON
from tests.support.mcp_server import MODERN
from webapp.mcp.callers import WITH_TASKS
from webapp.mcp.results import text_result
from webapp.mcp.task_state import TaskState, fault_of, of_fault

MINUTE = timedelta(minutes=1)
RUN = Run(id="run", owner="owner", key="key", created_at=NOON, open_until=NOON + 20 * MINUTE)
ASKED = Elicitation(
    id="asked",
    owner="owner",
    kind="payment",
    request=Asked(server="shop", tool="buy", client="mcp", message="9 EUR", digest="digest"),
    dedupe_key="join",
    created_at=NOON,
    expires_at=NOON + 10 * MINUTE,
)


def state(run: Run = RUN, asked: Elicitation = ASKED, *, after: timedelta = MINUTE) -> TaskState:
    return TaskState(run=run, asked=[(0, asked)], now=NOON + after)


def test_open_question_makes_the_task_input_required():
    assert state().status(MODERN) == "input_required"
    assert state(after=11 * MINUTE).status(MODERN) == "working"


def test_open_approval_by_others_leaves_the_task_working():
    waits = state(asked=replace(ASKED, kind="decision"))
    assert waits.status(MODERN) == "working"
    assert len(waits.open) == 1, "the task has an open wait, so its body does not run"


def test_payment_in_transit_leaves_the_task_working():
    paid = state(asked=replace(ASKED, progress=ON_ITS_WAY))
    assert paid.status(MODERN) == "working"
    assert "on its way" in paid.to_result(MODERN, status="working")["statusMessage"]
    assert paid.processing
    assert not paid.open


def test_json_rpc_error_fails_the_task_and_a_tool_error_only_on_the_older_revision():
    failed = text_result("No", protocol_version=MODERN, is_error=True)
    broken = text_result(
        "No", protocol_version=MODERN, is_error=True, meta=of_fault("No", -32603, None)
    )
    for result, statuses in ((failed, ("completed", "failed")), (broken, ("failed", "failed"))):
        over = replace(RUN, result=json.dumps(result), finished_at=NOON)
        reported = tuple(state(over).status(version) for version in (MODERN, WITH_TASKS))
        assert reported == statuses
    assert fault_of(failed) is None
    assert fault_of(broken) == {"code": -32603, "message": "No"}
