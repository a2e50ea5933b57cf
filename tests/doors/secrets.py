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


async def _no_result_says_it(world: World, door: Door) -> None:
    body = world.fresh(SECRET)
    if door is Door.TASK:
        client = await world.task_client()
        task = await client.task("ask", body=body)
        while not (asked := await world.open(door)):
            await client.get(task)
        await _typed(world, world.known(asked[0], door), value=TYPED)
        said = json.dumps(await client.until(task, "completed"))
    else:
        await _typed(world, await world.ask(door, body), value=TYPED)
        said = await world.call(door, "ask", body=body)
    assert "***" in said
    assert TYPED[:8] not in said


async def _no_page_says_it_again(world: World, _: Door) -> None:
    asked = await world.ask(Door.API, {**world.fresh(SECRET), "schema": LONG})
    page = await _typed(world, asked, key=TYPED, host="db.example.com")
    assert page.status == 422
    assert "db.example.com" in page.text
    assert TYPED[:8] not in page.text
    assert TYPED[:8] not in (await world.page(asked)).text


RULES = [
    Rule(
        id="secret",
        says="What a person types in confidence reaches the tool or program that asked, and no "
        "model, client, page or log",
        source="promise 7",
        cells={
            **every((Door.TOOL_2025, Door.TOOL_2026, Door.TASK), _no_result_says_it),
            **every(
                (Door.BLOCK, Door.API, Door.CLIENT),
                "the application or the program that asks is given the secret, and no model reads "
                "what it does with it",
            ),
            Door.PAGE: _no_page_says_it_again,
            Door.CLIENT_FORM: "a secret is asked on our page alone: tests/webapp/mcp/test_kinds.py",
            Door.TRUSTED_CODE: "code of the author's completes visits and forms, and no secret",
            **every(
                (Door.APPROVER, Door.INBOX, Door.APPROVING_KEY),
                "approvers and keys answer no secret",
            ),
            Door.HOOK: "no hook gets one: tests/webapp/mcp/test_plugins.py",
            Door.OWN_PAGES: "no list has a secret, nor the name of one",
            Door.CALLBACK: "no secret of a person goes to a provider",
            Door.PROXY: "a provider gets the key of the account, and no answer repeats it: "
            "tests/attacks/test_api_proxy.py",
            Door.WEBHOOK: "no secret of a person goes to a provider",
            Door.EVENT: "an event says no content: tests/webapp/events",
            Door.COMMAND: "no command prints what was answered",
            **every(ENTERING, "no secret is typed there"),
            **every(STORES, "it is sealed: tests/webapp/records/test_seal.py"),
        },
    ),
]
