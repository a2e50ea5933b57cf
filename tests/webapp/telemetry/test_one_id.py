"""The log: all lines about a question have its id and the id of its call."""

import logging
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from mcp import Client

from tests.support.tracing import traces
from tests.support.watched import ACTS, TYPED, Elsewhere, watched_tools
from webapp.logs.events import mark_work
from webapp.sweeper import fall_due
from webapp.testing import AskedPerson, elicit_person

# Each kind of question logs these events in this order, possibly with others in between.
STEPS = {
    "url": ["elicitation.asked", "elicitation.changed", "elicitation.settled"],
    "oauth": [
        *("elicitation.asked", "elicitation.changed", "elicitation.changed"),
        *("elicitation.settled", "account.connected"),
    ],
    "payment": [
        "elicitation.asked",
        "elicitation.changed",
        "elicitation.settled",
        "webhook.processed",
    ],
    "form": ["elicitation.asked", "elicitation.settled"],
    "confirm": ["elicitation.asked", "elicitation.settled"],
    "secret": ["elicitation.asked", "elicitation.settled"],
    "gate": ["elicitation.asked", "elicitation.settled", "approval.given"],
}


class Log(logging.Handler):
    """A handler that collects our log records."""

    def __init__(self) -> None:
        super().__init__(logging.INFO)
        self.lines: list[dict[str, Any]] = []

    def emit(self, record: logging.LogRecord) -> None:
        mark_work(record)
        self.lines.append({**vars(record), "event": record.getMessage()})

    def events(self) -> list[str]:
        return [line["event"] for line in self.lines]


@asynccontextmanager
async def logged(kind: str, *, revision: str) -> AsyncGenerator[tuple[Log, AskedPerson]]:
    """Ask and answer a question of this kind. The answer does not run in the call's context."""
    server, log, our_logger = watched_tools(), Log(), logging.getLogger("webapp")
    async with elicit_person(server) as person:
        mode = "legacy" if revision == "2025-11-25" else revision
        client = Client(server, mode=mode, elicitation_callback=Elsewhere(person).answer)
        level = our_logger.level
        our_logger.addHandler(log)
        our_logger.setLevel(logging.INFO)
        try:
            ACTS[kind](person)
            async with client:
                result = await client.call_tool(f"ask_{kind}", {})
            assert not result.is_error, result
            yield log, person
        finally:
            our_logger.removeHandler(log)
            our_logger.setLevel(level)


@pytest.mark.parametrize("revision", ["2025-11-25", "2026-07-28"])
@pytest.mark.parametrize("kind", ACTS)
async def test_every_log_line_of_flow_has_question_id_and_call_id(kind: str, revision: str) -> None:
    async with logged(kind, revision=revision) as (log, person):
        (id,) = person._app.asked_of
        lines = [line for line in log.lines if "sandbox" not in line["name"]]
        steps = iter([line["event"] for line in lines])
        assert all(step in steps for step in STEPS[kind]), log.events()
        strangers = [line["event"] for line in lines if line.get("id") != id or "call" not in line]
        assert strangers == []
        assert not any(TYPED in str(line) for line in lines)


async def test_log_shows_delay_of_woken_call() -> None:
    async with logged("payment", revision="2025-11-25") as (log, _):
        (woken,) = [line for line in log.lines if line["event"] == "call.woken"]
        assert woken["seconds"] == 0


async def test_log_of_expired_question_has_question_id_and_call_id() -> None:
    async with logged("url", revision="2026-07-28") as (log, person):
        person.never_comes()
        await person.call("ask_secret")
        *_, id = person._app.asked_of
        person.clock.tick(days=1)
        await fall_due(person._app.service)
        ended = [line for line in log.lines if line.get("id") == id]
        assert [line["event"] for line in ended] == ["elicitation.asked", "elicitation.settled"]
        assert {line["call"] for line in ended} == {ended[0]["call"]}


async def test_log_lines_have_trace_id_if_traces_are_collected() -> None:
    with traces() as spans:
        async with logged("payment", revision="2025-11-25") as (log, _):
            (call,) = spans.named("tools/call ask_payment")
            assert call.context is not None
            response = {line.get("trace_id") for line in log.lines if "sandbox" not in line["name"]}
            assert response == {f"{call.context.trace_id:032x}"}
