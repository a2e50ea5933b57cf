"""The plugins of examples/ and docs/how-to/webhooks.md, each with tools that ask."""

import importlib.util
import io
import json
import logging
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from flows import Money, elicit
from tests.support.samples import FILES
from tests.support.ways import protocol
from webapp.testing import elicit_person

EXAMPLES = Path(__file__).parents[3] / "examples"


@dataclass
class Booking:
    room: str
    nights: int


def module(name: str) -> Any:
    """Import an example again and return its module."""
    spec = importlib.util.spec_from_file_location(f"recipe_{name}", EXAMPLES / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    found: Any = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(found)
    return found


@pytest.fixture
def server(server: Any) -> Any:
    @server.tool()
    async def book_a_room() -> str:
        booking = await elicit.form("Which room?", Booking)
        return f"{booking.room} for {booking.nights} nights"

    @server.tool()
    async def clear() -> str:
        return "cleared" if await elicit.confirm("Clear it?") else "kept"

    return server


async def test_audit_log_has_a_line_for_each_question_and_its_end(server, revision):
    # parity: F10
    out = io.StringIO()
    plugin = module("audit_log").AuditLog(out)
    async with elicit_person(server, revision=protocol(revision), plugins=[plugin]) as person:
        person.fills(room="the garden room", nights=4)
        await person.call("book_a_room")
        person.declines()
        await person.call("clear")
    lines = [json.loads(line) for line in out.getvalue().splitlines()]
    assert [
        (line["event"], line["tool"], line.get("status"), line.get("by")) for line in lines
    ] == [
        ("asked", "book_a_room", None, None),
        ("settled", "book_a_room", "accepted", "InClient"),
        ("asked", "clear", None, None),
        ("settled", "clear", "declined", None),
    ]
    assert "garden" not in out.getvalue()


async def test_sanitizer_masks_card_numbers(server, revision):
    # parity: F10
    plugin = module("sanitizer").sanitizer
    async with elicit_person(server, revision=protocol(revision), plugins=[plugin]) as person:
        person.fills(room="garden, by card 4111 1111 1111 1111", nights=4)
        result = await person.call("book_a_room")
        assert result.text == "garden, by card ****1 for 4 nights"


async def test_analytics_count_outcomes_and_durations(server, revision):
    # parity: F10
    plugin = module("analytics").Analytics()
    async with elicit_person(server, revision=protocol(revision), plugins=[plugin]) as person:
        person.accepts()
        await person.call("clear")
        person.declines()
        await person.call("clear")
    assert plugin.ends == {("clear", "accepted"): 1, ("clear", "declined"): 1}
    assert plugin.times == {"clear": [timedelta()]}  # the person's clock does not advance by itself


async def test_admin_filter_logs_questions_to_administrators_only(server, revision, caplog):
    # parity: F10
    caplog.set_level(logging.WARNING, logger="admins")
    out = io.StringIO()
    admins = module("admin_filter")
    plugins = [admins.admin_audit, module("audit_log").AuditLog(out)]
    async with elicit_person(server, revision=protocol(revision), plugins=plugins) as person:
        person.declines()
        await person.call("clear")
        noted = [record for record in caplog.records if record.name == "admins"]
        assert noted == []
        admins.ADMINS.add(json.loads(out.getvalue().splitlines()[0])["owner"])
        person.declines()
        await person.call("clear")
        (noted,) = [record for record in caplog.records if record.name == "admins"]
        assert "An administrator is asked by clear" in noted.getMessage()


async def test_documented_rules_refuse_high_prices_and_allow_others(server, revision):
    # parity: F9
    sample = ModuleType("my_rules")
    exec(compile(FILES["my_rules.py"], "my_rules.py", "exec"), vars(sample))  # noqa: S102 - ours

    @server.tool()
    async def buy(price: str) -> str:
        receipt = await elicit.payment(Money(price, "EUR"), "A report")
        return f"paid {receipt.price}"

    async with elicit_person(
        server, revision=protocol(revision), plugins=[sample.rules], declares=["url"]
    ) as person:
        assert "write to us" in (await person.call("buy", price="101.00")).text
        person.pays()
        assert (await person.call("buy", price="100.00")).text == "paid 100.00 EUR"
        assert len(sample.rules.asked) == 1
