"""An approval by two people over two days, escalated once, asked by a tool, task or program.

Each process opens the store again, as after a restart. tests/crash/test_vote_points.py kills the
processes.
"""

import logging
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import TypeAlias

import pytest
import pytest_asyncio

from tests.support.approving import (
    TWO_DAYS,
    ApprovalEnv,
    Ask,
    ask_as_program,
    ask_as_task,
    ask_as_tool,
    press_as,
    served,
    shop,
)
from tests.support.chains import audit_entries_of
from tests.support.clock import Clock
from tests.support.issuer import issuing
from tests.support.notify_env import mail_server, messages_are_noted
from tests.support.shared_stores import STORES
from webapp.notifications.delivery import NotifyTable
from webapp.operations.history import show
from webapp.settings.quotas import PolicySettings
from webapp.stores import Store, open_store
from webapp.sweeper import fall_due

pytestmark = pytest.mark.in_turn("reopened")  # each case runs on one store
Reopened: TypeAlias = Callable[[], AbstractAsyncContextManager[Store]]


@pytest_asyncio.fixture(params=["postgres", "valkey"])
async def reopened(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Reopened]:
    """Return a context manager that opens another connection to the store of this test."""

    @asynccontextmanager
    async def opening() -> AsyncIterator[Store]:
        store = await open_store(address)  # without the check that refuses a manual clock
        yield store
        await store.aclose()

    async with STORES[request.param](tmp_path) as address:
        yield opening


# finding: XQ3
@pytest.mark.parametrize("ask", [ask_as_tool, ask_as_task, ask_as_program])
async def test_two_people_approve_over_two_days_after_one_escalation(
    ask: Ask,
    reopened: Reopened,
    caplog: pytest.LogCaptureFixture,
) -> None:
    clock = Clock()
    caplog.set_level(logging.INFO)
    async with issuing(clock) as issuer, mail_server() as mails:
        notify = [NotifyTable(name="managers", to=(mails.address("managers@example.com"),))]

        @asynccontextmanager
        async def process() -> AsyncIterator[ApprovalEnv]:
            async with (
                reopened() as store,
                served(
                    shop(),
                    issuer,
                    clock,
                    approvers=TWO_DAYS,
                    store=store,
                    notify=notify,
                    policies=PolicySettings(audit=True),
                    is_alone=False,  # the store's tasks end after the server
                ) as env,
            ):
                yield env

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
                (entry.what, entry.by)
                for entry in await audit_entries_of(here.env.service, asked.owner)
            ]
            assert ("approval 1 of 2", frank) in audit
            assert ("accepted", mia) in audit
    escalations = [line for line in caplog.records if line.message == "approval.escalated"]
    assert len(escalations) == 1
