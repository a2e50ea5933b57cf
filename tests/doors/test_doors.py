"""Tests of every rule at every door: a probe tries to break it, or a reason says why it cannot."""

from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from tests.doors.document import DOCUMENT, document
from tests.doors.rules import ANSWERING, ASKING, ENTERING, OTHERS, PROVIDERS, STORES, Door, rules
from tests.doors.world import World, open_world
from tests.support.living import living

pytestmark = pytest.mark.asyncio(loop_scope="module")
RULES = {rule.id: rule for rule in rules()}
GROUPS = (ASKING, ANSWERING, ENTERING, PROVIDERS, STORES, OTHERS)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def world() -> AsyncIterator[World]:
    async with living(open_world()) as world:
        yield world


@pytest.mark.parametrize("door", Door)
@pytest.mark.parametrize("rule", RULES)
async def test_rule_holds_at_door(rule: str, door: Door, world: World) -> None:
    cell = RULES[rule].cells.get(door)
    assert cell is not None, f"{rule} has no entry for {door}: add a probe or a reason"
    if isinstance(cell, str):
        assert len(cell.split()) > 2
        return
    world.env.here.clock.tick(seconds=30)  # so that no answer counts as too fast
    try:
        await cell(world, door)
    finally:
        await world.end_all()


async def test_every_door_belongs_to_one_group() -> None:
    assert sorted(door for group in GROUPS for door in group) == sorted(Door)


async def test_rules_have_unique_names() -> None:
    assert len(RULES) == len(rules())


async def test_page_of_rules_and_doors_is_up_to_date() -> None:
    assert DOCUMENT.read_text("utf-8") == document(), (
        "the page is out of date: run python -m tests.doors"
    )
