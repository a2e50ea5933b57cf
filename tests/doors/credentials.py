"""Credentials: others cannot exhaust a valid one's rate, and each works for one purpose only."""

import httpx

from tests.doors.rules import STORES, Door, Rule, every
from tests.doors.world import ALICE, ANN, ERIN, World
from tests.support.api_people import alone
from tests.support.mcp_server import TLS
from webapp.api.access import REFUSED_AT_ONCE
from webapp.identity.api_keys import new_text

ASKED = {"kind": "confirm", "message": "Sell the house?"}


async def _flood(world: World) -> None:
    """Send more invalid keys and tokens to every route than one address may."""
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


async def _takes_no_token_for_calls(world: World, _: Door) -> None:
    # finding: XS12
    await world.asked_of_finance({"order": "o8"}, "Pay it back?")
    calls = await world.stack.enter_async_context(alone(world.env, world.token(ERIN)))
    acting = await world.stack.enter_async_context(alone(world.env, world.token(ERIN, use="api")))
    own = await world.person_alone(ERIN)
    (request, *_) = (await own.send("GET", "/api/inbox")).json()["requests"]
    for program in (calls, acting):
        for method, path, body in (
            ("GET", "/api/questions", None),
            ("GET", "/api/inbox", None),
            ("POST", f"/api/inbox/{request['id']}/answer", {"accepts": True}),
            ("DELETE", "/api/approvals", None),
            ("DELETE", "/api/approvals/x", None),
        ):
            refused = await program.send(method, path, json=body)
            assert refused.status_code == 403, path
            assert "/api/inbox (RFC 8707)" in refused.json()["detail"]
    (waiting, *_) = (await own.send("GET", "/api/inbox")).json()["requests"]
    assert waiting["decision"] == "waiting"


async def _acts_by_no_token_for_calls(world: World, _: Door) -> None:
    # finding: XS12
    for use in ("mcp", "api/inbox"):
        acting = world.program.acting_for(world.token(ALICE, use=use))
        refused = await acting.call("POST", json=ASKED)
        assert (refused.status_code, refused.json()["code"]) == (403, "ACCESS_TOKEN_REFUSED")
    acting = world.program.acting_for(world.token(ALICE, use="api"))
    assert (await acting.call("POST", json=ASKED)).status_code == 201


async def _calls_by_no_token_for_the_api(world: World, _: Door) -> None:
    # finding: XS12
    for use in ("api", "api/inbox"):
        about = {"authorization": f"Bearer {world.token(ALICE, use=use)}"}
        refused = await world.program.send("POST", "/mcp", headers=about, json={})
        assert refused.status_code == 401


RULES = [
    Rule(
        id="token-use",
        says="A token does only what it was issued for",
        source="promise 13",
        cells={
            **every((Door.TOOL_2025, Door.TOOL_2026, Door.TASK), _calls_by_no_token_for_the_api),
            Door.API: _acts_by_no_token_for_calls,
            Door.CLIENT: _acts_by_no_token_for_calls,
            Door.PROXY: _acts_by_no_token_for_calls,
            Door.INBOX: _takes_no_token_for_calls,
            Door.APPROVING_KEY: "a key has scopes, of which approving stands alone: "
            "tests/attacks/test_api.py",
            **every(
                (Door.PAGE, Door.APPROVER, Door.OWN_PAGES),
                "a page takes a link, a session and a form's mark, each sealed for its purpose: "
                "tests/attacks/test_tokens.py",
            ),
            Door.BLOCK: "a block names its user itself, and brings no token",
            Door.TRUSTED_CODE: "a return token completes its own question: "
            "tests/webapp/elicitations/test_completion.py",
            Door.CLIENT_FORM: "the client's answer comes with its call",
            Door.USER_CODE: "a code confirms one browser for one question",
            Door.SIGN_IN: "an id_token of the issuer counts for one sign-in: "
            "tests/attacks/test_signed_in.py",
            Door.CALLBACK: "a state is used once, for its own attempt",
            Door.WEBHOOK: "a signature is of the provider that the address names",
            **every((Door.HOOK, Door.EVENT, Door.COMMAND), "it takes no token"),
            **every(STORES, "a store takes no token"),
        },
    ),
    Rule(
        id="held-back",
        says="A key, token, session or link that works is never held back for its neighbours",
        source="docs/reference/threat-table.md, HTTP API",
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
