"""An approval by two people over two days, escalated once, for each door that can ask for it."""

import logging
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import Any, TypeAlias

import httpx
import pytest

from tests.support.approving import ApprovalEnv, press, served, shop
from tests.support.chains import told_of
from tests.support.clock import Clock
from tests.support.issuer import issuing
from tests.support.mcp_server import MODERN, TLS
from tests.support.notify_env import mail_server, messages_are_noted
from tests.support.task_client import task_client
from webapp.api.access import PERSON_HEADER
from webapp.identity.api_keys import KeyScope
from webapp.identity.approvers import Approver
from webapp.notifications.tables import NotifyTable
from webapp.operations.history import show
from webapp.settings.quotas import PolicySettings
from webapp.stores.memory import MemoryStore
from webapp.sweeper import fall_due

# finding: XQ3
FINANCE = Approver(
    name="finance",
    subjects=frozenset({"frank", "flora"}),
    needs=2,
    comment="optional",
    escalate_after=timedelta(days=1),
    escalate_to="managers",
)
MANAGERS = Approver(name="managers", subjects=frozenset({"mia"}))
Result: TypeAlias = Callable[[ApprovalEnv], Awaitable[str]]


async def ask_as_tool(here: ApprovalEnv) -> Result:
    async with here.asking() as caller:
        await caller.result("refund", order="o8")

    async def result(there: ApprovalEnv) -> str:
        async with there.asking() as caller:
            return await caller.text("refund", order="o8")

    return result


async def ask_as_task(here: ApprovalEnv) -> Result:
    async with task_client(here.env, MODERN, headers=here.bearer("alice")) as client:
        task = await client.task("refund", order="o8")
        while "statusMessage" not in await client.get(task):
            pass

    async def result(there: ApprovalEnv) -> str:
        async with task_client(there.env, MODERN, headers=there.bearer("alice")) as client:
            return await client.text(task)

    return result


async def ask_as_program(here: ApprovalEnv) -> Result:
    key, _ = await here.env.service.identity.api_keys.new(
        program="shop", scopes=[KeyScope.ASK], expires_at=here.clock() + timedelta(days=90)
    )

    @asynccontextmanager
    async def program(at: ApprovalEnv) -> AsyncGenerator[httpx.AsyncClient]:
        token = at.bearer("alice", use="api")["authorization"].removeprefix("Bearer ")
        about = {"authorization": f"Bearer {key}", PERSON_HEADER: token}
        async with httpx.AsyncClient(base_url=at.env.url, headers=about, verify=TLS) as client:
            yield client

    question = {
        "kind": "confirm",
        "message": "Pay it back?",
        "approver": "finance",
        "arguments": {"order": "o8"},
        "timeout_seconds": 3 * 24 * 3600,
    }
    async with program(here) as client:
        id = (await client.post("/api/questions", json=question)).json()["id"]

    async def result(there: ApprovalEnv) -> str:
        async with program(there) as client:
            told = (await client.get(f"/api/questions/{id}", params={"wait": 50})).json()
        assert (told["approvals"], told["approvals_needed"]) == (2, 2)
        assert told["comments"] == ["Checked"]
        return "o8 is paid back" if told["status"] == "accepted" else str(told)

    return result


@pytest.mark.parametrize("ask", [ask_as_tool, ask_as_task, ask_as_program])
async def test_two_people_approve_over_two_days_after_one_escalation(
    ask: Callable[[ApprovalEnv], Awaitable[Result]], caplog: pytest.LogCaptureFixture
) -> None:
    clock, store = Clock(), MemoryStore()
    caplog.set_level(logging.INFO)
    async with issuing(clock) as issuer, mail_server() as mails:
        notify = [NotifyTable(name="managers", to=(mails.address("managers@example.com"),))]

        def process() -> Any:
            return served(
                shop(),
                issuer,
                clock,
                approvers=(FINANCE, MANAGERS),
                store=store.sibling(),
                notify=notify,
                policies=PolicySettings(audit=True),
            )

        async with process() as here:
            result = await ask(here)
            await press_as(here, "frank", comment="Checked")
            assert mails.recipients == []
        clock.tick(hours=24)
        async with process() as here, process() as other:
            for env in (here, other, here):
                await fall_due(env.env.service)
            await messages_are_noted(here.env.service, 1)
            await here.env.service.notifier.send_all()
            assert mails.recipients == ["managers@example.com"]
        clock.tick(hours=20)
        async with process() as here:
            await press_as(here, "mia")
            assert await result(here) == "o8 is paid back"
            asked = await here.asked()
            timeline = [row.what for row in (await show(here.env.service, asked.id)).timeline]
            frank, mia = (f"{issuer.url}#{name}" for name in ("frank", "mia"))
            assert f"approval 1 of 2 by {frank}" in timeline
            assert "escalates to managers" in timeline
            assert f"approval 2 of 2 by {mia}" in timeline
            audit = [
                (entry.what, entry.by) for entry in await told_of(here.env.service, asked.owner)
            ]
            assert ("approval 1 of 2", frank) in audit
            assert ("accepted", mia) in audit
    escalations = [line for line in caplog.records if line.message == "approval.escalated"]
    assert len(escalations) == 1


async def press_as(here: ApprovalEnv, name: str, *, comment: str = "") -> None:
    person = await here.signed_in(name)
    await press(person, await here.one(person), "approve", reason=comment)
