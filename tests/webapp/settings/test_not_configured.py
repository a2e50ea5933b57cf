"""Errors for a missing configuration: they name the file, the line to write, and similar names."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from flows import Money, elicit
from flows.errors import NotConfigured
from flows.question import Question, asking
from tests.support.account_env import CREDENTIALS, HUB
from tests.support.clock import Clock
from tests.support.service_env import Holding, call_of, plain_settings
from webapp.calls.verbs import Verbs
from webapp.identity.approvers import Approver
from webapp.service import Service, ServiceOptions, open_service
from webapp.settings.identity import IdentitySettings
from webapp.stores.sqlite import MemoryStore

FILE = "/home/ann/.config/elicit-url/elicit.toml"
RELEASE = Approver(name="release", is_local=True)


@asynccontextmanager
async def serving(**more: Any) -> AsyncIterator[Service]:
    async with open_service(
        plain_settings(
            providers={"github": HUB},
            credentials=CREDENTIALS,
            identity=IdentitySettings(approvers=(RELEASE,)),
            **more,
        ),
        ServiceOptions(clock=Clock()),
        store=MemoryStore(),
    ) as service:
        yield service


async def refused(service: Service, question: Question[Any]) -> str:
    call = call_of(service, presenter=Holding(), owner=service.identity.local_owner)
    call.begin()
    with asking(Verbs(call)), pytest.raises(NotConfigured) as error:
        await question
    await call.finish()
    return str(error.value)


@pytest.mark.parametrize(
    ("question", "nearest"),
    [
        (lambda: elicit.oauth("gihub"), "'github'"),
        (lambda: elicit.payment(Money("9.00", "EUR"), "Tea", provider="strip"), "'stripe'"),
        (lambda: elicit.payment(Money("9.00", "EUR"), "Tea", provider="molie"), "'mollie'"),
        (lambda: elicit.confirm("Now?", approver="relase"), "'release'"),
    ],
)
async def test_unknown_name_error_suggests_nearest_name(question: Any, nearest: str) -> None:
    # finding: XA12
    async with serving() as service:
        message = await refused(service, question())
        assert f"Perhaps {nearest} is meant" in message
        assert "ELICIT_STRIP_KEY" not in message


@pytest.mark.parametrize(
    ("question", "table"),
    [
        (lambda: elicit.oauth("tracker"), "[providers.tracker]"),
        (lambda: elicit.payment(Money("9.00", "EUR"), "x", provider="acme"), "[sellers.acme]"),
        (lambda: elicit.confirm("Now?", approver="finance"), "[approvers.finance]"),
    ],
)
async def test_missing_table_error_names_file_and_line_to_write(question: Any, table: str) -> None:
    # finding: XA11
    async with serving(config=Path(FILE)) as service:
        message = await refused(service, question())
        assert f"{table} in elicit.toml" in message
        assert f"Write {table} in {FILE}" in message


async def test_missing_approver_on_own_machine_names_setting_to_approve_own_requests() -> None:
    # finding: XA11
    async with serving() as service:
        message = await refused(service, elicit.confirm("Now?", approver="release"))
        assert (
            "To approve your own requests on this machine, set ELICIT_APPROVERS_ASKER=may"
            in message
        )
