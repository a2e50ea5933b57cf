"""The examples, run with every kind of client on both revisions, as an author would test them."""

import importlib.util
import sys
from collections.abc import Mapping
from contextlib import AbstractAsyncContextManager
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from webapp.testing import AskedPerson, elicit_person

EXAMPLES = Path(__file__).parents[3] / "examples"
WAYS: Mapping[str, tuple[str, ...]] = {
    "both": ("form", "url"),
    "url": ("url",),
    "form": ("form",),
    "nothing": (),
}

pytestmark = pytest.mark.parametrize("way", WAYS)


def at(example: str, revision: str, way: str) -> AbstractAsyncContextManager[AskedPerson]:
    """Import an example's module again, and open a test person for its server."""
    spec = importlib.util.spec_from_file_location(f"example_{example}", EXAMPLES / f"{example}.py")
    assert spec is not None
    assert spec.loader is not None
    module: Any = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    protocol = "2025-11-25" if revision == "legacy" else revision
    return elicit_person(module.mcp, revision=protocol, declares=WAYS[way])


async def test_delete_account_runs_after_confirmation(revision, way):
    # parity: F16
    async with at("approvals", revision, way) as person:
        person.fills(confirmed=True, reason="Asked for by mail.")
        result = await person.call("delete_account", user="u1")
        assert result.text == "u1 is deleted. Asked for by mail."
        person.fills(confirmed=False)
        assert "not confirmed" in (await person.call("delete_account", user="u2")).text


async def test_large_expense_requires_approval(revision, way):
    # parity: F16
    async with at("approvals", revision, way) as person:
        small = await person.call("file_expense", description="Tea", amount=12.5)
        assert small.text == "Filed: Tea, 12.50 USD."
        large: Mapping[str, Any] = {"description": "A coffee machine", "amount": 1200.0}
        person.fills(approved=False, notes="Too dear.")
        assert (await person.call("file_expense", **large)).text == "Rejected. Too dear."
        person.fills(approved=True)
        assert (await person.call("file_expense", **large)).text.startswith("Filed")
        person.accepts()
        approved = await person.call("approve_expense", expense="e7", amount=501.0)
        assert approved.text == "e7 is approved."
        approved = await person.call("approve_expense", expense="e8", amount=20.0)
        assert approved.text == "e8 is approved."


async def test_transfer_requires_two_steps(revision, way):
    # parity: F16
    async with at("approvals", revision, way) as person:
        transfer: Mapping[str, Any] = {"source": "a", "target": "b", "amount": 7.0}
        person.accepts()
        person.fills(code="000000")
        assert "not the code" in (await person.call("transfer_funds", **transfer)).text
        person.accepts()
        person.fills(code="314159")
        result = await person.call("transfer_funds", **transfer)
        assert result.text == "7.00 USD went from a to b."
        codes = [question for question in person.asked if question.kind == "form"]
        assert [reported.timeout for reported in codes] == [timedelta(minutes=2)] * 2


async def test_connect_github_connects_the_account(revision, way):
    # parity: F16
    async with at("approvals", revision, way) as person:
        person.connects()
        assert (await person.call("connect_github")).text == "Connected as octocat."


async def test_delete_file_requires_acceptance_or_the_sure_argument(revision, way):
    # parity: F16
    async with at("approvals", revision, way) as person:
        if "form" in WAYS[way]:
            person.accepts()
            assert (await person.call("delete_file", path="x")).text == "x is deleted."
        else:
            assert "Nobody was asked" in (await person.call("delete_file", path="x")).text
        assert (await person.call("delete_file", path="x", sure=True)).text == "x is deleted."


async def test_create_issue_requires_gate_approval(revision, way):
    async with at("issues", revision, way) as person:
        person.accepts()
        person.connects()
        result = await person.call("create_issue", repository="octocat/tea", title="More tea")
        assert result.text.endswith("'More tea' in octocat/tea, as octocat")


async def test_check_stock_asks_for_a_warehouse_and_clear_completed_for_approval(revision, way):
    async with at("stock", revision, way) as person:
        person.fills(warehouse="north")
        assert (await person.call("check_stock")).text == "north: 12 boxes"
        person.accepts()
        assert (await person.call("clear_completed")).text == "Removed 2."


async def test_premium_report_requires_connection_and_payment(revision, way):
    async with at("membership", revision, way) as person:
        person.fills(theme="dark", language="French")
        assert (await person.call("configure")).text == "dark, in French"
        person.connects()
        person.pays()
        report = (await person.call("premium_report")).text
        assert report == "A report for octocat, who paid 9.00 EUR once."
        assert (await person.call("premium_report")).text == report
        person.types("a wrong key")
        assert "refused the key" in (await person.call("forecast")).text


@pytest.mark.parametrize("example", ["my_tools", "my_tools_fastmcp"])
async def test_order_lunch_uses_the_choice_on_the_authors_page(revision, way, example):
    async with at(example, revision, way) as person:
        person.visits(dish="soup")
        assert (await person.call("order_lunch")).text == "The person would like soup."
