"""Credentials: none that works is held back for others, and each does what it was issued for."""

import httpx

from tests.doors.rules import STORES, Door, Rule, every
from tests.doors.world import ANN, ERIN, World
from tests.support.mcp_server import TLS
from webapp.api.access import REFUSED_AT_ONCE
from webapp.identity.api_keys import new_text

ASKED = {"kind": "confirm", "message": "Sell the house?"}


async def _flood(world: World) -> None:
    """Send more keys and tokens that were made up than an address may, to every door of theirs."""
    url, forged = world.env.here.url, f"{world.token(ANN)[:-8]}AAAAAAAA"
    async with httpx.AsyncClient(base_url=url, verify=TLS, timeout=300) as client:
        statuses = list[int]()
        for number in range(REFUSED_AT_ONCE + 2):
            about = {"authorization": f"Bearer {new_text() if number % 2 else forged}"}
            refused = await client.get("/api/questions", headers=about)
            statuses.append(refused.status_code)
        assert statuses[-1] == 429
        for path in ("/api/inbox", "/mcp", "/e/made-up", "/pair/made-up"):
            await client.post(path, headers={"authorization": f"Bearer {forged}"}, json={})


async def _works_beside_a_flood(world: World, door: Door) -> None:
    # finding: XS5
    await _flood(world)
    asked = await world.ask(door, ASKED)
    assert "house" in (await world.page(asked)).text


async def _the_inbox_opens_beside_a_flood(world: World, _: Door) -> None:
    # finding: XS5
    await world.asked_of_finance({"order": "o8"}, "Pay it back?")
    await world.browser(ERIN)
    await _flood(world)
    assert await world.addresses_of_finance()
    person = await world.person_alone(ERIN)
    assert (await person.send("GET", "/api/inbox")).status_code == 200


async def _a_key_that_approves_works_beside_a_flood(world: World, _: Door) -> None:
    # finding: XS5
    asked = await world.ask(Door.API, ASKED)
    await _flood(world)
    answered = await world.desk.post(asked.id, "answer", {"accepts": True})
    assert answered.status_code == 200


RULES = [
    Rule(
        id="held-back",
        says="A key, token, session or link that works is never held back for its neighbours",
        source="docs/threats.md, the HTTP API",
        cells={
            **every(
                (Door.TOOL_2025, Door.TOOL_2026, Door.TASK, Door.API, Door.CLIENT),
                _works_beside_a_flood,
            ),
            Door.BLOCK: _works_beside_a_flood,
            Door.PAGE: _works_beside_a_flood,
            Door.APPROVER: _the_inbox_opens_beside_a_flood,
            Door.INBOX: _the_inbox_opens_beside_a_flood,
            Door.APPROVING_KEY: _a_key_that_approves_works_beside_a_flood,
            Door.OWN_PAGES: "a session is counted by itself: tests/webapp/routes/test_rates.py and "
            "test_credentials.py beside it",
            Door.SIGN_IN: "a browser on its way back is counted by its sealed cookie: "
            "tests/webapp/routes/test_credentials.py; one that only begins has nothing that works",
            Door.USER_CODE: "wrong codes are counted by the question that they are for",
            Door.CALLBACK: "a state that works is counted by its question: "
            "tests/webapp/routes/test_credentials.py",
            Door.WEBHOOK: "a signature is checked before anything is counted by address",
            Door.PROXY: "requests under way are counted by the program",
            **every(
                (Door.CLIENT_FORM, Door.TRUSTED_CODE, Door.HOOK, Door.EVENT, Door.COMMAND),
                "nothing is limited by address there",
            ),
            **every(STORES, "a store limits nobody"),
        },
    ),
]
