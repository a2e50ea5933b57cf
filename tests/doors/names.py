"""Names that authors and programs choose: each name belongs to one program and one person."""

from typing import Any

import pytest

from flows.elicitation.states import Completion, Status
from flows.errors import OwnerNeeded
from tests.doors.rules import ANSWERING, ASKING, ENTERING, PROVIDERS, STORES, Door, Rule, every
from tests.doors.world import ALICE, ANN, Asked, Refused, World, world_tools
from tests.support.mcp_sandbox import Guest

CONTENT = {"paid by": "card"}
RESERVED = ("other (API)", "Other  (api)", "the application")


@world_tools
def _tools_with_reserved_names(server: Any) -> None:
    for name in RESERVED:

        @server.tool(name=name)
        async def _(body: dict[str, Any]) -> str:
            raise AssertionError(body)


def visit(name: str) -> dict[str, Any]:
    about = {"kind": "url", "message": "Pay at the till.", "url": "https://till.example/9"}
    return {**about, "elicitation_id": name}


async def _by_a_program(world: World, door: Door, program: str, name: str) -> Asked:
    """Ask the door's person as `program`, with `elicitation_id` `name`. This must be allowed."""
    if world.subject(door) != ALICE:
        return await world.ask(Door.API, visit(name), program=program)
    acting = (await world.program_named(program)).acting_for(world.token(ALICE, use="api"))
    answer = await acting.asked(visit(name))
    found = [one for one in await world.open(door) if one.id == answer["id"]]
    return world.known(found[0], door)


async def _name_completes_its_question_once(world: World, door: Door) -> None:
    # finding: XS1
    party = {
        Door.API: {"program": "shop"},
        Door.CLIENT: {"program": "shop"},
        Door.BLOCK: {"tool": "the application"},
    }.get(door, {"tool": "ask"})
    complete = world.env.here.service.completing.complete
    for is_first in (True, False):
        name = f"order-{door.name}-{is_first}"
        others: list[Asked] = []
        if is_first:
            others.append(await _by_a_program(world, door, "other", name))
        first = await world.ask(door, visit(name))
        service = world.env.here.service
        await service.elicitations.end(await world.state(first), Status.CANCELLED)
        if not is_first:
            others.append(await _by_a_program(world, door, "other", name))
        if door in (Door.TOOL_2025, Door.TOOL_2026):
            others.append(await world.ask(door, visit(name), tool="ask_too"))
            with pytest.raises(OwnerNeeded, match="tool="):
                await complete(name, CONTENT, owner=world.owner(door))
        done = await complete(name, CONTENT, owner=world.owner(door), **party)
        assert done is Completion.LATE
        again = await complete(name, CONTENT, owner=world.owner(door), **party)
        assert again is Completion.ALREADY_SETTLED
        for other in others:
            assert (await world.state(other)).status is Status.PENDING
            await service.elicitations.end(await world.state(other), Status.CANCELLED)


async def _name_completes_no_other_question(world: World, door: Door) -> None:
    # finding: XS1
    await _name_completes_its_question_once(world, door)
    complete, owner = world.env.here.service.completing.complete, world.owner(door)
    others = await _by_a_program(world, door, "other", f"order-{door.name}")
    with pytest.raises(Refused, match="elicitation_id"):
        await world.ask(door, visit(others.id))
    for party in ({"program": "shop"}, {"tool": "ask"}, {"tool": "the application"}):
        for name in (others.id, f"order-{door.name}:", f"order-{door.name}::"):
            for whose in (owner, None):
                done = await complete(name, CONTENT, owner=whose, **party)
                assert done is Completion.UNKNOWN
    assert (await world.state(others)).status is Status.PENDING
    assert await complete(others.id, CONTENT, program="other") is Completion.ACCEPTED


async def _tool_cannot_have_a_reserved_name(world: World, door: Door) -> None:
    # finding: XS1
    await _name_completes_no_other_question(world, door)
    for tool in RESERVED:
        with pytest.raises(Refused, match="Rename the tool"):
            await world.ask(door, visit(f"order-{door.name}"), tool=tool)


