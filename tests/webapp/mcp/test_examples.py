"""The examples, each run with a client of every sort on both revisions."""

import importlib.util
import re
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from flows.elicitation.states import Json
from flows.schema.schema import strings_of
from tests.support.mcp_sandbox import SandboxEnv, sandbox_env
from tests.support.mcp_server import FORM, URL, Caller, Page, soon, text_of

EXAMPLES = Path(__file__).parents[3] / "examples"
WAYS: Mapping[str, Any] = {"both": "all", "url": URL, "form": FORM, "nothing": None}
Step = Mapping[str, Json] | str  # what is filled in, or what a person does at a provider
CONNECT, PAY, TYPE = "connect", "pay", "type"
YES: Mapping[str, Json] = {}

pytestmark = pytest.mark.parametrize("way", WAYS)


@dataclass
class Show:
    """An example that is served, with one client and one person."""

    at: SandboxEnv
    revision: str
    way: str

    async def __call__(self, tool: str, *steps: Step, **arguments: Json) -> str:
        """Call the tool, do what it asks for, step by step; what it says in the end."""
        in_client = self.way in ("both", "form")
        fills = [step for step in steps if not isinstance(step, str)]
        by_link = [step for step in steps if isinstance(step, str) or not in_client]
        async with self.at.env.caller(
            self.revision, declares=WAYS[self.way], fills=fills if in_client else ()
        ) as caller:
            said = await self._said(caller, by_link, tool, arguments)
            assert len(caller.forms) == (len(fills) if in_client else 0), said
        return said

    async def _said(
        self, caller: Caller, steps: Sequence[Step], tool: str, arguments: Mapping[str, Json]
    ) -> str:
        if self.way in ("both", "url"):
            call = caller.call(tool, **arguments)
            for step in steps:
                await self._do(step, await caller.link())
            return text_of(await soon(call))
        for step in steps:
            told = await caller.text(tool, **arguments)
            link = re.search(r"http://\S+/e/\S+", told)
            assert link is not None, told
            await self._do(step, link[0])
        return await caller.text(tool, **arguments)

    async def _do(self, step: Step, link: str) -> Page:
        if isinstance(step, str):
            act: Callable[[str], Awaitable[Page]] = getattr(self.at.guest, step)
            return await act(link)
        asked = await self.at.env.service.elicitations.get(self.at.env.id_of(link))
        assert asked is not None
        page = await self.at.guest.person.visit(link)
        schema = self.at.env.service.kinds.forms.schema(asked)
        fields = {name: list(texts) for name, texts in strings_of(schema, step).items()}
        sent = await self.at.guest.person.browser.post(link, data={"csrf": page.csrf, **fields})
        assert sent.status_code == 303, sent.text
        return page


@asynccontextmanager
async def shown(example: str, revision: str, way: str) -> AsyncIterator[Show]:
    spec = importlib.util.spec_from_file_location(f"example_{example}", EXAMPLES / f"{example}.py")
    assert spec is not None
    assert spec.loader is not None
    module = sys.modules[spec.name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    async with sandbox_env(module.mcp) as at:
        yield Show(at, revision, way)


async def test_an_account_is_deleted_when_that_is_confirmed(revision, way):
    # parity: F16
    async with shown("approvals", revision, way) as show:
        sure: Step = {"confirmed": True, "reason": "Asked for by mail."}
        assert await show("delete_account", sure, user="u1") == "u1 is deleted. Asked for by mail."
        assert "not confirmed" in await show("delete_account", {"confirmed": False}, user="u2")


async def test_a_large_expense_is_approved_first(revision, way):
    # parity: F16
    async with shown("approvals", revision, way) as show:
        small = await show("file_expense", description="Tea", amount=12.5)
        assert small == "Filed: Tea, 12.50 USD."
        large: Mapping[str, Any] = {"description": "A coffee machine", "amount": 1200.0}
        no: Step = {"approved": False, "notes": "Too dear."}
        assert await show("file_expense", no, **large) == "Rejected. Too dear."
        assert (await show("file_expense", {"approved": True}, **large)).startswith("Filed")
        assert await show("approve_expense", YES, expense="e7", amount=501.0) == "e7 is approved."
        assert await show("approve_expense", expense="e8", amount=20.0) == "e8 is approved."


async def test_a_transfer_takes_two_steps(revision, way):
    # parity: F16
    async with shown("approvals", revision, way) as show:
        transfer: Mapping[str, Any] = {"source": "a", "target": "b", "amount": 7.0}
        right: Step = {"code": "314159"}
        wrong: Step = {"code": "000000"}
        assert "not the code" in await show("transfer_funds", YES, wrong, **transfer)
        assert await show("transfer_funds", YES, right, **transfer) == "7.00 USD went from a to b."
        rows = await show.at.env.elicitations()
        codes = [row for row in rows if row.kind == "form"]
        assert len(codes) == 2
        assert all(row.expires_at - row.created_at == timedelta(minutes=2) for row in codes)


async def test_github_is_connected(revision, way):
    # parity: F16
    async with shown("approvals", revision, way) as show:
        assert await show("connect_github", CONNECT) == "Connected as octocat."


async def test_a_file_is_deleted_with_a_yes_or_by_saying_so(revision, way):
    # parity: F16
    async with shown("approvals", revision, way) as show:
        if way in ("both", "form"):
            assert await show("delete_file", YES, path="/tmp/x") == "/tmp/x is deleted."  # noqa: S108
        else:
            assert "Nobody was asked" in await show("delete_file", path="x")
        assert await show("delete_file", path="x", sure=True) == "x is deleted."


async def test_an_issue_is_created_behind_the_gate(revision, way):
    async with shown("issues", revision, way) as show:
        issue = {"repository": "octocat/tea", "title": "More tea"}
        said = await show("create_issue", YES, CONNECT, **issue)
        assert said.endswith("'More tea' in octocat/tea, as octocat")


async def test_a_warehouse_is_chosen_and_to_dos_are_removed(revision, way):
    async with shown("stock", revision, way) as show:
        assert await show("check_stock", {"warehouse": "north"}) == "north: 12 boxes"
        assert await show("clear_completed", YES) == "Removed 2."


async def test_members_have_paid_and_connected_before_it_starts(revision, way):
    async with shown("membership", revision, way) as show:
        chosen = {"theme": "dark", "language": "French"}
        assert await show("configure", chosen) == "dark, in French"
        report = await show("premium_report", CONNECT, PAY)
        assert report == "A report for octocat, who paid 9.00 EUR once."
        assert await show("premium_report") == report
        assert "refused the key" in await show("forecast", TYPE)
