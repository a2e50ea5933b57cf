"""A secret that a person typed reaches the tool that asked, and nobody else."""

import json

from tests.doors.rules import (
    ENTERING,
    STORES,
    Door,
    Rule,
    every,
)
from tests.doors.world import Asked, World
from tests.support.mcp_server import Page

TYPED = "kestrel-harbour-42-violet"
SECRET = {"kind": "secret", "message": "The key of the pantry?"}
LONG = {
    "type": "object",
    "properties": {
        "key": {"type": "string", "writeOnly": True, "minLength": 90},
        "host": {"type": "string"},
    },
}


async def _typed(world: World, asked: Asked, **answers: str) -> Page:
    person, page = await world.browser(asked.subject), await world.page(asked)
    form = {"csrf": page.csrf or "", **{f"answer.{name}": text for name, text in answers.items()}}
    sent = await person.browser.post(page.actions[0], data=form)
    return Page.of(sent)


async def _result_masks_secret(world: World, door: Door) -> None:
    body = world.fresh(SECRET)
    if door is Door.TASK:
        client = await world.task_client()
        task = await client.task("ask", body=body)
        while not (asked := await world.open(door)):
            await client.get(task)
        await _typed(world, world.known(asked[0], door), value=TYPED)
        result = json.dumps(await client.until(task, "completed"))
    else:
        await _typed(world, await world.ask(door, body), value=TYPED)
        result = await world.call(door, "ask", body=body)
    assert "***" in result
    assert TYPED[:8] not in result


async def _page_does_not_repeat_secret(world: World, _: Door) -> None:
    asked = await world.ask(Door.API, {**world.fresh(SECRET), "schema": LONG})
    page = await _typed(world, asked, key=TYPED, host="db.example.com")
    assert page.status == 422
    assert "db.example.com" in page.text
    assert TYPED[:8] not in page.text
    assert TYPED[:8] not in (await world.page(asked)).text


RULES = [
    Rule(
        id="secret",
        says="A secret that a person types reaches only the tool or program "
        "that asked, and never a model, client, page or log",
        source="promise 7",
        cells={
            **every((Door.TOOL_2025, Door.TOOL_2026, Door.TASK), _result_masks_secret),
            **every(
                (Door.BLOCK, Door.API, Door.CLIENT),
                "the application or program that asks receives the secret, and no "
                "model reads its result",
            ),
            Door.PAGE: _page_does_not_repeat_secret,
            Door.CLIENT_FORM: "secrets are asked only on the server's pages: "
            "tests/webapp/mcp/test_kinds.py",
            Door.TRUSTED_CODE: "custom code can complete visits and forms, but no secrets",
            **every(
                (Door.APPROVER, Door.INBOX, Door.APPROVING_KEY),
                "approvers and API keys cannot answer a question for a secret",
            ),
            Door.HOOK: "no hook receives a secret: tests/webapp/mcp/test_plugins.py",
            Door.OWN_PAGES: "no page lists a secret or its name",
            Door.CALLBACK: "the server sends no person's secret to a provider",
            Door.PROXY: "the provider receives the account's access token, and the proxy "
            "removes the token from responses: "
            "tests/attacks/test_api_proxy.py",
            Door.WEBHOOK: "the server sends no person's secret to a provider",
            Door.EVENT: "an event contains no answers: tests/webapp/events",
            Door.COMMAND: "no command prints answers",
            **every(ENTERING, "no secret is typed here"),
            **every(STORES, "the secret is encrypted: tests/webapp/records/test_seal.py"),
        },
    ),
]
