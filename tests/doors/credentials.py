"""Credentials: invalid ones never rate-limit a valid one, and each works for a single purpose."""

import httpx

from tests.doors.rules import STORES, Door, Rule, every
from tests.doors.world import ALICE, ANN, ERIN, World
from tests.support.api_people import person_client
from tests.support.mcp_server import TLS
from webapp.api.access import REFUSED_AT_ONCE
from webapp.identity.api_keys import new_text

ASKED = {"kind": "confirm", "message": "Sell the house?"}


async def _flood(world: World) -> None:
    """Send invalid keys and tokens until the address is rate-limited, then try other routes."""
    url, forged = world.env.here.url, f"{world.token(ANN)[:-8]}AAAAAAAA"
    async with httpx.AsyncClient(base_url=url, verify=TLS, timeout=300) as client:
        statuses = list[int]()
        for number in range(REFUSED_AT_ONCE + 2):
            about = {"authorization": f"Bearer {new_text() if number % 2 else forged}"}
            refused = await client.get("/api/questions", headers=about)
            statuses.append(refused.status_code)
        assert statuses[-1] == 429
        for path in ("/api/inbox", "/mcp", "/e/made-up", "/pair/made-up"):
            refused = await client.post(
                path, headers={"authorization": f"Bearer {forged}"}, json={}
            )
            assert refused.is_client_error, path


async def _works_during_a_flood(world: World, door: Door) -> None:
    # finding: XS5
    await _flood(world)
    asked = await world.ask(door, ASKED)
    assert "house" in (await world.page(asked)).text


async def _the_inbox_opens_during_a_flood(world: World, _: Door) -> None:
    # finding: XS5
    await world.asked_of_finance({"order": "o8"}, "Pay it back?")
    await world.browser(ERIN)
    await _flood(world)
    assert await world.addresses_of_finance()
    person = await world.person_alone(ERIN)
    assert (await person.send("GET", "/api/inbox")).status_code == 200


async def _a_key_that_approves_works_during_a_flood(world: World, _: Door) -> None:
    # finding: XS5
    asked = await world.ask(Door.API, ASKED)
    await _flood(world)
    answered = await world.desk.post(asked.id, "answer", {"accepts": True})
    assert answered.status_code == 200


async def _inbox_refuses_tokens_for_mcp_and_api(world: World, _: Door) -> None:
    # finding: XS12
    await world.asked_of_finance({"order": "o8"}, "Pay it back?")
    calls = await world.stack.enter_async_context(person_client(world.env, world.token(ERIN)))
    acting = await world.stack.enter_async_context(
        person_client(world.env, world.token(ERIN, use="api"))
    )
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


async def _api_refuses_tokens_for_mcp_and_inbox(world: World, _: Door) -> None:
    # finding: XS12
    for use in ("mcp", "api/inbox"):
        acting = world.program.acting_for(world.token(ALICE, use=use))
        refused = await acting.call("POST", json=ASKED)
        assert (refused.status_code, refused.json()["code"]) == (403, "ACCESS_TOKEN_REFUSED")
    acting = world.program.acting_for(world.token(ALICE, use="api"))
    assert (await acting.call("POST", json=ASKED)).status_code == 201


async def _mcp_refuses_tokens_for_api_and_inbox(world: World, _: Door) -> None:
    # finding: XS12
    for use in ("api", "api/inbox"):
        about = {"authorization": f"Bearer {world.token(ALICE, use=use)}"}
        refused = await world.program.send("POST", "/mcp", headers=about, json={})
        assert refused.status_code == 401


RULES = [
    Rule(
        id="token-use",
        says="A token works only for the purpose that it was issued for",
        source="promise 13",
        cells={
            **every(
                (Door.TOOL_2025, Door.TOOL_2026, Door.TASK), _mcp_refuses_tokens_for_api_and_inbox
            ),
            Door.API: _api_refuses_tokens_for_mcp_and_inbox,
            Door.CLIENT: _api_refuses_tokens_for_mcp_and_inbox,
            Door.PROXY: _api_refuses_tokens_for_mcp_and_inbox,
            Door.INBOX: _inbox_refuses_tokens_for_mcp_and_api,
            Door.APPROVING_KEY: "an API key has scopes, and the scope `approve` cannot be "
            "combined with another one: tests/attacks/test_api.py",
            **every(
                (Door.PAGE, Door.APPROVER, Door.OWN_PAGES),
                "a page accepts a link, a session and a CSRF token, and each is "
                "encrypted for one purpose: tests/attacks/test_tokens.py",
            ),
            Door.BLOCK: "the code of a block names its user, and sends no token",
            Door.TRUSTED_CODE: "a return token can complete only its own question: "
            "tests/webapp/elicitations/test_completion.py",
            Door.CLIENT_FORM: "the client sends the answer within its call",
            Door.USER_CODE: "a user code confirms one browser for one question",
            Door.SIGN_IN: "the issuer's id_token works for only one sign-in: "
            "tests/attacks/test_signed_in.py",
            Door.CALLBACK: "an OAuth state works once, and only for its own attempt",
            Door.WEBHOOK: "the server verifies a signature only with the secret or certificate "
            "of the provider that the address names",
            **every((Door.HOOK, Door.EVENT, Door.COMMAND), "it accepts no token"),
            **every(STORES, "a store accepts no token"),
        },
    ),
    Rule(
        id="held-back",
        says="A valid key, token, session or link is never rate-limited "
        "because of other requests from the same address",
        source="docs/reference/threat-table.md, HTTP API",
        cells={
            **every(
                (Door.TOOL_2025, Door.TOOL_2026, Door.TASK, Door.API, Door.CLIENT),
                _works_during_a_flood,
            ),
            Door.BLOCK: _works_during_a_flood,
            Door.PAGE: _works_during_a_flood,
            Door.APPROVER: _the_inbox_opens_during_a_flood,
            Door.INBOX: _the_inbox_opens_during_a_flood,
            Door.APPROVING_KEY: _a_key_that_approves_works_during_a_flood,
            Door.OWN_PAGES: "each session has its own rate limit: "
            "tests/webapp/routes/test_rates.py and "
            "tests/webapp/routes/test_credentials.py",
            Door.SIGN_IN: "a browser that returns from the issuer has a rate limit for its "
            "encrypted cookie: tests/webapp/routes/test_credentials.py. A "
            "browser that starts a sign-in has no valid credential yet",
            Door.USER_CODE: "wrong user codes are counted for each question",
            Door.CALLBACK: "a valid OAuth state has the rate limit of its question: "
            "tests/webapp/routes/test_credentials.py",
            Door.WEBHOOK: "the server verifies the signature before it counts requests by address",
            Door.PROXY: "open requests are counted for each program",
            **every(
                (Door.CLIENT_FORM, Door.TRUSTED_CODE, Door.HOOK, Door.EVENT, Door.COMMAND),
                "there is no rate limit by address here",
            ),
            **every(STORES, "a store has no rate limits"),
        },
    ),
]