async def _is_not_completed_by_another_name(world: World, _: Door) -> None:
    # finding: XS1
    complete = world.env.here.service.completing.complete
    others = await _by_a_program(world, Door.API, "other", "order-9")
    owner = world.owner(Door.API)
    parties: tuple[dict[str, str], ...] = (
        *({}, {"program": "shop"}, {"tool": "ask"}, {"tool": "other (API)"}),
        *({"program": "other (API)"}, {"program": "Other"}),
    )
    for party in parties:
        for name in ("order-9", others.id) if party else ("order-9",):
            for whose in (owner, None):
                done = await complete(name, CONTENT, owner=whose, **party)
                assert done is Completion.UNKNOWN
    for name in ("order-9:", "order-9::", "order-9 ", "ORDER-9", "order-", ":", ""):
        for whose in (owner, None):
            done = await complete(name, CONTENT, owner=whose, program="other")
            assert done is Completion.UNKNOWN
    assert (await world.state(others)).status is Status.PENDING
    done = await complete("order-9", CONTENT, owner=owner, program="other")
    assert done is Completion.ACCEPTED


SECRET = {"kind": "secret", "message": "Your key, please.", "name": "weather"}


async def _name_is_unknown_to_another_program(world: World, door: Door) -> None:
    """Answer a secret of one program. The same name in another program must stay unanswered."""
    secret = {**SECRET, "name": f"weather-{door.name}"}
    question = await world.ask(door, secret)
    guest = Guest(await world.browser(question.subject))
    await guest.type(question.link)
    assert (await world.state(question)).status is Status.ACCEPTED
    if world.subject(door) == ALICE:
        other = (await world.program_named("other")).acting_for(world.token(ALICE, use="api"))
        answer = await other.asked(secret)
        assert answer["status"] == "pending"
        forgotten = await other.send("DELETE", f"/api/secrets/{secret['name']}")
    else:
        asked = await world.ask(Door.API, secret, program="other")
        assert (await world.state(asked)).status is Status.PENDING
        other = await world.program_named("other")
        forgotten = await other.send("DELETE", f"/api/secrets/{secret['name']}?user={ANN}")
    assert forgotten.status_code == 404


async def _key_and_run_belong_to_one_program(world: World, door: Door) -> None:
    await _name_is_unknown_to_another_program(world, door)
    for named in ({"key": "wish"}, {"run": "order 8"}):
        body = {"kind": "confirm", "message": "Sell the house?", **named}
        question, other = [await world.ask(door, body, program=name) for name in ("shop", "other")]
        assert question.id != other.id
        ended = await (await world.program_named("other")).send(
            "POST", "/api/runs/end", json={"user": ANN, "run": "order 8"}
        )
        assert ended.status_code == 200
        assert (await world.state(question)).status is Status.PENDING


RULES = [
    Rule(
        id="names",
        says="Names that a program chooses (key, run, `once`, secret) are "
        "separate from the names of other programs",
        source="docs/reference/threat-table.md, ownership on every route of the HTTP API",
        cells={
            **every(
                (Door.TOOL_2025, Door.TOOL_2026, Door.TASK, Door.BLOCK, Door.CLIENT),
                _name_is_unknown_to_another_program,
            ),
            Door.API: _key_and_run_belong_to_one_program,
            Door.HOOK: "a hook chooses no names",
            **every(
                ANSWERING, "an answer names the question by its id, which the server generates"
            ),
            **every(ENTERING, "it identifies people, and uses no name of a program"),
            **every(PROVIDERS, "it uses only ids that the server generates"),
            Door.OWN_PAGES: "these pages list everything of the person, for all programs",
            Door.EVENT: "an event contains only ids that the server generates",
            Door.COMMAND: "a command uses only ids that the server generates",
            **every(
                STORES,
                "the name and its program are hashed together with a key: "
                "tests/webapp/records/test_seal.py",
            ),
        },
    ),
    Rule(
        id="elicitation-id",
        says="An `elicitation_id` works only for the program, tool or block that chose it",
        source="promise 13",
        cells={
            **every(ASKING, _name_completes_no_other_question),
            **every((Door.TOOL_2025, Door.TOOL_2026, Door.TASK), _tool_cannot_have_a_reserved_name),
            Door.TRUSTED_CODE: _is_not_completed_by_another_name,
            Door.HOOK: "a hook can change the texts of a question, but not its `elicitation_id`",
            **every(
                (Door.PAGE, Door.CLIENT_FORM, Door.APPROVER, Door.INBOX, Door.APPROVING_KEY),
                "an answer names the question by its id, which the server generates",
            ),
            **every(ENTERING, "it identifies people, and names no question"),
            **every(PROVIDERS, "it names the question by its id, which the server generates"),
            Door.OWN_PAGES: "these pages list records by the owner, and by ids that the "
            "server generates",
            Door.EVENT: "an event names the question by its id, which the server generates",
            Door.COMMAND: "a command uses only ids that the server generates",
            **every(
                STORES,
                "the name is stored as one row, which `Store.list` finds by its "
                "id: tests/webapp/stores/test_contract.py, which also runs "
                "against PostgreSQL",
            ),
        },
    ),
]
